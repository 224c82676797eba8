//go:build race

package compile_test

// programs is how many random programs run.
const programs = 20
