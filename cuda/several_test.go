package cuda_test

import (
	"bytes"
	"strings"
	"testing"

	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// numbered is a device with another number.
type numbered struct {
	driver.Device
	number int
}

func (n numbered) Info() *driver.Info {
	info := *n.Device.Info()
	info.Ordinal = n.number
	return &info
}

// simulated opens a simulated device with a number.
func simulated(t *testing.T, number int) *cuda.Device {
	t.Helper()
	d, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device { return numbered{d, number} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return (*cuda.Device)(d)
}

// TestSnapshotOf takes one snapshot of two devices and writes it to one file, as PyTorch's tools expect it.
func TestSnapshotOf(t *testing.T) {
	devices := []*cuda.Device{simulated(t, 0), simulated(t, 1)}
	for i, d := range devices {
		if err := d.RecordMemoryHistory(); err != nil {
			t.Fatal(err)
		}
		addr, err := d.RawAlloc(uint64(4*(100+i)), d.DefaultStream())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.RawFree(addr); err != nil {
				t.Error(err)
			}
		}()
	}
	s, err := cuda.SnapshotOf(devices...)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := s.Write(&file); err != nil {
		t.Fatal(err)
	}
	if s, err = cuda.ReadSnapshot(&file); err != nil {
		t.Fatal(err)
	}
	for i := range devices {
		found := false
		for _, g := range s.Segments() {
			for _, b := range g.Blocks {
				found = found || g.Device == i && b.State == "active_allocated" && b.Requested == uint64(4*(100+i)) && len(b.Frames) > 0
			}
		}
		if !found || len(s.Trace(i)) < 2 {
			t.Errorf("device %d: %d entries in the trace, its tensor found: %v", i, len(s.Trace(i)), found)
		}
	}
	if _, err := cuda.SnapshotOf(); fault.KindOf(err) != fault.Invalid {
		t.Errorf("of no device: %v", err)
	}
	if _, err := cuda.SnapshotOf(devices[0], devices[1], devices[0]); fault.KindOf(err) != fault.Invalid ||
		!strings.Contains(err.Error(), "two of the snapshots are of device 0") {
		t.Errorf("of one device twice: %v", err)
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
	if _, err := cuda.SnapshotOf(devices[0], simulated(t, 2)); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("of a device whose driver caches: %v", err)
	}
}
