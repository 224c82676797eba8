package kernels

import (
	"maps"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

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
	keys := func(order []rowAround) map[rowAround]string {
		reset(slices.Clone(base), map[rowAround]*rowOp{})
		out := map[rowAround]string{}
		for _, a := range order {
			s := Spec{Family: FamilyRows, Op: fuseRows(a.base, a.before, a.after).id, Compute: f32}
			out[a] = s.Key()
		}
		return out
	}
	forward := keys(made)
	slices.Reverse(made)
	if backward := keys(made); !maps.Equal(forward, backward) {
		t.Errorf("keys\n%v\n%v", forward, backward)
	}
	seen := map[string]bool{}
	for _, op := range []*rowOp{softmaxOp, logSoftmaxOp} {
		s := Spec{Family: FamilyRows, Op: op.id, Compute: f32}
		seen[s.Key()] = true
	}
	for _, k := range forward {
		seen[k] = true
	}
	if len(seen) != len(made)+2 {
		t.Errorf("%d keys for %d kernels", len(seen), len(made)+2)
	}
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
	part := func(outs ...int) *PointOp {
		step := FusedStep{Op: Exp, Compute: f32, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f32}}}
		return Fuse([]dtype.DType{f32}, []FusedStep{step}, outs)
	}
	made := []reduceParts{{part(1), []*ReduceOp{Sum}, []uint{1}}, {part(1), []*ReduceOp{Mean}, []uint{1}},
		{part(0), []*ReduceOp{Sum}, []uint{1}},
		{part(1, 1), []*ReduceOp{Sum, Mean}, []uint{1, 1}}, {part(1, 0), []*ReduceOp{Sum, Mean}, []uint{1, 1}},
		{part(1), []*ReduceOp{MaxIndex}, []uint{1}}, {part(1), []*ReduceOp{MaxIndex}, []uint{2}},
		{part(1), []*ReduceOp{MaxIndex}, []uint{3}}}
	keys := func(order []int) map[int]string {
		reset(slices.Clone(base), map[string]*ReduceOp{})
		out := map[int]string{}
		for _, i := range order {
			s := Spec{Family: FamilyReduce, Op: fuseReduce(&made[i]).id, Compute: f32}
			out[i] = s.Key()
		}
		return out
	}
	var order []int
	for i := range made {
		order = append(order, i)
	}
	forward := keys(order)
	slices.Reverse(order)
	if backward := keys(order); !maps.Equal(forward, backward) {
		t.Errorf("keys\n%v\n%v", forward, backward)
	}
	seen := map[string]bool{}
	for _, op := range []*ReduceOp{Sum, Mean, MaxIndex} {
		s := Spec{Family: FamilyReduce, Op: op.id, Compute: f32}
		seen[s.Key()] = true
	}
	for _, k := range forward {
		seen[k] = true
	}
	if len(seen) != len(made)+3 {
		t.Errorf("%d keys for %d kernels", len(seen), len(made)+3)
	}
}

// TestNamesOfReduceOps checks that the names of reductions tell them apart, since the keys of groups consist of them.
func TestNamesOfReduceOps(t *testing.T) {
	seen := map[string]bool{}
	for _, op := range ReduceOps() {
		if seen[op.Name] {
			t.Errorf("two reductions are named %s", op.Name)
		}
		seen[op.Name] = true
	}
}

// TestNamesOfPointOps checks that the names of operations tell them apart, since the keys of groups consist of them.
func TestNamesOfPointOps(t *testing.T) {
	seen := map[string]bool{}
	for _, op := range pointOps {
		if seen[op.Name] {
			t.Errorf("two operations are named %s", op.Name)
		}
		seen[op.Name] = true
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
