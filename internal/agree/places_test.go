package agree

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// indexing tries gather, scatter and the scatters that add and multiply, of every type.
func indexing(p *pair) {
	type shape struct {
		name        string
		rows, from  int // rows and columns addressed
		count       int // indexes per row
		columns     bool
		index, data view
		index32     int
	}
	shapes := []shape{
		{name: "rows", rows: 40, from: 57, count: 33},
		{name: "columns", rows: 40, from: 57, count: 33, columns: true},
		{name: "turned", rows: 21, from: 30, count: 30, index: turned, data: turned},
		{name: "stepped", rows: 5, from: 700, count: 300, index: stepped, data: backward},
		{name: "long", rows: 2, from: 900, count: 700},
		{name: "alike", rows: 33, from: 300, count: 200, index: outerRepeated},
		{name: "shared", rows: 48, from: 30, count: 150, columns: true, index: innerRepeated},
		{name: "shared_odd", rows: 19, from: 3, count: 150, columns: true, index: innerRepeated, data: padded},
		{name: "shared_few", rows: 3, from: 2, count: 300, columns: true, index: innerRepeated},
		{name: "crowded", rows: 3, from: 2, count: 500},
		{name: "far", rows: 40, from: 57, count: 33, index32: 100},
		{name: "nothing", rows: 4, from: 9, count: 0},
	}
	for _, t := range everyType {
		for _, it := range []dtype.DType{dtype.Int64, dtype.Int32} {
			for _, s := range shapes {
				// Elements along a row are 1 apart, those along a column as far apart as a row is long.
				over, whole, dim, step := []int{s.rows, s.count}, []int{s.rows, s.from}, 1, 1
				if s.columns {
					over, whole, dim, step = []int{s.count, s.rows}, []int{s.from, s.rows}, 0, s.rows
				}
				indexed := func(o kernels.Operand) kernels.Indexed {
					o.Stride = append([]int(nil), o.Stride...)
					o.Stride[dim] = 0
					return kernels.Indexed{Operand: o, Step: step, Size: s.from}
				}
				name := fmt.Sprintf("%v %v %s", t, it, s.name)
				any := in(it, s.index, below(s.from), over...)
				p.try(trial{name: "index gather " + name, index32: s.index32, arrays: []*array{out(t, s.data, over...), any,
					in(t, dense, anything, whole...)},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.Gather(is, o[0], o[1], indexed(o[2]))
					}})
				if once := in(it, dense, distinct(s.from, s.count), over...); !s.columns && s.count > 0 && s.count <= s.from {
					p.try(trial{name: "index scatter " + name, index32: s.index32, arrays: []*array{out(t, dense, whole...), once,
						in(t, s.data, anything, over...)},
						run: func(is kernels.Issuer, o []kernels.Operand) error {
							return kernels.Scatter(is, indexed(o[0]), o[1], o[2])
						}})
				}
				for name, f := range map[string]foldFunc{
					"index scatter_add " + name: kernels.ScatterAdd, "index scatter_multiply " + name: kernels.ScatterMultiply} {
					p.try(trial{name: name, index32: s.index32, arrays: []*array{out(t, dense, whole...), any,
						in(t, s.data, spotted, over...)},
						run: func(is kernels.Issuer, o []kernels.Operand) error {
							return f(is, indexed(o[0]), o[1], o[2], dim)
						}})
				}
			}
		}
	}
}

type foldFunc = func(kernels.Issuer, kernels.Indexed, kernels.Operand, kernels.Operand, int) error

// sorting tries sorts with several blocks and digits and folds of several lists, through the scatter that adds.
func sorting(p *pair) {
	for _, t := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Complex64, dtype.Int8} {
		for _, from := range []int{1, 200, 60_000, 1_200_000} {
			for _, index32 := range []int{0, 1000} {
				p.try(trial{name: fmt.Sprintf("sort %v %d %d", t, from, index32), index32: index32,
					arrays: []*array{out(t, dense, from), in(dtype.Int64, dense, below(from), 50_000), in(t, dense, spotted, 50_000)},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						dst := kernels.Indexed{Operand: o[0], Step: 1, Size: from}
						dst.Stride = []int{0}
						return kernels.ScatterAdd(is, dst, o[1], o[2], 0)
					}})
			}
		}
		for _, from := range []int{1, 300} {
			const width = 16
			p.try(trial{name: fmt.Sprintf("sort rows %v %d", t, from),
				arrays: []*array{out(t, dense, from, width), in(dtype.Int64, innerRepeated, below(from), 9000, width),
					in(t, dense, spotted, 9000, width)},
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					dst := kernels.Indexed{Operand: o[0], Step: width, Size: from}
					dst.Stride = []int{0, 1}
					return kernels.ScatterAdd(is, dst, o[1], o[2], 0)
				}})
		}
	}
}

