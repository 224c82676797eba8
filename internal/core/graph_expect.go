package core

import (
	"errors"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
)

// Path is where a run of the program is in the tree of calls that a tap has seen in earlier runs. The tap moves it, and so does a call that
// is the expected one: that call is deferred without asking the tap.
type Path struct {
	slots slots
	at    *Expected
	// run is the number of the run, and dev the tap's device.
	run int
	dev *rt.Device
	// shared says that another tap sees the calls too. deferred counts the deferred calls in all runs, and recorded says that one of this
	// run's is on the tape.
	shared   bool
	deferred int
	recorded bool
	// waiting counts the calls that are deferred now.
	waiting int
}

// Expected is a call in a tap's tree: what the next call is compared with, and what one that was deferred need not keep by itself.
type Expected struct {
	// Node is the tap's. Call is the call's key, and From where it came from first.
	Node any
	Call Call
	From Whence

	// The fields below are set once the call has been deferred: known says so. next is the call that the tap expects after it.
	next *Expected
	row  *row
	// exec is the number of the latest Exec, whose modes are the call's, and dev the tap's device then. used is the run that last came
	// here.
	exec uint64
	dev  *rt.Device
	used int
	// direct says that the call may be deferred without asking the tap, and pure that its outputs follow from the operands' forms alone.
	known, direct, pure bool
	ins, outs, dsts     uint8
	many, altered       int
	// operands are the inputs, those of the list, and the destinations; specs describe the outputs.
	operands  []expectedOperand
	operandsB [3]expectedOperand
	specs     []spec
	specB     [1]spec
	// dies says that once nobody held the output when the calls ran, and stays that once somebody did.
	dies, stays bool
	// layouts are those of the segments that ended with this call, and recomputes the plans for runs of callables that did.
	layouts    []*layout
	recomputes []*recomputeChoice
}

// expectedOperand is an operand of a key.
type expectedOperand struct {
	form  *form // nil if there is none
	place int
	slot  uint32
	dt    dtype.DType
}

// Begin starts a run at the root of the tree. shared says that another tap sees the calls too.
func (p *Path) Begin(root *Expected, run int, dev *rt.Device, shared bool) {
	p.at, p.run, p.dev, p.shared, p.recorded, p.waiting = root, run, dev, shared, false, 0
	p.slots.reset()
}

// At returns the latest call, or nil after one that is not in the tree.
func (p *Path) At() *Expected { return p.at }

// Move makes e the latest call.
func (p *Path) Move(e *Expected) {
	if p.at = e; e != nil {
		e.used = p.run
	}
}

// Waits reports whether calls of the run are deferred.
func (p *Path) Waits() bool { return p.waiting > 0 }

// Deferred returns how many calls were deferred, in all runs.
func (p *Path) Deferred() int { return p.deferred }

// Recorded reports whether a call of the run was deferred that is on the tape.
func (p *Path) Recorded() bool { return p.recorded }

// Next returns what Expect was told last.
func (e *Expected) Next() *Expected { return e.next }

// Expect says that next is the likeliest call after e; nil means that none is.
func (e *Expected) Expect(next *Expected) { e.next = next }

// Used returns the run that last came to e.
func (e *Expected) Used() int { return e.used }

// Pather is a tap that has a path.
type Pather interface {
	Tap
	// Path returns the path, always the same one.
	Path() *Path
}

// AskTap says whether calls of x's session must ask the tap though they are expected, and returns what it replaces.
func AskTap(x *Exec, on bool) (old bool) {
	old, x.s.slow = x.s.slow, on
	return old
}

// learn takes over what f, which is about to be deferred as e, has besides the key.
func (e *Expected) learn(f *frame, p *Path) {
	c := &e.Call
	e.row, e.ins, e.outs, e.many, e.altered = f.row, c.ins, uint8(f.outs), int(c.many), len(f.altered)
	e.operands = e.operandsB[:0]
	for _, o := range c.Operands() {
		e.operands = append(e.operands, expectedOperand{o.form, o.offset, uint32(o.storage), o.dt})
	}
	e.specs = append(e.specB[:0], f.specs[:f.outs]...)
	for i := 0; i < f.outs; i++ {
		if f.to(i) != nil {
			e.dsts |= 1 << i
		}
	}
	e.known, e.exec, e.dev = true, f.x.id, p.dev
	r := f.row
	e.direct = r.alters == nil && r.draws == nil && r.checkDeferred == nil && c.hosts == 0 && e.altered == 0
	e.pure = len(r.sig.numbers) == 0 && c.holes == 0
}

