package nn

import (
	"iter"
	"slices"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Callable is what GraphCallables captures: a function of tensors, with the parameters that it uses.
type Callable struct {
	// Forward computes the outputs, new tensors or views in the caller's scope. GraphCallables runs it a few times and then records it;
	// its Go code does not run again.
	Forward func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor
	// Params yields the parameters that Forward uses, such as Params of a module; nil for none.
	Params iter.Seq2[string, *Param]
	// Samples are examples of the inputs: calls must pass tensors of the same shapes and types, and an input may require a gradient only
	// if its sample does. Floating-point inputs may have another floating-point type, as under autocast; they are converted.
	Samples []*tenon.Tensor
}

// GraphOpt are the options of GraphCallables and Graph.
type GraphOpt struct {
	// Warmup is the number of times that each callable runs, forward and backward, before it is recorded, up to 1000; 0 is 3, and a
	// negative number means none.
	Warmup int
	// AllowUnused lets a callable have inputs or parameters that its outputs do not depend on; they get no gradient.
	AllowUnused bool
	// Pool is the id of the memory pool for all graphs, from cuda.NewPoolID; zero is a new one. Callables of one pool must be called in
	// the order in which they were captured, and their gradients computed in the reverse order.
	Pool [2]uint64
}

// GraphedCallable is a callable whose forward and backward passes are CUDA graphs.
type GraphedCallable struct {
	fwd, bwd *tenon.Graph
	in, out  []*tenon.Tensor // static inputs and outputs
	params   []namedParam
	weights  []*tenon.Tensor // the parameters' tensors at the capture
	seeds    []*tenon.Tensor // static gradients of the outputs, nil where there is none
	grads    []*tenon.Tensor // static gradients of inputs and parameters, nil where there is none
	runs     int
	closed   bool
}

type namedParam struct {
	name string
	p    *Param
}

// GraphCallables captures the forward and backward passes of callables, so that a call and its backward pass take one launch each,
// whatever runs between the calls, as torch.cuda.make_graphed_callables does. It runs and captures the forward passes in the order given
// and the backward passes in the reverse order, all in one pool. Replays draw random numbers as eager runs do.
//
// The next call of the same callable overwrites the results of a call. Second derivatives are not supported. Close the results before x's
// device.
func GraphCallables(x *tenon.Exec, cs []Callable, opts ...GraphOpt) (graphed []*GraphedCallable, err error) {
	opt, err := core.Only("GraphCallables", opts)
	if err != nil {
		return nil, err
	}
	const op = "GraphCallables"
	if opt.Warmup == 0 {
		opt.Warmup = 3
	}
	if opt.Pool == ([2]uint64{}) {
		opt.Pool = cuda.NewPoolID()
	}
	g := &grapher{opt: opt}
	err = tenon.Try(func() {
		x = x.EnableGrad()
		for i, c := range cs {
			switch {
			case c.Forward == nil:
				fail(op, "callable %d has no Forward function; give it one", i)
			case slices.Contains(c.Samples, nil):
				fail(op, "In the beta API, sample_args for each callable must contain only Tensors. Other types are not allowed: a "+
					"sample of callable %d is nil", i)
			}
			graphed = append(graphed, prepare(x, c))
		}
	})
	if err == nil && opt.Warmup > mostWarmups {
		err = fault.New(fault.Invalid, "%d warm-up runs were asked for; give a number up to %d, or 0 for 3", opt.Warmup, mostWarmups)
	}
	if err == nil {
		err = g.capture(x, cs, graphed)
	}
	if err != nil {
		for _, c := range graphed {
			_ = c.Close()
		}
		return nil, core.Located(op, err)
	}
	return graphed, nil
}

// mostWarmups bounds Warmup; no callable needs as many runs.
const mostWarmups = 1000

// prepare makes the static inputs of a callable. They are separate memory, because samples may be shared and used for other things.
func prepare(x *tenon.Exec, c Callable) *GraphedCallable {
	g := &GraphedCallable{}
	for _, t := range c.Samples {
		g.in = append(g.in, own("GraphCallables", x.NoGrad().Clone(t).SetRequiresGrad(t.RequiresGrad())))
	}
	if c.Params != nil {
		for name, p := range c.Params {
			g.params = append(g.params, namedParam{name, p})
			g.weights = append(g.weights, p.Tensor())
		}
	}
	return g
}

// grapher captures callables on one stream into one pool.
type grapher struct {
	opt    GraphOpt
	stream *cuda.Stream
}

func (g *grapher) capture(x *tenon.Exec, cs []Callable, graphed []*GraphedCallable) (err error) {
	if err := x.Device().Synchronize(); err != nil {
		return err
	}
	st, giveBack, err := core.CaptureStream((*core.Exec)(x))
	if err != nil {
		return err
	}
	defer giveBack()
	g.stream = (*cuda.Stream)(st)
	for i, c := range cs {
		for range max(0, g.opt.Warmup) {
			if err := g.warm(x.On(g.stream), c, graphed[i]); err != nil {
				return err
			}
		}
	}
	for i, c := range cs {
		if err := g.forward(x, c, graphed[i]); err != nil {
			return err
		}
	}
	for _, c := range slices.Backward(graphed) {
		if err := g.backward(x, c); err != nil {
			return err
		}
	}
	return nil
}

// warm runs a callable and its backward pass.
func (g *grapher) warm(x *tenon.Exec, c Callable, to *GraphedCallable) error {
	return tenon.Try(func() {
		x.Scope(func(x *tenon.Exec) {
			outs := c.run(x, to)
			roots, sources := differentiable(outs), differentiable(to.sources())
			if len(roots) == 0 || len(sources) == 0 {
				return
			}
			seeds := make([]*tenon.Tensor, len(roots))
			for i, r := range roots {
				seeds[i] = x.Zeros(r.Shape(), r.DType())
			}
			_, err := x.Grad(roots, sources, tenon.GradOpt{Gradients: seeds, AllowUnused: g.opt.AllowUnused})
			core.Check("GraphCallables", err)
		})
	})
}

// run runs the function on the static inputs.
func (c *Callable) run(x *tenon.Exec, to *GraphedCallable) []*tenon.Tensor {
	outs := slices.Clone(c.Forward(x, to.in...))
	if i := slices.Index(outs, nil); i >= 0 {
		fail("GraphCallables", "output %d of a callable is nil; return tensors", i)
	}
	return outs
}

// sources returns the tensors that get gradients: inputs and parameters.
func (c *GraphedCallable) sources() []*tenon.Tensor { return slices.Concat(c.in, c.weights) }

// differentiable returns the tensors that require a gradient.
func differentiable(ts []*tenon.Tensor) []*tenon.Tensor {
	return slices.DeleteFunc(slices.Clone(ts), func(t *tenon.Tensor) bool { return !t.RequiresGrad() })
}

func (g *grapher) forward(x *tenon.Exec, c Callable, to *GraphedCallable) (err error) {
	to.fwd, err = x.Capture(func(x *tenon.Exec) {
		to.out = c.run(x, to)
	}, tenon.CaptureOpt{Pool: g.opt.Pool, Stream: g.stream})
	return err
}

// backward captures the gradients of a callable's inputs and parameters, given those of its outputs.
func (g *grapher) backward(x *tenon.Exec, c *GraphedCallable) (err error) {
	roots, sources := differentiable(c.out), differentiable(c.sources())
	if len(roots) == 0 || len(sources) == 0 {
		return nil
	}
	var seeds []*tenon.Tensor
	if err := tenon.Try(func() {
		for _, o := range c.out {
			var s *tenon.Tensor
			if o.RequiresGrad() {
				s = own("GraphCallables", x.NoGrad().Zeros(o.Shape(), o.DType()))
				seeds = append(seeds, s)
			}
			c.seeds = append(c.seeds, s)
		}
	}); err != nil {
		return err
	}
	var grads []*tenon.Tensor
	c.bwd, err = x.Capture(func(x *tenon.Exec) {
		var err error
		grads, err = x.Grad(roots, sources, tenon.GradOpt{Gradients: seeds, AllowUnused: g.opt.AllowUnused})
		core.Check("GraphCallables", err)
	}, tenon.CaptureOpt{Pool: g.opt.Pool, Stream: g.stream})
	if err != nil {
		return err
	}
	for _, t := range c.sources() {
		var grad *tenon.Tensor
		if t.RequiresGrad() {
			grad, grads = grads[0], grads[1:]
		}
		c.grads = append(c.grads, grad)
	}
	return nil
}

// Call runs the callable: it copies in to the captured inputs, unless in are those, and launches the forward graph. The next call
// overwrites the results. They are on the tape if x records gradients and the captured outputs required one.
func (c *GraphedCallable) Call(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor {
	return c.call(x, "GraphedCallable.Call", "the function", in)
}

// call is Call under another name: errors begin with op and call the captured code from, such as "the function".
func (c *GraphedCallable) call(x *tenon.Exec, op, from string, in []*tenon.Tensor) []*tenon.Tensor {
	switch {
	case made(c, op).closed:
		core.Fail(op, fault.Closed, "the callable was closed; close it after the last use of it, or capture it again")
	case c.fwd == nil:
		fail(op, "the callable is a zero value; use one that GraphCallables returned")
	}
	if len(in) != len(c.in) {
		fail(op, "%d inputs were given to a callable that was captured with %d", len(in), len(c.in))
	}
	for i, t := range in {
		switch s := c.in[i]; {
		case t == nil:
			fail(op, "input %d is nil; give it a tensor", i)
		case !slices.Equal(t.Shape(), s.Shape()) || t.DType() != s.DType() && !(t.DType().IsFloat() && s.DType().IsFloat()):
			fail(op, "input %d is %v, but the callable was captured with %v; pad or convert it to that, or call %s itself", i, t, s, from)
		case x.GradEnabled() && t.RequiresGrad() && !s.RequiresGrad():
			fail(op, "input %d requires a gradient, but the sample that it was captured with did not; capture it "+
				"with one that does", i)
		}
	}
	for i, p := range c.params {
		if p.p.Tensor() != c.weights[i] {
			fail(op, "the parameter %s has another tensor than when it was captured; capture again after moving, "+
				"converting or replacing parameters", p.name)
		}
	}
	return x.Apply(graphedFunction{c}, append(slices.Clone(in), c.weights...)...)
}

// Inputs returns the static inputs. A call with these copies nothing, so a program can write its data directly into them. The callable
// owns them.
func (c *GraphedCallable) Inputs() []*tenon.Tensor {
	return slices.Clone(made(c, "GraphedCallable.Inputs").in)
}

// Close releases the graphs and their memory, including the results of calls. Closing twice does nothing.
func (c *GraphedCallable) Close() error {
	if c == nil || c.closed {
		return nil
	}
	c.closed = true
	err := c.bwd.Close()
	if e := c.fwd.Close(); err == nil {
		err = e
	}
	for _, t := range slices.Concat(c.in, c.seeds) {
		if t != nil {
			t.Close()
		}
	}
	return err
}

// call is what Forward leaves for Backward: the number of the run and the types of its inputs.
type call struct {
	run   int
	types []tenon.DType
}

// graphedFunction is the Function that puts a graphed callable on the tape.
type graphedFunction struct{ c *GraphedCallable }

func (f graphedFunction) String() string { return "a graphed callable" }

// Forward launches the forward graph.
func (f graphedFunction) Forward(x *tenon.Exec, ctx *tenon.FunctionContext, inputs ...*tenon.Tensor) []*tenon.Tensor {
	c := f.c
	for i, s := range c.in {
		fill(x, s, inputs[i])
	}
	core.Check("GraphedCallable.Call", x.Replay(c.fwd))
	c.runs++
	v := call{run: c.runs}
	for _, t := range inputs {
		v.types = append(v.types, t.DType())
	}
	ctx.Value = v
	return slices.Clone(c.out)
}

// fill copies t to the static tensor s, unless they are the same memory.
func fill(x *tenon.Exec, s, t *tenon.Tensor) {
	if t.DataPtr() != s.DataPtr() || !slices.Equal(t.Stride(), s.Stride()) {
		x.NoGrad().CopyInto(s, t)
	}
}

// Backward launches the backward graph.
func (f graphedFunction) Backward(x *tenon.Exec, ctx *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	c, v := f.c, ctx.Value.(call)
	switch {
	case c.closed:
		return nil, fault.New(fault.Closed, "the graphed callable was closed; close it after the backward passes of its results")
	case x.GradEnabled():
		return nil, fault.New(fault.Unsupported, "graphed callables have no second derivatives; leave CreateGraph out, or call the "+
			"function itself")
	case v.run != c.runs:
		return nil, fault.New(fault.Invalid, "the callable was called again since, which overwrote what this backward pass needs; run "+
			"backward before the next call, or graph it twice")
	}
	out := make([]*tenon.Tensor, len(c.in)+len(c.weights))
	if c.bwd == nil {
		return out, nil
	}
	for i, s := range c.seeds {
		if s != nil {
			fill(x, s, grads[i])
		}
	}
	if err := x.Replay(c.bwd); err != nil {
		return nil, err
	}
	for i, g := range c.grads {
		if g != nil {
			out[i] = x.ToDType(x.Detach(g), v.types[i])
		}
	}
	return out, nil
}

// Graphed is a module whose Forward and backward pass are CUDA graphs while it is in the mode, Train or Eval, in which it was captured;
// in the other mode the module itself runs. Its parameters are the module's.
type Graphed struct {
	Module
	c        *GraphedCallable `torch:"-"`
	training []bool
}

// Graph captures a module as GraphCallables does, with an input like sample. The backward pass is captured too, even if x records no
// gradients, unless neither sample nor a parameter requires one. Close the result, not only the module.
func Graph(x *tenon.Exec, m Module, sample *tenon.Tensor, opts ...GraphOpt) (*Graphed, error) {
	opt, err := core.Only("Graph", opts)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, core.Located("Graph", fault.New(fault.Invalid, "the module is nil; give one"))
	}
	c, err := GraphCallables(x, []Callable{{
		Forward: func(x *tenon.Exec, in ...*tenon.Tensor) []*tenon.Tensor { return []*tenon.Tensor{m.Forward(x, in[0])} },
		Params:  Params(m),
		Samples: []*tenon.Tensor{sample},
	}}, opt)
	if err != nil {
		return nil, err
	}
	return &Graphed{m, c[0], trainingOf(m)}, nil
}

// Forward returns the module's output for in, which the next call overwrites.
func (g *Graphed) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	made(g, "Graphed")
	if g.Module == nil {
		fail("Graphed", "the module is a zero value; use one that Graph returned")
	}
	if !slices.Equal(trainingOf(g.Module), g.training) {
		return g.Module.Forward(x, in)
	}
	return g.c.call(x, "Graphed.Forward", "the module", []*tenon.Tensor{in})[0]
}

// Close releases the graphs. The module stays as it is.
func (g *Graphed) Close() error {
	if g == nil {
		return nil
	}
	return g.c.Close()
}

// trainingOf returns whether each module within m that acts differently in training is in training mode.
func trainingOf(m any) (all []bool) {
	walk(m, func(_ string, v any) bool {
		if t, ok := v.(*Mode); ok {
			all = append(all, t.Training())
		}
		return true
	})
	return all
}
