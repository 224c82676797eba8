package kernels

import (
	"testing"

	"tenon.dev/dtype"
)

// TestKeyOfGroup: the key of a group says what it computes, whatever its number among the process's groups.
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
	key := func(op *PointOp) string {
		step := FusedStep{Op: op, Compute: f32, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f32}}}
		g := Fuse([]dtype.DType{f32}, []FusedStep{step}, []int{1})
		s := Spec{Family: FamilyFused, Op: g.id, Compute: f32}
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
