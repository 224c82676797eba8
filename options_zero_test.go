package tenon_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/tenontest"
	"tenon.dev/torchfile"
)

// zeroProbe runs something with an option, and says what 0 in it leads to: the number that it gives, where numbers can tell it from others,
// or the words of the error that refuses 0.
type zeroProbe struct {
	run     func(x *tenon.Exec) (float64, error)
	want    float64
	refused string
}

// numberOf returns the sum of t's elements.
func numberOf(x *tenon.Exec, t *tenon.Tensor) (float64, error) {
	return x.Item(x.Sum(x.ToDType(t, tenon.Float64), nil))
}

func float64s(x *tenon.Exec, v ...float64) *tenon.Tensor { return tenon.From(x, v) }

// forwarded returns a function that runs a module on the numbers v and sums its output.
func forwarded(f func(x *tenon.Exec) nn.Module, shape []int, v ...float64) func(x *tenon.Exec) (float64, error) {
	return func(x *tenon.Exec) (float64, error) { return numberOf(x, f(x).Forward(x, tenon.From(x, v, shape...))) }
}

// least is the smallest positive number.
const least = math.SmallestNonzeroFloat64

// zeroProbes are the probes of the operations' options, by type and field. An option of type Scalar is the given one; a plain number, whose
// default is 0, is 0.
func zeroProbes(scalar tenon.Scalar) map[string]zeroProbe {
	attention := func(opt tenon.AttentionOpt) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			q := tenon.From(x, []float64{1, 2}, 1, 1, 2)
			k := tenon.From(x, []float64{1, 2, 3, 4}, 1, 2, 2)
			return numberOf(x, x.ScaledDotProductAttention(q, k, tenon.From(x, []float64{0, 2}, 1, 2, 1), opt))
		}
	}
	embedding := func(opt tenon.EmbeddingOpt) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.Embedding(tenon.From(x, []int{0}), tenon.From(x, []float64{3, 4}, 1, 2), opt))
		}
	}
	triplet := func(a, p, n []float64, opt tenon.TripletMarginLossOpt) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			row := func(v []float64) *tenon.Tensor { return tenon.From(x, v, 1, len(v)) }
			return numberOf(x, x.TripletMarginLoss(row(a), row(p), row(n), opt))
		}
	}
	nan := func(v float64, opt tenon.NanToNumOpt) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) { return numberOf(x, x.NanToNum(float64s(x, v), opt)) }
	}
	productC := func(opt tenon.AddMMCOpt) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			one := func(v complex128) *tenon.Tensor { return tenon.From(x, []complex128{v}, 1, 1) }
			return numberOf(x, x.RealPart(x.AddMMC(one(2), one(3), one(5), opt)))
		}
	}
	return map[string]zeroProbe{
		"tenon.AttentionOpt.Scale":   {run: attention(tenon.AttentionOpt{Scale: scalar}), want: 1},
		"tenon.AttentionOpt.Dropout": {run: attention(tenon.AttentionOpt{Scale: 0, Dropout: 0}), want: 1},
		"tenon.CrossEntropyOpt.LabelSmoothing": {run: func(x *tenon.Exec) (float64, error) {
			in, class := tenon.From(x, []float64{0, -1e300}, 1, 2), tenon.From(x, []int{0})
			return numberOf(x, x.CrossEntropy(in, class, tenon.CrossEntropyOpt{LabelSmoothing: 0}))
		}},
		"tenon.EmbeddingOpt.MaxNorm":  {run: embedding(tenon.EmbeddingOpt{MaxNorm: scalar})},
		"tenon.EmbeddingOpt.NormType": {run: embedding(tenon.EmbeddingOpt{MaxNorm: 1, NormType: scalar})},
		"tenon.IndexAddOpt.Alpha": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.IndexAdd(float64s(x, 2), 0, tenon.From(x, []int{0}), float64s(x, 3), tenon.IndexAddOpt{Alpha: scalar}))
		}, want: 2},
		"tenon.MultiMarginLossOpt.Margin": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.MultiMarginLoss(tenon.From(x, []float64{1, 1, 1}, 1, 3), tenon.From(x, []int{0}),
				tenon.MultiMarginLossOpt{Margin: scalar}))
		}},
		"tenon.NanToNumOpt.NaN":    {run: nan(math.NaN(), tenon.NanToNumOpt{NaN: scalar})},
		"tenon.NanToNumOpt.PosInf": {run: nan(math.Inf(1), tenon.NanToNumOpt{PosInf: scalar})},
		"tenon.NanToNumOpt.NegInf": {run: nan(math.Inf(-1), tenon.NanToNumOpt{NegInf: scalar})},
		"tenon.PadOpt.Value": {run: func(x *tenon.Exec) (float64, error) {
			v, err := numberOf(x, x.Pad(float64s(x, 0), []int{1, 0}, tenon.PadOpt{Value: 0}))
			w, err2 := numberOf(x, x.Pad(tenon.From(x, []float64{0}, 1, 1, 1), []int{1, 0},
				tenon.PadOpt{Mode: tenon.PadReplicate, Value: 0}))
			return v + w, firstOf(err, err2)
		}},
		"tenon.PoissonNLLLossOpt.Eps": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.PoissonNLLLoss(float64s(x, 0), float64s(x, 1), tenon.PoissonNLLLossOpt{Plain: true, Eps: scalar}))
		}, want: math.Inf(1)},
		"tenon.TripletMarginLossOpt.Margin": {run: triplet([]float64{0}, []float64{0}, []float64{0},
			tenon.TripletMarginLossOpt{Margin: scalar})},
		"tenon.TripletMarginLossOpt.P": {run: triplet([]float64{0, 0}, []float64{1, 3}, []float64{0, 0},
			tenon.TripletMarginLossOpt{P: scalar, Eps: 0, Margin: 0}), want: 2},
		"tenon.TripletMarginLossOpt.Eps": {run: triplet([]float64{0}, []float64{0}, []float64{1}, tenon.TripletMarginLossOpt{Eps: scalar})},
		"tenon.AddMMCOpt.Beta":           {run: productC(tenon.AddMMCOpt{Beta: scalar}), want: 15},
		"tenon.AddMMCOpt.Alpha":          {run: productC(tenon.AddMMCOpt{Alpha: scalar}), want: 2},
		"tenon.VarOpt.Correction": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.Var(float64s(x, 0, 2), nil, tenon.VarOpt{Correction: scalar}))
		}, want: 1},
	}
}

