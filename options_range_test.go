package tenon_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

var nan, inf = math.NaN(), math.Inf(1)

// refusedAs checks that f refuses its arguments with the given sentence, whose subject comes first.
func refusedAs(t *testing.T, want string, f func() error) {
	t.Helper()
	var failed error
	err := firstOf(tenon.Try(func() { failed = f() }), failed)
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != fault.Invalid || e.Op+": "+e.Msg != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// An eps or momentum that is NaN or infinite is refused where a module is made and where an operation is called. So is an eps below 0 by
// modules and BatchNorm; the other operations take it, and every momentum that is finite, as in PyTorch.
func TestNormRanges(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	in, mean, variance := x.Ones([]int{2, 2}, tenon.Float32), x.Zeros([]int{2}, tenon.Float32), x.Ones([]int{2}, tenon.Float32)
	parts := x.Ones([]int{2, 2}, tenon.Float32)
	norms := map[string]func(eps, momentum float64){
		"NewLayerNorm": func(eps, _ float64) { nn.NewLayerNorm(x, []int{2}, nn.NormOpt{Eps: eps}) },
		"NewRMSNorm":   func(eps, _ float64) { nn.NewRMSNorm(x, []int{2}, nn.NormOpt{Eps: eps}) },
		"NewGroupNorm": func(eps, _ float64) { nn.NewGroupNorm(x, 1, 2, nn.NormOpt{Eps: eps}) },
		"NewBatchNorm1d": func(eps, m float64) {
			nn.NewBatchNorm1d(x, 2, nn.BatchNormOpt{Eps: eps, Momentum: m})
		},
		"NewBatchNorm2d": func(eps, m float64) { nn.NewBatchNorm2d(x, 2, nn.BatchNormOpt{Eps: eps, Momentum: m}) },
		"LayerNorm":      func(eps, _ float64) { x.LayerNorm(in, nil, nil, []int{2}, tenon.NormOpt{Eps: eps}) },
		"RMSNorm":        func(eps, _ float64) { x.RMSNorm(in, nil, []int{2}, tenon.NormOpt{Eps: eps}) },
		"GroupNorm":      func(eps, _ float64) { x.GroupNorm(in, nil, nil, 1, tenon.NormOpt{Eps: eps}) },
		"BatchNorm": func(eps, m float64) {
			x.BatchNorm(in, nil, nil, mean, variance, tenon.BatchNormOpt{Training: true, Eps: eps, Momentum: m})
		},
		"BatchNormGatherStats": func(eps, m float64) {
			x.BatchNormGatherStats(parts, parts, x.Ones([]int{2}, tenon.Float32), mean, variance, m, eps)
		},
	}
	for _, op := range slices.Sorted(maps.Keys(norms)) {
		f := norms[op]
		eps, momentum := "Eps", "Momentum"
		if op == "BatchNormGatherStats" { // whose eps and momentum are arguments
			eps, momentum = "eps", "momentum"
		}
		for _, v := range []float64{nan, inf, -inf} {
			refusedAs(t, fmt.Sprintf("%s: %s is %v; give a finite number", op, eps, v), func() error { f(v, 0.1); return nil })
			if strings.Contains(op, "BatchNorm") {
				refusedAs(t, fmt.Sprintf("%s: %s is %v; give a finite number", op, momentum, v), func() error { f(1e-5, v); return nil })
			}
		}
		if strings.HasPrefix(op, "New") || op == "BatchNorm" {
			refusedAs(t, op+": Eps is -0.5; give a number that is not negative, since it is added to variances", func() error {
				f(-0.5, 0.1)
				return nil
			})
		} else if err := tenon.Try(func() { f(-0.5, 0.1) }); err != nil {
			t.Errorf("%s with an eps of -0.5: %v", op, err)
		}
		for _, momentum := range []float64{0, -1, 2} {
			if err := tenon.Try(func() { f(0, momentum) }); err != nil {
				t.Errorf("%s with an eps of 0 and a momentum of %v: %v", op, momentum, err)
			}
		}
	}
}

// The eps of distances and of losses is finite, and may be 0 or negative, as in PyTorch. A table's greatest norm may be infinite, which
// limits nothing.
func TestDistanceRanges(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	in := x.Ones([]int{2, 2}, tenon.Float32)
	for op, f := range map[string]func(eps float64){
		"PairwiseDistance":  func(eps float64) { x.PairwiseDistance(in, in, tenon.PairwiseDistanceOpt{Eps: eps}) },
		"Normalize":         func(eps float64) { x.Normalize(in, tenon.NormalizeOpt{Eps: eps}) },
		"CosineSimilarity":  func(eps float64) { x.CosineSimilarity(in, in, tenon.CosineSimilarityOpt{Eps: eps}) },
		"PoissonNLLLoss":    func(eps float64) { x.PoissonNLLLoss(in, in, tenon.PoissonNLLLossOpt{Plain: true, Eps: eps}) },
		"TripletMarginLoss": func(eps float64) { x.TripletMarginLoss(in, in, in, tenon.TripletMarginLossOpt{Eps: eps}) },
	} {
		for _, v := range []float64{nan, inf, -inf} {
			refusedAs(t, fmt.Sprintf("%s: Eps is %v; give a finite number", op, v), func() error { f(v); return nil })
		}
		for _, v := range []float64{0, -0.5} {
			if err := tenon.Try(func() { f(v) }); err != nil {
				t.Errorf("%s with an eps of %v: %v", op, v, err)
			}
		}
	}
	index := tenon.From(x, []int64{0, 1})
	embedding := func(norm float64) func() error {
		return func() error { x.Embedding(index, in, tenon.EmbeddingOpt{MaxNorm: norm}); return nil }
	}
	refusedAs(t, "Embedding: MaxNorm is NaN; give a number", embedding(nan))
	must(t, tenon.Try(func() { embedding(inf)() }))
	if v := testdevice.Read[float32](t, x, in); !slices.Equal(v, []float32{1, 1, 1, 1}) {
		t.Errorf("a table limited by NaN, then by infinity: %v, want ones", v)
	}
}

// Bounds in the wrong order are refused, and equal ones by the module only, as in PyTorch; x.ClampS takes them, as torch.clamp does.
func TestHardtanhRange(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	in := float64s(x, -2, 0.25, 2)
	const module = "; give bounds where Max is larger than Min"
	for want, f := range map[string]func() *tenon.Tensor{
		"Hardtanh: Min is 2 and Max is 1; give bounds where Min is not larger than Max": func() *tenon.Tensor {
			return x.Hardtanh(in, tenon.HardtanhOpt{Min: 2})
		},
		"Hardtanh: Min is 2 and Max is 1" + module:   func() *tenon.Tensor { return nn.Hardtanh{Min: 2}.Forward(x, in) },
		"Hardtanh: Min is 1 and Max is 1" + module:   func() *tenon.Tensor { return nn.Hardtanh{Min: 1, Max: 1}.Forward(x, in) },
		"Hardtanh: Min is NaN and Max is 1" + module: func() *tenon.Tensor { return nn.Hardtanh{Min: nan}.Forward(x, in) },
	} {
		refusedAs(t, want, func() error { f(); return nil })
	}
	for what, got := range map[string]*tenon.Tensor{
		"equal bounds":            x.Hardtanh(in, tenon.HardtanhOpt{Min: 1}),
		"clamped the wrong way":   x.ClampS(in, 2, 1),
		"a bound that is not one": nn.Hardtanh{Min: 1, Max: inf}.Forward(x, float64s(x, -1, -1, -1)),
	} {
		if v := testdevice.Read[float64](t, x, got); !slices.Equal(v, []float64{1, 1, 1}) {
			t.Errorf("%s: %v, want ones", what, v)
		}
	}
}

// A correction that is not finite is refused; any other number is one, as in PyTorch.
func TestCorrectionRange(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	for _, in := range []*tenon.Tensor{float64s(x, 0, 2), tenon.From(x, []complex128{0, 2})} {
		for op, f := range map[string]func(opt tenon.VarOpt){
			"Var": func(opt tenon.VarOpt) { x.Var(in, nil, opt) }, "Std": func(opt tenon.VarOpt) { x.Std(in, nil, opt) },
			"VarMean": func(opt tenon.VarOpt) { x.VarMean(in, nil, opt) },
		} {
			for _, v := range []float64{nan, inf, -inf} {
				refusedAs(t, fmt.Sprintf("%s: Correction is %v; give a finite number", op, v), func() error {
					f(tenon.VarOpt{Correction: v})
					return nil
				})
			}
			if err := tenon.Try(func() { f(tenon.VarOpt{Correction: -3}) }); err != nil {
				t.Errorf("%s: %v", op, err)
			}
		}
	}
}

// Every number among the options of optimizers, schedules and the scaler is finite, whatever else is demanded of it.
func TestOptimizerRanges(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	refuses := func(op string, opt reflect.Value, make func(opt reflect.Value) error) {
		typ := opt.Type()
		for i := range typ.NumField() {
			for _, bad := range []float64{nan, inf, -inf} {
				given, name := reflect.New(typ).Elem(), typ.Field(i).Name
				switch typ.Field(i).Type {
				case reflect.TypeFor[tenon.Scalar]():
					given.Field(i).Set(reflect.ValueOf(bad))
				case reflect.TypeFor[[]float64]():
					given.Field(i).Set(reflect.ValueOf([]float64{0.5, bad}))
					name += "[1]"
				default:
					continue
				}
				refusedAs(t, fmt.Sprintf("%s: %s is %v; give a finite number", op, name, bad), func() error { return make(given) })
			}
		}
	}
	for _, constructors := range zeroOptimizers {
		for _, f := range constructors {
			f := reflect.ValueOf(f)
			refuses(f.Type().Out(0).Elem().Name(), reflect.New(f.Type().In(1).Elem()).Elem(), func(opt reflect.Value) error {
				out := f.Call([]reflect.Value{reflect.ValueOf(theseParams(nn.NewParam(float64s(x, 1)))), opt})
				err, _ := out[1].Interface().(error)
				return err
			})
		}
	}
	o, err := optim.NewSGD(theseParams(nn.NewParam(float64s(x, 1))), optim.SGDOpt{Momentum: 0.5})
	must(t, err)
	defer o.Close()
	rule := func(r optim.Rule) error { return second(optim.NewSchedule(o, r)) }
	one := []float64{1}
	refuses("OneCycleLR", reflect.ValueOf(optim.OneCycleOpt{}), func(opt reflect.Value) error {
		return rule(optim.OneCycleLR(one, 9, opt.Interface().(optim.OneCycleOpt)))
	})
	refuses("CyclicLR", reflect.ValueOf(optim.CyclicOpt{}), func(opt reflect.Value) error {
		return rule(optim.CyclicLR(one, one, opt.Interface().(optim.CyclicOpt)))
	})
	refuses("ReduceLROnPlateau", reflect.ValueOf(optim.PlateauOpt{}), func(opt reflect.Value) error {
		return second(optim.NewReduceLROnPlateau(o, 1, opt.Interface().(optim.PlateauOpt)))
	})
	refuses("GradScaler", reflect.ValueOf(optim.GradScalerOpt{}), func(opt reflect.Value) error {
		return second(optim.NewGradScaler(opt.Interface().(optim.GradScalerOpt)))
	})
}

// Initialisers refuse what PyTorch's distributions refuse, with a generator of the host too, and name the option that led to it.
func TestInitRanges(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	for _, g := range []*nn.HostGenerator{nil, nn.NewHostGenerator(1)} {
		draw := nn.InitOpt{Generator: g}
		w := x.Zeros([]int{2, 3}, tenon.Float32)
		for want, f := range map[string]func(){
			"InitUniform: there is no number from 1 to 0; give a low that is at most high":   func() { nn.InitUniform(x, w, 1, 0, draw) },
			"InitUniform: there is no number from 0 to NaN; give a low that is at most high": func() { nn.InitUniform(x, w, 0, nan, draw) },
			"InitUniform: float32 cannot hold the distance from 0 to +Inf; give bounds that are closer": func() {
				nn.InitUniform(x, w, 0, inf, draw)
			},
			"InitUniform: float16 cannot hold the distance from -40000 to 40000; give bounds that are closer": func() {
				nn.InitUniform(x, x.Zeros([]int{2}, tenon.Float16), -40000, 40000, draw)
			},
			"InitNormal: the standard deviation is -1; give one that is not negative":  func() { nn.InitNormal(x, w, 0, -1, draw) },
			"InitNormal: the standard deviation is NaN; give one that is not negative": func() { nn.InitNormal(x, w, 0, nan, draw) },
			"InitXavierUniform: Gain is -1; give a number that is not negative": func() {
				nn.InitXavierUniform(x, w, nn.XavierOpt{Gain: -1, Generator: g})
			},
			"InitXavierNormal: Gain is +Inf; give a finite number": func() {
				nn.InitXavierNormal(x, w, nn.XavierOpt{Gain: inf, Generator: g})
			},
			"InitKaimingUniform: A is NaN; give the slope of the leaky ReLU that follows": func() {
				nn.InitKaimingUniform(x, w, nn.KaimingOpt{A: nan, Generator: g})
			},
			"InitKaimingNormal: A is NaN; give the slope of the leaky ReLU that follows": func() {
				nn.InitKaimingNormal(x, w, nn.KaimingOpt{A: nan, Generator: g})
			},
		} {
			refusedAs(t, want, func() error { f(); return nil })
		}
		if v := testdevice.Read[float32](t, x, w); !slices.Equal(v, make([]float32, 6)) {
			t.Errorf("refused calls left %v", v)
		}
	}
	refusedAs(t, "UniformInto: float32 cannot hold the distance from 0 to +Inf; give bounds that are closer", func() error {
		x.UniformInto(x.Zeros([]int{2}, tenon.Float32), 0, inf)
		return nil
	})
}

// A margin below 0 is refused, as in PyTorch.
func TestTripletMarginRange(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	in := x.Ones([]int{2, 2}, tenon.Float32)
	for _, v := range []float64{-1, nan, -inf} {
		refusedAs(t, fmt.Sprintf("TripletMarginLoss: Margin is %v; give a number that is not negative", v), func() error {
			x.TripletMarginLoss(in, in, in, tenon.TripletMarginLossOpt{Margin: v})
			return nil
		})
	}
}
