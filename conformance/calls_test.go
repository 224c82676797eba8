package conformance

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/core"
)

// again is a tap that runs every call a second time from its recorded form, on copies of its operands, and compares the results. It also
// checks Infer, which uses no device.
type again struct {
	t *testing.T
	// calls counts the compared calls, and others, by operation, those whose operands could not be copied.
	calls  int
	others map[string]int
	failed map[string]bool
	// printed has the calls by their texts.
	printed map[string]core.Call
	now     []pending
	later   []comparison
	// kept makes copies that outlive the scopes of the compared calls.
	kept *core.Exec
}

// comparison is of an output or a changed operand of a call.
type comparison struct {
	p         *pending
	what      string
	got, want *core.Tensor
}

// pending is a call that has begun.
type pending struct {
	call     core.Call
	operands []*core.Tensor // copies
	random   []byte
	inferred []core.Spec
}

func (a *again) Before(f *core.Frame) bool {
	p := pending{call: f.Call()}
	if s := p.call.String(); !strings.HasPrefix(s, f.Op()+"(") || strings.Contains(s, "0x") || strings.Contains(s, "%!") {
		a.fail(&p, "a call of %s is printed so", f.Op())
	}
	call := p.call.Numbered()
	if other, ok := a.printed[call.String()]; ok && other != call {
		a.fail(&p, "another call is printed alike: %s", call.Differs(other))
	}
	a.printed[call.String()] = call
	var err error
	if p.inferred, err = p.call.Infer(); err != nil {
		a.fail(&p, "Infer refuses it: %v", err)
	}
	if f.Draws() {
		p.random = f.Exec().Generator().State()
	}
	f.Nested(func() { p.operands = copiesOf(f.Exec().NoGrad().Autocast(dtype.Invalid), f.Operands()) })
	a.now = append(a.now, p)
	return false
}

func (a *again) After(f *core.Frame) {
	p := a.now[len(a.now)-1]
	a.now = a.now[:len(a.now)-1]
	defer func() {
		for _, t := range p.operands {
			t.Close()
		}
	}()
	a.compareInferred(f, &p)
	if p.operands == nil {
		a.others[f.Op()]++
		return
	}
	a.calls++
	f.Nested(func() {
		x := f.Exec()
		g := x.Generator()
		if p.random != nil {
			after := g.State()
			if err := g.SetState(p.random); err != nil {
				a.fail(&p, "%v", err)
			}
			defer g.SetState(after)
		}
		x.NoGrad().Scope(func(x *core.Exec) {
			outs := core.Again(x, p.call, p.operands)
			if len(outs) != f.Outs() {
				a.fail(&p, "it has %d outputs instead of %d", len(outs), f.Outs())
				return
			}
			for i, o := range outs {
				if undefined(f, i) {
					continue
				}
				a.compare(f, &p, fmt.Sprint("output ", i), o, f.Out(i))
			}
			for i, t := range f.Operands() {
				if t != nil && f.Changes() {
					a.compare(f, &p, fmt.Sprint("operand ", i), p.operands[i], t)
				}
			}
		})
	})
}

func (a *again) compareInferred(f *core.Frame, p *pending) {
	if len(p.inferred) != f.Outs() {
		a.fail(p, "Infer gives %d outputs instead of %d", len(p.inferred), f.Outs())
		return
	}
	for i, s := range p.inferred {
		if o := f.Out(i); s.DType != o.DType() || !slices.Equal(s.Shape, o.Shape()) || !slices.Equal(s.Stride, o.Stride()) || s.View &&
			s.Offset != o.Offset() {
			a.fail(p, "Infer says %v%v/%v of output %d, which is %v/%v", s.DType, s.Shape, s.Stride, i, o, o.Stride())
		}
	}
}

// compare compares immediately what can be read, and copies the rest for later.
func (a *again) compare(f *core.Frame, p *pending, what string, got, want *core.Tensor) {
	x := f.Exec().NoGrad()
	c := comparison{p, what, got, want}
	if f.Together() {
		a.layout(p, what, got, want)
		c.got, c.want = a.kept.EmptyLike(got, core.LikeOpt{}), a.kept.EmptyLike(want, core.LikeOpt{})
		x.CopyInto(c.got, got)
		x.CopyInto(c.want, want)
		a.later = append(a.later, c)
		return
	}
	a.check(x, c)
}

