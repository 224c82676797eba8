// Package fuse decides which calls of a segment run together. It takes the calls as a graph of values and returns the graph without calls
// that nobody needs or that repeat a computation, and with groups of calls that can be one kernel. It must not depend on tensors, kernels
// or devices.
package fuse

import (
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Graph is the calls of a segment, in order. A storage is a piece of memory, identified by a number from 1 to MaxStorage. A call that
// modifies a storage makes its next version; views of a storage are values of one version with different layouts.
type Graph struct {
	Calls []Call
	// Live are the storages that may be used after the segment, in ascending order.
	Live []int
	// Groups are the calls that run together, as Group and Join found them.
	Groups []Set
	// repeats has the storages that calls with Again make, and for each the storage and the version that the group would read instead.
	repeats map[int][2]int
}

// MaxStorage is the highest number that a storage may have.
const MaxStorage = 1<<16 - 1

// Call is one call of an operation.
type Call struct {
	// At is the call's index in the segment. It does not change when earlier calls are removed.
	At int
	Op string
	// Attrs tells calls of one operation apart by everything besides operands and values: equal numbers mean equal attributes. A call with
	// 0 equals no other.
	Attrs int
	// Lane identifies the stream.
	Lane int
	// Point says that the outputs have one shape, and each of their elements is computed from the elements at the same position of the
	// inputs, broadcast to that shape. Checks says that the call may stop the device, so that it must run even if nobody needs its outputs.
	// Effect says that it has other effects.
	Point, Checks, Effect bool
	// Row says that output 0 is computed row by row from input 0, which has the same shape, and from the other inputs. The kernel of such a
	// call can include element-wise work before it, which makes input 0, and after it, which reads output 0. Its last Sums outputs are not
	// operands of that kernel.
	Row  bool
	Sums int
	// Cat says that the inputs, which have one shape, lie side by side in the output, along dimension Dim. Element-wise work that makes
	// them can write them there, and work that reads the output can be done for each of them.
	Cat bool
	Dim int
	// Reduce, if not 0, says that the outputs are sums or the like of elements of the inputs, which are broadcast to the shape of the
	// first. The kernel of such a call can include element-wise work that makes the inputs, and other calls with the same number whose
	// first input has the same shape.
	Reduce int
	// States is how much of Limits.States a reduction takes. Stores says that its kernel can also write what makes its input.
	States int
	Stores bool
	// Rounds, if not 0, says that a reduction adds up the last dimension of its inputs, and that its kernel can go through the rows again
	// once it has the results. So it can include element-wise calls that read these, others that read those and have the shape of the
	// inputs, and reductions of what these make: it can have so many rounds of reductions.
	Rounds int
	// Product says that the call's output is a matrix product, whose kernel can include element-wise work that reads it. Apart says that
	// its last input, a bias, is an operand of that work, because it is added to the rounded product. Once says that the kernel reads each
	// element of input 1 once, so that it can also include the element-wise work that makes this matrix.
	Product, Apart, Once bool
	// Widens says that the call converts its operand to another type without loss, in the same layout. Narrow are the inputs that may be
	// replaced by the operands of such calls, and Narrowed says that some have been.
	Widens   bool
	Narrow   Span
	Narrowed bool
	// Scales says that the call multiplies operands in place by its last input; these operands are its other inputs. Scaled are the inputs
	// that a call can multiply itself, if it gets such a factor as one more input, and Factored says that it has got one.
	Scales   bool
	Scaled   Span
	Factored bool
	// Converts says that the call copies its whole operand, in the same layout, to new memory, possibly of another type.
	Converts bool
	// Heavy says that the call takes many instructions.
	Heavy bool
	// Lays says how the call takes operands whose channels may lie last, and Laid has a bit for each of these operands, inputs first.
	Lays Lays
	Laid uint
	// Again says that Group has put the call in for a group, which does the call with the same At again instead of reading its result.
	// NoAgain says that no calls are put in for the call's group, and Left that the call does not run, since others do it again.
	Again, NoAgain, Left bool
	// Values is the number of scalars of the call that may differ from run to run.
	Values int
	// Ins are the operands; absent ones have storage 0. Outs are new storages or, where Into has their bit, modified ones. Outputs beyond
	// the bits of Into are modified.
	Ins, Outs []Value
	Into      uint
}

// Span are the inputs of a call from number From up to, but not including, To.
type Span struct{ From, To int }

func (s Span) has(i int) bool { return s.From <= i && i < s.To }

// Value is a set of elements of one version of a storage.
type Value struct {
	// Storage is 0 for an absent value. Version 0 is the content of the storage before the segment.
	Storage, Version int
	Place
}

// Place is the layout of a value's elements in its storage. Stride and Offset are in elements.
type Place struct {
	DType         dtype.DType
	Shape, Stride []int
	Offset        int
}

// equal reports whether two values of one storage have the same elements in the same order.
func (p *Place) equal(q *Place) bool {
	return p.DType == q.DType && p.Offset == q.Offset && slices.Equal(p.Shape, q.Shape) && slices.Equal(p.Stride, q.Stride)
}

// flat reports whether the elements lie in their order without gaps.
func (p *Place) flat() bool {
	n := 1
	for d := len(p.Shape) - 1; d >= 0; d-- {
		if p.Shape[d] != 1 && p.Stride[d] != n {
			return false
		}
		n *= p.Shape[d]
	}
	return true
}

func (p *Place) numel() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// alike reports whether two values of one storage have the same elements in the same order, perhaps in different shapes.
func (p *Place) alike(q *Place) bool {
	return p.equal(q) || p.DType == q.DType && p.Offset == q.Offset && p.numel() == q.numel() && p.flat() && q.flat()
}

// viewed returns the strides with which the elements have another shape in the same order. It reports whether there are any.
func (p *Place) viewed(shape []int) ([]int, bool) {
	if slices.Equal(p.Shape, shape) {
		return p.Stride, true
	}
	return infer.ViewStrides(make([]int, 0, len(shape)), p.Shape, p.Stride, shape)
}

// views reports whether q is a view of the value at p: the same elements in the same order, perhaps in another shape, whether they have
// gaps or not.
func (p *Place) views(q *Place) bool {
	if p.DType != q.DType || p.Offset != q.Offset || p.numel() != q.numel() {
		return false
	}
	stride, ok := p.viewed(q.Shape)
	for d, n := range q.Shape {
		ok = ok && (n == 1 || stride[d] == q.Stride[d])
	}
	return ok
}

// same reports whether p and q are equal but for dimensions of size 1.
func (p *Place) same(q *Place) bool {
	a, b := Place{DType: p.DType, Offset: p.Offset}, Place{DType: q.DType, Offset: q.Offset}
	a.Shape, a.Stride = squeezed(p.Shape), Spread(p.Stride, p.Shape, squeezed(p.Shape))
	b.Shape, b.Stride = squeezed(q.Shape), Spread(q.Stride, q.Shape, squeezed(q.Shape))
	return a.equal(&b)
}

// squeezed returns a shape without the dimensions of size 1.
func squeezed(shape []int) (s []int) {
	for _, n := range shape {
		if n != 1 {
			s = append(s, n)
		}
	}
	return s
}

// Spread returns the strides of an array in shape to, given those in shape from, which is the same but for dimensions of size 1.
func Spread(stride, from, to []int) []int {
	spread, d := make([]int, len(to)), 0
	for e, n := range to {
		if n == 1 {
			continue
		}
		for from[d] == 1 {
			d++
		}
		spread[e] = stride[d]
		d++
	}
	return spread
}

// turned reports whether p and q are one matrix of at least two rows and columns, which lie in their order without gaps in p, or its
// transpose.
func (p *Place) turned(q *Place) bool {
	if len(p.Shape) != 2 || len(q.Shape) != 2 || min(p.Shape[0], p.Shape[1]) < 2 || !p.flat() || p.DType != q.DType ||
		p.Offset != q.Offset {
		return false
	}
	turn := p.Shape[0] == q.Shape[1] && p.Shape[1] == q.Shape[0] && p.Stride[0] == q.Stride[1] && p.Stride[1] == q.Stride[0]
	return turn || p.equal(q)
}

func (v *Value) equal(w *Value) bool {
	return v.Storage == w.Storage && v.Version == w.Version && v.Place.equal(&w.Place)
}

// Bytes returns the size of the value's elements. An element that is repeated counts once.
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

// Number gives every value its version, based on what the preceding calls modify. It returns an error for graphs that are not valid
// segments.
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
			case c.Point && !slices.Equal(v.Shape, c.Outs[0].Shape):
				return fault.New(fault.Invalid, "the outputs of call %d, %s, have different shapes", i, c.Op)
			}
			known[v.Storage] = true
			version[v.Storage]++
			v.Version = version[v.Storage]
		}
		if err := c.check(i); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if the call, number i, is not what it says of itself.
