//go:build amd64 && !race

package core

// openPlain lets the next goroutine in. A plain store has release semantics on this processor, which makes stores visible in order, and
// Go's compiler moves no store past another. An atomic one would cost as much as entering.
func openPlain(in *uint64) { *in += oneVisit - busy }
