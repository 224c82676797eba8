package core

import (
	"fmt"
	"slices"
	"strings"
)

// PlannedStep describes for people a part of a plan: a call, or a group of calls that runs as one kernel.
type PlannedStep struct {
	// Calls are the numbers of its calls.
	Calls []int
	// Kernel is the name of the fused kernel and Text what it computes, in the text form of package fuse; both are "" for single calls.
	Kernel, Text string
	// Bytes is how many bytes a fused kernel reads and writes. Saved is how many bytes fewer a single call reads than its operands have,
	// since the plan has replaced some by halves.
	Bytes, Saved int
}

func (g *fusedGroup) planned(calls []int) PlannedStep {
	return PlannedStep{Calls: calls, Kernel: g.name(), Text: g.about.Print(), Bytes: g.about.Moves()}
}

// Steps returns how n calls ran by the latest plan; none if they run one by one.
func (p *Plans) Steps(n int) (steps []PlannedStep) {
	for _, p := range slices.Backward(p.all) {
		if p.n != n {
			continue
		}
		for step, i := range p.units(n) {
			if step != nil {
				steps = append(steps, step.group.planned(slices.Clone(step.calls)))
				continue
			}
			s := PlannedStep{Calls: []int{i}}
			for _, w := range p.narrow {
				if w.what.call == i {
					s.Saved += w.saves
				}
			}
			steps = append(steps, s)
		}
		return steps
	}
	return nil
}

// LaidOut returns how many values the latest plan for n calls has moved to channels last.
func (p *Plans) LaidOut(n int) int {
	for _, p := range slices.Backward(p.all) {
		if p.n == n {
			return p.anew
		}
	}
	return 0
}

// Kernels returns how many kernels the graph has.
func (r *Recorded) Kernels() int { return r.kernels }

// Bytes returns how many bytes the call must read and write, as a profile counts them; 0 if it runs no kernel, or if its outputs depend on
// data.
func (c Call) Bytes() (n int) {
	_ = Try(func() { // it fails if outputs depend on data
		f := c.inferred()
		for i := range f.outs {
			switch sp := f.spec(i); {
			case f.to(i) != nil:
				f.setOut(i, f.to(i))
			case sp.kind == outView:
				f.setOut(i, nil)
			default:
				f.setOut(i, &Tensor{dt: sp.dt, form: sp.form, st: &storage{}})
			}
		}
		n = int(f.bytesMoved())
	})
	return n
}

// Differs describes the first difference between the calls c and b, which are keys.
func (c Call) Differs(b Call) string {
	was := func(what string, a, b any) string { return fmt.Sprintf("%s: %v, %v", what, a, b) }
	switch {
	case c.row != b.row:
		return was("operation", c.row.Name, b.row.Name)
	case c.noGrad != b.noGrad:
		return was("gradients are not recorded", c.noGrad, b.noGrad)
	case c.tf32 != b.tf32:
		return was("TF32", c.tf32, b.tf32)
	case c.stream != b.stream, c.pool != b.pool, c.byHand != b.byHand:
		return "stream or pool"
	case c.source != b.source:
		return "generator"
	case c.dt != b.dt:
		return was("type", c.dt, b.dt)
	case c.i != b.i, c.list != b.list, c.opt != b.opt, c.scalar != b.scalar, c.hole != b.hole, c.holes != b.holes,
		c.holeFloat != b.holeFloat:
		return was("attributes", c.String(), b.String())
	}
	x, y := c.Operands(), b.Operands()
	if len(x) != len(y) || c.ins != b.ins || c.dsts != b.dsts {
		return was("number of operands", len(x), len(y))
	}
	for i := range x {
		if x[i] != y[i] {
			return x[i].differs(y[i], fmt.Sprint("operand ", i))
		}
	}
	return "hosts"
}

// SameSizes reports whether b, a call of the same operation, has operands of c's shapes, and, without operands, makes a tensor of c's
// shape.
func (c Call) SameSizes(b Call) bool {
	x, y := c.Operands(), b.Operands()
	if len(x) == 0 && len(y) == 0 {
		return c.list == b.list
	}
	return slices.EqualFunc(x, y, func(p, q Operand) bool {
		return p.Absent() == q.Absent() && (p.Absent() || slices.Equal(p.form.shape, q.form.shape))
	})
}

func (o Operand) differs(b Operand, name string) string {
	was := func(what string, a, b any) string {
		return fmt.Sprintf("%s of %s: %s, %s", what, name, strings.ReplaceAll(fmt.Sprint(a), ",", " "),
			strings.ReplaceAll(fmt.Sprint(b), ",", " "))
	}
	switch {
	case o.Absent() != b.Absent():
		return name + " is absent in one"
	case o.dt != b.dt:
		return was("type", o.dt, b.dt)
	case !slices.Equal(o.form.shape, b.form.shape):
		return was("shape", o.form.shape, b.form.shape)
	case o.form != b.form:
		return was("strides", o.form.stride, b.form.stride)
	case o.storage != b.storage:
		return was("storage, by first use,", o.storage, b.storage)
	}
	return was("place or alignment", o.offset, b.offset)
}
