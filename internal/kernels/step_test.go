package kernels

import (
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// rows returns two rows, the second of which is row. If the first one is read, the results are NaN.
func (h *host) rows(row []float64) Operand {
	return h.of(dtype.Float64, append(slices.Repeat([]float64{math.NaN()}, RowLen), row...), 2, RowLen)
}

// rowOf returns a row that holds scalars.
func rowOf(scalars []Scalar, skip float64) []float64 {
	row := make([]float64, RowLen)
	row[rowSkip] = skip
	for i, s := range scalars {
		row[rowScalars+i] = s.F
	}
	return row
}

// stepScalars gives the scalars of each step by the formulas of torch.optim, in float64. n are the numbers, t is the step.
var stepScalars = map[*StepOp]func(n []float64, t float64) []float64{
	SGD:         func(n []float64, t float64) []float64 { return []float64{n[1], n[2], -n[0]} },
	SGDMomentum: func(n []float64, t float64) []float64 { return append([]float64{n[1], n[2], -n[0]}, momenta(n, t)...) },
	SGDNesterov: func(n []float64, t float64) []float64 {
		return append(append([]float64{n[1], n[2], -n[0]}, momenta(n, t)...), n[3])
	},
	Adam: adamScalars(false), AdamAMSGrad: adamScalars(false), AdamW: adamScalars(true), AdamWAMS: adamScalars(true),
	NAdam: nadamScalars(false), NAdamW: nadamScalars(true), RAdam: radamScalars(false), RAdamW: radamScalars(true),
	Adamax: func(n []float64, t float64) []float64 {
		return []float64{n[1], n[2], 1 - n[3], n[4], n[5], -n[0] / (1 - math.Pow(n[3], t))}
	},
	Adagrad:  func(n []float64, t float64) []float64 { return []float64{n[1], n[2], -n[0] / (1 + (t-1)*n[3]), n[4]} },
	Adadelta: func(n []float64, t float64) []float64 { return []float64{n[1], n[2], n[3], 1 - n[3], n[4], -n[0]} },
	RMSprop:  rmsScalars, RMSpropCentered: rmsScalars, RMSpropMomentum: rmsScalars, RMSpropCenteredMomentum: rmsScalars,
	Rprop: func(n []float64, t float64) []float64 { return []float64{n[1], 0, n[3], n[4], n[5], n[6]} },
	ASGD: func(n []float64, t float64) []float64 {
		eta, mu := n[0], 1.0
		if t > 1 {
			eta, mu = n[0]/math.Pow(1+n[3]*n[0]*(t-1), n[4]), 1/math.Max(1, t-1-n[5])
		}
		return []float64{n[1], n[2], 1 - n[3]*eta, -eta, mu}
	},
}

func momenta(n []float64, t float64) []float64 {
	if t == 1 {
		return []float64{0, 1}
	}
	return []float64{n[3], n[4]}
}

func decayScalar(n []float64, decoupled bool) float64 {
	if decoupled {
		return 1 - n[0]*n[2]
	}
	return n[2]
}

func adamScalars(decoupled bool) func(n []float64, t float64) []float64 {
	return func(n []float64, t float64) []float64 {
		return []float64{n[1], decayScalar(n, decoupled), 1 - n[3], n[4], 1 - n[4], -n[0] / (1 - math.Pow(n[3], t)),
			math.Sqrt(1 - math.Pow(n[4], t)), n[5]}
	}
}

func nadamScalars(decoupled bool) func(n []float64, t float64) []float64 {
	return func(n []float64, t float64) []float64 {
		mu := func(t float64) float64 { return n[3] * (1 - 0.5*math.Pow(0.96, t*n[6])) }
		product := 1.0
		for i := 1.0; i <= t; i++ {
			product *= mu(i)
		}
		return []float64{n[1], decayScalar(n, decoupled), 1 - n[3], n[4], 1 - n[4], 1 - math.Pow(n[4], t),
			-n[0] * (1 - mu(t)) / (1 - product),
			-n[0] * mu(t+1) / (1 - product*mu(t+1)), n[5]}
	}
}

func radamScalars(decoupled bool) func(n []float64, t float64) []float64 {
	return func(n []float64, t float64) []float64 {
		end, kept := 2/(1-n[4])-1, math.Pow(n[4], t)
		rho, rect := end-2*t*kept/(1-kept), 0.0
		if rho > 5 {
			rect = math.Sqrt((rho-4)*(rho-2)*end/((end-4)*(end-2)*rho)) * math.Sqrt(1-kept)
		}
		return []float64{n[1], decayScalar(n, decoupled), 1 - n[3], n[4], 1 - n[4], 1 - math.Pow(n[3], t), -n[0], rect, n[5]}
	}
}

func rmsScalars(n []float64, t float64) []float64 {
	return []float64{n[1], n[2], n[3], 1 - n[3], n[4], -n[0], n[5]}
}

// TestAdvance checks every step's scalars, over steps of which the device skips some; those are not counted.
func TestAdvance(t *testing.T) {
	for _, op := range StepOps() {
		t.Run(op.Name, func(t *testing.T) {
			want := stepScalars[op]
			if want == nil {
				t.Fatal("no scalars are known of this step; add them")
			}
			numbers := []float64{.01, -1, .1, .8, .95, 1e-6, .004}[:op.Numbers]
			h := newHost(t)
			rows := h.rows(make([]float64, RowLen))
			lr, found := h.of(dtype.Float32, []float64{.25}, 1), h.of(dtype.Float32, []float64{0}, 1)
			count := 0.0
			for i := range 30 {
				n := slices.Clone(numbers)
				var rate, skip Operand
				if i%3 == 1 && op != ASGD { // whose rate depends on that of the preceding step
					rate, n[0] = lr, .25
				}
				skipped := i%4 == 2
				if i%2 == 0 {
					h.write(found, func(int) complex128 {
						if skipped {
							return 3
						}
						return 0
					})
					skip = found
				}
				if err := Advance(h, op, numbers, Rows{Ptr: rows.Ptr, Which: []int32{1}}, rate, skip); err != nil {
					t.Fatal(err)
				}
				got := h.read(rows)[RowLen:]
				if skipped {
					if got[0] != count || got[rowSkip] == 0 {
						t.Fatalf("a step to skip: %v", got)
					}
					continue
				}
				count++
				if got[0] != count || got[rowSkip] != 0 {
					t.Fatalf("step %v: %v", count, got)
				}
				for j, w := range want(n, count) {
					if g := got[rowScalars+j]; math.Abs(g-w) > 1e-13*math.Abs(w) {
						t.Errorf("step %v, scalar %d: got %v, want %v", count, j, g, w)
					}
				}
			}
		})
	}
}

// TestAdvanceMany has more rows than a launch takes, in any order; the others must not change.
func TestAdvanceMany(t *testing.T) {
	h := newHost(t)
	const n = 1300
	rows := h.of(dtype.Float64, make([]float64, n*RowLen), n, RowLen)
	var which []int32
	for i := n - 1; i >= 0; i -= 2 {
		which = append(which, int32(i))
	}
	if err := Advance(h, SGD, []float64{1, 1, 0}, Rows{Ptr: rows.Ptr, Which: which}, Operand{}, Operand{}); err != nil {
		t.Fatal(err)
	}
	if h.launches != 2 {
		t.Errorf("%d launches", h.launches)
	}
	for i, v := range h.read(rows) {
		if want := float64(i / RowLen % 2); i%RowLen == 0 && v != want {
			t.Fatalf("row %d was counted %v times, want %v", i/RowLen, v, want)
		}
	}
	if err := Advance(h, SGD, nil, Rows{}, Operand{}, Operand{}); err == nil || !strings.Contains(err.Error(), "takes 3 numbers, got 0") {
		t.Error(err)
	}
}

// TestMultiTensorSkips: tensors whose rows are marked are not changed.
func TestMultiTensorSkips(t *testing.T) {
	h := newHost(t)
	table := h.of(dtype.Float64, append(rowOf([]Scalar{FloatScalar(1), FloatScalar(0), FloatScalar(-1)}, 0), rowOf(nil, 1)...), 2, RowLen)
	var outs, ins [][]Operand
	for range 2 {
		p, g := h.of(dtype.Float32, []float64{1, 2, 3}, 3), h.of(dtype.Float32, []float64{1, 1, math.NaN()}, 3)
		outs, ins = append(outs, []Operand{p}), append(ins, []Operand{p, g})
	}
	if err := MultiTensor(h, SGD.PointOp, dtype.Float32, Rows{Ptr: table.Ptr, Which: []int32{0, 1}}, outs, ins); err != nil {
		t.Fatal(err)
	}
	if got := h.read(outs[0][0]); got[0] != 0 || got[1] != 1 || !math.IsNaN(got[2]) {
		t.Errorf("got %v", got)
	}
	if got := h.read(outs[1][0]); !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("a tensor to skip became %v", got)
	}
}
