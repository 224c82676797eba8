package core

import (
	cmdline "flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
)

var inPlacePrograms = cmdline.Int("inplace", 1500, "how many random programs TestInPlaceIsFunctional runs")

// twoWays runs one program twice: with views that change in place, and without either. In the second run a tensor's value is a vector that
// every change replaces by a new one, made by Scatter, and a view is the list of the indexes that it shows, read by Gather.
type twoWays struct {
	x     *Exec
	r     *rand.Rand
	log   []string
	a     *Tensor // a leaf of 12 elements
	w     *Tensor // a leaf of one
	bases []*functionalBase
	views []*functionalView
	loss  [2]*Tensor // in place, functional
	// compared counts the results that were compared.
	compared int
}

type functionalBase struct{ value *Tensor }

type functionalView struct {
	base   *functionalBase
	t      *Tensor // the tensor that changes in place
	places *Tensor // int64, of its shape
	// distinct says that no index occurs twice.
	distinct bool
}

// read returns the view's value, made without views.
func (p *twoWays) read(v *functionalView) *Tensor {
	x := p.x
	return x.Reshape(x.Gather(v.base.value, 0, x.Reshape(v.places, -1)), v.places.shape...)
}

func (p *twoWays) newBase() {
	x := p.x
	shape := [][]int{{3, 4}, {2, 3, 2}, {12}, {4, 1, 3}}[p.r.IntN(4)]
	var t, value *Tensor
	if p.r.IntN(3) == 0 {
		t = x.ToDType(x.Reshape(x.Arange(13, dtype.Int64, ArangeOpt{Start: 1}), shape...), dtype.Float64)
		value = x.ToDType(x.Arange(13, dtype.Int64, ArangeOpt{Start: 1}), dtype.Float64)
	} else {
		t = x.MulS(x.Reshape(p.a, shape...), 1.5)
		value = x.MulS(p.a, 1.5)
	}
	b := &functionalBase{value}
	p.bases = append(p.bases, b)
	p.views = append(p.views, &functionalView{b, t, x.Reshape(x.Arange(12, dtype.Int64, ArangeOpt{}), shape...), true})
	p.note("base %v", shape)
}

func (p *twoWays) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf(format, args...))
}

func (p *twoWays) pick() *functionalView {
	n := len(p.views)
	if p.r.IntN(2) == 0 {
		return p.views[n-1-p.r.IntN(min(n, 3))]
	}
	return p.views[p.r.IntN(n)]
}

// view makes a view of a view, and of its indexes.
func (p *twoWays) view() {
	v, x, r := p.pick(), p.x, p.r
	shape := v.t.shape
	n := len(shape)
	distinct, name := v.distinct, ""
	var f func(t *Tensor) *Tensor
	switch d := r.IntN(max(n, 1)); {
	case n > 0 && r.IntN(3) == 0:
		at := r.IntN(shape[d])
		name, f = fmt.Sprint("Select ", d, at), func(t *Tensor) *Tensor { return x.Select(t, d, at) }
	case n > 0 && r.IntN(2) == 0:
		start := r.IntN(shape[d])
		end, step := start+1+r.IntN(shape[d]-start), 1+r.IntN(2)
		name, f = fmt.Sprint("Slice ", d, start, end, step), func(t *Tensor) *Tensor { return x.Slice(t, d, start, end, step) }
	case n > 1 && r.IntN(3) == 0:
		dims := r.Perm(n)
		name, f = fmt.Sprint("Permute ", dims), func(t *Tensor) *Tensor { return x.Permute(t, dims...) }
	case n > 1 && r.IntN(2) == 0:
		e, k := (d+1)%n, r.IntN(3)-1
		name, f = fmt.Sprint("Diagonal ", k, d, e), func(t *Tensor) *Tensor {
			return x.Diagonal(t, DiagonalOpt{Offset: k, Dims: [2]int{d, e}})
		}
	case r.IntN(3) == 0 && v.t.IsContiguous():
		name, f = "View -1", func(t *Tensor) *Tensor { return x.View(t, -1) }
	case r.IntN(3) == 0 && n < 4:
		distinct = false
		to := append([]int{2}, shape...)
		name, f = "Expand", func(t *Tensor) *Tensor { return x.Expand(t, to...) }
	case n < 5:
		at := r.IntN(n + 1)
		name, f = fmt.Sprint("Unsqueeze ", at), func(t *Tensor) *Tensor { return x.Unsqueeze(t, at) }
	default:
		name, f = "Squeeze", func(t *Tensor) *Tensor { return x.Squeeze(t) }
	}
	t := f(v.t)
	if t.Numel() == 0 {
		return
	}
	p.views = append(p.views, &functionalView{v.base, t, f(v.places), distinct})
	p.note("%d: %s of %d", len(p.views)-1, name, slices.Index(p.views, v))
}

