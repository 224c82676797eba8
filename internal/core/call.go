package core

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"unique"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// attrs are the attributes of a call besides its operands. Nothing in them points to memory of the device or of a frame.
type attrs struct {
	structure
	scalar [4]kernels.Scalar
	// hole holds the scalars that stand for absent inputs of pointwise operations.
	hole [4]kernels.Scalar
}

// structure is the part of the attributes that decides types, shapes and kernels.
type structure struct {
	// holes has a bit for each input that a number replaces, and holeFloat for each where that number is not an integer.
	holes, holeFloat uint8
	// hosts has a bit for each input that was a 0-d tensor of the processor.
	hosts uint8
	dt    dtype.DType
	i     [8]int
	list  *intList
	opt   param
}

// param is an attribute that a row defines for itself. Its types are comparable and consist of numbers, forms, lists and objects that exist
// only once, such as rows, devices and the operations of kernels.
type param interface{ param() }

// Call is one call of an operation as a plain value: it can be copied, compared with ==, used as a key, printed and run again. It names
// operands by number, type and form, and so keeps none of them alive.
type Call struct {
	row *row
	callMode
	structure
	scalar, hole [4]number
	// first holds the first operands and rest the others: inputs, then those of a list, then destinations.
	first [4]Operand
	rest  *operandList
	// source is the slot of the generator in a key.
	source    int
	many      uint32
	ins, dsts uint8
}

// callMode is how a call runs, as far as its Exec decides that.
type callMode struct {
	stream               *rt.Stream
	generator            *rt.Generator
	pool                 *rt.MemPool
	noGrad, tf32, byHand bool
}

// number is a kernels.Scalar by its bits, so that a NaN equals itself and the zeros differ.
type number struct{ f, im, i uint64 }

func numbersOf4(s *[4]kernels.Scalar) (n [4]number) {
	for i, v := range s {
		n[i] = numberOf(&v)
	}
	return n
}

func numberOf(v *kernels.Scalar) number {
	return number{math.Float64bits(v.F), math.Float64bits(v.Im), uint64(v.I)}
}

func scalarsOf4(n *[4]number) (s [4]kernels.Scalar) {
	for i, v := range n {
		s[i] = kernels.Scalar{F: math.Float64frombits(v.f), Im: math.Float64frombits(v.im), I: int64(v.i)}
	}
	return s
}

// Operand describes an operand of a call: the number of its storage, which is unique in the process (0 if there is no operand), its type,
// and where its elements lie.
type Operand struct {
	storage uint64
	form    *form
	offset  int
	dt      dtype.DType
}

func operandOf(t *Tensor) Operand {
	if t == nil {
		return Operand{}
	}
	return Operand{t.st.number(), t.form, t.offset, t.dt}
}

// operandList is a list of operands. Equal lists are the same object.
type operandList struct{ all []Operand }

var allOperands interned[operandList]

func restOf(rest []Operand) *operandList {
	if len(rest) == 0 {
		return nil
	}
	h := uint64(len(rest))
	for _, o := range rest {
		var fh uint64
		if o.form != nil {
			fh = o.form.hash
		}
		h = mixInts(h, []int{int(o.storage), int(fh), o.offset, int(o.dt)})
	}
	return allOperands.get(h, func(l *operandList) bool {
		return slices.Equal(l.all, rest)
	}, func() *operandList { return &operandList{rest} })
}

// Op returns the operation's name.
func (c *Call) Op() string { return c.row.Name }

// Operands returns the descriptions of all operands: inputs, those of a list, and destinations. Absent ones are zero.
func (c *Call) Operands() []Operand {
	n := int(c.ins) + int(c.many) + int(c.dsts)
	out := append([]Operand(nil), c.first[:min(n, len(c.first))]...)
	if c.rest != nil {
		out = append(out, c.rest.all...)
	}
	return out
}

// Absent reports whether there is no operand.
func (o Operand) Absent() bool { return o.form == nil }

// Storage returns the number of the operand's storage.
func (o Operand) Storage() uint64 { return o.storage }

