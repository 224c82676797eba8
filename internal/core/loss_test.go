package core

import (
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// plainCrossEntropy computes the weighted cross-entropy of rows of c logits and its gradient, by the definition.
func plainCrossEntropy(v []float32, target []int64, w []float32, c int, ignore int64) (each []float64, total float64, grad []float64) {
	grad = make([]float64, len(v))
	each = make([]float64, len(target))
	for i, t := range target {
		if t == ignore {
			continue
		}
		row := v[i*c : (i+1)*c]
		sum := 0.0
		for _, e := range row {
			sum += math.Exp(float64(e))
		}
		weight := 1.0
		if w != nil {
			weight = float64(w[t])
		}
		total += weight
		each[i] = weight * (math.Log(sum) - float64(row[t]))
		for j, e := range row {
			grad[i*c+j] = weight * math.Exp(float64(e)) / sum
		}
		grad[i*c+int(t)] -= weight
	}
	return each, total, grad
}

func wantNear(t *testing.T, got []float32, want []float64, scale float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d numbers, want %d", len(got), len(want))
	}
	for i := range got {
		if w := want[i] * scale; math.Abs(float64(got[i])-w) > 1e-6+2e-6*math.Abs(w) {
			t.Fatalf("element %d is %v, want %v", i, got[i], w)
		}
	}
}

func TestCrossEntropy(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		// 20000 rows take more than one block.
		for _, rows := range []int{5, 20000} {
			const c = 7
			v := make([]float32, rows*c)
			target := make([]int64, rows)
			for i := range v {
				v[i] = float32((i*7919)%101)/20 - 2
			}
			for i := range target {
				target[i] = int64((i * 31) % c)
			}
			w := []float32{1, 2, .5, 1, 3, .25, 1}
			for _, weighted := range []bool{false, true} {
				var weight *Tensor
				var ws []float32
				if weighted {
					weight, ws = From(x, w), w
				}
				each, total, grad := plainCrossEntropy(v, target, ws, c, 3)
				sum := 0.0
				for _, e := range each {
					sum += e
				}
				for _, r := range []Reduction{ReduceNone, ReduceSum, ReduceMean} {
					in := From(x, v, rows, c).SetRequiresGrad(true)
					y := x.CrossEntropy(in, From(x, target), CrossEntropyOpt{Weight: weight, Ignore: true, IgnoreIndex: 3, Reduction: r})
					scale := 1.0
					switch r {
					case ReduceNone:
						wantNear(t, floats(t, x, y), each, 1)
						y = x.Sum(y, nil, SumOpt{})
					case ReduceMean:
						scale = 1 / total
						fallthrough
					case ReduceSum:
						wantNear(t, floats(t, x, y), []float64{sum}, scale)
					}
					if err := x.Backward(y, BackwardOpt{}); err != nil {
						t.Fatal(err)
					}
					wantNear(t, floats(t, x, in.Grad()), grad, scale)
				}
			}
		}
	})
}