// zeroCallProbes are the probes of options of single functions, whose default is another number.
func zeroCallProbes(scalar tenon.Scalar) map[string]zeroProbe {
	call := func(f func(x *tenon.Exec) *tenon.Tensor) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) { return numberOf(x, f(x)) }
	}
	// of calls f with the matrix of one row that holds v.
	of := func(f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor, v ...float64) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) { return numberOf(x, f(x, tenon.From(x, v, 1, len(v)))) }
	}
	product := func(opt tenon.AddMMOpt) func(x *tenon.Exec) (float64, error) {
		return call(func(x *tenon.Exec) *tenon.Tensor {
			in, a, b := tenon.From(x, []float64{2}, 1, 1), tenon.From(x, []float64{3}, 1, 1), tenon.From(x, []float64{5}, 1, 1)
			return x.AddMM(in, a, b, opt)
		})
	}
	batch := func(opt tenon.BatchNormOpt, of func(out, mean *tenon.Tensor) *tenon.Tensor) func(x *tenon.Exec) (float64, error) {
		return call(func(x *tenon.Exec) *tenon.Tensor {
			mean, variance := float64s(x, 3), float64s(x, 0)
			return of(x.BatchNorm(tenon.From(x, []float64{3, 3}, 2, 1), nil, nil, mean, variance, opt), mean)
		})
	}
	eachNorm := func(x *tenon.Exec) (v float64, err error) {
		in, opt := tenon.From(x, []float64{0, 0}, 1, 2), tenon.NormOpt{Eps: scalar}
		for _, y := range []*tenon.Tensor{x.LayerNorm(in, nil, nil, []int{2}, opt), x.GroupNorm(in, nil, nil, 1, opt),
			x.RMSNorm(in, nil, []int{2}, opt)} {
			if v, err = numberOf(x, y); err != nil || !math.IsNaN(v) {
				return v, err
			}
		}
		return v, err
	}
	return map[string]zeroProbe{
		"tenon.AddCMulOpt.Value": {run: call(func(x *tenon.Exec) *tenon.Tensor {
			a := float64s(x, 1)
			return x.Add(x.AddCMul(a, a, a, tenon.AddCMulOpt{Value: scalar}), x.AddCDiv(a, a, a, tenon.AddCMulOpt{Value: scalar}))
		}), want: 2},
		"tenon.AddMMOpt.Beta":  {run: product(tenon.AddMMOpt{Beta: scalar}), want: 15},
		"tenon.AddMMOpt.Alpha": {run: product(tenon.AddMMOpt{Alpha: scalar}), want: 2},
		"tenon.ArangeOpt.Start": {run: call(func(x *tenon.Exec) *tenon.Tensor {
			return x.Arange(1, tenon.Float64, tenon.ArangeOpt{Start: 0})
		})},
		"tenon.ArangeOpt.Step": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { x.Arange(1, tenon.Float64, tenon.ArangeOpt{Step: scalar}) })
		}, refused: "step must be nonzero"},
		"tenon.BatchNormOpt.Momentum": {run: batch(tenon.BatchNormOpt{Training: true, Momentum: scalar},
			func(_, mean *tenon.Tensor) *tenon.Tensor { return mean }), want: 3},
		"tenon.BatchNormOpt.Eps": {run: batch(tenon.BatchNormOpt{Eps: scalar}, func(out, _ *tenon.Tensor) *tenon.Tensor { return out }),
			want: math.NaN()},
		"tenon.CosineSimilarityOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.CosineSimilarity(t, t, tenon.CosineSimilarityOpt{Eps: scalar})
		}, 0, 0), want: math.NaN()},
		"tenon.DistOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Dist(t, x.ZerosLike(t), tenon.DistOpt{P: scalar})
		}, 3, 4), want: 2},
		"tenon.ELUOpt.Alpha": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.ELU(t, tenon.ELUOpt{Alpha: scalar})
		}, -1)},
		"tenon.HardtanhOpt.Min": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Hardtanh(t, tenon.HardtanhOpt{Min: scalar})
		}, -1, 1), want: 1},
		"tenon.HardtanhOpt.Max": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Hardtanh(t, tenon.HardtanhOpt{Min: -1, Max: scalar})
		}, 1)},
		"tenon.HuberLossOpt.Delta": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { x.HuberLoss(float64s(x, 1), float64s(x, 3), tenon.HuberLossOpt{Delta: scalar}) })
		}, refused: "delta, got 0"},
		"tenon.LeakyReLUOpt.Slope": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.LeakyReLU(t, tenon.LeakyReLUOpt{Slope: scalar})
		}, -1e300)},
		"tenon.MarginLossOpt.Margin": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.HingeEmbeddingLoss(t, x.FullLike(t, -1), tenon.MarginLossOpt{Margin: scalar})
		}, 0.5)},
		"tenon.NormOpt.Eps": {run: eachNorm, want: math.NaN()},
		"tenon.NormalizeOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Normalize(t, tenon.NormalizeOpt{P: scalar})
		}, 3, 5), want: 4},
		"tenon.NormalizeOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Normalize(t, tenon.NormalizeOpt{Eps: scalar})
		}, 0, 0), want: math.NaN()},
		"tenon.PairwiseDistanceOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.PairwiseDistance(t, x.ZerosLike(t), tenon.PairwiseDistanceOpt{P: scalar})
		}, 3, 4), want: 2},
		"tenon.PairwiseDistanceOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.PairwiseDistance(t, t, tenon.PairwiseDistanceOpt{Eps: scalar})
		}, 3, 4)},
		"tenon.SmoothL1LossOpt.Beta": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.SmoothL1Loss(t, x.ZerosLike(t), tenon.SmoothL1LossOpt{Beta: scalar})
		}, 2*least), want: 2 * least},
		"tenon.SoftplusOpt.Beta": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Softplus(t, tenon.SoftplusOpt{Beta: scalar})
		}, 1e300), want: math.Inf(1)},
		"tenon.SoftplusOpt.Threshold": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Softplus(t, tenon.SoftplusOpt{Threshold: scalar})
		}, 1), want: 1},
		"tenon.VectorNormOpt.Ord": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.VectorNorm(t, nil, tenon.VectorNormOpt{Ord: scalar})
		}, 3, 4), want: 2},
		"nn.GainOpt.A": {run: func(x *tenon.Exec) (float64, error) {
			return nn.Gain(nn.GainLeakyReLU, nn.GainOpt{A: scalar}), nil
		}, want: math.Sqrt2},
		"nn.XavierOpt.Gain": {run: call(func(x *tenon.Exec) *tenon.Tensor {
			t := x.Ones([]int{2, 2}, tenon.Float64)
			nn.InitXavierNormal(x, t, nn.XavierOpt{Gain: scalar, Generator: nn.NewHostGenerator(1)})
			return t
		})},
	}
}

