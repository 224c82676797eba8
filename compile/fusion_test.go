package compile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

func kernelsBuilt(x *tenon.Exec) int64 { return (*core.Exec)(x).Device().KernelsBuilt() }

// six is a chain of six operations.
func six(x *tenon.Exec, a *tenon.Tensor, v float64) *tenon.Tensor {
	return x.Add(x.MulS(x.SubS(x.Mul(x.AddS(x.MulS(a, v), 0.25), a), 0.5), 0.75), a)
}

func sixOf(a, v float32) float32 { return ((a*v+0.25)*a-0.5)*0.75 + a }

// A chain is one kernel with its numbers as arguments, and intermediate results take no memory.
func TestChainIsOneKernel(t *testing.T) {
	x := open(t).NoGrad()
	const n = 1 << 16
	a := x.Full([]int{n}, 1.5, tenon.Float32)
	r := compile.New()
	built := int64(0)
	for i := range 5 {
		before := r.Stats(x)
		x.Device().ResetPeakStats()
		held := x.Device().MemoryAllocated()
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(six(x, a, float64(i)))
			return nil
		}))
		v, err := x.Item(x.Narrow(y, 0, n-1, 1))
		must(t, err)
		if want := sixOf(1.5, float32(i)); float32(v) != want {
			t.Errorf("run %d gives %v, want %v", i, v, want)
		}
		s := r.Stats(x)
		if s.Kernels-before.Kernels != 1 || s.Fused-before.Fused != 6 {
			t.Errorf("run %d: %+v, before %+v", i, s, before)
		}
		if peak := x.Device().MaxMemoryAllocated() - held; peak != 4*n {
			t.Errorf("run %d takes %d bytes at most, and its result has %d", i, peak, 4*n)
		}
		if i == 1 {
			built = kernelsBuilt(x)
		}
		y.Close()
	}
	if more := kernelsBuilt(x) - built; more != 0 {
		t.Errorf("%d kernels were built for other numbers", more)
	}
}

// Shapes are arguments of fused kernels: many lengths, and matrices with a repeated row, need few kernels.
func TestLengthsShareKernels(t *testing.T) {
	x := open(t).NoGrad()
	row := x.Full([]int{1, 64}, 2, tenon.Float32)
	r := compile.New()
	built := int64(0)
	for n := range 40 {
		a := x.Full([]int{100 + 4*n, 64}, 3, tenon.Float32)
		for i := range 2 {
			if n == 2 && i == 0 {
				built = kernelsBuilt(x)
			}
			var y, z *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				y, z = x.Keep(six(x, a, 2)), x.Keep(x.Tanh(x.Sub(x.Mul(a, row), row)))
				return nil
			}))
			got, err := tenon.Read[float32](x, y)
			must(t, err)
			if want := sixOf(3, 2); slices.Min(got) != want || slices.Max(got) != want {
				t.Errorf("%d rows: from %v to %v, want %v", 100+4*n, slices.Min(got), slices.Max(got), want)
			}
			y.Close()
			z.Close()
		}
		a.Close()
	}
	if s := r.Stats(x); s.Fused != 2*40*9 {
		t.Errorf("%+v", s)
	}
	if more := kernelsBuilt(x) - built; more != 0 {
		t.Errorf("%d kernels were built for further lengths", more)
	}
}

// Tensors that are open when the calls run are written, whichever they are in this run.
func TestOpenValuesAreWritten(t *testing.T) {
	x := open(t).NoGrad()
	a := x.Full([]int{256}, 3, tenon.Float32)
	r := compile.New()
	for i := range 12 {
		var y, mid *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			p := x.AddS(a, 1)
			q := x.Square(p)
			switch i % 3 {
			case 1:
				mid = x.Keep(p)
			case 2:
				mid = x.Keep(q)
			}
			y = x.Keep(x.Neg(q))
			return nil
		}))
		for tensor, want := range map[*tenon.Tensor]float64{y: -16, mid: []float64{0, 4, 16}[i%3]} {
			if tensor == nil {
				continue
			}
			if v, err := x.Item(x.Narrow(tensor, 0, 255, 1)); err != nil || v != want {
				t.Errorf("run %d: %v, want %v (%v)", i, v, want, err)
			}
			tensor.Close()
		}
	}
	if s := r.Stats(x); s.Kernels != 12 || s.Fused != 36 || s.Replays < 6 {
		t.Errorf("%+v", s)
	}
}

