package tenon_test

import (
	"fmt"
	"iter"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// zeroProbe says what tenon.Zero in an option must lead to: the number that a true 0 gives, where numbers can tell it from others, or the
// words of the error that refuses 0.
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

// least is the number that tenon.Zero really is; no option may keep it.
const least = math.SmallestNonzeroFloat64

// zeroProbes are the probes of the operations' options, by type and field.
func zeroProbes() map[string]zeroProbe {
	const zero = tenon.Zero
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
	return map[string]zeroProbe{
		"tenon.AttentionOpt.Scale":   {run: attention(tenon.AttentionOpt{Scale: zero}), want: 1},
		"tenon.AttentionOpt.Dropout": {run: attention(tenon.AttentionOpt{Scale: zero, Dropout: zero}), want: 1},
		"tenon.CrossEntropyOpt.LabelSmoothing": {run: func(x *tenon.Exec) (float64, error) {
			in, class := tenon.From(x, []float64{0, -1e300}, 1, 2), tenon.From(x, []int{0})
			return numberOf(x, x.CrossEntropy(in, class, tenon.CrossEntropyOpt{LabelSmoothing: zero}))
		}},
		"tenon.EmbeddingOpt.MaxNorm":  {run: embedding(tenon.EmbeddingOpt{MaxNorm: zero})},
		"tenon.EmbeddingOpt.NormType": {run: embedding(tenon.EmbeddingOpt{MaxNorm: 1, NormType: zero})},
		"tenon.IndexAddOpt.Alpha": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.IndexAdd(float64s(x, 2), 0, tenon.From(x, []int{0}), float64s(x, 3), tenon.IndexAddOpt{Alpha: zero}))
		}, want: 2},
		"tenon.MultiMarginLossOpt.Margin": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.MultiMarginLoss(tenon.From(x, []float64{1, 1, 1}, 1, 3), tenon.From(x, []int{0}),
				tenon.MultiMarginLossOpt{Margin: zero}))
		}},
		"tenon.NanToNumOpt.NaN":    {run: nan(math.NaN(), tenon.NanToNumOpt{NaN: zero})},
		"tenon.NanToNumOpt.PosInf": {run: nan(math.Inf(1), tenon.NanToNumOpt{PosInf: zero})},
		"tenon.NanToNumOpt.NegInf": {run: nan(math.Inf(-1), tenon.NanToNumOpt{NegInf: zero})},
		"tenon.PadOpt.Value": {run: func(x *tenon.Exec) (float64, error) {
			v, err := numberOf(x, x.Pad(float64s(x, 0), []int{1, 0}, tenon.PadOpt{Value: zero}))
			w, err2 := numberOf(x, x.Pad(tenon.From(x, []float64{0}, 1, 1, 1), []int{1, 0},
				tenon.PadOpt{Mode: tenon.PadReplicate, Value: zero}))
			return v + w, firstOf(err, err2)
		}},
		"tenon.PoissonNLLLossOpt.Eps": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.PoissonNLLLoss(float64s(x, 0), float64s(x, 1), tenon.PoissonNLLLossOpt{Plain: true, Eps: zero}))
		}, want: math.Inf(1)},
		"tenon.TripletMarginLossOpt.Margin": {run: triplet([]float64{0}, []float64{0}, []float64{0},
			tenon.TripletMarginLossOpt{Margin: zero})},
		"tenon.TripletMarginLossOpt.P": {run: triplet([]float64{0, 0}, []float64{1, 3}, []float64{0, 0},
			tenon.TripletMarginLossOpt{P: zero, Eps: zero, Margin: zero}), want: 2},
		"tenon.TripletMarginLossOpt.Eps": {run: triplet([]float64{0}, []float64{0}, []float64{1}, tenon.TripletMarginLossOpt{Eps: zero})},
		"tenon.VarOpt.Correction": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.Var(float64s(x, 0, 2), nil, tenon.VarOpt{Correction: zero}))
		}, want: 1},
	}
}

