package core

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// matrix returns a leaf of 2 × 3 with the elements 1 to 6.
func matrix(x *Exec) *Tensor {
	return From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3).SetRequiresGrad(true)
}

// TestInPlaceOfViews checks the assignments that users write: x[:, 0] = w, x[1] *= w, x.view(-1) += w.
func TestInPlaceOfViews(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, w := matrix(x), leafOf(x, 10, 20)
		b := x.MulS(a, 2)
		x.CopyInto(x.Select(b, 1, 0), w)
		x.MulInto(x.Select(b, 0, 1), x.Select(b, 0, 1), x.Select(w, 0, 1))
		flat := x.View(b, -1)
		x.AddInto(flat, flat, x.Select(w, 0, 0))
		want(t, x, b, 20, 14, 16, 410, 210, 250)
		backward(t, x, sumOf(x, b), BackwardOpt{})
		want(t, x, a.Grad(), 0, 2, 2, 0, 40, 40)
		want(t, x, w.Grad(), 1+6, 20+20+10+12)
	})
}

// TestInPlaceGivesHistory checks that a result written into part of a tensor without gradient makes that tensor require one.
func TestInPlaceGivesHistory(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w := leafOf(x, 3, 4)
		b := x.Zeros([]int{2, 2}, dtype.Float32)
		row, column := x.Select(b, 0, 0), x.Select(b, 1, 0)
		if b.RequiresGrad() || row.RequiresGrad() || !column.IsLeaf() {
			t.Fatal("there is a history before the change")
		}
		x.CopyInto(row, w)
		if !b.RequiresGrad() || !column.RequiresGrad() || column.IsLeaf() || b.IsLeaf() {
			t.Error("the change gave no history")
		}
		backward(t, x, x.Add(sumOf(x, x.MulS(b, 2)), sumOf(x, column)), BackwardOpt{})
		want(t, x, w.Grad(), 3, 2)
	})
}

func TestInPlaceOfParts(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, w := leafOf(x, 1, 2), leafOf(x, 5, 7)
		c := x.Mul(x.ToDType(a, dtype.Complex64), x.Full(nil, 2, dtype.Complex64))
		re, im := x.RealPart(c), x.ImagPart(c)
		x.MulInto(re, re, w)
		x.AddInto(im, im, w)
		y := x.Add(x.RealPart(c), x.Mul(x.ImagPart(c), im))
		backward(t, x, sumOf(x, y), BackwardOpt{})
		want(t, x, a.Grad(), 10, 14)
		want(t, x, w.Grad(), 2+2*5, 4+2*7)
	})
}

func TestInPlaceOfTypes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64, dtype.Complex64, dtype.Complex128} {
			a := matrix(x)
			b := x.Clone(x.ToDType(a, dt))
			turned, column := x.Transpose(b, 0, 1), x.Select(b, 1, 1)
			x.MulInto(column, column, x.Select(b, 1, 0)) // 2·1 and 5·4
			y := x.Select(turned, 0, 1)
			if dt.IsComplex() {
				y = x.RealPart(y)
			}
			backward(t, x, sumOf(x, y), BackwardOpt{})
			want(t, x, a.Grad(), 2, 1, 0, 5, 4, 0)
		}
		n := x.Zeros([]int{2, 2}, dtype.Int64)
		x.CopyInto(x.Select(n, 0, 0), x.Slice(x.Select(matrix(x), 0, 0), 0, 0, 2, 1))
		if n.RequiresGrad() || n.Version() != 1 {
			t.Errorf("integers require grad: %v, version %d", n.RequiresGrad(), n.Version())
		}
	})
}

// TestInPlaceBesideRepeats checks that an expansion's history is derived again like any view's, and that elements of a view that share
// memory get the sum of their gradients.
func TestInPlaceBesideRepeats(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := leafOf(x, 1, 2, 3)
		b := x.MulS(a, 2)
		e, s := x.Expand(b, 2, 3), x.AsStrided(b, []int{2, 2}, []int{1, 1}, 0)
		x.MulInto(b, b, x.Full(nil, 3, dtype.Float32))
		k := From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		backward(t, x, x.Add(sumOf(x, x.Mul(e, k)), sumOf(x, s)), BackwardOpt{})
		want(t, x, a.Grad(), 6*(5+1), 6*(7+2), 6*(9+1))
	})
}

