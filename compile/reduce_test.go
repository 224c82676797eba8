package compile_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// reductionCase is a reduction of what element-wise calls make, of random shapes, types and layouts.
type reductionCase struct {
	name    string
	run     func(x *tenon.Exec, factor float64) []*tenon.Tensor
	alone   bool // there is one reduction
	needed  bool // what is reduced is also a result
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
	{"MaxDim without places", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor {
		v, _ := x.MaxDim(t, dims[0])
		return all(v)
	}, true},
	{"SumInto", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor {
		wide := append(slices.Clone(t.Shape()), 2)
		for _, d := range dims {
			wide[d] = 1
		}
		dst := x.Zeros(wide, tenon.Float32)
		x.SumInto(x.Select(dst, len(wide)-1, 1), t, dims, tenon.SumOpt{KeepDim: true, DType: tenon.Float32})
		return all(dst)
	}, true},
	{"MSELoss", func(x *tenon.Exec, t *tenon.Tensor, _ []int) []*tenon.Tensor {
		return all(x.MSELoss(t, x.Abs(t)), x.L1Loss(x.Neg(t), t, tenon.LossOpt{Reduction: tenon.ReduceNone}))
	}, false},
	{"SmoothL1Loss", func(x *tenon.Exec, t *tenon.Tensor, _ []int) []*tenon.Tensor {
		return all(x.SmoothL1Loss(x.Exp(t), t, tenon.SmoothL1LossOpt{Beta: 0.5, Reduction: tenon.ReduceSum}))
	}, false},
	{"ArgMin", func(x *tenon.Exec, t *tenon.Tensor, dims []int) []*tenon.Tensor { return all(x.ArgMin(t, dims[:1])) }, true},
}

// shown returns the bits of tensors as text.
func shown(t *testing.T, x *tenon.Exec, ys []*tenon.Tensor) string {
	t.Helper()
	var s strings.Builder
	for _, y := range ys {
		v, err := x.Bytes(y)
		must(t, err)
		fmt.Fprintf(&s, "%s\n", digest(v))
	}
	return s.String()
}

// digest writes bytes so that two texts are equal where the bytes are: long ones as the first of them and a hash, since the tests compare
// many large results.
func digest(b []byte) string {
	if len(b) <= 64 {
		return hex.EncodeToString(b)
	}
	return fmt.Sprintf("%x… %d bytes %x", b[:32], len(b), sha256.Sum256(b))
}

func closeAll(ts []*tenon.Tensor) {
	for _, t := range ts {
		t.Close()
	}
}

func all(ts ...*tenon.Tensor) []*tenon.Tensor { return ts }

// randomReduction returns a case.
func randomReduction(x *tenon.Exec, rng *rand.Rand) reductionCase {
	shape := [][]int{{1000}, {4099}, {70000}, {33, 130}, {33, 131}, {300, 5}, {5, 4096}, {3, 5, 7, 64}, {2048, 24},
		{1500, 20}, {4, 1, 96}, {6, 2052}, {2, 8, 12, 12}, {9, 160, 4}, {2100, 200}, {300, 136}, {150, 2049}, {12, 40, 520}}[rng.IntN(18)]
	if n := 16 * x.Device().Multiprocessors(); n < 600 { // many rows
		shape = [][]int{{n, 256}, {n + 1, 384}, {n + 2, 1040}, {n + 3, 1024}, {n, 130}, {20, 30, 264}, {n, 2048}, {n, 4, 64}}[rng.IntN(8)]
	}
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
	turned := func() *tenon.Tensor {
		last, other := len(shape)-1, slices.Clone(shape)
		other[0], other[last] = other[last], other[0]
		return x.Transpose(make1(dt, other), 0, last)
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
		b = make1(dt, append(slices.Clone(shape[:len(shape)-1]), 1))
	case 3: // begins between
		n := a.Numel()
		b = x.View(x.Narrow(make1(dt, []int{n + 1}), 0, 1, n), shape...)
	case 4: // in another order
		b = turned()
		c.ordered = len(shape) == 1
	case 5: // of another type
		b = make1(tenon.Float32, shape)
	case 6: // both in the same other order
		a, b = turned(), turned()
	}
	c.name = fmt.Sprintf("%s over %v of %v %v, kind %d", r.name, dims, dt, shape, kind)
	steps, compares := rng.IntN(3), r.any && rng.IntN(6) == 0
	var more []int // other reductions, of the same values or of an operand
	for range max(0, rng.IntN(5)-2) {
		if m := rng.IntN(len(reductions)); dt != tenon.Int32 || reductions[m].any {
			more = append(more, m)
		}
	}
	c.alone = len(more) == 0
	ofOperand, others := rng.IntN(2) == 0, dims
	if rng.IntN(4) == 0 {
		others = []int{rng.IntN(len(shape))}
	}
	c.needed = rng.IntN(3) == 0
	between := c.needed && rng.IntN(2) == 0
	flat := len(shape) > 2 && rng.IntN(2) == 0 // the reduction sees a matrix
	if flat {
		c.name += ", flat"
		dims, others = []int{rng.IntN(2)}, []int{rng.IntN(2)}
	}
	c.run = func(x *tenon.Exec, factor float64) (made []*tenon.Tensor) {
		y := x.Sub(a, b)
		if steps > 0 {
			y = x.Mul(y, y)
		}
		if steps > 1 {
			y = x.AddS(x.MulS(x.Mul(y, b), factor), 1)
		}
		if compares {
			y = x.Lt(y, b)
		}
		if c.needed {
			made = all(y)
		}
		if between && !compares { // the reduction has to run before this
			made = append(made, x.Flip(y, 0))
		}
		matrix := func(t *tenon.Tensor) *tenon.Tensor {
			if flat {
				return x.Flatten(t, 0, -2)
			}
			return t
		}
		made = append(made, r.run(x, matrix(y), dims)...)
		for _, m := range more {
			if ofOperand || compares {
				y = a
			}
			made = append(made, reductions[m].run(x, matrix(y), others)...)
		}
		return made
	}
	return c
}