// TestCrossEntropyOfRows checks that logits of few and many classes, of parts of longer rows, and with adjacent classes or not, have the
// losses and gradients of the definition, both eagerly and in a graph.
func TestCrossEntropyOfRows(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, c := range []int{1, 10, 1000, 20001} {
			const rows, ignore = 6, -100
			v := make([]float32, rows*(c+2))
			inner := make([]float32, 0, rows*c)
			target := make([]int64, rows)
			for i := range v {
				if v[i] = float32((i*7919)%101)/20 - 2; i%(c+2) < c {
					inner = append(inner, v[i])
				}
			}
			for i := range target {
				if target[i] = int64(i * 31 % c); i == 4 {
					target[i] = ignore
				}
			}
			each, total, grad := plainCrossEntropy(inner, target, nil, c, ignore)
			sum := 0.0
			for _, e := range each {
				sum += e
			}
			ids := From(x, target)
			forms := map[string]func(x *Exec, in *Tensor) (logits, target *Tensor){
				"parts of rows": func(x *Exec, in *Tensor) (_, _ *Tensor) { return x.Slice(in, 1, 0, c, 1), ids },
				"int32 targets": func(x *Exec, in *Tensor) (_, _ *Tensor) { return x.Slice(in, 1, 0, c, 1), x.ToDType(ids, dtype.Int32) },
				"one place": func(x *Exec, in *Tensor) (_, _ *Tensor) {
					return x.View(x.Contiguous(x.Slice(in, 1, 0, c, 1)), rows, c, 1), x.View(ids, rows, 1)
				},
				"classes apart": func(x *Exec, in *Tensor) (_, _ *Tensor) {
					return x.Unsqueeze(x.Transpose(x.Slice(in, 1, 0, c, 1), 0, 1), 0), x.View(ids, 1, rows)
				},
			}
			for name, form := range forms {
				for _, captured := range []bool{false, true} {
					in := x.Zeros([]int{rows, c + 2}, dtype.Float32).SetRequiresGrad(true)
					var y *Tensor
					step := func(x *Exec) {
						logits, target := form(x, in)
						y = x.CrossEntropy(logits, target, CrossEntropyOpt{})
						if err := x.Backward(y, BackwardOpt{}); err != nil {
							t.Error(err)
						}
					}
					fill := func() { x.NoGrad().CopyInto(in, From(x, v, rows, c+2)) }
					if captured {
						g, err := x.Capture(step, CaptureOpt{})
						if err != nil {
							t.Fatal(err)
						}
						fill()
						if err := x.Replay(g); err != nil {
							t.Fatal(err)
						}
						defer g.Close()
					} else {
						fill()
						step(x)
					}
					wantNear(t, floats(t, x, y), []float64{sum}, 1/total)
					got := floats(t, x, x.Contiguous(x.Slice(in.Grad(), 1, 0, c, 1)))
					for i, w := range grad {
						if d := math.Abs(float64(got[i]) - w/total); d > 1e-6 {
							t.Fatalf("%s, %d classes: the gradient of %d is %v, want %v", name, c, i, got[i], w/total)
						}
					}
				}
			}
		}
	})
}

// TestCrossEntropySecondDerivative checks that the fused gradient agrees with the one by operations, and the second derivatives of a loss
// with those of its definition.
func TestCrossEntropySecondDerivative(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		v := []float32{.5, -1, 2, 0, 1, .25, -.5, .75, 1.5, -2, .1, .2}
		weight := From(x, []float32{1, 2, .5})
		for _, r := range []Reduction{ReduceNone, ReduceSum, ReduceMean} {
			var got [2][]float32
			for i := range got {
				in := From(x, v, 2, 3, 2).SetRequiresGrad(true)
				target := From(x, []int64{2, 0, -100, 1}, 2, 2)
				var y *Tensor
				if i == 0 {
					y = x.CrossEntropy(in, target, CrossEntropyOpt{Weight: weight, Reduction: r})
				} else {
					y = x.NLLLoss(x.LogSoftmax(in, 1, SoftmaxOpt{}), target, NLLLossOpt{Weight: weight, Reduction: r})
				}
				y = x.Sum(x.Mul(y, y), nil, SumOpt{})
				g, err := x.Grad([]*Tensor{y}, []*Tensor{in}, GradOpt{CreateGraph: true})
				if err != nil {
					t.Fatal(err)
				}
				plain, err := x.Grad([]*Tensor{y}, []*Tensor{in}, GradOpt{RetainGraph: true})
				if err != nil {
					t.Fatal(err)
				}
				w := floats(t, x, plain[0])
				d := make([]float64, len(w))
				for j := range w {
					d[j] = float64(w[j])
				}
				wantNear(t, floats(t, x, g[0]), d, 1)
				h, err := x.Grad([]*Tensor{x.Sum(x.Mul(g[0], g[0]), nil, SumOpt{})}, []*Tensor{in}, GradOpt{})
				if err != nil {
					t.Fatal(err)
				}
				got[i] = floats(t, x, h[0])
			}
			want := make([]float64, len(got[1]))
			for i := range want {
				want[i] = float64(got[1][i])
			}
			wantNear(t, got[0], want, 1)
		}
	})
}