// turning tries copies from one order of dimensions to another, for every element size.
func turning(p *pair) {
	for _, t := range everyType {
		for _, shape := range [][]int{{64, 96}, {35, 47}, {76, 112}, {68, 81}, {67, 80}, {33, 5, 18}, {36, 3, 48}, {9, 4, 40}, {40, 4, 9}} {
			for _, v := range []view{dense, padded} {
				for _, index32 := range []int{0, 1000} {
					p.try(trial{name: fmt.Sprintf("turn %v %v %d %d", t, shape, v, index32), index32: index32,
						arrays: []*array{out(t, v, shape...), in(t, turned, anything, shape...)},
						run: func(is kernels.Issuer, o []kernels.Operand) error {
							return kernels.Pointwise(is, kernels.Copy, t, nil, o[:1], o[1:])
						}})
				}
			}
		}
	}
}

// pooling tries the poolings and their gradients.
func pooling(p *pair) {
	type window struct {
		name string
		pool kernels.Pool
		// n and c are the batch and the channels; 0 means 3 and 4.
		n, c, h, w int
		v          view
		far        int
	}
	windows := []window{
		{name: "2x2", pool: kernels.Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, h: 12, w: 14},
		{name: "3x3", pool: kernels.Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1,
			CountPad: true}, h: 11, w: 9, v: padded},
		{name: "dilated", pool: kernels.Pool{KH: 3, KW: 2, StrideH: 1, StrideW: 2, PadH: 1, PadW: 1, DilationH: 2, DilationW: 3}, h: 13,
			w: 12, v: turned},
		{name: "divided", pool: kernels.Pool{KH: 3, KW: 2, StrideH: 3, StrideW: 2, DilationH: 1, DilationW: 1, Divisor: 5}, h: 9, w: 8},
		{name: "far", pool: kernels.Pool{KH: 2, KW: 3, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1}, h: 9, w: 8, far: 50},
		{name: "channels", pool: kernels.Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1}, n: 5,
			c: 256, h: 32, w: 32, v: channelsLast},
		{name: "channels 2x2", pool: kernels.Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, n: 5, c: 256, h: 32,
			w: 32, v: channelsLast},
		{name: "rows", pool: kernels.Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, n: 5, c: 112, h: 32, w: 32},
		{name: "stem", pool: kernels.Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1}, h: 12,
			w: 10},
		{name: "odd", pool: kernels.Pool{KH: 3, KW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1}, n: 2, c: 5,
			h: 11, w: 13, v: channelsLast},
		{name: "apart", pool: kernels.Pool{KH: 2, KW: 2, StrideH: 3, StrideW: 4, PadW: 1, DilationH: 1, DilationW: 1, CountPad: true},
			h: 11, w: 12},
		{name: "large", pool: kernels.Pool{KH: 5, KW: 5, StrideH: 2, StrideW: 2, PadH: 2, PadW: 2, DilationH: 1, DilationW: 1}, h: 11,
			w: 12},
	}
	size := func(n, k, s, pad, d int) int { return (n+2*pad-d*(k-1)-1)/s + 1 }
	for _, t := range append(rowTypes, dtype.Int64, dtype.Int8, dtype.Uint8) {
		for _, c := range windows {
			q := c.pool
			oh, ow := size(c.h, q.KH, q.StrideH, q.PadH, q.DilationH), size(c.w, q.KW, q.StrideW, q.PadW, q.DilationW)
			n, channels, o := 3, 4, dense
			if c.n > 0 {
				n, channels, o = c.n, c.c, c.v
			}
			x := in(t, c.v, spotted, n, channels, c.h, c.w)
			name := fmt.Sprintf("%v %s", t, c.name)
			each := func(op string, arrays []*array, f func(is kernels.Issuer, o []kernels.Operand) error) {
				p.try(trial{name: "pool " + op + " " + name, arrays: arrays, index32: c.far, run: f, optional: !t.IsFloat()})
			}
			each("max", []*array{out(t, o, n, channels, oh, ow), out(dtype.Int64, o, n, channels, oh, ow), x},
				func(is kernels.Issuer, o []kernels.Operand) error { return kernels.MaxPool(is, &q, o[0], o[1], o[2]) })
			each("max_backward", []*array{out(t, c.v, n, channels, c.h, c.w), in(t, o, mild, n, channels, oh, ow),
				in(dtype.Int64, o, below(c.h*c.w), n, channels, oh, ow)},
				func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.MaxPoolBackward(is, &q, o[0], o[1], o[2])
				})
			each("adaptive", []*array{out(t, o, n, channels, 5, 3), x}, func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.AdaptiveAvgPool(is, o[0], o[1])
			})
			each("adaptive_backward", []*array{out(t, c.v, n, channels, c.h, c.w), in(t, o, mild, n, channels, 5, 3)},
				func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.AdaptiveAvgPoolBackward(is, o[0], o[1])
				})
			if q.DilationH > 1 {
				continue
			}
			each("avg", []*array{out(t, o, n, channels, oh, ow), x}, func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.AvgPool(is, &q, o[0], o[1])
			})
			each("avg_backward", []*array{out(t, c.v, n, channels, c.h, c.w), in(t, o, mild, n, channels, oh, ow)},
				func(is kernels.Issuer, o []kernels.Operand) error { return kernels.AvgPoolBackward(is, &q, o[0], o[1]) })
		}
	}
}

