package compile

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Sessions returns how many sessions r remembers.
func Sessions(r *Region) int { return len(r.traces) }

// PendingRuns returns the length of the list of runs whose backward pass may still come.
func PendingRuns(x *tenon.Exec) int {
	return len(forestOf((*core.Exec)(x), (*core.Exec)(x).Device(), false).pending)
}
