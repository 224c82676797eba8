package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// comparison compares what a plan makes with what its calls make one by one, on copies of the inputs.
type comparison struct {
	d      *deferral
	report func(s PlannedStep, what string) error
	// stands are the copies of inputs, and the memory in place of what the calls make.
	stands map[*storage]*storage
	// results are what each call made, or changed, when it ran by itself.
	results [][]result
	// undefined are the storages of which elements may differ from run to run.
	undefined map[*storage]bool
}

// result is what a call made by itself: the operand, and which of the calls' it is, with its elements in row-major order or, if they take
// more than resultBytes, their hash.
type result struct {
	of       element
	at       at
	what     string
	elements []byte
	hash     [sha256.Size]byte
	// undefined says that it has no elements to compare.
	undefined bool
}

// resultBytes is the largest result that is kept.
const resultBytes = 16 << 20

// Compare makes the next Eager run each call by itself first, on copies, if it is the first run by its plan, and then compare what each
// step of the plan makes. report gets the first step that makes other bits, and what differs; its error ends the run. What may differ from
// run to run is not compared: new memory without contents, elements for whose place several compete, what kernels of the program write, and
// what is computed from these.
func (g *Segment) Compare(report func(s PlannedStep, what string) error) { g.report = report }

// beginComparison runs the calls by themselves, if Compare was called and their plan has not been compared yet. end ends the comparison. A
// free can fail only on a lost device, which the next operation reports.
func (g *Segment) beginComparison() (end func(), err error) {
	d := g.d
	none := func() {}
	if g.plans == nil || g.report == nil || d.prepared {
		return none, nil
	}
	p := d.planned(g.plans)
	if p == nil || p.compared {
		return none, nil
	}
	c := &comparison{d: d, report: g.report, stands: map[*storage]*storage{}, undefined: map[*storage]bool{}}
	mark := d.s.mark()
	err = Try(func() {
		for i := range g.inputs {
			(*Exec)(nil).check("Do", c.copyInput(g.inputs[i].st, g.Stream()))
		}
		for i := range d.calls {
			c.runAlone(i)
		}
	})
	d.unrepresent()
	if err != nil {
		d.s.restore(mark)
		return none, errors.Join(err, c.close())
	}
	p.compared, d.compared = true, c
	d.fusing.stats.Compared++
	return func() {
		d.compared = nil
		_ = c.close()
	}, nil
}

// close frees the copies.
func (c *comparison) close() (err error) {
	for _, st := range c.stands { //tenon:unordered they are independent
		err = errors.Join(err, st.release())
	}
	c.stands = nil
	return err
}

