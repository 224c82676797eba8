package compile_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var (
	rounds     = flag.Int("rounds", 60, "how many programs TestRandomRounds runs")
	roundsFrom = flag.Uint64("roundsfrom", 0, "the first of them")
)

// roundsProgram is a random program of reductions within rows, of what is made with the results of others.
type roundsProgram struct {
	seed uint64
	dt   tenon.DType
	// indexed says that the reductions are maxima with their positions.
	indexed bool
	shape   []int
	// arrays have the program's shape, numbers an element for each row. column has one for each place in a row.
	arrays, numbers []*tenon.Tensor
	column          *tenon.Tensor
	text            []string // the program, one line for each value
}

// newRoundsProgram draws a program's operands. Some lie with gaps, off alignment, or repeat.
func newRoundsProgram(x *tenon.Exec, seed uint64) *roundsProgram {
	rng := rand.New(rand.NewPCG(seed, 31))
	p := &roundsProgram{seed: seed, indexed: rng.IntN(4) == 0}
	types := []tenon.DType{tenon.Float32, tenon.Float32, tenon.BFloat16, tenon.BFloat16, tenon.Float16, tenon.Float64, tenon.Int32}
	p.dt = types[rng.IntN(len(types))]
	n := []int{2, 31, 33, 128, 131, 264, 513, 1024, 1029, 2050, 4096, 4104, 5000}[rng.IntN(13)]
	rows := min([]int{1, 3, 40, 133, 300}[rng.IntN(5)], 100000/n)
	p.shape = [][]int{{rows, n}, {rows, n}, {2, rows, n}, {n}}[rng.IntN(4)]
	if seed%3 == 0 { // many rows
		n = []int{70, 256, 264, 384, 1000, 1029, 1032, 1280, 2050}[rng.IntN(9)]
		p.shape = []int{16*x.Device().Multiprocessors() + rng.IntN(4), n}
	}
	draw := func(shape ...int) *tenon.Tensor {
		t := x.RandN(shape, tenon.Float32)
		if !p.dt.IsFloat() {
			t = x.MulS(t, 20)
		}
		return x.ToDType(t, p.dt)
	}
	last, off := len(p.shape)-1, []int{0, 1, 8}[rng.IntN(3)]
	for range 3 {
		wide := append([]int(nil), p.shape...)
		switch wide[last] += 16; rng.IntN(4) {
		case 0:
			p.arrays = append(p.arrays, x.Narrow(draw(wide...), last, off, n))
		case 1:
			p.arrays = append(p.arrays, x.Expand(draw(n), p.shape...))
		default:
			p.arrays = append(p.arrays, draw(p.shape...))
		}
	}
	each := append([]int(nil), p.shape...)
	each[last] = 1
	p.numbers, p.column = []*tenon.Tensor{draw(each...)}, x.Narrow(draw(n+8), 0, off, n)
	return p
}

// roundsRun is one run of a program, with the number v.
type roundsRun struct {
	*roundsProgram
	x               *tenon.Exec
	rng             *rand.Rand
	v               float64
	arrays, numbers []*tenon.Tensor
	recent          int
}

func (p *roundsProgram) run(x *tenon.Exec, v float64) (outs []*tenon.Tensor) {
	r := &roundsRun{p, x, rand.New(rand.NewPCG(p.seed, 32)), v, append([]*tenon.Tensor(nil), p.arrays...),
		append([]*tenon.Tensor(nil), p.numbers...), 0}
	p.text = nil
	for range 2 + r.rng.IntN(3) {
		for range r.rng.IntN(3) {
			r.element()
		}
		before := len(r.numbers)
		for range 1 + r.rng.IntN(5)/3 {
			r.reduce()
		}
		for range r.rng.IntN(3) {
			r.number()
		}
		for range 1 + r.rng.IntN(2) {
			r.withNumber(before + r.rng.IntN(len(r.numbers)-before))
		}
	}
	give := func(t *tenon.Tensor, f string, args ...any) {
		outs, p.text = append(outs, t), append(p.text, "out "+fmt.Sprintf(f, args...))
	}
	if r.rng.IntN(8) > 0 {
		give(r.arrays[r.recent], "a%d", r.recent)
	}
	give(r.numbers[len(r.numbers)-1], "n%d", len(r.numbers)-1)
	for i := len(p.arrays); i < len(r.arrays); i++ {
		if i != r.recent && r.rng.IntN(5) == 0 {
			give(r.arrays[i], "a%d", i)
		}
	}
	for i := len(p.numbers); i < len(r.numbers)-1; i++ {
		if r.rng.IntN(5) == 0 {
			give(r.numbers[i], "n%d", i)
		}
	}
	return outs
}

