//go:build !race

package drivertest

// raceEnabled says that the race detector is on.
const raceEnabled = false
