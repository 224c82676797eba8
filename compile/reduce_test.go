package compile_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// reductionCase is a reduction of what element-wise calls make, of random shapes, types and layouts.
type reductionCase struct {
	name    string
	run     func(x *tenon.Exec) []*tenon.Tensor
	alone   bool // there is one reduction
	ordered bool // the operands lie in the order of the calls' results, and each has vectors where the others have
}

// reductions are the reductions by name. Those with a fixed dimension ignore all dims but the first.
var reductions = []struct {
	name string
	run  func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor
	any  bool // also of integers
}{
	{"Sum", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.Sum(t, dims)) }, true},
	{"Mean", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor {
		return all(x.Mean(t, dims, tenon.SumOpt{KeepDim: true}))
	}, false},
	{"NanSum", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.NanSum(t, dims)) }, true},
	{"AMax", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.AMax(t, dims)) }, true},
	{"AMin", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.AMin(t, dims)) }, true},
	{"Var", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.Var(t, dims)) }, false},
	{"VarMean", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.VarMean(t, dims)) }, false},
	{"LogSumExp", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.LogSumExp(t, dims)) }, false},
	{"VectorNorm", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor {
		return all(x.VectorNorm(t, dims, tenon.VectorNormOpt{Ord: 1.5}), x.VectorNorm(t, dims))
	}, false},
	{"Any", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.Any(t, dims)) }, true},
	{"MaxDim", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.MaxDim(t, dims[0])) }, true},
	{"ArgMin", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.ArgMin(t, dims[:1])) }, true},
}

func all(ts ...*tenon.Tensor) []*tenon.Tensor { return ts }

// randomReduction returns a case.
func randomReduction(x *tenon.Exec, rng *rand.Rand) reductionCase {
	shape := [][]int{{1000}, {4099}, {70000}, {33, 130}, {33, 131}, {300, 5}, {5, 4096}, {3, 5, 7, 64}, {2048, 24},
		{1500, 20}, {4, 1, 96}, {6, 2052}, {2, 8, 12, 12}, {9, 160, 4}}[rng.IntN(14)]
	dt := []tenon.DType{tenon.Float32, tenon.Float32, tenon.BFloat16, tenon.Float16, tenon.Float64, tenon.Int32}[rng.IntN(6)]
	var dims []int
	for d := range shape {
		if rng.IntN(2) == 0 {
			dims = append(dims, d)
		}
	}
	if len(dims) == 0 {
		dims = []int{rng.IntN(len(shape))}
	}
	r := reductions[rng.IntN(len(reductions))]
	for dt == tenon.Int32 && !r.any {
		r = reductions[rng.IntN(len(reductions))]
	}
	make1 := func(dt tenon.DType, shape []int) *tenon.Tensor {
		if dt == tenon.Int32 {
			return x.ToDType(x.RandInt(9, shape, tenon.Int64), dt)
		}
		return x.RandN(shape, dt)
	}
	a := make1(dt, shape)
	kind := rng.IntN(7)
	c := reductionCase{ordered: kind != 1 && kind != 2 || shape[len(shape)-1]%8 == 0}
	var b *tenon.Tensor
	switch kind {
	case 0: // of the same layout
		b = make1(dt, shape)
	case 1: // the same for all but the last dimension
		b = make1(dt, shape[len(shape)-1:])
	case 2: // the same along the last dimension
		b = make1(dt, append(append([]int{}, shape[:len(shape)-1]...), 1))
	case 3: // begins between
		n := a.Numel()
		b = x.View(x.Narrow(make1(dt, []int{n + 1}), 0, 1, n), shape...)
	case 4: // in another order
		turned := append([]int{}, shape...)
		turned[0], turned[len(shape)-1] = turned[len(shape)-1], turned[0]
		b = x.Transpose(make1(dt, turned), 0, len(shape)-1)
		c.ordered = len(shape) == 1
	case 5: // of another type
		b = make1(tenon.Float32, shape)
	case 6: // both in the same other order
		turned := append([]int{}, shape...)
		turned[0], turned[len(shape)-1] = turned[len(shape)-1], turned[0]
		a, b = x.Transpose(make1(dt, turned), 0, len(shape)-1), x.Transpose(make1(dt, turned), 0, len(shape)-1)
	}
	c.name = fmt.Sprintf("%s over %v of %v %v, kind %d", r.name, dims, dt, shape, kind)
	steps := rng.IntN(3)
	var more []int // other reductions, of the same values or of an operand
	for range max(0, rng.IntN(5)-2) {
		if m := rng.IntN(len(reductions)); dt != tenon.Int32 || reductions[m].any {
			more = append(more, m)
		}
	}
	c.alone = len(more) == 0
	ofOperand := rng.IntN(2) == 0
	c.run = func(x *tenon.Exec) []*tenon.Tensor {
		y := x.Sub(a, b)
		if steps > 0 {
			y = x.Mul(y, y)
		}
		if steps > 1 {
			y = x.AddS(x.MulS(x.Mul(y, b), 3), 1)
		}
		made := r.run(x, y, dims)
		for _, m := range more {
			if ofOperand {
				y = a
			}
			made = append(made, reductions[m].run(x, y, dims)...)
		}
		return made
	}
	return c
}

// A reduction runs with the element-wise calls that make its input as one kernel, and adds up in the order of eager execution.
func TestReductionsRunWithTheirInputs(t *testing.T) {
	x := open(t).NoGrad()
	must(t, x.Generator().SetSeed(1))
	programs := 400
	if testing.Short() {
		programs = 100
	}
	fused, ordered, together := 0, 0, 0
	for seed := range uint64(programs) {
		c := randomReduction(x, rand.New(rand.NewPCG(seed, 1)))
		bits := func(run func(f func(x *tenon.Exec) error) error) string {
			var kept []*tenon.Tensor
			must(t, run(func(x *tenon.Exec) error {
				for _, y := range c.run(x) {
					kept = append(kept, x.Keep(y))
				}
				return nil
			}))
			var s strings.Builder
			for _, y := range kept {
				v, err := x.Bytes(y)
				must(t, err)
				fmt.Fprintf(&s, "%x\n", v)
				y.Close()
			}
			return s.String()
		}
		want := bits(func(f func(x *tenon.Exec) error) (err error) {
			x.Scope(func(x *tenon.Exec) { err = f(x) })
			return err
		})
		r := compile.New()
		for range 3 {
			if got := bits(func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }); got != want {
				t.Fatalf("seed %d, %s: got\n%.200s, want\n%.200s\n%s", seed, c.name, got, want, r.Explain(x))
			}
		}
		s := r.Stats(x)
		one := s.Kernels == 3 || s.Kernels == 6 // the second kernel combines parts
		switch n := strings.Count(fmt.Sprint(r.Explain(x)), " reduce="); {
		case !c.alone && n > 1:
			together++
		case !c.alone:
		case n > 0 && one:
			fused++
		case c.ordered:
			t.Logf("seed %d, %s: %d kernels, %d fused\n%s", seed, c.name, s.Kernels, s.Fused, r.Explain(x))
		}
		if c.ordered && c.alone {
			ordered++
		}
	}
	t.Logf("%d of %d reductions run with their inputs, which lie in one order in %d; there were %d groups of several", fused, programs, ordered,
		together)
	if fused < ordered || together < programs/8 {
		t.Errorf("of %d reductions, %d run with their inputs, and %d could; there were %d groups of several", programs, fused, ordered, together)
	}
}
