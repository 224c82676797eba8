// Package sanitize holds the tests that memory checkers, of NVIDIA and our own, find planted bugs in kernels at their Go lines, and none in the
// kernels themselves; it exports nothing.
// It may not know what those kernels compute: it runs test binaries, of which its own has the planted bugs under the build tag planted.
package sanitize
