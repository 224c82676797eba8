package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// resampleCase is an interpolation of [2, channels, from…] to [2, channels, to…].
type resampleCase struct {
	channels int
	from, to []int
	// scale, if not 0, is how many times as many elements y has, unrounded.
	scale   float64
	corners bool
}

func (c *resampleCase) plan() *Resample {
	p := &Resample{Corners: c.corners}
	for d, from := range c.from {
		switch to := c.to[d]; {
		case c.corners && to > 1:
			p.Step[d] = float64(from-1) / float64(to-1)
		case c.corners:
		case c.scale != 0:
			p.Step[d] = 1 / c.scale
		default:
			p.Step[d] = float64(from) / float64(to)
		}
	}
	return p
}

// placeOf returns the neighbours of element i of y and its distance from the first, in the arithmetic of T. The conversions keep the
// compiler from fusing operations.
func placeOf[T float32 | float64](p *Resample, d, from, i int) (below, above int, part T) {
	shift := T(0.5)
	if p.Corners {
		shift = 0
	}
	at := T(T(i) + shift)
	at = T(at * T(p.Step[d]))
	at = min(max(T(at-shift), 0), T(from-1))
	below = int(at)
	return below, min(below+1, from-1), at - T(below)
}

// plainResample computes the forward result of one plane of values, as bits of T say, in dimension d and those after it.
func plainResample[T float32 | float64](p *Resample, v []float64, from, to []int, d int) []float64 {
	if d == len(from) {
		return v
	}
	inner := len(v) / from[d]
	rows := make([][]float64, from[d])
	for i := range rows {
		rows[i] = plainResample[T](p, v[i*inner:(i+1)*inner], from, to, d+1)
	}
	var out []float64
	for i := range to[d] {
		below, above, part := placeOf[T](p, d, from[d], i)
		for e, a := range rows[below] {
			first, second := T(T(a)*T(1-part)), T(T(rows[above][e])*part)
			out = append(out, float64(T(first+second)))
		}
	}
	return out
}

// spreadResample adds the gradient of one plane to dx, in float64 but for the places.
func spreadResample[T float32 | float64](p *Resample, dx, dy []float64, from, to []int, d int, weight float64) {
	if d == len(from) {
		dx[0] += dy[0] * weight
		return
	}
	in, out := len(dx)/from[d], len(dy)/to[d]
	for i := range to[d] {
		below, above, part := placeOf[T](p, d, from[d], i)
		g := dy[i*out : (i+1)*out]
		spreadResample[T](p, dx[below*in:(below+1)*in], g, from, to, d+1, weight*(1-float64(part)))
		spreadResample[T](p, dx[above*in:(above+1)*in], g, from, to, d+1, weight*float64(part))
	}
}

// lie makes an array [2, channels, sizes…]; form 0 is contiguous, form 1 has the channels last, form 2 the first two dimensions.
func (c *resampleCase) lie(form int, sizes []int, make func(shape ...int) Operand) Operand {
	shape := slices.Concat([]int{2, c.channels}, sizes)
	var order []int // of the dimensions in memory
	for d := range shape {
		order = append(order, d)
	}
	switch form {
	case 1:
		order = append(append([]int{0}, order[2:]...), 1)
	case 2:
		order = append(order[2:], 0, 1)
	}
	laid, back := []int{}, append([]int{}, order...)
	for i, d := range order {
		laid = append(laid, shape[d])
		back[d] = i
	}
	return permuted(make(laid...), back...)
}

// check compares both kernels with the plain functions, and returns the vectors that they take.
func (c *resampleCase) check(t *testing.T, h *host, rng *rand.Rand, dt dtype.DType, formX, formY int) (vecs [2]uint8) {
	t.Helper()
	p := c.plan()
	random := func(shape ...int) Operand { return h.random(rng, dt, shape...) }
	empty := func(shape ...int) Operand { return h.empty(dt, shape...) }
	x, dy := c.lie(formX, c.from, random), c.lie(formY, c.to, random)
	y, dx := c.lie(formY, c.to, empty), c.lie(formX, c.from, empty)
	check(t, p.Forward(h, y, x))
	vecs[0] = h.l.Spec.Vec
	check(t, p.Backward(h, dx, dy))
	vecs[1] = h.l.Spec.Vec
	forward, back := plainResample[float32], spreadResample[float32]
	if dt == dtype.Float64 {
		forward, back = plainResample[float64], spreadResample[float64]
	}
	values, grads := h.read(x), h.read(dy)
	in, out := len(values)/2/c.channels, len(grads)/2/c.channels
	gotY, gotX := h.read(y), h.read(dx)
	tol := map[dtype.DType]float64{dtype.Float32: 1e-5, dtype.Float64: 1e-13, dtype.Float16: 2e-3, dtype.BFloat16: 1.0 / 64}[dt]
	for plane := range 2 * c.channels {
		for i, v := range forward(p, values[plane*in:(plane+1)*in], c.from, c.to, 0) {
			if got := gotY[plane*out+i]; got != rounded(dt, v) {
				t.Fatalf("%v %+v, forms %d %d: element %d of plane %d is %v, want %v", dt, c, formX, formY, i, plane, got,
					rounded(dt, v))
			}
		}
		want := make([]float64, in)
		back(p, want, grads[plane*out:(plane+1)*out], c.from, c.to, 0, 1)
		for i, v := range want {
			if got := gotX[plane*in+i]; !close(got, v, tol) {
				t.Fatalf("%v %+v, forms %d %d: element %d of the gradient of plane %d is %v, want %v", dt, c, formX, formY, i, plane,
					got, v)
			}
		}
	}
	return vecs
}

