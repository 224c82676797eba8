// Package compile saves work that a program repeats. A region is a function that runs again and again, such as a training step. The Go code
// runs unchanged every time, but the work of its calls is deferred until the end of the region, or until a value is needed, and then runs
// together: chains of element-wise calls become one kernel. Calls are compared with those of earlier runs. A sequence that comes a second
// time is recorded as a CUDA graph, and from then on it is one launch of that graph. Results are bit for bit those of the program without
// a region. Func turns a function of tensors into a callable with a backward pass.
package compile

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/knob"
)

// Opt are the options of a region.
type Opt struct {
	// Branches is how many different calls are remembered in a session that came after the same call; 0 means 64, and a negative number is
	// an error. Beyond that, the least recently used one is forgotten, with all that came after it and its recordings. Two more numbers are
	// limited to four times Branches: the different runs of the region, and the sequences of graphs, of this and other regions, that ended
	// with a graph of this one. If what was forgotten keeps coming back, and so is recorded anew each time, a warning says so once.
	Branches int
	// Static lists the tensor arguments of a function, by number, whose memory does not move, such as weights. Numbers begin at 0 and count
	// tensors in the order of the parameters and within lists, structs and maps; the Exec and nil do not count. Other arguments are copied
	// to the memory that the graph reads. So are static ones whose first used element is not aligned to 16 bytes. Do, whose function has no
	// arguments, ignores it.
	Static []int
	// RerecordLimit is how often a function may be recorded again in one place because an address changed; after that it runs without a
	// graph there. 0 means 128, and a negative number means never.
	RerecordLimit int
	// FixedStatic makes it an error that a static argument, or a tensor that the function captured, has moved. Otherwise it is recorded
	// again.
	FixedStatic bool
	// PlainMutation runs a function that changes an argument without a graph, even if the argument comes from an earlier graph.
	PlainMutation bool
	// NoGraphs runs everything without graphs. NoFusion runs each call by itself, even if nobody needs its result.
	NoGraphs, NoFusion bool
	// Must makes it an error, with the reason, if work of the region would run without a graph. Exempt are warm-ups, work in Disable, and
	// work that runs while device memory is not cached, as under a memory checker. The results of the refused work are lost.
	Must bool
	// NoRecompute makes a function save all that the derivatives of its operations read. Without it, what the backward pass can compute
	// again by element-wise operations, casts, norms and softmaxes, and by dropouts with their masks, is not saved. Do ignores it.
	NoRecompute bool
	// NoWarmup records a segment in its first run, without a warm-up before it. Kernels are then built during the recording, and the pool's
	// layout is not settled yet.
	NoWarmup bool
	// DynamicLimit is how many shapes a function may be called with, and how often it may be recorded on the same shapes because a number
	// or an option differs, before a warning. 0 means 50. A negative number means no limit, nor a warning that nothing was replayed.
	DynamicLimit int
	// SkipDynamic runs every shape of a function but the first without a graph.
	SkipDynamic bool
	// CheckPool compares the live memory of the graphs' pool with the outputs after each run that allocates. Any other live block is an
	// error that names it, with its stack if the device's history is recorded.
	CheckPool bool
}

// check refuses numbers that mean nothing.
func (o *Opt) check(op string) {
	if o.Branches < 0 {
		core.Fail(op, fault.Invalid, "Branches is %d; give a positive number, or 0 for %d", o.Branches, defaultBranches)
	}
	for _, i := range o.Static {
		if i < 0 {
			core.Fail(op, fault.Invalid, "Static names argument %d; tensor arguments are counted from 0", i)
		}
	}
}

// limit returns how often a function may be recorded again, or -1 for never.
func (o *Opt) limit() int {
	switch {
	case o.RerecordLimit < 0:
		return 0
	case o.RerecordLimit == 0:
		return 128
	}
	return o.RerecordLimit
}

// shapes returns how many shapes of a function are recorded without a warning, or -1 for any number.
func (o *Opt) shapes() int {
	if o.DynamicLimit == 0 {
		return 50
	}
	return max(o.DynamicLimit, -1)
}

func (o *Opt) isStatic(arg int) bool { return slices.Contains(o.Static, arg) }

const defaultBranches = 64

const notMade = "the region is nil or a zero value; use one that New returned"

// Region remembers the calls of one function. Several goroutines may use it, each with its own session. The calls of each session are
// remembered separately.
type Region struct {
	opt Opt
	// name is a callable's function.
	name string
	// off says that every call runs at once, and compares that fused kernels are compared with their calls.
	off      bool
	compares bool
	mu       sync.Mutex
	traces   map[any]*trace
}

// String describes the region by its options, such as "compile.Region(Branches 4, NoFusion)". It reads nothing that runs change.
func (r *Region) String() string {
	if r == nil {
		return "nil region"
	}
	opt := r.opt
	if opt.Branches == defaultBranches {
		opt.Branches = 0
	}
	return "compile.Region(" + nonZero(opt) + ")"
}

// String names the counts that are not 0, such as "Runs 4, New 2, WarmUps 1, Recordings 1, Replays 2", or says "nothing ran".
func (s Stats) String() string { return cmp.Or(nonZero(s), "nothing ran") }

// nonZero lists the fields of a struct that are not zero.
func nonZero(v any) string {
	var b strings.Builder
	for f, v := range reflect.ValueOf(v).Fields() {
		if v.IsZero() {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.Name)
		if v.Kind() != reflect.Bool {
			fmt.Fprint(&b, " ", v)
		}
	}
	return b.String()
}

