// Package fuse decides which calls of a segment run together: it takes the calls as a graph of values and gives it back without what
// nobody needs, without what is computed twice, and with groups of calls that can be one kernel. It must not depend on tensors, kernels or
// devices.
package fuse

import (
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// Graph is the calls of a segment in their order. A storage is memory, known by its number, from 1 to MaxStorage. A call that changes a
// storage makes its next version; views of a storage are values of one version that lie in it in different ways.
type Graph struct {
	Calls []Call
	// Live are the storages that somebody may use after the segment, in ascending order.
	Live []int
	// Groups are calls that run together. Group and Join make them.
	Groups []Set
}

// MaxStorage is the highest number that a storage may have.
const MaxStorage = 1<<16 - 1

// Call is one call of an operation.
type Call struct {
	// At is the call's place in the segment, which it keeps when others before it go.
	At int
	Op string
	// Attrs tells calls of one operation apart by what they have besides operands and values: equal numbers mean equal attributes. Calls
	// with 0 are equal to none.
	Attrs int
	// Lane is the stream.
	Lane int
	// Point says that every element of the outputs, which have one shape, is computed from the elements of the inputs, broadcast to that
	// shape, that stand in the same place. Checks says that the call may stop the device, so that it runs also where nobody needs its
	// outputs, and Effect that it does more than make them.
	Point, Checks, Effect bool
	// Row says that output 0 is computed row by row from input 0, of the same shape, and from what else it reads. The kernel of such a call
	// can have element-wise work before it, which makes input 0, and after it, which reads output 0.
	Row bool
	// Widens says that the call converts its operand, without loss and as it lies, to another type. Narrow has a bit for each input that
	// may be given as what such a call was given, and Narrowed one for each that is.
	Widens           bool
	Narrow, Narrowed uint
	// Converts says that the call copies all of its operand, as it lies, to new memory, perhaps of another type.
	Converts bool
	// Heavy says that the call takes many instructions.
	Heavy bool
	// Values counts the numbers of the call that may differ from run to run.
	Values int
	// Ins are the operands; those that are absent have storage 0. Outs are new storages or, where Into has their bit, changed
	// ones, as are those beyond its bits.
	Ins, Outs []Value
	Into      uint
}

// Value is elements of one version of a storage.
type Value struct {
	// Storage is 0 where there is no value. Version 0 is what the storage held before the segment.
	Storage, Version int
	Place
}

// Place says where the elements of a value lie in its storage. Stride and Offset are in elements.
type Place struct {
	DType         dtype.DType
	Shape, Stride []int
	Offset        int
}

// equal reports whether two values of one storage are the same elements in the same order.
func (p *Place) equal(q *Place) bool {
	return p.DType == q.DType && p.Offset == q.Offset && slices.Equal(p.Shape, q.Shape) && slices.Equal(p.Stride, q.Stride)
}

func (v *Value) equal(w *Value) bool {
	return v.Storage == w.Storage && v.Version == w.Version && v.Place.equal(&w.Place)
}

// Bytes returns the size of the value's elements, each counted once though it may be repeated.
func (p *Place) Bytes() int {
	n := p.DType.Size()
	for i, d := range p.Shape {
		if p.Stride[i] != 0 || d == 0 {
			n *= d
		}
	}
	return n
}

func (c *Call) into(i int) bool { return i >= bits.UintSize || c.Into>>i&1 != 0 }

// Number gives every value its version, from what the calls before it changed. It refuses graphs that no segment is.
func (g *Graph) Number() error {
	version, known := map[int]int{}, map[int]bool{}
	for i := range g.Calls {
		c := &g.Calls[i]
		for j := range c.Ins {
			v := &c.Ins[j]
			v.Version = version[v.Storage]
			if v.Storage != 0 {
				known[v.Storage] = true
			}
		}
		for j := range c.Outs {
			v := &c.Outs[j]
			switch {
			case v.Storage == 0:
				return fault.New(fault.Invalid, "output %d of call %d, %s, is absent", j, i, c.Op)
			case !c.into(j) && known[v.Storage]:
				return fault.New(fault.Invalid, "output %d of call %d, %s, is new memory, but s%d was used before", j, i, c.Op, v.Storage)
			case c.Row && (c.Point || len(c.Ins) == 0 || !slices.Equal(c.Ins[0].Shape, c.Outs[0].Shape)):
				return fault.New(fault.Invalid, "call %d, %s, goes by rows, but its first input and output have different shapes", i, c.Op)
			case (c.Widens || c.Converts) && !c.converts():
				return fault.New(fault.Invalid,
					"call %d, %s, converts, but it has not one input, and one new output that lies as that does",
					i, c.Op)
			case c.Point && !slices.Equal(v.Shape, c.Outs[0].Shape):
				return fault.New(fault.Invalid, "the outputs of call %d, %s, have different shapes", i, c.Op)
			}
			known[v.Storage] = true
			version[v.Storage]++
			v.Version = version[v.Storage]
		}
	}
	return nil
}

// converts reports whether the call has one input, and one new output that lies as that does.
func (c *Call) converts() bool {
	return len(c.Ins) == 1 && len(c.Outs) == 1 && c.Into == 0 && c.Ins[0].Storage != 0 && slices.Equal(c.Ins[0].Stride, c.Outs[0].Stride)
}

// uses calls f with every storage that the call reads or writes.
func (c *Call) uses(f func(storage int, write bool)) {
	for i := range c.Ins {
		if s := c.Ins[i].Storage; s != 0 {
			f(s, false)
		}
	}
	for i := range c.Outs {
		f(c.Outs[i].Storage, true)
	}
}

// conflict reports whether one of two calls writes a storage that the other uses, so that their order counts.
func conflict(a, b *Call) bool {
	for i := range a.Outs {
		s, found := a.Outs[i].Storage, false
		b.uses(func(t int, _ bool) { found = found || s == t })
		if found {
			return true
		}
	}
	for i := range b.Outs {
		for j := range a.Ins {
			if a.Ins[j].Storage == b.Outs[i].Storage {
				return true
			}
		}
	}
	return false
}