// change changes a view in place and its base's vector by a Scatter.
func (p *twoWays) change() {
	v, x := p.pick(), p.x
	if !v.distinct {
		return
	}
	// The operand: a leaf, a number, or the sum of another view.
	other := p.pick()
	in, fn := p.w, p.w
	kind := p.r.IntN(4)
	switch kind {
	case 0:
		in = x.Full(nil, 1.25, dtype.Float64)
		fn = in
	case 1:
		in, fn = x.Mean(other.t, nil, SumOpt{}), x.Mean(p.read(other), nil, SumOpt{})
	}
	old := p.read(v)
	var result *Tensor
	op := p.r.IntN(7)
	switch op {
	case 0:
		x.MulInto(v.t, v.t, in)
		result = x.Mul(old, fn)
	case 1:
		x.AddInto(v.t, v.t, in)
		result = x.Add(old, fn)
	case 2:
		x.DivInto(v.t, v.t, x.AddS(x.Mul(in, in), 1)) // far from 0
		result = x.Div(old, x.AddS(x.Mul(fn, fn), 1))
	case 3:
		x.CopyInto(v.t, in)
		result = x.Add(x.Zeros(old.shape, dtype.Float64), fn)
	case 4:
		x.MulInto(v.t, v.t, v.t)
		result = x.Mul(old, old)
	case 5:
		x.AddCMulInto(v.t, v.t, in, p.w, AddCMulOpt{Value: 0.5})
		result = x.Add(old, x.MulS(x.Mul(fn, p.w), 0.5))
	default:
		x.SubInto(v.t, in, v.t)
		result = x.Sub(fn, old)
	}
	v.base.value = x.Scatter(v.base.value, 0, x.Reshape(v.places, -1), x.Reshape(result, -1), ScatterOpt{})
	p.note("change %d of %d, operand %d of %d", op, slices.Index(p.views, v), kind, slices.Index(p.views, other))
}

func (p *twoWays) use() {
	v, x := p.pick(), p.x
	for i, t := range []*Tensor{v.t, p.read(v)} {
		// Tanh keeps its result, so that a later change of v does not matter.
		p.loss[i] = x.Add(p.loss[i], x.Sum(x.Tanh(t), nil, SumOpt{}))
	}
	p.note("use %d", slices.Index(p.views, v))
}

func (p *twoWays) run() error {
	x := p.x
	v := make([]float64, 12)
	for i := range v {
		v[i] = 0.2 + 0.1*float64(i)
	}
	p.a, p.w = From(x, v).SetRequiresGrad(true), x.Full(nil, 0.75, dtype.Float64).SetRequiresGrad(true)
	p.loss = [2]*Tensor{x.Zeros(nil, dtype.Float64), x.Zeros(nil, dtype.Float64)}
	p.newBase()
	for range 3 + p.r.IntN(10) {
		switch k := p.r.IntN(10); {
		case k < 4:
			p.view()
		case k < 8:
			p.change()
		case k < 9:
			p.use()
		default:
			p.newBase()
		}
	}
	p.use()
	for i, v := range p.views {
		p.loss[0] = x.Add(p.loss[0], x.Mean(x.MulS(v.t, float64(i+1)), nil, SumOpt{}))
		p.loss[1] = x.Add(p.loss[1], x.Mean(x.MulS(p.read(v), float64(i+1)), nil, SumOpt{}))
	}
	return p.compare()
}

// compare compares the losses, their gradients and, for some programs, second derivatives.
func (p *twoWays) compare() error {
	x := p.x
	leaves := []*Tensor{p.a, p.w}
	var all [2][]*Tensor
	second := p.r.IntN(4) == 0
	for i, loss := range p.loss {
		all[i] = []*Tensor{loss}
		if !loss.RequiresGrad() {
			continue
		}
		g, err := x.Grad([]*Tensor{loss}, leaves, GradOpt{CreateGraph: second, AllowUnused: true})
		if err != nil {
			return err
		}
		all[i] = append(all[i], g...)
		if !second {
			continue
		}
		square := x.Zeros(nil, dtype.Float64)
		for _, g := range g {
			if g != nil {
				square = x.Add(square, x.Sum(x.Mul(g, g), nil, SumOpt{}))
			}
		}
		if square.RequiresGrad() {
			if g, err = x.Grad([]*Tensor{square}, leaves, GradOpt{AllowUnused: true}); err != nil {
				return err
			}
			all[i] = append(all[i], g...)
		}
	}
	for j := range max(len(all[0]), len(all[1])) {
		var got [2][]float64
		for i := range got {
			got[i] = make([]float64, 12)
			if j < len(all[i]) && all[i][j] != nil {
				v, err := Read[float64](x, all[i][j])
				if err != nil {
					return err
				}
				copy(got[i], v)
			}
		}
		greatest := 1.0
		for _, v := range slices.Concat(got[0], got[1]) {
			greatest = max(greatest, math.Abs(v))
		}
		if !(greatest < 1e6) {
			return nil // any difference would be between large numbers
		}
		for k, g := range got[0] {
			if w := got[1][k]; math.Abs(g-w) > 1e-9*greatest {
				return fmt.Errorf("result %d is %v in place, and %v without", j, got[0], got[1])
			}
		}
		p.compared++
	}
	return nil
}

// TestInPlaceIsFunctional checks that random programs of views and changes in place have the values and gradients of the same programs
// without either.
func TestInPlaceIsFunctional(t *testing.T) {
	settled(t)
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	compared := 0
	for seed := range uint64(*inPlacePrograms) {
		before := live.Load()
		p := &twoWays{r: rand.New(rand.NewPCG(seed, 1))}
		var err error
		if e := Try(func() { x.Scope(func(x *Exec) { p.x = x; err = p.run() }) }); e != nil {
			err = e
		}
		if n := live.Load() - before; n != 0 && err == nil {
			err = fmt.Errorf("%d storages are left", n)
		}
		if err != nil {
			t.Fatalf("program %d: %v\n%s", seed, err, strings.Join(p.log, "\n"))
		}
		compared += p.compared
	}
	if compared < 3**inPlacePrograms {
		t.Errorf("only %d results were compared", compared)
	}
}
