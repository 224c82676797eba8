package kernels

import (
	"maps"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// wantKeys fails unless n kernels, and those of plain, have different keys, and the same ones in whatever order they are made. spec makes
// kernel i, and forget lets the process forget those that were made.
func wantKeys(t *testing.T, n int, plain []Spec, forget func(), spec func(i int) Spec) {
	t.Helper()
	keys := make([][2]string, n)
	for order := range 2 {
		forget()
		for i := range n {
			if order == 1 {
				i = n - 1 - i
			}
			s := spec(i)
			keys[i][order] = s.Key()
		}
	}
	seen := map[string]bool{}
	for i := range plain {
		seen[plain[i].Key()] = true
	}
	for i, k := range keys {
		if seen[k[0]] = true; k[0] != k[1] {
			t.Errorf("kernel %d has the keys\n%s\n%s", i, k[0], k[1])
		}
	}
	if len(seen) != n+len(plain) {
		t.Errorf("%d keys for %d kernels", len(seen), n+len(plain))
	}
}

// TestKeyOfRows checks that the key of a fused row-wise operation says what it computes, whatever its number among the process's: another
// one that had the same number in an earlier process must not be loaded in its place.
func TestKeyOfRows(t *testing.T) {
	rowMutex.Lock()
	all, by := slices.Clone(rowOps), maps.Clone(fusedRows)
	rowMutex.Unlock()
	base := slices.DeleteFunc(slices.Clone(all), func(op *rowOp) bool { return op.around != nil })
	reset := func(ops []*rowOp, made map[rowAround]*rowOp) {
		rowMutex.Lock()
		defer rowMutex.Unlock()
		rowOps, fusedRows = ops, made
	}
	defer reset(all, by)
	f32 := dtype.Float32
	part := func(op *PointOp) *PointOp {
		step := FusedStep{Op: op, Compute: f32, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f32}}}
		return Fuse([]dtype.DType{f32}, []FusedStep{step}, []int{1})
	}
	exp, tanh := part(Exp), part(Tanh)
	made := []rowAround{{softmaxOp, exp, nil}, {logSoftmaxOp, exp, nil}, {softmaxOp, tanh, nil}, {softmaxOp, nil, exp},
		{softmaxOp, nil, tanh}, {softmaxOp, exp, tanh}, {softmaxOp, tanh, exp}}
	of := func(id uint16) Spec { return Spec{Family: FamilyRows, Op: id, Compute: f32} }
	wantKeys(t, len(made), []Spec{of(softmaxOp.id), of(logSoftmaxOp.id)}, func() { reset(slices.Clone(base), map[rowAround]*rowOp{}) },
		func(i int) Spec { return of(fuseRows(made[i].base, made[i].before, made[i].after).id) })
}

