package compile_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Row-wise calls run with the element-wise work around them as one kernel, with the bits of eager execution.
//
//tenon:table programs, each with how many kernels it is
func TestRowsRunWithTheirNeighbours(t *testing.T) {
	x := open(t)
	must(t, x.Generator().SetSeed(1))
	const rows, n = 24, 72
	a, b := x.RandN([]int{rows, n}, tenon.Float32), x.RandN([]int{rows, n}, tenon.Float32)
	half := x.ToDType(x.RandN([]int{2, 3, rows, rows}, tenon.Float32), tenon.BFloat16)
	w, bias := x.RandN([]int{n}, tenon.Float32), x.RandN([]int{n}, tenon.Float32)
	at := x.Arange(rows, tenon.Int64)
	hidden := x.Lt(x.Unsqueeze(at, 1), at)
	column := x.RandN([]int{rows, 1}, tenon.Float32)
	want := x.RandInt(rows, []int{2 * 3 * rows}, tenon.Int64)
	leaf := func(t *tenon.Tensor) *tenon.Tensor {
		t.SetRequiresGrad(true)
		return t
	}
	la, lw, lb, lhalf := leaf(x.Clone(a)), leaf(x.Clone(w)), leaf(x.Clone(bias)), leaf(x.Clone(half))
	llong := leaf(x.ToDType(x.MulS(x.RandN([]int{2 * 3 * rows, 1504}, tenon.Float32), 4), tenon.BFloat16))
	leaves := []*tenon.Tensor{la, lw, lb, lhalf, llong}
	type outs = []*tenon.Tensor
	for name, c := range map[string]struct {
		run            func(x *tenon.Exec) (outs, error)
		kernels, fused int // of a run; if kernels is negative, at least -kernels row-wise calls run with others
	}{
		"residual, layer norm and cast": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			h := x.Add(a, b)
			return outs{h, x.ToDType(x.LayerNorm(h, w, bias, []int{n}), tenon.BFloat16)}, nil
		}, 1, 3},
		"residual and RMS norm": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			return outs{x.RMSNorm(x.Add(a, b), w, []int{n}, tenon.NormOpt{Eps: 1e-6})}, nil
		}, 1, 2},
		"RMS norm of three dimensions, between numbers and a column": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			y := x.RMSNorm(x.MulS(x.View(a, 2, rows/2, n), 0.5), nil, []int{n}, tenon.NormOpt{Eps: 1e-6})
			return outs{x.AddS(x.Mul(y, x.View(column, 2, rows/2, 1)), 2)}, nil
		}, 1, 4},
		"masked softmax": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			return outs{x.Softmax(x.MaskedFillS(x.MulS(half, 0.125), hidden, math.Inf(-1)), -1)}, nil
		}, 1, 3},
		"softmax and what is after it": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			y := x.Softmax(a, -1)
			return outs{y, x.Neg(x.Mul(y, b))}, nil
		}, 1, 3},
		"log-softmax of another dimension": {func(x *tenon.Exec) (outs, error) { // each thread has its own row
			x = x.NoGrad()
			return outs{x.LogSoftmax(x.Exp(a), 0)}, nil
		}, 2, 0},
		"layer norm and SiLU": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			return outs{x.SiLU(x.LayerNorm(a, w, bias, []int{n}))}, nil
		}, 1, 2},
		"a layer norm over two dimensions": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			return outs{x.LayerNorm(x.Neg(x.View(a, 4, rows/4, n)), nil, nil, []int{rows / 4, n})}, nil
		}, 2, 0},
		"two softmaxes in a row": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			return outs{x.Softmax(x.Neg(x.Softmax(x.Neg(a), -1)), -1)}, nil
		}, 2, 3},
		"gradients of a masked softmax": {func(x *tenon.Exec) (outs, error) {
			y := x.Softmax(x.MaskedFillS(x.MulS(lhalf, 0.125), hidden, math.Inf(-1)), -1)
			return outs{y}, x.Backward(x.Sum(x.Mul(y, y), nil))
		}, -2, 0},
		"gradients of residual, layer norm and GELU": {func(x *tenon.Exec) (outs, error) {
			h := x.Add(la, b)
			y := x.GELU(x.LayerNorm(h, lw, lb, []int{n}))
			return outs{y}, x.Backward(x.Sum(x.Add(x.Mul(y, b), h), nil))
		}, -2, 0},
		"cross-entropy of halves, by rows": {func(x *tenon.Exec) (outs, error) { // which never exist in float32
			y := x.CrossEntropy(x.ToDType(x.View(lhalf, 2*3*rows, rows), tenon.Float32), want)
			return outs{y}, x.Backward(x.MulS(y, 3))
		}, -1, 0},
		"cross-entropy of long rows of halves": {func(x *tenon.Exec) (outs, error) { // whose sums have one order
			y := x.CrossEntropy(x.ToDType(llong, tenon.Float32), want, tenon.CrossEntropyOpt{Reduction: tenon.ReduceNone})
			return outs{y}, x.Backward(x.Sum(y, nil))
		}, -1, 0},
		"cross-entropy of halves with weights": {func(x *tenon.Exec) (outs, error) {
			y := x.CrossEntropy(x.ToDType(x.View(lhalf, 2*3*rows, rows), tenon.Float32), want,
				tenon.CrossEntropyOpt{Weight: x.Slice(w, 0, 0, rows, 1), Reduction: tenon.ReduceSum})
			return outs{y}, x.Backward(y)
		}, -1, 0},
		"rows of halves that begin between": {func(x *tenon.Exec) (outs, error) { // read differently from the float32 made of them
			x = x.NoGrad()
			part := x.View(x.Narrow(x.Flatten(llong, 0, 1), 0, 2, rows*1504), rows, 1504)
			return outs{x.CrossEntropy(x.ToDType(part, tenon.Float32), x.Narrow(want, 0, 0, rows),
				tenon.CrossEntropyOpt{Reduction: tenon.ReduceNone})}, nil
		}, 2, 0},
		"rows that begin between": {func(x *tenon.Exec) (outs, error) { // but their results do not
			x = x.NoGrad()
			part := x.View(x.Narrow(x.Flatten(a, 0, 1), 0, 1, (rows-1)*n), rows-1, n)
			return outs{x.Softmax(x.MulS(part, 3), 1), x.LayerNorm(x.Add(part, part), w, bias, []int{n})}, nil
		}, 2, 4},
		"halves in a chain and a norm": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			h := x.ToDType(x.View(half, 2*3*rows, rows), tenon.Float32)
			return outs{x.Softmax(h, -1), x.Add(x.MulS(h, 3), x.Exp(h))}, nil
		}, 2, 4},
		"halves that change before they are read": {func(x *tenon.Exec) (outs, error) {
			x = x.NoGrad()
			v := x.Clone(half)
			h := x.ToDType(v, tenon.Float32)
			x.MulSInto(v, v, 2)
			return outs{x.Softmax(h, -1), v}, nil
		}, 2, 3},
		"gradients of RMS norms in halves": {func(x *tenon.Exec) (outs, error) {
			h := x.ToDType(la, tenon.BFloat16)
			y := x.RMSNorm(x.SiLU(x.RMSNorm(h, x.ToDType(lw, tenon.BFloat16), []int{n}, tenon.NormOpt{Eps: 1e-6})), nil, []int{n},
				tenon.NormOpt{Eps: 1e-6})
			return outs{y}, x.Backward(x.Sum(x.ToDType(y, tenon.Float32), nil))
		}, -2, 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			bits := func(run func(f func(x *tenon.Exec) error) error) string {
				var kept outs
				must(t, run(func(x *tenon.Exec) error {
					ys, err := c.run(x)
					for _, y := range ys {
						kept = append(kept, x.Keep(x.Detach(y)))
					}
					return err
				}))
				text := shown(t, x, kept)
				closeAll(kept)
				for _, l := range leaves {
					if g := l.Grad(); g != nil {
						text += shown(t, x, outs{g})
					}
					l.SetGrad(nil)
				}
				return text
			}
			want := bits(func(f func(x *tenon.Exec) error) (err error) {
				x.Scope(func(x *tenon.Exec) { err = f(x) })
				return err
			})
			single := compile.New(compile.Opt{NoFusion: true, NoGraphs: true})
			for _, r := range []*compile.Region{compile.New(), compile.New(compile.Opt{NoGraphs: true}), single} {
				for range 3 {
					if got := bits(func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }); got != want {
						t.Fatalf("got\n%s, want\n%s\n%s", got, want, r.Explain(x))
					}
				}
				s := r.Stats(x)
				switch {
				case r == single:
				case c.kernels < 0 && (s.Fused == 0 || strings.Count(fmt.Sprint(r.Explain(x)), "row_") < -c.kernels):
					t.Errorf("nothing goes by rows with its neighbours:\n%s", r.Explain(x))
				case c.kernels >= 0 && (s.Kernels != 3*c.kernels || s.Fused != 3*c.fused):
					t.Errorf("%d kernels ran and %d calls were fused in 3 runs, want %d and %d\n%s",
						s.Kernels, s.Fused, 3*c.kernels, 3*c.fused, r.Explain(x))
				}
			}
		})
	}
}

