//go:build !amd64

package vexec

// accelerate has nothing to enter: the plain kernels are all there are.
func accelerate() {}
