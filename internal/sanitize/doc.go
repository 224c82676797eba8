// Package sanitize holds the tests that NVIDIA's compute-sanitizer finds planted bugs in kernels of ours, at their Go lines, and none in the
// kernels themselves; it exports nothing.
// It may not know what those kernels compute: it runs other packages' test binaries.
package sanitize