// zeroModuleProbes are the probes of modules and of functions on modules.
func zeroModuleProbes(scalar tenon.Scalar) map[string]zeroProbe {
	module := func(m nn.Module) func(x *tenon.Exec) nn.Module { return func(*tenon.Exec) nn.Module { return m } }
	norms := nn.NormOpt{Eps: scalar, DType: tenon.Float64, NoAffine: true}
	return map[string]zeroProbe{
		"nn.Upsample.Scale": {run: forwarded(module(nn.Upsample{Scale: []float64{0}}), []int{1, 1, 2}, 1, 2),
			refused: "a scale of 0 is not possible"},
		"tenon.InterpolateOpt.Scale": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.Interpolate(tenon.From(x, []float64{1, 2}, 1, 1, 2), tenon.InterpolateOpt{Scale: []float64{0}}))
		}, refused: "a scale of 0 is not possible"},
		"nn.BatchNormOpt.Eps": {run: forwarded(func(x *tenon.Exec) nn.Module {
			return nn.NewBatchNorm1d(x, 1, nn.BatchNormOpt{Eps: scalar, DType: tenon.Float64})
		}, []int{2, 1}, 1, 1), want: math.NaN()},
		"nn.BatchNormOpt.Momentum": {run: func(x *tenon.Exec) (float64, error) {
			m := nn.NewBatchNorm1d(x, 1, nn.BatchNormOpt{Momentum: scalar, DType: tenon.Float64})
			m.Forward(x, tenon.From(x, []float64{1e300, 1e300}, 2, 1))
			return numberOf(x, m.RunningMean.Tensor())
		}},
		"nn.ClipOpt.Norm": {run: func(x *tenon.Exec) (float64, error) {
			p := nn.NewParam(float64s(x, 1, 2))
			p.SetGrad(float64s(x, 5, 7))
			return numberOf(x, nn.ClipGradNorm(x, theseParams(p), 10, nn.ClipOpt{Norm: scalar}))
		}, want: 1},
		"nn.ELU.Alpha":    {run: forwarded(module(nn.ELU{Alpha: scalar}), []int{1}, -1)},
		"nn.Hardtanh.Min": {run: forwarded(module(nn.Hardtanh{Min: scalar, Max: 1}), []int{1}, -1)},
		"nn.Hardtanh.Max": {run: forwarded(module(nn.Hardtanh{Min: -1, Max: scalar}), []int{1}, 1)},
		"nn.HuberLoss.Delta": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { nn.HuberLoss{Delta: scalar}.Forward(x, float64s(x, 1), float64s(x, 3)) })
		}, refused: "delta, got 0"},
		"nn.KaimingOpt.A": {run: func(x *tenon.Exec) (float64, error) {
			a, b := x.Zeros([]int{2, 2}, tenon.Float64), x.Zeros([]int{2, 2}, tenon.Float64)
			nn.InitKaimingNormal(x, a, nn.KaimingOpt{Generator: nn.NewHostGenerator(1), A: 0})
			nn.InitNormal(x, b, 0, math.Sqrt2/math.Sqrt(2), nn.InitOpt{Generator: nn.NewHostGenerator(1)})
			return numberOf(x, x.Sub(a, b))
		}},
		"nn.LeakyReLU.Slope": {run: forwarded(module(nn.LeakyReLU{Slope: scalar}), []int{1}, -1e300)},
		"nn.NormOpt.Eps": {run: func(x *tenon.Exec) (v float64, err error) {
			for _, m := range []nn.Module{nn.NewLayerNorm(x, []int{2}, norms), nn.NewGroupNorm(x, 1, 2, norms),
				nn.NewRMSNorm(x, []int{2}, norms)} {
				if v, err = forwarded(module(m), []int{1, 2}, 0, 0)(x); err != nil || !math.IsNaN(v) {
					return v, err
				}
			}
			return v, err
		}, want: math.NaN()},
		"nn.MultiheadAttentionOpt.Dropout": {run: func(x *tenon.Exec) (float64, error) {
			m := nn.NewMultiheadAttention(x, 1, 1, nn.MultiheadAttentionOpt{Dropout: 0, DType: tenon.Float64})
			in := x.View(float64s(x, 1), 1, 1, 1)
			trained := m.Forward(x, in, in, in)
			nn.Eval(m)
			return numberOf(x, x.Sub(trained, m.Forward(x, in, in, in)))
		}},
		"nn.PReLUOpt.Init": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, nn.NewPReLU(x, 1, nn.PReLUOpt{Init: scalar, DType: tenon.Float64}).Weight.Tensor())
		}},
		"nn.RecurrentOpt.Dropout": {run: func(x *tenon.Exec) (float64, error) {
			m := nn.NewLSTM(x, 1, 1, nn.RecurrentOpt{NumLayers: 2, Dropout: 0, DType: tenon.Float64})
			in := float64s(x, 1)
			trained, _, _ := m.Forward(x, x.View(in, 1, 1))
			nn.Eval(m)
			evaluated, _, _ := m.Forward(x, x.View(in, 1, 1))
			return numberOf(x, x.Sub(trained, evaluated))
		}},
		"nn.SmoothL1Loss.Beta": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, nn.SmoothL1Loss{Beta: scalar}.Forward(x, float64s(x, 2*least), float64s(x, 0)))
		}, want: 2 * least},
		"nn.Softplus.Beta":      {run: forwarded(module(nn.Softplus{Beta: scalar}), []int{1}, 1e300), want: math.Inf(1)},
		"nn.Softplus.Threshold": {run: forwarded(module(nn.Softplus{Threshold: scalar}), []int{1}, 1), want: 1},
	}
}