// The gradient of a layer norm in front of a product in halves runs with its cast and the residual's gradient. The sums for weight and
// bias, which stand between them, read the halves. Of many rows, one kernel makes all of it.
func TestLayerNormBackwardWithItsNeighbours(t *testing.T) {
	t.Run("few", func(t *testing.T) { layerNormBackward(t, 24, "row_layer_norm_backward_add_mul", 8) })
	t.Run("many", func(t *testing.T) { layerNormBackward(t, 5000, "row_layer_norm_backward_affine_add_mul", 8) })
}

// Gradients of a norm's weight and bias that nobody needs, in a group with the gradient of its input, do not go anywhere.
func TestUnneededSumsOfNorms(t *testing.T) {
	x := open(t)
	must(t, x.Generator().SetSeed(1))
	const rows, n = 4500, 40
	h := x.RandN([]int{rows, n}, tenon.Float32).SetRequiresGrad(true)
	w, bias := x.RandN([]int{n}, tenon.Float32).SetRequiresGrad(true), x.RandN([]int{n}, tenon.Float32).SetRequiresGrad(true)
	for kept := range 4 {
		var out *tenon.Tensor
		step := func(x *tenon.Exec) error {
			y := x.LayerNorm(x.MulS(h, 2), w, bias, []int{n})
			gs, err := x.Grad(all(x.Sum(x.Mul(y, y), nil)), all(h, w, bias))
			if err != nil {
				return err
			}
			if kept == 3 {
				out = x.Keep(x.Sum(x.Add(gs[1], gs[2]), nil))
				return nil
			}
			out = x.Keep(gs[kept])
			return nil
		}
		must(t, x.Do(step))
		want := shown(t, x, all(out))
		out.Close()
		r := compile.New()
		for range 3 {
			must(t, r.Do(x, step))
			if got := shown(t, x, all(out)); got != want {
				t.Fatalf("gradient %d alone: got\n%.200s, want\n%.200s\n%s", kept, got, want, r.Explain(x))
			}
			out.Close()
		}
	}
}

