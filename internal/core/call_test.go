package core

import (
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// watch is a tap that sees each call twice: when it begins and when it has ended.
type watch func(op string, view, end bool)

func (w watch) Before(f *Frame) bool {
	w(f.Op(), f.row.flags&flagView != 0, false)
	return false
}

func (w watch) After(f *Frame) { w(f.Op(), f.row.flags&flagView != 0, true) }

func setWatch(x *Exec, w watch) {
	if w == nil {
		SetTap(x, nil)
		return
	}
	SetTap(x, w)
}

// calls is a tap that records every call.
type calls []Call

func (c *calls) Before(f *Frame) bool {
	*c = append(*c, f.Call())
	return false
}

func (c *calls) After(*Frame) {}

func callsOf(x *Exec, f func()) []Call {
	var c calls
	defer SetTap(x, SetTap(x, &c))
	f()
	return c
}

func processor(t *testing.T) *Exec {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	return New(host, host)
}

func TestEqualCallsCompareEqual(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, b := x.Ones([]int{2, 3}, dtype.Float32), x.Ones([]int{2, 3}, dtype.Float32)
		w := x.Ones([]int{3}, dtype.Float32)
		nan := math.NaN()
		same := func(name string, f func()) {
			c := append(callsOf(x, f), callsOf(x, f)...)
			n := len(c) / 2
			for i := range n {
				if c[i] != c[n+i] {
					t.Errorf("%s: %v and %v differ", name, c[i], c[n+i])
				}
			}
		}
		same("Add", func() { x.Add(a, b) })
		same("a NaN", func() { x.AddS(a, nan) })
		same("Sum", func() { x.Sum(a, []int{1}, SumOpt{}) })
		same("LayerNorm", func() { x.LayerNorm(a, w, nil, []int{3}, NormOpt{}) })
		same("Slice", func() { x.Slice(a, 1, 0, 2, 1) })
		same("Into", func() { x.AddInto(a, a, b) })
		same("Cat", func() { x.Cat([]*Tensor{a, b, a, b, a, b}, 0) })

		different := func(name string, f, g func()) {
			c, d := callsOf(x, f), callsOf(x, g)
			if c[0] == d[0] {
				t.Errorf("%s: %v equals %v", name, c[0], d[0])
			}
			if c[0].String() == d[0].String() {
				t.Errorf("%s: both print as %v", name, c[0])
			}
		}
		different("operands", func() { x.Add(a, b) }, func() { x.Add(b, a) })
		different("numbers", func() { x.AddS(a, 1) }, func() { x.AddS(a, 2) })
		different("the sign of zero", func() { x.MulS(a, 0) }, func() { x.MulS(a, math.Copysign(0, -1)) })
		different("a list", func() { x.Sum(a, []int{0}, SumOpt{}) }, func() { x.Sum(a, []int{1}, SumOpt{}) })
		different("destinations", func() { x.AddInto(a, a, b) }, func() { x.AddInto(b, a, b) })
		different("modes", func() { x.Add(a, b) }, func() { x.NoGrad().Add(a, b) })
		different("the row", func() { x.Add(a, b) }, func() { x.Sub(a, b) })
		doubled := kernel.Build("doubled", func(k *kernel.Builder) {
			in, out := k.Buffer("in", dtype.Float32), k.Buffer("out", dtype.Float32)
			k.ForEach(k.I64(6), func(i kernel.Value) { out.Store(i, in.Load(i).Add(in.Load(i))) })
		})
		different("what a launch does with a tensor", func() { x.Launch(doubled, Over(6), In(a), Out(b)) },
			func() { x.Launch(doubled, Over(6), Out(a), Out(b)) })
	})
}

func TestCallsPrint(t *testing.T) {
	x := processor(t)
	a := x.Ones([]int{2, 3}, dtype.Float32)
	for _, c := range []struct {
		f    func()
		want []string
	}{
		{func() { x.AddS(a, 2) }, []string{"Add(float32[2 3] #", ", 2)"}},
		{func() { x.Sum(a, []int{1}, SumOpt{DType: dtype.Float64}) }, []string{"Sum(float32[2 3] #", "list=[1]", "dtype=float64"}},
		{func() { x.AddInto(a, a, a) }, []string{"into float32[2 3] #"}},
		{func() { x.Neg(x.Slice(a, 0, 1, 2, 1)) }, []string{"Neg(float32[1 3] #", "+3)"}},
	} {
		got := callsOf(x, c.f)
		last := got[len(got)-1].String()
		for _, w := range c.want {
			if !strings.Contains(last, w) {
				t.Errorf("%s does not contain %q", last, w)
			}
		}
	}
}

