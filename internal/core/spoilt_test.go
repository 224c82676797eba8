package core

import (
	"errors"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
)

// wantSpoilt checks that every use of v fails with an error that names the failed assertion.
func wantSpoilt(t *testing.T, x *Exec, what string, v *Tensor) {
	t.Helper()
	for range 2 {
		_, err := x.Bytes(v)
		for name, err := range map[string]error{
			"a read":      err,
			"a use":       Try(func() { x.Neg(v) }),
			"a list":      Try(func() { x.Stack([]*Tensor{v, v}, 0) }),
			"a host copy": Try(func() { x.Host().To(v, ToOpt{}) }),
		} {
			if err == nil {
				t.Errorf("%s of %s gives elements", name, what)
				continue
			}
			is := describe(v)
			if name == "a list" { // which uses a view
				is = ""
			}
			wantError(t, err, fault.Invalid, "the tensor "+is, " was written after a failed assertion",
				"index 7 is out of range for size 3", "spoilt_test.go:")
		}
	}
}

// TestAssertionsSpoil checks that nothing that may depend on a failed assertion reads as good data once the failure was reported: neither
// the kernel's result nor anything computed from it, on any stream. Earlier data and the work of other streams are unaffected.
func TestAssertionsSpoil(t *testing.T) {
	for name, tell := range map[string]func(x, reader *Exec, bad, next *Tensor) error{
		"the stream":     func(x, _ *Exec, _, _ *Tensor) error { return x.Synchronize() },
		"another stream": func(_, reader *Exec, _, _ *Tensor) error { return reader.Synchronize() },
		"the device":     func(x, _ *Exec, _, _ *Tensor) error { return x.Device().Synchronize() },
		"a read":         func(x, _ *Exec, bad, _ *Tensor) error { _, err := x.Bytes(bad); return err },
		"a read of what follows": func(_, reader *Exec, _, next *Tensor) error {
			_, err := reader.Bytes(next)
			return err
		},
		"an event": func(x, _ *Exec, _, _ *Tensor) error {
			e := x.Device().NewEvent(false)
			defer e.Close()
			return errors.Join(e.Record(x.Stream()), e.Synchronize())
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, dev := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
			reader, other := onNew(t, x), onNew(t, x)
			x.Scope(func(x *Exec) {
				before, changed, part, elsewhere := three(x), three(x), three(x), three(other)
				early := reader.Neg(before)
				bad := x.Gather(three(x), 0, From(x, []int64{7, 0, 0}))
				x.AddInto(changed, changed, bad)
				x.CopyInto(x.Narrow(part, 0, 0, 1), x.Narrow(bad, 0, 0, 1))
				next, apart := reader.Neg(bad), other.Neg(elsewhere)
				wantError(t, tell(x, reader, bad, next), fault.Invalid, "Gather(float32[3], int64[3]): index 7")
				if err := errors.Join(x.Synchronize(), reader.Synchronize(), dev.Synchronize()); err != nil {
					t.Error("told twice:", err)
				}
				wantSpoilt(t, x, "what the kernel was to make", bad)
				wantSpoilt(t, other, "a view of it", x.Narrow(bad, 0, 1, 2))
				wantSpoilt(t, other, "what was made of it on another stream", next)
				wantSpoilt(t, x, "what was changed by it", changed)
				wantSpoilt(t, x, "what was changed by it in part", part)
				want(t, x, before, 0, 2, 1)
				want(t, x, early, 0, -2, -1)
				want(t, x, apart, 0, -2, -1)
				want(t, x, x.Add(before, three(x)), 0, 4, 2)
				// All of it may be overwritten, and is then valid again; a part must not.
				wantError(t, Try(func() { x.CopyInto(x.Narrow(changed, 0, 0, 2), x.Narrow(before, 0, 0, 2)) }), fault.Invalid,
					"after a failed assertion")
				x.CopyInto(changed, before)
				want(t, reader, changed, 0, 2, 1)
			})
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func onNew(t *testing.T, x *Exec) *Exec {
	t.Helper()
	st, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	return x.On(st)
}

// TestAssertionsSpoilRuns checks that the result of a graph's failed run, and what was computed from it, is lost until a later run, and
// that the result of the run before is unaffected.
func TestAssertionsSpoilRuns(t *testing.T) {
	x, dev := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
	x.Scope(func(x *Exec) {
		src, index, sum := three(x), From(x, []int64{1}), x.Zeros([]int{1}, dtype.Float32)
		var out *Tensor
		g, err := x.Capture(func(x *Exec) { out = x.Gather(src, 0, index) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		h, err := x.Capture(func(x *Exec) { x.AddInto(sum, sum, x.Narrow(src, 0, 1, 1)) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		run := func(i int64) error {
			x.CopyInto(index, From(x, []int64{i}))
			return x.Replay(g)
		}
		if err := run(2); err != nil {
			t.Fatal(err)
		}
		good := x.Clone(out)
		if err := errors.Join(x.Synchronize(), run(7)); err != nil {
			t.Fatal(err)
		}
		made := x.Neg(out)
		x.AddInto(sum, sum, made)
		if err := run(0); err != nil { // the first failed run counts
			t.Fatal(err)
		}
		wantUnmetAt(t, x.Synchronize())
		wantSpoilt(t, x, "what was made of a run's result", made)
		wantError(t, x.Replay(h), fault.Invalid, "the tensor float32[1], which the graph uses, was written after a failed")
		want(t, x, good, 1)
		if err := run(1); err != nil {
			t.Fatal(err)
		}
		want(t, x, out, 2)
		x.CopyInto(sum, good)
		if err := x.Replay(h); err != nil {
			t.Fatal(err)
		}
		want(t, x, sum, 3)
	})
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func wantUnmetAt(t *testing.T, err error) {
	t.Helper()
	wantError(t, err, fault.Invalid, "index 7 is out of range for size 3", "spoilt_test.go:")
}

// TestAssertionsSpoilPinned checks that every use of a copy to pinned memory that nobody has waited for reports the failed assertion.
func TestAssertionsSpoilPinned(t *testing.T) {
	for _, toldBefore := range []bool{false, true} {
		x, dev := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
		x.Scope(func(x *Exec) {
			host := x.Host()
			bad := x.Gather(three(x), 0, From(x, []int64{7}))
			y := host.To(bad, ToOpt{NonBlocking: true})
			if toldBefore {
				wantUnmetAt(t, x.Synchronize())
			}
			for range 3 {
				_, err := host.Bytes(y)
				wantUnmetAt(t, err)
			}
			wantUnmetAt(t, Try(func() { x.To(y, ToOpt{}) }))
		})
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