// zeroScheduleProbes are the probes of schedules and of the GradScaler.
func zeroScheduleProbes(scalar tenon.Scalar) map[string]zeroProbe {
	// after gives the rate, or the momentum, of SGD after some steps of a schedule.
	after := func(steps int, momentum bool, rule func() optim.Rule) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			o, err := optim.NewSGD(theseParams(nn.NewParam(float64s(x, 1))), optim.SGDOpt{LR: 1, Momentum: 0.5})
			if err != nil {
				return 0, err
			}
			s, err := optim.NewSchedule(o, rule())
			for range steps {
				err = firstOf(err, s.Step())
			}
			if momentum {
				return o.Momentum(0), err
			}
			return o.LR(0), err
		}
	}
	one := func(opt optim.OneCycleOpt) func() optim.Rule {
		return func() optim.Rule { return optim.OneCycleLR([]float64{1}, 10, opt) }
	}
	cyclic := func(opt optim.CyclicOpt) func() optim.Rule {
		opt.StepSizeUp = 2
		return func() optim.Rule { return optim.CyclicLR([]float64{1}, []float64{2}, opt) }
	}
	plateau := func(lr float64, opt optim.PlateauOpt, metrics ...float64) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			o, err := optim.NewSGD(theseParams(nn.NewParam(float64s(x, 1))), optim.SGDOpt{LR: lr})
			if err != nil {
				return 0, err
			}
			s, err := optim.NewReduceLROnPlateau(o, 0, opt)
			for _, m := range metrics {
				err = firstOf(err, s.Step(m))
			}
			return o.LR(0), err
		}
	}
	scaler := func(opt optim.GradScalerOpt) func(*tenon.Exec) (float64, error) {
		return func(*tenon.Exec) (float64, error) {
			_, err := optim.NewGradScaler(opt)
			return 0, err
		}
	}
	return map[string]zeroProbe{
		// A rise of zero steps ends at step -1, where the rate is 1; from there the rate falls linearly to 1e-4 at step 9.
		"optim.OneCycleOpt.PctStart": {run: after(0, false, one(optim.OneCycleOpt{PctStart: scalar, AnnealStrategy: optim.AnnealLinear,
			DivFactor: 1})), want: lineFrom1(0.1, 1e-4)},
		"optim.OneCycleOpt.DivFactor": {run: after(0, false, one(optim.OneCycleOpt{DivFactor: scalar})),
			refused: "DivFactor is 0;"},
		"optim.OneCycleOpt.FinalDivFactor": {run: after(0, false, one(optim.OneCycleOpt{FinalDivFactor: scalar})),
			refused: "FinalDivFactor is 0;"},
		"optim.OneCycleOpt.BaseMomentum": {run: after(2, true, one(optim.OneCycleOpt{BaseMomentum: scalar}))},
		"optim.OneCycleOpt.MaxMomentum":  {run: after(0, true, one(optim.OneCycleOpt{MaxMomentum: scalar}))},
		"optim.CyclicOpt.Gamma": {run: after(1, false, cyclic(optim.CyclicOpt{Mode: optim.CyclicExpRange, Gamma: scalar})),
			want: 1},
		"optim.CyclicOpt.BaseMomentum": {run: after(2, true, cyclic(optim.CyclicOpt{BaseMomentum: scalar}))},
		"optim.CyclicOpt.MaxMomentum":  {run: after(0, true, cyclic(optim.CyclicOpt{MaxMomentum: scalar}))},
		"optim.PlateauOpt.Factor":      {run: plateau(1, optim.PlateauOpt{Factor: scalar}, 1, 1)},
		"optim.PlateauOpt.MinLR":       {run: plateau(1, optim.PlateauOpt{Factor: 0, MinLR: []float64{0}}, 1, 1)},
		// The second metric is better by the smallest positive number; the third reduction is as small.
		"optim.PlateauOpt.Threshold": {run: plateau(1, optim.PlateauOpt{ThresholdMode: optim.ThresholdAbs, Threshold: scalar}, 0, -least),
			want: 1},
		"optim.PlateauOpt.Eps":              {run: plateau(2*least, optim.PlateauOpt{Factor: 0.5, Eps: scalar}, 1, 1), want: least},
		"optim.GradScalerOpt.InitScale":     {run: scaler(optim.GradScalerOpt{InitScale: scalar}), refused: "scale is 0;"},
		"optim.GradScalerOpt.GrowthFactor":  {run: scaler(optim.GradScalerOpt{GrowthFactor: scalar}), refused: "it is 0"},
		"optim.GradScalerOpt.BackoffFactor": {run: scaler(optim.GradScalerOpt{BackoffFactor: scalar}), refused: "it is 0"},
	}
}