func TestInPlaceViewRefusals(t *testing.T) {
	store := kernel.Build("store", func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Store(k.I32(0), k.F32(1)) })
	opened(t, func(t *testing.T, x *Exec) {
		w := leafOf(x, 2)
		double := func(t *Tensor) func() { return func() { x.MulInto(t, t, x.Full(nil, 2, dtype.Float32)) } }
		scaled := func(t *Tensor) func() { return func() { x.MulInto(t, t, w) } }
		use := func(t *Tensor) func() { return func() { x.Neg(t) } }
		write := func(t *Tensor) func() {
			return func() { x.Launch(store, LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, Out(t)) }
		}
		leaf := matrix(x)
		b := func() *Tensor { return x.MulS(leaf, 2) }
		plain := func() *Tensor { return x.Ones([]int{2, 3}, dtype.Float32) }
		ng := x.NoGrad()
		// after returns a view of a base that has changed since.
		after := func(view func(t *Tensor) *Tensor) *Tensor {
			base := b()
			v := view(base)
			double(base)()
			return v
		}
		row := func(t *Tensor) *Tensor { return x.Select(t, 0, 0) }
		hiddenRow := func(t *Tensor) *Tensor { return ng.Select(t, 0, 0) }
		part := func(t *Tensor) *Tensor { return x.Unbind(t, 0)[0] }
		leafRow := func(t *Tensor) *Tensor { return row(t).SetRequiresGrad(true) }
		base := plain()
		function := func(f Function) func(t *Tensor) *Tensor {
			return func(t *Tensor) *Tensor { return x.Apply(f, t)[0] }
		}
		made := b()
		reaching := x.AsStrided(x.Detach(x.Slice(plain(), 1, 0, 2, 1)), []int{2, 3}, []int{3, 1}, 0)
		const (
			direct, indirect = "is being modified inplace", "its base or another view of its base has been modified inplace"
			noGrad, parts    = "A view was created in no_grad mode and ", "the output of a function that returns multiple views"
			custom           = "inside a custom Function (or because an input was returned as-is)"
			viewOfLeaf       = "a view of a leaf that requires grad is being used in an in-place operation"
		)
		for _, c := range []struct {
			name string
			f    func()
			want []string
		}{
			{"leaf", double(leaf), []string{"a leaf that requires grad is being used in an in-place operation"}},
			{"view of a leaf", double(row(leaf)), []string{viewOfLeaf}},
			{"view of a closed leaf", func() {
				m := matrix(x)
				v := row(m)
				m.Close()
				other := x.Neg(v) // keeps the graph
				x.MulInto(x.Select(v, 0, 0), x.Select(v, 0, 0), x.Select(v, 0, 1))
				other.Close()
			}, []string{viewOfLeaf}},
			{"view of a leaf without grad", double(hiddenRow(leaf)), []string{noGrad + direct}},
			{"view of a view that is a leaf", double(row(leafRow(plain()))), []string{viewOfLeaf}},
			{"view that is a leaf", double(leafRow(plain())), []string{"a leaf"}},
			{"use of a leaf whose base changed", func() {
				p := plain()
				v := leafRow(p)
				scaled(p)()
				use(v)()
			}, []string{"a leaf that requires grad and a view", indirect}},
			{"view without grad", double(hiddenRow(b())), []string{noGrad + direct}},
			{"view without grad of a base without", scaled(hiddenRow(base)), []string{noGrad + direct}},
			{"use of a view without grad", use(after(hiddenRow)), []string{noGrad + indirect}},
			{"part", double(part(b())), []string{parts, direct}},
			{"part of a base without grad", scaled(part(base)), []string{parts, direct}},
			{"view of a part", double(row(part(b()))), []string{parts, direct}},
			{"use of a part", use(after(part)), []string{parts, indirect}},
			{"hook of a part", func() {
				after(part).RegisterHook(func(x *Exec, g *Tensor) *Tensor { return g })
			}, []string{parts, indirect, "RegisterHook"}},
			{"function's view", double(function(viewing{})(b())), []string{custom, direct}},
			{"function's input", double(function(identity{})(made)), []string{custom, direct}},
			{"use of a function's view", use(after(function(viewing{}))), []string{custom, indirect}},
			{"expansion", double(x.Expand(x.Select(b(), 0, 0), 2, 3)), []string{"repeats elements"}},
			{"overlapping view", double(x.AsStrided(b(), []int{2, 2}, []int{1, 1}, 0)), []string{"may share memory"}},
			{"view of an expansion", scaled(x.Select(x.Detach(x.Expand(row(base), 2, 3)), 0, 0)), []string{"may share memory"}},
			{"view beyond its base", scaled(reaching), []string{"reaches beyond"}},
			{"kernel, leaf", write(leaf), []string{"a leaf"}},
			{"kernel, view of a leaf", write(row(leaf)), []string{viewOfLeaf}},
			{"kernel, hidden view of a leaf", write(hiddenRow(leaf)), []string{noGrad}},
			{"kernel, result", write(made), []string{"Launch has no gradient"}},
			{"kernel, view of a result", write(row(made)), []string{"Launch has no gradient"}},
		} {
			versions := []int{leaf.Version(), base.Version(), made.Version()}
			wantError(t, Try(c.f), fault.Invalid, append(c.want, "inplace_test.go")...)
			if now := []int{leaf.Version(), base.Version(), made.Version()}; !slices.Equal(now, versions) {
				t.Errorf("%s: the refused call counted versions: %v, then %v", c.name, versions, now)
			}
		}
		if leaf.Grad() != nil {
			t.Error("a leaf has a gradient")
		}
	})
}

