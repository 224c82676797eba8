package agree

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// program builds a kir.Program by hand, independently of the kernel package.
type program struct {
	*kir.Program
	block *kir.Block
}

func newProgram(name string) *program {
	p := &kir.Program{Name: name, Threads: 256, Body: &kir.Block{}, Locs: []kir.Loc{{}, {File: "agree.go", Line: 1}}}
	return &program{p, p.Body}
}

func (p *program) value(t kir.Type) kir.Value {
	p.Values = append(p.Values, t)
	return kir.Value(len(p.Values) - 1)
}

// add appends in with one result of type t and returns that result.
func (p *program) add(t kir.Type, in kir.Instr, args ...kir.Value) kir.Value {
	v := p.value(t)
	in.Res, in.Args, in.Loc = []kir.Value{v}, args, 1
	p.block.Instrs = append(p.block.Instrs, &in)
	return v
}

// do appends in, which has no result.
func (p *program) do(in kir.Instr, args ...kir.Value) {
	in.Args, in.Loc = args, 1
	p.block.Instrs = append(p.block.Instrs, &in)
}

func (p *program) op(op kir.Op, t, res kir.Type, args ...kir.Value) kir.Value {
	return p.add(res, kir.Instr{Op: op, Type: t}, args...)
}

func (p *program) constant(t kir.Type, bits uint64) kir.Value {
	bits &= ^uint64(0) >> (64 - 8*t.Size())
	return p.add(t, kir.Instr{Op: kir.OpConst, Type: t, Imm: bits})
}

func (p *program) i32(n int) kir.Value { return p.constant(dtype.Int32, uint64(uint32(n))) }

func (p *program) special(s kir.Sub) kir.Value {
	return p.add(dtype.Int32, kir.Instr{Op: kir.OpSpecial, Type: dtype.Int32, Sub: s})
}

func (p *program) buffer(name string, t kir.Type) kir.Value {
	p.Params = append(p.Params, kir.Param{Name: name, Kind: kir.ParamBuffer, Type: t})
	return p.add(dtype.Uint64, kir.Instr{Op: kir.OpParam, Type: dtype.Uint64, Sym: len(p.Params) - 1})
}

func (p *program) scalar(name string, t kir.Type) kir.Value {
	p.Params = append(p.Params, kir.Param{Name: name, Kind: kir.ParamScalar, Type: t})
	return p.add(t, kir.Instr{Op: kir.OpParam, Type: t, Sym: len(p.Params) - 1})
}

func (p *program) load(t kir.Type, base, index kir.Value) kir.Value {
	return p.add(t, kir.Instr{Op: kir.OpLoad, Type: t, Space: kir.Global, Width: 1}, base, index)
}

func (p *program) store(t kir.Type, base, index, v kir.Value) {
	p.do(kir.Instr{Op: kir.OpStore, Type: t, Space: kir.Global, Width: 1}, base, index, v)
}

// region runs f with a new region as the current one and returns the region.
func (p *program) region(f func(), params ...kir.Value) *kir.Block {
	outer, b := p.block, &kir.Block{Params: params}
	p.block = b
	f()
	p.block = outer
	return b
}

func (p *program) when(cond kir.Value, then func()) {
	in := kir.Instr{Op: kir.OpIf, Type: dtype.Bool}
	in.Blocks = []*kir.Block{p.region(then), {}}
	p.do(in, cond)
}

// thread returns the thread's number in the grid.
func (p *program) thread() kir.Value {
	block := p.op(kir.OpMul, dtype.Int32, dtype.Int32, p.special(kir.CtaIDX), p.special(kir.NTidX))
	return p.op(kir.OpAdd, dtype.Int32, dtype.Int32, block, p.special(kir.TidX))
}

// pointwise makes a kernel out[i] = f(in0[i], in1[i], …) for i < n; its parameters are out, the ins, n.
func pointwise(name string, out kir.Type, ins []kir.Type, f func(p *program, xs []kir.Value) kir.Value) *kir.Program {
	p := newProgram(name)
	dst := p.buffer("out", out)
	var srcs []kir.Value
	for _, t := range ins {
		srcs = append(srcs, p.buffer(fmt.Sprintf("in%d", len(srcs)), t))
	}
	n := p.scalar("n", dtype.Int32)
	i := p.thread()
	p.when(p.op(kir.OpLt, dtype.Int32, dtype.Bool, i, n), func() {
		var xs []kir.Value
		for j, t := range ins {
			xs = append(xs, p.load(t, srcs[j], i))
		}
		p.store(out, dst, i, f(p, xs))
	})
	return p.Program
}