// A reduction runs with the element-wise calls that make its input as one kernel, and adds up in the order of eager execution.
func TestReductionsRunWithTheirInputs(t *testing.T) {
	every := openAlone(t).NoGrad()
	must(t, every.Generator().SetSeed(1))
	few, closed := openFew(t)
	defer closed()
	must(t, few.Generator().SetSeed(1))
	programs := 400
	if testing.Short() {
		programs = 100
	}
	fused, ordered, together, storing := 0, 0, 0, 0
	for seed := range uint64(programs) {
		x := every
		if seed%8 == 7 && !onGPU() {
			x = few.NoGrad()
		}
		c := randomReduction(x, rand.New(rand.NewPCG(seed, 1)))
		bits := func(factor float64, run func(f func(x *tenon.Exec) error) error) string {
			var kept []*tenon.Tensor
			must(t, run(func(x *tenon.Exec) error {
				for _, y := range c.run(x, factor) {
					kept = append(kept, x.Keep(y))
				}
				return nil
			}))
			defer closeAll(kept)
			return shown(t, x, kept)
		}
		r := compile.New()
		for run := range 3 {
			factor := float64(3 + run)
			want := bits(factor, func(f func(x *tenon.Exec) error) (err error) {
				x.Scope(func(x *tenon.Exec) { err = f(x) })
				return err
			})
			if got := bits(factor, func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }); got != want {
				t.Fatalf("seed %d, %s: got\n%.200s, want\n%.200s\n%s", seed, c.name, got, want, r.Explain(x))
			}
		}
		s := r.Stats(x)
		one := s.Kernels == 3 || s.Kernels == 6 // the second kernel combines parts
		if strings.Contains(fmt.Sprint(r.Explain(x)), " stores ") && c.needed {
			storing++
		}
		switch n := strings.Count(fmt.Sprint(r.Explain(x)), " reduce="); {
		case c.needed:
		case !c.alone && n > 1:
			together++
		case !c.alone:
		case n > 0 && one:
			fused++
		case c.ordered:
			t.Logf("seed %d, %s: %d kernels, %d fused\n%s", seed, c.name, s.Kernels, s.Fused, r.Explain(x))
		}
		if c.ordered && c.alone && !c.needed {
			ordered++
		}
	}
	t.Logf("%d of %d reductions run with their inputs, which lie in one order in %d; there were %d groups of several, and %d that write "+
		"what they reduce", fused, programs, ordered, together, storing)
	if fused < ordered || together < programs/10 || storing < programs/10 {
		t.Errorf("of %d reductions, %d run with their inputs, and %d could; there were %d groups of several",
			programs, fused, ordered, together)
	}
}

