package drivertest

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
)

// faultProgram is a program that loses its device.
type faultProgram struct {
	name   string
	code   driver.Code
	launch func(f *fixture, s driver.Stream) error
}

var faultPrograms = []faultProgram{
	{"IllegalAddress", driver.IllegalAddress, func(f *fixture, s driver.Stream) error {
		return f.one("illegal", s, 0x10) // no allocation is at this address
	}},
	{"Assert", driver.Assert, func(f *fixture, s driver.Stream) error {
		return f.d.Launch(&driver.Launch{Func: f.fn("assert"), Stream: s, Grid: [3]uint32{1, 1, 1},
			Block: [3]uint32{1, 1, 1}, Origin: "Assert",
			Args: binary.LittleEndian.AppendUint32(nil, 0)})
	}},
}

// childDone is what a fault program prints when it has finished.
const childDone = "drivertest: fault program done: "

// faults runs each fault program in a re-executed child process.
func (s *suite) faults(t *testing.T) {
	root, _, _ := strings.Cut(t.Name(), "/")
	for _, p := range faultPrograms {
		t.Run(p.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^"+root+"$", "-test.v", "-drivertest.child="+p.name)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("child: %v\n%s", err, out)
			}
			if !strings.Contains(string(out), childDone+p.name) {
				t.Fatalf("the child did not get to its end:\n%s", out)
			}
		})
	}
}

// runChild runs one fault program in this process.
func (s *suite) runChild(t *testing.T, name string) {
	for _, p := range faultPrograms {
		if p.name == name {
			f := newFixture(t, s)
			f.runFault(p)
			if !t.Failed() {
				t.Log(childDone + name)
			}
			return
		}
	}
	t.Fatalf("no fault program is named %q", name)
}

// runFault loses the device and checks the result of every later call, or that the device survives.
func (f *fixture) runFault(p faultProgram) {
	d, th := f.d, f.th
	s, other, e := f.stream(), f.stream(), f.event(false)
	mem, host := f.alloc(4096), f.host(512)
	l := f.saxpyLaunch(other, mem, mem, 0, 1)
	var n driver.Node
	g := f.capture(other, driver.CaptureThreadLocal, func() { n = f.launchNode(l) })
	x := f.instantiate(g)
	f.fn("illegal")
	f.fn("assert")
	mod, err := d.LoadModule(th, f.s.k.Saxpy)
	f.ok(err)
	f.Cleanup(func() { d.UnloadModule(th, mod) })

	if f.d.Info().Recovers && p.code == driver.Assert {
		f.survive(p, s, other, e)
		f.fill(mem, 2, 128)
		f.want(other, mem, 2, 128)
		f.ok(d.GraphLaunch(x, other))
		f.ok(d.Synchronize(th))
		return
	}
	err = p.launch(f, s)
	if f.d.Info().Inline {
		f.code(err, "Launch", p.code)
		f.fill(mem, 2, 128) // only that call fails
		f.want(other, mem, 2, 128)
		return
	}
	f.ok(err)
	err = d.StreamSynchronize(th, s)
	f.code(err, "StreamSynchronize", p.code)
	if c := codeOf(err); !c.Sticky() {
		f.Errorf("code %d is not sticky", c)
	}
	page := make([]byte, 16)
	later := []struct {
		call string
		err  func() error
	}{
		{"Synchronize", func() error { return d.Synchronize(th) }},
		{"MemAlloc", func() error { _, err := d.MemAlloc(th, 512); return err }},
		{"MemInfo", func() error { _, _, err := d.MemInfo(th); return err }},
		{"HostAlloc", func() error { _, err := d.HostAlloc(th, 512); return err }},
		{"StreamCreate", func() error { _, err := d.StreamCreate(th, true, 0); return err }},
		{"StreamQuery", func() error { _, err := d.StreamQuery(th, other); return err }},
		{"StreamSynchronize", func() error { return d.StreamSynchronize(th, other) }},
		{"StreamWait", func() error { return d.StreamWait(other, e) }},
		{"EventCreate", func() error { _, err := d.EventCreate(th, false); return err }},
		{"EventRecord", func() error { return d.EventRecord(e, other) }},
		{"EventQuery", func() error { _, err := d.EventQuery(th, e); return err }},
		{"EventSynchronize", func() error { return d.EventSynchronize(th, e) }},
		{"Launch", func() error { return d.Launch(l) }},
		{"Memset", func() error { return d.Memset(mem, 0, 1, 4, other) }},
		{"CopyDtoD", func() error { return d.CopyDtoD(mem, mem+512, 4, other) }},
		{"CopyHtoD", func() error { return d.CopyHtoD(mem, page, other) }},
		{"CopyDtoH", func() error { return d.CopyDtoH(page, mem, other) }},
		{"CaptureBegin", func() error { return d.CaptureBegin(th, other, driver.CaptureThreadLocal) }},
		{"GraphInstantiate", func() error { _, err := d.GraphInstantiate(th, g); return err }},
		{"GraphLaunch", func() error { return d.GraphLaunch(x, other) }},
		{"CaptureNode", func() error { _, err := d.CaptureNode(other); return err }},
		{"GraphSetLaunch", func() error { return d.GraphSetLaunch(th, x, n, l) }},
		{"GraphSetMemset", func() error { return d.GraphSetMemset(th, x, n, mem, 0, 4, 4) }},
		{"GraphSetCopy", func() error { return d.GraphSetCopy(th, x, n, mem, mem+512, 4) }},
		{"LoadModule", func() error { _, err := d.LoadModule(th, f.s.k.Spin); return err }},
		{"Function", func() error { _, err := d.Function(th, mod, "saxpy"); return err }},
	}
	for range 2 {
		for _, c := range later {
			f.code(c.err(), c.call, p.code)
		}
	}
	f.ok(d.MemFree(th, mem))
	f.ok(d.HostFree(th, host))
	f.ok(d.StreamDestroy(th, s))
	f.ok(d.EventDestroy(th, e))
	f.ok(d.GraphExecDestroy(th, x))
	f.ok(d.GraphDestroy(th, g))
	f.ok(d.UnloadModule(th, mod))
}

