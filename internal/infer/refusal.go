package infer

import (
	"fmt"
	"strings"

	"tenon.dev/fault"
)

// shown is the maximum number of dimensions, or of elements of another list, that an error shows.
const shown = 12

// Clipped formats a list of numbers for an error.
func Clipped(list []int) string {
	if n := len(list); n > shown {
		return fmt.Sprintf("%s … of %d numbers]", strings.TrimSuffix(fmt.Sprint(list[:shown]), "]"), n)
	}
	return fmt.Sprint(list)
}

// Refusal returns an error whose long lists are clipped.
func Refusal(kind fault.Kind, format string, args ...any) *fault.Error {
	for i, a := range args {
		if list, ok := a.([]int); ok && len(list) > shown {
			args[i] = Clipped(list)
		}
	}
	return fault.New(kind, format, args...)
}
