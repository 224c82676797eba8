package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// exactPool computes poolings with the order of additions and the rounding that kernels must keep.
type exactPool struct {
	h        *host
	dt       dtype.DType
	plane    int
	windows  [][]int
	divisors []float64
}

// round rounds to the type in which kernels compute.
func (e *exactPool) round(v float64) float64 {
	if e.dt == dtype.Float64 {
		return v
	}
	return float64(float32(v))
}

func (e *exactPool) max(x []float64) (y, places []float64) {
	for i := range len(x) / e.plane * len(e.windows) {
		in, base := e.windows[i%len(e.windows)], i/len(e.windows)*e.plane
		best, at := math.Inf(-1), in[0]
		for _, w := range in {
			if v := x[base+w]; v > best || math.IsNaN(v) {
				best, at = v, w
			}
		}
		y, places = append(y, best), append(places, float64(at))
	}
	return y, places
}

func (e *exactPool) maxBack(dy, places []float64) []float64 {
	dx := make([]float64, len(dy)/len(e.windows)*e.plane)
	for i, g := range dy {
		at := i/len(e.windows)*e.plane + int(places[i])
		dx[at] = e.round(dx[at] + g)
	}
	return dx
}

func (e *exactPool) avg(x []float64) (y []float64) {
	for i := range len(x) / e.plane * len(e.windows) {
		sum := 0.0
		for _, w := range e.windows[i%len(e.windows)] {
			sum = e.round(sum + x[i/len(e.windows)*e.plane+w])
		}
		y = append(y, e.round(sum/e.divisors[i%len(e.windows)]))
	}
	return y
}

func (e *exactPool) avgBack(dy []float64) []float64 {
	dx := make([]float64, len(dy)/len(e.windows)*e.plane)
	for i, g := range dy {
		part := e.round(g / e.divisors[i%len(e.windows)])
		for _, w := range e.windows[i%len(e.windows)] {
			at := i/len(e.windows)*e.plane + w
			dx[at] = e.round(dx[at] + part)
		}
	}
	return dx
}

// check compares got, bit by bit, with want rounded to the type of got.
func (e *exactPool) check(t *testing.T, what string, got Operand, want []float64) {
	t.Helper()
	rounded := e.h.read(e.h.of(got.DType, want, got.Shape...))
	for i, v := range e.h.read(got) {
		if w := rounded[i]; math.Float64bits(v) != math.Float64bits(w) && !(math.IsNaN(v) && math.IsNaN(w)) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, v, w)
		}
	}
}

type smallPool struct {
	name string
	p    Pool
	// h and w are the size of planes, 12 and 16 if 0.
	h, w int
	ceil bool
}

var smallPools = []smallPool{
	{name: "2x2", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2}},
	{name: "2x2 odd", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2}, h: 13, w: 11},
	{name: "2x2 odd rows", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2}, h: 13, w: 12},
	{name: "2x2 odd columns", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2}, h: 12, w: 13},
	{name: "2x2 hanging", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, CountPad: true}, h: 13, w: 11, ceil: true},
	{name: "2x2 padded", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, CountPad: true}},
	{name: "3x3", p: Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1}},
	{name: "3x3 counted", p: Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, CountPad: true}, h: 11, w: 13},
	{name: "3x3 hanging", p: Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, Divisor: 8}, h: 12, w: 14, ceil: true},
	{name: "3x3 beside", p: Pool{KH: 3, KW: 3, StrideH: 3, StrideW: 3, PadH: 1, PadW: 1, Divisor: 5}, h: 10, w: 12},
	{name: "3x3 dense", p: Pool{KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1}},
	{name: "apart", p: Pool{KH: 2, KW: 1, StrideH: 3, StrideW: 2, Divisor: -4}, h: 14, w: 15},
	{name: "apart and padded", p: Pool{KH: 2, KW: 2, StrideH: 3, StrideW: 4, PadH: 1, PadW: 1, CountPad: true}},
	{name: "one", p: Pool{KH: 1, KW: 1, StrideH: 2, StrideW: 2}},
	{name: "all", p: Pool{KH: 1, KW: 1, StrideH: 1, StrideW: 1}},
	{name: "sliding", p: Pool{KH: 2, KW: 2, StrideH: 1, StrideW: 1, PadH: 1, CountPad: true}},
	{name: "overlapping", p: Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2}, h: 13, w: 18},
	{name: "mixed", p: Pool{KH: 3, KW: 2, StrideH: 2, StrideW: 1, PadH: 1, PadW: 1}},
	{name: "wide", p: Pool{KH: 2, KW: 4, StrideH: 1, StrideW: 4}},
	{name: "tall", p: Pool{KH: 4, KW: 1, StrideH: 4, StrideW: 2}},
	{name: "4x4", p: Pool{KH: 4, KW: 4, StrideH: 2, StrideW: 2, PadH: 2, PadW: 1}},
	{name: "large", p: Pool{KH: 5, KW: 5, StrideH: 2, StrideW: 2, PadH: 2, PadW: 2}},
	{name: "dilated", p: Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, PadH: 1, DilationH: 2, DilationW: 3}},
	{name: "one window", p: Pool{KH: 3, KW: 3, StrideH: 3, StrideW: 3}, h: 3, w: 3},
}

