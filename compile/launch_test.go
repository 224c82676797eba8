package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/kernel"
)

var (
	// bend makes y from x: x + c x².
	bend = kernel.Build("bend", func(k *kernel.Builder) {
		x, y := k.BufferRO("x", tenon.Float32), k.Buffer("y", tenon.Float32)
		c, n := k.Scalar("c", tenon.Float32), k.Scalar("n", tenon.Int64)
		k.ForEach(n, func(i kernel.Value) {
			v := x.Load(i)
			y.Store(i, v.Mul(v).FMA(c, v))
		})
	})
	// bendGrad is bend's derivative times g.
	bendGrad = kernel.Build("bend_grad", func(k *kernel.Builder) {
		x, g, y := k.BufferRO("x", tenon.Float32), k.BufferRO("g", tenon.Float32), k.Buffer("y", tenon.Float32)
		c, n := k.Scalar("c", tenon.Float32), k.Scalar("n", tenon.Int64)
		k.ForEach(n, func(i kernel.Value) {
			v := x.Load(i)
			y.Store(i, v.Add(v).FMA(c, v.Like(1)).Mul(g.Load(i)))
		})
	})
	// gather adds a quarter of x to s, in which it leaves what it does not reach.
	gather = kernel.Build("gather", func(k *kernel.Builder) {
		x, s, n := k.BufferRO("x", tenon.Float32), k.Buffer("s", tenon.Float32), k.Scalar("n", tenon.Int64)
		k.ForEach(n, func(i kernel.Value) { s.Store(i, x.Load(i).FMA(k.Const(tenon.Float32, 0.25), s.Load(i))) })
	})
	// polynomial has more numbers than can be values.
	polynomial = kernel.Build("polynomial", func(k *kernel.Builder) {
		c := []kernel.Value{k.Scalar("c0", tenon.Float32)}
		in := k.BufferRO("in", tenon.Float32)
		c = append(c, k.Scalar("c1", tenon.Int32).Convert(tenon.Float32))
		out := k.Buffer("out", tenon.Float32)
		c = append(c, k.Scalar("c2", tenon.Float32))
		n := k.Scalar("n", tenon.Int64)
		c = append(c, k.Scalar("c3", tenon.Float32), k.Scalar("c4", tenon.Float32))
		k.ForEach(n, func(i kernel.Value) {
			x := in.Load(i)
			v := c[4]
			for _, c := range []kernel.Value{c[3], c[2], c[1], c[0]} {
				v = c.Add(x.Mul(v))
			}
			out.Store(i, v)
		})
	})
)

func launchBend(x *tenon.Exec, a *tenon.Tensor, c float64) *tenon.Tensor {
	in := x.Contiguous(a)
	y, n := x.EmptyLike(in), in.Numel()
	x.Launch(bend, tenon.Over(n), tenon.In(in), tenon.Out(y), tenon.Number(c), tenon.Integer(n))
	return y
}

// bent is the operation of bend and bendGrad.
type bent float64

func (b bent) Forward(x *tenon.Exec, c *tenon.FunctionContext, inputs ...*tenon.Tensor) []*tenon.Tensor {
	c.Save(inputs[0])
	return []*tenon.Tensor{launchBend(x, inputs[0], float64(b))}
}

func (b bent) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	in, grad := x.Contiguous(c.Saved()[0]), x.Contiguous(grads[0])
	out, n := x.EmptyLike(in), in.Numel()
	x.Launch(bendGrad, tenon.Over(n), tenon.In(in), tenon.In(grad), tenon.Out(out), tenon.Number(float64(b)), tenon.Integer(n))
	return []*tenon.Tensor{out}, nil
}