// String describes the operand, such as "float32[3 4] #7".
func (o Operand) String() string {
	if o.Absent() {
		return "none"
	}
	s := o.dt.String() + strings.ReplaceAll(fmt.Sprint(o.form.shape), ",", " ")
	if !o.form.plain {
		s += fmt.Sprint("/", o.form.stride)
	}
	s += fmt.Sprint(" #", o.storage)
	if o.offset != 0 {
		s += fmt.Sprint("+", o.offset)
	}
	return s
}

// Infer returns the specs of c's outputs, or the error with which c would be refused. It opens no device and allocates no device memory.
func (c Call) Infer() (outs []Spec, err error) {
	err = Try(func() {
		f := c.inferred()
		outs = f.Inferred()
		for i := range outs {
			if d := f.to(i); d != nil {
				outs[i] = Spec{DType: d.dt, Shape: d.shape, Stride: d.stride, Offset: d.offset}
			}
		}
	})
	return outs, err
}

// inferred returns a frame of c, on operands without elements, after infer.
func (c *Call) inferred() *frame {
	x := &Exec{s: &session{gate: gate{door: &door{}}}}
	f := x.s.enter(x, c.row)
	f.restore(c, describedBy(c.Operands()))
	if c.row.alters != nil {
		c.row.alters(f)
	}
	c.row.infer(f)
	return f
}

// describedBy returns tensors with the types and forms of ops, without elements. Those of one storage share one.
func describedBy(ops []Operand) []*Tensor {
	ts := make([]*Tensor, len(ops))
	for i, o := range ops {
		if o.Absent() {
			continue
		}
		ts[i] = &Tensor{dt: o.dt, form: o.form, offset: o.offset, st: &storage{}}
		if k := slices.IndexFunc(ops[:i], func(e Operand) bool { return !e.Absent() && e.storage == o.storage }); k >= 0 {
			ts[i].st = ts[k].st
		}
	}
	return ts
}

// restore fills the frame with the call c on operands.
func (f *frame) restore(c *Call, operands []*Tensor) {
	f.attrs = attrs{c.structure, scalarsOf4(&c.scalar), scalarsOf4(&c.hole)}
	f.dims = append(f.dimsB[:0], c.list.ints()...)
	f.ins = copy(f.in[:], operands[:c.ins])
	f.many = append(f.many[:0], operands[c.ins:int(c.ins)+int(c.many)]...)
	f.outs = copy(f.dst[:], operands[int(c.ins)+int(c.many):])
}

// WithValues returns c with f applied to each of its values: the numbers that decide no type, shape or kernel. f must map a number that
// stands for an integer to an integer.
func (c Call) WithValues(f func(v float64) float64) Call {
	change := func(n *number) {
		v := f(math.Float64frombits(n.f))
		*n = number{math.Float64bits(v), n.im, uint64(int64(v))}
	}
	for i, n := range c.row.sig.numbers {
		if !n.decides {
			change(&c.scalar[i])
		}
	}
	for i, in := range c.row.sig.ins[:min(len(c.row.sig.ins), int(c.ins))] {
		if c.holes&(1<<i) != 0 && !in.decides {
			change(&c.hole[i])
		}
	}
	return c
}

// Again runs c on other operands of the same types and forms, in the order of Operands, with c's modes on c's stream, and returns the
// outputs.
func Again(x *Exec, c Call, operands []*Tensor) []*Tensor {
	m := x.m
	m.stream, m.generator, m.pool, m.noGrad, m.tf32, m.manual = c.stream, c.generator, c.pool, c.noGrad, c.tf32, c.byHand
	m.autocast, m.casts = dtype.Invalid, nil // the operands are converted already
	y := x.with(m)
	f := x.s.enter(y, c.row)
	f.restore(&c, operands)
	return f.callMany()
}

// form returns the form with that shape and those strides; nil strides mean contiguous. It is usually the form of an operand.
func (f *frame) form(shape, stride []int) *form {
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil || t.form == nil || !infer.Same(t.shape, shape) {
			continue
		}
		if stride == nil && t.plain || stride != nil && infer.Same(t.stride, stride) {
			return t.form
		}
	}
	return f.x.s.made.form(shape, stride)
}

