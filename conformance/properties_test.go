package conformance

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
)

// properties compares the behaviour of operations with the properties in their rows.
type properties struct {
	says map[string]core.OpInfo
	// does are the properties that each operation showed, and wrong those that its row lacks.
	does, wrong map[string]map[string]bool
	// sizes has the shape of the first result of a call that waits for the device, or says that it is sized by data, by the forms of its
	// operands.
	sizes map[string]string
	// later are operands of calls whose work waits for other work.
	later []change
}

// change is an operand with its contents before a call.
type change struct {
	op   string
	addr uint64
	old  []byte
}

func newProperties() *properties {
	p := &properties{says: map[string]core.OpInfo{}, does: map[string]map[string]bool{}, wrong: map[string]map[string]bool{},
		sizes: map[string]string{}}
	for _, o := range core.Ops() {
		p.says[o.Name], p.does[o.Name], p.wrong[o.Name] = o, map[string]bool{}, map[string]bool{}
	}
	return p
}

// waiting are the driver calls that wait for the device.
var waiting = []string{"Synchronize", "StreamSynchronize", "EventSynchronize", "CopyDtoH"}

// ended checks a call that has ended, whose operands lay in b's memory when it began.
func (p *properties) ended(f *core.Frame, b *before, w *watcher) {
	o, does := p.says[f.Op()], p.does[f.Op()]
	note := func(what string, is, said bool) {
		if is {
			does[what] = true
		}
		if is && !said {
			p.wrong[f.Op()][what] = true
		}
	}
	if u := f.Undeclared(); u != "" {
		note("takes or gives "+u, true, false)
	}
	operands := f.Operands()
	into := func(t *core.Tensor) bool { // whether it shares memory with a destination
		for i := range f.Outs() {
			if f.Into(i) && f.Out(i).SharesStorage(t) {
				return true
			}
		}
		return false
	}
	for i := range f.Outs() {
		note("destination", f.Into(i), true)
		if !f.Into(i) {
			note("new", true, !o.Into)
		}
		for _, t := range operands {
			note("alias", t != nil && !f.Into(i) && f.Out(i).SharesStorage(t), o.Aliases)
		}
	}
	for _, t := range operands {
		note("takes an operand of another device", t != nil && t.Device() != f.Exec().Device(), o.Foreign)
	}
	if (o.Waits || o.Sized) && f.Outs() > 0 && !f.Into(0) {
		note("sizes its output by the data", p.resized(f), o.Sized)
	}
	now := w.memory()
	if !f.Together() {
		p.handedOver(now)
	}
	for _, t := range operands {
		if t == nil || t.Numel() == 0 || into(t) {
			continue
		}
		old, is := elements(b.memory, t), elements(now, t)
		note("changes an operand", old != nil && !bytes.Equal(old, is), len(o.Changed) > 0)
		if f.Together() && len(o.Changed) > 0 && old != nil {
			p.later = append(p.later, change{f.Op(), t.DataPtr(), bytes.Clone(old)})
		}
	}
	note("draws", !bytes.Equal(b.random, f.Exec().Generator().State()), o.Draws)
	note("asserts", f.Asserted(), o.Asserts || o.User)
	for _, c := range w.rec.Calls()[b.calls:] {
		note("waits", slices.Contains(waiting, c.Method), o.Waits)
	}
}

// resized reports whether an earlier call of the same operation, on operands of the same types and shapes, made a result of another shape.
func (p *properties) resized(f *core.Frame) bool {
	key, size := f.Op(), fmt.Sprint(f.Out(0).Shape())
	for _, t := range f.Operands() {
		key += fmt.Sprint(" ", t)
	}
	first, ok := p.sizes[key]
	if !ok {
		p.sizes[key] = size
	}
	return ok && size != first
}

// handedOver checks the operands of calls whose work has completed since.
func (p *properties) handedOver(memory map[uint64][]byte) {
	for _, c := range p.later {
		if now := part(memory, c.addr, len(c.old)); now != nil && !bytes.Equal(c.old, now) {
			p.does[c.op]["changes an operand"] = true
		}
	}
	p.later = nil
}

// elements returns the bytes from t's first to its last element, or nil if they are not in memory.
func elements(memory map[uint64][]byte, t *core.Tensor) []byte {
	return part(memory, t.DataPtr(), reach(t)*t.DType().Size())
}

func part(memory map[uint64][]byte, start uint64, n int) []byte {
	for addr, b := range memory {
		if end := start + uint64(n); addr <= start && end <= addr+uint64(len(b)) {
			return b[start-addr : end-addr]
		}
	}
	return nil
}

// report fails the test for properties that rows lack, and for properties in rows that were never seen.
func (p *properties) report(t *testing.T) {
	t.Helper()
	seen := 0
	for _, name := range slices.Sorted(maps.Keys(p.says)) {
		o, does := p.says[name], p.does[name]
		for what := range p.wrong[name] {
			t.Errorf("%s: its row does not say that it %s", name, what)
		}
		if *matchFlag != "" || name == "Function" || o.User {
			continue
		}
		must := map[string]bool{"alias": o.Aliases, "destination": o.Into, "changes an operand": len(o.Changed) > 0, "draws": o.Draws,
			"asserts":                            o.Asserts,
			"takes an operand of another device": o.Foreign, "sizes its output by the data": o.Sized}
		for what, said := range must {
			if said && !does[what] {
				t.Errorf("%s: its row says %q, which was not seen", name, what)
			}
		}
		seen += len(does)
	}
	t.Logf("%d properties of %d operations were seen", seen, len(p.says))
}