// likelihoods tries the losses over classes.
func likelihoods(p *pair) {
	for _, t := range rowTypes {
		for _, s := range [][3]int{{50, 10, 1}, {7, 5, 33}, {20000, 3, 1}} {
			for bits := range 4 {
				if s[0] > 10_000 && bits%3 != 0 {
					continue
				}
				n, c, inner, w := s[0], s[1], s[2], wide(t)
				name := fmt.Sprintf("%v %v %d", t, s, bits)
				arrays := []*array{out(w, dense, n, inner), out(w, dense), in(t, dense, mild, n, c, inner),
					optionally(bits&1 != 0, in(w, dense, mild, n, inner)),
					in(dtype.Int64, dense, below(c), n, inner), optionally(bits&2 != 0, in(w, dense, positive, c))}
				loss := func(o []kernels.Operand) *kernels.NLL {
					return &kernels.NLL{N: n, C: c, S: inner, Ignore: 1, X: o[2], LSE: o[3], Target: o[4], Weight: o[5]}
				}
				p.try(trial{name: "nll each " + name, arrays: arrays, run: func(is kernels.Issuer, o []kernels.Operand) error {
					return loss(o).Each(is, o[0])
				}})
				arrays = append([]*array{out(w, dense)}, arrays[1:]...)
				for _, mean := range []bool{false, true} {
					p.try(trial{name: fmt.Sprintf("nll sum %s %v", name, mean), arrays: arrays,
						run: func(is kernels.Issuer, o []kernels.Operand) error { return loss(o).Sum(is, mean, o[0], o[1]) }})
				}
			}
		}
	}
}

// entropies tries the cross-entropy of rows and its gradient.
func entropies(p *pair) {
	for _, t := range rowTypes {
		for _, s := range rowShapes {
			if len(s.shape) != 2 || s.dim != 1 || s.shape[0] == 0 {
				continue
			}
			for bits := range 4 {
				n, c, w := s.shape[0], s.shape[1], wide(t)
				name := fmt.Sprintf("%v %s %d", t, s.name, bits)
				weighted, each, losses := bits&1 != 0, bits&2 != 0, []int(nil)
				if each {
					losses = []int{n}
				}
				loss := func(x, lse, target, weight kernels.Operand) *kernels.NLL {
					return &kernels.NLL{N: n, C: c, S: 1, Ignore: 1, X: x, LSE: lse, Target: target, Weight: weight}
				}
				x, target := in(t, s.v, mild, n, c), in(dtype.Int64, dense, below(c), n)
				arrays := []*array{out(w, dense, losses...), out(w, dense), out(w, dense, n), x, target,
					optionally(weighted, in(t, dense, positive, c))}
				p.try(trial{name: "entropy " + name, index32: s.index32, arrays: arrays,
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						l := loss(o[3], o[2], o[4], o[5])
						if each {
							return l.CrossEntropyEach(is, o[0])
						}
						return l.CrossEntropySum(is, weighted, o[0], o[1])
					}})
				arrays = []*array{out(t, s.v, n, c), in(t, dense, mild, losses...), x, in(w, dense, mild, n), target,
					optionally(weighted, in(t, dense, positive, n)), optionally(!each, in(t, dense, positive))}
				p.try(trial{name: "entropy gradient " + name, index32: s.index32, arrays: arrays,
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return loss(o[2], o[3], o[4], kernels.Operand{}).CrossEntropyGrad(is, o[0], o[1], each, o[5], o[6])
					}})
			}
		}
	}
}

// distribution is a RandomOp with its arguments and the types that it can produce.
type distribution struct {
	name    string
	op      *kernels.RandomOp
	scalars []kernels.Scalar
	ints    bool
}

