// Package kernels holds the built-in kernels, written in the kernel DSL, and the engines that choose and launch them. It must not depend on
// tensors, autograd or drivers: operands are addresses with shapes and strides, and launches go through Issuer.
package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Operand is an array in device memory. Strides are in elements and may be 0 (broadcast) or, in internal use, negative.
type Operand struct {
	// Ptr is the address of the element at index 0.
	Ptr   uint64
	DType dtype.DType
	// Shape and Stride have equal lengths; they are not kept after the call.
	Shape, Stride []int
	// Via, if valid, is a half type to which pointwise kernels round elements when they load them from or store them to DType.
	Via dtype.DType
}

// Numel returns the number of elements.
func (o *Operand) Numel() int {
	n := 1
	for _, d := range o.Shape {
		n *= d
	}
	return n
}

// Family is an engine.
type Family uint8

// Launch is a kernel launch under construction. An Issuer owns one and reuses it, so that issuing allocates nothing.
type Launch struct {
	Spec        Spec
	Grid, Block [3]uint32
	// Shared is the number of bytes of dynamic shared memory.
	Shared uint32
	// Args holds the parameters in the kernel's order, each at its natural alignment.
	Args []byte
}

// Reset empties l, but keeps the memory of Args.
func (l *Launch) Reset() {
	l.Spec = Spec{} // not *l as a whole, which would be assembled elsewhere and copied
	l.Grid, l.Block, l.Shared, l.Args = [3]uint32{}, [3]uint32{}, 0, l.Args[:0]
}

// Limits are the properties of a device that launch shapes depend on.
type Limits struct {
	Multiprocessors, MaxThreadsPerSM, MaxThreadsPerBlock int
	SharedPerBlock                                       int
	// Major and Minor are the compute capability.
	Major, Minor int
}

// Issuer is what engines need from the runtime; it hides the stream's order, workspace and the kernel cache.
type Issuer interface {
	// NewLaunch returns the issuer's Launch, emptied, with Args of length 0.
	NewLaunch() *Launch
	// Issue builds the kernel of l.Spec if it is not cached, and launches it.
	Issue(l *Launch) error
	// Workspace returns the address of n bytes, aligned to 512, that stay valid for this stream until the operation ends.
	Workspace(n int) (uint64, error)
	// Limits describes the device.
	Limits() *Limits
	// Index32 returns the maximum number of elements that 32-bit indexes may address; tests lower it.
	Index32() int
	// Memset sets n bytes to b.
	Memset(ptr uint64, b byte, n int) error
}

// Builder makes the kernel of a Spec.
type Builder func(s *Spec) *kernel.Kernel
