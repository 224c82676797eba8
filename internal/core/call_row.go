package core

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/fuse"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// row describes one operation. Rows are made once, in tables beside the Exec methods that users call, and registered by name.
type row struct {
	// Name is the method's name, such as "Add"; Torch is PyTorch's, such as "add".
	Name, Torch string
	// pkg is the folder of the package that defines it: ownPackage or, of those by Define, another.
	pkg string
	// infer decides the outputs' types, shapes and strides from those of the operands and from the attributes, which it does not change: it
	// calls f.newOut or f.viewOut for each output. It needs no device and allocates no memory.
	infer func(f *frame)
	// run issues the kernels; it is nil for views. point is the operation of rows that the pointwise engine runs.
	run func(f *frame) error
	// view computes the geometry of view rows.
	view  func(f *frame, g geometry) geometry
	point *kernels.PointOp
	// points says that run hands all work to the pointwise engine, as one operation.
	points bool
	// byRows and reduces say that run hands all work to the row-wise engine or to that of reductions, as one operation.
	byRows, reduces bool
	// affine says that absent inputs stand for numbers that never change: a weight of 1, a bias of 0.
	affine bool
	// cats says that the call copies the tensors of its list side by side along dimension i[0].
	cats bool
	// narrows returns the float32 inputs, counted on into the list, that a call can read in the half type from which they were converted,
	// without a change of any bit of its results.
	narrows func(c *deferred) fuse.Span
	// scaling tells whether a call multiplies its list in place by the list's last tensor, and which inputs a call can multiply itself, if
	// takeFactor gives it the factor of a call that scales.
	scaling    func(c *deferred) (scales bool, scaled fuse.Span)
	takeFactor func(c, from *deferred)
	// product is set for a row whose calls are matrix products.
	product *productRow
	// lays tells how a call that is not element-wise takes operands whose channels lie last, without a change of any bit of its results.
	// which has a bit for each of these operands, inputs first.
	lays func(c *deferred) (how fuse.Lays, which uint)
	// rule returns the types that a pointwise operation computes in and returns.
	rule func(f *frame) (compute, out dtype.DType)
	// draws returns how many words each thread takes from the generator. Outputs and operands may have no elements yet. It is nil for rows
	// that take none.
	draws func(f *frame) uint64
	// remake, for a row that draws, returns the row that makes output 0 again, with the same bits, from input 0 of that type and what was
	// drawn, output 1. a has the call's attributes, and gets those of the row.
	remake func(a *attrs, dt dtype.DType) *row
	// alters passes to f.alter the operands that a row with flagMutates changes; without one, those that takes marks.
	alters func(f *frame)
	// checkDeferred finds the mistakes of a deferred call that infer cannot find. Otherwise run finds them.
	checkDeferred func(f *frame)
	// back computes the gradients of the inputs, with Exec operations; nil means the operation has none.
	back func(b *back)
	// saves says which tensors back reads; cross holds the inputs among them that only the gradients of other inputs need.
	saves save
	cross save
	// takes declares what a call has (see signature), sig is its parsed form, and optional holds the inputs that may be absent.
	takes    string
	sig      signature
	optional save
	// wideNumbers and wideHosts are the inputs whose numbers, and 0-d tensors of the processor, keep their value if the promoted type is a
	// half. PyTorch passes those to the computation in float32, and rounds others to the half type first.
	wideNumbers, wideHosts save

	cast  castClass
	flags flag
	// bare says that calls have no attributes, except for numbers in place of operands.
	bare bool
	// decides has a bit for each scalar that is structure and, from bit 4 on, for each number in place of an operand that is structure.
	decides uint8
	// id names the operation in the launch ring.
	id rt.OpID
	// flops counts the floating-point operations of a call that has its outputs. Pointwise rows with one per element need none.
	flops func(f *frame) int64
	// moves counts the bytes that such a call must read and write at least, if that is not each element of all operands once.
	moves func(f *frame) int64
}

// save is a set of tensors kept for backward: inputs by bit, outputs above.
type save uint16

const (
	in0 save = 1 << iota
	in1
	in2
	in3
	in4
	in5
	in6
	in7
	out0
	out1
	out2
	out3
)

// flag is a set of properties of an operation.
type flag uint16

