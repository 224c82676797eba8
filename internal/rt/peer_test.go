package rt

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/knob"
)

// openAt opens a device until the test ends.
func openAt(t *testing.T, sel Selector) *Device {
	t.Helper()
	d, err := Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// machineOf opens both devices of a machine.
func machineOf(t *testing.T) (a, b *Device) {
	m := NewMachine(2, 0)
	return openAt(t, Selector{Kind: Sim, Machine: m}), openAt(t, Selector{Kind: Sim, Machine: m, Ordinal: 1})
}

func TestMachine(t *testing.T) {
	m := NewMachine(3, 1<<30)
	if n, err := Count(Selector{Kind: Sim, Machine: m}); n != 3 || err != nil {
		t.Errorf("the machine has %d devices, %v", n, err)
	}
	for i := range 3 {
		d := openAt(t, Selector{Kind: Sim, Machine: m, Ordinal: i})
		if d.Info().Ordinal != i || d.Info().TotalMemory != 1<<30 {
			t.Errorf("device %d is %+v", i, d.Info())
		}
		if i == 1 { // it can be opened again
			ok(t, d.Close())
			openAt(t, Selector{Kind: Sim, Machine: m, Ordinal: i})
		}
	}
	for _, c := range []struct {
		sel  Selector
		text string
	}{
		{Selector{Kind: Sim, Machine: m, Ordinal: 3}, "there is no device 3: hostsim has 3 devices, numbered from 0"},
		{Selector{Kind: Sim, Machine: NewMachine(0, 0)}, "a simulated machine cannot have 0 devices; give it 1 to 8"},
		{Selector{Kind: Sim, Machine: NewMachine(9, 0)}, "a simulated machine cannot have 9 devices; give it 1 to 8"},
		{Selector{Kind: Sim, Ordinal: 1}, "there is no device 1: hostsim has 1 device, number 0; set TENON_SIM_DEVICES to have more"},
	} {
		if _, err := Open(c.sel); err == nil || err.Error() != c.text {
			t.Errorf("%+v: %v", c.sel, err)
		}
	}
}

// With the setting, all simulated devices of one capacity belong to one machine.
func TestSimDevices(t *testing.T) {
	t.Setenv(knob.SimDevices.Name(), "2")
	sel := Selector{Kind: Sim, Memory: 1 << 30}
	if n, err := Count(sel); n != 2 || err != nil {
		t.Errorf("Count() = %d, %v", n, err)
	}
	second := sel
	second.Ordinal = 1
	a, b, c := openAt(t, sel), openAt(t, second), openAt(t, Selector{Kind: Sim})
	if !a.Peer(b) || a.Peer(c) {
		t.Errorf("devices of one capacity are peers: %v; of two: %v", a.Peer(b), a.Peer(c))
	}
	if GPUs() == 0 {
		if d := openAt(t, Selector{Kind: Best, Ordinal: 1}); !c.Peer(d) || d.Info().Ordinal != 1 {
			t.Errorf("the best device 1 is %s, a peer of the simulated device 0: %v", d, c.Peer(d))
		}
	}
	second.Ordinal = 2
	if _, err := Open(second); err == nil || !strings.Contains(err.Error(), "there is no device 2: hostsim has 2 devices, numbered from "+
		"0; set TENON_SIM_DEVICES") {
		t.Errorf("device 2: %v", err)
	}
	t.Setenv(knob.SimDevices.Name(), "many")
	if _, err := Count(sel); err == nil || !strings.Contains(err.Error(), "TENON_SIM_DEVICES is \"many\"") {
		t.Errorf("Count with a number that is none: %v", err)
	}
}

func TestApart(t *testing.T) {
	a, b := machineOf(t)
	other, cpu := openAt(t, Selector{Kind: Sim}), openAt(t, Selector{Kind: CPU})
	again := openAt(t, Selector{Kind: Sim})
	again.of = a.of
	for _, c := range []struct {
		d      *Device
		second string
	}{
		{b, "device 1 (Simulated GPU)"}, {other, "another machine's device 0 (Simulated GPU)"}, {cpu, "CPU"},
		{again, "another opening of device 0 (Simulated GPU)"},
	} {
		if first, second := Apart(a, c.d); first != "device 0 (Simulated GPU)" || second != c.second {
			t.Errorf("%q and %q, want %q", first, second, c.second)
		}
	}
}

// held keeps s from running its work until release is called.
func held(s *Stream) (release func()) { return s.dev.dev.(*hostsim.Device).Hold(s.handle) }

// pending reports whether s has work to do.
func pending(t *testing.T, s *Stream) bool {
	t.Helper()
	done, err := s.Query()
	if err != nil {
		t.Fatal(err)
	}
	return !done
}

// A stream waits for a stream, or an event, of another device of the machine, and the host does not.
func TestWaitForPeer(t *testing.T) {
	a, b := machineOf(t)
	s, u := a.DefaultStream(), b.DefaultStream()
	for name, wait := range map[string]func() error{
		"stream": func() error { return u.WaitAll(s) },
		"event": func() error {
			e := a.NewEvent(false)
			defer e.Close()
			return errors.Join(e.Record(s), u.Wait(e))
		},
	} {
		release := held(s)
		p, err := a.Alloc(512, 0)
		ok(t, err)
		ok(t, a.dev.Memset(driver.Ptr(p.Addr()), 1, 1, 512, s.handle))
		ok(t, wait())
		if !pending(t, u) {
			t.Errorf("%s: the stream does not wait", name)
		}
		release()
		ok(t, u.Synchronize())
		if pending(t, s) {
			t.Errorf("%s: the stream did not wait", name)
		}
		ok(t, a.Free(p))
	}
}

// If the devices are not peers, the host waits.
func TestWaitForStranger(t *testing.T) {
	a, b := openAt(t, Selector{Kind: Sim}), openAt(t, Selector{Kind: Sim})
	cpu := openAt(t, Selector{Kind: CPU})
	for _, d := range []*Device{b, cpu} {
		for _, wait := range []func() error{
			func() error { return d.DefaultStream().WaitAll(a.DefaultStream()) },
			func() error {
				e := a.NewEvent(false)
				defer e.Close()
				return errors.Join(e.Record(a.DefaultStream()), d.DefaultStream().Wait(e))
			},
		} {
			p, err := a.Alloc(512, 0)
			ok(t, err)
			ok(t, a.dev.Memset(driver.Ptr(p.Addr()), 1, 1, 512, a.DefaultStream().handle))
			if !pending(t, a.DefaultStream()) {
				t.Error("the work is done before anybody waited")
			}
			ok(t, wait())
			if pending(t, a.DefaultStream()) {
				t.Errorf("a stream of %s did not wait", d)
			}
			ok(t, a.Free(p))
		}
		ok(t, a.DefaultStream().WaitAll(d.DefaultStream()))
	}
}

// A capture has streams of one device only.
func TestWaitForPeerInCapture(t *testing.T) {
	a, b := machineOf(t)
	s, err := a.Stream()
	ok(t, err)
	e, inside := b.NewEvent(false), a.NewEvent(false)
	ok(t, e.Record(b.DefaultStream()))
	c, err := a.BeginCapture(s, CaptureSpec{At: "here.go:1"})
	ok(t, err)
	ok(t, inside.Record(s))
	for name, err := range map[string]error{
		"stream in the capture":    s.WaitAll(b.DefaultStream()),
		"event in the capture":     s.Wait(e),
		"stream for the capture":   b.DefaultStream().WaitAll(s),
		"event of the capture":     b.DefaultStream().Wait(inside),
		"stranger's, for the same": openAt(t, Selector{Kind: Sim}).DefaultStream().WaitAll(s),
	} {
		if fault.KindOf(err) != fault.Capture || !strings.Contains(err.Error(), "here.go:1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g, err := c.End()
	ok(t, err)
	ok(t, g.Close())
}

// TestCopyPeer copies in the order of both streams: after the work that the source's stream had, and before its later work.
func TestCopyPeer(t *testing.T) {
	a, b := machineOf(t)
	s, u := a.DefaultStream(), b.DefaultStream()
	x, err := a.Alloc(512, 0)
	ok(t, err)
	y, err := b.Alloc(512, 0)
	ok(t, err)
	from, to := driver.Ptr(x.Addr()), driver.Ptr(y.Addr())
	release := held(s)
	ok(t, a.dev.Memset(from, 1, 1, 512, s.handle))
	ok(t, CopyPeer(u, to, s, from, 512))
	ok(t, a.dev.Memset(from, 2, 1, 512, s.handle))
	for _, st := range []*Stream{s, u} {
		if !pending(t, st) {
			t.Errorf("a stream of %s has nothing to do", st.dev)
		}
	}
	release()
	for i, c := range []struct {
		s *Stream
		p driver.Ptr
	}{{s, from}, {u, to}} {
		got := make([]byte, 512)
		ok(t, c.s.dev.dev.CopyDtoH(got, c.p, c.s.handle))
		ok(t, c.s.Synchronize())
		if want := byte(2 - i); got[0] != want || got[511] != want {
			t.Errorf("%s holds %d, want %d", c.s.dev, got[0], want)
		}
	}
	ok(t, a.Free(x))
	ok(t, b.Free(y))
}

// Whichever call of a copy fails, on either device, the error names it and no event is lost.
func TestCopyPeerFailures(t *testing.T) {
	m := hostsim.New(hostsim.Options{Devices: 2})
	var devs [2]driver.Device
	var streams [2]driver.Stream
	var mem [2]driver.Ptr
	for i := range devs {
		var err error
		devs[i], err = m.Open(i)
		ok(t, err)
		defer devs[i].Close()
		th := devs[i].Enter()
		defer th.Leave()
		streams[i], err = devs[i].StreamCreate(th, true, 0)
		ok(t, err)
		mem[i], err = devs[i].MemAlloc(th, 512)
		ok(t, err)
	}
	for walked := range devs {
		t.Run([]string{"source", "destination"}[walked], func(t *testing.T) {
			faults.Walk(t, devs[walked], func(dd driver.Device) error {
				var s [2]*Stream
				for i := range s {
					dev := devs[i]
					if i == walked {
						dev = dd
					}
					d := &Device{dev: dev, info: dev.Info()}
					s[i] = &Stream{dev: d, handle: streams[i], id: 1}
				}
				err := CopyPeer(s[1], mem[1], s[0], mem[0], 512)
				for i := range s {
					if n := len(s[i].dev.events); err == nil && n != 1 {
						t.Errorf("device %d has %d events in its pool", i, n)
					}
					th := devs[i].Enter()
					err = errors.Join(err, devs[i].StreamSynchronize(th, streams[i]))
					for _, e := range s[i].dev.takeEvents() {
						s[i].dev.dev.EventDestroy(th, e)
					}
					th.Leave()
				}
				return err
			})
		})
	}
}

// The error of a closed device names it, and the other device still works.
func TestClosePeer(t *testing.T) {
	m := NewMachine(2, 0)
	a := openAt(t, Selector{Kind: Sim, Machine: m})
	b, err := Open(Selector{Kind: Sim, Machine: m, Ordinal: 1})
	ok(t, err)
	s, u := a.DefaultStream(), b.DefaultStream()
	x, err := a.Alloc(512, 0)
	ok(t, err)
	y, err := b.Alloc(512, 0)
	ok(t, err)
	// b is closed while a copy from b waits for a's stream, and b's stream waits for the copy.
	release := held(s)
	ok(t, b.dev.Memset(driver.Ptr(y.Addr()), 7, 1, 512, u.handle))
	ok(t, CopyPeer(s, driver.Ptr(x.Addr()), u, driver.Ptr(y.Addr()), 512))
	go release() // before Close waits or while it does
	ok(t, b.Close())
	got := make([]byte, 512)
	ok(t, a.dev.CopyDtoH(got, driver.Ptr(x.Addr()), s.handle))
	ok(t, s.Synchronize())
	if got[0] != 7 || got[511] != 7 {
		t.Errorf("the copy has %d, want 7", got[0])
	}
	for name, err := range map[string]error{"a wait": s.WaitAll(u), "an allocation": func() error {
		_, err := b.Alloc(1, 0)
		return err
	}()} {
		if fault.KindOf(err) != fault.Closed || !strings.Contains(err.Error(), "device 1 (Simulated GPU) was closed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, a.Free(x))
}