func numbersOf(vs ...float64) (s []kernels.Scalar) {
	for _, v := range vs {
		s = append(s, kernels.FloatScalar(v))
	}
	return s
}

var distributions = []distribution{
	{"uniform", kernels.RandomUniform, numbersOf(-1, 3, 2), false},
	{"normal", kernels.RandomNormal, numbersOf(0.5, 2), false},
	{"log_normal", kernels.RandomLogNormal, numbersOf(0.5, 0.75), false},
	{"bernoulli", kernels.RandomBernoulli, numbersOf(0.3), false},
	{"exponential", kernels.RandomExponential, numbersOf(1.5), false},
	{"cauchy", kernels.RandomCauchy, numbersOf(0.5, 2), false},
	{"geometric", kernels.RandomGeometric, numbersOf(0.2), false},
	{"int32", kernels.RandomInt32, []kernels.Scalar{{I: 1000}, {I: -5}}, true},
	{"int64", kernels.RandomInt64, []kernels.Scalar{{I: 1 << 40}, {I: -5}}, true},
}

// randoms tries the distributions, dropout and Bernoulli numbers, with the generator's state passed or read from memory.
func randoms(p *pair) {
	type shape struct {
		name    string
		shape   []int
		v       view
		index32 int
		inside  bool
	}
	shapes := []shape{{name: "run", shape: []int{3001}}, {name: "even", shape: []int{2048}, inside: true},
		{name: "turned", shape: []int{20, 30}, v: turned},
		{name: "stepped", shape: []int{333}, v: stepped}, {name: "more_than_threads", shape: []int{300_007}},
		{name: "several_steps", shape: []int{300_008}}, {name: "far", shape: []int{3001}, index32: 500, inside: true}}
	state := func() []*array {
		return []*array{in(dtype.Int64, dense, exactly(0x123456789abcdef), 1), in(dtype.Int64, dense, exactly(64), 1)}
	}
	philox := func(inside bool, o []kernels.Operand) kernels.Philox {
		ph := kernels.Philox{Seed: 0xfedcba987654321, Offset: 12}
		if inside {
			ph.SeedPtr, ph.OffsetPtr = o[0].Ptr, o[1].Ptr
		}
		return ph
	}
	for _, s := range shapes {
		for _, d := range distributions {
			types := rowTypes
			if d.ints {
				types = []dtype.DType{dtype.Int64, dtype.Int32, dtype.Uint8, dtype.Float32, dtype.Bool}
			}
			if s.shape[0] > 100_000 {
				types = types[:1]
			}
			for _, t := range types {
				p.try(trial{name: fmt.Sprintf("random %s %v %s", d.name, t, s.name), arrays: append(state(), out(t, s.v, s.shape...)),
					index32: s.index32,
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.Random(is, d.op, d.scalars, o[2], philox(s.inside, o))
					}})
			}
		}
		for _, t := range rowTypes {
			x, y, mask := in(t, s.v, mild, s.shape...), out(t, s.v, s.shape...), out(dtype.Bool, s.v, s.shape...)
			p.try(trial{name: fmt.Sprintf("random dropout %v %s", t, s.name), arrays: append(state(), y, mask, x), index32: s.index32,
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.Dropout(is, t, 0.3, o[2], o[3], o[4], philox(s.inside, o))
				}})
			if t.Size() >= 4 {
				probability := in(t, s.v, probabilities, s.shape...)
				p.try(trial{name: fmt.Sprintf("random bernoulli_each %v %s", t, s.name), arrays: append(state(), y, probability),
					index32: s.index32,
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.Bernoulli(is, o[2], o[3], philox(s.inside, o))
					}})
			}
		}
	}
}

// multinomials tries draws from rows of one part and of several, and the positions of the greatest elements.
func multinomials(p *pair) {
	for _, size := range [][3]int{{1, 4, 300}, {7, 100, 33}, {2, 5000, 100}, {1, 70_001, 1000}, {65_537, 2, 1}} {
		rows, n, samples := size[0], size[1], size[2]
		for i, t := range rowTypes {
			if rows > 7 && i > 0 {
				break
			}
			shapes := func(from dtype.DType) []*array {
				return []*array{out(dtype.Int64, dense, rows, samples), in(from, dense, positive, rows, n),
					in(dtype.Int64, dense, exactly(0x123456789abcdef), 1), in(dtype.Int64, dense, exactly(64), 1)}
			}
			p.try(trial{name: fmt.Sprintf("multinomial draw %v %v", t, size), arrays: shapes(t),
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					ph := kernels.Philox{Seed: 0xfedcba987654321, Offset: 12}
					if i == 1 {
						ph.SeedPtr, ph.OffsetPtr = o[2].Ptr, o[3].Ptr
					}
					return (&kernels.Multinomial{Rows: rows, N: n, Samples: samples, P: o[1], Out: o[0]}).Draw(is, ph)
				}})
			if t.Size() >= 4 && samples <= n {
				p.try(trial{name: fmt.Sprintf("multinomial greatest %v %v", t, size), arrays: shapes(t),
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return (&kernels.Multinomial{Rows: rows, N: n, Samples: samples, P: o[1], Out: o[0]}).Greatest(is)
					}})
			}
		}
	}
}

