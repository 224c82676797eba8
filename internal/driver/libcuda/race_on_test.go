//go:build race && !tenon_sim && linux

package libcuda

// raceDetector says that the race detector is on.
const raceDetector = true
