package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// normGroups normalises elements by group; group and channel map an element's number to its group and channel. All gradients are for dy.
func normGroups(x, dy, w, b []float64, eps float64, groups int, group, channel func(n int) int) (ref normRef, variance []float64) {
	count := make([]float64, groups)
	ref.mean, ref.rstd, variance = make([]float64, groups), make([]float64, groups), make([]float64, groups)
	for n, v := range x {
		ref.mean[group(n)] += v
		count[group(n)]++
	}
	for g := range ref.mean {
		ref.mean[g] /= count[g]
	}
	for n, v := range x {
		d := v - ref.mean[group(n)]
		variance[group(n)] += d * d
	}
	for g := range variance {
		ref.rstd[g] = 1 / math.Sqrt(variance[g]/count[g]+eps)
		variance[g] /= count[g] - 1
	}
	a, c := make([]float64, groups), make([]float64, groups)
	ref.dw, ref.db = make([]float64, len(w)), make([]float64, len(w))
	y, dx := make([]float64, len(x)), make([]float64, len(x))
	hat := func(n int) float64 { return (x[n] - ref.mean[group(n)]) * ref.rstd[group(n)] }
	for n := range x {
		g, ch := group(n), channel(n)
		y[n] = hat(n)*w[ch] + b[ch]
		a[g] += dy[n] * w[ch] / count[g]
		c[g] += dy[n] * w[ch] * hat(n) / count[g]
		ref.dw[ch] += dy[n] * hat(n)
		ref.db[ch] += dy[n]
	}
	for n := range x {
		dx[n] = ref.rstd[group(n)] * (dy[n]*w[channel(n)] - a[group(n)] - hat(n)*c[group(n)])
	}
	ref.y, ref.dx = [][]float64{y}, [][]float64{dx}
	return ref, variance
}

// affineOf returns weight and bias and their values, ones and zeros if they are absent.
func affineOf(h *host, rng *rand.Rand, dt dtype.DType, channels int, present bool) (w, b Operand, ws, bs []float64) {
	if present {
		w, b = h.normal(rng, dt, channels), h.normal(rng, dt, channels)
		return w, b, h.read(w), h.read(b)
	}
	ws, bs = make([]float64, channels), make([]float64, channels)
	for i := range ws {
		ws[i] = 1
	}
	return w, b, ws, bs
}

func TestBatchNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	const eps = 1e-5
	for _, shape := range [][]int{{20, 6}, {4, 5, 33}, {3, 4, 5, 6}, {64, 8, 4, 4}} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.Float16, dtype.Float64} {
			for _, affine := range []bool{true, false} {
				h := newHost(t)
				st, c := opmath(dt), shape[1]
				x, dy, y, dx := h.normal(rng, dt, shape...), h.normal(rng, dt, shape...), h.empty(dt, shape...), h.empty(dt, shape...)
				if len(shape) == 4 { // channels last
					x = permuted(h.normal(rng, dt, shape[0], shape[2], shape[3], shape[1]), 0, 3, 1, 2)
				}
				w, b, ws, bs := affineOf(h, rng, dt, c, affine)
				dw, db := h.empty(st, c), h.empty(st, c)
				mean, rstd, variance := h.empty(st, c), h.empty(st, c), h.empty(st, c)
				places := 1
				for _, s := range shape[2:] {
					places *= s
				}
				channel := func(n int) int { return n / places % c }
				ref, unbiased := normGroups(h.read(x), h.read(dy), ws, bs, eps, c, channel, channel)
				check(t, BatchNormStats(h, dt, mean, rstd, variance, x, eps))
				check(t, BatchNorm(h, dt, y, x, mean, rstd, w, b))
				check(t, BatchNormSums(h, dt, dw, db, dy, x, mean, rstd))
				check(t, BatchNormGrad(h, dt, dx, dy, x, mean, rstd, w, dw, db, 1/float64(x.Numel()/c)))
				one := func(what string, got Operand, want []float64, tol float64) {
					t.Helper()
					compareRows(t, "batch norm "+what, [][]float64{h.read(got)}, [][]float64{want}, dt, tol)
				}
				one("mean", mean, ref.mean, 1e-5)
				one("rstd", rstd, ref.rstd, 1e-5)
				one("variance", variance, unbiased, 1e-5)
				one("y", y, ref.y[0], 1e-4)
				one("dx", dx, ref.dx[0], 1e-4)
				one("dweight", dw, ref.dw, 2e-3)
				one("dbias", db, ref.db, 2e-3)
				rm, rv := h.of(st, make([]float64, c), c), h.of(st, ref.mean, c)
				check(t, BatchNormUpdate(h, rm, rv, mean, variance, 0.25))
				want := make([]float64, c)
				for i := range want {
					want[i] = 0.25 * ref.mean[i]
				}
				one("running mean", rm, want, 1e-5)
				for i := range want {
					want[i] = 0.75*ref.mean[i] + 0.25*unbiased[i]
				}
				one("running variance", rv, want, 1e-5)
				check(t, BatchNormInference(h, dt, y, x, mean, variance, w, b, eps))
				xs, got := h.read(x), h.read(y)
				for n, v := range got {
					i := channel(n)
					if want := (xs[n]-ref.mean[i])/math.Sqrt(unbiased[i]+eps)*ws[i] + bs[i]; !close(v, want, 1e-2) {
						t.Fatalf("inference %v: element %d is %v, want %v", dt, n, v, want)
					}
				}
			}
		}
	}
}

