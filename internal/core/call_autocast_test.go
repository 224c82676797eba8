package core

import (
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// copies returns how many conversions f makes.
func copies(x *Exec, f func()) (n int) {
	setWatch(x, func(op string, _, end bool) {
		if op == "Copy" && !end {
			n++
		}
	})
	defer setWatch(x, nil)
	f()
	return n
}

// parameter returns a float32 leaf of ones of shape [4, 4].
func parameter(x *Exec) *Tensor { return x.Ones([]int{4, 4}, dtype.Float32).SetRequiresGrad(true) }

func TestCastCache(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w, in := parameter(x), x.Full([]int{2, 4}, 0.5, dtype.Float16)
		count := func(what string, want int, f func()) {
			t.Helper()
			if n := copies(x, f); n != want {
				t.Errorf("%s: %d conversions, want %d", what, n, want)
			}
		}
		product := func(x *Exec) { x.Linear(in, w, nil).Close() }
		x.Scope(func(x *Exec) {
			y := x.Autocast(dtype.Float16)
			count("first use", 1, func() { product(y) })
			count("second use", 0, func() { product(y) })
			count("in an inner scope", 0, func() { y.Scope(product) })
			count("by another operation", 0, func() { y.MM(in, w).Close() })
			count("by an Exec derived anew", 0, func() { product(x.Autocast(dtype.Float16)) })
			count("by one derived in an inner scope, below one that is off", 0, func() {
				y.Autocast(dtype.Invalid).Scope(func(x *Exec) { product(x.Autocast(dtype.Float16)) })
			})
			count("in the other type, with the input", 2, func() { product(y.Autocast(dtype.BFloat16).Autocast(dtype.BFloat16)) })
			count("where nothing is recorded", 0, func() { product(y.NoGrad()) })
			count("with the cache off", 1, func() { product(y.AutocastCache(false)) })
			count("with the cache off and on", 0, func() { product(y.AutocastCache(false).AutocastCache(true)) })
			count("of a view", 1, func() { y.MM(in, x.Transpose(w, 0, 1)).Close() })
			count("of a tensor without gradient", 1, func() { y.MM(in, x.Detach(w)).Close() })
			x.NoGrad().AddInto(w, w, w)
			count("after a change in place", 1, func() { product(y) })
			count("and again", 0, func() { product(y) })
		})
		x.Scope(func(x *Exec) {
			y := x.Autocast(dtype.Float16)
			count("in the next scope", 1, func() { product(y.NoGrad()) })
			count("recorded after unrecorded", 1, func() { product(y) })
			count("and back", 0, func() { product(y.NoGrad()) })
		})
		y := x.Autocast(dtype.Float16)
		x.Scope(func(x *Exec) { count("kept where Autocast was called", 1, func() { product(y) }) })
		x.Scope(func(x *Exec) { count("and used in another scope", 0, func() { product(y) }) })
	})
}

// TestCastCacheOutside checks that copies live in the outermost scope if Autocast was called outside of all scopes.
func TestCastCacheOutside(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	before := LiveStorages()
	w, in := parameter(x), x.Ones([]int{2, 4}, dtype.Float16)
	y := x.Autocast(dtype.Float16)
	use := func(x *Exec) { x.Linear(in, w, nil).Close() }
	n := copies(x, func() {
		use(y)
		use(y)
	})
	if n != 2 {
		t.Errorf("%d conversions outside of scopes, want 2", n)
	}
	for range 2 {
		n := copies(x, func() {
			y.Scope(func(x *Exec) {
				x.Scope(use)
				x.Scope(use)
			})
		})
		if n != 1 {
			t.Errorf("%d conversions in a scope, want 1", n)
		}
	}
	var late *Exec
	x.Scope(func(x *Exec) { late = x.Autocast(dtype.Float16) })
	late.Scope(func(x *Exec) {
		if n := copies(x, func() { x.Scope(use); x.Scope(use) }); n != 1 {
			t.Errorf("%d conversions by an Exec whose scope is closed, want 1", n)
		}
	})
	w.Close()
	in.Close()
	if n := LiveStorages() - before; n != 0 {
		t.Errorf("%d storages are left", n)
	}
}