const (
	// flagView: outputs share the first input's storage; no kernel runs.
	flagView flag = 1 << iota
	// flagForeign: inputs are on other devices, and run orders the reads of them.
	flagForeign
	// flagIdle: outputs are new and keep what their memory holds; no kernel runs.
	flagIdle
	// flagParts: the call returns several views, which cannot be changed in place while gradients are recorded.
	flagParts
	// flagInto: outputs are always destinations, which the call changes.
	flagInto
	// flagWaits: the call waits for the device, or may, and so cannot be captured.
	flagWaits
	// flagVaries: if several elements go to one place, which of them wins may differ from run to run.
	flagVaries
	// flagMutates: the call changes operands that are not destinations.
	flagMutates
	// flagUser: the program defines what the call does.
	flagUser
	// flagSized: the size of the output is a number that was read from the device, and depends on data.
	flagSized
	// flagAsserts: kernels have assertions, which may fail.
	flagAsserts
)

// call runs the frame's operation; all operations go through it. Its stages are check, cast, infer, place, order, run, record and adopt.
// The session's tap sees the call between infer and place, when nothing has changed yet, and at the end.
func (f *frame) call() {
	if p := f.x.m.stream.Device().Profiler(); p != nil {
		f.profiled(p)
		return
	}
	f.stages()
}

// stages is call without a profiler.
func (f *frame) stages() {
	x, r := f.x, f.row
	s := x.s
	if s.closed.Load() {
		f.check(errExecClosed)
	}
	into := f.lands()
	if into {
		f.landPoint()
	}
	if p := s.path; p != nil && (!into || s.landing.n == 0) && f.direct(p) {
		return
	}
	f.checkOperands()
	if x.m.autocast != dtype.Invalid && r.cast != castNone && f.dst[0] == nil {
		f.nested(f.autocast)
	}
	grads := !x.m.noGrad && r.back != nil && f.anyRequiresGrad()
	r.infer(f)
	if into {
		f.land(grads)
	}
	f.checkChanges(grads) // before the tap, which must see no call that is refused
	if s.tap != nil && r.checkDeferred != nil && f.Deferrable() {
		r.checkDeferred(f)
	}
	if grads && f.to(0) != nil && r.saves != 0 { // before the tap, which would see the copy as a separate call
		f.keepBefore()
	}
	if len(s.omissions) > 0 {
		f.keepSources()
	}
	if s.tap == nil || !s.tap.Before(f) {
		if s.putOff != nil && r.flags&(flagView|flagIdle) == 0 {
			f.check(s.force(r.Name))
			f.checkLost()
		}
		f.place()
		switch {
		case r.flags&flagIdle != 0:
			f.idle()
		case r.flags&flagView == 0:
			f.issue()
		}
	}
	if grads {
		f.record()
	}
	f.adopt()
	if s.tap != nil {
		s.tap.After(f)
	}
}

// checkOperands refuses operands that are absent but required, and those that cannot be used here.
func (f *frame) checkOperands() {
	for i := 0; i < f.ins; i++ {
		if f.in[i] != nil {
			f.in[i] = f.operand(i, f.in[i])
		} else if f.holes&(1<<i) == 0 && f.row.optional&(in0<<i) == 0 {
			f.fail(fault.Invalid, operandNil, i)
		}
	}
	for i, t := range f.many {
		if t == nil {
			f.fail(fault.Invalid, operandNil, f.ins+i)
		}
		f.many[i] = f.operand(f.ins+i, t)
	}
	if f.row.alters != nil {
		f.row.alters(f)
	}
	for _, ts := range [][]*Tensor{f.altered, f.dst[:]} {
		for _, d := range ts {
			if d != nil && d.st != nil {
				f.checkWritten(d)
			}
		}
	}
}

// checkLost refuses operands and destinations that have lost their memory to the calls that ran before this one.
func (f *frame) checkLost() {
	for i, ts := range [][]*Tensor{f.in[:f.ins], f.many, f.dst[:], f.altered} {
		for _, t := range ts {
			if t != nil && t.st.deferral() != 0 {
				f.check(f.x.s.barred(t, i >= 2))
			}
		}
	}
}

// checkWritten refuses a tensor that is used by calls which another session deferred.
func (f *frame) checkWritten(d *Tensor) {
	d.usedBy(f.x.s)
	if d.st.deferral() != 0 {
		f.check(f.x.s.barred(d, true))
	}
}

// adopt gives the new tensors to the innermost scope and closes the call's temporaries.
func (f *frame) adopt() {
	for i := 0; i < f.outs; i++ {
		if f.to(i) == nil {
			f.x.s.adopt(f.out[i])
		}
	}
	f.closeTemps()
}