// TestKeyOfReductions checks the same of fused reductions.
func TestKeyOfReductions(t *testing.T) {
	reduceMutex.Lock()
	all, by := slices.Clone(reduceOps), maps.Clone(fusedReduces)
	reduceMutex.Unlock()
	reset := func(ops []*ReduceOp, made map[string]*ReduceOp) {
		reduceMutex.Lock()
		defer reduceMutex.Unlock()
		reduceOps, fusedReduces = ops, made
	}
	defer reset(all, by)
	base := slices.DeleteFunc(slices.Clone(all), func(op *ReduceOp) bool { return op.fused != nil })
	f32 := dtype.Float32
	part := func(outs ...int) PointWork {
		step := FusedStep{Op: Exp, Compute: f32, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f32}}}
		return PointWork{Op: Fuse([]dtype.DType{f32}, []FusedStep{step}, outs), From: []int{0}}
	}
	given := func(w PointWork) PointWork { return PointWork{Op: w.Op} }
	ofSum, sum := []*ReduceOp{Sum}, []uint{1}
	simple, made := reduceRound{before: part(1), bases: ofSum, results: sum}, []reduceParts{}
	// with adds what change makes of the simple round, with the work for each element and the rounds after it.
	with := func(change func(r *reduceRound), each PointWork, more ...*reduceRound) {
		r := simple
		change(&r)
		made = append(made, reduceParts{rounds: append([]*reduceRound{&r}, more...), each: each, read: 1})
	}
	for _, before := range []PointWork{part(1), part(0), part(1, 1), part(1, 0)} {
		with(func(r *reduceRound) { r.before = before }, PointWork{})
	}
	for _, before := range []PointWork{part(1, 1), part(1, 0)} {
		with(func(r *reduceRound) { r.before, r.bases, r.results = before, []*ReduceOp{Sum, Mean}, []uint{1, 1} }, PointWork{})
	}
	with(func(r *reduceRound) { r.bases = []*ReduceOp{Mean} }, PointWork{})
	for keeps := range 3 {
		with(func(r *reduceRound) { r.bases, r.results = []*ReduceOp{MaxIndex}, []uint{uint(keeps + 1)} }, PointWork{})
	}
	row := func(w PointWork, n int) func(r *reduceRound) {
		return func(r *reduceRound) { r.row, r.given = given(w), n }
	}
	with(row(part(1), 0), PointWork{})
	with(row(part(0), 0), PointWork{})
	with(row(part(1), 1), given(part(1)))
	with(row(part(1, 0), 1), given(part(1)))
	with(row(part(1), 1), given(part(0)))
	with(row(part(1), 1), part(0))
	with(row(part(1), 0), part(1))
	with(func(r *reduceRound) { r.row = part(1) }, PointWork{})
	other := simple
	other.before = part(0)
	with(row(part(1), 0), PointWork{}, &simple)
	with(row(part(1), 0), part(1), &simple)
	with(row(part(1), 0), PointWork{}, &other)
	with(row(part(1), 0), PointWork{}, &other, &simple)
	of := func(id uint16) Spec { return Spec{Family: FamilyReduce, Op: id, Compute: f32} }
	wantKeys(t, len(made), []Spec{of(Sum.id), of(Mean.id), of(MaxIndex.id)},
		func() { reset(slices.Clone(base), map[string]*ReduceOp{}) }, func(i int) Spec { return of(fuseReduce(made[i].op()).id) })
}

// TestNamesOfOps checks that the names of element-wise operations and of reductions tell them apart, since the keys of groups consist of
// them.
func TestNamesOfOps(t *testing.T) {
	seen := map[string]bool{}
	note := func(name string) {
		if seen[name] {
			t.Errorf("two operations are named %s", name)
		}
		seen[name] = true
	}
	for _, op := range pointOps {
		note("point " + op.Name)
	}
	for _, op := range ReduceOps() {
		note("reduce " + op.Name)
	}
}

// TestKeyOfGroup: the key of a group, and of a product with an epilogue, says what it computes, whatever its number among the process's
// groups.
func TestKeyOfGroup(t *testing.T) {
	f := &fusedOps
	f.Lock()
	by, all := f.by, f.all
	f.Unlock()
	reset := func() {
		f.Lock()
		defer f.Unlock()
		f.by, f.all = nil, nil
	}
	defer func() {
		f.Lock()
		defer f.Unlock()
		f.by, f.all = by, all
	}()
	f32 := dtype.Float32
	for _, s := range []Spec{{Family: FamilyFused, Compute: f32}, {Family: FamilyMatmul, Compute: f32, Product: productSpec{Results: 1}},
		{Family: FamilyMatvec, Compute: f32, Product: productSpec{Results: 1}},
		{Family: FamilyMatmulFinish, Compute: f32, Product: productSpec{Results: 1}}} {
		key := func(op *PointOp) string {
			step := FusedStep{Op: op, Compute: f32, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f32}}}
			s.Op = Fuse([]dtype.DType{f32}, []FusedStep{step}, []int{1}).id
			return s.Key()
		}
		reset()
		a, b := key(Exp), key(Tanh)
		reset()
		b2, a2 := key(Tanh), key(Exp)
		if a == b || a != a2 || b != b2 {
			t.Errorf("keys\n%s\n%s\n%s\n%s", a, b, a2, b2)
		}
	}
}
