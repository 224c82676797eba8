package null

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"tenon.dev/internal/driver"
)

// TestEveryCallSucceeds calls each method of the contract with zero arguments, and a path if one is needed.
func TestEveryCallSucceeds(t *testing.T) {
	d, err := Driver{}.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "g.dot")
	v := reflect.ValueOf(d)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		var args []reflect.Value
		for k := range v.Method(i).Type().NumIn() {
			in := v.Method(i).Type().In(k)
			switch in.Kind() {
			case reflect.Interface:
				args = append(args, reflect.ValueOf(d.Enter()))
			case reflect.String:
				args = append(args, reflect.ValueOf(path))
			default:
				args = append(args, reflect.Zero(in))
			}
		}
		out := v.Method(i).Call(args)
		if n := len(out); n > 0 {
			if err, ok := out[n-1].Interface().(error); ok && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if b, err := os.ReadFile(path); err != nil || len(b) == 0 {
		t.Errorf("GraphDot wrote %q: %v", b, err)
	}
	if err := d.GraphDot(nil, 0, filepath.Join(path, "x")); !errors.Is(err, driver.OperatingSystem) {
		t.Errorf("GraphDot to no folder: %v", err)
	}
}

func TestDriver(t *testing.T) {
	n := Driver{Image: driver.FormatPTX}
	if c, err := n.DeviceCount(); c != 1 || err != nil {
		t.Errorf("DeviceCount() = %d, %v", c, err)
	}
	if v, err := n.Version(); v < 12000 || err != nil {
		t.Errorf("Version() = %d, %v", v, err)
	}
	if _, err := n.Open(1); !errors.Is(err, driver.InvalidDevice) {
		t.Errorf("Open(1): %v", err)
	}
	d, err := n.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	if d.Info().Image != driver.FormatPTX || n.Name() != "null" {
		t.Errorf("%+v of %s", d.Info(), n.Name())
	}
}

func TestDevices(t *testing.T) {
	n := Driver{Devices: 2}
	if c, err := n.DeviceCount(); c != 2 || err != nil {
		t.Errorf("DeviceCount() = %d, %v", c, err)
	}
	for i := range 2 {
		if d, err := n.Open(i); err != nil || d.Info().Ordinal != i {
			t.Errorf("Open(%d) = %+v, %v", i, d, err)
		}
	}
	if _, err := n.Open(2); !errors.Is(err, driver.InvalidDevice) {
		t.Errorf("Open(2): %v", err)
	}
}

func TestAddressesAndCaptures(t *testing.T) {
	d := New("")
	a, _ := d.MemAlloc(nil, 1)
	b, _ := d.MemAlloc(nil, 5<<20)
	c, _ := d.MemAlloc(nil, 1)
	if a%(2<<20) != 0 || b != a+2<<20 || c != b+6<<20 {
		t.Errorf("addresses %#x, %#x, %#x", a, b, c)
	}
	s, _ := d.StreamCreate(nil, true, 0)
	d.CaptureBegin(nil, s, driver.CaptureThreadLocal)
	st, id, _ := d.CaptureInfo(s)
	if st != driver.CaptureActive || id == 0 {
		t.Errorf("while captured: %v, %d", st, id)
	}
	d.CaptureEnd(nil, s)
	if st, id, _ := d.CaptureInfo(s); st != driver.CaptureNone || id != 0 {
		t.Errorf("after the capture: %v, %d", st, id)
	}
}

func TestHotCallsAllocateNothing(t *testing.T) {
	var d driver.Device = New("")
	l := &driver.Launch{}
	if n := testing.AllocsPerRun(100, func() {
		d.Launch(l)
		d.EventRecord(1, 1)
		d.StreamWait(1, 1)
		d.CaptureInfo(1)
		d.Enter().Leave()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLaunch(b *testing.B) {
	var d driver.Device = New("")
	l := &driver.Launch{}
	for b.Loop() {
		if err := d.Launch(l); err != nil {
			b.Fatal(err)
		}
	}
}