// zeroCallProbes are the probes of options of single functions, whose default is another number.
func zeroCallProbes() map[string]zeroProbe {
	const zero = tenon.Zero
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
		in, opt := tenon.From(x, []float64{0, 0}, 1, 2), tenon.NormOpt{Eps: zero}
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
			return x.Add(x.AddCMul(a, a, a, tenon.AddCMulOpt{Value: zero}), x.AddCDiv(a, a, a, tenon.AddCMulOpt{Value: zero}))
		}), want: 2},
		"tenon.AddMMOpt.Beta":  {run: product(tenon.AddMMOpt{Beta: zero}), want: 15},
		"tenon.AddMMOpt.Alpha": {run: product(tenon.AddMMOpt{Alpha: zero}), want: 2},
		"tenon.ArangeOpt.Start": {run: call(func(x *tenon.Exec) *tenon.Tensor {
			return x.Arange(1, tenon.Float64, tenon.ArangeOpt{Start: zero})
		})},
		"tenon.ArangeOpt.Step": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { x.Arange(1, tenon.Float64, tenon.ArangeOpt{Step: zero}) })
		}, refused: "step must be nonzero"},
		"tenon.BatchNormOpt.Momentum": {run: batch(tenon.BatchNormOpt{Training: true, Momentum: zero},
			func(_, mean *tenon.Tensor) *tenon.Tensor { return mean }), want: 3},
		"tenon.BatchNormOpt.Eps": {run: batch(tenon.BatchNormOpt{Eps: zero}, func(out, _ *tenon.Tensor) *tenon.Tensor { return out }),
			want: math.NaN()},
		"tenon.CosineSimilarityOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.CosineSimilarity(t, t, tenon.CosineSimilarityOpt{Eps: zero})
		}, 0, 0), want: math.NaN()},
		"tenon.DistOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Dist(t, x.ZerosLike(t), tenon.DistOpt{P: zero})
		}, 3, 4), want: 2},
		"tenon.ELUOpt.Alpha": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.ELU(t, tenon.ELUOpt{Alpha: zero})
		}, -1)},
		"tenon.HardtanhOpt.Min": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Hardtanh(t, tenon.HardtanhOpt{Min: zero})
		}, -1, 1)},
		"tenon.HardtanhOpt.Max": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Hardtanh(t, tenon.HardtanhOpt{Min: -1, Max: zero})
		}, 1)},
		"tenon.HuberLossOpt.Delta": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { x.HuberLoss(float64s(x, 1), float64s(x, 3), tenon.HuberLossOpt{Delta: zero}) })
		}, refused: "delta, got 0"},
		"tenon.LeakyReLUOpt.Slope": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.LeakyReLU(t, tenon.LeakyReLUOpt{Slope: zero})
		}, -1e300)},
		"tenon.MarginLossOpt.Margin": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.HingeEmbeddingLoss(t, x.FullLike(t, -1), tenon.MarginLossOpt{Margin: zero})
		}, 0.5)},
		"tenon.NormOpt.Eps": {run: eachNorm, want: math.NaN()},
		"tenon.NormalizeOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Normalize(t, tenon.NormalizeOpt{P: zero})
		}, 3, 5), want: 4},
		"tenon.NormalizeOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Normalize(t, tenon.NormalizeOpt{Eps: zero})
		}, 0, 0), want: math.NaN()},
		"tenon.PairwiseDistanceOpt.P": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.PairwiseDistance(t, x.ZerosLike(t), tenon.PairwiseDistanceOpt{P: zero})
		}, 3, 4), want: 2},
		"tenon.PairwiseDistanceOpt.Eps": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.PairwiseDistance(t, t, tenon.PairwiseDistanceOpt{Eps: zero})
		}, 3, 4)},
		"tenon.SmoothL1LossOpt.Beta": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.SmoothL1Loss(t, x.ZerosLike(t), tenon.SmoothL1LossOpt{Beta: zero})
		}, 2*least), want: 2 * least},
		"tenon.SoftplusOpt.Beta": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Softplus(t, tenon.SoftplusOpt{Beta: zero})
		}, 1e300), want: math.Inf(1)},
		"tenon.SoftplusOpt.Threshold": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.Softplus(t, tenon.SoftplusOpt{Threshold: zero})
		}, 1), want: 1},
		"tenon.VectorNormOpt.Ord": {run: of(func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			return x.VectorNorm(t, nil, tenon.VectorNormOpt{Ord: zero})
		}, 3, 4), want: 2},
		"nn.GainOpt.A": {run: func(x *tenon.Exec) (float64, error) {
			return nn.Gain(nn.GainLeakyReLU, nn.GainOpt{A: zero}), nil
		}, want: math.Sqrt2},
		"nn.XavierOpt.Gain": {run: call(func(x *tenon.Exec) *tenon.Tensor {
			t := x.Ones([]int{2, 2}, tenon.Float64)
			nn.InitXavierNormal(x, t, nn.XavierOpt{Gain: zero})
			return t
		})},
	}
}

