//go:build !amd64

package vexec

// accelerate does nothing: there are only the plain kernels.
func accelerate() {}
