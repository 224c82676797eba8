package core

import (
	"fmt"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// This file contains what packages above the face need besides the face itself. They get at core by converting the face's types.

// Each function that uses a session goes through its gate, as the methods of the face do.

// Own takes t out of its scope, so that no scope closes it, and returns it: a struct holds it from now on and closes it.
func Own(t *Tensor) *Tensor {
	// A scope that stays open for long, such as around a training loop, must not accumulate handles that are gone.
	if sc := t.scope; sc != nil {
		sc.s.in("Keep")
		defer sc.s.out()
		sc.leave(t)
	}
	t.own()
	return t
}

// MarkParam says that t, if it is not nil, is a module's parameter: for profiles it is one even if it requires no gradient.
func MarkParam(t *Tensor) {
	if t != nil {
		t.st.marks.Or(ofParam)
	}
}

// Lend gives the tensors that no scope has to x's innermost scope, which closes them at its end unless a struct has closed them before.
func Lend(x *Exec, op string, ts []*Tensor) {
	Enter(x, op)
	defer Leave(x)
	sc := x.s.scope
	for _, t := range ts {
		if sc != nil && t != nil && t.scope == nil {
			t.scope = sc
			sc.list = append(sc.list, t)
		}
	}
}

// Alone returns the first Exec of a new session for one test. The session has a processor of its own, which is its device if x's is the
// processor; Close of the Exec's Host closes it. Both devices watch for leaks, and x is not used any more.
func Alone(x *Exec) (*Exec, error) {
	host, err := rt.Processor()
	if err != nil {
		return nil, err
	}
	dev := x.Device()
	if dev.Host {
		dev = host
	}
	dev.WatchLeaks()
	host.WatchLeaks()
	return New(dev, host), nil
}

// KernelLaunches returns how many built-in kernels x's session has launched.
func KernelLaunches(x *Exec) int64 { return x.s.launches }

// Temporary reports whether t belongs to x's innermost scope, so that the scope's owner may close t early.
func Temporary(x *Exec, t *Tensor) bool {
	if t == nil || t.scope == nil {
		return false
	}
	Enter(x, "Close")
	defer Leave(x)
	return t.scope == x.s.scope
}

// Together is together for the packages above the face.
func Together(x *Exec, op string, f func(x *Exec)) {
	Enter(x, op)
	defer Leave(x)
	x.named(op, func(x *Exec) { x.s.outside(op, func() { f(x) }) })
}

// Assign sets tensors of one element to numbers, all of them or none, for callers that have no Exec: on the default streams of their
// devices, ordered with the work of other streams.
func Assign(op string, ts []*Tensor, vs []float64) error {
	if len(ts) == 0 {
		return nil
	}
	host, err := rt.Host()
	if err != nil {
		return err
	}
	return Try(func() {
		x, entered := New(ts[0].st.dev, host), false
		for i, t := range ts {
			Given(op, i, t)
			switch d := t.st.by(0); {
			case d == nil || d.s == x.s:
			case x.s.putOff == nil: // use the session of the region that uses them, so that the call is deferred with its others
				x = (&Exec{s: d.s, kin: d.s.derived}).with(mode{stream: t.st.dev.DefaultStream()})
				Enter(x, op)
				defer Leave(x)
				entered = true
			default:
				t.st.forceOwner(op)
			}
		}
		if !entered {
			Enter(x, op)
			defer Leave(x)
		}
		x.noGrad().together(op, func(x *Exec) {
			for i, t := range ts {
				x.On(t.st.dev.DefaultStream()).FillInto(t, vs[i])
			}
		})
		if d := x.s.putOff; d != nil && len(d.thin) > 0 { // callers have noted the numbers
			d.undoLater(func() { _ = Assign(op, ts, vs) })
		}
	})
}

// Closed reports whether t was closed.
func Closed(t *Tensor) bool { return t.closed.Load() }

// OpenParam panics with an error of op if t, the tensor of the parameter called name, was closed. An empty name is unknown.
func OpenParam(op, name string, t *Tensor) {
	if t == nil || !t.closed.Load() {
		return
	}
	what := describe(t)
	if name != "" {
		what = fmt.Sprintf("%s (%s)", name, what)
	}
	panicAt(op, fault.Closed, "the parameter %s was closed; close parameters after the last use of them", what)
}

// SessionCaptures reports whether x's session is capturing a graph, on whichever stream.
func SessionCaptures(x *Exec) bool {
	Enter(x, "Capturing")
	defer Leave(x)
	return x.s.capture != nil
}

// CaptureStream returns a stream of x's device for several captures. Nobody else has it until giveBack is called.
func CaptureStream(x *Exec) (st *rt.Stream, giveBack func(), err error) {
	dev := x.Device()
	st, err = dev.CaptureStream()
	return st, func() { dev.ReturnCaptureStream(st) }, err
}

// Fail panics with an error of a module or another composite named op, at the caller's line.
func Fail(op string, kind fault.Kind, format string, args ...any) { panicAt(op, kind, format, args...) }

// FailWith is Fail for an error that has a cause.
func FailWith(op string, cause error, msg string) {
	e := fault.Wrap(fault.System, cause, "%s", msg)
	e.Op = op
	locate(e)
	panic(e)
}

// OnHost reports whether t is memory of the processor's device.
func OnHost(t *Tensor) bool { return t.st.dev.Host }

// SwapTap is SetTap for callers outside of the session's calls: another goroutine may be running calls that the session deferred.
func SwapTap(x *Exec, op string, t Tap) (old Tap) {
	Enter(x, op)
	defer Leave(x)
	return SetTap(x, t)
}

// BeginTap is SwapTap that first calls begin with the old tap, while no call of the session is under way.
func BeginTap(x *Exec, op string, t Tap, begin func(old Tap)) (old Tap) {
	Enter(x, op)
	defer Leave(x)
	begin(TapOf(x))
	return SetTap(x, t)
}

// Inside calls f while no call of the session is under way.
func Inside(x *Exec, op string, f func()) {
	Enter(x, op)
	defer Leave(x)
	f()
}

// TapOf returns the tap of x's session, or nil. The caller is inside.
func TapOf(x *Exec) Tap {
	if c := x.s.capture; c != nil { // which is itself the session's tap
		return c.inner
	}
	return x.s.tap
}