// TestCastCacheGradients checks that the gradients of several uses are added in the low-precision type and converted back once, and that
// the copy serves two passes.
func TestCastCacheGradients(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w, in := parameter(x), x.Full([]int{2, 4}, 0.5, dtype.Float32)
		step := func(x *Exec) []float32 {
			y := x.Autocast(dtype.BFloat16)
			loss := func() *Tensor { return y.Sum(y.Linear(y.Linear(in, w, nil), w, nil), nil, SumOpt{}) }
			a, b := loss(), loss()
			back := copies(x, func() {
				if err := x.Backward(a, BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
			})
			if y.AutocastCached() && back > 3 { // of w, and of the inputs that the two sums widened
				t.Errorf("%d conversions in the backward pass", back)
			}
			if err := x.Backward(b, BackwardOpt{}); err != nil {
				t.Fatal(err)
			}
			g := w.Grad()
			if g.DType() != dtype.Float32 {
				t.Errorf("the gradient has type %v", g.DType())
			}
			v := floats(t, x, g)
			w.SetGrad(nil)
			return v
		}
		var cached, plain []float32
		x.Scope(func(x *Exec) { cached = step(x) })
		x.Scope(func(x *Exec) { plain = step(x.AutocastCache(false)) })
		if !slices.Equal(cached, plain) {
			t.Errorf("the gradient is %v with the cache and %v without", cached, plain)
		}
	})
}

// TestCastCacheCapture checks that a graph neither uses a copy from outside nor leaves one there, and that parameters that it changes are
// converted again.
func TestCastCacheCapture(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w, in := parameter(x), x.Ones([]int{2, 4}, dtype.Float16)
		y := x.Autocast(dtype.Float16)
		use := func(x *Exec) *Tensor { return x.NoGrad().Linear(in, w, nil) }
		one, three, five := x.Full(nil, 1, dtype.Float32), x.Full(nil, 3, dtype.Float32), x.Full(nil, 5, dtype.Float32)
		first := func(a *Tensor) float32 { return floats(t, x, x.ToDType(a, dtype.Float32))[0] }
		use(y)
		var out *Tensor
		for _, inside := range []bool{false, true} {
			g, err := x.Capture(func(x *Exec) {
				z := y.On(x.Stream())
				if inside {
					z = x.Autocast(dtype.Float16)
				}
				if n := copies(x, func() { z.Scope(func(x *Exec) { use(x) }); out = use(z) }); n != 1 {
					t.Errorf("%d conversions in the graph, want 1", n)
				}
			}, CaptureOpt{})
			if err != nil {
				t.Fatal(err)
			}
			x.NoGrad().CopyInto(w, three)
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			if v := first(out); v != 12 {
				t.Errorf("the graph gives %v with a parameter of 3s, want 12", v)
			}
			if n := copies(x, func() { use(y) }); n != 1 {
				t.Errorf("%d conversions after the graph and a change, want 1", n)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			if v := first(use(y)); v != 12 {
				t.Errorf("got %v after the graph was closed, want 12", v)
			}
			x.NoGrad().CopyInto(w, one)
		}
		g, err := x.Capture(func(x *Exec) { x.NoGrad().CopyInto(w, five) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		if v := first(use(y)); v != 4 {
			t.Errorf("got %v, want 4", v)
		}
		if err := x.Replay(g); err != nil {
			t.Fatal(err)
		}
		if v := first(use(y)); v != 20 {
			t.Errorf("got %v after a graph changed the parameter, want 20", v)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCastCacheManualStreams checks that under manual ordering a copy is used only on the stream that made it.
func TestCastCacheManualStreams(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		if x.Device().Host {
			return
		}
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		w, in := parameter(x), x.Ones([]int{2, 4}, dtype.Float16)
		y := x.Autocast(dtype.Float16)
		use := func(x *Exec) int { return copies(x, func() { x.Linear(in, w, nil) }) }
		use(y)
		if n := use(y.On(st)); n != 0 {
			t.Errorf("%d conversions on another stream, want 0", n)
		}
		if n := use(y.On(st).ManualStreams()); n != 1 {
			t.Errorf("%d conversions on another stream that is ordered by hand, want 1", n)
		}
	})
}

func TestAutocastTypes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, d := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Int8, dtype.Complex64} {
			wantError(t, Try(func() { x.Autocast(d) }), fault.Invalid, "float16 or bfloat16", d.String())
		}
		y := x.Autocast(dtype.BFloat16)
		if y.AutocastDType() != dtype.BFloat16 || x.AutocastDType() != dtype.Invalid ||
			y.Autocast(dtype.Invalid).AutocastDType() != dtype.Invalid {
			t.Error("AutocastDType does not say what was asked for")
		}
		if !y.AutocastCached() || y.AutocastCache(false).AutocastCached() {
			t.Error("AutocastCached does not say what was asked for")
		}
		// With autocast to the first type, operations that convert their operands to one type refuse the second.
		h, b, f := x.Ones([]int{2}, dtype.Float16), x.Ones([]int{2}, dtype.BFloat16), x.Ones([]int{2}, dtype.Float32)
		wantError(t, Try(func() { y.AddCMul(f, h, b, AddCMulOpt{}) }), fault.Invalid, "autocast to bfloat16", "float16")
		wantError(t, Try(func() { y.Dot(f, h) }), fault.Invalid, "Dot", "float16")
		// Tensors without dimensions do not widen those with dimensions in operations whose types PyTorch's autocast does not change.
		zero := x.Ones(nil, dtype.Float32)
		for name, got := range map[string]*Tensor{"Add": y.Add(b, zero), "Mul": y.Mul(b, zero), "Div": y.Div(b, zero),
			"Sub": y.Sub(b, zero)} {
			if got.dt != dtype.BFloat16 {
				t.Errorf("%s of a bfloat16 vector and a float32 number gives %v", name, got.dt)
			}
		}
		if got := y.AddCMul(b, b, zero, AddCMulOpt{}); got.dt != dtype.Float32 {
			t.Errorf("AddCMul gives %v", got.dt)
		}
		// A type that the call requests is used.
		for name, got := range map[string]*Tensor{
			"Sum": y.Sum(h, nil, SumOpt{DType: dtype.Float16}), "Prod": y.Prod(h, nil, SumOpt{DType: dtype.Float16}),
			"VectorNorm": y.VectorNorm(h, nil, VectorNormOpt{DType: dtype.Float16}),
			"Softmax":    y.Softmax(h, 0, SoftmaxOpt{DType: dtype.Float16}),
		} {
			if got.dt != dtype.Float16 {
				t.Errorf("%s in float16 gives %v", name, got.dt)
			}
		}
		if n := copies(x, func() { y.Sum(h, nil, SumOpt{}) }); n != 0 {
			t.Errorf("a sum of halves makes %d conversions, want 0", n)
		}
		// A call that writes into a destination returns the destination's type.
		y.AddCMulInto(h, h, h, h, AddCMulOpt{})
		if v := doubles(t, x, h); v[0] != 2 {
			t.Errorf("AddCMulInto gives %v", v)
		}
	})
}

