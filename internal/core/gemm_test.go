package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
)

// randomOf returns a tensor of small random numbers in dt, and their exact values.
func randomOf(x *Exec, r *rand.Rand, dt dtype.DType, shape ...int) (*Tensor, []float64) {
	v := make([]float64, infer.Numel(shape))
	for i := range v {
		v[i] = float64(r.IntN(65)-32) / 16
	}
	return x.ToDType(From(x, v, shape...), dt), v
}

func doubles(t *testing.T, x *Exec, a *Tensor) []float64 {
	t.Helper()
	v, err := Read[float64](x, x.NoGrad().ToDType(a, dtype.Float64))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// near compares with the error that one rounding to dt and float32 sums of k terms allow.
func near(t *testing.T, what string, dt dtype.DType, got, want []float64, k int) {
	t.Helper()
	eps := map[dtype.DType]float64{dtype.Float16: 1.0 / 2048, dtype.BFloat16: 1.0 / 256, dtype.Float32: 1e-6, dtype.Float64: 1e-14}[dt]
	for i := range want {
		if d := math.Abs(got[i] - want[i]); !(d <= 2*eps*math.Abs(want[i])+1e-7*float64(k)) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

var floatTypes = []dtype.DType{dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.Float64}

func TestMatMulSizes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(1, 2))
		sizes := [][3]int{{1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {17, 130, 33}, {128, 128, 64}, {1, 200, 50}, {200, 1, 50},
			{100, 72, 300}, {8, 8, 4000}}
		for _, dt := range floatTypes {
			for _, s := range sizes {
				for form := range 4 {
					x.Scope(func(x *Exec) {
						m, n, k := s[0], s[1], s[2]
						a, av := randomOf(x, r, dt, m, k)
						b, bv := randomOf(x, r, dt, k, n)
						if form&1 != 0 { // the same matrices, transposed in memory
							a = x.Transpose(x.Contiguous(x.Transpose(a, 0, 1)), 0, 1)
						}
						if form&2 != 0 {
							b = x.Transpose(x.Contiguous(x.Transpose(b, 0, 1)), 0, 1)
						}
						want := make([]float64, m*n)
						for i := range m {
							for j := range n {
								for q := range k {
									want[i*n+j] += av[i*k+q] * bv[q*n+j]
								}
							}
						}
						near(t, fmt.Sprintf("%v %v form %d", dt, s, form), dt, doubles(t, x, x.MM(a, b)), want, k)
					})
				}
			}
		}
	})
}

func TestBatchedAndBias(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, dt := range floatTypes {
			a, av := randomOf(x, r, dt, 3, 1, 5, 6)
			b, bv := randomOf(x, r, dt, 2, 6, 7)
			want := make([]float64, 3*2*5*7)
			for p := range 3 {
				for q := range 2 {
					for i := range 5 {
						for j := range 7 {
							for k := range 6 {
								want[((p*2+q)*5+i)*7+j] += av[(p*5+i)*6+k] * bv[(q*6+k)*7+j]
							}
						}
					}
				}
			}
			near(t, fmt.Sprint("batched ", dt), dt, doubles(t, x, x.MatMul(a, b)), want, 6)
			c, cv := randomOf(x, r, dt, 9)
			m, mv := randomOf(x, r, dt, 4, 20)
			w, wv := randomOf(x, r, dt, 9, 20)
			lin := make([]float64, 4*9)
			for i := range 4 {
				for j := range 9 {
					lin[i*9+j] = cv[j]
					for k := range 20 {
						lin[i*9+j] += mv[i*20+k] * wv[j*20+k]
					}
				}
			}
			near(t, fmt.Sprint("linear ", dt), dt, doubles(t, x, x.Linear(m, w, c)), lin, 20)
		}
	})
}

// rounded64 returns the number of type dt nearest to v.
func rounded64(v float64, dt dtype.DType) float64 {
	switch dt {
	case dtype.Float16:
		return float64(dtype.F16FromFloat64(v).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16FromFloat64(v).Float32())
	case dtype.Float32:
		return float64(float32(v))
	}
	return v
}

// convolve computes a convolution by its definition, in float64.
func convolve(x, w, b []float64, n, c, h, wd, o, kh, kw int, opt Conv2dOpt, oh, ow int) []float64 {
	g := opt.Groups
	out := make([]float64, n*o*oh*ow)
	for i := range n {
		for p := range o {
			grp := p / (o / g)
			for y := range oh {
				for z := range ow {
					s := b[p]
					for q := range c / g {
						for u := range kh {
							for v := range kw {
								iy, ix := y*opt.Stride[0]-opt.Padding[0]+u*opt.Dilation[0], z*opt.Stride[1]-opt.Padding[1]+v*opt.Dilation[1]
								if iy >= 0 && iy < h && ix >= 0 && ix < wd {
									s += x[((i*c+grp*(c/g)+q)*h+iy)*wd+ix] * w[((p*(c/g)+q)*kh+u)*kw+v]
								}
							}
						}
					}
					out[((i*o+p)*oh+y)*ow+z] = s
				}
			}
		}
	}
	return out
}