// compactions tries the compactions with masks of every type, and the sort that finds equal elements.
func compactions(p *pair) {
	for _, t := range everyType {
		for _, v := range []view{dense, turned, stepped} {
			for _, index32 := range []int{0, 1000} {
				shape := []int{33, 5, 47}
				n := 33 * 5 * 47
				name := fmt.Sprintf("%v %v %d", t, v, index32)
				arrays := func(first *array) []*array {
					return []*array{first, in(t, v, spotted, shape...), in(t, dense, anything, shape...),
						out(dtype.Int64, dense, kernels.CompactStarts(n)), in(t, dense, anything, n)}
				}
				each := func(op string, first *array, f func(c *kernels.Compaction, is kernels.Issuer, o []kernels.Operand) error) {
					p.try(trial{name: "compact " + op + " " + name, arrays: arrays(first), index32: index32,
						run: func(is kernels.Issuer, o []kernels.Operand) error {
							c := &kernels.Compaction{Mask: o[1], Starts: o[3]}
							if err := c.Count(is); err != nil {
								return err
							}
							return f(c, is, o)
						}})
				}
				each("places", out(dtype.Int64, dense, n, 3), func(c *kernels.Compaction, is kernels.Issuer, o []kernels.Operand) error {
					return c.Places(is, o[0])
				})
				each("take", out(t, dense, n), func(c *kernels.Compaction, is kernels.Issuer, o []kernels.Operand) error {
					return c.Take(is, o[0], o[2])
				})
				each("spread", out(t, v, shape...), func(c *kernels.Compaction, is kernels.Issuer, o []kernels.Operand) error {
					return c.Spread(is, o[0], o[2], o[4])
				})
				if t.IsComplex() {
					continue
				}
				p.try(trial{name: "unique " + name, index32: index32, arrays: []*array{out(dtype.Int64, dense, 7000),
					out(dtype.Bool, dense, 7000), in(t, dense, spotted, 7000), out(dtype.Int64, dense, 7000)},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						if err := (&kernels.Unique{X: o[2], Order: o[0], Heads: o[1]}).Sort(is); err != nil {
							return err
						}
						c := kernels.Compaction{Mask: o[1]}
						ws, err := is.Workspace(8 * kernels.CompactStarts(7000))
						if err != nil {
							return err
						}
						c.Starts.Ptr = ws
						if err := c.Count(is); err != nil {
							return err
						}
						return c.Ranks(is, o[3], o[0])
					}})
			}
		}
	}
}

// flats tries flattening of index tuples, and indexes of repeated positions.
func flats(p *pair) {
	for _, t := range []dtype.DType{dtype.Int64, dtype.Int32} {
		for _, v := range []view{dense, stepped} {
			p.try(trial{name: fmt.Sprintf("repeat %v %v", t, v), arrays: []*array{out(dtype.Int64, dense, 9000),
				in(t, v, exactly(3), 3000), out(dtype.Int64, dense, 3000)},
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					if err := kernels.RunningSums(is, o[2], o[1]); err != nil {
						return err
					}
					return kernels.RepeatIndex(is, o[0], o[2])
				}})
		}
	}
	for _, v := range []view{dense, turned} {
		p.try(trial{name: fmt.Sprintf("flat %v", v), arrays: []*array{out(dtype.Int64, stepped, 4000),
			in(dtype.Int64, v, below(7), 3, 4000)},
			run: func(is kernels.Issuer, o []kernels.Operand) error {
				if err := kernels.FlatIndex(is, kernels.Operand{}, o[1], []int{7, 1 << 40, 9}); err != nil {
					return err
				}
				return kernels.FlatIndex(is, o[0], o[1], []int{7, 1 << 40, 9})
			}})
	}
}

// assertions tries assertions that hold, for every type.
func assertions(p *pair) {
	for _, t := range everyType {
		p.try(trial{name: fmt.Sprintf("assert %v", t), arrays: []*array{in(t, dense, exactly(1), 1)},
			run: func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.Assert(is, o[0], kernels.ClaimNonzero)
			}})
	}
}