// groupNorm normalises x, a dense array of batch × channels × places elements, over each of groups groups of adjacent channels.
func groupNorm(is Issuer, compute dtype.DType, batch, channels, places, groups int, y, mean, rstd, x, weight, bias Operand,
	eps float64) error {
	var g grouped
	if err := g.init(batch, channels, places, groups); err != nil {
		return err
	}
	xs, m, r := g.full(x), g.perGroup(mean), g.perGroup(rstd)
	one := [4]int{batch, groups, 1, 1}
	m.Shape, r.Shape = one[:], one[:]
	if err := GroupNormStats(is, compute, m, r, xs, eps); err != nil {
		return err
	}
	return Pointwise(is, Normalize, compute, AffineScalars(nil, weight, bias), []Operand{g.full(y)},
		[]Operand{xs, g.perGroup(mean), g.perGroup(rstd), g.perChannel(weight), g.perChannel(bias)})
}

func TestGroupNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	const eps = 1e-5
	for _, s := range [][4]int{{2, 6, 5, 3}, {3, 8, 64, 2}, {1, 4, 1, 1}, {5, 6, 7, 6}} {
		batch, channels, places, groups := s[0], s[1], s[2], s[3]
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			for kind := range 4 {
				h, affine, last := newHost(t), kind%2 == 0, kind >= 2
				// seen is the array in the view of the kernels, with its channels last or not.
				seen := func(o Operand) Operand {
					if last {
						o.Shape = []int{batch, groups, channels / groups, places}
						o.Stride = []int{channels * places, channels / groups, 1, channels}
					}
					return o
				}
				full := func() Operand { return seen(h.normal(rng, dt, batch, channels, places)) }
				x, dy, y, dx := full(), full(), full(), full()
				mean, rstd := h.empty(dtype.Float32, batch, groups), h.empty(dtype.Float32, batch, groups)
				w, b, ws, bs := affineOf(h, rng, dt, channels, affine)
				channel := func(n int) int { return n / places % channels }
				ref, _ := normGroups(h.read(x), h.read(dy), ws, bs, eps, batch*groups, func(n int) int {
					return n/(places*channels)*groups + channel(n)/(channels/groups)
				}, channel)
				check(t, groupNorm(h, dt, batch, channels, places, groups, y, mean, rstd, x, w, b, eps))
				dw, db := h.empty(dt, channels), h.empty(dt, channels)
				check(t, GroupNormBackward(h, dt, batch, channels, places, groups, dx, dw, db, dy, x, mean, rstd, w))
				for what, c := range map[string]struct {
					got  Operand
					want []float64
				}{"y": {y, ref.y[0]}, "mean": {mean, ref.mean}, "rstd": {rstd, ref.rstd}, "dx": {dx, ref.dx[0]}, "dweight": {dw, ref.dw},
					"dbias": {db, ref.db}} {
					compareRows(t, "group norm "+what, [][]float64{h.read(c.got)}, [][]float64{c.want}, dt, 1e-3)
				}
				check(t, GroupNormBackward(h, dt, batch, channels, places, groups, Operand{}, dw, Operand{}, dy, x, mean, rstd, w))
				check(t, GroupNormBackward(h, dt, batch, channels, places, groups, Operand{}, Operand{}, db, dy, x, mean, rstd, w))
				compareRows(t, "group norm dweight alone", [][]float64{h.read(dw)}, [][]float64{ref.dw}, dt, 1e-3)
				compareRows(t, "group norm dbias alone", [][]float64{h.read(db)}, [][]float64{ref.db}, dt, 1e-3)
			}
		}
	}
}

