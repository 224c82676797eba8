//go:build !race

package compile_test

// programs is the number of random programs, and walkPrograms the number of those that do more.
const (
	programs, walkPrograms = 300, 60
	// failingPrograms are run with failures, failuresOfEach times.
	failingPrograms, failuresOfEach = 18, 4
	// sessionPrograms are run by several sessions at once.
	sessionPrograms = 64
)
