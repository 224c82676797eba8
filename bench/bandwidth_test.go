package bench

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
)

// large is the number of float32 in 4 GiB.
const large = 1 << 30

// timed returns the device time in seconds of single calls of f, measured by events around them; all are queued before the first is waited
// for.
func timed(t *testing.T, x *tenon.Exec, reps int, f func(x *tenon.Exec)) []float64 {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		x.Scope(f)
	}
	must(x.Synchronize())
	begin, end := make([]*cuda.Event, reps), make([]*cuda.Event, reps)
	for i := range reps {
		begin[i], end[i] = x.Device().NewEvent(cuda.EventOpt{Timing: true}), x.Device().NewEvent(cuda.EventOpt{Timing: true})
		must(begin[i].Record(x.Stream()))
		x.Scope(f)
		must(end[i].Record(x.Stream()))
	}
	must(x.Synchronize())
	out := make([]float64, reps)
	for i := range reps {
		d, err := begin[i].Elapsed(end[i])
		must(err)
		out[i] = d.Seconds()
		begin[i].Close()
		end[i].Close()
	}
	return out
}

// replayed returns the seconds of a graph of several calls of f, each in a scope of its own. f gets the number of the call.
func replayed(t *testing.T, x *tenon.Exec, calls int, f func(x *tenon.Exec, i int)) []float64 {
	t.Helper()
	x.Scope(func(x *tenon.Exec) { f(x, 0) })
	g, err := x.Capture(func(x *tenon.Exec) {
		for i := range calls {
			x.Scope(func(x *tenon.Exec) { f(x, i) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	return timed(t, x, 10, func(x *tenon.Exec) {
		if err := x.Replay(g); err != nil {
			t.Error(err)
		}
	})
}

func rate(seconds []float64, amount float64) []float64 {
	out := make([]float64, len(seconds))
	for i, s := range seconds {
		out[i] = amount / s / 1e12
	}
	return out
}

func TestBandwidth(t *testing.T) {
	x := onGPU(t).NoGrad()
	x.Scope(func(x *tenon.Exec) {
		a, b := x.Full([]int{large}, 1.5, tenon.Float32), x.Full([]int{large}, 0.25, tenon.Float32)
		dst := x.Empty([]int{large}, tenon.Float32)
		bytes := 4.0 * large
		s := timed(t, x, 10, func(x *tenon.Exec) { x.CopyInto(dst, a) })
		recordFigure("copy", "TB/s", rate(s, 2*bytes))
		for i := range s {
			s[i] *= 1e3
		}
		recordFigure("copy.time", "ms", s)
		recordFigure("add.large", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.AddInto(dst, a, b) }), 3*bytes))
		recordFigure("sum", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.Sum(a, nil) }), bytes))
		recordFigure("uniform", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.UniformInto(dst, 0, 1) }), bytes))
		recordFigure("normal", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.NormalInto(dst, 0, 1) }), bytes))
		chain := func(x *tenon.Exec) *tenon.Tensor {
			return x.SubS(x.Exp(x.MulS(x.ReLU(x.AddS(x.MulS(a, 1.5), 0.25)), -0.5)), 1)
		}
		milliseconds := func(f func(x *tenon.Exec)) []float64 {
			s := timed(t, x, 10, f)
			for i := range s {
				s[i] *= 1e3
			}
			return s
		}
		recordFigure("chain", "ms", milliseconds(func(x *tenon.Exec) { chain(x) }))
		recordFigure("chain.compiled", "ms", milliseconds(compiled(t, chain)))
		square := x.Transpose(x.View(a, large>>15, 1<<15), 0, 1)
		turned := x.View(dst, 1<<15, large>>15)
		recordFigure("turn", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.CopyInto(turned, square) }), 2*bytes))
		images := x.Ones([]int{64, 256, 56 * 56}, tenon.BFloat16)
		rows, last := x.Transpose(images, 1, 2), x.Empty([]int{64, 56 * 56, 256}, tenon.BFloat16)
		recordFigure("turn.half", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.CopyInto(last, rows) }), 2*2*64*256*56*56))
	})
}

