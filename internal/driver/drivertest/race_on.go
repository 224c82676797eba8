//go:build race

package drivertest

// raceEnabled says that the race detector is on, under which pools forget on purpose and allocations cannot be counted.
const raceEnabled = true
