// Package compile saves work that a program repeats. A region is a function that runs again and again, such as a training step. It runs
// unchanged every time, but the work of its calls is put off until the end of the region, or until a value is needed, and then runs
// together; chains of element-wise calls run as one kernel. Calls are compared with those of earlier runs: what comes a second time is
// recorded as a CUDA graph, and from then on it is one launch of that graph. Results are bit for bit those of the program without a
// region. Func turns a function of tensors into a callable with a backward pass.
package compile

import (
	"errors"
	"slices"
	"sync"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/knob"
)

// Opt are the options of a region.
type Opt struct {
	// Branches is how many ways a region may go on from one call before further ones are no longer remembered; 0 is 64.
	Branches int
	// Static are the numbers of a function's tensor arguments that stay where they are, such as weights; other arguments are copied to
	// where its graph reads them, as are those of Static whose first element that is used is not at a multiple of 16 bytes.
	Static []int
	// RerecordLimit is how often a function may be recorded again in one place because an address changed; then it runs without a graph
	// there. 0 is 128, and less than 0 never.
	RerecordLimit int
	// FixedStatic makes it an error that a static argument, or a tensor that the function captured, has moved. Otherwise it is recorded
	// again.
	FixedStatic bool
	// PlainMutation runs a function that changes an argument without a graph, also where the argument comes from an earlier graph.
	PlainMutation bool
	// NoGraphs runs all without graphs, and NoFusion each call by itself, also those whose results nobody needs.
	NoGraphs, NoFusion bool
	// Must makes it an error, with the reason, that work of the region would run without a graph, but for warm-ups, what Disable runs,
	// and what runs while device memory is not cached, as under a memory checker. What the work was to make is lost.
	Must bool
	// NoWarmup records a segment in its first run. Kernels are then built while it is recorded, which works, and memory lies as it happens
	// to.
	NoWarmup bool
	// DynamicLimit is how many shapes, or on the same shapes how many values of an option, a function is recorded with before a warning.
	// 0 means 50, and a negative number means no limit.
	DynamicLimit int
	// SkipDynamic runs a function without a graph from its second shape on.
	SkipDynamic bool
	// CheckPool compares, after each run that takes memory, the live memory of the graphs' pool with the outputs: anything else there is an
	// error that names it, with its stack where the device's history is recorded.
	CheckPool bool
}

// limit returns how often a function may be recorded again, or -1.
func (o *Opt) limit() int {
	switch {
	case o.RerecordLimit < 0:
		return 0
	case o.RerecordLimit == 0:
		return 128
	}
	return o.RerecordLimit
}

// shapes returns of how many shapes a function is recorded without a warning, or -1.
func (o *Opt) shapes() int {
	if o.DynamicLimit == 0 {
		return 50
	}
	return max(o.DynamicLimit, -1)
}

func (o *Opt) isStatic(arg int) bool { return slices.Contains(o.Static, arg) }

const defaultBranches = 64

const notMade = "the region is nil or a zero value; use one that New returned"

// Region remembers the calls of one function. Several goroutines may use it, each with a session of its own, which has its own memory of
// calls.
type Region struct {
	opt Opt
	// name is a callable's function.
	name string
	// off says that every call runs at once.
	off    bool
	mu     sync.Mutex
	traces map[any]*trace
}

// New returns a region that remembers nothing yet.
func New(opts ...Opt) *Region {
	opt := core.One("New", opts)
	if opt.Branches <= 0 {
		opt.Branches = defaultBranches
	}
	r := &Region{opt: opt, traces: map[any]*trace{}}
	switch knob.Compile.Get() {
	case "off":
		r.off = true
	case "fusion":
		r.opt.NoGraphs = true
	case "graphs":
		r.opt.NoFusion = true
	}
	return r
}