// issue orders the operation's work on the stream and hands it to the driver: the stages order and run.
func (f *frame) issue() {
	st, r := f.x.m.stream, f.row
	f.check(st.Device().Lost())
	c := f.x.recording()
	seq, mine, err := f.x.s.begin(r.id, st, c.rt())
	f.check(err)
	f.seq = seq
	if mine {
		f.turn = st
	}
	switch {
	case c != nil:
		c.order(f)
	case !f.x.m.manual:
		f.order()
	}
	f.waits = f.x.s.change != nil || len(f.altered) > 0 || f.dst != [maxOut]*Tensor{}
	f.orderChanges()
	if r.run != nil {
		err = r.run(f)
	} else {
		err = f.runPoint()
	}
	if err == nil && f.waits {
		err = f.handOver()
	}
	if err != nil {
		f.check(f.orClosed(err))
	}
	if !f.again {
		f.countVersions()
	}
	f.release()
	f.check(f.endWork())
}

// orClosed returns err or, if page-locked memory that the operation uses was lost with its device, the error that the device was closed.
func (f *frame) orClosed(err error) error {
	for _, ts := range [][]*Tensor{f.in[:f.ins], f.out[:f.outs]} {
		for _, t := range ts {
			if t != nil && t.st.locked() != nil {
				if lost := t.st.locked().memory.Device().Lost(); fault.KindOf(lost) == fault.Closed {
					return lost
				}
			}
		}
	}
	return err
}

// release notes the accesses of the work under way, and gives the stream's turn back. A call that failed may have queued some of its work.
func (f *frame) release() {
	st := f.turn
	if st == nil {
		return
	}
	f.turn = nil
	if !f.x.m.manual && !st.Recording() {
		f.noteAccesses(st)
	}
	st.Issued(f.seq)
}

// begin takes st's turn for an operation op of the capture in, which is nil outside of captures, and returns the operation's number. If the
// Together under way has the turn, it keeps it, and mine is false.
func (s *session) begin(op rt.OpID, st *rt.Stream, in *rt.Capture) (seq uint64, mine bool, err error) {
	if s.change != nil {
		if len(s.change.turns) == 0 { // calls deferred before are no part of it
			if err := s.force(""); err != nil {
				return 0, false, err
			}
		}
		seq, err = s.change.begin(op, st, in)
		return seq, false, err
	}
	seq, err = st.Begin(op, in)
	return seq, true, err
}

func (f *frame) noteAccesses(st *rt.Stream) {
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil && f.row.flags&flagForeign == 0 {
			t.st.didRead(st, f.seq)
		}
	}
	for t := range f.onlyRead {
		t.st.didRead(st, f.seq)
	}
	for i := 0; i < f.outs; i++ {
		if s := f.out[i].st; s.writer.Load() == 0 && f.to(i) == nil && s.sole() { // nobody else knows it
			s.writer.begin(pack(st.ID(), f.seq))
		} else {
			s.didWrite(st, f.seq)
		}
	}
	for _, t := range f.altered {
		t.st.didWrite(st, f.seq)
	}
}

// countVersions counts a change of each tensor that the operation writes in place.
func (f *frame) countVersions() {
	for i := 0; i < f.outs; i++ {
		if d := f.to(i); d != nil {
			f.x.s.count(d.st)
		}
	}
	for _, t := range f.altered {
		f.x.s.count(t.st)
	}
}

// idle replaces issue if nothing runs: other streams must still come after the work that last used the outputs' memory.
func (f *frame) idle() {
	st := f.x.m.stream
	if c := f.x.recording(); c != nil {
		for i := 0; i < f.outs; i++ {
			c.wrote(f.out[i], st, st.Seq(), true)
		}
		return
	}
	for i := 0; i < f.outs; i++ {
		f.out[i].st.writer.Store(pack(st.ID(), st.Seq()))
	}
}

// onlyRead yields the operands of the list that the call does not change: what a change waits for and notes covers a read by the same call.
// Most rows change them in the order of the list; an operand that one changes in another order is yielded too, which does no harm.
func (f *frame) onlyRead(yield func(t *Tensor) bool) {
	next := f.altered
	for _, t := range f.many {
		if len(next) > 0 && next[0] == t {
			next = next[1:]
		} else if !yield(t) {
			return
		}
	}
}

// alter notes that the call changes t, which is an operand but not an output.
func (f *frame) alter(t *Tensor) { f.altered = append(f.altered, t) }