// Results that nobody needs are not computed, and existing ones are not computed again.
func TestDeadAndCommonCalls(t *testing.T) {
	x := open(t).NoGrad()
	a := x.Full([]int{256}, 3, tenon.Float32)
	b := x.Full([]int{16, 16}, 0.5, tenon.Float32)
	r := compile.New()
	for i := range 5 {
		var y, z, kept *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.Tanh(x.Exp(a)) // dead
			p, q := x.MatMul(b, b), x.MatMul(b, b)
			kept = x.Keep(q)
			z = x.Keep(x.MulS(p, float64(i))) // the graph's number changes, and its operand is q
			y = x.Keep(x.Sum(x.MatMul(p, q), nil))
			return nil
		}))
		v, err := x.Item(y)
		must(t, err)
		w, err := x.Item(x.Sum(kept, nil))
		must(t, err)
		u, err := x.Item(x.Sum(z, nil))
		must(t, err)
		if v != 16*16*16*4*4 || w != 16*16*4 || u != w*float64(i) {
			t.Errorf("run %d: %v, %v and %v", i, v, w, u)
		}
		z.Close()
		y.Close()
		kept.Close()
	}
	if s := r.Stats(x); s.Dropped != 5*3 || s.Recordings != 1 || s.Replays != 3 {
		t.Errorf("%+v", s)
	}
}

// A group that runs out of memory loses its results and those of the calls after it; the next run works.
func TestOutOfMemoryInAGroup(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20)).NoGrad()
	a := x.Full([]int{4 << 20}, 3, tenon.Float32)
	r := compile.New(compile.Opt{NoGraphs: true})
	for i := range 4 {
		var hog, y, z *tenon.Tensor
		if i == 2 {
			must(t, x.Device().EmptyCache())
			hog = x.Empty([]int{36 << 20}, tenon.Uint8)
		}
		err := r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.Neg(x.AddS(a, 1)))
			z = x.Keep(x.Sum(y, nil))
			return nil
		})
		var e *tenon.Error
		if failed := errors.As(err, &e) && e.Kind == tenon.OutOfMemory; failed != (i == 2) {
			t.Fatalf("run %d: %v", i, err)
		}
		for name, k := range map[string]*tenon.Tensor{"the chain": y, "the sum": z} {
			_, err := x.Bytes(k)
			if lost := err != nil && strings.Contains(err.Error(), "was never made"); lost != (i == 2) || err != nil && !lost {
				t.Errorf("run %d: %s is read: %v", i, name, err)
			}
			k.Close()
		}
		if hog != nil {
			hog.Close()
		}
	}
}

// The gradients of a chain need what it saves, which is written, and have the same bits as without a region.
func TestChainWithGradients(t *testing.T) {
	x := open(t)
	var want string
	for _, opt := range []*compile.Opt{nil, {}, {NoFusion: true}} {
		w := x.Full([]int{64}, 0.75, tenon.Float32)
		w.SetRequiresGrad(true)
		a := x.Full([]int{32, 64}, 0.3, tenon.BFloat16)
		step := func(x *tenon.Exec) error {
			y := x.GELU(x.Sigmoid(x.Mul(x.ToDType(a, tenon.Float32), w)))
			return x.Backward(x.Sum(y, nil))
		}
		var r *compile.Region
		if opt != nil {
			r = compile.New(*opt)
		}
		for range 3 {
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
				continue
			}
			must(t, r.Do(x, step))
		}
		b, err := x.Bytes(w.Grad())
		must(t, err)
		switch got := fmt.Sprintf("%x", b); {
		case opt == nil:
			want = got
		case got != want:
			t.Errorf("with %+v the gradient is\n%s, want\n%s", *opt, got, want)
		case (r.Stats(x).Fused > 0) == opt.NoFusion:
			t.Errorf("with %+v: %+v", *opt, r.Stats(x))
		}
		w.Close()
		a.Close()
	}
}

// A repeated run with a plan allocates no more than one that runs call by call.
func TestPlanAllocatesNothing(t *testing.T) {
	x := open(t).NoGrad()
	a := x.Full([]int{256}, 3, tenon.Float32)
	var allocs [2]float64
	for i, opt := range []compile.Opt{{}, {NoFusion: true}} {
		r := compile.New(opt)
		step := func(x *tenon.Exec) error {
			x.CopyInto(a, six(x, a, 0.5))
			return nil
		}
		run := func() { must(t, r.Do(x, step)) }
		run()
		run()
		must(t, x.Synchronize())
		allocs[i] = testing.AllocsPerRun(100, run)
		must(t, x.Synchronize())
	}
	if allocs[0] > allocs[1] {
		t.Errorf("%v allocations with a plan, %v without", allocs[0], allocs[1])
	}
}