// Do runs f in a scope of its own. The work of its calls is put off until a value is read, the device is waited for, a call comes that
// cannot be put off, or f returns. Work that an earlier run did in the same way runs as a graph. Tensors that f leaves open move to other
// memory when the next run begins. A tensor that has no elements yet answers for its shape, strides, type and history; whoever asks for its
// address or elements gets them. Work that was put off runs also when f ends with an error or a panic; an error of it is joined to f's.
// Another Exec that uses a tensor of a call that was put off gets an error. A Do within a Do is part of the outer one.
func (r *Region) Do(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
	if r == nil || r.traces == nil {
		return core.Refusal("Do", fault.Invalid, notMade)
	}
	if f == nil {
		return core.Refusal("Do", fault.Invalid, "the function is nil; give it one")
	}
	c := (*core.Exec)(x)
	var old core.Tap
	err = core.Try(func() {
		core.Made(c, "Do")
		old = core.TapOf(c, "Do")
	})
	if err != nil {
		return err
	}
	if _, within := old.(*trace); within || r.runsPlainly(c) {
		return x.Do(f)
	}
	if r.opt.Must && r.opt.NoGraphs {
		return core.Refusal("Do", fault.Invalid, mustNoGraphs)
	}
	t := r.trace(c, f)
	t.enter(c)
	t.begin(c, c.Device(), old)
	forces := 0
	if err := core.Try(func() {
		core.SwapTap(c, "Do", t)
		forces = core.Forces(c)
	}); err != nil {
		return err
	}
	defer func() {
		left := core.Try(func() {
			core.SwapTap(c, "Do", old)
			t.stats.Forced += core.Forces(c) - forces
		})
		if left == nil {
			left = core.Force(c)
		}
		err = errors.Join(err, left)
	}()
	return x.Do(f)
}

const mustNoGraphs = "Opt.Must asks for graphs, and Opt.NoGraphs or TENON_COMPILE=fusion forbids them; drop one of the two"

// runsPlainly reports whether every call runs at once: by the setting, or within Disable.
func (r *Region) runsPlainly(x *core.Exec) bool {
	if r.off {
		return true
	}
	fo := forestOf(x, x.Device(), false)
	return fo != nil && fo.disabled
}

// Disable runs f, in which every call runs at once, as without a region: also where f runs within one, whose other calls go on being put
// off. TENON_COMPILE=off does so for a whole program.
func Disable(x *tenon.Exec, f func(x *tenon.Exec) error) error {
	if f == nil {
		return core.Refusal("Disable", fault.Invalid, "the function is nil; give it one")
	}
	fo, err := sessionForest(x, "Disable")
	if err != nil {
		return err
	}
	old := fo.disabled
	fo.disabled = true
	c := (*core.Exec)(x)
	dev := c.Device()
	defer func() {
		if now := forestOf(c, dev, false); now != nil { // another one after a Reset
			now.disabled = old
		}
	}()
	return f(x)
}

// Frozen runs f, in which regions and functions make no new recordings: what was recorded runs as a graph, everything else without one.
func Frozen(x *tenon.Exec, f func(x *tenon.Exec) error) error {
	if f == nil {
		return core.Refusal("Frozen", fault.Invalid, "the function is nil; give it one")
	}
	fo, err := sessionForest(x, "Frozen")
	if err != nil {
		return err
	}
	old := fo.frozen
	fo.frozen = true
	c := (*core.Exec)(x)
	dev := c.Device()
	defer func() {
		if now := forestOf(c, dev, false); now != nil { // another one after a Reset
			now.frozen = old
		}
	}()
	return f(x)
}

// MarkStep says that a step of the program begins: tensors that functions returned in earlier steps lose their memory to this one. A
// program that never calls it begins a step with each call of a function, unless the backward pass of an earlier one is still to come.
func MarkStep(x *tenon.Exec) error {
	fo, err := sessionForest(x, "MarkStep")
	if err == nil {
		fo.marked--
	}
	return err
}

// Break runs what was put off, so that a segment ends here.
func Break(x *tenon.Exec) error {
	if _, err := sessionForest(x, "Break"); err != nil {
		return err
	}
	return core.Force((*core.Exec)(x))
}

// sessionForest returns the graphs of x's session on its device.
func sessionForest(x *tenon.Exec, op string) (fo *forest, err error) {
	c := (*core.Exec)(x)
	err = core.Try(func() {
		core.Made(c, op)
		fo = forestOf(c, c.Device(), true)
	})
	return fo, err
}

// trace returns what r remembers of x's session, in which f is the first function unless r is a callable.
func (r *Region) trace(x *core.Exec, f func(x *tenon.Exec) error) *trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := core.SessionOf(x)
	t := r.traces[key]
	if t == nil {
		for k := range r.traces { //tenon:unordered each is looked at alone
			if core.SessionEnded(k) {
				delete(r.traces, k)
			}
		}
		t = &trace{opt: &r.opt, name: r.name, root: &node{}, kind: inference, counted: counting()}
		if f != nil {
			t.name = nameOf(f)
		}
		r.traces[key] = t
	}
	return t
}