// is reports whether f, whose key is e's, has e's outputs too.
func (e *Expected) is(f *frame) bool {
	return f.outs == int(e.outs) && len(f.altered) == e.altered && slices.Equal(f.specs[:f.outs], e.specs)
}

// expectation returns the Expected of f, the call that the path is at.
func (p *Path) expectation(f *frame) *Expected {
	e := p.at
	if !e.known {
		e.learn(f, p)
	}
	if !e.is(f) { // something besides the key has decided its outputs
		e = &Expected{Node: e.Node, Call: e.Call, From: e.From}
		e.learn(f, p)
		return e
	}
	e.exec, e.dev = f.x.id, p.dev
	return e
}

// direct defers the call if it is the one that the path expects, and reports whether it did. If not, nothing has happened that matters.
func (f *frame) direct(p *Path) bool {
	s := f.x.s
	e := p.at
	if e == nil {
		return false
	}
	if e = e.next; e == nil || e.row != f.row || e.exec != f.x.id || !e.direct || e.dev != p.dev || p.shared {
		return false
	}
	if g := f.x.m.generator; g != nil && p.slots.ofGenerator(g) != e.Call.source {
		return false
	}
	d := s.putOff
	if d == nil || !d.on(p) && (d.path != nil || len(d.thin) > 0) || s.depth != 1 || s.capture != nil || s.atOnce || s.slow {
		return false
	}
	if s.change != nil || f.op != nil || f.blame != nil || len(f.temps) > 0 || f.ins != int(e.ins) || len(f.many) != e.many ||
		!f.sameAttrs(&e.Call) {
		return false
	}
	d.path, d.epoch = p, p.slots.epoch
	from, outs := len(d.ops), f.outs
	if !d.matchOperands(f, e, p) {
		d.ops = d.ops[:from]
		return false
	}
	grads := !f.x.m.noGrad && f.row.back != nil && f.anyRequiresGrad()
	if e.dsts != 0 {
		if grads && f.row.saves != 0 || len(s.omissions) > 0 { // something may have to be done before the call
			d.ops = d.ops[:from]
			return false
		}
	}
	specs := e.specs
	if e.pure {
		f.outs = len(specs)
	} else if f.row.infer(f); !e.is(f) {
		f.outs, d.ops = outs, d.ops[:from]
		return false
	} else {
		specs = f.specs
	}
	if e.dsts != 0 {
		f.checkWrites(grads)
	}
	p.at, e.used = e, p.run
	d.put(f, e, specs, from)
	if grads {
		p.recorded = true
		f.record()
	}
	f.adopt()
	return true
}

// matchOperands reports whether the operands of f are those of e and may be used. Then they are the session's until the calls have run, and
// d.ops has them.
func (d *deferral) matchOperands(f *frame, e *Expected, p *Path) bool {
	os := e.operands
	for i := 0; i < f.ins; i++ {
		if !d.matchOperand(f, f.in[i], &os[i], p, false) {
			return false
		}
	}
	os = os[f.ins:]
	for i, t := range f.many {
		if !d.matchOperand(f, t, &os[i], p, false) {
			return false
		}
	}
	os = os[len(f.many):]
	for i := range f.dst {
		switch t := f.dst[i]; {
		case t == nil && e.dsts>>i&1 == 0:
		case t == nil || e.dsts>>i&1 == 0 || !d.matchOperand(f, t, &os[i], p, true):
			return false
		}
	}
	return true
}

func (d *deferral) matchOperand(f *frame, t *Tensor, o *expectedOperand, p *Path, write bool) bool {
	if t == nil || o.form == nil {
		if t == nil && o.form == nil {
			d.ops = append(d.ops, -1)
			return true
		}
		return false
	}
	st := t.st
	if st == nil || t.form != o.form || t.dt != o.dt {
		return false
	}
	t.usedBy(f.x.s)
	if t.closed.Load() {
		return false
	}
	id := st.id.Load()
	if id&deferralsOf != d.number<<numberBits || write && id&writtenBit == 0 {
		return d.meet(f, t, o, p, write)
	}
	pl := &d.places[st.slot]
	if pl.slot != o.slot || pl.of(t) != o.place {
		return false
	}
	d.ops = append(d.ops, st.slot)
	return true
}

// meet is matchOperand for a storage that the calls have not used yet, or not written.
func (d *deferral) meet(f *frame, t *Tensor, o *expectedOperand, p *Path, write bool) bool {
	st := t.st
	if st.deferral() == lost || st.locked() != nil || st.dev != f.x.m.stream.Device() {
		return false
	}
	if slot, place := d.slotOf(p, t); slot != uint64(o.slot) || place != o.place {
		return false
	}
	i, ok := d.take(st, write)
	if !ok {
		return false
	}
	d.locate(i, o.slot, p)
	d.ops = append(d.ops, i)
	return true
}