// viewing is a function whose result is a view of its input.
type viewing struct{ identity }

func (viewing) Forward(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor {
	return []*Tensor{x.Select(in[0], 0, 0)}
}

type identity struct{}

func (identity) Forward(x *Exec, c *FunctionContext, in ...*Tensor) []*Tensor { return in }

func (identity) Backward(x *Exec, c *FunctionContext, g ...*Tensor) ([]*Tensor, error) { return g, nil }

// TestInPlaceAllowed checks changes that are allowed because no gradient can go wrong: without gradients, on detached views, and on the
// only view of a tensor that nobody else can see.
func TestInPlaceAllowed(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		ng := x.NoGrad()
		v := x.Select(a, 0, 0)
		ng.MulInto(v, v, v)
		want(t, x, a, 1, 4, 9, 4, 5, 6)
		if a.Version() != 1 || v.Version() != 1 {
			t.Errorf("versions %d and %d after one change", a.Version(), v.Version())
		}
		b := x.MulS(a, 2)
		d := x.Detach(b)
		x.MulInto(d, d, d)
		row := x.Select(x.Detach(b), 0, 0)
		x.MulInto(row, row, x.Select(a, 0, 0))
		backward(t, x, x.Add(sumOf(x, b), sumOf(x, row)), BackwardOpt{})
		want(t, x, a.Grad(), 2+4, 2+64, 2+324, 2, 2, 2)
		// The base of these is closed, so each is a whole tensor itself.
		for i, view := range []func(b *Tensor) *Tensor{
			func(b *Tensor) *Tensor { return ng.Select(b, 0, 0) },
			func(b *Tensor) *Tensor { return x.Split(b, 2, 0)[0] },
			func(b *Tensor) *Tensor { return x.Apply(viewing{}, b)[0] },
		} {
			b := x.Ones([]int{2, 3}, dtype.Float32)
			v := view(b)
			b.Close()
			x.MulInto(v, v, x.Select(x.View(a, -1), 0, 1))
			if !v.RequiresGrad() || i == 0 && v.root() != v {
				t.Errorf("view %d has no history of its own", i)
			}
		}
	})
}