// turing is a device of compute capability 7.5.
type turing struct{ driver.Device }

func (d turing) Info() *driver.Info {
	i := *d.Device.Info()
	i.Major, i.Minor = 7, 5
	return &i
}

func TestAutocastOnOldDevices(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return turing{null.New(d.Info().Image)} }})
	if err != nil {
		t.Fatal(err)
	}
	x := New(dev, host)
	x.Autocast(dtype.Float16)
	wantError(t, Try(func() { x.Autocast(dtype.BFloat16) }), fault.Unsupported, "Current CUDA Device does not support bfloat16. Please "+
		"switch dtype to float16")
	x.Host().Autocast(dtype.BFloat16)
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkCastCache measures the host time of a step with 100 small layers on a device that does nothing: without autocast, with copies
// kept for a forward pass, and without kept copies. The device would also save the conversions that the kept copies avoid.
func BenchmarkCastCache(b *testing.B) {
	host, err := rt.Host()
	if err != nil {
		b.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		b.Fatal(err)
	}
	x := New(dev, host)
	x.Scope(func(x *Exec) {
		var params []*Tensor
		for range 100 {
			params = append(params, parameter(x), x.Ones([]int{4}, dtype.Float32).SetRequiresGrad(true))
		}
		in := x.Ones([]int{2, 4}, dtype.Float16)
		pass := func(x *Exec, times int) {
			for range times {
				x.Scope(func(x *Exec) {
					y := in
					for i := 0; i < len(params); i += 2 {
						y = x.Linear(y, params[i], params[i+1])
					}
				})
			}
		}
		wide := x.Ones([]int{2, 4}, dtype.Float32)
		for _, c := range []struct {
			name  string
			times int
			exec  func(x *Exec) *Exec
		}{
			{"plain", 1, func(x *Exec) *Exec { return x }},
			{"kept/uses=1", 1, func(x *Exec) *Exec { return x.Autocast(dtype.Float16) }},
			{"kept/uses=4", 4, func(x *Exec) *Exec { return x.Autocast(dtype.Float16) }},
			{"anew/uses=1", 1, func(x *Exec) *Exec { return x.Autocast(dtype.Float16).AutocastCache(false) }},
			{"anew/uses=4", 4, func(x *Exec) *Exec { return x.Autocast(dtype.Float16).AutocastCache(false) }},
		} {
			b.Run(c.name, func(b *testing.B) {
				half := in
				if c.name == "plain" {
					in = wide
				}
				defer func() { in = half }()
				b.ReportAllocs()
				for b.Loop() {
					x.Scope(func(x *Exec) { pass(c.exec(x), c.times) })
				}
			})
		}
	})
}