// layerNormBackward runs a layer norm of rows, forward and backward, and checks that the kernels of a run have the name among them.
func layerNormBackward(t *testing.T, rows int, name string, kernels int) {
	x := open(t)
	must(t, x.Generator().SetSeed(1))
	const n = 72
	w, bias, h := x.RandN([]int{n}, tenon.Float32), x.RandN([]int{n}, tenon.Float32), x.RandN([]int{rows, n}, tenon.Float32)
	right := x.RandN([]int{n, n}, tenon.BFloat16)
	leaves := []*tenon.Tensor{w, bias, h}
	for _, l := range leaves {
		l.SetRequiresGrad(true)
	}
	step := func(x *tenon.Exec) error {
		h := x.MulS(h, 2)
		y := x.MatMul(x.ToDType(x.LayerNorm(h, w, bias, []int{n}), tenon.BFloat16), right)
		return x.Backward(x.Sum(x.Add(x.ToDType(x.Mul(y, y), tenon.Float32), x.Mul(h, h)), nil))
	}
	grads := func() string {
		var s strings.Builder
		for _, l := range leaves {
			v, err := x.Bytes(l.Grad())
			must(t, err)
			fmt.Fprintf(&s, "%s\n", digest(v))
			l.SetGrad(nil)
		}
		return s.String()
	}
	must(t, x.Do(step))
	want := grads()
	r := compile.New()
	for range 3 {
		must(t, r.Do(x, step))
		if got := grads(); got != want {
			t.Fatalf("got\n%s, want\n%s\n%s", got, want, r.Explain(x))
		}
	}
	// Two of the kernels are the forward pass, two are products of the backward pass, and one is the sums or combines them.
	if text := fmt.Sprint(r.Explain(x)); !strings.Contains(text, name) || int(r.Stats(x).Kernels) != 3*kernels {
		t.Error(text)
	}
}

// If a group cannot be one kernel, its calls use the float32 that their own kernels need.
func TestHalvesWithoutGroups(t *testing.T) {
	t.Setenv("TENON_COMPILE_GROUPS", "0")
	x := openSim(t).NoGrad()
	a := x.ToDType(x.Arange(64, tenon.Float32), tenon.BFloat16)
	r := compile.New()
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			h := x.ToDType(a, tenon.Float32)
			y = x.Keep(x.Mul(h, h))
			return nil
		}))
		v, err := tenon.Read[float32](x, y)
		must(t, err)
		for i := range v {
			if v[i] != float32(i*i) {
				t.Fatalf("got %v", v)
			}
		}
		y.Close()
	}
	if s := r.Stats(x); s.Fused > 0 {
		t.Errorf("%+v", s)
	}
}
