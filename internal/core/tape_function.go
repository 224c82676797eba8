package core

import (
	"fmt"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// Function is a user's operation with its own derivative. Forward's operations are not recorded; Backward is called in their place. Both
// run under the autocast of the call's Exec, and Forward gets its inputs unconverted.
type Function interface {
	// Forward computes the outputs. It saves in c what Backward needs.
	Forward(x *Exec, c *FunctionContext, inputs ...*Tensor) []*Tensor
	// Backward returns the gradients of the inputs, nil where there is none, from those of the outputs (zeros where none came). An error
	// fails the backward pass, whose error names the line of the forward call.
	Backward(x *Exec, c *FunctionContext, grads ...*Tensor) ([]*Tensor, error)
}

// CastsInputs is a Function that under autocast gets its inputs in one type: inputs that autocast may convert are converted to the type
// that CastInputs returns, and Forward and Backward run without autocast. Without autocast it behaves like any other Function. A zero type
// converts nothing.
type CastsInputs interface {
	Function
	CastInputs() dtype.DType
}

// FunctionContext carries data from Forward to Backward.
type FunctionContext struct {
	n     *node
	x     *Exec
	saves []*Tensor
	// Value holds anything else that Backward needs.
	Value any
}

// Save keeps tensors for Backward; inputs and outputs of the function keep their history. It is called once.
func (c *FunctionContext) Save(ts ...*Tensor) {
	if c == nil {
		panicAt("Save", fault.Invalid, "the context is nil; use the one that Forward is given")
	}
	c.saves = ts
}

// Saved returns the tensors that Save kept, in the scope of Backward.
func (c *FunctionContext) Saved() []*Tensor {
	c.recorded("Saved")
	if c.x == nil {
		panicAt("Saved", fault.Invalid, "the context is that of Forward; ask the one that Backward is given")
	}
	c.x.s.in("Saved")
	defer c.x.s.out()
	b := &back{x: c.x, n: c.n}
	out := make([]*Tensor, len(c.n.saved))
	for i := range out {
		out[i] = b.unpackSlot(i, c.n.custom.history[i])
	}
	return out
}

// NeedsGrad reports whether input i wants a gradient.
func (c *FunctionContext) NeedsGrad(i int) bool {
	c.recorded("NeedsGrad")
	if i < 0 || i >= len(c.n.edges) {
		panicAt("NeedsGrad", fault.Invalid, "there is no input %d; the function has %d, numbered from 0", i, len(c.n.edges))
	}
	return (&back{n: c.n}).need(i)
}

// recorded refuses calls that only make sense on the context of a recorded call.
func (c *FunctionContext) recorded(op string) {
	if c == nil || c.n == nil {
		panicAt(op, fault.Invalid, "the context is not that of a recorded call; ask the one that Backward is given")
	}
}

// functionState is the additional state of a node of a user's function.
type functionState struct {
	fn      Function
	ctx     *FunctionContext
	file    string
	line    int
	history []edge // of the saved tensors; it holds references to their nodes, except the function's own
}

func (s *functionState) close() {
	if s != nil {
		s.ctx.saves = nil
	}
}

var rowFunction *row

func init() {
	rowFunction = define(row{Name: "Function", takes: "inputs…;;options -> outputs…"})
}

func init() { rowFunction.back = backFunction }

// Apply runs fn on the inputs and puts it on the tape if any input requires a gradient.
func (x *Exec) Apply(fn Function, inputs ...*Tensor) []*Tensor {
	c := &FunctionContext{}
	s := x.s
	defer s.restore(s.mark())
	s.push()
	y, ins := x.forFunction(fn, inputs)
	z := y.noGrad()
	var outs []*Tensor
	s.outside("Function", func() { outs = fn.Forward(z, c, ins...) })
	for i, o := range outs {
		if o == nil || o.closed.Load() {
			x.fail("Function", fault.Invalid, inputs, "Forward returned no tensor, or a closed one, as output %d", i)
		}
		if o.scope != s.scope || o.RequiresGrad() || slices.Contains(outs[:i], o) { // Forward did not make it
			outs[i] = x.noGrad().Detach(o)
			outs[i].descend(&lineage{}, o, viewFunction)
		}
	}
	grads := slices.ContainsFunc(inputs, func(t *Tensor) bool { return t != nil && t.RequiresGrad() })
	if grads && !x.m.noGrad {
		y.record(fn, c, inputs, outs)
	}
	for _, o := range outs {
		s.lift(o)
	}
	return outs
}

// forFunction returns the Exec and the inputs to call fn with.
func (x *Exec) forFunction(fn Function, inputs []*Tensor) (*Exec, []*Tensor) {
	f, casts := fn.(CastsInputs)
	if !casts || x.m.autocast == dtype.Invalid {
		return x, inputs
	}
	to := f.CastInputs()
	switch {
	case to == dtype.Invalid:
		return x, inputs
	case !to.IsFloat():
		x.fail("Function", fault.Invalid, inputs, "%s wants its inputs as %v, which is not a floating-point type", functionName(fn), to)
	}
	y, ins := x.uncast(), slices.Clone(inputs)
	for i, t := range ins {
		if x.castable(t) && t.dt != to {
			ins[i] = y.noGrad().ToDType(t, to)
		}
	}
	return y, ins
}

// record puts a user's function on the tape.
func (x *Exec) record(fn Function, c *FunctionContext, inputs, outs []*Tensor) {
	n := newNode(rowFunction, &x.m)
	n.refs.Add(1)
	defer n.release()
	st := &functionState{fn: fn, ctx: c}
	st.file, st.line = caller()
	n.custom = st
	c.n = n
	for _, t := range inputs {
		if t != nil {
			t.settle("Function")
		}
		n.addEdge(t)
	}
	for _, t := range c.saves {
		if t == nil {
			x.fail("Function", fault.Invalid, inputs, "a nil tensor was given to Save")
		}
		t.settle("Function")
		n.keep(x, 0, t)
		e := edge{node: t.node, out: t.out, leaf: t.leaf}
		if t.node != nil {
			t.node.refs.Add(1)
		} else if i := slices.Index(outs, t); i >= 0 && (t.dt.IsFloat() || t.dt.IsComplex()) {
			e.node, e.out = n, uint8(i)
		}
		st.history = append(st.history, e)
	}
	c.saves = nil
	for i, o := range outs {
		n.addOutput(o)
		if o.dt.IsFloat() || o.dt.IsComplex() {
			o.node, o.out = n, uint8(i)
			n.refs.Add(1)
			if o.view != nil {
				o.view.kind = viewFunction
			}
		}
	}
}

// functionName returns the name of a user's function in errors: its type, or the result of its String.
func functionName(f Function) string {
	if s, ok := f.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", f)
}

func backFunction(b *back) {
	st := b.n.custom
	m := b.x.m
	m.autocast, m.casts, m.noCasts = b.n.m.autocast, b.n.m.casts, b.n.m.noCasts
	c := *st.ctx
	c.x = b.x.with(m)
	gs := make([]*Tensor, b.n.outputs())
	for i := range gs {
		gs[i] = b.grad(i)
	}
	var res []*Tensor
	var err error
	b.x.s.outside("Function", func() { res, err = st.fn.Backward(c.x, &c, gs...) })
	stop := func(e *fault.Error) {
		e.Op, e.File, e.Line = "Function", st.file, st.line
		panic(e)
	}
	if err != nil {
		stop(fault.Wrap(fault.Invalid, err, "Backward of %s failed", functionName(st.fn)))
	}
	if len(res) != len(b.n.edges) {
		stop(
			fault.New(fault.Invalid,
				"Backward of %s returned %d gradients, but Forward got %d inputs; return one for each, nil where there is none",
				functionName(st.fn), len(res), len(b.n.edges)))
	}
	for i, g := range res {
		if g != nil && !infer.Same(g.shape, b.shape(i)) {
			stop(fault.New(fault.Invalid, "Backward of %s returned a gradient of shape %v for input %d of shape %v", functionName(st.fn),
				g.shape, i, b.shape(i)))
		}
		b.set(i, g)
	}
}