// TestCallsKeepNothing checks that a Call keeps no device memory alive.
func TestCallsKeepNothing(t *testing.T) {
	settled(t)
	x := processor(t)
	before := LiveStorages()
	var kept []Call
	for range 10 {
		kept = append(kept, callsOf(x, func() {
			x.Scope(func(x *Exec) { x.Mul(x.Ones([]int{100}, dtype.Float32), x.Ones([]int{100}, dtype.Float32)) })
		})...)
	}
	if n := LiveStorages() - before; n != 0 {
		t.Errorf("%d storages live on with the calls", n)
	}
	runtime.KeepAlive(kept)
}

// TestInferRefuses checks that a call that is refused when it runs is also refused by Infer.
func TestInferRefuses(t *testing.T) {
	x := processor(t)
	a := x.Ones([]int{2, 3}, dtype.Float32)
	c := callsOf(x, func() { x.MM(a, x.T(a)) })
	last := c[len(c)-1]
	last.first[1] = last.first[0]
	if _, err := last.Infer(); err == nil || err.(*fault.Error).Kind != fault.Invalid ||
		!strings.Contains(err.Error(), "cannot be multiplied") {
		t.Errorf("Infer of a product of [2 3] and [2 3] gave %v", err)
	}
}

// TestAttributesArePlain checks that an attribute is a plain value: it can be compared, and nothing in it refers to memory that changes.
func TestAttributesArePlain(t *testing.T) {
	single := map[reflect.Type]bool{ // objects that exist only once, or never change
		reflect.TypeFor[*row](): true, reflect.TypeFor[*form](): true, reflect.TypeFor[*intList](): true,
		reflect.TypeFor[*rt.Device](): true, reflect.TypeFor[*rt.Stream](): true,
		reflect.TypeFor[*rt.Generator](): true, reflect.TypeFor[*rt.MemPool](): true, reflect.TypeFor[*operandList](): true,
		reflect.TypeFor[*kernels.PointOp](): true, reflect.TypeFor[*kernels.StepOp](): true, reflect.TypeFor[*kernels.RandomOp](): true,
		reflect.TypeFor[param](): true, reflect.TypeFor[numberList](): true,
	}
	var plain func(at string, r reflect.Type)
	plain = func(at string, r reflect.Type) {
		switch {
		case single[r] || strings.HasSuffix(r.String(), "kernel.Kernel"):
		case r.Kind() == reflect.Struct:
			for f := range r.Fields() {
				plain(at+"."+f.Name, f.Type)
			}
		case r.Kind() == reflect.Array:
			plain(at, r.Elem())
		case r.Kind() == reflect.Float64 || r.Kind() == reflect.Float32:
			t.Errorf("%s is a %v, which need not equal itself; keep its bits", at, r)
		case r.Kind() > reflect.Invalid && r.Kind() <= reflect.Uint64 || r.Kind() == reflect.String:
		default:
			t.Errorf("%s is a %v, which is no plain value", at, r)
		}
	}
	plain("Call", reflect.TypeFor[Call]())
	for _, p := range []param{conv{}, pooling{}, resampling{}, norm{}, normGrad{}, likelihood{}, likelihoodGrad{}, distribution{}, region{},
		unviewed{}, embedding{}, ofDevice{}, onStream{}, foreach{}, advance{}, updateScale{}, launching{}, lossGrad{}} {
		plain(reflect.TypeOf(p).Name(), reflect.TypeOf(p))
	}
}

// TestLongLists checks that a Call of more operands than 16 bits count prints them all and infers its output.
func TestLongLists(t *testing.T) {
	x := processor(t)
	one := x.Ones([]int{1}, dtype.Float32)
	defer one.Close()
	many := make([]*Tensor, 1<<16+1)
	for i := range many {
		many[i] = one
	}
	seen := &lastCall{}
	SetTap(x, seen)
	y := x.Cat(many, 0)
	defer y.Close()
	SetTap(x, nil)
	if n := len(seen.call.Operands()); n != len(many) {
		t.Errorf("the call has %d operands", n)
	}
	if out, err := seen.call.Infer(); err != nil || out[0].Shape[0] != y.Size(0) {
		t.Errorf("it infers %v, %v", out, err)
	}
}

// lastCall is a tap that keeps the latest call.
type lastCall struct{ call Call }

func (l *lastCall) Before(f *Frame) bool {
	l.call = f.Call()
	return false
}

func (*lastCall) After(*Frame) {}

func TestNodesAreSmall(t *testing.T) {
	if n := reflect.TypeFor[node]().Size(); n > 256 {
		t.Errorf("a node takes %d bytes, more than 256", n)
	}
}

// TestFormsGo checks that unused forms and lists are freed, so that a program that keeps using new shapes does not grow.
func TestFormsGo(t *testing.T) {
	x := processor(t)
	for n := range 20_000 {
		x.Scope(func(x *Exec) { x.Empty([]int{n + 1, 0}, dtype.Float32) })
	}
	for range 2000 { // cleanups run in a goroutine of their own, which may wait long for a processor
		runtime.GC()
		if allForms.size() < 2000 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d forms are still known", allForms.size())
}