func (c *Call) check(i int) error {
	if len(c.Outs) == 0 {
		return nil
	}
	switch {
	case c.Row && (c.Point || len(c.Ins) == 0 || !slices.Equal(c.Ins[0].Shape, c.Outs[0].Shape)):
		return fault.New(fault.Invalid, "call %d, %s, goes by rows, but its first input and output have different shapes", i, c.Op)
	case (c.Widens || c.Converts) && !c.converts():
		return fault.New(fault.Invalid,
			"call %d, %s, converts, but it has not one input, and one new output that lies as that does",
			i, c.Op)
	case c.Reduce != 0 && (c.Point || c.Row || c.Product || !c.reduces()):
		return fault.New(fault.Invalid,
			"call %d, %s, reduces, but it has no inputs that have the shape of the first, or goes by elements or rows", i, c.Op)
	case c.Cat && !c.cats():
		return fault.New(fault.Invalid, "call %d, %s, puts its inputs side by side, but its output is not that", i, c.Op)
	case c.Sums > 0 && !c.Row || c.Sums >= len(c.Outs):
		return fault.New(fault.Invalid, "call %d, %s, has sums, but it does not go by rows, or has no other output", i, c.Op)
	case c.Product && (c.Point || c.Row || len(c.Outs) != 1 || c.Into != 0):
		return fault.New(fault.Invalid, "call %d, %s, is a product, but it has not one new output, or goes by elements or rows", i,
			c.Op)
	case c.Once && (!c.Product || len(c.Ins) < 2 || len(c.Ins[1].Shape) != 2):
		return fault.New(fault.Invalid, "call %d, %s, reads a matrix once, but it is not a product whose second input is one", i,
			c.Op)
	case c.Apart && (!c.Product || len(c.Ins) < 3 || c.Ins[len(c.Ins)-1].Storage == 0):
		return fault.New(fault.Invalid, "call %d, %s, has a bias apart, but it is not a product with a third input", i, c.Op)
	case (c.Point || c.Row) && c.Scaled != Span{}:
		return fault.New(fault.Invalid, "call %d, %s, goes by elements or rows, and takes no factor", i, c.Op)
	case c.Scales && !c.scales():
		return fault.New(fault.Invalid,
			"call %d, %s, scales, but its outputs are not its inputs except the last one, modified, each another storage", i, c.Op)
	}
	return nil
}