func TestNormErrorsAndAllocations(t *testing.T) {
	h := newHost(t)
	x := h.empty(dtype.Float32, 4)
	if BatchNormStats(h, dtype.Float32, x, x, x, x, 1) == nil || BatchNorm(h, dtype.Float32, x, x, x, x, x, x) == nil ||
		BatchNormInference(h, dtype.Float32, x, x, x, x, x, x, 1) == nil || BatchNormSums(h, dtype.Float32, x, x, x, x,
		x, x) == nil || BatchNormGrad(h, dtype.Float32, x, x, x, x, x, x, x, x, 1) == nil {
		t.Error("batch norm takes a vector")
	}
	if GroupNormBackward(h, dtype.Float32, 1, 4, 1, 0, x, x, x, x, x, x, x, x) == nil {
		t.Error("group norm takes groups that do not divide the channels")
	}
	p := newPlanner()
	a, c := at(4096, dtype.Float32, 8, 16, 100), at(4096, dtype.Float32, 16)
	run := func() {
		check(t, BatchNormStats(p, dtype.Float32, c, c, c, a, 1e-5))
		check(t, BatchNorm(p, dtype.Float32, a, a, c, c, c, Operand{}))
		check(t, BatchNormSums(p, dtype.Float32, c, c, a, a, c, c))
		check(t, BatchNormGrad(p, dtype.Float32, a, a, a, c, c, Operand{}, c, c, 1.0/800))
		check(t, groupNorm(p, dtype.Float32, 8, 16, 100, 4, a, c, c, a, c, c, 1e-5))
		check(t, GroupNormBackward(p, dtype.Float32, 8, 16, 100, 4, a, c, c, a, a, c, c, c))
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestBatchNormVectors: vectors whose elements lie apart, each at a distance of its own, give the bits of dense ones.
func TestBatchNormVectors(t *testing.T) {
	const channels, eps, dt = 3, 1e-5, dtype.Float32
	var results [2][][]float64
	for way := range results {
		rng := rand.New(rand.NewPCG(33, 34))
		h, step := newHost(t), 1
		vector := func() Operand {
			step += way
			vs := make([]float64, channels*step)
			for i := range channels {
				vs[i*step] = 0.5 + rng.Float64()
			}
			o := h.of(dt, vs, len(vs))
			o.Shape, o.Stride = []int{channels}, []int{step}
			return o
		}
		x, dy := h.normal(rng, dt, 4, channels, 5), h.normal(rng, dt, 4, channels, 5)
		y, yi, dx, dw, db := h.empty(dt, 4, channels, 5), h.empty(dt, 4, channels, 5), h.empty(dt, 4, channels, 5),
			h.empty(dt, channels), h.empty(dt, channels)
		mean, second, w, b, weighted, plain := vector(), vector(), vector(), vector(), vector(), vector()
		check(t, BatchNorm(h, dt, y, x, mean, second, w, b))
		check(t, BatchNormInference(h, dt, yi, x, mean, second, w, b, eps))
		check(t, BatchNormSums(h, dt, dw, db, dy, x, mean, second))
		check(t, BatchNormGrad(h, dt, dx, dy, x, mean, second, w, weighted, plain, 0.05))
		for _, o := range []Operand{y, yi, dw, db, dx} {
			results[way] = append(results[way], h.read(o))
		}
	}
	for i, got := range results[1] {
		if !slices.Equal(got, results[0][i]) {
			t.Errorf("result %d is %v; with dense vectors it is %v", i, got, results[0][i])
		}
	}
}

// TestBatchNormGather compares statistics gathered from parts with those of the whole.
func TestBatchNormGather(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const parts, channels, eps = 5, 3, 1e-3
	for dt, tol := range map[dtype.DType]float64{dtype.Float32: 1e-5, dtype.Float64: 1e-13} {
		h := newHost(t)
		counts := []float64{2, 7, 1, 30, 4}
		means, rstds := h.empty(dt, parts, channels), h.empty(dt, parts, channels)
		whole := make([][]float64, channels)
		moments := func(v []float64) (mean, squares float64) {
			mean = sumOf(v, func(v float64) float64 { return v }) / float64(len(v))
			return mean, sumOf(v, func(v float64) float64 { return (v - mean) * (v - mean) })
		}
		var ms, rs [parts * channels]float64
		for w, n := range counts {
			for c := range channels {
				part := make([]float64, int(n))
				for i := range part {
					part[i] = rng.NormFloat64() + float64(c*w)
				}
				m, q := moments(part)
				ms[w*channels+c], rs[w*channels+c] = m, 1/math.Sqrt(q/n+eps)
				whole[c] = append(whole[c], part...)
			}
		}
		h.write(means, func(i int) complex128 { return complex(ms[i], 0) })
		h.write(rstds, func(i int) complex128 { return complex(rs[i], 0) })
		count := h.of(dt, counts, parts)
		count.Shape, count.Stride = []int{parts, channels}, []int{1, 0}
		mean, rstd, variance := h.empty(dt, channels), h.empty(dt, channels), h.empty(dt, channels)
		check(t, BatchNormGather(h, dt, mean, rstd, variance, means, rstds, count, eps))
		for c := range channels {
			m, q := moments(whole[c])
			n := float64(len(whole[c]))
			for what, v := range map[string][2]float64{"mean": {h.read(mean)[c], m},
				"deviation": {h.read(rstd)[c], 1 / math.Sqrt(q/n+eps)}, "variance": {h.read(variance)[c], q / (n - 1)}} {
				if !close(v[0], v[1], tol) {
					t.Errorf("%v: the %s of channel %d is %v, want %v", dt, what, c, v[0], v[1])
				}
			}
		}
	}
}

// TestBatchNormStatsAreExact has channels with a large mean, or whose first element is an outlier, in many parts.
func TestBatchNormStatsAreExact(t *testing.T) {
	const rows, channels, eps = 40000, 8, 1e-5
	h := newHost(t)
	h.limits.Multiprocessors = 16
	rng := rand.New(rand.NewPCG(5, 5))
	vs := make([]float64, rows*channels)
	for i := range vs {
		v := rng.NormFloat64()
		switch c := i % channels; {
		case c < 3:
			v += 1000
		case c == 3 && i < channels:
			v = 1e4
		case c == 4:
			v = 7
		case c == 5 && i > 20000:
			v = 3 + v/100
		}
		vs[i] = float64(float32(v))
	}
	x := permuted(h.of(dtype.Float32, vs, 1, rows, 1, channels), 0, 3, 1, 2)
	f := func() Operand { return h.empty(dtype.Float32, channels) }
	mean, rstd, variance := f(), f(), f()
	check(t, BatchNormStats(h, dtype.Float32, mean, rstd, variance, x, eps))
	ref, want := normGroups(vs, vs, make([]float64, channels), make([]float64, channels), eps, channels,
		func(n int) int { return n % channels }, func(n int) int { return n % channels })
	m, r, v := h.read(mean), h.read(rstd), h.read(variance)
	for c := range channels {
		off, most := math.Abs(m[c]-ref.mean[c]), 1e-6*(math.Abs(ref.mean[c])+math.Sqrt(want[c]))
		if off > most || math.Abs(r[c]/ref.rstd[c]-1) > 1e-5 || math.Abs(v[c]-want[c]) > 1e-5*want[c] {
			t.Errorf("channel %d: mean %v, rstd %v, variance %v; want %v, %v, %v", c, m[c], r[c], v[c], ref.mean[c], ref.rstd[c], want[c])
		}
	}
	if s := &h.l.Spec.Reduce; s.Stage != reduceFinal || h.launches != 2 {
		t.Errorf("%d launches, the last in stage %d", h.launches, s.Stage)
	}
	vs[5*channels+2] = math.NaN()
	x = permuted(h.of(dtype.Float32, vs, 1, rows, 1, channels), 0, 3, 1, 2)
	check(t, BatchNormStats(h, dtype.Float32, mean, rstd, variance, x, eps))
	for c, v := range h.read(variance) {
		if math.IsNaN(v) != (c == 2) {
			t.Errorf("the variance of channel %d is %v with a NaN in channel 2", c, v)
		}
	}
}

// TestBatchNormSumsMakeTheirInput: the kernel of the sums of a batch norm's gradient can make the incoming gradient, with the norm's result
// for the mask of the activation, and store it; the bits are those of separate kernels.
func TestBatchNormSumsMakeTheirInput(t *testing.T) {
	for _, shape := range [][]int{{4, 24, 9, 8}, {3, 5, 7, 3}, {70, 33}, {64, 40, 12, 12}} {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float32, dtype.Float64} {
			for bits := range 8 {
				last, stored, many := bits&1 != 0, bits&2 != 0, bits&4 != 0
				t.Run(fmt.Sprint(shape, dt, last, stored, many), func(t *testing.T) {
					h, rng := newHost(t), rand.New(rand.NewPCG(7, 8))
					if many {
						h.limits.Multiprocessors = 132
					}
					full := func(made func(shape ...int) Operand) Operand {
						if s := shape; last && len(s) == 4 {
							return permuted(made(s[0], s[2], s[3], s[1]), 0, 3, 1, 2)
						}
						return made(shape...)
					}
					normal := func(shape ...int) Operand { return h.normal(rng, dt, shape...) }
					empty := func(shape ...int) Operand { return h.empty(dt, shape...) }
					t32, c := opmath(dt), shape[1]
					dy, x, y, g, again := full(normal), full(normal), full(empty), full(empty), full(empty)
					mean, rstd, weight, bias := h.normal(rng, t32, c), h.normal(rng, t32, c), h.normal(rng, t32, c), h.normal(rng, t32, c)
					sums, got := [2]Operand{h.empty(t32, c), h.empty(t32, c)}, [2]Operand{h.empty(t32, c), h.empty(t32, c)}
					zero := []Scalar{FloatScalar(0)}
					check(t, BatchNorm(h, dt, y, x, mean, rstd, weight, bias))
					check(t, Pointwise(h, ReLU, dt, nil, []Operand{y}, []Operand{y}))
					check(t, Pointwise(h, ThresholdBackward, dt, zero, []Operand{g}, []Operand{dy, y}))
					check(t, BatchNormSums(h, dt, sums[0], sums[1], g, x, mean, rstd))

					step := func(op *PointOp, ins ...int) FusedStep {
						s := FusedStep{Op: op, Compute: dt, Outs: []FusedOut{{DType: dt}}}
						for _, v := range ins {
							s.Ins = append(s.Ins, FusedIn{Value: v})
						}
						return s
					}
					outs, from := []int{8, 1, 2, 3}, []int{0, 1, 2, 3, 4, 5}
					if stored {
						outs = append(outs, 8)
					}
					before := FuseWork([]dtype.DType{dt, dt, t32, t32, t32, t32},
						[]FusedStep{step(Normalize, 1, 2, 3, 4, 5), step(ReLU, 6), step(ThresholdBackward, 0, 7)}, outs)
					var p [4]perChannel
					ins := []Operand{dy, x, p[0].see(mean, x), p[1].see(rstd, x), p[2].see(weight, x), p[3].see(bias, x)}
					dims := allButChannels(len(shape))
					call := newReduceCall(normAffineGrad, dt, nil, got[:], []Operand{g, x, ins[2], ins[3]}, dims[:len(shape)])
					if stored {
						ins = append(ins, again)
					}
					r := FuseReduce([]ReduceRound{{Before: PointWork{Op: before, From: from}, Calls: []*ReduceCall{call},
						Results: []uint{3}}}, PointWork{}, ins, &h.limits)
					if r == nil {
						t.Fatal("it cannot be one kernel")
					}
					check(t, r.Run(h, zero, got[:], ins))
					for i := range sums {
						if a, b := h.read(sums[i]), h.read(got[i]); !slices.Equal(a, b) {
							t.Errorf("sum %d is %v, want %v", i, b, a)
						}
					}
					if stored && !slices.Equal(h.read(again), h.read(g)) {
						t.Error("another gradient is stored")
					}
				})
			}
		}
	}
}
