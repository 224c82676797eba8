package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
)

// covers computes pooling of planes by the definition: what each output covers, as row-major numbers in the plane, and its divisor.
func (p *Pool) covers(h, w, oh, ow int) (windows [][]int, divisors []float64) {
	for y := range oh {
		for x := range ow {
			var in []int
			for ky := range p.KH {
				for kx := range p.KW {
					iy, ix := y*p.StrideH-p.PadH+ky*p.DilationH, x*p.StrideW-p.PadW+kx*p.DilationW
					if iy >= 0 && ix >= 0 && iy < h && ix < w {
						in = append(in, iy*w+ix)
					}
				}
			}
			d := float64(len(in))
			if p.CountPad {
				d = float64((min(y*p.StrideH-p.PadH+p.KH, h+p.PadH) - (y*p.StrideH - p.PadH)) *
					(min(x*p.StrideW-p.PadW+p.KW, w+p.PadW) - (x*p.StrideW - p.PadW)))
			}
			if p.Divisor != 0 {
				d = float64(p.Divisor)
			}
			windows, divisors = append(windows, in), append(divisors, d)
		}
	}
	return windows, divisors
}

// span divides size elements evenly among n outputs, and returns the range that output i covers.
func span(i, n, size int) (from, to int) { return i * size / n, ((i+1)*size + n - 1) / n }

func TestPooling(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16} {
		for form := range 4 {
			for _, p := range []Pool{
				{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1},
				{KH: 3, KW: 2, StrideH: 1, StrideW: 3, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, CountPad: true},
				{KH: 3, KW: 3, StrideH: 2, StrideW: 1, PadH: 1, DilationH: 1, DilationW: 1, Divisor: 5},
				{KH: 2, KW: 3, StrideH: 2, StrideW: 2, PadW: 1, DilationH: 3, DilationW: 2},
			} {
				h := newHost(t)
				if form&1 != 0 {
					h.index32 = 10
				}
				c := poolCase{t: t, h: h, n: 2, c: 3, height: 9, width: 8, p: p}
				c.x = h.random(rng, dt, c.n, c.c, c.height, c.width)
				if form&2 != 0 {
					c.x = permuted(h.random(rng, dt, c.n, c.height, c.width, c.c), 0, 3, 1, 2)
				}
				c.oh = (c.height+2*p.PadH-p.DilationH*(p.KH-1)-1)/p.StrideH + 1
				c.ow = (c.width+2*p.PadW-p.DilationW*(p.KW-1)-1)/p.StrideW + 1
				c.dy = permuted(h.random(rng, dt, c.n, c.oh, c.ow, c.c), 0, 3, 1, 2)
				windows, divisors := p.covers(c.height, c.width, c.oh, c.ow)
				c.max(windows)
				if p.DilationH == 1 && p.DilationW == 1 {
					c.average("avg", windows, divisors, func(y Operand) error { return AvgPool(h, &p, y, c.x) },
						func(dx Operand) error { return AvgPoolBackward(h, &p, dx, c.dy) })
				}
				c.adaptive()
			}
		}
	}
}

// TestPoolingChannelsAtOnce: if many channels are adjacent, a thread takes several.
func TestPoolingChannelsAtOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, q := range []struct {
		dt  dtype.DType
		c   int
		vec uint8
	}{{dtype.BFloat16, 256, 8}, {dtype.Float32, 128, 4}, {dtype.Float64, 64, 2}, {dtype.BFloat16, 250, 2}} {
		h := newHost(t)
		p := Pool{KH: 3, KW: 2, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1}
		c := poolCase{t: t, h: h, n: 2, c: q.c, height: 48, width: 46, p: p, last: true, oh: 24, ow: 24}
		c.x = permuted(h.random(rng, q.dt, c.n, c.height, c.width, c.c), 0, 3, 1, 2)
		c.dy = permuted(h.random(rng, q.dt, c.n, c.oh, c.ow, c.c), 0, 3, 1, 2)
		windows, divisors := p.covers(c.height, c.width, c.oh, c.ow)
		c.max(windows)
		c.average("avg", windows, divisors, func(y Operand) error { return AvgPool(h, &p, y, c.x) },
			func(dx Operand) error { return AvgPoolBackward(h, &p, dx, c.dy) })
		if got := h.l.Spec.Vec; got != q.vec {
			t.Errorf("%v: a thread takes %d of %d channels, want %d", q.dt, got, q.c, q.vec)
		}
	}
}