// lineFrom1 returns the number at the fraction part of the way from 1 to end.
func lineFrom1(part, end float64) float64 { return float64((end-1)*part) + 1 }

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func theseParams(ps ...*nn.Param) iter.Seq2[string, *nn.Param] {
	return func(yield func(string, *nn.Param) bool) {
		for i, p := range ps {
			if !yield(fmt.Sprint(i), p) {
				return
			}
		}
	}
}

// toldTB is a testing.TB that notes whether an assertion failed. One that stops the test panics with its error.
type toldTB struct {
	testing.TB
	failed bool
}

func (t *toldTB) Helper()           {}
func (t *toldTB) Error(...any)      { t.failed = true }
func (t *toldTB) Fatal(args ...any) { panic(args[0]) }

// zeroToleranceProbes are the probes of tenontest's tolerances: 1 if a difference is too large.
func zeroToleranceProbes(scalar tenon.Scalar) map[string]zeroProbe {
	close := func(tolerance tenontest.Tolerance) func(x *tenon.Exec) (float64, error) {
		return func(x *tenon.Exec) (float64, error) {
			var t toldTB
			tenontest.AssertClose(&t, x, float64s(x, 2), float64s(x, 2+1e-9), tolerance)
			if t.failed {
				return 1, nil
			}
			return 0, nil
		}
	}
	return map[string]zeroProbe{
		"tenontest.Tolerance.Absolute": {run: close(tenontest.Tolerance{Absolute: scalar, Relative: 0}), want: 1},
		"tenontest.Tolerance.Relative": {run: close(tenontest.Tolerance{Absolute: 0, Relative: scalar}), want: 1},
	}
}

