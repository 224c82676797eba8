package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

const (
	maxIn  = 8
	maxOut = 4
)

// frame is one call of an operation: operands and attributes in, outputs out. Frames belong to the session and are reused, so that a call
// allocates nothing besides the handles it returns. Engines also issue their launches through the frame.
type frame struct {
	x   *Exec
	row *row

	in   [maxIn]*Tensor // absent operands are nil
	ins  int
	many []*Tensor // operands of operations over lists, such as Cat

	// Attributes, in the order of the row's schema. dims holds its list while the call is made.
	attrs
	dims []int
	// compute is the type that the operation computes in, which infer decides.
	compute dtype.DType

	// out holds the outputs; operations that return many views have more than maxOut.
	out  []*Tensor
	outB [maxOut]*Tensor
	outs int
	// specs describe the outputs, as infer decided.
	specs []spec
	// dst are the tensors that an in-place or out= call writes to, by output.
	dst [maxOut]*Tensor

	launch kernels.Launch
	dl     *driver.Launch
	work   []*alloc.Block
	temps  []*Tensor
	// before holds copies of inputs that the derivative reads and the call overwrites; altered are operands that it changes other than
	// destinations.
	before  [maxIn]*Tensor
	altered []*Tensor
	// described receives a description of what the call computes, in place of launches of the pointwise engine.
	described *pointCall
	telling
	// again says that the call was deferred and runs now: it was checked, recorded and counted before.
	again bool
	// waits says that launches wait until nothing else can fail (see change); held says that the latest one is in dl. drawn is what the
	// work took from a generator.
	waits, held bool
	drawn       taken
	turn        *rt.Stream // the stream whose turn the call has, or nil
	seq         uint64     // the number of the work under way there

	// op is the call as the profiler records it, or nil.
	op *rt.ProfiledOp
	// note is the call as a capture notes it where no profiler records it, or nil.
	note *callNote

	opers   []kernels.Operand
	dimsB   [16]int
	lists   [32]int
	perm    [16]int
	marks   [16]bool
	scalarB [8]kernels.Scalar
}

// usedFunc is a kernel that the session used.
type usedFunc struct {
	dev  *rt.Device
	fn   rt.Func
	spec kernels.Spec
}

func (s *session) enter(x *Exec, r *row) *frame {
	if s.depth == len(s.frames) {
		n := &frame{dl: new(driver.Launch)}
		n.out, n.specs = n.outB[:], make([]spec, maxOut)
		s.frames = append(s.frames, n)
	}
	f := s.frames[s.depth]
	s.depth++
	f.row, f.dims = r, f.dimsB[:0]
	if f.x != x {
		f.x = x
	}
	if f.op != nil {
		f.op = nil
	}
	if f.note != nil {
		f.note = nil
	}
	return f
}

// leave empties f for the next call. It does not overwrite pointers that are nil already: during a collection's mark phase each write costs
// a write barrier.
func (s *session) leave(f *frame) {
	for i := 0; i < f.ins; i++ {
		if f.in[i] = nil; f.before[i] != nil {
			f.before[i] = nil
		}
	}
	for i := 0; i < f.outs; i++ {
		f.out[i] = nil
	}
	for i := 0; i < min(f.outs, maxOut); i++ {
		if f.dst[i] != nil {
			f.dst[i] = nil
		}
	}
	f.waits, f.held, f.again = false, false, false
	if f.drawn.g != nil {
		f.drawn.g = nil
	}
	if f.described != nil {
		f.described = nil
	}
	if f.blame != nil {
		f.blame = nil
	}
	if f.from != nil {
		f.from = nil
	}
	if len(f.altered) > 0 {
		clear(f.altered)
		f.altered = f.altered[:0]
	}
	for i := range f.many {
		f.many[i] = nil
	}
	f.many, f.ins, f.outs, f.compute = f.many[:0], 0, 0, dtype.Invalid
	if !f.row.bare || f.holes|f.hosts != 0 {
		f.attrs.clear()
	}
	s.depth--
}

// setOut makes t output i.
func (f *frame) setOut(i int, t *Tensor) {
	for i >= len(f.out) {
		f.out = append(f.out, nil)
	}
	f.out[i] = t
	f.outs = max(f.outs, i+1)
}

// to returns the tensor that the caller gave for output i, or nil.
func (f *frame) to(i int) *Tensor {
	if i >= maxOut {
		return nil
	}
	return f.dst[i]
}

// frame implements kernels.Issuer.

// NewLaunch returns the frame's Launch, emptied.
func (f *frame) NewLaunch() *kernels.Launch {
	if f.held {
		f.spill()
	}
	f.launch.Reset()
	return &f.launch
}