// TestCrossEntropyOfInfiniteLogits checks that the loss and its gradient, each computed by one kernel, have a NaN where the definition has
// one: in the loss of a row whose greatest logit is infinite, and in all of its gradient, ignored or not.
func TestCrossEntropyOfInfiniteLogits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	opened(t, func(t *testing.T, x *Exec) {
		v := []float32{1, 2, 3, inf, 0, 1, 1, inf, 0, inf, inf, 1, -inf, 1, 2, 1, -inf, 2, -inf, -inf, -inf, 1, 2, nan, inf, 1, 2,
			1, nan, 3, 1, 2, 3}
		target := From(x, []int64{1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0})
		losses := [2]func(x *Exec, in *Tensor, r Reduction) *Tensor{
			func(x *Exec, in *Tensor, r Reduction) *Tensor {
				return x.CrossEntropy(in, target, CrossEntropyOpt{Ignore: true, IgnoreIndex: 0, Reduction: r})
			},
			func(x *Exec, in *Tensor, r Reduction) *Tensor {
				return x.NLLLoss(x.LogSoftmax(in, 1, SoftmaxOpt{}), target, NLLLossOpt{Ignore: true, IgnoreIndex: 0, Reduction: r})
			},
		}
		for _, r := range []Reduction{ReduceNone, ReduceSum, ReduceMean} {
			var got [2][]float32
			for i, f := range losses {
				in := From(x, v, 11, 3).SetRequiresGrad(true)
				y := f(x, in, r)
				if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
				got[i] = append(floats(t, x, y), floats(t, x, in.Grad())...)
			}
			for i, want := range got[1] {
				if g := got[0][i]; (g != g) != (want != want) || g == g && g != want && math.Abs(float64(g-want)) > 1e-6 {
					t.Errorf("%s: number %d is %v, want %v", r, i, g, want)
				}
			}
		}
	})
}

func TestCrossEntropyVariants(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in := From(x, []float32{1, 2, 3})
		lse := math.Log(math.Exp(1) + math.Exp(2) + math.Exp(3))
		wantNear(t, floats(t, x, x.CrossEntropy(in, x.View(From(x, []int64{1})), CrossEntropyOpt{Reduction: ReduceNone})),
			[]float64{lse - 2}, 1)
		p := From(x, []float32{.2, .3, .5})
		wantNear(t, floats(t, x, x.CrossEntropy(in, p, CrossEntropyOpt{})), []float64{lse - .2 - .6 - 1.5}, 1)
		batch := x.View(in, 1, 3)
		wantNear(t, floats(t, x, x.CrossEntropy(batch, From(x, []int64{1}), CrossEntropyOpt{LabelSmoothing: .3})),
			[]float64{.7*(lse-2) + .1*(3*lse-6)}, 1)
	})
}

// TestCrossEntropyOfNothing checks that probabilities of no classes, or no rows, have a mean that is NaN and a sum that is 0, with an
// equally empty gradient.
func TestCrossEntropyOfNothing(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, shape := range [][]int{{3, 0}, {0, 3}, {0}, {2, 0, 3}} {
			for _, smoothing := range []float64{0, .1} {
				a := x.Ones(shape, dtype.Float32).SetRequiresGrad(true)
				y := x.CrossEntropy(a, x.Ones(shape, dtype.Float32), CrossEntropyOpt{LabelSmoothing: smoothing})
				if v := floats(t, x, y); len(v) != 1 || v[0] == v[0] {
					t.Errorf("shape %v: the mean is %v", shape, v)
				}
				if err := x.Backward(y, BackwardOpt{}); err != nil || !infer.Same(a.Grad().Shape(), shape) {
					t.Errorf("shape %v: gradient %v, %v", shape, a.Grad(), err)
				}
				if v := floats(t, x, x.CrossEntropy(a, a, CrossEntropyOpt{Reduction: ReduceSum})); len(v) != 1 || v[0] != 0 {
					t.Errorf("shape %v: the sum is %v", shape, v)
				}
			}
		}
	})
}

func TestLossErrors(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		in, target := x.Zeros([]int{2, 3}, dtype.Float32), From(x, []int64{0, 1})
		bad := func(part string, f func()) {
			t.Helper()
			wantError(t, Try(f), fault.Invalid, part)
		}
		bad("is not a valid value for reduction", func() { x.CrossEntropy(in, target, CrossEntropyOpt{Reduction: 9}) })
		bad("to match target batch_size (3)", func() { x.NLLLoss(in, From(x, []int64{0, 1, 1}), NLLLossOpt{}) })
		bad("weight tensor should be defined", func() { x.NLLLoss(in, target, NLLLossOpt{Weight: From(x, []float32{1, 2})}) })
		bad("label_smoothing must be between", func() { x.CrossEntropy(in, target, CrossEntropyOpt{LabelSmoothing: 2}) })
		bad("the target must be numbers of classes, of an integer type, but is float32", func() {
			x.NLLLoss(in, x.ToDType(target, dtype.Float32), NLLLossOpt{})
		})
	})
}