func TestConvolutions(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(5, 6))
		cases := []struct {
			n, c, h, w, o, kh, kw int
			opt                   Conv2dOpt
		}{
			{2, 1, 8, 8, 16, 3, 3, Conv2dOpt{Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}},
			{2, 4, 9, 7, 6, 3, 2, Conv2dOpt{Stride: [2]int{2, 1}, Padding: [2]int{1, 0}, Dilation: [2]int{1, 2}, Groups: 2}},
			{3, 8, 6, 6, 8, 1, 1, Conv2dOpt{Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 1}},
			{1, 3, 10, 12, 5, 4, 4, Conv2dOpt{Stride: [2]int{3, 2}, Padding: [2]int{2, 3}, Dilation: [2]int{1, 1}, Groups: 1}},
			{2, 4, 5, 5, 4, 3, 3, Conv2dOpt{Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, Dilation: [2]int{1, 1}, Groups: 4}},
		}
		for _, dt := range floatTypes {
			for i, c := range cases {
				x.Scope(func(x *Exec) {
					in, iv := randomOf(x, r, dt, c.n, c.c, c.h, c.w)
					w, wv := randomOf(x, r, dt, c.o, c.c/c.opt.Groups, c.kh, c.kw)
					b, bv := randomOf(x, r, dt, c.o)
					leaves := []*Tensor{in, w, b}
					for j := range leaves {
						leaves[j] = x.Detach(leaves[j]).SetRequiresGrad(true)
					}
					y := x.Conv2d(leaves[0], leaves[1], leaves[2], c.opt)
					oh, ow := y.shape[2], y.shape[3]
					want := convolve(iv, wv, make([]float64, c.o), c.n, c.c, c.h, c.w, c.o, c.kh, c.kw, c.opt, oh, ow)
					for j, s := range want {
						if c.opt.Groups == 1 || c.opt.Groups < c.c { // all but depthwise convolutions round before they add the bias
							s = rounded64(s, dt)
						}
						want[j] = s + bv[j/(oh*ow)%c.o]
					}
					near(t, fmt.Sprintf("%v case %d", dt, i), dt, doubles(t, x, y), want, 100)
					// The convolution is linear in each operand: <g, dy> must equal <grad, operand> for the parts without bias.
					gr, gv := randomOf(x, r, dt, y.shape...)
					grads, err := x.Grad([]*Tensor{y}, leaves, GradOpt{Gradients: []*Tensor{gr}})
					if err != nil {
						t.Fatal(err)
					}
					zero := make([]float64, len(bv))
					dot := func(a, b []float64) (s float64) {
						for i := range a {
							s += a[i] * b[i]
						}
						return s
					}
					// Exact gradients by probing with one-hot operands would be slow, so every element is checked with the definition's
					// transpose.
					checkConvGrads(t, fmt.Sprintf("%v case %d", dt, i), dt, iv, wv, gv, doubles(t, x, grads[0]), doubles(t, x, grads[1]),
						c.n, c.c, c.h, c.w, c.o, c.kh, c.kw, c.opt, oh, ow)
					whole := dot(gv, convolve(iv, wv, zero, c.n, c.c, c.h, c.w, c.o, c.kh, c.kw, c.opt, oh, ow))
					if p := dot(doubles(t, x, grads[0]), iv); math.Abs(p-whole) > 0.02*math.Abs(whole)+1 {
						t.Errorf("%v case %d: <dx, x> = %v, want %v", dt, i, p, whole)
					}
				})
			}
		}
	})
}

func checkConvGrads(t *testing.T, what string, dt dtype.DType, x, w, g, dx, dw []float64, n, c, h, wd, o, kh, kw int,
	opt Conv2dOpt, oh, ow int) {
	t.Helper()
	wx, ww := make([]float64, len(x)), make([]float64, len(w))
	cg := c / opt.Groups
	for i := range n {
		for p := range o {
			grp := p / (o / opt.Groups)
			for y := range oh {
				for z := range ow {
					gv := g[((i*o+p)*oh+y)*ow+z]
					for q := range cg {
						for u := range kh {
							for v := range kw {
								iy, ix := y*opt.Stride[0]-opt.Padding[0]+u*opt.Dilation[0], z*opt.Stride[1]-opt.Padding[1]+v*opt.Dilation[1]
								if iy >= 0 && iy < h && ix >= 0 && ix < wd {
									xi, wi := ((i*c+grp*cg+q)*h+iy)*wd+ix, ((p*cg+q)*kh+u)*kw+v
									wx[xi] += gv * w[wi]
									ww[wi] += gv * x[xi]
								}
							}
						}
					}
				}
			}
		}
	}
	near(t, what+" dx", dt, dx, wx, 100)
	near(t, what+" dw", dt, dw, ww, 300)
}

// TestTF32Sides checks that tf32 products large enough for the matrix units' largest tile agree with float32 products, whatever the layout
// of their operands; the numbers have few bits, so that both are exact.
func TestTF32Sides(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		r := rand.New(rand.NewPCG(7, 4))
		const m, n, k = 2048, 2304, 90
		a, _ := randomOf(x, r, dtype.Float32, 2, m, k)
		b, _ := randomOf(x, r, dtype.Float32, 2, k, n)
		want := x.TF32(false).MatMul(a, b)
		for form := range 6 {
			x.Scope(func(x *Exec) {
				a, b, want := a, b, want
				if form&1 != 0 {
					a = x.Transpose(x.Contiguous(x.Transpose(a, 1, 2)), 1, 2)
				}
				if form&2 != 0 {
					b = x.Transpose(x.Contiguous(x.Transpose(b, 1, 2)), 1, 2)
				}
				if form >= 4 { // one right side for both left ones
					b = x.Expand(x.Slice(b, 0, 0, 1, 1), 2, k, n)
					want = x.TF32(false).MatMul(a, b)
				}
				same, err := x.Item(x.All(x.Eq(x.TF32(true).MatMul(a, b), want), nil, DimOpt{}))
				if err != nil || same != 1.0 {
					t.Errorf("form %d: the products differ (%v, %v)", form, same, err)
				}
			})
		}
	})
}