// allProbes are the probes with a Scalar.
func allProbes(scalar tenon.Scalar) map[string]zeroProbe {
	all := zeroProbes(scalar)
	for _, more := range []map[string]zeroProbe{zeroCallProbes(scalar), zeroModuleProbes(scalar), zeroScheduleProbes(scalar),
		zeroToleranceProbes(scalar)} {
		maps.Copy(all, more)
	}
	return all
}

// scalarDefaults are the numbers that stand for the Scalars of probes if they are left out.
var scalarDefaults = map[string]float64{
	"tenon.AddCMulOpt.Value": 1, "tenon.AddMMOpt.Alpha": 1, "tenon.AddMMOpt.Beta": 1, "tenon.AddMMCOpt.Alpha": 1,
	"tenon.AddMMCOpt.Beta": 1, "tenon.ArangeOpt.Step": 1, "tenon.AttentionOpt.Scale": math.Sqrt2 / 2, "tenon.BatchNormOpt.Eps": 1e-5,
	"tenon.BatchNormOpt.Momentum": 0.1, "tenon.CosineSimilarityOpt.Eps": 1e-8, "tenon.DistOpt.P": 2, "tenon.ELUOpt.Alpha": 1,
	"tenon.EmbeddingOpt.MaxNorm": math.Inf(1), "tenon.EmbeddingOpt.NormType": 2, "tenon.HardtanhOpt.Max": 1, "tenon.HardtanhOpt.Min": -1,
	"tenon.HuberLossOpt.Delta": 1, "tenon.IndexAddOpt.Alpha": 1, "tenon.LeakyReLUOpt.Slope": 0.01, "tenon.MarginLossOpt.Margin": 1,
	"tenon.MultiMarginLossOpt.Margin": 1, "tenon.NanToNumOpt.NaN": 0, "tenon.NanToNumOpt.NegInf": -math.MaxFloat64,
	"tenon.NanToNumOpt.PosInf": math.MaxFloat64, "tenon.NormOpt.Eps": 1e-5, "tenon.NormalizeOpt.Eps": 1e-12, "tenon.NormalizeOpt.P": 2,
	"tenon.PairwiseDistanceOpt.Eps": 1e-6, "tenon.PairwiseDistanceOpt.P": 2, "tenon.PoissonNLLLossOpt.Eps": 1e-8,
	"tenon.SmoothL1LossOpt.Beta": 1, "tenon.SoftplusOpt.Beta": 1, "tenon.SoftplusOpt.Threshold": 20, "tenon.TripletMarginLossOpt.Eps": 1e-6,
	"tenon.TripletMarginLossOpt.Margin": 1, "tenon.TripletMarginLossOpt.P": 2, "tenon.VarOpt.Correction": 1, "tenon.VectorNormOpt.Ord": 2,

	"nn.BatchNormOpt.Eps": 1e-5, "nn.BatchNormOpt.Momentum": 0.1, "nn.ClipOpt.Norm": 2, "nn.ELU.Alpha": 1, "nn.GainOpt.A": 0.01,
	"nn.Hardtanh.Max": 1, "nn.Hardtanh.Min": -1, "nn.HuberLoss.Delta": 1, "nn.LeakyReLU.Slope": 0.01, "nn.NormOpt.Eps": 1e-5,
	"nn.PReLUOpt.Init": 0.25, "nn.SmoothL1Loss.Beta": 1, "nn.Softplus.Beta": 1, "nn.Softplus.Threshold": 20, "nn.XavierOpt.Gain": 1,

	"optim.CyclicOpt.BaseMomentum": 0.8, "optim.CyclicOpt.Gamma": 1, "optim.CyclicOpt.MaxMomentum": 0.9,
	"optim.GradScalerOpt.BackoffFactor": 0.5, "optim.GradScalerOpt.GrowthFactor": 2, "optim.GradScalerOpt.InitScale": 65536,
	"optim.OneCycleOpt.BaseMomentum": 0.85, "optim.OneCycleOpt.DivFactor": 25, "optim.OneCycleOpt.FinalDivFactor": 1e4,
	"optim.OneCycleOpt.MaxMomentum": 0.95, "optim.OneCycleOpt.PctStart": 0.3, "optim.PlateauOpt.Eps": 1e-8,
	"optim.PlateauOpt.Factor": 0.1, "optim.PlateauOpt.Threshold": 1e-4,

	"tenontest.Tolerance.Absolute": 0, "tenontest.Tolerance.Relative": 0,
}