// zeroModuleProbes are the probes of modules and of functions on modules.
func zeroModuleProbes() map[string]zeroProbe {
	const zero = tenon.Zero
	module := func(m nn.Module) func(x *tenon.Exec) nn.Module { return func(*tenon.Exec) nn.Module { return m } }
	norms := nn.NormOpt{Eps: zero, DType: tenon.Float64, NoAffine: true}
	return map[string]zeroProbe{
		"nn.Upsample.Scale": {run: forwarded(module(nn.Upsample{Scale: []float64{zero}}), []int{1, 1, 2}, 1, 2),
			refused: "the output 0 there"},
		"tenon.InterpolateOpt.Scale": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, x.Interpolate(tenon.From(x, []float64{1, 2}, 1, 1, 2), tenon.InterpolateOpt{Scale: []float64{zero}}))
		}, refused: "the output 0 there"},
		"nn.BatchNormOpt.Eps": {run: forwarded(func(x *tenon.Exec) nn.Module {
			return nn.NewBatchNorm1d(x, 1, nn.BatchNormOpt{Eps: zero, DType: tenon.Float64})
		}, []int{2, 1}, 1, 1), want: math.NaN()},
		"nn.BatchNormOpt.Momentum": {run: func(x *tenon.Exec) (float64, error) {
			m := nn.NewBatchNorm1d(x, 1, nn.BatchNormOpt{Momentum: zero, DType: tenon.Float64})
			m.Forward(x, tenon.From(x, []float64{1e300, 1e300}, 2, 1))
			return numberOf(x, m.RunningMean.Tensor())
		}},
		"nn.ClipOpt.Norm": {run: func(x *tenon.Exec) (float64, error) {
			p := nn.NewParam(float64s(x, 1, 2))
			p.SetGrad(float64s(x, 5, 7))
			return numberOf(x, nn.ClipGradNorm(x, theseParams(p), 10, nn.ClipOpt{Norm: zero}))
		}, want: 1},
		"nn.ELU.Alpha":    {run: forwarded(module(nn.ELU{Alpha: zero}), []int{1}, -1)},
		"nn.Hardtanh.Min": {run: forwarded(module(nn.Hardtanh{Min: zero, Max: 1}), []int{1}, -1)},
		"nn.Hardtanh.Max": {run: forwarded(module(nn.Hardtanh{Min: -1, Max: zero}), []int{1}, 1)},
		"nn.HuberLoss.Delta": {run: func(x *tenon.Exec) (float64, error) {
			return 0, tenon.Try(func() { nn.HuberLoss{Delta: zero}.Forward(x, float64s(x, 1), float64s(x, 3)) })
		}, refused: "delta, got 0"},
		"nn.KaimingOpt.A": {run: func(x *tenon.Exec) (float64, error) {
			drawn := func(a float64) *tenon.Tensor {
				t := x.Zeros([]int{2, 2}, tenon.Float64)
				nn.InitKaimingNormal(x, t, nn.KaimingOpt{Generator: nn.NewHostGenerator(1), A: a})
				return t
			}
			return numberOf(x, x.Sub(drawn(zero), drawn(0)))
		}},
		"nn.LeakyReLU.Slope": {run: forwarded(module(nn.LeakyReLU{Slope: zero}), []int{1}, -1e300)},
		"nn.NormOpt.Eps": {run: func(x *tenon.Exec) (v float64, err error) {
			for _, m := range []nn.Module{nn.NewLayerNorm(x, []int{2}, norms), nn.NewGroupNorm(x, 1, 2, norms),
				nn.NewRMSNorm(x, []int{2}, norms)} {
				if v, err = forwarded(module(m), []int{1, 2}, 0, 0)(x); err != nil || !math.IsNaN(v) {
					return v, err
				}
			}
			return v, err
		}, want: math.NaN()},
		"nn.PReLUOpt.Init": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, nn.NewPReLU(x, 1, nn.PReLUOpt{Init: zero, DType: tenon.Float64}).Weight.Tensor())
		}},
		"nn.RecurrentOpt.Dropout": {run: func(x *tenon.Exec) (float64, error) {
			m := nn.NewLSTM(x, 1, 1, nn.RecurrentOpt{NumLayers: 2, Dropout: zero, DType: tenon.Float64})
			in := float64s(x, 1)
			trained, _, _ := m.Forward(x, x.View(in, 1, 1))
			nn.Eval(m)
			evaluated, _, _ := m.Forward(x, x.View(in, 1, 1))
			return numberOf(x, x.Sub(trained, evaluated))
		}},
		"nn.SmoothL1Loss.Beta": {run: func(x *tenon.Exec) (float64, error) {
			return numberOf(x, nn.SmoothL1Loss{Beta: zero}.Forward(x, float64s(x, 2*least), float64s(x, 0)))
		}, want: 2 * least},
		"nn.Softplus.Beta":      {run: forwarded(module(nn.Softplus{Beta: zero}), []int{1}, 1e300), want: math.Inf(1)},
		"nn.Softplus.Threshold": {run: forwarded(module(nn.Softplus{Threshold: zero}), []int{1}, 1), want: 1},
	}
}

