//go:build !race && !tenon_sim && linux

package libcuda

// raceDetector is set if the race detector is on.
const raceDetector = false