// whereabouts is the place of a touched storage on the path: its slot, 0 if it has none, and its byte that was used first. fresh says that
// the path's table lacks it.
type whereabouts struct {
	base  int
	slot  uint32
	fresh bool
}

// of returns the place of t, as a key has it.
func (w *whereabouts) of(t *Tensor) int {
	if t.offset == 0 {
		return w.base%baseClass - w.base*baseClass
	}
	return (t.offset*t.dt.Size()-w.base)*baseClass + w.base%baseClass
}

// slotOf returns the slot and the place of t on the path, as a key has them.
func (d *deferral) slotOf(p *Path, t *Tensor) (slot uint64, place int) {
	if i, ok := d.knows(t.st, p); ok {
		w := &d.places[i]
		return uint64(w.slot), w.of(t)
	}
	return p.slots.at(t.st.number(), t.offset*t.dt.Size())
}

// knows returns the index of st in d.touched, and whether the calls use st, and it has a slot on p.
func (d *deferral) knows(st *storage, p *Path) (i int32, ok bool) {
	if d == nil || !d.on(p) {
		return 0, false
	}
	i, ok = d.slot(st)
	return i, ok && d.places[i].slot != 0
}

// locate notes the slot of storage i of those that were touched.
func (d *deferral) locate(i int32, slot uint32, p *Path) {
	if w := &d.places[i]; w.slot == 0 {
		w.slot, w.base = slot, p.slots.base(d.touched[i].number())
	}
}

// follow makes p the path of the calls that are deferred from now on.
func (d *deferral) follow(p *Path) {
	if !d.on(p) {
		d.expand()
		d.leavePath(false)
		d.path, d.epoch, d.mixed = p, p.slots.epoch, len(d.thin) > 0
	}
}

// on reports whether the calls were deferred on the present run of p.
func (d *deferral) on(p *Path) bool { return d.path == p && d.epoch == p.slots.epoch }

// leavePath puts the slots of storages that the calls have made, and that somebody may still use, into the path's table. If only the open
// ones of the segment may be, it looks at no other.
func (d *deferral) leavePath(onlyOpen bool) {
	p := d.path
	keep := func(i int32) {
		if w := &d.places[i]; w.fresh {
			if st := d.touched[i]; st.others.Load() >= 0 {
				p.slots.put(st.number(), w.slot)
			}
		}
	}
	switch {
	case p == nil || !d.on(p): // a later run has begun
	case onlyOpen:
		for _, i := range d.segment.open {
			keep(d.segment.made[i])
		}
	default:
		for i := range d.places {
			keep(int32(i))
		}
	}
	clear(d.places)
	if d.path, d.mixed = nil, false; p != nil {
		p.waiting = 0
	}
}

// thin is a deferred call, without what e says of it: the Exec, the attributes, and from where on d.ops has the storages of its inputs,
// list, outputs and other operands that it changes, by their slots in d.touched. more is the number of an entry of d.more, or 0.
type thin struct {
	e         *Expected
	x         *Exec
	attrs     *attrs
	ops, more uint32
}

// thinMore is what few calls have.
type thinMore struct {
	blame *blame
	drawn taken
	op    *rt.ProfiledOp
	part  uint64
}

// put adds f, which is e, to the deferred calls, and makes its outputs. d.ops has the operands from index from on.
func (d *deferral) put(f *frame, e *Expected, specs []spec, from int) {
	p, dev := d.path, f.x.m.stream.Device()
	if len(d.thin) == 0 {
		d.at.Store(&e.From)
		d.runner, _ = f.x.s.tap.(Runner)
	}
	if len(d.devices) == 0 || d.devices[0] != dev && !slices.Contains(d.devices, dev) {
		d.devices = append(d.devices, dev)
		dev.Defers(d)
	}
	var dsts [maxOut]int32
	if e.dsts != 0 {
		to := from + int(e.ins) + e.many
		copy(dsts[:], d.ops[to:])
		d.ops = d.ops[:to]
	}
	given := 0
	for i := 0; i < f.outs; i++ {
		d.placeLater(f, i, &specs[i], e.dies && !e.stays)
		st := f.out[i].st
		if e.dsts>>i&1 != 0 {
			d.ops = append(d.ops, dsts[given])
			given++
			st.version.Add(1)
			continue
		}
		p.slots.n++
		d.places[st.slot] = whereabouts{0, p.slots.n, true}
		d.ops = append(d.ops, st.slot)
	}
	for _, t := range f.altered {
		d.ops = append(d.ops, t.st.slot)
		t.st.version.Add(1)
	}
	p.deferred++
	p.waiting++
	d.thin = append(d.thin, thin{e: e, x: f.x, attrs: d.attrsOf(f), ops: uint32(from)})
}