// checkLater compares the copies that could not be read before.
func (a *again) checkLater() {
	for _, c := range a.later {
		a.check(a.kept, c)
		c.got.Close()
		c.want.Close()
	}
	a.later = a.later[:0]
}

func (a *again) check(x *core.Exec, c comparison) {
	p, what, got, want := c.p, c.what, c.got, c.want
	a.layout(p, what, got, want)
	g, err := x.Bytes(got)
	if err != nil {
		a.fail(p, "%v", err)
		return
	}
	w, err := x.Bytes(want)
	if err != nil {
		a.fail(p, "%v", err)
		return
	}
	if !bytes.Equal(g, w) {
		a.fail(p, "the elements of %s differ", what)
	}
}

func (a *again) layout(p *pending, what string, got, want *core.Tensor) {
	if got.DType() != want.DType() || !slices.Equal(got.Shape(), want.Shape()) || !slices.Equal(got.Stride(), want.Stride()) {
		a.fail(p, "%s is %v/%v and was %v/%v", what, got, got.Stride(), want, want.Stride())
	}
}

// undefined reports whether nothing writes output i: the result of an Empty factory, and the sum of weights of an unreduced loss.
func undefined(f *core.Frame, i int) bool {
	switch f.Op() {
	case "Empty", "EmptyLike":
		return true
	case "CrossEntropy", "NLLLoss":
		c := f.Call()
		return i == 1 && strings.Contains(c.String(), "reduce:2")
	}
	return false
}

// fail reports the first failure of every operation.
func (a *again) fail(p *pending, format string, args ...any) {
	if op := p.call.Op(); !a.failed[op] {
		a.failed[op] = true
		a.t.Errorf("%v: %s", p.call, fmt.Sprintf(format, args...))
	}
}

// copiesOf returns copies of the operands with the same layout, or nil if that is impossible: if one is on another device, or one storage
// holds operands of several types.
func copiesOf(x *core.Exec, operands []*core.Tensor) []*core.Tensor {
	type storage struct {
		dt   dtype.DType
		end  int
		copy *core.Tensor
	}
	storages := map[*core.Tensor]*storage{} // by the first operand that lies in it
	home := func(t *core.Tensor) *storage {
		for o, s := range storages {
			if o.SharesStorage(t) {
				return s
			}
		}
		storages[t] = &storage{dt: t.DType()}
		return storages[t]
	}
	for _, t := range operands {
		if t == nil {
			continue
		}
		s := home(t)
		if t.Device() != x.Device() || s.dt != t.DType() {
			return nil
		}
		if n := reach(t); n > 0 {
			s.end = max(s.end, t.Offset()+n)
		}
	}
	out := make([]*core.Tensor, len(operands))
	x.Scope(func(x *core.Exec) {
		for i, t := range operands {
			if t == nil {
				continue
			}
			if reach(t) == 0 {
				out[i] = core.Own(x.AsStrided(x.Empty([]int{t.Offset()}, t.DType()), t.Shape(), t.Stride(), t.Offset()))
				continue
			}
			s := home(t)
			if s.copy == nil {
				s.copy = x.Clone(x.AsStrided(t, []int{s.end}, []int{1}, 0))
			}
			out[i] = core.Own(x.AsStrided(s.copy, t.Shape(), t.Stride(), t.Offset()))
		}
	})
	return out
}

// reach returns the number of storage elements that t spans.
func reach(t *core.Tensor) int {
	n := 1
	for i, d := range t.Shape() {
		if d == 0 {
			return 0
		}
		n += (d - 1) * t.Stride()[i]
	}
	return n
}

// TestOpsAgain runs PyTorch's recorded calls; every call of an operation below them, in backward passes too, is run once more from its
// value and must give the same bits, types, shapes and strides, which Infer must know without a device.
func TestOpsAgain(t *testing.T) {
	x := open(t)
	dev := (*core.Exec)(x).Device()
	a := &again{t: t, failed: map[string]bool{}, others: map[string]int{}, printed: map[string]core.Call{}, kept: core.New(dev, dev)}
	core.SetTap((*core.Exec)(x), a)
	defer core.SetTap((*core.Exec)(x), nil)
	t.Log((&opRunner{after: a.checkLater}).runAll(t, x))
	t.Logf("%d calls were run again", a.calls)
	if a.calls < 10_000 || len(a.others) > 0 {
		t.Errorf("%d calls were run again, and those of these operations could not be copied: %v", a.calls, a.others)
	}
}
