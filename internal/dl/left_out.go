//go:build tenon_sim || !(linux || darwin || windows)

package dl

// Library is an open shared library. There is none in this build.
type Library struct{}

// Open fails with ErrLeftOut.
func Open(names ...string) (*Library, error) { return nil, ErrLeftOut }
