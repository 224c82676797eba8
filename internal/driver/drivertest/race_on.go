//go:build race

package drivertest

// raceEnabled is set if the race detector is on. It makes pools drop objects on purpose, so allocations cannot be counted.
const raceEnabled = true