type poolCase struct {
	t *testing.T
	h *host
	p Pool
	// last says that outputs have the channels last.
	last                bool
	n, c, height, width int
	oh, ow              int
	x, dy               Operand
}

// planes allocates an output.
func (c *poolCase) planes(dt dtype.DType, height, width int) Operand {
	if c.last {
		return permuted(c.h.empty(dt, c.n, height, width, c.c), 0, 3, 1, 2)
	}
	return c.h.empty(dt, c.n, c.c, height, width)
}

// near compares planes with a tolerance for the type's rounding.
func (c *poolCase) near(what string, got Operand, want []float64) {
	c.t.Helper()
	tol := map[dtype.DType]float64{dtype.Float32: 1e-6, dtype.Float64: 1e-14, dtype.BFloat16: 1.0 / 128}[got.DType]
	for i, v := range c.h.read(got) {
		if !close(v, want[i], tol) {
			c.t.Fatalf("%s %v %+v: element %d is %v, want %v", what, got.DType, c.p, i, v, want[i])
		}
	}
}

func (c *poolCase) max(windows [][]int) {
	h, dt := c.h, c.x.DType
	y, places, dx := c.planes(dt, c.oh, c.ow), c.planes(dtype.Int64, c.oh, c.ow), c.planes(dt, c.height, c.width)
	check(c.t, MaxPool(h, &c.p, y, places, c.x))
	check(c.t, MaxPoolBackward(h, &c.p, dx, c.dy, places))
	x, dy := h.read(c.x), h.read(c.dy)
	plane := c.height * c.width
	var want, where []float64
	grad := make([]float64, len(x))
	for i := range dy {
		base := i / len(windows) * plane
		best, at := math.Inf(-1), -1
		for _, w := range windows[i%len(windows)] {
			if x[base+w] > best {
				best, at = x[base+w], w
			}
		}
		want, where = append(want, best), append(where, float64(at))
		grad[base+at] += dy[i]
	}
	c.near("max", y, want)
	c.near("max gradient", dx, grad)
	for i, v := range h.read(places) {
		if v != where[i] {
			c.t.Fatalf("%+v: the place of %d is %v, want %v", c.p, i, v, where[i])
		}
	}
}

func (c *poolCase) average(what string, windows [][]int, divisors []float64, forward, backward func(Operand) error) {
	h, dt := c.h, c.x.DType
	y, dx := c.planes(dt, c.oh, c.ow), permuted(h.empty(dt, c.n, c.height, c.width, c.c), 0, 3, 1, 2)
	check(c.t, forward(y))
	check(c.t, backward(dx))
	x, dy := h.read(c.x), h.read(c.dy)
	plane := c.height * c.width
	var want []float64
	grad := make([]float64, len(x))
	for i := range dy {
		base, d := i/len(windows)*plane, divisors[i%len(windows)]
		sum := 0.0
		for _, w := range windows[i%len(windows)] {
			sum += x[base+w]
			grad[base+w] += dy[i] / d
		}
		want = append(want, sum/d)
	}
	c.near(what, y, want)
	c.near(what+" gradient", dx, grad)
}

func (c *poolCase) adaptive() {
	var windows [][]int
	var divisors []float64
	for y := range c.oh {
		for x := range c.ow {
			var in []int
			top, bottom := span(y, c.oh, c.height)
			left, right := span(x, c.ow, c.width)
			for i := top; i < bottom; i++ {
				for j := left; j < right; j++ {
					in = append(in, i*c.width+j)
				}
			}
			windows, divisors = append(windows, in), append(divisors, float64(len(in)))
		}
	}
	c.average("adaptive", windows, divisors, func(y Operand) error { return AdaptiveAvgPool(c.h, y, c.x) },
		func(dx Operand) error { return AdaptiveAvgPoolBackward(c.h, dx, c.dy) })
}
