//go:build race

package optim_test

// raceEnabled is set if the race detector is on.
const raceEnabled = true