// TestResample compares the kernels with plain Go: the results bit for bit, the gradients with a tolerance.
func TestResample(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for i, c := range []resampleCase{
		{channels: 3, from: []int{7}, to: []int{15}}, {channels: 2, from: []int{23}, to: []int{9}},
		{channels: 1, from: []int{1}, to: []int{6}}, {channels: 2, from: []int{13}, to: []int{1}},
		{channels: 2, from: []int{11}, to: []int{40}, scale: 3.7}, {channels: 3, from: []int{5, 6}, to: []int{10, 12}},
		{channels: 4, from: []int{8, 9}, to: []int{5, 17}}, {channels: 5, from: []int{1, 7}, to: []int{3, 1}},
		{channels: 2, from: []int{9, 12}, to: []int{3, 4}, scale: 0.36}, {channels: 3, from: []int{2, 3, 4}, to: []int{5, 2, 7}},
		{channels: 2, from: []int{3, 1, 5}, to: []int{1, 4, 5}},
	} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16} {
			for form := range 3 {
				h, index := newHost(t), uint8(32)
				if (i+form)%2 == 0 {
					h.index32, index = 10, 64
				}
				for _, corners := range []bool{false, true} {
					c.corners = corners
					c.check(t, h, rng, dt, form, form)
					c.check(t, h, rng, dt, form, (form+1)%3)
					if got := h.l.Spec.Index; got != index {
						t.Errorf("%+v: indexes have %d bits, want %d", c, got, index)
					}
				}
			}
		}
	}
}

// TestResampleSideBySide checks that a thread takes several elements of large arrays: channels if they are last, otherwise elements of y's
// rows.
func TestResampleSideBySide(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, q := range []struct {
		dt   dtype.DType
		c    resampleCase
		form int
		want [2]uint8
	}{
		{dtype.BFloat16, resampleCase{channels: 64, from: []int{47, 46}, to: []int{48, 44}}, 1, [2]uint8{8, 8}},
		{dtype.Float32, resampleCase{channels: 32, from: []int{46, 47}, to: []int{66, 48}, corners: true}, 1, [2]uint8{4, 4}},
		{dtype.Float64, resampleCase{channels: 6, from: []int{10, 20, 30}, to: []int{11, 19, 32}}, 1, [2]uint8{2, 2}},
		{dtype.Float32, resampleCase{channels: 33, from: []int{40, 41}, to: []int{39, 52}}, 1, [2]uint8{1, 1}},
		{dtype.Float32, resampleCase{channels: 33, from: []int{30, 41}, to: []int{39, 52}}, 0, [2]uint8{4, 1}},
		{dtype.BFloat16, resampleCase{channels: 3, from: []int{20, 30, 20}, to: []int{20, 30, 37}}, 0, [2]uint8{1, 1}},
		{dtype.BFloat16, resampleCase{channels: 3, from: []int{9000}, to: []int{22002}, corners: true}, 0, [2]uint8{2, 1}},
	} {
		if got := q.c.check(t, newHost(t), rng, q.dt, q.form, q.form); got != q.want {
			t.Errorf("%v %+v: threads take %v elements, want %v", q.dt, q.c, got, q.want)
		}
	}
}

// TestResampleReach checks that an element of the gradient is made of exactly those elements that its own contributes to, also if rounding
// decides that: a NaN in the gradient of one element of y must reach both of its neighbours, even with weight 0, and nothing else.
func TestResampleReach(t *testing.T) {
	h := newHost(t)
	for _, from := range []int{1, 2, 3, 7, 10, 33} {
		for _, to := range []int{1, 2, 5, 9, 21, 49, 70} {
			for _, scale := range []float64{0, (float64(to) + 0.4) / float64(from)} {
				c := resampleCase{from: []int{from}, to: []int{to}, scale: scale, corners: scale == 0 && to%2 == 1}
				p := c.plan()
				dy, dx := h.empty(dtype.Float32, to, 1, to), h.empty(dtype.Float32, to, 1, from)
				h.write(dy, func(n int) complex128 {
					if n/to == n%to {
						return complex(math.NaN(), 0)
					}
					return 1
				})
				check(t, p.Backward(h, dx, dy))
				for n, v := range h.read(dx) {
					below, above, _ := placeOf[float32](p, 0, from, n/from)
					if reached := n%from == below || n%from == above; reached != math.IsNaN(v) {
						t.Fatalf("%+v: element %d of the gradient is %v if that of y's element %d is NaN, which lies between %d and %d", c,
							n%from, v, n/from, below, above)
					}
				}
			}
		}
	}
}

// TestResampleFar checks places that float32 cannot hold exactly.
func TestResampleFar(t *testing.T) {
	c := resampleCase{channels: 1, from: []int{70_001}, to: []int{110_003}}
	c.check(t, newHost(t), rand.New(rand.NewPCG(9, 9)), dtype.Float32, 0, 0)
}