// outputs returns the number of windows in size elements.
func (q *smallPool) outputs(size, k, stride, pad, dilation int) int {
	span := size + 2*pad - dilation*(k-1) - 1
	n := span/stride + 1
	if q.ceil {
		n = ceilDiv(span, stride) + 1
		if (n-1)*stride >= size+pad {
			n--
		}
	}
	return n
}

// TestSmallPools compares all poolings with their definition, bit by bit: zeros of both signs, infinities, NaN, and ties.
func TestSmallPools(t *testing.T) {
	for _, q := range smallPools {
		q.p.DilationH, q.p.DilationW = max(1, q.p.DilationH), max(1, q.p.DilationW)
		if q.h == 0 {
			q.h, q.w = 12, 16
		}
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float64} {
			for _, c := range []struct{ channels, skip int }{{12, 0}, {5, 0}, {16, 1}, {16, 2}, {1, 0}} {
				if dt == dtype.Float64 && c.channels != 12 { // its kernels differ in little else
					break
				}
				for _, last := range []bool{true, false} {
					t.Run(fmt.Sprint(q.name, " ", dt, " ", c, " ", last), func(t *testing.T) { q.compare(t, dt, c.channels, c.skip, last) })
				}
			}
		}
	}
}

// compare tries arrays that are parts of larger ones, without the first skip channels or columns.
func (q *smallPool) compare(t *testing.T, dt dtype.DType, channels, skip int, last bool) {
	p, h := &q.p, newHost(t)
	h.limits.MaxThreadsPerSM = 8 // so that few elements are enough for vectors
	if channels == 5 {
		h.index32 = 10
	}
	rng := rand.New(rand.NewPCG(5, uint64(channels)))
	oh := q.outputs(q.h, p.KH, p.StrideH, p.PadH, p.DilationH)
	ow := q.outputs(q.w, p.KW, p.StrideW, p.PadW, p.DilationW)
	planes := func(dt dtype.DType, height, width int) Operand {
		o := h.empty(dt, 2, channels, height, width+skip)
		if last {
			o = permuted(h.empty(dt, 2, height, width, channels+skip), 0, 3, 1, 2)
		}
		o.Ptr += uint64(skip * dt.Size())
		o.Shape[1], o.Shape[3] = channels, width
		return o
	}
	odd := []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, 1, -1}
	drawn := func(o Operand) Operand {
		h.write(o, func(int) complex128 {
			if i := rng.IntN(2 * len(odd)); i < len(odd) {
				return complex(odd[i], 0)
			}
			return complex(sample(rng, dt), 0)
		})
		return o
	}
	x, dy := drawn(planes(dt, q.h, q.w)), drawn(planes(dt, oh, ow))
	y, dx, places := planes(dt, oh, ow), planes(dt, q.h, q.w), planes(dtype.Int64, oh, ow)
	e := exactPool{h: h, dt: dt, plane: q.h * q.w}
	e.windows, e.divisors = p.covers(q.h, q.w, oh, ow)
	check(t, MaxPool(h, p, y, places, x))
	greatest, at := e.max(h.read(x))
	e.check(t, "max", y, greatest)
	e.check(t, "places", places, at)
	check(t, MaxPoolBackward(h, p, dx, dy, places))
	e.check(t, "max gradient", dx, e.maxBack(h.read(dy), at))
	if p.DilationH > 1 {
		return
	}
	check(t, AvgPool(h, p, y, x))
	e.check(t, "avg", y, e.avg(h.read(x)))
	check(t, AvgPoolBackward(h, p, dx, dy))
	e.check(t, "avg gradient", dx, e.avgBack(h.read(dy)))
}

