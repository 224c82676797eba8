//go:build !race

package drivertest

// raceEnabled is set if the race detector is on.
const raceEnabled = false
