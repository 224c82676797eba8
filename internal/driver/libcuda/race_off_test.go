//go:build !race

package libcuda

// raceDetector says that the race detector is on.
const raceDetector = false