// orderChanges orders the work under way after the accesses that changes of the altered operands must come after.
func (f *frame) orderChanges() {
	c, st, manual := f.x.recording(), f.x.m.stream, f.x.m.manual
	for _, t := range f.altered {
		if err := t.st.settled(); err != nil {
			f.check(err)
		}
		if c != nil {
			c.writes(f, t, false)
		} else if !manual {
			if err := t.st.beforeWrite(st); err != nil {
				f.check(err)
			}
		}
	}
}

// nested runs operations on behalf of f's, such as conversions of its operands. If one fails, f is undone too.
func (f *frame) nested(g func()) {
	s, done := f.x.s, false
	doing := len(s.doing)
	s.doing = append(s.doing, f.row.Name)
	defer func() {
		if s.torn() {
			return
		}
		s.doing = s.doing[:doing]
		if !done {
			f.abandon()
		}
	}()
	g()
	done = true
}

// temp notes a temporary of the call, which is closed when the call ends.
func (f *frame) temp(t *Tensor) *Tensor {
	f.temps = append(f.temps, t)
	return t
}

func (f *frame) closeTemps() {
	for i, t := range f.temps {
		t.close()
		f.temps[i] = nil
	}
	f.temps = f.temps[:0]
}

// operand checks input i. A 0-d tensor of the processor becomes one of this device.
func (f *frame) operand(i int, t *Tensor) *Tensor {
	if t == nil {
		return nil
	}
	if t.st == nil {
		f.fail(fault.Invalid, operandZero, i)
	}
	t.usedBy(f.x.s)
	if t.closed.Load() {
		f.fail(fault.Closed, "the operand %s", t.whyClosed())
	}
	if t.st.deferral() != 0 {
		f.check(f.x.s.barred(t, false))
	}
	if t.st.arriving() && f.row.flags&flagForeign == 0 {
		f.check(t.st.arrived())
	}
	dev := f.x.m.stream.Device()
	if t.st.dev == dev || f.row.flags&flagForeign != 0 {
		return t
	}
	if t.st.dev.Host && len(t.shape) == 0 {
		if t.RequiresGrad() && !f.x.m.noGrad {
			f.fail(fault.Invalid, "the operand %s is on %s and requires grad, which no gradient on %s reaches; move it with x.To",
				describe(t), t.st.dev, dev)
		}
		var c *Tensor
		f.nested(func() { c = f.x.scalarFromHost(t) })
		f.hosts |= 1 << i
		return f.temp(c)
	}
	here, there := rt.Apart(dev, t.st.dev)
	f.fail(fault.Invalid, "Expected all tensors to be on the same device, but %s is on %s and the operation runs on %s; move it with x.To",
		describe(t), there, here)
	return nil
}

// anyRequiresGrad reports whether the call must be recorded. It brings the histories of the operands up to date.
func (f *frame) anyRequiresGrad() bool {
	requires := false
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil {
			if t.view != nil {
				f.settle(t)
			}
			requires = requires || t.node != nil || t.leaf != nil
		}
	}
	for _, t := range f.many {
		f.settle(t)
		requires = requires || t.node != nil || t.leaf != nil
	}
	for i := 0; i < f.outs; i++ { // destinations
		if d := f.to(i); d != nil && !requires {
			requires = d.inherits()
		}
	}
	return requires
}

// order makes the stream wait for the work that the operation's accesses depend on.
func (f *frame) order() {
	st := f.x.m.stream
	if st.Device().Spoils() {
		f.spoilt()
	}
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; t != nil && f.row.flags&flagForeign == 0 {
			f.check(t.st.beforeRead(st))
		}
	}
	for t := range f.onlyRead {
		if err := t.st.beforeRead(st); err != nil {
			f.check(err)
		}
	}
	for i := 0; i < f.outs; i++ {
		f.check(f.out[i].st.beforeWrite(st))
	}
}

// maxElement is the size of the largest element in bytes.
const maxElement = 16

// spec describes an output, as infer decided.
type spec struct {
	form *form
	// offset is where a view's first element lies in the storage of input 0, in elements of the view's type.
	offset int
	dt     dtype.DType
	kind   outKind
}

// outKind says where an output's elements are.
type outKind uint8

const (
	outNew outKind = iota
	// outView is in input 0's storage.
	outView
	// outLocked is in page-locked memory of the processor, for the device that the attribute names.
	outLocked
)