// zeroScheduleProbes are the probes of schedules and of the GradScaler.
func zeroScheduleProbes() map[string]zeroProbe {
	const zero = tenon.Zero
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
		"optim.OneCycleOpt.PctStart": {run: after(0, false, one(optim.OneCycleOpt{PctStart: zero, AnnealStrategy: optim.AnnealLinear,
			DivFactor: 1})), want: lineFrom1(0.1, 1e-4)},
		"optim.OneCycleOpt.DivFactor": {run: after(0, false, one(optim.OneCycleOpt{DivFactor: zero})), refused: "DivFactor is 0;"},
		"optim.OneCycleOpt.FinalDivFactor": {run: after(0, false, one(optim.OneCycleOpt{FinalDivFactor: zero})),
			refused: "FinalDivFactor is 0;"},
		"optim.OneCycleOpt.BaseMomentum": {run: after(2, true, one(optim.OneCycleOpt{BaseMomentum: zero}))},
		"optim.OneCycleOpt.MaxMomentum":  {run: after(0, true, one(optim.OneCycleOpt{MaxMomentum: zero}))},
		"optim.CyclicOpt.Gamma":          {run: after(1, false, cyclic(optim.CyclicOpt{Mode: optim.CyclicExpRange, Gamma: zero})), want: 1},
		"optim.CyclicOpt.BaseMomentum":   {run: after(2, true, cyclic(optim.CyclicOpt{BaseMomentum: zero}))},
		"optim.CyclicOpt.MaxMomentum":    {run: after(0, true, cyclic(optim.CyclicOpt{MaxMomentum: zero}))},
		"optim.PlateauOpt.Factor":        {run: plateau(1, optim.PlateauOpt{Factor: zero}, 1, 1)},
		"optim.PlateauOpt.MinLR":         {run: plateau(1, optim.PlateauOpt{Factor: zero, MinLR: []float64{zero}}, 1, 1)},
		// The second metric is better by the smallest positive number; the third reduction is as small.
		"optim.PlateauOpt.Threshold": {run: plateau(1, optim.PlateauOpt{ThresholdMode: optim.ThresholdAbs, Threshold: zero}, 0, -least),
			want: 1},
		"optim.PlateauOpt.Eps":              {run: plateau(2*least, optim.PlateauOpt{Factor: 0.5, Eps: zero}, 1, 1), want: least},
		"optim.GradScalerOpt.InitScale":     {run: scaler(optim.GradScalerOpt{InitScale: zero}), refused: "scale is 0;"},
		"optim.GradScalerOpt.GrowthFactor":  {run: scaler(optim.GradScalerOpt{GrowthFactor: zero}), refused: "it is 0"},
		"optim.GradScalerOpt.BackoffFactor": {run: scaler(optim.GradScalerOpt{BackoffFactor: zero}), refused: "it is 0"},
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

// zeroOptimizers are the constructors that take options, by the type of the options.
var zeroOptimizers = map[string][]any{
	"SGDOpt": {optim.NewSGD}, "AdamOpt": {optim.NewAdam, optim.NewAdamW}, "NAdamOpt": {optim.NewNAdam}, "RAdamOpt": {optim.NewRAdam},
	"AdamaxOpt": {optim.NewAdamax}, "AdagradOpt": {optim.NewAdagrad}, "AdadeltaOpt": {optim.NewAdadelta}, "ASGDOpt": {optim.NewASGD},
	"RMSpropOpt": {optim.NewRMSprop}, "RpropOpt": {optim.NewRprop},
}

// optimizerField checks that an optimizer's state has 0 for the option that is tenon.Zero; an eta of 0 is refused, as in PyTorch.
func optimizerField(t *testing.T, x *tenon.Exec, make any, field string) {
	f := reflect.ValueOf(make)
	opt := reflect.New(f.Type().In(1).Elem()).Elem()
	v := opt.FieldByName(field)
	if v.Kind() == reflect.Array {
		for i := range v.Len() {
			v.Index(i).SetFloat(tenon.Zero)
		}
	} else {
		v.SetFloat(tenon.Zero)
	}
	out := f.Call([]reflect.Value{reflect.ValueOf(theseParams(nn.NewParam(float64s(x, 1)))), opt})
	if err, _ := out[1].Interface().(error); err != nil {
		if field != "Etas" || !strings.Contains(err.Error(), "Invalid eta values: 0, 0;") {
			t.Errorf("%s.%s: %v", opt.Type(), field, err)
		}
		return
	}
	d, err := optim.StateDict(x, out[0].Interface().(optim.Optimizer))
	if err != nil {
		t.Fatal(err)
	}
	groups, _ := d.Get("param_groups")
	tag, _ := opt.Type().FieldByName(field)
	kept, ok := groups.([]any)[0].(*torchfile.Dict).Get(tag.Tag.Get("json"))
	numbers := []any{kept}
	if l, isTuple := kept.(torchfile.Tuple); isTuple {
		numbers = l
	}
	for _, v := range numbers {
		if f, isNumber := v.(float64); !ok || !isNumber || f != 0 {
			t.Errorf("%s.%s is kept as %v, want 0", opt.Type(), field, v)
		}
	}
}

// Zero is 0 in every floating-point option of the public API. api/tenon.txt lists the options; each has a probe here or belongs to an
// optimizer, whose state shows the value.
func TestZeroOptions(t *testing.T) {
	text, err := os.ReadFile("api/tenon.txt")
	if err != nil {
		t.Fatal(err)
	}
	x := testdevice.Open(t, tenon.CPU())
	probes := zeroProbes()
	for _, more := range []map[string]zeroProbe{zeroCallProbes(), zeroModuleProbes(), zeroScheduleProbes()} {
		for name, p := range more {
			probes[name] = p
		}
	}
	field := regexp.MustCompile(`(?m)^pkg tenon\.dev(?:/(nn|optim))?, type (\w+) struct, (\w+) \*?(?:\[\d*\])*float64$`)
	fields := field.FindAllStringSubmatch(string(text), -1)
	if len(fields) < 80 {
		t.Fatalf("the record has %d floating-point fields of structs; this test does not read it right", len(fields))
	}
	for _, f := range fields {
		pkg, typ, field := f[1], f[2], f[3]
		if pkg == "" {
			pkg = "tenon"
		}
		name := pkg + "." + typ + "." + field
		p, probed := probes[name]
		delete(probes, name)
		switch {
		case strings.HasSuffix(typ, "State"): // the result of State is no option
		case pkg == "optim" && zeroOptimizers[typ] != nil:
			for _, make := range zeroOptimizers[typ] {
				optimizerField(t, x, make, field)
			}
		case !probed:
			t.Errorf("%s has no probe: core.Or must take it, so that tenon.Zero is 0 there, and a probe must show that", name)
		default:
			var got float64
			var failed error
			err := tenon.Try(func() { got, failed = p.run(x) })
			err = firstOf(err, failed)
			switch refused := p.refused != ""; {
			case refused != (err != nil) || refused && !strings.Contains(err.Error(), p.refused):
				t.Errorf("%s: tenon.Zero gives the error %v, want %q", name, err, p.refused)
			case !refused && got != p.want && !(math.IsNaN(got) && math.IsNaN(p.want)):
				t.Errorf("%s: tenon.Zero gives %v, a true 0 %v", name, got, p.want)
			}
		}
	}
	var left []string
	for name := range probes {
		left = append(left, name)
	}
	slices.Sort(left)
	for _, name := range left {
		t.Errorf("%s is probed, but no floating-point option", name)
	}
	if _, err := optim.NewSGD(theseParams(nn.NewParam(float64s(x, 1))), optim.SGDOpt{Momentum: tenon.Zero, Nesterov: true}); err == nil {
		t.Error("Nesterov's momentum of 0 passes")
	}
}