// TestPoolKernels says which kernels common poolings get on a large device.
func TestPoolKernels(t *testing.T) {
	pair, stem := Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2,
		PadH: 1, PadW: 1, DilationH: 1, DilationW: 1}
	two, three := poolSpec{KH: 2, KW: 2, SH: 2, SW: 2, Full: true}, poolSpec{KH: 3, KW: 3, SH: 2, SW: 2}
	twoBack, threeBack := two, three
	twoBack.Whole = true
	threeBack.PhaseH, threeBack.PhaseW, threeBack.Whole = 1, 1, true
	row := func(s poolSpec) poolSpec { s.Row = true; return s }
	scaled := func(s poolSpec) poolSpec { s.Scaled = true; return s }
	type wanted struct {
		spec poolSpec
		vec  uint8
	}
	for _, c := range []struct {
		name     string
		p        Pool
		dt       dtype.DType
		channels int
		last     bool
		// max, maxBack, avg, avgBack
		want [4]wanted
	}{
		{"2x2 f32 last", pair, dtype.Float32, 32, true, [4]wanted{{two, 4}, {twoBack, 4}, {scaled(two), 4}, {scaled(twoBack), 4}}},
		{"2x2 bf16 last", pair, dtype.BFloat16, 32, true, [4]wanted{{two, 4}, {twoBack, 4}, {scaled(two), 8}, {scaled(twoBack), 8}}},
		{"2x2 f32 first", pair, dtype.Float32, 32, false,
			[4]wanted{{row(two), 2}, {row(twoBack), 2}, {scaled(row(two)), 2}, {scaled(row(twoBack)), 2}}},
		{"2x2 bf16 first", pair, dtype.BFloat16, 32, false,
			[4]wanted{{row(two), 4}, {row(twoBack), 4}, {scaled(row(two)), 4}, {scaled(row(twoBack)), 4}}},
		{"3x3 f32 last", stem, dtype.Float32, 64, true, [4]wanted{{three, 4}, {threeBack, 4}, {three, 4}, {threeBack, 4}}},
		{"3x3 bf16 last", stem, dtype.BFloat16, 64, true, [4]wanted{{three, 4}, {threeBack, 4}, {three, 8}, {threeBack, 8}}},
		{"3x3 bf16 last, 6 channels", stem, dtype.BFloat16, 6, true, [4]wanted{{three, 2}, {threeBack, 2}, {three, 2}, {threeBack, 2}}},
		{"3x3 f32 first", stem, dtype.Float32, 64, false, [4]wanted{{three, 1}, {row(threeBack), 1}, {three, 1}, {row(threeBack), 1}}},
	} {
		h := &specs{limits: Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048}}
		const n, side = 64, 128
		planes := func(dt dtype.DType, side int) Operand {
			image := c.channels * side * side
			o := Operand{Ptr: 1 << 20, DType: dt, Shape: []int{n, c.channels, side, side}, Stride: []int{image, side * side, side, 1}}
			if c.last {
				o.Stride = []int{image, 1, c.channels * side, c.channels}
			}
			return o
		}
		fine, coarse, places := planes(c.dt, side), planes(c.dt, side/2), planes(dtype.Int64, side/2)
		check(t, MaxPool(h, &c.p, coarse, places, fine))
		check(t, MaxPoolBackward(h, &c.p, fine, coarse, places))
		check(t, AvgPool(h, &c.p, coarse, fine))
		check(t, AvgPoolBackward(h, &c.p, fine, coarse))
		for i, w := range c.want {
			if got := h.seen[i]; got.Pool != w.spec || got.Vec != w.vec || got.Index != 32 {
				t.Errorf("%s: %s is %+v by %d, want %+v by %d", c.name, poolNames[i], got.Pool, got.Vec, w.spec, w.vec)
			}
		}
	}
}

// specs is an Issuer that only collects which kernels are launched.
type specs struct {
	Issuer
	limits Limits
	l      Launch
	seen   []Spec
}

func (h *specs) NewLaunch() *Launch {
	h.l.Reset()
	return &h.l
}
func (h *specs) Issue(l *Launch) error {
	h.seen = append(h.seen, l.Spec)
	return nil
}
func (h *specs) Limits() *Limits { return &h.limits }
func (h *specs) Index32() int    { return 1<<31 - 1 }