func (r *roundsRun) array(t *tenon.Tensor, f string, args ...any) {
	r.recent = len(r.arrays)
	r.arrays, r.text = append(r.arrays, t), append(r.text, fmt.Sprintf("a%d = "+f, append([]any{r.recent}, args...)...))
}

func (r *roundsRun) row(t *tenon.Tensor, f string, args ...any) {
	r.text = append(r.text, fmt.Sprintf("n%d = "+f, append([]any{len(r.numbers)}, args...)...))
	r.numbers = append(r.numbers, t)
}

// some returns the number of an array, usually of the latest.
func (r *roundsRun) some() int {
	if r.rng.IntN(3) > 0 {
		return r.recent
	}
	return r.rng.IntN(len(r.arrays))
}

// element makes an array of others.
func (r *roundsRun) element() {
	x, i := r.x, r.some()
	a, float := r.arrays[i], r.dt.IsFloat()
	switch o := r.rng.IntN(9); {
	case o < 2 && float:
		r.array(x.Exp(x.MulS(a, r.v/2)), "exp(a%d v/2)", i)
	case o == 2 && float:
		r.array(x.Tanh(a), "tanh(a%d)", i)
	case o == 3 && float:
		r.array(x.Sigmoid(x.AddS(a, r.v)), "sigmoid(a%d + v)", i)
	case o == 4:
		r.array(x.Mul(a, r.column), "a%d column", i)
	case o == 5:
		r.array(x.Mul(a, r.roundsProgram.numbers[0]), "a%d n0", i)
	case o == 6 && float && r.dt != tenon.Float64:
		r.array(x.ToDType(x.Exp(x.ToDType(a, tenon.Float64)), r.dt), "exp(a%d) in float64", i)
	default:
		j := r.some()
		r.array(x.Sub(a, r.arrays[j]), "a%d - a%d", i, j)
	}
}

// reduce makes numbers for rows of an array.
func (r *roundsRun) reduce() {
	x, i, last := r.x, r.some(), []int{-1}
	a, float, keep, kept := r.arrays[i], r.dt.IsFloat(), tenon.SumOpt{KeepDim: true}, tenon.DimOpt{KeepDim: true}
	if r.indexed {
		most, at := x.MaxDim(a, -1, kept)
		r.row(most, "max(a%d)", i)
		r.row(x.ToDType(at, r.dt), "its position")
		return
	}
	switch o := r.rng.IntN(9); {
	case o == 8 && float && r.dt.Size() == 2:
		r.row(x.ToDType(x.Sum(x.ToDType(a, tenon.Float32), last, keep), r.dt), "sum(a%d) in float32", i)
	case o == 0 && float:
		r.row(x.Mean(a, last, keep), "mean(a%d)", i)
	case o == 1 && float:
		variance, mean := x.VarMean(a, last, tenon.VarOpt{KeepDim: true})
		r.row(variance, "var(a%d)", i)
		r.row(mean, "its mean")
	case o == 2:
		r.row(x.AMin(a, last, kept), "min(a%d)", i)
	case o < 5:
		r.row(x.ToDType(x.Sum(a, last, keep), r.dt), "sum(a%d)", i)
	case o == 5 && float:
		r.row(x.Unsqueeze(x.MulS(x.Sum(a, last), r.v/4), len(r.shape)-1), "sum(a%d) v/4", i)
	default:
		r.row(x.AMax(a, last, kept), "max(a%d)", i)
	}
}