// converts reports whether the call has one input, and one new output with the same layout.
func (c *Call) converts() bool {
	if len(c.Ins) != 1 || len(c.Outs) != 1 || c.Into != 0 || c.Ins[0].Storage == 0 {
		return false
	}
	from, to := &c.Ins[0].Place, &c.Outs[0].Place
	return slices.Equal(from.Shape, to.Shape) && infer.SamePlaces(from.Shape, from.Stride, to.Stride)
}

// alike reports whether all inputs are present and have one shape.
func (c *Call) alike() bool {
	other := func(v Value) bool { return v.Storage == 0 || !slices.Equal(v.Shape, c.Ins[0].Shape) }
	return len(c.Ins) > 0 && !slices.ContainsFunc(c.Ins, other)
}

// reduces reports whether all inputs are present and can be broadcast to the shape of the first.
func (c *Call) reduces() bool {
	other := func(v Value) bool {
		lead := len(c.Ins[0].Shape) - len(v.Shape)
		if v.Storage == 0 || lead < 0 {
			return true
		}
		for d, n := range v.Shape {
			if n != 1 && n != c.Ins[0].Shape[lead+d] {
				return true
			}
		}
		return false
	}
	return len(c.Ins) > 0 && !slices.ContainsFunc(c.Ins, other)
}

// scales reports whether the outputs modify the storages of all inputs but the last, each once.
func (c *Call) scales() bool {
	n := len(c.Ins) - 1
	if n < 1 || len(c.Outs) != n || c.Point || c.Row {
		return false
	}
	seen := map[int]bool{c.Ins[n].Storage: true}
	for i := range n {
		s := c.Ins[i].Storage
		if s == 0 || seen[s] || c.Outs[i].Storage != s || !c.into(i) {
			return false
		}
		seen[s] = true
	}
	return c.Ins[n].Storage != 0
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

// conflict reports whether one of the calls writes a storage that the other uses, so that their order matters.
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