// A graph changes a tensor of the program even if the tensor in its place was closed when the plan was made.
func TestChangeOfClosedTensor(t *testing.T) {
	x := open(t).NoGrad()
	b := x.Full([]int{256}, 3, tenon.Float32)
	r := compile.New()
	for i := range 3 {
		a := x.Full([]int{256}, 3, tenon.Float32)
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.AddSInto(a, a, 1)
			x.MulSInto(a, a, 2)
			x.AddSInto(b, b, 1)
			if i == 0 {
				a.Close()
			}
			return nil
		}))
		if i == 0 {
			continue
		}
		if v, err := x.Item(x.Narrow(a, 0, 255, 1)); err != nil || v != 8 {
			t.Errorf("run %d: %v, want 8 (%v)", i, v, err)
		}
		a.Close()
	}
	if s := r.Stats(x); s.Recordings == 0 || s.Fused != 6 {
		t.Errorf("%+v", s)
	}
}

// Casts of the weights of convolutions with one tap are joined too: the strides of a dimension of size 1 say nothing.
func TestCastsOfOneTapAreJoined(t *testing.T) {
	x := open(t)
	var w []*tenon.Tensor
	for range 3 {
		w = append(w, x.ChannelsLast(x.RandN([]int{8, 8, 1, 1}, tenon.Float32)))
	}
	in := x.ChannelsLast(x.ToDType(x.RandN([]int{2, 8, 4, 4}, tenon.Float32), tenon.BFloat16))
	step := func(x *tenon.Exec) string {
		h := in
		for _, p := range w {
			h = x.NoGrad().Autocast(tenon.BFloat16).Conv2d(h, p, nil, tenon.Conv2dOpt{})
		}
		return read(t, x, x.ToDType(h, tenon.Float32))
	}
	var want string
	x.Scope(func(x *tenon.Exec) { want = step(x) })
	r := compile.New()
	for range 3 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			if got := step(x); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			return nil
		}))
	}
	var casts []string
	for _, k := range r.Explain(x).Segments[0].Kernels {
		if k.Name == "joined copy" || k.Name == "Copy" {
			casts = append(casts, k.Name)
		}
	}
	if len(casts) != 1 || casts[0] != "joined copy" {
		t.Errorf("the weights are cast by %q, not by one kernel", casts)
	}
}

// Casts of weights run together before the first layer, and those of their gradients, which batched products do not include, after the
// last, with the same bits as without a region; weights may be in channels last, and a weight that a layer changes is cast in its place.
func TestCastsAreJoined(t *testing.T) {
	const layers = 40 // more than one launch takes
	x := open(t)
	var want string
	kernels := map[bool]int{}
	for _, opt := range []*compile.Opt{nil, {}, {NoGraphs: true}, {NoFusion: true}} {
		var w []*tenon.Tensor
		for i := range layers {
			p := x.Full([]int{1, 8, 8}, 0.5+float64(i)/100, tenon.Float32)
			if i%3 == 0 {
				p = x.Keep(x.Transpose(p, 1, 2))
			}
			w = append(w, p.SetRequiresGrad(true))
		}
		extra := x.Full([]int{1, 8, 8}, 0.01, tenon.Float32)
		a := x.Full([]int{1, 4, 8}, 0.3, tenon.Float32)
		step := func(x *tenon.Exec) error {
			for _, p := range w {
				p.SetGrad(nil)
			}
			h := x.ToDType(a, tenon.BFloat16)
			for i, p := range w {
				h = x.Autocast(tenon.BFloat16).MatMul(h, p)
				if i%8 == 7 {
					h = x.MulS(h, 0.0625)
				}
				if i == layers/2 {
					x.NoGrad().AddInto(extra, extra, x.ToDType(x.Detach(x.Sum(h, nil)), tenon.Float32))
					h = x.Autocast(tenon.BFloat16).MatMul(h, extra)
				}
			}
			return x.Backward(x.Sum(x.ToDType(h, tenon.Float32), nil))
		}
		var r *compile.Region
		if opt != nil {
			r = compile.New(*opt)
		}
		for range 4 {
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
				continue
			}
			must(t, r.Do(x, step))
		}
		got := ""
		for _, p := range append(w, extra) {
			k := p
			if p != extra {
				k = p.Grad()
			}
			b, err := x.Bytes(k)
			must(t, err)
			got += fmt.Sprintf("%s\n", digest(b))
		}
		switch {
		case opt == nil:
			want = got
		case got != want:
			t.Errorf("with %+v the gradients are\n%s, want\n%s", *opt, got, want)
		default:
			kernels[opt.NoFusion] = r.Stats(x).Kernels
		}
		if opt != nil && !opt.NoFusion {
			e := r.Explain(x).String()
			if n := strings.Count(e, "joined copy"); n < 2 {
				t.Errorf("with %+v Explain names %d joined copies:\n%s", *opt, n, e)
			}
		}
		for _, p := range append(w, extra, a) {
			p.Close()
		}
	}
	if saved := kernels[true] - kernels[false]; saved < 2*(layers-4) {
		t.Errorf("%d kernels by plans, %d without", kernels[false], kernels[true])
	}
}