// keptAttrs returns the attributes for a node, which shares them with the nodes of like calls.
func (f *frame) keptAttrs() *attrs {
	c := &f.x.s.made
	f.list = c.list(f.dims)
	if f.hasNone() {
		return &noAttrs
	}
	h := uint64(f.row.id)
	if f.list != nil {
		h += f.list.hash
	}
	slot := &c.attrs[h%uint64(len(c.attrs))]
	if a := *slot; a != nil && a.same(&f.attrs) {
		return a
	}
	a := f.attrs
	*slot = &a
	return &a
}

// same reports whether a and b are the same by their bits.
func (a *attrs) same(b *attrs) bool {
	if a.structure != b.structure {
		return false
	}
	for i := range a.scalar {
		if numberOf(&a.scalar[i]) != numberOf(&b.scalar[i]) || numberOf(&a.hole[i]) != numberOf(&b.hole[i]) {
			return false
		}
	}
	return true
}

// floatBits is a float64 by its bits, so that a NaN equals itself.
type floatBits uint64

func bitsOf(v float64) floatBits { return floatBits(math.Float64bits(v)) }

func (b floatBits) value() float64 { return math.Float64frombits(uint64(b)) }

// clear empties a.
func (a *attrs) clear() {
	a.holes, a.holeFloat, a.hosts, a.dt, a.i = 0, 0, 0, dtype.Invalid, [8]int{}
	if a.list != nil {
		a.list = nil
	}
	if a.opt != nil {
		a.opt = nil
	}
	a.scalar, a.hole = [4]kernels.Scalar{}, [4]kernels.Scalar{}
}

// hasNone reports whether the call has no attributes.
func (f *frame) hasNone() bool { return f.row.bare && f.holes|f.hosts == 0 || f.attrs.none() }

// none reports whether there are no attributes. A negative zero is one.
func (a *attrs) none() bool {
	if a.structure != (structure{}) {
		return false
	}
	for i := range a.scalar { // without holes, hole is empty too
		if numberOf(&a.scalar[i]) != (number{}) {
			return false
		}
	}
	return true
}

// numberList is a list of numbers that is compared by its contents.
type numberList struct{ h unique.Handle[string] }

// numbersOf returns the list of those numbers.
func numbersOf(v []float64) numberList {
	b := make([]byte, 0, 8*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return numberList{unique.Make(string(b))}
}

// floats appends the numbers to buf.
func (n numberList) floats(buf []float64) []float64 {
	s := n.h.Value()
	for i := 0; i < len(s); i += 8 {
		var bits uint64
		for j := 7; j >= 0; j-- {
			bits = bits<<8 | uint64(s[i+j])
		}
		buf = append(buf, math.Float64frombits(bits))
	}
	return buf
}

// numbers is numbersOf, but returns the latest list again if it has those numbers.
func (c *internCache) numbers(v []float64) numberList {
	same := len(v) == len(c.lastNumbers) && len(v) > 0
	for i := 0; same && i < len(v); i++ {
		same = math.Float64bits(v[i]) == math.Float64bits(c.lastNumbers[i])
	}
	if !same {
		c.lastNumbers, c.lastList = append(c.lastNumbers[:0], v...), numbersOf(v)
	}
	return c.lastList
}

// keptParam returns p as an attribute: the value in slot if that equals p, so that a repeated call allocates none.
func keptParam[P interface {
	comparable
	param
}](slot *param, p P) param {
	if old, ok := (*slot).(P); !ok || old != p {
		*slot = p
	}
	return *slot
}

// scalarsOf returns the list of those scalars. Each one becomes a float and the bits of an integer.
func scalarsOf(v []kernels.Scalar) numberList {
	out := make([]float64, 0, 2*len(v))
	for _, s := range v {
		out = append(out, s.F, math.Float64frombits(uint64(s.I)))
	}
	return numbersOf(out)
}

// scalars returns the scalars of a list that scalarsOf made.
func (n numberList) scalars() []kernels.Scalar {
	f := n.floats(nil)
	out := make([]kernels.Scalar, len(f)/2)
	for i := range out {
		out[i] = kernels.Scalar{F: f[2*i], I: int64(math.Float64bits(f[2*i+1]))}
	}
	return out
}

// noAttrs are the attributes of calls that have none.
var noAttrs attrs
