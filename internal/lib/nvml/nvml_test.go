//go:build !tenon_sim && linux

package nvml

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"tenon.dev/internal/dl"
)

// fake is a management library with two devices, written in Go. fails gives the code that a function returns.
type fake struct {
	fails     map[string]uint32
	processes []processInfo // on device 100
	slices    uint32        // whether the devices are divided
}

var fakeNow *fake

var errorText = []byte("it went wrong\x00")

// fakeProcs are created once, since C callbacks cannot be released.
var fakeProcs = sync.OnceValue(func() map[string]dl.Proc {
	procs := map[string]dl.Proc{}
	for _, name := range append([]string{processesFunction, sliceFunction}, functions...) {
		procs[name] = dl.Proc(dl.Callback(func(a, b, c uintptr) uintptr { return fakeNow.called(name, a, b, c) }))
	}
	return procs
})

func (f *fake) called(name string, a, b, c uintptr) uintptr {
	if code := f.fails[name]; code != 0 {
		return uintptr(code)
	}
	word := func(addr uintptr) *uint32 { return (*uint32)(dl.Pointer(addr)) }
	text := func(addr, n uintptr, s string) { copy(dl.Bytes(addr, int(n)), s+"\x00") }
	switch name {
	case "nvmlErrorString":
		return dl.Address(unsafe.Pointer(&errorText[0]))
	case "nvmlSystemGetDriverVersion":
		text(a, b, "580.1")
	case "nvmlDeviceGetCount_v2":
		*word(a) = 2
	case "nvmlDeviceGetHandleByIndex_v2":
		*(*uintptr)(dl.Pointer(b)) = a + 100
	case "nvmlDeviceGetName":
		text(b, c, "Fake")
	case "nvmlDeviceGetUUID":
		text(b, c, []string{"GPU-00112233-4455-6677-8899-aabbccddeeff", "MIG-1"}[a-100])
	case "nvmlDeviceGetMemoryInfo":
		*(*[3]uint64)(dl.Pointer(b)) = [3]uint64{10, 7, 3}
	case processesFunction:
		room := *word(b)
		if *word(b) = uint32(len(f.processes)); int(room) < len(f.processes) {
			return 7
		}
		copy(unsafe.Slice((*processInfo)(dl.Pointer(c)), room), f.processes)
	case sliceFunction:
		*word(b), *word(c) = f.slices, 0
	case "nvmlDeviceGetClockInfo":
		if b != 1 { // multiprocessors
			return 2
		}
		*word(c) = 1980
	case "nvmlDeviceGetTemperature":
		*word(c) = 41
	case "nvmlDeviceGetPowerUsage":
		*word(b) = 75500
	case "nvmlDeviceGetUtilizationRates":
		*(*[2]uint32)(dl.Pointer(b)) = [2]uint32{12, 34}
	}
	return 0
}

func symbol(name string) (dl.Proc, error) { return fakeProcs()[name], nil }

