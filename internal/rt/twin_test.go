package rt

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/profile"
)

// profiledRuns runs f while a profiler records a's device.
func (a *sums) profiledRuns(f func() error) (*profile.Profile, error) {
	p, err := a.d.StartProfile()
	if err != nil {
		return nil, err
	}
	err = f()
	out, e := p.Stop()
	return out, errors.Join(err, e)
}

// parts returns the kernels of a replay, without the whole.
func parts(t *testing.T, o *profile.Op) (names []string) {
	t.Helper()
	for _, k := range o.Kernels {
		if !k.Timed {
			t.Errorf("%+v of %s has no time", k, o.Name)
		}
		if !k.Whole {
			names = append(names, k.Name)
		}
	}
	return names
}

// A twin does what the graph does, with changes made before the twin existed, between runs and with a run.
func TestTwinChanges(t *testing.T) {
	a := openSums(t, 2, CaptureSpec{Track: true})
	ok(t, a.g.Set(Change{Node: 0, Launch: a.add(10)}))
	total := float32(0)
	run := func(step float32, changes ...Change) {
		t.Helper()
		ok(t, a.run(a.g, changes...))
		total += step
		a.want(t, a.y, total)
	}
	p, err := a.profiledRuns(func() error {
		run(11)
		run(11)
		run(15, Change{Node: 1, Launch: a.add(5)})
		ok(t, a.g.Set(Change{Node: 0, Launch: a.add(1)}, Change{Node: 0, Launch: a.add(2)}))
		run(7)
		a.want(t, a.z, total)
		run(8, Change{Node: 1, Launch: a.add(6)}, Change{Node: 2, Dst: a.z, Src: a.x, N: 4})
		a.want(t, a.z, 1)
		return nil
	})
	ok(t, err)
	run(8) // the graph itself has the changes too
	a.want(t, a.z, 1)
	if len(p.Ops) != 5 {
		t.Fatalf("%d replays", len(p.Ops))
	}
	for i := range p.Ops {
		if got := parts(t, &p.Ops[i]); len(got) != 3 || got[2] != "copy" || p.Ops[i].Note != "" {
			t.Errorf("replay %d has %v, %s", i, got, p.Ops[i].Note)
		}
	}
	p, err = a.profiledRuns(func() error { run(8); return nil }) // in another profile
	ok(t, err)
	if got := parts(t, &p.Ops[0]); len(got) != 3 {
		t.Errorf("the next profile has %v", got)
	}
}

// After a change that fails, the twin still does the same as the graph.
func TestTwinRefusedChange(t *testing.T) {
	a := openSums(t, 2, CaptureSpec{Track: true})
	_, err := a.profiledRuns(func() error {
		ok(t, a.run(a.g))
		bad := a.add(7)
		bad.Block[0] = 0
		if err := a.g.Set(Change{Node: 0, Launch: a.add(10)}, Change{Node: 1, Launch: bad}); err == nil {
			t.Error("a launch without threads is taken")
		}
		ok(t, a.run(a.g))
		a.want(t, a.y, 2+11)
		return nil
	})
	ok(t, err)
	ok(t, a.run(a.g))
	a.want(t, a.y, 2+11+11)
}

// Whichever call fails while a twin is made, set or launched, the replay is right or the error names the call, and everything is given
// back.
func TestTwinFailures(t *testing.T) {
	base, err := hostsim.New(hostsim.Options{}).Open(0)
	ok(t, err)
	defer base.Close()
	noted := map[string]bool{}
	faults.Walk(t, base, func(dd driver.Device) error {
		d, err := Open(Selector{Kind: Sim, Wrap: func(own driver.Device) driver.Device { own.Close(); return kept{dd} }})
		if err != nil {
			return err
		}
		a, err := newSums(d, 2, CaptureSpec{Track: true})
		if err != nil {
			return errors.Join(err, d.Close())
		}
		var y float32
		p, err := a.profiledRuns(func() error {
			err := a.run(a.g)
			if err == nil {
				err = a.run(a.g, Change{Node: 1, Launch: a.add(100)})
			}
			if err == nil {
				err = a.run(a.g)
			}
			if err == nil {
				y, err = a.value(a.y)
			}
			return err
		})
		if err == nil && y != 2+101+101 {
			err = fmt.Errorf("the replays give %v", y)
		}
		if err == nil {
			for _, o := range p.Ops {
				for _, name := range []string{"GraphChain", "GraphInstantiate", "GraphSetEvent", "GraphSetLaunch", "EventCreate"} {
					noted[name] = noted[name] || strings.Contains(o.Note, name)
				}
			}
		}
		return errors.Join(err, a.close(), d.Close())
	}, faults.Recovered("MemAlloc", "GraphChain", "GraphInstantiate", "GraphSetEvent", "GraphSetLaunch", "EventCreate", "EventElapsed"))
	for _, name := range []string{"GraphChain", "GraphInstantiate", "GraphSetEvent", "GraphSetLaunch", "EventCreate"} {
		if !noted[name] {
			t.Errorf("no replay says that %s failed", name)
		}
	}
}

// Twins are destroyed with their profile and with their graph; without a profiler, a replay makes no extra call.
func TestTwinLive(t *testing.T) {
	var f *faults.Device
	d := openSim(t, func(d driver.Device) driver.Device { f = faults.New(d); return f })
	a, err := newSums(d, 2, CaptureSpec{})
	ok(t, err)
	defer func() { ok(t, a.close()) }()
	other, err := a.record(3, CaptureSpec{})
	ok(t, err)
	before := f.Live()
	_, err = a.profiledRuns(func() error {
		ok(t, a.run(a.g))
		ok(t, a.run(other))
		if l := f.Live(); l.Graphs != before.Graphs+2 || l.Execs != before.Execs+2 {
			t.Errorf("two twins: %+v after %+v", l, before)
		}
		ok(t, other.Close())
		if l := f.Live(); l.Graphs != before.Graphs+1 || l.Execs != before.Execs {
			t.Errorf("one twin and its graph: %+v after %+v", l, before)
		}
		if p := d.profiler.Load(); len(p.twins) != 1 {
			t.Errorf("the profiler holds %d graphs", len(p.twins))
		}
		return nil
	})
	ok(t, err)
	l := f.Live()
	if l.Graphs != before.Graphs || l.Execs != before.Execs-1 {
		t.Errorf("after the profile: %+v, before %+v", l, before)
	}
	f.Arm(0, 0)
	ok(t, a.run(a.g))
	if n := f.Calls(); n != 1 {
		t.Errorf("a replay without a profiler makes %d calls", n)
	}
	if f.Live() != l {
		t.Errorf("a replay without a profiler makes %+v of %+v", f.Live(), l)
	}
}