// copyInput makes a copy of an input on st.
func (c *comparison) copyInput(from *storage, st *rt.Stream) error {
	to := &storage{dev: from.dev, bytes: from.bytes}
	if c.stands[from] = to; from.bytes == 0 {
		return nil
	}
	if from.dev != st.Device() {
		st = from.dev.DefaultStream()
	}
	b, err := from.dev.Alloc(uint64(from.bytes), alloc.Stream(st.Handle()))
	if err != nil {
		return err
	}
	to.block, to.ptr = b, b.Addr()
	live.Add(1)
	seq, err := st.Begin(opCopied, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	if err := from.beforeRead(st); err != nil {
		return err
	}
	if err := st.Copy(driver.Ptr(to.ptr), driver.Ptr(from.ptr), uint64(from.bytes)); err != nil {
		return err
	}
	from.didRead(st, seq)
	to.didWrite(st, seq)
	return nil
}

// runAlone runs call n on the stands, and keeps what it made.
func (c *comparison) runAlone(n int) {
	call := &c.d.calls[n]
	k := *call
	k.op = nil // a profile does not see it
	swap := func(es []element) []element {
		es = slices.Clone(es)
		for i := range es {
			if st := es[i].st; st != nil {
				if c.stands[st] == nil {
					c.stands[st] = &storage{dev: st.dev, bytes: st.bytes}
				}
				es[i].st = c.stands[st]
			}
		}
		return es
	}
	k.in, k.many, k.out = swap(call.in), swap(call.many), swap(call.out)
	c.d.run(&k)
	var rs []result
	undefined := c.undefines(call)
	add := func(what string, i int, e *element, from int) {
		r := result{at: at{n, from + i}, undefined: undefined}
		r.of = *r.at.of(c.d.calls)
		if !undefined {
			r.what = fmt.Sprintf("%s %d of %s at %s", what, i, call.row.Name, call.from)
			if b := c.elements(k.x, e); len(b) <= resultBytes {
				r.elements = b
			} else {
				r.hash = sha256.Sum256(b)
			}
		}
		rs = append(rs, r)
	}
	for i := range k.out[:k.outs] {
		add("output", i, &k.out[i], maxIn)
	}
	for i := range k.many {
		if e := call.many[i]; slices.Contains(call.wrote, e.st) {
			add("operand", i, &k.many[i], maxIn+maxOut)
		}
	}
	c.results = append(c.results, rs)
}

// undefines notes which storages have undefined elements after the call, and reports whether it may have made some.
func (c *comparison) undefines(call *deferred) bool {
	undefined := call.row.flags&(flagIdle|flagVaries|flagUser) != 0
	for i := range call.out[:call.outs] {
		e := &call.out[i]
		undefined = undefined || call.dsts>>i&1 != 0 && !distinct(e.form.shape, e.form.stride)
	}
	for _, es := range [][]element{call.in[:call.ins], call.many} {
		for i := range es {
			undefined = undefined || es[i].st != nil && c.undefined[es[i].st]
		}
	}
	for i := range call.out[:call.outs] {
		e := &call.out[i]
		whole := call.dsts>>i&1 == 0 || e.offset == 0 && e.form.extent == e.form.numel && e.form.numel*e.dt.Size() >= e.st.bytes
		c.undefined[e.st] = undefined || c.undefined[e.st] && !whole
	}
	for _, st := range call.wrote {
		c.undefined[st] = c.undefined[st] || undefined
	}
	return undefined
}

// compare reports a result of a step that differs. Of results in one storage, it looks at those of the last call.
func (c *comparison) compare(s *planStep) {
	if c == nil {
		return
	}
	var seen []*storage
	for _, i := range slices.Backward(s.calls) {
		call := &c.d.calls[i]
		later := len(seen)
		for _, r := range c.results[i] {
			if slices.Contains(seen[:later], r.of.st) {
				continue
			}
			if seen = append(seen, r.of.st); r.undefined {
				continue
			}
			if st := c.madeBy(s, i, &r); st != nil {
				r.of.st, r.of.form = st, r.at.of(c.d.calls).form // the plan may have laid it out anew
				if what := r.differs(c.elements(call.x, &r.of)); what != "" {
					step := PlannedStep{Calls: s.calls}
					if s.group != nil {
						step = s.group.planned(s.calls)
					}
					(*Exec)(nil).check("Do", c.report(step, what))
				}
			}
		}
	}
}

// madeBy returns the storage in which the step has put r, a result of call i, or nil if it has not written it.
func (c *comparison) madeBy(s *planStep, i int, r *result) *storage {
	calls := c.d.calls
	if s.group == nil {
		for _, es := range [][]element{calls[i].out[:calls[i].outs], calls[i].many} {
			for j := range es {
				if e := &es[j]; c.stoodFor(r.of.st, e.st) && e.st.ptr != 0 {
					return e.st
				}
			}
		}
		return nil
	}
	for _, a := range s.group.outs {
		if e := a.of(calls); a.call == i && c.stoodFor(r.of.st, e.st) && e.st.ptr != 0 {
			return e.st
		}
	}
	return nil
}

// stoodFor reports whether now is was, or the plan has put now in its place.
func (c *comparison) stoodFor(was, now *storage) bool {
	return was == now || slices.Contains(c.d.fusing.moved, moved{was, now})
}

// differs describes the first element of b that is not r's, or returns "".
func (r *result) differs(b []byte) string {
	size := r.of.dt.Size()
	if r.elements == nil {
		if r.hash == sha256.Sum256(b) {
			return ""
		}
		return r.what
	}
	for i := 0; i < len(b); i += size {
		if got, want := b[i:i+size], r.elements[i:i+size]; !bytes.Equal(got, want) {
			return fmt.Sprintf("element %d of %s: %s, and %s by itself", i/size, r.what, inWords(got, r.of.dt), inWords(want, r.of.dt))
		}
	}
	return ""
}

// inWords returns an element as a number, if it is one, and its bits.
func inWords(b []byte, dt dtype.DType) string {
	bits := slices.Clone(b)
	slices.Reverse(bits)
	if dt.IsComplex() {
		return "0x" + hex.EncodeToString(bits)
	}
	return fmt.Sprintf("%.9g (0x%x)", dtype.Float64At(dt, b, 0), bits)
}

// elements returns the elements of e in row-major order, with one bit pattern for all NaN.
func (c *comparison) elements(x *Exec, e *element) []byte {
	if e.form.numel == 0 {
		return []byte{} // nil would ask for the hash
	}
	size := e.dt.Size()
	raw := make([]byte, e.form.extent*size)
	x.check("Do", x.readBytes(&Tensor{st: e.st, form: e.form, dt: e.dt, offset: e.offset}, raw))
	if !e.form.plain {
		raw = rowMajor(raw, e.form, size)
	}
	oneNaN(raw, e.dt)
	return raw
}

// rowMajor returns the elements of that form and size, which begin at the first byte of raw, in row-major order.
func rowMajor(raw []byte, f *form, size int) []byte {
	out := make([]byte, 0, f.numel*size)
	index := make([]int, len(f.shape))
	for at := 0; ; {
		out = append(out, raw[at*size:(at+1)*size]...)
		d := len(index) - 1
		for ; d >= 0; d-- {
			index[d]++
			at += f.stride[d]
			if index[d] < f.shape[d] {
				break
			}
			at -= index[d] * f.stride[d]
			index[d] = 0
		}
		if d < 0 {
			return out
		}
	}
}

// oneNaN replaces the NaN among floating-point elements by one of them: which NaN an operation gives depends on the kernel.
func oneNaN(b []byte, dt dtype.DType) {
	part, exponent := dt.Size(), 0
	if dt.IsComplex() {
		part /= 2
	}
	switch {
	case !dt.IsFloat() && !dt.IsComplex():
		return
	case dt == dtype.BFloat16:
		exponent = 8
	case part == 2:
		exponent = 5
	case part == 4:
		exponent = 8
	case part == 8:
		exponent = 11
	default:
		return
	}
	fraction := part*8 - 1 - exponent
	for i := 0; i < len(b); i += part {
		v := uint64(0)
		for k := part - 1; k >= 0; k-- {
			v = v<<8 | uint64(b[i+k])
		}
		if rest := v &^ (1 << (part*8 - 1)); rest > (1<<exponent-1)<<fraction {
			for k := range part {
				b[i+k] = 0xff
			}
		}
	}
}