// survive checks who learns of failed assertions of p: only the first call about a point after one.
func (f *fixture) survive(p faultProgram, s, other driver.Stream, e driver.Event) {
	f.Helper()
	d, th := f.d, f.th
	third := f.stream()
	none := func(points ...func() error) {
		f.Helper()
		for i, failed := range points {
			if err := failed(); err != nil {
				f.Errorf("point %d: %v, want nothing", i, err)
			}
		}
	}
	of := func(s driver.Stream) func() error { return func() error { return d.StreamFailed(s) } }
	event := func() error { return d.EventFailed(e) }
	told := func(what string, failed func() error) {
		f.Helper()
		err := failed()
		f.code(err, "Launch", p.code)
		var de *driver.Error
		if !errors.As(err, &de) || de.Origin != p.name || de.Said == "" {
			f.Errorf("%s: %v of origin %v, want %s", what, err, de.Origin, p.name)
		}
		none(of(s), of(other), of(third), event, d.DeviceFailed)
	}
	wait := func() {
		f.ok(d.EventRecord(e, s))
		f.ok(d.StreamWait(other, e))
		f.ok(d.StreamSynchronize(th, third))
		f.ok(d.EventSynchronize(th, e))
		f.ok(d.StreamSynchronize(th, other))
		none(of(third))
	}
	for i, point := range []func() error{of(s), of(other), event, d.DeviceFailed} {
		f.ok(p.launch(f, s))
		f.ok(p.launch(f, s)) // the first one is reported
		wait()
		told([]string{"its stream", "a stream that waits for it", "an event after it", "the device"}[i], point)
	}
	x := f.instantiate(f.capture(other, driver.CaptureThreadLocal, func() { f.ok(p.launch(f, other)) }))
	f.ok(d.StreamSynchronize(th, other))
	none(of(other), d.DeviceFailed)
	for range 2 {
		f.ok(d.GraphLaunch(x, s))
		wait()
		told("a graph's launch", of(other))
	}
}