func TestDevices(t *testing.T) {
	fakeNow = &fake{fails: map[string]uint32{}}
	l, err := open(symbol)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := l.DriverVersion(); v != "580.1" || err != nil {
		t.Errorf("DriverVersion = %q, %v", v, err)
	}
	fakeNow.fails["nvmlDeviceGetPowerUsage"] = 3
	d := Device{Name: "Fake", UUID: [16]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff},
		MemoryTotal: 10, MemoryUsed: 3, MemoryFree: 7, Celsius: 41, Watts: NotReported, Busy: 12}
	want := []Device{d, d}
	want[1].UUID = [16]byte{}
	if got, err := l.Devices(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Devices = %+v, %v; want %+v", got, err, want)
	}
	fakeNow.fails = map[string]uint32{"nvmlDeviceGetTemperature": 3, "nvmlDeviceGetUtilizationRates": 3}
	if got, err := l.Devices(); err != nil || got[0].Watts != 75.5 || got[0].Celsius != NotReported || got[0].Busy != NotReported {
		t.Errorf("Devices = %+v, %v", got, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestProcesses(t *testing.T) {
	fakeNow = &fake{fails: map[string]uint32{}, processes: []processInfo{{pid: 5, memory: 100}, {pid: 6, memory: ^uint64(0)}}}
	l, err := open(symbol)
	if err != nil {
		t.Fatal(err)
	}
	id := parseUUID("GPU-00112233-4455-6677-8899-aabbccddeeff")
	processes := func(id [16]byte) ([]Process, error) {
		g, err := l.GPU(id)
		if err != nil {
			return nil, err
		}
		return g.Processes()
	}
	if got, err := processes(id); err != nil || !reflect.DeepEqual(got, []Process{{5, 100}}) {
		t.Errorf("Processes = %+v, %v", got, err)
	}
	fakeNow.processes = make([]processInfo, 300)
	if got, err := processes(id); err != nil || len(got) != 300 {
		t.Errorf("%d processes, %v; want 300", len(got), err)
	}
	if _, err := processes([16]byte{1}); err == nil || !strings.Contains(err.Error(), "no GPU of this identity") {
		t.Errorf("an unknown GPU: %v", err)
	}
	for _, name := range []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", processesFunction} {
		fakeNow.fails = map[string]uint32{name: 999}
		if _, err := processes(id); err == nil || err.Error() != name+": it went wrong (999)" {
			t.Errorf("%s fails: %v", name, err)
		}
	}
	fakeNow.fails = nil
	delete(l.procs, processesFunction)
	if _, err := processes(id); err == nil || !strings.Contains(err.Error(), "update the driver") {
		t.Errorf("a library without the function: %v", err)
	}
}

// The readings of one GPU, and the errors for missing ones.
func TestGPU(t *testing.T) {
	fakeNow = &fake{}
	l, err := open(symbol)
	if err != nil {
		t.Fatal(err)
	}
	g, err := l.GPU(parseUUID("GPU-00112233-4455-6677-8899-aabbccddeeff"))
	if err != nil {
		t.Fatal(err)
	}
	reads := []struct {
		function, want string
		read           func() (any, error)
	}{
		{"nvmlDeviceGetTemperature", "41", func() (any, error) { return g.Temperature() }},
		{"nvmlDeviceGetPowerUsage", "75.5", func() (any, error) { return g.Power() }},
		{"nvmlDeviceGetClockInfo", "1980", func() (any, error) { return g.Clock() }},
		{"nvmlDeviceGetUtilizationRates", "[12 34]", func() (any, error) { a, b, err := g.Utilization(); return []int{a, b}, err }},
		{"nvmlDeviceGetMemoryInfo", "[10 3 7]", func() (any, error) { a, b, c, err := g.Memory(); return []uint64{a, b, c}, err }},
		{"nvmlDeviceGetUUID", "[GPU-00112233-4455-6677-8899-aabbccddeeff MIG-1]", func() (any, error) {
			ids, _, err := l.UUIDs()
			return ids, err
		}},
	}
	for _, r := range reads {
		fakeNow.fails = nil
		if got, err := r.read(); err != nil || fmt.Sprint(got) != r.want {
			t.Errorf("%s: %v, %v; want %s", r.function, got, err, r.want)
		}
		fakeNow.fails = map[string]uint32{r.function: 3}
		if _, err := r.read(); err == nil || err.Error() != r.function+": it went wrong (3)" {
			t.Errorf("%s fails: %v", r.function, err)
		}
	}
	fakeNow.fails = nil
	for _, slices := range []uint32{0, 1} {
		fakeNow.slices = slices
		if _, sliced, err := l.UUIDs(); err != nil || sliced != (slices == 1) {
			t.Errorf("slices %d: sliced %v, %v", slices, sliced, err)
		}
	}
	fakeNow.fails = map[string]uint32{sliceFunction: 3} // not divisible
	if _, sliced, err := l.UUIDs(); err != nil || sliced {
		t.Errorf("a GPU that cannot be divided is: %v", err)
	}
	delete(l.procs, sliceFunction)
	if _, sliced, err := l.UUIDs(); err != nil || sliced {
		t.Errorf("a library that knows no slices has some: %v", err)
	}
}

// Fails each call whose failure is an error, once.
func TestFailures(t *testing.T) {
	for _, name := range functions {
		fakeNow = &fake{fails: map[string]uint32{}}
		l, err := open(symbol)
		if err != nil {
			t.Fatal(err)
		}
		fakeNow.fails[name] = 999
		_, openErr := open(symbol)
		_, versionErr := l.DriverVersion()
		_, devicesErr := l.Devices()
		err = errors.Join(openErr, versionErr, devicesErr, l.Close())
		switch name {
		case "nvmlErrorString", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
			"nvmlDeviceGetUtilizationRates":
			if err != nil {
				t.Errorf("%s fails: %v", name, err)
			}
		default:
			if want := name + ": it went wrong (999)"; err == nil || err.Error() != want {
				t.Errorf("%s fails: %v, want %s", name, err, want)
			}
		}
	}
	_, err := open(func(name string) (dl.Proc, error) { return 0, errors.New("no " + name) })
	if err == nil || !strings.Contains(err.Error(), functions[0]) {
		t.Errorf("a library without functions: %v", err)
	}
}

// The real library, if it is installed.
func TestReal(t *testing.T) {
	l, err := Open()
	if err != nil {
		t.Skipf("needs an NVIDIA driver: %v", err)
	}
	defer l.Close()
	v, err := l.DriverVersion()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := l.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("%d devices: %v", len(devices), err)
	}
	t.Logf("%s, driver %s: %+v", l.Path(), v, devices)
	for _, d := range devices {
		if d.Name == "" || d.MemoryTotal == 0 || d.MemoryUsed+d.MemoryFree > d.MemoryTotal {
			t.Errorf("%+v", d)
		}
		g, err := l.GPU(d.UUID)
		if err != nil {
			t.Errorf("a device is not found again: %v", err)
			continue
		}
		clock, clockErr := g.Clock()
		kernels, memory, err := g.Utilization()
		t.Logf("%d MHz, %v; %d %% and %d %%, %v", clock, clockErr, kernels, memory, err)
	}
	texts, sliced, err := l.UUIDs()
	t.Logf("%q, sliced %v", texts, sliced)
	if err != nil || len(texts) != len(devices) {
		t.Errorf("%q for %d devices: %v", texts, len(devices), err)
	}
}