// What a reduction takes from a chain, and what is left of the chain if it takes nothing.
//
//tenon:table programs, each with how many kernels it is
func TestReductionsLeaveChains(t *testing.T) {
	x := open(t).NoGrad()
	must(t, x.Generator().SetSeed(1))
	a, b := x.RandN([]int{33, 131}, tenon.Float32), x.RandN([]int{33, 131}, tenon.Float32)
	h, row := x.RandN([]int{33, 131}, tenon.BFloat16), x.RandN([]int{131}, tenon.BFloat16)
	flat := x.RandN([]int{300}, tenon.Float32)
	cube, other := x.RandN([]int{6, 6, 6}, tenon.Float32), x.RandN([]int{6, 6, 6}, tenon.Float32)
	wide, even := x.RandN([]int{33, 132}, tenon.BFloat16), x.RandN([]int{33, 128}, tenon.BFloat16)
	at := 0 // where a view of flat begins
	type outs = []*tenon.Tensor
	for name, c := range map[string]struct {
		run            func(x *tenon.Exec) outs
		kernels, fused int
	}{
		"a value without its place": {func(x *tenon.Exec) outs {
			v, _ := x.MaxDim(x.Exp(x.Sub(a, b)), 1)
			return outs{v}
		}, 1, 3},
		"a place without its value": {func(x *tenon.Exec) outs {
			_, i := x.MaxDim(x.Exp(x.Sub(a, b)), 1)
			return outs{i}
		}, 1, 3},
		"four": {func(x *tenon.Exec) outs {
			y := x.Exp(x.Sub(a, b))
			return outs{x.Sum(y, []int{0}), x.Mean(y, []int{0}), x.NanSum(y, []int{0}), x.AMax(y, []int{0})}
		}, 1, 6},
		"more state than there is room for": {func(x *tenon.Exec) outs {
			y := x.Exp(x.Sub(a, b))
			return outs{x.Var(y, []int{0}), x.Std(y, []int{0}), x.Sum(y, []int{0})} // three numbers each, and one
		}, 2, 4},
		"a loss": {func(x *tenon.Exec) outs {
			return outs{x.HuberLoss(x.Exp(a), x.Sub(a, b), tenon.HuberLossOpt{Delta: 2})}
		}, 1, 3},
		"a loss, and what its gradient needs": {func(x *tenon.Exec) outs {
			y := x.Exp(a)
			return outs{y, x.MSELoss(y, b), x.Mean(y, nil)}
		}, 1, 3},
		"a loss of every element": {func(x *tenon.Exec) outs {
			return outs{x.L1Loss(x.Exp(a), b, tenon.LossOpt{Reduction: tenon.ReduceNone})}
		}, 1, 2},
		"of other dimensions": {func(x *tenon.Exec) outs {
			y := x.Exp(x.Sub(a, b))
			return outs{x.Sum(y, []int{0}), x.Sum(y, []int{1})}
		}, 2, 3},
		"of other dimensions that are as long": {func(x *tenon.Exec) outs {
			y := x.Exp(x.Sub(cube, other))
			return outs{x.Sum(y, []int{0}), x.Sum(y, []int{1})}
		}, 2, 3},
		"of another layout": {func(x *tenon.Exec) outs {
			turned := x.Transpose(cube, 0, 1)
			return outs{x.Sum(x.Mul(cube, turned), []int{0, 1}), x.Sum(turned, []int{0, 1})}
		}, 2, 2},
		"of an operand that is repeated": {func(x *tenon.Exec) outs { // whose strides are in another order than the result's
			return outs{x.Sum(x.Sub(x.Narrow(other, 0, 0, 1), cube), []int{0, 1})}
		}, 1, 2},
		"rows that begin between": {func(x *tenon.Exec) outs {
			return outs{x.Sum(x.Mul(x.Narrow(wide, 1, 0, 128), even), []int{1})}
		}, 1, 2},
		"of what is needed": {func(x *tenon.Exec) outs {
			d := x.Sub(x.Exp(a), b)
			return outs{d, x.Sum(x.Mul(d, d), nil)}
		}, 1, 4},
		"vectors that reach into the next row": {func(x *tenon.Exec) outs {
			return outs{x.Sum(x.Mul(x.Sub(h, row), x.Exp(h)), nil)}
		}, 2, 3},
		"a half and a float32 of one layout": {func(x *tenon.Exec) outs {
			return outs{x.Sum(x.Mul(h, a), []int{1}), x.Sum(h, []int{1})}
		}, 2, 2},
		"a half that is widened": {func(x *tenon.Exec) outs {
			f := x.ToDType(h, tenon.Float32)
			v, _ := x.MaxDim(x.Mul(f, b), 1)
			return outs{x.Softmax(x.MulS(f, 2), 1), v, x.Exp(x.Sub(x.Abs(a), b))}
		}, 3, 7},
		"a sum that changes what it reads": {func(x *tenon.Exec) outs {
			y := x.Clone(a)
			x.SumInto(x.Narrow(y, 1, 0, 1), x.Exp(x.Narrow(y, 1, 1, 130)), []int{1}, tenon.SumOpt{KeepDim: true})
			return outs{y}
		}, 3, 2},
		"views that begin elsewhere": {func(x *tenon.Exec) outs {
			v := x.Narrow(flat, 0, at, 256)
			return outs{x.Sum(x.Mul(v, v), nil), x.AMax(x.Exp(v), nil)}
		}, 1, 4},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			r := compile.New()
			for run := range 4 {
				at = []int{0, 1, 4, 8}[run]
				var want string
				x.Scope(func(x *tenon.Exec) { want = shown(t, x, c.run(x)) })
				var ys outs
				must(t, r.Do(x, func(x *tenon.Exec) error {
					for _, y := range c.run(x) {
						ys = append(ys, x.Keep(y))
					}
					return nil
				}))
				if got := shown(t, x, ys); got != want {
					t.Fatalf("run %d: got\n%.200s, want\n%.200s\n%s", run, got, want, r.Explain(x))
				}
				closeAll(ys)
			}
			if s := r.Stats(x); s.Kernels != 4*c.kernels || s.Fused != 4*c.fused {
				t.Errorf("%d kernels ran and %d calls were fused in 4 runs, want %d and %d\n%s", s.Kernels, s.Fused, 4*c.kernels, 4*c.fused,
					r.Explain(x))
			}
		})
	}
}
