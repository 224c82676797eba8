// Package sanitize tests that memory checkers, NVIDIA's and our own, find planted bugs in kernels at their Go lines, and none in the
// kernels of the library; it exports nothing. It must not depend on what those kernels compute: it runs test binaries, and its own contains
// the planted bugs under the build tag planted.
package sanitize