// TestInPlaceOfClosedBase checks that a closed base lives on in its views: they change its history, and it is freed with the last of them.
func TestInPlaceOfClosedBase(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, w := matrix(x), leafOf(x, 10)
		before := live.Load()
		b := x.MulS(a, 2)
		top, left := x.Select(b, 0, 0), x.Select(b, 1, 0)
		b.Close()
		x.MulInto(top, top, w)
		y := x.Within(func(x *Exec) *Tensor { return sumOf(x, x.Mul(left, left)) })
		top.Close()
		left.Close()
		backward(t, x, y, BackwardOpt{})
		want(t, x, a.Grad(), 2*20*20, 0, 0, 2*8*2, 0, 0)
		want(t, x, w.Grad(), 2*20*2)
		y.Close()
		a.SetGrad(nil)
		w.SetGrad(nil)
		if n := live.Load() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
	})
}

// TestInPlaceOfSaved checks that a tensor that was saved for backward must not change, through any view, and that the error names the
// operation that saved it.
func TestInPlaceOfSaved(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		b := x.MulS(a, 2)
		y := x.Mul(b, b)
		v := x.Select(b, 0, 1)
		x.MulInto(v, v, x.Full(nil, 3, dtype.Float32))
		wantError(t, x.Backward(sumOf(x, y), BackwardOpt{}), fault.Invalid,
			"one of the variables needed for gradient computation has been modified by an inplace operation", "Mul",
			"version 1; expected version 0; change a Clone of it")
		z := x.Exp(b)
		row := x.Select(z, 0, 0)
		x.NoGrad().CopyInto(row, row)
		wantError(t, x.Backward(sumOf(x, z), BackwardOpt{}), fault.Invalid, "modified by an inplace operation", "Exp")
	})
}

// TestInPlaceKeepsOperand checks that a call in place whose derivative reads what it overwrites keeps a copy of that.
func TestInPlaceKeepsOperand(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, w := leafOf(x, 1, 2), leafOf(x, 4, 5)
		b := x.MulS(a, 3)
		x.MulInto(b, b, w)
		x.DivInto(b, w, b)
		backward(t, x, sumOf(x, b), BackwardOpt{})
		want(t, x, b, 1.0/3, 1.0/6)
		want(t, x, a.Grad(), -1.0/3, -1.0/12)
		want(t, x, w.Grad(), 0, 0)
		a.SetGrad(nil)
		c := x.MulS(a, 3)
		x.ClampSInto(c, c, 0, 4)
		x.MulInto(c, c, c)
		backward(t, x, sumOf(x, c), BackwardOpt{})
		want(t, x, a.Grad(), 18, 0)
		a.SetGrad(nil)
		u := x.MulS(a, 3)
		x.UniformInto(x.Slice(u, 0, 1, 2, 1), 5, 6)
		backward(t, x, sumOf(x, x.MulS(u, 2)), BackwardOpt{})
		want(t, x, a.Grad(), 6, 0)
		a.SetGrad(nil)
		d := x.MulS(a, 3)
		x.CopyInto(d, w.Grad()) // no gradient comes from there, and none flows on
		if !d.RequiresGrad() {
			t.Error("the overwritten tensor lost its history")
		}
		backward(t, x, sumOf(x, d), BackwardOpt{})
		if a.Grad() != nil {
			t.Errorf("overwritten elements have the gradient %v", floats(t, x, a.Grad()))
		}
	})
}