// takeOperands makes the operands of f, which is e, the session's until the calls have run, and adds them to d.ops.
func (d *deferral) takeOperands(f *frame, e *Expected) bool {
	os := e.operands
	use := func(t *Tensor, write bool) bool {
		o := &os[0]
		os = os[1:]
		if t == nil {
			d.ops = append(d.ops, -1)
			return true
		}
		i, ok := d.take(t.st, write)
		if ok {
			d.locate(i, o.slot, d.path)
			d.ops = append(d.ops, i)
		}
		return ok
	}
	for i := 0; i < f.ins; i++ {
		if !use(f.in[i], false) {
			return false
		}
	}
	for _, t := range f.many {
		if !use(t, false) {
			return false
		}
	}
	for i := range os { // the destinations up to the last one that is there
		if t := f.dst[i]; t == nil {
			os = os[1:]
		} else if !use(t, true) {
			return false
		}
	}
	for _, t := range f.altered {
		d.take(t.st, true)
	}
	return true
}

// expand makes whole calls of those that have come since the last time.
func (d *deferral) expand() {
	for k := len(d.calls); k < len(d.thin); k++ {
		t := &d.thin[k]
		e, ops, c := t.e, d.ops[t.ops:], d.next()
		c.x, c.row, c.attrs, c.dims, c.from = t.x, e.row, t.attrs, e.Call.list, &e.From
		if t.more > 0 {
			m := &d.more[t.more-1]
			c.blame, c.drawn, c.op, c.part = m.blame, m.drawn, m.op, m.part
		}
		c.ins, c.outs, c.dsts = e.ins, e.outs, e.dsts
		ins, many, outs := int(e.ins), int(e.many), int(e.outs)
		c.in = d.elementsOf(e.operands[:ins], ops[:ins])
		c.many = d.elementsOf(e.operands[ins:ins+many], ops[ins:ins+many])
		ops = ops[ins+many:]
		c.out = d.newElements(outs)
		from := len(d.wrote)
		for i := range c.out {
			if e.dsts>>i&1 != 0 {
				d.locateElement(&c.out[i], &e.operands[ins+many+i], ops[i])
				d.wrote = append(d.wrote, c.out[i].st)
			} else {
				c.out[i] = element{st: d.touched[ops[i]], form: e.specs[i].form, dt: e.specs[i].dt, slot: ops[i]}
			}
		}
		for _, slot := range ops[outs : outs+e.altered] {
			d.wrote = append(d.wrote, d.touched[slot])
		}
		c.wrote = d.wrote[from:len(d.wrote):len(d.wrote)]
	}
}

// newElements returns n empty elements.
func (d *deferral) newElements(n int) []element {
	from, to := len(d.elements), len(d.elements)+n
	d.elements = slices.Grow(d.elements, n)[:to] // zero beyond its end
	return d.elements[from:to:to]
}

// elementsOf returns where the elements of operands are.
func (d *deferral) elementsOf(operands []expectedOperand, slots []int32) []element {
	es := d.newElements(len(operands))
	for i := range es {
		if slots[i] >= 0 {
			d.locateElement(&es[i], &operands[i], slots[i])
		}
	}
	return es
}

func (d *deferral) locateElement(e *element, o *expectedOperand, slot int32) {
	at := (d.places[slot].base + o.place>>baseShift) / o.dt.Size()
	e.st, e.form, e.offset, e.dt, e.slot = d.touched[slot], o.form, at, o.dt, slot
}

// endUses ends the calls' uses of all storages.
func (d *deferral) endUses() (err error) {
	end := func(st *storage) {
		if st.deferral() == 0 {
			return
		}
		if e := st.endDeferral(d.number); e != nil { // Join takes longer than the rest
			err = errors.Join(err, e)
		}
	}
	g := &d.segment
	if !d.settled {
		d.leavePath(false)
		for _, st := range d.touched {
			end(st)
		}
		return err
	}
	d.leavePath(true)
	for _, i := range g.layout.inputs {
		end(d.touched[i.slot])
	}
	for _, i := range g.open {
		end(g.madeAt(int(i)))
	}
	for _, st := range d.touched[g.layout.touched:] { // claimed since
		end(st)
	}
	return err
}
