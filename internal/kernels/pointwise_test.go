package kernels

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// planner is an Issuer that only records launches.
type planner struct {
	l       Launch
	limits  Limits
	index32 int
	count   int
}

func newPlanner() *planner {
	return &planner{limits: Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 48 << 10,
		Major: 9}, index32: 1<<31 - 1}
}

func (p *planner) NewLaunch() *Launch {
	p.l.Reset()
	return &p.l
}
func (p *planner) Issue(*Launch) error            { p.count++; return nil }
func (p *planner) Workspace(int) (uint64, error)  { return 1 << 20, nil }
func (p *planner) Limits() *Limits                { return &p.limits }
func (p *planner) Index32() int                   { return p.index32 }
func (p *planner) Memset(uint64, byte, int) error { return nil }

func at(ptr uint64, t dtype.DType, shape ...int) Operand {
	o := Operand{Ptr: ptr, DType: t, Shape: shape, Stride: make([]int, len(shape))}
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		o.Stride[d] = n
		n *= max(1, shape[d])
	}
	return o
}

func TestPointwiseAllocatesNothing(t *testing.T) {
	p := newPlanner()
	outs := []Operand{at(4096, dtype.Float32, 64, 100)}
	ins := []Operand{at(8192, dtype.Float32, 64, 100), at(16384, dtype.Float32, 64, 100)}
	bias := []Operand{ins[0], {Ptr: 16384, DType: dtype.Float32, Shape: []int{64, 100}, Stride: []int{0, 1}}}
	for name, in := range map[string][]Operand{"contiguous": ins, "broadcast": bias} {
		run := func() {
			if err := Pointwise(p, Add, dtype.Float32, nil, outs, in); err != nil {
				t.Fatal(err)
			}
		}
		run()
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
	if _, err := Build(&p.l.Spec).Program(); err != nil {
		t.Error(err)
	}
}

func BenchmarkPointwisePlan(b *testing.B) {
	p := newPlanner()
	outs := []Operand{at(4096, dtype.Float32, 64, 100)}
	ins := []Operand{at(8192, dtype.Float32, 64, 100), at(16384, dtype.Float32, 64, 100)}
	bias := []Operand{ins[0], {Ptr: 16384, DType: dtype.Float32, Shape: []int{64, 100}, Stride: []int{0, 1}}}
	b.Run("contiguous", func(b *testing.B) {
		for range b.N {
			Pointwise(p, Add, dtype.Float32, nil, outs, ins)
		}
	})
	b.Run("broadcast", func(b *testing.B) {
		for range b.N {
			Pointwise(p, Add, dtype.Float32, nil, outs, bias)
		}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layouts returns triples of operands a, b and out of one shape, for every class of layout.
func layouts(h *host, rng *rand.Rand, t dtype.DType) map[string][3]Operand {
	r := func(shape ...int) Operand { return h.random(rng, t, shape...) }
	many := []int{2, 3, 2, 2, 2, 3, 2, 2, 2, 2}
	rev := []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
	manyRev := []int{2, 2, 2, 2, 3, 2, 2, 2, 3, 2}
	return map[string][3]Operand{
		"0-d":          {r(), r(), r()},
		"one":          {r(1), r(1), r(1)},
		"small":        {r(7), r(7), r(7)},
		"run":          {r(5, 1031), r(5, 1031), r(5, 1031)},
		"scalar array": {r(40, 100), expanded(r(1), 40, 100), r(40, 100)},
		"misaligned":   {sliced(r(4000), 0, 1, 3999, 1), sliced(r(4000), 0, 2, 4000, 1), r(3998)},
		"bias":         {r(33, 64), expanded(r(64), 33, 64), r(33, 64)},
		"odd bias":     {r(33, 63), expanded(r(63), 33, 63), r(33, 63)},
		"column":       {r(33, 64), expanded(r(33, 1), 33, 64), r(33, 64)},
		"transposed":   {permuted(r(40, 30), 1, 0), r(30, 40), r(30, 40)},
		"dense other":  {permuted(r(4, 5, 6), 2, 0, 1), permuted(r(4, 5, 6), 2, 0, 1), permuted(r(4, 5, 6), 2, 0, 1)},
		"stepped":      {sliced(r(999), 0, 0, 999, 2), sliced(r(999), 0, 0, 999, -2), r(500)},
		"three":        {permuted(r(8, 9, 10), 1, 2, 0), r(9, 10, 8), expandedOut(r(9, 2, 10, 8))},
		"six":          {permuted(r(2, 3, 4, 2, 3, 4), 5, 4, 3, 2, 1, 0), r(4, 3, 2, 4, 3, 2), r(4, 3, 2, 4, 3, 2)},
		"ten":          {permuted(r(many...), rev...), r(manyRev...), r(manyRev...)},
		"empty":        {r(3, 0), r(3, 0), r(3, 0)},
	}
}

// expandedOut returns o[:, 0]: a view with gaps.
func expandedOut(o Operand) Operand {
	v := sliced(o, 1, 0, 1, 1)
	return Operand{Ptr: v.Ptr, DType: v.DType, Shape: []int{v.Shape[0], v.Shape[2], v.Shape[3]},
		Stride: []int{v.Stride[0], v.Stride[2], v.Stride[3]}}
}

func TestPointwiseLayouts(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.Int8, dtype.Float64, dtype.Complex64, dtype.Complex128} {
		for _, limit := range []int{1<<31 - 1, 100} {
			h := newHost(t)
			h.index32 = limit
			for name, l := range layouts(h, rand.New(rand.NewPCG(1, 2)), dt) {
				a, b := h.readComplex(l[0]), h.readComplex(l[1])
				compute := dt
				if err := Pointwise(h, Sub, compute, nil, []Operand{l[2]}, []Operand{l[0], l[1]}); err != nil {
					t.Fatalf("%s %v: %v", name, dt, err)
				}
				got := h.readComplex(l[2])
				for i := range got {
					if want := a[i] - b[i]; got[i] != want && dt != dtype.Int8 || dt == dtype.Int8 &&
						real(got[i]) != rounded(dt, real(want)) {
						t.Fatalf("%s %v limit %d: element %d is %v, want %v - %v", name, dt, limit, i, got[i], a[i], b[i])
					}
				}
			}
		}
	}
}

func TestPointwiseCasts(t *testing.T) {
	all := []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64, dtype.Float16, dtype.BFloat16,
		dtype.Float32, dtype.Float64, dtype.Complex64, dtype.Complex128}
	h := newHost(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, from := range all {
		for _, to := range all {
			in, out := h.random(rng, from, 77), h.empty(to, 77)
			check(t, Pointwise(h, Copy, from, nil, []Operand{out}, []Operand{in}))
			x, y := h.readComplex(in), h.readComplex(out)
			for i := range x {
				var want complex128
				switch {
				case to == dtype.Bool:
					if x[i] != 0 {
						want = 1
					}
				case to.IsComplex():
					want = complex(rounded(to.Real(), real(x[i])), rounded(to.Real(), imag(x[i])))
				default:
					want = complex(rounded(to, real(x[i])), 0)
				}
				if y[i] != want {
					t.Fatalf("%v to %v: %v became %v, want %v", from, to, x[i], y[i], want)
				}
			}
		}
	}
}

func TestPointwiseScalarsAndAliases(t *testing.T) {
	h := newHost(t)
	rng := rand.New(rand.NewPCG(5, 6))
	x := h.random(rng, dtype.Float32, 3, 50)
	before := h.read(x)
	check(t, Pointwise(h, Mul, dtype.Float32, []Scalar{FloatScalar(3)}, []Operand{x}, []Operand{x, {}}))
	check(t, Pointwise(h, Sub, dtype.Float32, []Scalar{FloatScalar(1)}, []Operand{x}, []Operand{{}, x}))
	check(t, Pointwise(h, AddScaled, dtype.Float32, []Scalar{FloatScalar(2)}, []Operand{x}, []Operand{x, x}))
	for i, v := range h.read(x) {
		if want := 3 * (1 - 3*before[i]); v != want {
			t.Fatalf("element %d is %v, want %v", i, v, want)
		}
	}
	big := h.empty(dtype.Int64, 5)
	check(t, Pointwise(h, Fill, dtype.Int64, []Scalar{IntScalar(1<<62 + 1)}, []Operand{big}, nil))
	check(t, Pointwise(h, Sub, dtype.Int64, []Scalar{IntScalar(1 << 62)}, []Operand{big}, []Operand{big, {}}))
	for _, v := range h.read(big) {
		if v != 1 {
			t.Fatalf("int64 scalars are not exact: %v", v)
		}
	}
	cond := h.random(rng, dtype.Bool, 3, 50)
	out := h.empty(dtype.Float16, 3, 50)
	check(t, Pointwise(h, Where, dtype.Float32, []Scalar{FloatScalar(7)}, []Operand{out}, []Operand{cond, x, {}}))
	xs, cs := h.read(x), h.read(cond)
	for i, v := range h.read(out) {
		want := 7.0
		if cs[i] != 0 {
			want = rounded(dtype.Float16, xs[i])
		}
		if v != want {
			t.Fatalf("where: element %d is %v, want %v", i, v, want)
		}
	}
}

func TestPointwiseErrors(t *testing.T) {
	h := newHost(t)
	x := h.empty(dtype.Float32, 4, 4)
	odd := Operand{Ptr: x.Ptr + 2, DType: dtype.Float32, Shape: x.Shape, Stride: x.Stride}
	flat := h.empty(dtype.Float32, 16)
	for name, err := range map[string]error{
		"inputs":     Pointwise(h, Add, dtype.Float32, nil, []Operand{x}, []Operand{x}),
		"scalars":    Pointwise(h, Add, dtype.Float32, []Scalar{{}}, []Operand{x}, []Operand{x, x}),
		"misaligned": Pointwise(h, Add, dtype.Float32, nil, []Operand{x}, []Operand{odd, x}),
		"strided":    Pointwise(h, Add, dtype.Float32, nil, []Operand{x}, []Operand{permuted(odd, 1, 0), x}),
		"flat rank":  Pointwise(h, Add, dtype.Float32, nil, []Operand{x}, []Operand{flat, x}),
		"rank":       Pointwise(h, Add, dtype.Float32, nil, []Operand{permuted(x, 1, 0)}, []Operand{flat, x}),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCopiesKeepBits: a copy to the same type copies the bits, including those of any NaN.
func TestCopiesKeepBits(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64, dtype.Complex64} {
		h := newHost(t)
		size := dt.Size()
		in, out := h.empty(dt, 300, 40), h.empty(dt, 300, 40)
		bytes := h.view(in.Ptr)[:12000*size]
		for i := range bytes {
			bytes[i] = byte(i * 37 >> 3) // some of its halves and words are NaNs of both kinds
		}
		for i := range 500 {
			copy(bytes[(24*i+7)*size:], []byte{byte(i), 0xf0 | byte(i), byte(i), 0xff, byte(i), 0xff, 0xf0 | byte(i),
				0x7f}[8-min(size, 8):])
		}
		h.written(in.Ptr, len(bytes))
		strided := func(o Operand) Operand {
			return Operand{Ptr: o.Ptr, DType: dt, Shape: []int{300, 20}, Stride: []int{40, 2}}
		}
		check(t, Pointwise(h, Copy, dt, nil, []Operand{strided(out)}, []Operand{strided(in)}))
		got := h.view(out.Ptr)
		for i := 0; i < 12000; i += 2 {
			if string(got[i*size:(i+1)*size]) != string(bytes[i*size:(i+1)*size]) {
				t.Fatalf("%v: element %d is %x, want %x", dt, i, got[i*size:(i+1)*size], bytes[i*size:(i+1)*size])
			}
		}
	}
}

// TestPointwiseVia checks that operands and results go through a half, in runs and with strides, repeated or not.
func TestPointwiseVia(t *testing.T) {
	h := newHost(t)
	a := h.of(dtype.BFloat16, []float64{1, 2, 3, 4}, 4)
	for _, b := range []Operand{h.of(dtype.Float32, []float64{0x1.01p0}, 1), h.of(dtype.Int32, []float64{257, 257, 257, 257}, 4),
		sliced(h.of(dtype.Int64, make([]float64, 8), 8), 0, 0, 8, 2)} {
		b.Shape, b.Via = []int{4}, dtype.BFloat16
		if b.DType == dtype.Float32 {
			b.Stride = []int{0}
		}
		v := float64(float32(h.read(b)[0]))
		if v == 257 {
			v = 256
		}
		if v == 0x1.01p0 {
			v = 1
		}
		wide, via := h.empty(dtype.Float32, 4), h.empty(dtype.Float32, 4)
		via.Via = dtype.BFloat16
		check(t, Pointwise(h, Mul, dtype.BFloat16, nil, []Operand{wide}, []Operand{a, b}))
		check(t, Pointwise(h, AddScaled, dtype.BFloat16, []Scalar{FloatScalar(0x1p-9)}, []Operand{via}, []Operand{a, a}))
		for i, x := range h.read(a) {
			if got := h.read(wide)[i]; got != x*v {
				t.Errorf("%v times %v is %v", x, b.DType, got)
			}
			if got := h.read(via)[i]; got != x {
				t.Errorf("%v with its 512th part is %v in bfloat16", x, got)
			}
		}
	}
}

// TestKernelsThatStartBack: on a large device, large element-wise and row kernels begin at the end, with the bits of those that begin at
// the start; small ones, and those of small devices, begin at the start.
func TestKernelsThatStartBack(t *testing.T) {
	h, rng := newHost(t), rand.New(rand.NewPCG(8, 9))
	f := dtype.Float32
	const rows, cols = 2100, 1001 // 8 MiB each, and the last blocks are not full
	x, wide := h.random(rng, f, rows, cols), h.random(rng, f, cols, rows)
	relu := func(out, in Operand) error { return Pointwise(h, ReLU, f, nil, []Operand{out}, []Operand{in}) }
	for name, run := range map[string]func(out Operand) error{
		"contiguous": func(out Operand) error { return relu(out, x) },
		"strided":    func(out Operand) error { return relu(out, permuted(wide, 1, 0)) },
		"rows":       func(out Operand) error { return Softmax(h, false, f, out, x, 1) },
	} {
		var results [2][]float64
		for i, sm := range []int{1, 132} {
			h.limits.Multiprocessors = sm
			out := h.empty(f, rows, cols)
			check(t, run(out))
			if back := h.l.Spec.Back == 1; back != (sm > 1) {
				t.Errorf("%s on %d multiprocessors begins at the end: %v", name, sm, back)
			}
			results[i] = h.read(out)
		}
		if !slices.Equal(results[0], results[1]) {
			t.Errorf("%s: the results differ", name)
		}
	}
	small := func(o Operand) Operand { return sliced(o, 0, 0, 1000, 1) }
	check(t, relu(small(h.empty(f, rows, cols)), small(x)))
	if h.l.Spec.Back == 1 {
		t.Error("a small kernel begins at the end")
	}
}

// TestNothingIsLaunchedForNone: arrays without elements need no kernel, however their dimensions are ordered, and even without scalars.
func TestNothingIsLaunchedForNone(t *testing.T) {
	for _, stride := range [][]int{{24, 8, 4, 1}, {24, 1, 12, 3}, {1, 0, 0, 0}} {
		h := newHost(t)
		o := Operand{DType: dtype.Float32, Shape: []int{0, 3, 2, 4}, Stride: stride}
		if err := Pointwise(h, Normalize, dtype.Float32, nil, []Operand{o}, []Operand{o, o, o, o, o}); err != nil || h.launches != 0 {
			t.Errorf("strides %v: %d launches, %v", stride, h.launches, err)
		}
	}
}
