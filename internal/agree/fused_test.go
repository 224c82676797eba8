package agree

import (
	"fmt"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
)

// fusedGroup is a group of pointwise operations, see kernels.Fuse.
type fusedGroup struct {
	name  string
	ins   []dtype.DType
	steps []kernels.FusedStep
	outs  []int
}

// add adds a step that computes in t and returns the number of its result, of type out. Numbers below 0 are scalars.
func (g *fusedGroup) add(op *kernels.PointOp, t, out dtype.DType, ins ...int) int {
	s := kernels.FusedStep{Op: op, Compute: t, Outs: []kernels.FusedOut{{DType: out}}}
	for _, v := range ins {
		s.Ins = append(s.Ins, kernels.FusedIn{Value: v})
	}
	g.steps = append(g.steps, s)
	return len(g.ins) + len(g.steps) - 1
}

func (g *fusedGroup) scalars() (n int) {
	for _, s := range g.steps {
		n += s.Op.Scalars
		for _, in := range s.Ins {
			if in.Value == kernels.ScalarIn {
				n++
			}
		}
	}
	return n
}

// fusedGroups are groups of all kinds: of every type, with intermediate values rounded, selections, several results, many operands and many
// steps.
func fusedGroups() []*fusedGroup {
	f16, bf16, f32, f64, i32, u8, b, c := dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64, dtype.Int32, dtype.Uint8,
		dtype.Bool, dtype.Complex64
	var all []*fusedGroup
	for _, t := range []dtype.DType{f16, bf16, f32, f64, i32, u8, c} {
		g := &fusedGroup{name: fmt.Sprint("arithmetic ", t), ins: []dtype.DType{t, t}}
		v := g.add(kernels.Mul, t, t, 0, -1)
		v = g.add(kernels.Add, t, t, v, 1)
		v = g.add(kernels.Sub, t, t, v, 0)
		v = g.add(kernels.AddScaled, t, t, v, 0)
		g.outs = []int{g.add(kernels.Copy, t, f32, v), v}
		all = append(all, g)
	}
	for _, t := range []dtype.DType{f16, bf16, f32, f64} {
		g := &fusedGroup{name: fmt.Sprint("activation ", t), ins: []dtype.DType{t, f32}}
		v := g.add(kernels.Tanh, t, t, 0)
		v = g.add(kernels.GELU, f32, t, v)
		g.steps[1].Outs[0].Via = bf16
		m := g.add(kernels.Gt, t, b, v, -1)
		v = g.add(kernels.Where, t, t, m, v, 1)
		gelu := g.add(kernels.GELUTanhBackward, t, t, g.add(kernels.GELUTanh, t, t, v), 0)
		g.outs = []int{g.add(kernels.SiLUBackward, t, t, v, 0), m, gelu}
		all = append(all, g)
	}
	wide := &fusedGroup{name: "many operands", ins: slices.Repeat([]dtype.DType{f32}, kernels.MaxFusedOperands-1)}
	v := 0
	for i := range len(wide.ins) - 1 {
		v = wide.add(kernels.AddCMul, f32, f32, v, i, i+1)
	}
	wide.outs = []int{v}
	long := &fusedGroup{name: "many steps", ins: []dtype.DType{bf16}}
	v = 0
	for i := range 32 {
		v = long.add([]*kernels.PointOp{kernels.Exp, kernels.Neg, kernels.Mul, kernels.Square}[i%4], bf16, bf16,
			slices.Repeat([]int{v}, 1+i%4/2*(1-i%2))...)
	}
	long.outs = []int{v}
	return append(all, wide, long)
}

// trial returns a trial of the group as one kernel.
func (g *fusedGroup) trial(l layout) trial {
	op := kernels.Fuse(g.ins, g.steps, g.outs)
	types := slices.Clone(g.ins)
	for _, s := range g.steps {
		types = append(types, s.Outs[0].DType)
	}
	tr := trial{name: "fused " + g.name + " " + l.name, index32: l.index32}
	for i, v := range g.outs {
		tr.arrays = append(tr.arrays, out(types[v], l.outs[i%len(l.outs)], l.shape...))
	}
	for i, t := range g.ins {
		tr.arrays = append(tr.arrays, in(t, l.ins[i%len(l.ins)], anything, l.shape...))
	}
	scalars := opScalars(g.scalars())
	tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
		return kernels.Pointwise(is, op, dtype.Float32, scalars, ops[:op.Outs], ops[op.Outs:])
	}
	return tr
}

func tryFused(p *pair) {
	for _, g := range fusedGroups() {
		for _, l := range layouts {
			if !slices.Contains(l.ins, held) {
				p.try(g.trial(l))
			}
		}
	}
}

// TestFusedAssemble assembles the kernels of groups; none may spill much.
func TestFusedAssemble(t *testing.T) {
	as := assembler(t)
	seen := map[string]bool{}
	var progs []*kir.Program
	is := &builds{index32: 1<<31 - 1, f: func(s *kernels.Spec) error {
		p, err := kernels.Build(s).Program()
		if err == nil && !seen[p.Name] {
			seen[p.Name] = true
			progs = append(progs, p)
		}
		return err
	}}
	for _, g := range fusedGroups() {
		op := kernels.Fuse(g.ins, g.steps, g.outs)
		if op == nil {
			t.Fatalf("%s is no group", g.name)
		}
		for _, strides := range [][]int{{64, 1}, {1, 96}, {0, 1}, {128, 1}} {
			var ops []kernels.Operand
			types := slices.Clone(g.ins)
			for _, s := range g.steps {
				types = append(types, s.Outs[0].DType)
			}
			for _, v := range g.outs {
				ops = append(ops, kernels.Operand{Ptr: 1 << 20, DType: types[v], Shape: []int{96, 64}, Stride: []int{64, 1}})
			}
			for i, dt := range g.ins {
				o := kernels.Operand{Ptr: 1 << 20, DType: dt, Shape: []int{96, 64}, Stride: []int{64, 1}}
				if i == 0 {
					o.Stride = strides
				}
				ops = append(ops, o)
			}
			if err := kernels.Pointwise(is, op, dtype.Float32, opScalars(op.Scalars), ops[:op.Outs], ops[op.Outs:]); err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
		}
	}
	for i, target := range targets {
		progs := shareOf(progs, i, len(targets))
		text, err := ptx.Compile(progs, target)
		if err != nil {
			t.Fatal(err)
		}
		if s := spilled(assemble(t, as, target, text)); s != "" {
			t.Errorf("sm_%d%d: %s", target.Major, target.Minor, s)
		}
		t.Logf("sm_%d%d: %d kernels, %d bytes of PTX", target.Major, target.Minor, len(progs), len(text))
	}
}
