package nn_test

import (
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
)

// clipped is a module with three parameters, the last without a gradient.
type clipped struct{ A, B, C *nn.Param }

func TestClipGrad(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		zeros := func(dt tenon.DType, n int) *nn.Param { return nn.NewParam(x.Zeros([]int{n}, dt)) }
		m := clipped{zeros(tenon.Float32, 2), zeros(tenon.BFloat16, 1), zeros(tenon.Float32, 1)}
		defer nn.Close(&m)
		set := func() {
			m.A.SetGrad(tenon.From(x, []float32{3, -4}))
			m.B.SetGrad(x.Full([]int{1}, 12, tenon.BFloat16))
		}
		want := func(norm *tenon.Tensor, of float64, a0, a1, b float32) {
			t.Helper()
			wantFloats(t, x, x.ToDType(norm, tenon.Float32), float32(of))
			wantFloats(t, x, m.A.Grad(), a0, a1)
			wantFloats(t, x, x.ToDType(m.B.Grad(), tenon.Float32), b)
		}
		params := func(yield func(string, *nn.Param) bool) { _ = yield("A", m.A) && yield("B", m.B) && yield("C", m.C) }
		set()
		want(nn.ClipGradNorm(x, params, 100), 13, 3, -4, 12)
		want(nn.ClipGradNorm(x, params, 6.5), 13, 1.5, -2, 6)
		set()
		want(nn.ClipGradNorm(x, params, 6, nn.ClipOpt{Norm: math.Inf(1)}), 12, 1.5, -2, 6)
		set()
		want(nn.ClipGradNorm(x, params, 9.5, nn.ClipOpt{Norm: 1}), 19, 1.5, -2, 6)
		nn.ClipGradValue(x, params, 1.75)
		want(x.Zeros(nil, tenon.Float32), 0, 1.5, -1.75, 1.75)
		wantFloats(t, x, nn.ClipGradNorm(x, func(yield func(string, *nn.Param) bool) { yield("C", m.C) }, 1), 0)
		if m.C.Grad() != nil {
			t.Error("a parameter without a gradient has got one")
		}
		wantError(t, func() { nn.ClipGradNorm(x, nil, 1) }, "the parameters are nil")
		wantError(t, func() { nn.ClipGradValue(x, nil, 1) }, "the parameters are nil")
		wantError(t, func() { nn.ClipGradNorm(x, params, -1) }, "ClipGradNorm", "at most -1")
		wantError(t, func() { nn.ClipGradNorm(x, params, math.NaN()) }, "not negative")
		wantError(t, func() { nn.ClipGradValue(x, params, math.NaN()) }, "ClipGradValue")
	})
}

// Gradients without elements have no greatest magnitude, however many they are; then nothing changes.
func TestClipGradNormOfNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, many := range []int{1, 2, 3, 9} {
			var ps []*nn.Param
			for i := range many {
				p := nn.NewParam(x.Zeros([]int{2 * i}, tenon.Float32))
				defer p.Close()
				p.SetGrad(x.Full([]int{2 * i}, 3, tenon.Float32))
				ps = append(ps, p)
			}
			params := func(yield func(string, *nn.Param) bool) {
				for _, p := range ps {
					if !yield("", p) {
						return
					}
				}
			}
			wantError(t, func() { nn.ClipGradNorm(x, params, 1, nn.ClipOpt{Norm: math.Inf(1)}) }, "empty tensor", "identity")
			for i, p := range ps[1:] {
				wantFloats(t, x, p.Grad(), slices.Repeat([]float32{3}, 2*(i+1))...)
			}
			want := math.Sqrt(float64(9 * many * (many - 1)))
			norm := nn.ClipGradNorm(x, params, 1e9)
			if v, err := x.Item(norm); err != nil || math.Abs(v-want) > 1e-4 {
				t.Errorf("the norm of %d gradients is %v, want %v (%v)", many, v, want, err)
			}
			norm.Close()
		}
	})
}

// One kernel scales the gradients of many parameters and gives the same bits as scaling them one by one, also for gradients with permuted
// strides or without elements. Gradients that share memory are scaled one by one.
func TestClipGradNormOfMany(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for name, shared := range map[string]bool{"Apart": false, "Shared": true} {
			t.Run(name, func(t *testing.T) {
				x.Scope(func(x *tenon.Exec) {
					var ps []*nn.Param
					var before []*tenon.Tensor
					whole := x.RandN([]int{80, 3}, tenon.Float32)
					for i := range 40 {
						shape := []int{2, 3}
						if i == 9 {
							shape = []int{0}
						}
						p, g := nn.NewParam(x.Zeros(shape, tenon.Float32)), x.RandN(shape, tenon.Float32)
						switch {
						case i == 7:
							g = x.T(x.RandN([]int{3, 2}, tenon.Float32))
						case shared && i != 9:
							g = x.Narrow(whole, 0, 2*min(i, 38), 2) // the last two are the same
						}
						p.SetGrad(g)
						ps, before = append(ps, p), append(before, x.Clone(g))
					}
					params := func(yield func(string, *nn.Param) bool) {
						for _, p := range ps {
							if !yield("", p) {
								return
							}
						}
					}
					version := ps[0].Grad().Version()
					norm := nn.ClipGradNorm(x, params, 0.75)
					if v := ps[0].Grad().Version(); v != version+1 && !shared {
						t.Errorf("the version is %d after %d", v, version)
					}
					factor := x.ClampMaxS(x.RDivS(x.AddS(norm, 1e-6), 0.75), 1)
					for i, p := range ps {
						want := x.Mul(before[i], factor)
						if shared && i >= 38 {
							want = x.Mul(want, factor)
						}
						same, err := x.Equal(p.Grad(), want)
						if err != nil || !same {
							t.Errorf("gradient %d is not scaled as it should be (%v)", i, err)
						}
						p.Close()
					}
				})
			})
		}
	})
}

// Two kernels compute all norms, and one kernel scales up to 32 gradients. Gradients that share memory are scaled one by one, since one
// kernel would change them at the same time.
func TestClipGradNormLaunches(t *testing.T) {
	const many = 40
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	var rec *record.Device
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device {
		rec = record.New(d)
		return rec
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	defer x.Close()
	launches := func(shared bool) int {
		var ps []*nn.Param
		for i := range many {
			p := nn.NewParam(x.Zeros([]int{3}, tenon.Float32))
			defer p.Close()
			if shared && i > 0 {
				p.SetGrad(ps[0].Grad())
			} else {
				p.SetGrad(x.Ones([]int{3}, tenon.Float32))
			}
			ps = append(ps, p)
		}
		rec.Reset()
		nn.ClipGradNorm(x, func(yield func(string, *nn.Param) bool) {
			for _, p := range ps {
				if !yield("", p) {
					return
				}
			}
		}, 1).Close()
		return rec.Count("Launch")
	}
	apart, shared := launches(false), launches(true)
	if apart > 12 || shared < many {
		t.Errorf("%d launches for %d gradients, and %d where they are one", apart, many, shared)
	}
}