// TestInPlaceHooks checks that a hook belongs to the value at its registration, that a retained gradient follows the tensor, and that the
// pass's own reuse of memory affects neither.
func TestInPlaceHooks(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		b := x.MulS(a, 2)
		v, other := x.Select(b, 0, 0), x.Select(b, 0, 1)
		seen := map[string][]float32{}
		see := func(name string) func(x *Exec, g *Tensor) *Tensor {
			return func(x *Exec, g *Tensor) *Tensor {
				seen[name] = append(seen[name], floats(t, x, g)...)
				return nil
			}
		}
		b.RegisterHook(see("old base"))
		v.RegisterHook(see("old view"))
		for _, t := range []*Tensor{b, v, other} {
			t.RetainGrad()
		}
		x.MulInto(v, v, x.Full(nil, 10, dtype.Float32))
		b.RegisterHook(see("new base"))
		v.RegisterHook(see("new view"))
		if !b.RetainsGrad() || !v.RetainsGrad() || !other.RetainsGrad() {
			t.Error("a tensor does not retain its gradient any more")
		}
		y := x.Add(sumOf(x, b), sumOf(x, x.MulS(v, 5)))
		y = x.Add(y, sumOf(x, x.MulS(other, 7)))
		seed := x.Ones(nil, dtype.Float32)
		if err := x.Backward(y, BackwardOpt{Gradient: seed}); err != nil {
			t.Fatal(err)
		}
		for name, w := range map[string][]float32{
			"old base": {60, 60, 60, 8, 8, 8}, "new base": {6, 6, 6, 8, 8, 8}, "old view": {60, 60, 60}, "new view": {5, 5, 5},
		} {
			if !slices.Equal(seen[name], w) {
				t.Errorf("the hook of the %s saw %v, want %v", name, seen[name], w)
			}
		}
		want(t, x, b.Grad(), 6, 6, 6, 8, 8, 8)
		want(t, x, v.Grad(), 5, 5, 5)
		want(t, x, other.Grad(), 7, 7, 7)
		want(t, x, a.Grad(), 120, 120, 120, 16, 16, 16)
		want(t, x, seed, 1)
	})
}

// TestInPlaceLeavesGradients checks that the derivative of a changed view overwrites neither the caller's gradients nor those that Grad
// returns.
func TestInPlaceLeavesGradients(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		b := x.MulS(a, 2)
		v := x.Select(b, 0, 0)
		x.MulInto(v, v, x.Full(nil, 10, dtype.Float32))
		g := x.Ones([]int{2, 3}, dtype.Float32)
		if err := x.Backward(b, BackwardOpt{Gradient: g, RetainGraph: true}); err != nil {
			t.Fatal(err)
		}
		want(t, x, g, 1, 1, 1, 1, 1, 1)
		want(t, x, a.Grad(), 20, 20, 20, 2, 2, 2)
		gs, err := x.Grad([]*Tensor{x.MulS(b, 3), sumOf(x, v)}, []*Tensor{b, a, v},
			GradOpt{Gradients: []*Tensor{g, nil}, RetainGraph: true})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, gs[0], 4, 4, 4, 3, 3, 3)
		want(t, x, gs[1], 80, 80, 80, 6, 6, 6)
		want(t, x, gs[2], 1, 1, 1)
		_, err = x.Grad([]*Tensor{b}, []*Tensor{v}, GradOpt{Gradients: []*Tensor{g}})
		wantError(t, err, fault.Invalid, "appears to not have been used")
	})
}

// TestInPlaceDerivedOnce checks that a view that several goroutines use is derived once.
func TestInPlaceDerivedOnce(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		b := x.MulS(a, 2)
		row := x.Select(b, 0, 0)
		x.MulInto(row, row, x.Full(nil, 10, dtype.Float32))
		v := x.Select(b, 1, 1)
		x.MulInto(row, row, x.Full(nil, 10, dtype.Float32))
		if err := x.Synchronize(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			y, err := x.Fork()
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { y.Scope(func(y *Exec) { y.MulS(v, 2) }) })
		}
		wg.Wait()
		backward(t, x, sumOf(x, v), BackwardOpt{})
		want(t, x, a.Grad(), 0, 200, 0, 0, 2, 0)
	})
}