func TestRows(t *testing.T) {
	x := onGPU(t).NoGrad()
	x.Scope(func(x *tenon.Exec) {
		const bytes = 4.0 * large
		a := x.View(x.Arange(large, tenon.Float32), large/1024, 1024)
		x.MulInto(a, a, x.Full(nil, 1e-9, tenon.Float32))
		w, b := x.Ones([]int{1024}, tenon.Float32), x.Zeros([]int{1024}, tenon.Float32)
		recordFigure("softmax", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.Softmax(a, 1) }), 2*bytes))
		recordFigure("layernorm", "TB/s", rate(timed(t, x, 10, func(x *tenon.Exec) { x.LayerNorm(a, w, b, []int{1024}) }), 2*bytes))
	})
}

// TestColumns measures sums over the rows of a matrix, as a bias's gradient is, each repeated in a graph.
func TestColumns(t *testing.T) {
	x := onGPU(t).NoGrad()
	const rows, calls, matrices = 8192, 24, 4 // whose matrices of 3072 columns do not fit into the cache
	for _, columns := range []int{768, 2304, 3072} {
		x.Scope(func(x *tenon.Exec) {
			all := x.RandN([]int{matrices, rows, columns}, tenon.BFloat16)
			s := replayed(t, x, calls, func(x *tenon.Exec, i int) { x.Sum(x.Select(all, 0, i%matrices), []int{0}) })
			recordFigure(fmt.Sprint("columns.", columns), "µs", microseconds(s, calls))
		})
	}
}

// TestPools measures gradients of poolings of a U-Net, in both memory formats, and the max pooling at the start of a ResNet, each repeated
// in a graph whose arrays do not fit into the cache together.
func TestPools(t *testing.T) {
	x := onGPU(t)
	const calls = 12
	pair, stem := tenon.MaxPoolOpt{}, tenon.MaxPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}
	maximum := func(size int, opt tenon.MaxPoolOpt) func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
		return func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.MaxPool2d(in, [2]int{size, size}, opt) }
	}
	mean := func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.AvgPool2d(in, [2]int{2, 2}) }
	for _, c := range []struct {
		name           string
		channels, side int
		dt             dtype.DType
		last           bool
		f              func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor
	}{
		{"max", 32, 128, tenon.Float32, true, maximum(2, pair)},
		{"max.first", 32, 128, tenon.Float32, false, maximum(2, pair)},
		{"avg", 64, 64, tenon.Float32, true, mean},
		{"avg.first", 64, 64, tenon.Float32, false, mean},
		{"stem", 64, 112, tenon.BFloat16, true, maximum(3, stem)},
	} {
		x.Scope(func(x *tenon.Exec) {
			random := func(side int) *tenon.Tensor {
				a := x.NoGrad().RandN([]int{64, c.channels, side, side}, c.dt)
				if c.last {
					a = x.NoGrad().ChannelsLast(a)
				}
				return a
			}
			in, grads := random(c.side).SetRequiresGrad(true), [2]*tenon.Tensor{random(c.side / 2), random(c.side / 2)}
			y := c.f(x, in)
			if c.name == "stem" {
				s := replayed(t, x.NoGrad(), calls, func(x *tenon.Exec, _ int) { c.f(x, in) })
				recordFigure("pool.stem", "µs", microseconds(s, calls))
			}
			s := replayed(t, x, calls, func(x *tenon.Exec, i int) {
				if _, err := x.Grad([]*tenon.Tensor{y}, []*tenon.Tensor{in}, tenon.GradOpt{Gradients: []*tenon.Tensor{grads[i%2]},
					RetainGraph: true}); err != nil {
					t.Error(err)
				}
			})
			recordFigure("pool."+c.name+".backward", "µs", microseconds(s, calls))
		})
	}
}

// microseconds returns the microseconds per call, for seconds of several calls each.
func microseconds(seconds []float64, calls int) []float64 {
	for i := range seconds {
		seconds[i] *= 1e6 / float64(calls)
	}
	return seconds
}