// half is a number type of a program's own.
type half float32

// manyOnes are 1 in every type of Go's numbers, with one of a program's own.
var manyOnes = []tenon.Scalar{1, int8(1), int16(1), int32(1), int64(1), uint(1), uint8(1), uint16(1), uint32(1), uint64(1), uintptr(1),
	float32(1), 1.0, half(1), time.Duration(1)}

// noNumbers are no numbers, by the names of their types.
var noNumbers = map[string]tenon.Scalar{"string": "0", "bool": false, "*int": new(int), "[]float64": []float64{0},
	"*tenon.Tensor": (*tenon.Tensor)(nil)}

// outcome is what a probe with a Scalar comes to, as text.
func outcome(x *tenon.Exec, name string, scalar tenon.Scalar) string {
	got, err := tried(x, allProbes(scalar)[name])
	var e *tenon.Error
	if errors.As(err, &e) {
		return e.Op + ": " + e.Msg
	}
	return fmt.Sprint(got, err)
}

func tried(x *tenon.Exec, p zeroProbe) (got float64, err error) {
	var failed error
	err = tenon.Try(func() { got, failed = p.run(x) })
	return got, firstOf(err, failed)
}

// scalarTakes checks what an option that is a Scalar takes: nil for the default, and numbers of all types, but nothing else.
func scalarTakes(t *testing.T, x *tenon.Exec, name string) {
	def, ok := scalarDefaults[name]
	if !ok {
		t.Errorf("scalarDefaults lacks %s", name)
	}
	if got, want := outcome(x, name, nil), outcome(x, name, def); got != want {
		t.Errorf("%s: without it the result is %s, with the default %v it is %s", name, got, def, want)
	}
	want := outcome(x, name, 1.0)
	for _, one := range manyOnes {
		if got := outcome(x, name, one); got != want {
			t.Errorf("%s: 1 of type %T gives %s, want %s", name, one, got, want)
		}
	}
	refused := maps.Clone(noNumbers)
	if !strings.HasPrefix(name, "tenon.AddMMCOpt.") {
		refused["complex128"] = 1i
	}
	_, field, _ := strings.Cut(name[strings.LastIndexByte(name, '.'):], ".")
	for typ, v := range refused {
		got := outcome(x, name, v)
		op, msg, _ := strings.Cut(got, ": ")
		if op == "" || !strings.HasPrefix(msg, field+" is a "+typ+"; give a ") {
			t.Errorf("%s: a %s gives %q", name, typ, got)
		}
	}
}

// zeroOptimizers are the constructors that take options, by the type of the options.
var zeroOptimizers = map[string][]any{
	"SGDOpt": {optim.NewSGD}, "AdamOpt": {optim.NewAdam, optim.NewAdamW}, "NAdamOpt": {optim.NewNAdam}, "RAdamOpt": {optim.NewRAdam},
	"AdamaxOpt": {optim.NewAdamax}, "AdagradOpt": {optim.NewAdagrad}, "AdadeltaOpt": {optim.NewAdadelta}, "ASGDOpt": {optim.NewASGD},
	"RMSpropOpt": {optim.NewRMSprop}, "RpropOpt": {optim.NewRprop},
}

// keptOption makes an optimizer with one option set, and returns that option in its state dict, where a pair is a tuple.
func keptOption(x *tenon.Exec, make any, field string, v any) (kept []any, err error) {
	f := reflect.ValueOf(make)
	opt := reflect.New(f.Type().In(1).Elem()).Elem()
	opt.FieldByName(field).Set(reflect.ValueOf(v))
	out := f.Call([]reflect.Value{reflect.ValueOf(theseParams(nn.NewParam(float64s(x, 1)))), opt})
	if err, _ := out[1].Interface().(error); err != nil {
		return nil, err
	}
	d, err := optim.StateDict(x, out[0].Interface().(optim.Optimizer))
	if err != nil {
		return nil, err
	}
	groups, _ := d.Get("param_groups")
	tag, _ := opt.Type().FieldByName(field)
	v, _ = groups.([]any)[0].(*torchfile.Dict).Get(tag.Tag.Get("json"))
	if pair, ok := v.(torchfile.Tuple); ok {
		return pair, nil
	}
	return []any{v}, nil
}

