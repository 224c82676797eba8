package rt

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
)

// The devices that CUDA_VISIBLE_DEVICES shows, by the examples of the CUDA programming guide and PyTorch's notes on the driver.
func TestVisible(t *testing.T) {
	uuids := []string{"GPU-5c6e8ae8-9cd6", "GPU-5c7e8ae8-9cd6", "GPU-91002200-0000", "GPU-a0000000-0000"}
	for _, c := range []struct {
		list string
		want int
	}{
		{"", 0}, {"0", 1}, {"3", 1}, {"0,1", 2}, {"2, 0 ,1", 3}, {"0,1,2,3", 4},
		{"4", 0}, {"32", 0}, {"0,4,1", 1}, {"1,-1,0", 1}, {"-1", 0}, {"0,,1", 1}, {"none", 0},
		{"0,0", 0}, {"1,2,1", 0}, {"1gpu2,2ampere", 2}, {"+1", 1}, {"99999999999999999999", 0},
		{"GPU-5c6e8ae8-9cd6", 1}, {"GPU-5c6", 1}, {"GPU-5c", 0}, {"GPU-9,GPU-a", 2}, {"GPU-9,GPU-b,GPU-a", 1},
		{"GPU-a,GPU-a0", 0}, {"GPU-9,0", 2},
	} {
		if n, ok := visible(uuids, c.list, true); n != c.want || !ok {
			t.Errorf("%q shows %d, %v; want %d", c.list, n, ok, c.want)
		}
	}
	if n, ok := visible(uuids, "", false); n != 4 || !ok {
		t.Errorf("with no list %d, %v are shown", n, ok)
	}
	if _, ok := visible(uuids, "MIG-5c6e8ae8-9cd6", true); ok {
		t.Error("slices were counted")
	}
}

func TestSensorsOfOthers(t *testing.T) {
	read := func(d *Device, kind fault.Kind, text string) {
		t.Helper()
		_, temperature := d.Temperature()
		_, power := d.PowerDraw()
		_, clock := d.ClockRate()
		_, _, busy := d.Utilization()
		_, used := d.MemoryUsed()
		_, users := d.Processes()
		for _, err := range []error{temperature, power, clock, busy, used, users} {
			if fault.KindOf(err) != kind || !strings.Contains(err.Error(), text) {
				t.Errorf("the error is %v; want %q", err, text)
			}
		}
	}
	read(openSim(t, nil), fault.Unsupported, "it is not a device on this machine's bus")
	host, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	read(host, fault.Invalid, "Expected a cuda device, but got: cpu")
	read(openSim(t, func(d driver.Device) driver.Device { return onBus{d} }), fault.Unsupported, " cannot be read: ")
}

// onBus is a device that the management library, if there is one, does not know.
type onBus struct{ driver.Device }

func (d onBus) Info() *driver.Info {
	info := *d.Device.Info()
	info.PCIBusID = "0000:00:00.0"
	return &info
}

func TestCheckCode(t *testing.T) {
	if err := CheckCode(0); err != nil {
		t.Error(err)
	}
	for code, kind := range map[int]fault.Kind{2: fault.OutOfMemory, 700: fault.Device, 900: fault.Capture, 1: fault.System,
		12345: fault.System} {
		err := CheckCode(code)
		if fault.KindOf(err) != kind || !errors.Is(err, driver.Code(code)) {
			t.Errorf("code %d is %v", code, err)
		}
	}
}