// newOut says that output i is new, or goes to the call's destination. It is contiguous if stride is nil.
func (f *frame) newOut(i int, dt dtype.DType, shape, stride []int) {
	f.checkShape(shape)
	*f.spec(i) = spec{form: f.form(shape, stride), dt: dt}
}

// viewOut says that output i is a view of input 0's storage.
func (f *frame) viewOut(i, offset int, dt dtype.DType, shape, stride []int) {
	f.checkShape(shape)
	*f.spec(i) = spec{form: f.form(shape, stride), offset: offset, dt: dt, kind: outView}
}

// spec returns the spec of output i, to be filled in.
func (f *frame) spec(i int) *spec {
	for i >= len(f.specs) {
		f.specs = append(f.specs, spec{})
	}
	f.outs = max(f.outs, i+1)
	return &f.specs[i]
}

// place makes the outputs that infer decided: it allocates their memory, or takes the call's destinations.
func (f *frame) place() {
	for i := 0; i < f.outs; i++ {
		sp := &f.specs[i]
		switch d := f.to(i); {
		case d != nil:
			f.checkOpen(d) // another goroutine may have closed it meanwhile
			f.setOut(i, d)
		case sp.kind == outView:
			f.placeView(i, sp)
		case sp.kind == outLocked:
			f.placeLocked(i, sp)
		default:
			f.placeNew(i, sp)
		}
	}
}

func (f *frame) placeNew(i int, sp *spec) {
	st := f.x.m.stream
	n := &fresh{}
	t, s := &n.Tensor, &n.own
	t.dt, t.st, t.form = sp.dt, s, sp.form
	s.dev = st.Device()
	s.bytes = f.bytes(sp)
	if s.bytes > 0 {
		b, err := f.x.alloc(s.bytes)
		if err != nil {
			f.check(forResult(err, t))
		}
		s.block, s.ptr = b, b.Addr()
		live.Add(1)
	}
	f.setOut(i, t)
}

func (f *frame) placeView(i int, sp *spec) {
	t := f.in[0]
	var v *Tensor
	switch {
	case !t.dt.IsFloat() && !t.dt.IsComplex() || f.row == rowDetach:
		v = t.alias()
	case f.x.m.noGrad:
		v = t.sibling(viewNoGrad)
	case f.row.flags&flagParts != 0:
		v = t.sibling(viewPart)
	default:
		v = t.sibling(viewPlain)
	}
	v.offset, v.dt, v.form = sp.offset, sp.dt, sp.form
	f.setOut(i, v)
}

// checkShape refuses negative dimensions, and more elements than an int counts. With a dimension of 0 there are no elements, whatever the
// others are.
func (f *frame) checkShape(shape []int) {
	n, over, negative, empty := uint64(1), uint64(0), 0, false
	for _, d := range shape {
		var hi uint64
		hi, n = bits.Mul64(n, uint64(d))
		over |= hi
		negative |= d
		empty = empty || d == 0
	}
	switch {
	case negative < 0:
		f.fail(fault.Invalid, "the result would have the negative dimension in shape %v", shape)
	case (over != 0 || n > math.MaxInt) && !empty:
		f.fail(fault.Invalid, "a tensor of shape %v has more elements than can be counted", shape)
	}
}

// alias returns another handle of the same elements, in no scope and with no history.
func (t *Tensor) alias() *Tensor {
	v := &Tensor{st: t.st, dt: t.dt, offset: t.offset, form: t.form}
	t.st.retain()
	return v
}

// checkChanges refuses a call whose destinations cannot take the results, or that would corrupt data or a recorded gradient.
func (f *frame) checkChanges(grads bool) {
	for i := 0; i < f.outs; i++ {
		if d := f.to(i); d != nil {
			f.checkDst(d, f.specs[i].dt, f.specs[i].form.shape)
		}
	}
	f.checkWrites(grads)
}

// checkDst refuses a destination that cannot take the result.
func (f *frame) checkDst(d *Tensor, dt dtype.DType, shape []int) {
	f.checkOpen(d)
	if f.row.flags&flagForeign == 0 && d.st.locked() != nil {
		f.check(d.st.settled())
	}
	if d.st.dev != f.x.m.stream.Device() {
		here, there := rt.Apart(f.x.m.stream.Device(), d.st.dev)
		f.fail(fault.Invalid,
			"Expected all tensors to be on the same device, but the destination %s is on %s and the operation runs on %s",
			describe(d), there, here)
	}
	if !infer.Same(d.shape, shape) {
		f.fail(fault.Invalid, "the destination has shape %v, but the result has shape %v", d.shape, shape)
	}
	if dt.Category() > d.dt.Category() {
		f.fail(fault.Invalid, "result type %v can't be cast to the desired output type %v of the destination %s; give it one of type %v",
			dt, d.dt, describe(d), dt)
	}
}

