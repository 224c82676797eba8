// Package compile saves the work that a program repeats. A region is a function that runs again and again, such as a training step: it runs
// as it stands every time, and its calls are compared with those of earlier runs. A call that comes a second time is put off, and the calls
// of a region run together at its end, or when a value is needed: chains of calls that work element by element as one kernel. Results have
// the bits of the same program without a region.
//
// So far the calls are not recorded as graphs.
package compile

import (
	"errors"
	"sync"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Opt are the options of a region.
type Opt struct {
	// Branches is how many ways a region may go on from one call before further ones are no longer remembered; 0 is 64.
	Branches int
	// NoFusion lets every call that is put off run as a kernel of its own, and all of them, also those whose results nobody needs.
	NoFusion bool
}

const defaultBranches = 64

const notMade = "the region is nil or a zero value; use one that New returned"

// Region remembers the calls of one function. Several goroutines may use it, each with a session of its own, which has its own memory of
// calls.
type Region struct {
	opt    Opt
	mu     sync.Mutex
	traces map[any]*trace
}

// New returns a region that remembers nothing yet.
func New(opt Opt) *Region {
	if opt.Branches <= 0 {
		opt.Branches = defaultBranches
	}
	return &Region{opt: opt, traces: map[any]*trace{}}
}

// Do runs f in a scope of its own. Calls that an earlier run made in the same way, on tensors that are used in the same way, are put off
// until a value is read, the device is waited for, another kind of call comes, or f returns. A tensor that has no elements yet answers for
// its shape, strides, type and history; whoever asks for its address or elements gets them. Work that was put off runs also when f ends
// with an error or a panic; an error of it is joined to f's. Another Exec that uses a tensor of a call that was put off gets an error. A Do
// within a Do is part of the outer one.
func (r *Region) Do(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
	if r == nil || r.traces == nil {
		return core.Refusal("Do", fault.Invalid, notMade)
	}
	if f == nil {
		return core.Refusal("Do", fault.Invalid, "the function is nil; give it one")
	}
	c := (*core.Exec)(x)
	if err := core.Try(func() { core.Made(c, "Do") }); err != nil {
		return err
	}
	old := core.SetTap(c, nil)
	if _, within := old.(*trace); within {
		core.SetTap(c, old)
		return scoped(x, f)
	}
	t := r.trace(c)
	t.begin(old)
	core.SetTap(c, t)
	before := core.Fusion(c)
	defer func() {
		core.SetTap(c, old)
		err = errors.Join(err, core.Force(c))
		t.stats.count(before, core.Fusion(c))
	}()
	return scoped(x, f)
}

// scoped runs f in a scope and returns its error, or the one that an operation in it stopped with.
func scoped(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
	stopped := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { err = f(x) }) })
	return errors.Join(err, stopped)
}

func (r *Region) trace(x *core.Exec) *trace {
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
		t = &trace{opt: &r.opt, root: &node{}}
		r.traces[key] = t
	}
	return t
}