// New returns a region that remembers nothing yet.
func New(opts ...Opt) *Region {
	opt := core.One("New", opts)
	opt.check("New")
	if opt.Branches == 0 {
		opt.Branches = defaultBranches
	}
	r := &Region{opt: opt, traces: map[any]*trace{}}
	switch knob.Compile.Get() {
	case "off":
		r.off = true
	case "fusion":
		r.opt.NoGraphs = true
	case "compare":
		r.opt.NoGraphs, r.compares = true, true
	case "graphs":
		r.opt.NoFusion = true
	case "save":
		r.opt.NoRecompute = true
	}
	return r
}

// Do runs f in a new scope. The work of its calls is deferred until a value is read, the program waits for the device, a call comes that
// cannot be deferred, or f returns. Work that an earlier run did in the same way runs as a graph. Tensors that f leaves open move to other
// memory when the next run begins. A tensor whose work is still deferred already has its shape, strides, type and history; asking for its
// address or elements runs the work. Deferred work also runs if f ends with an error or a panic; an error of that work is joined to f's.
// Another Exec that uses a tensor of a deferred call gets an error. A Do within a Do is part of the outer one.
func (r *Region) Do(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
	if r == nil || r.traces == nil {
		return core.Refusal("Do", fault.Invalid, notMade)
	}
	if f == nil {
		return core.Refusal("Do", fault.Invalid, "the function is nil; give it one")
	}
	c := (*core.Exec)(x)
	var within, plainly bool
	err = core.Try(func() {
		core.Made(c, "Do")
		within, plainly = r.outerOf(c, "Do")
	})
	if err != nil {
		return err
	}
	if within || plainly {
		return x.Do(f)
	}
	if r.opt.Must && r.opt.NoGraphs {
		return core.Refusal("Do", fault.Invalid, mustNoGraphs)
	}
	t := r.trace(c, f)
	forces := 0
	var old core.Tap
	if err := core.Try(func() {
		old = core.BeginTap(c, "Do", t, func(old core.Tap) {
			alone(old, "Do")
			t.enter(c)
			t.begin(c, c.Device(), old)
			forces = core.Forces(c)
		})
	}); err != nil {
		return err
	}
	defer func() {
		left := core.Try(func() {
			core.BeginTap(c, "Do", old, func(core.Tap) { t.stats.Forced += core.Forces(c) - forces })
		})
		if left == nil {
			left = errors.Join(core.Located("Do", core.Force(c)), core.Try(func() { core.Inside(c, "Do", t.endRun) }))
		}
		switch {
		case err == nil:
			err = left
		case left != nil: // otherwise f's error as it is, as without a region
			err = errors.Join(err, left)
		}
	}()
	return x.Do(f)
}

const mustNoGraphs = "Opt.Must asks for graphs, and Opt.NoGraphs or TENON_COMPILE forbids them; drop one of the two"

// alone panics if outer is a region's tap: another goroutine has begun a region since this one found none.
func alone(outer core.Tap, op string) {
	if _, other := outer.(*trace); other {
		core.Fail(op, fault.Invalid, "two goroutines use one Exec at once; give each goroutine its own with Fork")
	}
}

// outerOf reports whether a region of x's session is running, and whether every call of r runs at once.
func (r *Region) outerOf(x *core.Exec, op string) (within, plainly bool) {
	core.Inside(x, op, func() {
		_, within = core.TapOf(x).(*trace)
		plainly = r.runsPlainly(x)
	})
	return within, plainly
}

// runsPlainly reports whether every call runs at once: by the setting, or within Disable.
func (r *Region) runsPlainly(x *core.Exec) bool {
	if r.off {
		return true
	}
	fo := forestOf(x, x.Device(), false)
	return fo != nil && fo.disabled
}

// Disable runs f with every call of x's session on its device executed at once, as without a region. If f runs within a region, the
// region's other calls are still deferred. Disable returns f's error; a failed operation panics, as outside. TENON_COMPILE=off does the
// same for a whole program.
func Disable(x *tenon.Exec, f func(x *tenon.Exec) error) error {
	if f == nil {
		return core.Refusal("Disable", fault.Invalid, "the function is nil; give it one")
	}
	fo, err := sessionForest(x, "Disable")
	if err != nil {
		return err
	}
	c := (*core.Exec)(x)
	old := fo.disabled
	fo.disabled = true
	slow := core.AskTap(c, true)
	defer core.AskTap(c, slow)
	dev := c.Device()
	defer func() {
		if now := forestOf(c, dev, false); now != nil { // another one after a Reset
			now.disabled = old
		}
	}()
	return f(x)
}

// Frozen runs f without new recordings of regions and functions in x's session on its device: recorded work runs as a graph, everything
// else without one. Frozen returns f's error; a failed operation panics, as outside.
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

// MarkStep begins a step of x's session on its device: this step reuses the memory of tensors that functions returned there in earlier
// steps. Before the first MarkStep, and after a Reset, each call of a function begins a step, unless the backward pass of an earlier call
// is still to come.
func MarkStep(x *tenon.Exec) error {
	fo, err := sessionForest(x, "MarkStep")
	if err == nil {
		fo.marked--
	}
	return err
}

// Break runs the deferred work of x's session, so that a segment ends here, and returns that work's error.
func Break(x *tenon.Exec) error {
	if _, err := sessionForest(x, "Break"); err != nil {
		return err
	}
	return core.Located("Break", core.Force((*core.Exec)(x)))
}

// sessionForest returns the graphs of x's session on its device.
func sessionForest(x *tenon.Exec, op string) (fo *forest, err error) {
	c := (*core.Exec)(x)
	err = core.Try(func() {
		core.Usable(c, op)
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
		t = &trace{opt: &r.opt, name: r.name, session: key, root: newNode(), kind: inference, counted: counting(), compares: r.compares}
		if f != nil {
			t.name = nameOf(f)
		}
		r.traces[key] = t
	}
	return t
}