// On the processor too, calls are deferred and fused.
func TestProcessorDefersAndFuses(t *testing.T) {
	x := open(t).Host()
	a := x.Arange(64, tenon.Float32)
	r := compile.New()
	for i := range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.AddS(x.MulS(x.Neg(a), 2), float64(i)))
			if n := deferred(x); n != 3 {
				t.Errorf("run %d: %d calls are deferred", i, n)
			}
			return nil
		}))
		if got, want := read(t, x, y), read(t, x, x.AddS(x.MulS(x.Neg(a), 2), float64(i))); got != want {
			t.Errorf("run %d: %s, want %s", i, got, want)
		}
		y.Close()
	}
	if s := r.Stats(x); s.Deferred != 9 || s.Eager != 0 || s.Fused != 9 || s.Kernels != 3 || s.Plain != 3 {
		t.Errorf("%+v", s)
	}
}

// A chain ends where its kernel would have too many operands and results, or calls.
func TestChainsEnd(t *testing.T) {
	x := open(t)
	in := make([]*tenon.Tensor, 10)
	for i := range in {
		in[i] = x.RandN([]int{1 << 12}, tenon.Float32)
	}
	sum := func(n int) func(x *tenon.Exec) *tenon.Tensor {
		return func(x *tenon.Exec) *tenon.Tensor {
			y := in[0]
			for _, a := range in[1:n] {
				y = x.Add(y, a)
			}
			return y
		}
	}
	repeated := func(n int, f func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) func(x *tenon.Exec) *tenon.Tensor {
		return func(x *tenon.Exec) *tenon.Tensor {
			y := in[0]
			for range n {
				y = f(x, y)
			}
			return y
		}
	}
	light := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Abs(x.AddS(a, 1)) }
	for _, c := range []struct {
		what    string
		f       func(x *tenon.Exec) *tenon.Tensor
		kernels int
	}{
		{"9 operands and a result", sum(9), 1}, {"10 operands and a result", sum(10), 2},
		{"32 calls", repeated(16, light), 1}, {"34 calls", repeated(17, light), 2},
		{"8 calls of many instructions", repeated(8, (*tenon.Exec).Sin), 1},
		{"9 calls of many instructions", repeated(9, (*tenon.Exec).Sin), 2},
	} {
		r := compile.New()
		must(t, r.Do(x, func(x *tenon.Exec) error { x.Keep(c.f(x)); return nil }))
		if n := len(r.Explain(x).Segments[0].Kernels); n != c.kernels {
			t.Errorf("%s: %d kernels, want %d", c.what, n, c.kernels)
		}
	}
}

// A chain is fused if it saves 64 bytes of reads and writes or more, whatever the number of its elements.
func TestChainsThatSaveLittle(t *testing.T) {
	x := open(t)
	for _, c := range []struct{ elements, calls, fused int }{{3, 3, 0}, {4, 3, 3}, {7, 2, 0}, {8, 2, 2}, {1, 8, 0}, {1, 9, 9}} {
		a := x.Ones([]int{c.elements}, tenon.Float32)
		r := compile.New()
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y := a
			for range c.calls {
				y = x.AddS(y, 1)
			}
			x.Keep(y)
			return nil
		}))
		if s := r.Stats(x); s.Fused != c.fused {
			t.Errorf("%d calls of %d elements: %d are fused, want %d", c.calls, c.elements, s.Fused, c.fused)
		}
	}
}