// Issue launches l on the frame's stream.
func (f *frame) Issue(l *kernels.Launch) error {
	st := f.x.m.stream
	dev := st.Device()
	s := &l.Spec
	k := &f.x.s.funcs[(uint(s.Op)*7+uint(s.Family)*31+uint(s.DTypes[0])*5+uint(s.Vec))%uint(len(f.x.s.funcs))]
	if f.x.s.learning() {
		f.x.s.lent.learn(dev, s)
		return nil
	}
	if k.dev != dev || k.spec != *s {
		fn, err := dev.Func(s)
		if err != nil {
			return err
		}
		*k = usedFunc{dev, fn, *s}
	}
	f.x.s.launches++
	fn := k.fn
	d := f.dl
	d.Func, d.Stream, d.Grid, d.Block, d.Shared, d.Args, d.Waits = fn.Handle, st.Handle(), l.Grid, l.Block,
		l.Shared+fn.Shared, l.Args, fn.Waits
	f.comesFrom(fn)
	return f.hand()
}

// Workspace returns memory of the caching allocator that is freed when the operation ends.
func (f *frame) Workspace(n int) (uint64, error) {
	if l := f.x.s.lent; l != nil && l.fixed {
		return l.workspace(n), nil
	}
	b, err := f.x.alloc(n)
	if err != nil {
		return 0, err
	}
	f.work = append(f.work, b)
	if l := f.x.s.lent; l != nil && l.notes != nil {
		l.notes.work, l.notes.room = append(l.notes.work, b.Addr()), append(l.notes.room, n)
	}
	return b.Addr(), nil
}

// Limits describes the device.
func (f *frame) Limits() *kernels.Limits { return f.x.m.stream.Device().Limits() }

// Index32 returns the most elements that 32-bit indexes may reach.
func (f *frame) Index32() int { return f.x.m.stream.Device().Index32() }

// Memset fills n bytes with b.
func (f *frame) Memset(ptr uint64, b byte, n int) error {
	return f.queue(driverCall{kind: callFill, dst: driver.Ptr(ptr), value: b, n: n})
}

// endWork frees the workspace. The stream orders its reuse.
func (f *frame) endWork() error {
	var first error
	for i, b := range f.work {
		if err := f.x.m.stream.Device().Free(b); first == nil {
			first = err
		}
		f.work[i] = nil
	}
	f.work = f.work[:0]
	return first
}

// operand describes t with its own shape.
func operand(t *Tensor) kernels.Operand {
	return kernels.Operand{Ptr: t.ptr(), DType: t.dt, Shape: t.shape, Stride: t.stride}
}

// oneRun fills the frame's operand list without shapes and strides, if each operand has the layout of the first output, which is row-major,
// or is one element; repeat has the bits of the latter, outputs first. Most calls are like this, and a list without pointers takes a third
// of the time to fill.
func (f *frame) oneRun(op *kernels.PointOp) (outs, ins []kernels.Operand, repeat uint16, ok bool) {
	form := f.out[0].form
	n := f.outs + f.ins
	if !form.plain || f.outs != op.Outs || f.ins != op.Ins {
		return nil, nil, 0, false
	}
	if cap(f.opers) < n {
		f.opers = make([]kernels.Operand, n, maxIn+maxOut)
	}
	f.opers = f.opers[:n]
	for i := range f.opers {
		var t *Tensor
		if i < f.outs {
			t = f.out[i]
		} else {
			t = f.in[i-f.outs]
		}
		o := &f.opers[i]
		o.Via = dtype.Invalid
		switch {
		case t == nil:
			if f.holes&(1<<(i-f.outs)) == 0 {
				return nil, nil, 0, false
			}
			o.Ptr, o.DType = 0, dtype.Invalid
			continue
		case t.form == form:
		case i >= f.outs && t.numel == 1 && form.numel > 1:
			repeat |= 1 << i
		default:
			return nil, nil, 0, false
		}
		o.Ptr, o.DType = t.ptr(), t.dt
	}
	return f.opers[:f.outs], f.opers[f.outs:], repeat, true
}

// operandsOf fills the frame's operand list with outputs then inputs, all broadcast to the first output's shape.
func (f *frame) operandsOf() (outs, ins []kernels.Operand) {
	f.opers = f.opers[:0]
	used := 0
	for i := 0; i < f.outs; i++ {
		f.opers = append(f.opers, operand(f.out[i]))
	}
	shape := f.out[0].shape
	for i := 0; i < f.ins; i++ {
		t := f.in[i]
		if t == nil {
			if f.holes&(1<<i) != 0 {
				f.opers = append(f.opers, kernels.Operand{})
			}
			continue
		}
		o := operand(t)
		if !infer.Same(t.shape, shape) {
			var st []int
			if used+len(shape) <= len(f.lists) {
				st = f.lists[used : used+len(shape)]
				used += len(shape)
			} else {
				st = make([]int, len(shape))
			}
			infer.BroadcastStrides(st, t.shape, t.stride, shape)
			o.Shape, o.Stride = shape, st
		}
		f.opers = append(f.opers, o)
	}
	return f.opers[:f.outs], f.opers[f.outs:]
}
