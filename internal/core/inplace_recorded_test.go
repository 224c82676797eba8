package core

import (
	"encoding/json"
	cmdline "flag"
	"fmt"
	"math"
	"os"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

var programsFlag = cmdline.String("programs", "testdata/inplace.json", "the recorded programs that TestInPlaceRecorded runs")

// recordedProgram is a program of views, changes in place and reads, with PyTorch's result: the gradients of the leaves a, w0 and w1, or
// the step of the first error, -1 for the backward pass. May says that PyTorch's error is only a precaution: the program may run, with
// Grads.
type recordedProgram struct {
	Name  string
	Steps []recordedStep
	// Double says that Grads are the gradients of the squares of the first gradients.
	Double bool
	Grads  [][]float64
	Error  *struct {
		At   int
		What string
		May  bool
	}
}

// recordedStep makes, views, changes or reads the tensor with number Of. New tensors get the next numbers; tensor 0 is the leaf a.
type recordedStep struct {
	Do     string
	Of     int
	N      []int
	V      float64
	NoGrad bool
	// With and Arg define the other operand.
	With string
	Arg  int
}

// uses returns the numbers of the tensors that a step reads or changes.
func (s *recordedStep) uses() []int {
	var out []int
	if s.Do != "new" && s.Do != "const" {
		out = append(out, s.Of)
	}
	switch s.With {
	case "sum", "clone", "handle":
		out = append(out, s.Arg)
	}
	return out
}

// player runs a recordedProgram.
type player struct {
	a   *Tensor
	w   [2]*Tensor
	h   []*Tensor
	acc *Tensor
}

func newPlayer(x *Exec) *player {
	p := &player{}
	v := make([]float64, 12)
	for i := range v {
		v[i] = 1 + 0.1*float64(i)
	}
	p.a = From(x, v, 3, 4).SetRequiresGrad(true)
	for i, v := range []float64{1.25, 0.75} {
		p.w[i] = x.Full(nil, v, dtype.Float64).SetRequiresGrad(true)
	}
	p.h = []*Tensor{p.a}
	p.acc = x.Zeros(nil, dtype.Float64)
	return p
}

func (p *player) view(x *Exec, s *recordedStep) (views []*Tensor, ok bool) {
	t, n := p.h[s.Of], s.N
	switch s.Do {
	case "select":
		return []*Tensor{x.Select(t, n[0], n[1])}, true
	case "slice":
		return []*Tensor{x.Slice(t, n[0], n[1], n[2], n[3])}, true
	case "permute":
		return []*Tensor{x.Permute(t, n...)}, true
	case "view":
		return []*Tensor{x.View(t, n...)}, true
	case "unsqueeze":
		return []*Tensor{x.Unsqueeze(t, n[0])}, true
	case "squeeze":
		return []*Tensor{x.Squeeze(t)}, true
	case "diagonal":
		return []*Tensor{x.Diagonal(t, DiagonalOpt{Offset: n[0], Dims: [2]int{n[1], n[2]}})}, true
	case "expand":
		return []*Tensor{x.Expand(t, n...)}, true
	case "strided":
		k := len(n) / 2
		return []*Tensor{x.AsStrided(t, n[:k], n[k:2*k], n[2*k])}, true
	case "split":
		return x.Split(t, n[0], n[1]), true
	case "unbind":
		return x.Unbind(t, n[0]), true
	case "detach":
		return []*Tensor{x.Detach(t)}, true
	}
	return nil, false
}

func (p *player) operand(x *Exec, s *recordedStep) *Tensor {
	switch s.With {
	case "const":
		return x.Full(nil, s.V, dtype.Float64)
	case "w0":
		return p.w[0]
	case "w1":
		return p.w[1]
	case "sum":
		return x.Sum(p.h[s.Arg], nil, SumOpt{})
	case "clone":
		return x.Clone(p.h[s.Arg])
	case "handle":
		return p.h[s.Arg]
	}
	return p.h[s.Of]
}

func (p *player) step(x *Exec, s *recordedStep) {
	if s.NoGrad {
		x = x.NoGrad()
	}
	switch s.Do {
	case "new":
		p.h = append(p.h, x.MulS(x.Reshape(p.a, s.N...), s.V))
		return
	case "const":
		v := make([]float64, infer.Numel(s.N))
		for i := range v {
			v[i] = 0.25*float64(i) + s.V
		}
		p.h = append(p.h, From(x, v, s.N...))
		return
	}
	if v, ok := p.view(x, s); ok {
		p.h = append(p.h, v...)
		return
	}
	t := p.h[s.Of]
	switch s.Do {
	case "read":
		p.acc = x.Add(p.acc, x.Sum(x.MulS(t, s.V), nil, SumOpt{}))
	case "square":
		p.acc = x.Add(p.acc, x.Sum(x.Mul(t, t), nil, SumOpt{}))
	case "out":
		p.h = append(p.h, x.Mul(t, p.w[0]))
	case "relu":
		x.ReLUInto(t, t)
	case "clamp":
		x.ClampSInto(t, t, 1.1, s.V+2)
	case "fill":
		x.MaskedFillSInto(t, t, x.Gt(x.Detach(t), x.Full(nil, s.V+1, dtype.Float64)), 0.5)
	case "mul":
		x.MulInto(t, t, p.operand(x, s))
	case "add":
		x.AddInto(t, t, p.operand(x, s))
	case "sub":
		x.SubInto(t, t, p.operand(x, s))
	case "div":
		x.DivInto(t, t, p.operand(x, s))
	case "copy":
		x.CopyInto(t, p.operand(x, s))
	case "addcmul":
		x.AddCMulInto(t, t, p.operand(x, s), p.w[1], AddCMulOpt{Value: s.V})
	default:
		panic("unknown step " + s.Do)
	}
}

// run returns the gradients, or the error and the step at which it occurred. With closing, every tensor is closed after its last use.
func (p *player) run(x *Exec, prog *recordedProgram, closing bool) (grads []*Tensor, at int, err error) {
	last := map[int]int{}
	for i := range prog.Steps {
		for _, h := range prog.Steps[i].uses() {
			last[h] = i
		}
	}
	for i := range prog.Steps {
		if err := Try(func() { p.step(x, &prog.Steps[i]) }); err != nil {
			return nil, i, err
		}
		for h, at := range last {
			if closing && at == i && h != 0 {
				p.h[h].Close()
			}
		}
	}
	leaves := []*Tensor{p.a, p.w[0], p.w[1]}
	if !p.acc.RequiresGrad() {
		return make([]*Tensor, len(leaves)), -1, nil
	}
	g, err := x.Grad([]*Tensor{p.acc}, leaves, GradOpt{CreateGraph: prog.Double, AllowUnused: true})
	if err != nil || !prog.Double {
		return g, -1, err
	}
	q := x.Zeros(nil, dtype.Float64)
	for _, g := range g {
		if g != nil {
			q = x.Add(q, x.Sum(x.Mul(g, g), nil, SumOpt{}))
		}
	}
	if !q.RequiresGrad() {
		return make([]*Tensor, len(leaves)), -1, nil
	}
	g, err = x.Grad([]*Tensor{q}, leaves, GradOpt{AllowUnused: true})
	return g, -1, err
}

// check runs the program and compares the result with the recorded one.
func (prog *recordedProgram) check(x *Exec, closing bool) error {
	p := newPlayer(x)
	grads, at, err := p.run(x, prog, closing)
	switch {
	case err == nil && prog.Error != nil && !prog.Error.May:
		return fmt.Errorf("it runs, but PyTorch fails at step %d: %s", prog.Error.At, prog.Error.What)
	case err != nil && prog.Error == nil:
		return fmt.Errorf("it fails at step %d: %w", at, err)
	case err != nil && at != prog.Error.At && !prog.Error.May:
		return fmt.Errorf("it fails at step %d, but PyTorch at %d (%s): %w", at, prog.Error.At, prog.Error.What, err)
	case err != nil:
		if k := fault.KindOf(err); k != fault.Invalid {
			return fmt.Errorf("it fails with kind %v: %w", k, err)
		}
		return nil
	}
	for i, want := range prog.Grads {
		g := grads[i]
		got := make([]float64, max(len(want), 1))
		if g != nil {
			if got, err = Read[float64](x, g); err != nil {
				return err
			}
		}
		for j, v := range got {
			w := 0.0
			if want != nil {
				w = want[j]
			}
			if math.Abs(v-w) > 1e-9*(1+math.Abs(w)) {
				return fmt.Errorf("gradient %d is %v, want %v", i, got, want)
			}
		}
	}
	return nil
}

// TestInPlaceRecorded checks that programs of views and changes in place have PyTorch's gradients, or are refused where PyTorch refuses
// them.
func TestInPlaceRecorded(t *testing.T) {
	text, err := os.ReadFile(*programsFlag)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Programs []*recordedProgram }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	bad := 0
	for i, prog := range file.Programs {
		for _, closing := range []bool{false, true} {
			before := live.Load()
			var err error
			x.Scope(func(x *Exec) { err = prog.check(x, closing) })
			if n := live.Load() - before; n != 0 {
				err = fmt.Errorf("%d storages are left: %v", n, err)
			}
			if err != nil {
				bad++
				t.Errorf("program %d %s, closing %v: %v", i, prog.Name, closing, err)
			}
		}
		if bad > 100 {
			t.Fatal("too many failures")
		}
	}
}
