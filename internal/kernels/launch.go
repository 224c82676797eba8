// Package kernels holds the built-in kernels and the engines that choose and launch them, written in the kernel DSL.
// It must not depend on tensors, autograd or drivers: operands are addresses with shapes and strides, and launches go through Issuer.
package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Operand is an array in device memory. Stride is in elements and may be 0 (broadcast) or, in internal use, negative.
type Operand struct {
	// Ptr is the address of the element at index 0.
	Ptr   uint64
	DType dtype.DType
	// Shape and Stride have equal lengths; they are not kept after the call.
	Shape, Stride []int
	// Via, where it is valid, is a half type that pointwise kernels round elements to on their way from or to DType.
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

// Launch is one kernel launch in the making. An Issuer owns one and reuses it, so that issuing allocates nothing.
type Launch struct {
	Spec        Spec
	Grid, Block [3]uint32
	// Shared is the dynamic shared memory in bytes.
	Shared uint32
	// Args holds the parameters in the order of the kernel's, each at its natural alignment.
	Args []byte
}

// Reset empties l. It keeps the memory of Args.
func (l *Launch) Reset() {
	l.Spec = Spec{} // not all of l at once, which would be put together elsewhere and copied
	l.Grid, l.Block, l.Shared, l.Args = [3]uint32{}, [3]uint32{}, 0, l.Args[:0]
}

// Limits are the properties of a device that launch shapes depend on.
type Limits struct {
	Multiprocessors, MaxThreadsPerSM, MaxThreadsPerBlock int
	SharedPerBlock                                       int
	// Major and Minor are the compute capability.
	Major, Minor int
}

// Issuer is what engines need of the runtime: the stream's order, workspace and the kernel cache lie behind it.
type Issuer interface {
	// NewLaunch returns the issuer's Launch, emptied, with Args of length 0.
	NewLaunch() *Launch
	// Issue builds the kernel of l.Spec if it is not cached, and launches it.
	Issue(l *Launch) error
	// Workspace returns the address of n bytes, aligned to 512, that stay valid for this stream until the operation ends.
	Workspace(n int) (uint64, error)
	// Limits describes the device.
	Limits() *Limits
	// Index32 returns the most elements that 32-bit indexes may reach; tests lower it.
	Index32() int
	// Memset fills n bytes with b.
	Memset(ptr uint64, b byte, n int) error
}

// Builder makes the kernel of a Spec.
type Builder func(s *Spec) *kernel.Kernel
