package rt

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/null"
)

var opSums = RegisterOp("Sums")

// sums is a tracked graph of y += 1, several times, and z = y, each of one number.
type sums struct {
	d       *Device
	s       *Stream
	x, y, z driver.Ptr
	module  driver.Module
	l       driver.Launch
	g       *Graph
}

// newSums captures n additions and the copy. On error it gives back what it made.
func newSums(d *Device, n int, spec CaptureSpec) (a *sums, err error) {
	a = &sums{d: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	th := d.dev.Enter()
	defer th.Leave()
	for _, p := range []*driver.Ptr{&a.x, &a.y, &a.z} {
		if *p, err = d.dev.MemAlloc(th, 512); err != nil {
			return a, err
		}
	}
	if a.module, err = d.dev.LoadModule(th, drivertest.KIR().Saxpy); err != nil {
		return a, err
	}
	a.l.Grid, a.l.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	if a.l.Func, err = d.dev.Function(th, a.module, "saxpy"); err != nil {
		return a, err
	}
	if a.s, err = d.Stream(); err != nil {
		return a, err
	}
	if err := errors.Join(d.dev.Memset(a.x, math.Float32bits(1), 4, 1, a.s.handle), d.dev.Memset(a.y, 0, 4, 1, a.s.handle)); err != nil {
		return a, err
	}
	if err := a.s.Synchronize(); err != nil {
		return a, err
	}
	a.g, err = a.record(n, spec)
	return a, err
}

// record captures n additions and the copy.
func (a *sums) record(n int, spec CaptureSpec) (*Graph, error) {
	s, err := a.d.CaptureStream()
	if err != nil {
		return nil, err
	}
	defer a.d.ReturnCaptureStream(s)
	c, err := a.d.BeginCapture(s, spec)
	if err != nil {
		return nil, err
	}
	for range n {
		if err == nil {
			err = s.Launch(a.add(1))
		}
	}
	if err == nil {
		err = errors.Join(s.Copy(a.x, a.x, 0), s.Copy(a.z, a.y, 4))
	}
	if err != nil {
		return nil, errors.Join(err, c.Abort())
	}
	return c.End()
}

// add returns the launch y += v.
func (a *sums) add(v float32) *driver.Launch {
	l := a.l
	l.Args = binary.LittleEndian.AppendUint64(nil, uint64(a.x))
	l.Args = binary.LittleEndian.AppendUint64(l.Args, uint64(a.y))
	l.Args = binary.LittleEndian.AppendUint32(l.Args, math.Float32bits(v))
	l.Args = binary.LittleEndian.AppendUint32(l.Args, 1)
	return &l
}

// close gives everything back. It fails only on a lost device, which has given everything back already.
func (a *sums) close() (err error) {
	if a.g != nil {
		err = a.g.Close()
	}
	th := a.d.dev.Enter()
	defer th.Leave()
	if a.module != 0 {
		err = errors.Join(err, a.d.dev.UnloadModule(th, a.module))
	}
	for _, p := range []driver.Ptr{a.x, a.y, a.z} {
		if p != 0 {
			err = errors.Join(err, a.d.dev.MemFree(th, p))
		}
	}
	return err
}

// run queues a run of g with changes.
func (a *sums) run(g *Graph, changes ...Change) error {
	seq, err := a.s.Begin(opSums, nil)
	if err != nil {
		return err
	}
	defer a.s.Issued(seq)
	return g.Launch(a.s, seq, true, changes...)
}

// value returns the number at p.
func (a *sums) value(p driver.Ptr) (float32, error) {
	b := make([]byte, 4)
	err := errors.Join(a.d.dev.CopyDtoH(b, p, a.s.handle), a.s.Synchronize())
	return math.Float32frombits(binary.LittleEndian.Uint32(b)), err
}

func (a *sums) want(t *testing.T, p driver.Ptr, v float32) {
	t.Helper()
	got, err := a.value(p)
	ok(t, err)
	if got != v {
		t.Errorf("the runs give %v, want %v", got, v)
	}
}

func openSums(t *testing.T, n int, spec CaptureSpec) *sums {
	t.Helper()
	a, err := newSums(openSim(t, nil), n, spec)
	ok(t, err)
	t.Cleanup(func() { ok(t, a.close()) })
	return a
}

// Kernels and copies have indices in the order of recording, and a change applies to the runs after it.
func TestChanges(t *testing.T) {
	a := openSums(t, 3, CaptureSpec{Track: true})
	if n := a.g.Tracked(); n != 4 {
		t.Fatalf("%d kernels and copies are tracked, want 4", n)
	}
	ok(t, a.run(a.g))
	a.want(t, a.z, 3)
	ok(t, a.g.Set(Change{Node: 1, Launch: a.add(10)}))
	ok(t, a.run(a.g))
	a.want(t, a.z, 15)
	sim := a.d.Driver().(*hostsim.Device)
	release := sim.Hold(a.s.handle)
	ok(t, a.run(a.g))                                         // 12
	ok(t, a.run(a.g, Change{Node: 0, Launch: a.add(100)}))    // 111
	ok(t, a.g.Set(Change{Node: 3, Dst: a.z, Src: a.x, N: 4})) // z = 1 from here on
	ok(t, a.run(a.g, Change{Node: 2, Launch: a.add(1000)}))   // 1110
	release()
	a.want(t, a.y, 15+12+111+1110)
	a.want(t, a.z, 1)
	ok(t, a.g.Set())
}

// Work on every stream of a capture has an index; without the option no work has.
func TestTracked(t *testing.T) {
	a := openSums(t, 1, CaptureSpec{})
	if a.g.Tracked() != 0 {
		t.Error("a capture without the option tracks")
	}
	ok(t, a.s.Launch(a.add(5))) // no capture
	a.want(t, a.y, 5)
	s, err := a.d.CaptureStream()
	ok(t, err)
	defer a.d.ReturnCaptureStream(s)
	c, err := a.d.BeginCapture(s, CaptureSpec{Track: true})
	ok(t, err)
	var at []int
	note := func() { at = append(at, c.Tracked()) }
	note()
	ok(t, s.Launch(a.add(1)))
	note()
	ok(t, c.Join(a.s, s))
	ok(t, a.s.Launch(a.add(1)))
	ok(t, a.s.Copy(a.z, a.y, 4))
	note()
	ok(t, a.s.Fill(a.x, 0, 4))
	ok(t, a.s.Fill(a.x, 0, 0))
	note()
	ok(t, c.JoinAll())
	ok(t, s.Launch(a.add(1)))
	note()
	g, err := c.End()
	ok(t, err)
	if !slices.Equal(at, []int{0, 1, 3, 4, 5}) || g.Tracked() != 5 {
		t.Errorf("the indices are %v of %d", at, g.Tracked())
	}
	ok(t, a.run(g, Change{Node: 1, Launch: a.add(10)}, Change{Node: 4, Launch: a.add(100)}, Change{Node: 3, Dst: a.z, Value: 0x40, N: 4}))
	a.want(t, a.y, 116)
	a.want(t, a.z, math.Float32frombits(0x40404040))
	ok(t, g.Dump(t.TempDir()+"/g.dot"))
	ok(t, g.Close())
}

// Wrong changes are errors that say what is wrong, and a run with such a change does not happen.
func TestChangeErrors(t *testing.T) {
	a := openSums(t, 2, CaptureSpec{Track: true})
	wrong := func(name string, err error, kind fault.Kind, words string) {
		t.Helper()
		if fault.KindOf(err) != kind || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{-1, 3, 1 << 40} {
		wrong("an index that is none", a.g.Set(Change{Node: n, Launch: a.add(1)}), fault.Invalid, "has 3")
		wrong("a run with it", a.run(a.g, Change{Node: 0, Launch: a.add(7)}, Change{Node: n}), fault.Invalid, "has 3")
	}
	for _, c := range []Change{{Node: 2, Launch: a.add(1)}, {Node: 1, Dst: a.z, Src: a.y, N: 4}, {Node: 2}} {
		if err := a.run(a.g, c); err == nil || !strings.Contains(err.Error(), "could not be changed") {
			t.Errorf("change %+v: %v", c, err)
		}
	}
	large := *a.add(9)
	large.Grid[1] = 1 << 20
	wrong("a launch that cannot be", a.run(a.g, Change{Node: 1, Launch: &large}), fault.System, "work 1")
	a.want(t, a.y, 0)
	ok(t, a.run(a.g))
	a.want(t, a.y, 2)
	plain, err := a.record(1, CaptureSpec{Source: true})
	ok(t, err)
	wrong("nothing tracked", plain.Set(Change{Launch: a.add(1)}), fault.Invalid, "Track")
	ok(t, plain.Close())
	wrong("a closed graph", plain.Set(Change{Launch: a.add(1)}), fault.Closed, "closed")
	ok(t, plain.Set())
}

// A change does not end another thread's capture, not even in the strictest mode; nor does closing another graph.
func TestChangeBesideACapture(t *testing.T) {
	a := openSums(t, 1, CaptureSpec{Track: true})
	other, err := a.record(1, CaptureSpec{Source: true})
	ok(t, err)
	s, err := a.d.CaptureStream()
	ok(t, err)
	defer a.d.ReturnCaptureStream(s)
	c, err := a.d.BeginCapture(s, CaptureSpec{Mode: CaptureGlobal})
	ok(t, err)
	ok(t, s.Launch(a.add(1)))
	ok(t, a.g.Set(Change{Launch: a.add(3)})) // on the thread that captures
	done := make(chan error)
	go func() { done <- a.run(a.g, Change{Launch: a.add(4)}) }()
	ok(t, <-done)
	go func() { done <- other.Close() }()
	ok(t, <-done)
	g, err := c.End()
	ok(t, err)
	ok(t, g.Close())
	a.want(t, a.y, 4)
}

// If the driver cannot return the node of recorded work, the capture fails, and not the call: the work was recorded, and must not be
// recorded again.
func TestTrackingFails(t *testing.T) {
	var f *faults.Device
	d := openSim(t, func(d driver.Device) driver.Device { f = faults.New(d); return f })
	a, err := newSums(d, 2, CaptureSpec{})
	ok(t, err)
	defer func() { ok(t, a.close()) }()
	f.SpareFaults()
	failed := false
	for n := 1; !failed; n++ {
		f.Arm(n, 0)
		g, err := a.record(2, CaptureSpec{Track: true})
		method, _ := f.Fired()
		f.Arm(0, 0)
		if method == "CaptureNode" {
			failed = true
			if err == nil || fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "CaptureNode") {
				t.Errorf("the capture gives %v", err)
			}
		}
		if err == nil {
			ok(t, g.Close())
		}
		if method == "" {
			t.Fatal("no capture asks for a node")
		}
	}
}

// Whichever call fails on the way to a changed run, the error names it and everything is given back.
func TestChangeFailures(t *testing.T) {
	base, err := hostsim.New(hostsim.Options{}).Open(0)
	ok(t, err)
	defer base.Close()
	faults.Walk(t, base, func(dd driver.Device) error {
		d, err := Open(Selector{Kind: Sim, Wrap: func(own driver.Device) driver.Device { own.Close(); return kept{dd} }})
		if err != nil {
			return err
		}
		a, err := newSums(d, 2, CaptureSpec{Track: true})
		if err != nil {
			return errors.Join(err, d.Close())
		}
		err = a.g.Set(Change{Node: 0, Launch: a.add(10)})
		if err == nil {
			err = a.run(a.g, Change{Node: 1, Launch: a.add(100)}, Change{Node: 2, Dst: a.z, Src: a.x, N: 4})
		}
		if err == nil {
			var y, z float32
			y, err = a.value(a.y)
			if err == nil {
				z, err = a.value(a.z)
			}
			if err == nil && (y != 110 || z != 1) {
				err = errors.New("the changed run gives something else")
			}
		}
		return errors.Join(err, a.close(), d.Close())
	}, faults.Recovered("MemAlloc"))
}

// kept stays open when the runtime closes it.
type kept struct{ driver.Device }

func (kept) Close() error { return nil }

// Goroutines change, run and close a graph: each run has the changes that were passed with it, and all calls after Close return an error of
// kind Closed.
func TestChangesByGoroutines(t *testing.T) {
	a := openSums(t, 2, CaptureSpec{Track: true})
	const each = 100
	var wg sync.WaitGroup
	total := float32(0)
	for v := range 3 {
		b := *a
		var err error
		b.s, err = a.d.Stream()
		ok(t, err)
		total += each * 2 * float32(v)
		wg.Go(func() {
			one, two := b.add(0), b.add(0)
			for range each {
				binary.LittleEndian.PutUint32(one.Args[16:], math.Float32bits(float32(v)+0.5))
				binary.LittleEndian.PutUint32(two.Args[16:], math.Float32bits(float32(v)-0.5))
				if err := b.run(b.g, Change{Node: 0, Launch: one}, Change{Node: 1, Launch: two}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	ok(t, a.d.Synchronize())
	a.want(t, a.y, total)
	stop := make(chan error)
	for range 2 {
		l := a.add(1)
		go func() {
			var err error
			for err == nil {
				err = errors.Join(a.g.Set(Change{Node: 0, Launch: l}), a.run(a.g, Change{Node: 1, Launch: l}))
			}
			stop <- err
		}()
	}
	ok(t, a.g.Close())
	for range 2 {
		if err := <-stop; fault.KindOf(err) != fault.Closed {
			t.Error(err)
		}
	}
}

// openNull opens a null device.
func openNull(t testing.TB) *Device {
	d, err := Open(Selector{Kind: Sim, Wrap: func(d driver.Device) driver.Device { return null.New(d.Info().Image) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestChangesAllocatesNothing(t *testing.T) {
	for name, d := range map[string]*Device{"null": openNull(t), "simulator": openSim(t, nil)} {
		a, err := newSums(d, 100, CaptureSpec{Track: true})
		ok(t, err)
		changes := []Change{{Node: 7, Launch: a.add(0)}, {Node: 100, Dst: a.z, Src: a.y, N: 4}}
		one := Change{Node: 3, Launch: a.add(0)}
		i := 0
		for call, f := range map[string]func() error{
			"Set":    func() error { return a.g.Set(one) },
			"Launch": func() error { return a.run(a.g, changes...) },
			"pending": func() error { // the runs before have not begun
				if i++; i%50 == 0 {
					return a.s.Synchronize()
				}
				return errors.Join(a.run(a.g, changes...), a.g.Set(changes[1]))
			},
		} {
			for range 200 { // until the buffers that are reused are large enough
				ok(t, f())
			}
			ok(t, a.s.Synchronize())
			if n := testing.AllocsPerRun(500, func() {
				if e := f(); e != nil {
					err = e
				}
			}); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, call, n)
			}
			ok(t, err)
			ok(t, a.s.Synchronize())
		}
		ok(t, a.close())
	}
}

// BenchmarkChange measures changes in a graph of a hundred kernels: of one kernel, of all, and for comparison a launch.
func BenchmarkChange(b *testing.B) {
	for _, k := range []struct {
		name string
		dev  func() *Device
	}{{"null", func() *Device { return openNull(b) }}, {"simulator", func() *Device {
		d, err := Open(Selector{Kind: Sim})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { d.Close() })
		return d
	}}} {
		a, err := newSums(k.dev(), 100, CaptureSpec{Track: true})
		if err != nil {
			b.Fatal(err)
		}
		l := a.add(0)
		all := make([]Change, 100)
		for i := range all {
			all[i] = Change{Node: i, Launch: a.add(0)}
		}
		for _, c := range []struct {
			name string
			f    func() error
		}{
			{"one", func() error { return a.g.Set(all[7]) }},
			{"all100", func() error { return a.g.Set(all...) }},
			{"launch", func() error { return a.s.Launch(l) }},
		} {
			b.Run(k.name+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := c.f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		if err := errors.Join(a.s.Synchronize(), a.close()); err != nil {
			b.Fatal(err)
		}
	}
}