func TestInPlaceOfViewsCaptured(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		w, in := matrix(x), From(x, []float32{2, 3})
		g, err := x.Capture(func(x *Exec) {
			b := x.MulS(w, 2)
			column := x.Select(b, 1, 1)
			x.MulInto(column, column, in)
			backward(t, x, sumOf(x, x.Mul(b, b)), BackwardOpt{})
		}, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []float32{1, 2} {
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			want(t, x, w.Grad(), 8, 8*2*4*k*k, 24, 32, 8*5*9*k*k, 48)
			x.CopyInto(in, x.MulS(in, 2))
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestInPlaceFillByRows checks that the derivative of filling a tensor row by row does not copy the whole gradient for every row.
func TestInPlaceFillByRows(t *testing.T) {
	const rows, width = 64, 1024
	opened(t, func(t *testing.T, x *Exec) {
		w := x.Ones([]int{width}, dtype.Float32).SetRequiresGrad(true)
		b := x.Zeros([]int{rows, width}, dtype.Float32)
		for i := range rows {
			x.CopyInto(x.Select(b, 0, i), x.MulS(w, float64(i)))
		}
		y := sumOf(x, x.Mul(b, b))
		taken := func() int64 {
			stats := x.Device().Memory().Stats()
			return stats.AllocatedBytes.All().Allocated
		}
		before := taken()
		backward(t, x, y, BackwardOpt{})
		if n, whole := taken()-before, int64(rows*width*4); n > 10*whole {
			t.Errorf("the backward pass took %d bytes, for a tensor of %d", n, whole)
		}
		want(t, x, x.Slice(w.Grad(), 0, 0, 1, 1), 2*85344)
	})
}

// TestGradientsOfRowsAddUp checks that the gradients of views are added to the first of them in place, and that retained gradients and the
// caller's gradient are not changed.
func TestGradientsOfRowsAddUp(t *testing.T) {
	const rows, width = 64, 1024
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Ones([]int{rows, width}, dtype.Float32).SetRequiresGrad(true)
		y := x.Zeros([]int{width}, dtype.Float32)
		for i := range rows {
			y = x.Add(y, x.MulS(x.Select(a, 0, i), float64(i)))
		}
		stats := x.Device().Memory().Stats()
		before := stats.AllocatedBytes.All().Allocated
		backward(t, x, sumOf(x, y), BackwardOpt{})
		stats = x.Device().Memory().Stats()
		if n, whole := stats.AllocatedBytes.All().Allocated-before, int64(rows*width*4); n > 10*whole {
			t.Errorf("the backward pass took %d bytes, for a tensor of %d", n, whole)
		}
		want(t, x, x.Sum(a.Grad(), nil, SumOpt{}), width*rows*(rows-1)/2)

		m := matrix(x)
		b := x.MulS(m, 2)
		seed := x.Ones([]int{2, 3}, dtype.Float32)
		top := x.Select(b, 0, 0)
		top.RetainGrad()
		b.RetainGrad()
		gs, err := x.Grad([]*Tensor{b, x.Transpose(b, 0, 1), top, x.Select(b, 1, 2)}, []*Tensor{b, m, top},
			GradOpt{Gradients: []*Tensor{seed, x.Transpose(seed, 0, 1), x.Select(seed, 0, 1), x.Select(seed, 1, 0)}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, x, seed, 1, 1, 1, 1, 1, 1)
		want(t, x, gs[0], 3, 3, 4, 2, 2, 3)
		want(t, x, gs[1], 6, 6, 8, 4, 4, 6)
		want(t, x, gs[2], 1, 1, 1)
		want(t, x, b.Grad(), 3, 3, 4, 2, 2, 3)
	})
}

// TestInPlaceOfNeighbours checks that columns of one matrix, which interleave but share nothing, are allowed, and that views that do share
// an element are refused.
func TestInPlaceOfNeighbours(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := matrix(x)
		b := x.MulS(a, 2)
		x.MulInto(x.Select(b, 1, 0), x.Select(b, 1, 1), x.Select(b, 1, 2))
		want(t, x, b, 24, 4, 6, 120, 10, 12)
		backward(t, x, sumOf(x, b), BackwardOpt{})
		want(t, x, a.Grad(), 0, 14, 10, 0, 26, 22)
		z := x.Zeros([]int{3, 3}, dtype.Float32)
		wantError(t, Try(func() { x.CopyInto(x.Select(z, 1, 0), x.Diagonal(z, DiagonalOpt{})) }), fault.Invalid, "overlaps")
		wantError(t, Try(func() { x.CopyInto(z, x.Transpose(z, 0, 1)) }), fault.Invalid, "overlaps")
		x.CopyInto(x.Diagonal(z, DiagonalOpt{Offset: 1}), x.Diagonal(z, DiagonalOpt{Offset: -1}))
	})
}