// optimizerField checks that an optimizer's state has the numbers that it was given, 0 included, and that others are refused by name. An
// eta of 0 is refused, as in PyTorch.
func optimizerField(t *testing.T, x *tenon.Exec, make any, typ, field string, pair bool) {
	what := typ + "." + field
	if pair {
		kept, err := keptOption(x, make, field, []float64{0, 0})
		switch {
		case field == "Etas":
			if err == nil || !strings.Contains(err.Error(), "Invalid eta values: 0, 0;") {
				t.Errorf("%s: %v", what, err)
			}
		case err != nil || !slices.Equal(kept, []any{0.0, 0.0}):
			t.Errorf("%s of 0 is kept as %v (%v)", what, kept, err)
		}
		for _, v := range [][]float64{{}, {0.5}, {0.5, 0.5, 0.5}} {
			_, err := keptOption(x, make, field, v)
			if want := fmt.Sprintf("%s is %v; give two numbers", field, v); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		return
	}
	for _, v := range append([]tenon.Scalar{0, 0.0}, manyOnes...) {
		want, _ := core.NumberOf(v)
		if kept, err := keptOption(x, make, field, v); err != nil || kept[0] != want {
			t.Errorf("%s of %v of type %T is kept as %v (%v)", what, v, v, kept, err)
		}
	}
	for name, v := range noNumbers {
		_, err := keptOption(x, make, field, v)
		if want := fmt.Sprintf("%s is a %s; give a real number", field, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
}

// 0 is 0 in every number among the options of the public API, whatever leaving it out means. api/tenon.txt lists the options; each has a
// probe here or belongs to an optimizer, whose state shows the value. Options of type Scalar take every number of Go, and nothing else.
func TestZeroOptions(t *testing.T) {
	text, err := os.ReadFile("api/tenon.txt")
	if err != nil {
		t.Fatal(err)
	}
	x := testdevice.Open(t, tenon.CPU())
	probes := allProbes(0)
	field := regexp.MustCompile(`(?m)^pkg tenon\.dev(?:/(nn|optim|tenontest))?, type (\w+) struct, (\w+) ` +
		`\*?((?:\[\d*\])*)(float64|(?:tenon\.)?Scalar)$`)
	fields := field.FindAllStringSubmatch(string(text), -1)
	if len(fields) < 80 {
		t.Fatalf("the record has %d floating-point fields of structs; this test does not read it right", len(fields))
	}
	scalars := 0
	for _, f := range fields {
		pkg, typ, field, isScalar := f[1], f[2], f[3], f[5] != "float64"
		if pkg == "" {
			pkg = "tenon"
		}
		name := pkg + "." + typ + "." + field
		p, probed := probes[name]
		delete(probes, name)
		switch {
		case strings.HasSuffix(typ, "State"): // the result of State is no option
			continue
		case pkg == "optim" && zeroOptimizers[typ] != nil:
			for _, make := range zeroOptimizers[typ] {
				optimizerField(t, x, make, typ, field, f[4] != "")
			}
			continue
		case !probed:
			t.Errorf("%s has no probe that shows that 0 is 0 there", name)
			continue
		}
		got, err := tried(x, p)
		switch refused := p.refused != ""; {
		case refused != (err != nil) || refused && !strings.Contains(err.Error(), p.refused):
			t.Errorf("%s: 0 gives the error %v, want %q", name, err, p.refused)
		case !refused && got != p.want && !(math.IsNaN(got) && math.IsNaN(p.want)):
			t.Errorf("%s: 0 gives %v, want %v", name, got, p.want)
		}
		if isScalar {
			scalars++
			scalarTakes(t, x, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(probes)) {
		t.Errorf("%s is probed, but no number among the options", name)
	}
	if scalars != len(scalarDefaults) {
		t.Errorf("%d options are Scalars, and %d have a default here", scalars, len(scalarDefaults))
	}
	if _, err := optim.NewSGD(theseParams(nn.NewParam(float64s(x, 1))), optim.SGDOpt{Momentum: 0, Nesterov: true}); err == nil {
		t.Error("Nesterov's momentum of 0 passes")
	}
}

// A number that a program computes costs no allocation as an option.
func TestScalarAllocatesNothing(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU()).NoGrad()
	in, computed := float64s(x, 1, 2), rand.Float64()
	plain := testing.AllocsPerRun(100, func() { x.ELU(in).Close() })
	given := testing.AllocsPerRun(100, func() { x.ELU(in, tenon.ELUOpt{Alpha: computed}).Close() })
	if given > plain {
		t.Errorf("a call with a computed option allocates %v times, without it %v times", given, plain)
	}
}