// A step whose layers launch kernels of the program's own is one segment, replayed as one graph, with the bits of eager execution.
func TestLaunchInRegion(t *testing.T) {
	run := func(do func(x *tenon.Exec, f func(x *tenon.Exec) error) error) (out string) {
		x := open(t)
		w := tenon.From(x, []float32{0.5, -1, 2, 0.25}, 2, 2).SetRequiresGrad(true)
		state := x.Zeros([]int{4}, tenon.Float32)
		for n := range 5 {
			in := x.Full([]int{2, 2}, float64(n+1)/4, tenon.Float32)
			must(t, do(x, func(x *tenon.Exec) error {
				h := x.Apply(bent(0.5), x.MatMul(in, w))[0]
				h = x.Apply(bent(-0.25), x.ReLU(h))[0]
				y := x.NoGrad()
				y.Launch(gather, tenon.Over(2), tenon.In(x.Detach(h)), tenon.Out(y.Narrow(state, 0, 1, 2)), tenon.Integer(2))
				if err := x.Backward(x.Sum(h, nil)); err != nil {
					return err
				}
				y.AddInto(w, w, y.MulS(w.Grad(), -0.125))
				w.SetGrad(nil)
				return nil
			}))
			out += fmt.Sprintln(read(t, x, x.Detach(w)), read(t, x, state))
		}
		return out
	}
	want := run(func(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
		x.Scope(func(x *tenon.Exec) { err = f(x) })
		return err
	})
	r := compile.New(compile.Opt{Must: true})
	var last *tenon.Exec
	got := run(func(x *tenon.Exec, f func(x *tenon.Exec) error) error {
		last = x
		return r.Do(x, f)
	})
	if got != want {
		t.Errorf("in a region:\n%s\neager:\n%s", got, want)
	}
	s := r.Stats(last)
	if s.Eager != 0 || s.Replays < 2 || s.Runs != 5 {
		t.Errorf("the launches are not deferred and replayed: %+v", s)
	}
	if trees, _ := compile.TreesOf(last); trees.Graphs != 1 {
		t.Errorf("%d graphs of a step; want 1", trees.Graphs)
	}
}

// The first four numbers of a launch are values: a graph gets the new ones. Another number that changes is another launch.
func TestLaunchNumbers(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{Must: true})
	a := x.Full([]int{4}, 2, tenon.Float32)
	run := func(c [6]float64) {
		t.Helper()
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			in := x.AddS(a, 1)
			y = x.Keep(x.EmptyLike(in))
			x.Launch(polynomial, tenon.Over(4), tenon.Number(c[0]), tenon.In(in), tenon.Integer(int64(c[1])), tenon.Out(y),
				tenon.Number(c[2]), tenon.Integer(4), tenon.Number(c[4]), tenon.Number(c[5]))
			return nil
		}))
		v := float32(c[0] + 3*(c[1]+3*(c[2]+3*(c[4]+3*c[5]))))
		if got, want := read(t, x, y), fmt.Sprint([]float32{v, v, v, v}); got != want {
			t.Errorf("with %v: %s; want %s", c, got, want)
		}
		y.Close()
	}
	for n := range 12 {
		run([6]float64{float64(n), float64(n % 3), -float64(n), 4, 1, 2})
	}
	if s := r.Stats(x); s.Recordings != 1 || s.Replays < 9 {
		t.Errorf("%+v", s)
	}
	run([6]float64{1, 2, 3, 4, 5, 2})
	const fork = "polynomial in a grid of [1 1 1] blocks of [256 1 1], 5, 2, read, written"
	if e := fmt.Sprint(r.Explain(x)); !strings.Contains(e, fork) {
		t.Errorf("the explanation lacks %q:\n%s", fork, e)
	}
}

// A launch that cannot work fails where it stands, though its work is deferred, and so does one whose mistake only a later run makes.
func TestLaunchMistakesInRegion(t *testing.T) {
	x := open(t)
	r := compile.New()
	half := x.Full([]int{4}, 1, tenon.Float16)
	whole := x.Full([]int{4}, 1, tenon.Float32)
	for n := range 4 {
		in, reached := whole, false
		if n != 1 {
			in = half
		}
		err := r.Do(x, func(x *tenon.Exec) error {
			y := x.AddS(in, 1)
			x.Launch(bend, tenon.Over(4), tenon.In(y), tenon.Out(x.EmptyLike(whole)), tenon.Number(1), tenon.Integer(4))
			reached = true
			return nil
		})
		if n == 1 {
			must(t, err)
			continue
		}
		if fault.KindOf(err) != fault.Invalid || reached || !strings.Contains(err.Error(), "buffer of float32") ||
			!strings.Contains(err.Error(), "launch_test.go") {
			t.Errorf("run %d goes on (%v) with %v", n, reached, err)
		}
	}
}