// TestFailedInPlaceCountsNoVersion checks that a call in place that fails changes nothing and counts no version. A launch that the driver
// refuses is retried, unless it is the call's first.
func TestFailedInPlaceCountsNoVersion(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	settled(t)
	store := kernel.Build("store", func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Store(k.I32(0), k.F32(1)) })
	for name, call := range map[string]func(x *Exec, a, b *Tensor){
		"Add":       func(x *Exec, a, b *Tensor) { x.AddInto(a, a, b) },
		"Copy":      func(x *Exec, a, b *Tensor) { x.CopyInto(a, b) },
		"Scatter":   func(x *Exec, a, b *Tensor) { x.ScatterAddInto(a, a, 0, x.ToDType(b, dtype.Int64), b) },
		"Elsewhere": func(x *Exec, a, b *Tensor) { x.ScatterAddInto(a, b, 0, x.ToDType(b, dtype.Int64), b) },
		"Launch":    func(x *Exec, a, b *Tensor) { x.Launch(store, LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, Out(a)) },
		"SGD": func(x *Exec, a, b *Tensor) {
			TakeStep(x, "SGD", &Step{Op: SGD, Numbers: []float64{0.5, 1, 0}, Rows: x.Zeros([]int{1, StepRow}, dtype.Float64),
				Which: []int32{0}, Lists: [][]*Tensor{{a}, {b}}})
		},
		"Recorded": func(x *Exec, a, b *Tensor) {
			x.MulInto(x.Slice(a, 0, 0, 2, 1), x.Slice(a, 0, 0, 2, 1), x.Slice(b, 0, 1, 3, 1).SetRequiresGrad(true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var x *Exec
			var a, b *Tensor
			failed := 0
			faults.Walk(t, simulated(t, 0), func(d driver.Device) error {
				if x == nil {
					dev, err := overlay(d, 0)
					if err != nil {
						return err
					}
					x = New(dev, host)
				}
				return Try(func() {
					x.Scope(func(x *Exec) {
						a, b = x.Full([]int{4}, 7, dtype.Float32), x.Zeros([]int{4}, dtype.Float32)
						version := a.Version()
						err := Try(func() { call(x, a, b) })
						got, readErr := Read[float32](x.NoGrad(), a)
						switch {
						case err == nil && a.Version() != version+1:
							t.Errorf("version %d after one change of version %d", a.Version(), version)
						case err != nil:
							failed++
							if a.Version() != version || readErr == nil && !slices.Equal(got, []float32{7, 7, 7, 7}) {
								t.Errorf("a failed call left %v at version %d: %v", got, a.Version()-version, err)
							}
						}
						if e := errors.Join(err, readErr); e != nil {
							x.check("walk", e)
						}
					})
				})
			}, faults.WithoutFaults(), faults.Recovered("MemAlloc", "Launch"))
			if failed == 0 {
				t.Error("no call failed")
			}
			if err := x.Device().Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCopyIntoRefusesOtherShapes checks that a copy reads no element that its source does not have, whatever device the source is on, and
// leaves none of them out.
func TestCopyIntoRefusesOtherShapes(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		row, rows := x.Zeros([]int{3}, dtype.Float32), x.Zeros([]int{2, 3}, dtype.Float32)
		host := x.Host()
		for _, c := range []struct {
			dst   *Tensor
			shape []int
		}{{row, []int{2}}, {row, []int{4}}, {row, []int{2, 3}}, {row, []int{1, 3}}, {rows, []int{2}}, {rows, []int{3, 3}}} {
			for name, src := range map[string]*Tensor{"here": x.Ones(c.shape, dtype.Float32), "host": host.Ones(c.shape, dtype.Float32)} {
				for op, f := range map[string]func(dst, src *Tensor){"CopyInto": x.CopyInto, "CopyAsyncInto": x.CopyAsyncInto} {
					err := Try(func() { f(c.dst, src) })
					wantError(t, err, fault.Invalid, "source of shape", "does not broadcast")
					if err == nil {
						t.Errorf("%s takes a source of shape %v, %s, for %v", op, c.shape, name, c.dst.Shape())
					}
				}
			}
		}
		want(t, x, row, 0, 0, 0)
		x.CopyInto(rows, x.Ones([]int{2, 1}, dtype.Float32)) // what broadcasts still does
		want(t, x, rows, 1, 1, 1, 1, 1, 1)
	})
}