// checkOpen refuses a closed destination.
func (f *frame) checkOpen(d *Tensor) {
	if d.closed.Load() {
		f.fail(fault.Closed, "the destination %s", d.whyClosed())
	}
}

// checkWrites refuses in-place calls that would corrupt data or a recorded gradient.
func (f *frame) checkWrites(grads bool) {
	for _, t := range f.altered {
		if !f.x.m.noGrad && t.inherits() {
			f.checkHistory(t)
		}
	}
	for i := 0; i < f.outs; i++ {
		d := f.to(i)
		if d == nil {
			continue
		}
		for j, n := range d.shape {
			if n > 1 && d.stride[j] == 0 && d.Numel() > 0 {
				f.fail(fault.Invalid, "the destination %s repeats elements (stride 0 in dimension %d); Clone it first", describe(d), j)
			}
		}
		for j := 0; j < f.ins; j++ {
			if t := f.in[j]; t != nil && t != d && overlaps(t, d) {
				f.fail(fault.Invalid, "the destination overlaps operand %d, whose elements lie otherwise; Clone one of them first", j)
			}
		}
		if grads || f.row.back == nil && !f.x.m.noGrad && d.inherits() {
			f.checkHistory(d)
		}
	}
}

// identical reports whether t and d have the same elements in the same order, as the source and the destination of a call in place have.
func identical(t, d *Tensor) bool {
	return t == d || t.st == d.st && t.offset == d.offset && t.dt == d.dt && infer.Same(t.shape, d.shape) && infer.Same(t.stride, d.stride)
}

// overlaps reports whether t and d share memory without being the same elements in the same order.
func overlaps(t, d *Tensor) bool {
	if t.st != d.st || identical(t, d) {
		return false
	}
	t0, t1 := t.offset*t.dt.Size(), (t.offset+infer.Extent(t.shape, t.stride))*t.dt.Size()
	d0, d1 := d.offset*d.dt.Size(), (d.offset+infer.Extent(d.shape, d.stride))*d.dt.Size()
	return t0 < d1 && d0 < t1 && (t.dt.Size() != d.dt.Size() || meet(t, d))
}

// meet reports whether t and d, of one storage and element size, may have an element in common, as columns of one matrix do not. It looks
// for indexes i in t and j in d with i·t.stride - j·d.stride equal to the distance of the first elements, the longest strides first. After
// many steps it gives up and returns true.
func meet(t, d *Tensor) bool {
	type term struct{ stride, lo, hi int }
	var b [16]term
	terms := b[:0]
	add := func(stride, lo, hi int) {
		for i := range terms {
			if terms[i].stride == stride {
				terms[i].lo, terms[i].hi = terms[i].lo+lo, terms[i].hi+hi
				return
			}
		}
		terms = append(terms, term{stride, lo, hi})
	}
	for i, n := range t.shape {
		if n > 1 && t.stride[i] > 0 {
			add(t.stride[i], 0, n-1)
		}
	}
	for i, n := range d.shape {
		if n > 1 && d.stride[i] > 0 {
			add(d.stride[i], 1-n, 0)
		}
	}
	slices.SortFunc(terms, func(a, b term) int { return cmp.Compare(b.stride, a.stride) })
	steps := 0
	var search func(terms []term, want int) bool
	search = func(terms []term, want int) bool {
		if len(terms) == 0 {
			return want == 0
		}
		if steps++; steps > 1000 {
			return true
		}
		lo, hi := 0, 0 // the range of the shorter strides
		for _, r := range terms[1:] {
			lo, hi = lo+r.lo*r.stride, hi+r.hi*r.stride
		}
		s := terms[0].stride
		// k·s + [lo, hi] must contain want; the division rounds toward zero, so one more on either side is tried.
		for k := max(terms[0].lo, (want-hi)/s-1); k <= min(terms[0].hi, (want-lo)/s+1); k++ {
			if rest := want - k*s; lo <= rest && rest <= hi && search(terms[1:], rest) {
				return true
			}
		}
		return false
	}
	return search(terms, d.offset-t.offset)
}