// TestIndexed measures adds by index: the gradient of an embedding, and single elements.
func TestIndexed(t *testing.T) {
	x := onGPU(t).NoGrad()
	milliseconds := func(s []float64) []float64 {
		for i := range s {
			s[i] *= 1e3
		}
		return s
	}
	x.Scope(func(x *tenon.Exec) {
		const words, width, tokens = 50257, 768, 1 << 15
		x.Device().Generator().SetSeed(1)
		index := x.RandInt(words, []int{tokens}, tenon.Int64)
		rows, part := x.Expand(x.Unsqueeze(index, 1), tokens, width), x.Ones([]int{tokens, width}, tenon.Float32)
		recordFigure("embedding.backward", "ms", milliseconds(timed(t, x, 10, func(x *tenon.Exec) {
			zeros := x.Zeros([]int{words, width}, tenon.Float32)
			x.ScatterAddInto(zeros, zeros, 0, rows, part)
		})))
		const places, count = 1 << 20, 1 << 24
		index, part = x.RandInt(places, []int{count}, tenon.Int64), x.Ones([]int{count}, tenon.Float32)
		sums := x.Zeros([]int{places}, tenon.Float32)
		scatter := milliseconds(timed(t, x, 10, func(x *tenon.Exec) { x.ScatterAddInto(sums, sums, 0, index, part) }))
		recordFigure("scatter.add", "ms", scatter)
		recordFigure("scatter.add.fixed", "ms", scatter) // compared with PyTorch's other way
	})
}

func TestProducts(t *testing.T) {
	x := onGPU(t).NoGrad()
	const n = 8192
	for _, c := range []struct {
		name string
		dt   dtype.DType
		tf32 bool
		reps int
	}{{"matmul.bf16", tenon.BFloat16, false, 10}, {"matmul.f16", tenon.Float16, false, 10}, {"matmul.tf32", tenon.Float32, true, 6},
		{"matmul.f32", tenon.Float32, false, 3}} {
		x.TF32(c.tf32).Scope(func(x *tenon.Exec) {
			// Pseudo-random operands: with zeros the clock runs faster.
			a, b := noise(x, n, c.dt), noise(x, n, c.dt)
			recordFigure(c.name, "TFLOP/s", rate(timed(t, x, c.reps, func(x *tenon.Exec) { x.MM(a, b) }), 2.0*n*n*n))
		})
	}
}

// TestConvolutions measures one layer of a ResNet, forward and both gradients.
func TestConvolutions(t *testing.T) {
	x := onGPU(t)
	x.Device().Generator().SetSeed(2)
	x.Scope(func(x *tenon.Exec) {
		const batch, channels, side = 64, 256, 56
		random := func(shape ...int) *tenon.Tensor { return x.NoGrad().RandN(shape, tenon.BFloat16) }
		in, w, grad := random(batch, channels, side, side), random(channels, channels, 3, 3), random(batch, channels, side, side)
		opt := tenon.Conv2dOpt{Padding: [2]int{1, 1}}
		const work = 2.0 * batch * side * side * channels * channels * 9
		recordFigure("conv.forward", "TFLOP/s", rate(timed(t, x.NoGrad(), 10, func(x *tenon.Exec) { x.Conv2d(in, w, nil, opt) }), work))
		for name, of := range map[string]*tenon.Tensor{"conv.input": in, "conv.weight": w} {
			of.SetRequiresGrad(true)
			y := x.Conv2d(in, w, nil, opt)
			recordFigure(name, "TFLOP/s", rate(timed(t, x, 10, func(x *tenon.Exec) {
				if _, err := x.Grad([]*tenon.Tensor{y}, []*tenon.Tensor{of}, tenon.GradOpt{Gradients: []*tenon.Tensor{grad},
					RetainGraph: true}); err != nil {
					t.Error(err)
				}
			}), work))
			of.SetRequiresGrad(false)
		}
	})
}

// noise returns an [n, n] tensor of numbers that look random: products of two short random vectors' outer sums, wrapped.
func noise(x *tenon.Exec, n int, dt dtype.DType) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		v := make([]float32, n)
		w := make([]float32, n)
		s := uint32(12345)
		for i := range v {
			s = s*1664525 + 1013904223
			v[i] = float32(s>>8)/(1<<24)*2 - 1
			s = s*1664525 + 1013904223
			w[i] = float32(s>>8)/(1<<24)*2 - 1
		}
		return x.ToDType(x.Mul(x.Add(tenon.From(x, v, n, 1), tenon.From(x, w)), tenon.From(x, w, n, 1)), dt)
	})
}
