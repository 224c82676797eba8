package core

import (
	"errors"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// refusing is a device that refuses launches from the at-th on, so many of them.
type refusing struct {
	driver.Device
	at, times int
}

func (r *refusing) Launch(l *driver.Launch) error {
	if r.at--; r.at < 0 && r.at >= -r.times {
		return &driver.Error{Call: "Launch", Code: driver.LaunchOutOfResources, Detail: "injected"}
	}
	return r.Device.Launch(l)
}

// A driver that refuses a change's first launch leaves all as it was; one that refuses a later one is asked again, and loses the device if
// it refuses again.
func TestRefusedChange(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		at, times int
		whole     bool
		kind      fault.Kind
	}{
		{"First", 0, 1, false, fault.System},
		{"Later", 1, 1, true, 0},
		{"LaterTwice", 2, 2, false, fault.Device},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d *refusing
			dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
				d = &refusing{Device: own, at: 1 << 40}
				return d
			}})
			if err != nil {
				t.Fatal(err)
			}
			x := New(dev, host)
			x.Scope(func(x *Exec) {
				ts := []*Tensor{ones(x, 4), ones(x, 5), ones(x, 6)}
				change := func(x *Exec) {
					for _, a := range ts {
						x.AddSInto(a, a, 1)
					}
				}
				change(x) // loads the kernels
				versions := func() (vs []int) {
					for _, a := range ts {
						vs = append(vs, a.Version())
					}
					return vs
				}
				before := versions()
				d.at, d.times = c.at, c.times
				err := Try(func() { x.together("Change", change) })
				d.at = 1 << 40
				if err == nil != c.whole || err != nil && fault.KindOf(err) != c.kind {
					t.Fatalf("got %v", err)
				}
				if c.kind == fault.Device {
					if e := Try(func() { ones(x, 1) }); fault.KindOf(e) != fault.Device || !errors.Is(err, driver.LaunchOutOfResources) {
						t.Errorf("the device goes on: %v, after %v", e, err)
					}
					return
				}
				add := 0
				if c.whole {
					add = 1
				}
				for i, v := range versions() {
					if v != before[i]+add {
						t.Errorf("version %d of tensor %d, was %d", v, i, before[i])
					}
					got, err := Read[float32](x, ts[i])
					if err != nil || slices.ContainsFunc(got, func(v float32) bool { return v != float32(2+add) }) {
						t.Errorf("tensor %d is %v, %v", i, got, err)
					}
				}
			})
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What operations of a change make and drop stays until the change is handed over, in the order of its operations.
func TestChangeHoldsItsTemporaries(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1, 2, 3})
		storages := live.Load()
		var kept *Tensor
		x.together("Change", func(x *Exec) {
			kept = x.Within(func(x *Exec) *Tensor {
				b := x.MulS(a, 10)
				c := x.Cat([]*Tensor{b, b}, 0)
				b.Close()
				x.AddInto(a, a, x.Slice(c, 0, 3, 6, 1))
				d := x.Zeros([]int{3}, dtype.Float32) // in memory that nobody else has yet
				x.together("Inner", func(x *Exec) { x.AddInto(a, a, d) })
				return x.Sum(a, nil, SumOpt{})
			})
		})
		want(t, x, a, 11, 22, 33)
		want(t, x, kept, 66)
		kept.Close()
		if n := live.Load() - storages; n != 0 {
			t.Errorf("%d storages are left", n)
		}
	})
}

// What would wait for a turn that the Together itself has is refused in it.
func TestTogetherRefusesWaits(t *testing.T) {
	x, _ := simExec(t, nil)
	x.Scope(func(x *Exec) {
		a, w := ones(x, 2), leafOf(x, 1, 2)
		g, err := x.Capture(func(x *Exec) { x.AddInto(a, a, a) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		sum := sumOf(x, x.Mul(w, w))
		for name, call := range map[string]func(x *Exec) error{
			"Replay":     func(x *Exec) error { return x.Replay(g) },
			"Capture":    func(x *Exec) error { _, err := x.Capture(func(*Exec) {}, CaptureOpt{}); return err },
			"Bytes":      func(x *Exec) error { _, err := x.Bytes(a); return err },
			"WaitStream": func(x *Exec) error { return x.WaitStream(st) },
			"Backward":   func(x *Exec) error { return x.Backward(sum, BackwardOpt{}) },
		} {
			x.together(name, func(x *Exec) {
				x.AddInto(a, a, a)
				wantError(t, call(x), fault.Invalid, "while changes are put together")
			})
		}
		want(t, x, a, 32, 32)
	})
}