// The failed assertion of a kernel in a replayed graph says which kernel and why, and the device goes on. (The line is that of Do.)
func TestLaunchAssertsInRegion(t *testing.T) {
	bounded := kernel.Build("bounded", func(k *kernel.Builder) {
		x, y, n := k.BufferRO("x", tenon.Float32), k.Buffer("y", tenon.Float32), k.Scalar("n", tenon.Int64)
		k.ForEach(n, func(i kernel.Value) {
			v := x.Load(i)
			k.Assert(v.Lt(v.Like(5)), "element %v is %v", i, v)
			y.Store(i, v)
		})
	})
	x := openOn(t, tenon.Sim(0)) // a GPU would be lost to the tests that follow
	r := compile.New()
	a := x.Zeros([]int{4}, tenon.Float32)
	run := func() error {
		err := r.Do(x, func(x *tenon.Exec) error {
			y := x.AddS(a, 1)
			x.Launch(bounded, tenon.Over(4), tenon.In(y), tenon.Out(a), tenon.Integer(4))
			return nil
		})
		if err == nil {
			err = x.Synchronize()
		}
		return err
	}
	for range 4 {
		must(t, run())
	}
	if s := r.Stats(x); s.Replays == 0 {
		t.Fatalf("nothing is replayed: %+v", s)
	}
	err := run()
	if err == nil || !strings.Contains(err.Error(), "kernel bounded at ") || !strings.Contains(err.Error(), "element 0 is 5") ||
		!strings.Contains(err.Error(), "launch_test.go") {
		t.Fatalf("the assertion fails with %v", err)
	}
	x.FillInto(a, 2)
	must(t, run())
	if got, want := read(t, x, a), fmt.Sprint([]float32{3, 3, 3, 3}); got != want {
		t.Errorf("afterwards the result is %s; want %s", got, want)
	}
}

// A static input that only launches use may not be replaced, and the error names it.
func TestLaunchOfStaticInput(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{FixedStatic: true})
	w, out := x.Full([]int{4}, 1, tenon.Float32), x.Zeros([]int{4}, tenon.Float32)
	run := func() error {
		return r.Do(x, func(x *tenon.Exec) error {
			x.Launch(bend, tenon.Over(4), tenon.In(w), tenon.Out(out), tenon.Number(1), tenon.Integer(4))
			return nil
		})
	}
	for range 4 {
		must(t, run())
	}
	old := w
	w = x.Full([]int{4}, 2, tenon.Float32)
	if err := run(); err == nil || !strings.Contains(err.Error(), "static input data pointer changed") {
		t.Errorf("with another tensor: %v", err)
	}
	old.Close()
}

// Explain counts a program's own kernels, and no bytes for memory that nobody fills.
func TestExplainCountsOwnKernels(t *testing.T) {
	x := open(t)
	in := x.Ones([]int{4}, tenon.Float32)
	r := compile.New()
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = in
			for range 2 {
				out := x.EmptyLike(in)
				x.Launch(bend, tenon.Over(4), tenon.In(y), tenon.Out(out), tenon.Number(1), tenon.Integer(4))
				y = out
			}
			y = x.Keep(y)
			return nil
		}))
		y.Close()
	}
	e := r.Explain(x)
	has(t, e.String(), "2 operations, 2 kernels")
	for _, k := range e.Segments[0].Kernels {
		if strings.HasPrefix(k.Name, "EmptyLike") != (k.Bytes == 0) {
			t.Errorf("%s moves %d bytes", k.Name, k.Bytes)
		}
	}
}