// number makes numbers for rows of others.
func (r *roundsRun) number() {
	x, i, j := r.x, len(r.numbers)-1, r.rng.IntN(len(r.numbers))
	switch o := r.rng.IntN(4); {
	case o == 0 && r.dt.IsFloat():
		r.row(x.Rsqrt(x.AddS(x.Abs(r.numbers[i]), r.v)), "rsqrt(abs(n%d) + v)", i)
	case o == 1 && r.dt.IsFloat():
		r.row(x.Exp(x.MulS(r.numbers[i], 0.125)), "exp(n%d/8)", i)
	default:
		r.row(x.Mul(r.numbers[i], r.numbers[j]), "n%d n%d", i, j)
	}
}

// withNumber makes an array of another and of numbers j for rows.
func (r *roundsRun) withNumber(j int) {
	x, i := r.x, r.some()
	a, n := r.arrays[i], r.numbers[j]
	switch o := r.rng.IntN(4); {
	case o == 0 && r.dt.IsFloat():
		r.array(x.Div(a, n), "a%d / n%d", i, j)
	case o == 1:
		r.array(x.Where(x.Gt(a, n), a, x.Sub(a, n)), "a%d > n%d ? a%d : a%d - n%d", i, j, i, i, j)
	case o == 2 && r.dt.IsFloat():
		r.array(x.Exp(x.Sub(a, n)), "exp(a%d - n%d)", i, j)
	default:
		r.array(x.Sub(a, n), "a%d - n%d", i, j)
	}
}

// Programs of reductions in rounds give the bits of eager execution, while a number changes.
func TestRandomRounds(t *testing.T) {
	several, keeping := 0, 0
	for seed := *roundsFrom; seed < *roundsFrom+uint64(*rounds) && !t.Failed(); seed++ {
		var x *tenon.Exec
		var closed func()
		if seed%3 == 0 && !onGPU() {
			x, closed = openFew(t)
		} else {
			x, closed = openUntil(t, machine())
		}
		must(t, x.Generator().SetSeed(seed))
		p := newRoundsProgram(x, seed)
		for _, opt := range []compile.Opt{{NoGraphs: true}, {}} {
			r := compile.New(opt)
			for n := range 3 {
				var want, got []*tenon.Tensor
				run := func(to *[]*tenon.Tensor) func(x *tenon.Exec) error {
					return func(x *tenon.Exec) error {
						for _, y := range p.run(x, 0.5+float64(n)/8) {
							*to = append(*to, x.Keep(y))
						}
						return nil
					}
				}
				x.Scope(func(x *tenon.Exec) { must(t, run(&want)(x)) })
				must(t, r.Do(x, run(&got)))
				for i := range want {
					w, err := x.Bytes(want[i])
					must(t, err)
					g, err := x.Bytes(got[i])
					must(t, err)
					if string(g) != string(w) && !t.Failed() {
						t.Errorf("program %d, %v of %v, run %d, result %d:\n%s\n%s", seed, p.dt, p.shape, n, i,
							strings.Join(p.text, "\n"), r.Explain(x))
					}
					want[i].Close()
					got[i].Close()
				}
			}
			if text := r.Explain(x).String(); opt.NoGraphs {
				keeping += min(1, strings.Count(text, "_keep_"))
				for group := range strings.SplitSeq(text, "group {") {
					if group, _, _ = strings.Cut(group, "} reads"); strings.Count(group, " reduce=") > 1 {
						several++
					}
				}
			}
		}
		closed()
	}
	t.Logf("%d groups with several reductions, %d programs that keep results", several, keeping)
	if several < *rounds/2 || keeping < *rounds/10 {
		t.Error("too few reductions run together")
	}
}