// TestProperties plants calls of operations with wrong rows.
func TestProperties(t *testing.T) {
	w, x := newWatcher(t)
	for _, o := range []core.OpInfo{{Name: "FillInto"}, {Name: "View"}, {Name: "Random", Into: true}, {Name: "Foreach"}, {Name: "To"},
		{Name: "Nonzero", Waits: true}, {Name: "AssertAsync"}} {
		w.held.says[o.Name] = o
	}
	err := w.watched(x, func() {
		x.Scope(func(x *tenon.Exec) {
			a := x.Ones([]int{4}, tenon.Float32)
			x.View(a, 2, 2)
			x.Rand([]int{4}, tenon.Float32)
			x.AssertAsync(x.Select(a, 0, 0))
			x.To(x.Host().Ones([]int{8}, tenon.Float32))
			x.Nonzero(a)
			x.Nonzero(x.Zeros([]int{4}, tenon.Float32))
			c := (*core.Exec)(x)
			core.Unscale(c, []*core.Tensor{(*core.Tensor)(a)}, core.From(c, core.ScaleRow(4, 0)), c.Zeros(nil, tenon.Float32))
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for op, what := range map[string]string{"View": "alias", "Random": "draws", "Foreach": "changes an operand",
		"AssertAsync": "asserts",
		"To":          "takes an operand of another device", "Nonzero": "sizes its output by the data"} {
		if !w.held.wrong[op][what] {
			t.Errorf("that %s %s was not found; found: %v", op, what, w.held.wrong[op])
		}
	}
}

// captures is a tap that distinguishes operations in captures from others.
type captures struct{ inside, outside, asserts map[string]bool }

func (c *captures) Before(*core.Frame) bool { return false }

func (c *captures) After(f *core.Frame) {
	c.asserts[f.Op()] = f.Asserted()
	if f.Exec().Capturing() {
		c.inside[f.Op()] = true
	} else {
		c.outside[f.Op()] = true
	}
}

// TestCapturable checks that an operation can be captured unless its row says that it waits, and that no kernel asserts whose row does not
// say so.
func TestCapturable(t *testing.T) {
	x := open(t)
	c := &captures{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	core.SetTap((*core.Exec)(x), c)
	defer core.SetTap((*core.Exec)(x), nil)
	(&opRunner{}).runAll(t, x)
	direct := maps.Clone(c.outside)
	(&opRunner{capture: true}).runAll(t, x)
	for _, o := range core.Ops() {
		if c.asserts[o.Name] && !o.Asserts {
			t.Errorf("%s has kernels that assert, though its row does not say so", o.Name)
		}
		switch {
		case o.Waits && c.inside[o.Name]:
			t.Errorf("%s was captured, though its row says that it waits", o.Name)
		case !o.Waits && direct[o.Name] && !c.inside[o.Name]:
			t.Errorf("%s was never captured, though its row does not say that it waits", o.Name)
		}
	}
}

// valued is a tap that runs every call with values twice more from its recorded form, once with other values, and compares the kernels.
type valued struct {
	t     *testing.T
	w     *watcher
	calls map[string]int
}

func (v *valued) Before(*core.Frame) bool { return false }

func (v *valued) After(f *core.Frame) {
	c := f.Call()
	other := c.WithValues(func(n float64) float64 {
		if n == 2 {
			return 3
		}
		return 2 // for which Pow, for example, uses another kernel
	})
	if c == other || f.Together() {
		return
	}
	f.Nested(func() {
		f.Exec().NoGrad().Scope(func(x *core.Exec) {
			var did [2][]string
			for i, c := range []core.Call{c, other} {
				operands := copiesOf(x, f.Operands())
				if operands == nil {
					return
				}
				n := len(v.w.rec.Calls())
				core.Again(x, c, operands)
				for _, r := range v.w.rec.Calls()[n:] {
					if r.Method == "Launch" {
						did[i] = append(did[i], r.Args)
					}
				}
				for _, t := range operands {
					t.Close()
				}
			}
			if !slices.Equal(did[0], did[1]) {
				v.t.Errorf("%v launches %q, with other values %q", c, did[0], did[1])
			}
			v.calls[f.Op()]++
		})
	})
}

// TestValues checks that a call with other values launches the same kernels.
func TestValues(t *testing.T) {
	w, x := newWatcher(t)
	v := &valued{t, w, map[string]int{}}
	core.SetTap((*core.Exec)(x), v)
	defer core.SetTap((*core.Exec)(x), nil)
	sample(t, func(c *recorded.Case, call func(x *tenon.Exec, a *args) any) {
		w.rec.Reset()
		x.Scope(func(x *tenon.Exec) {
			if err := try(func() {
				a, grads := newArgs(x, c), loadAll(x, c.GradOut)
				if err := backward(x, call(x, a), grads); err != nil {
					t.Errorf("%s: %v", c.Name(), err)
				}
			}); err != nil {
				t.Logf("%s: %v", c.Name(), err)
			}
		})
	})
	x.Scope(func(x *tenon.Exec) { // numbers that occur in no recorded case
		a := x.Ones([]int{4}, tenon.Float32)
		x.PowS(a, 1.75)
		x.RemainderS(a, 0.75)
		x.Dropout(a, 0.25)
	})
	t.Log("calls with values, by operation:", v.calls)
	if len(v.calls) < 40 && *matchFlag == "" {
		t.Errorf("only %d operations were called with values", len(v.calls))
	}
}
