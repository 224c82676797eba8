// Package nvml reads the state of NVIDIA GPUs (names, memory, temperature, power, load) through NVIDIA's management library, for display.
// It must not depend on the device contract or the runtime: it creates no context and does no work, and Tenon also runs without the
// library.
package nvml

import (
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"tenon.dev/internal/dl"
)

// NotReported is the value of a reading that the device or its permissions do not provide.
const NotReported = -1

// Device is the state of one GPU at the time it was read.
type Device struct {
	// Name is the vendor's name, such as "NVIDIA H200".
	Name string
	// UUID is the device's 16 bytes, equal to the driver's; all zero for a slice of a GPU, whose identity has another format.
	UUID [16]byte
	// MemoryTotal, MemoryUsed and MemoryFree are in bytes, over all processes; used includes what the driver reserves.
	MemoryTotal, MemoryUsed, MemoryFree uint64
	// Celsius is the chip's temperature, Watts its power draw, Busy the percentage of the last sampling period during which a kernel ran;
	// each is NotReported if the device does not provide it.
	Celsius, Watts, Busy float64
}

// Library is the open management library.
type Library struct {
	so    *dl.Library
	procs map[string]dl.Proc
}

// libraryNames are the places to look for the library on Linux, WSL and Windows.
var libraryNames = map[string][]string{
	"linux":   {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"},
	"windows": {"nvml.dll", `C:\Program Files\NVIDIA Corporation\NVSMI\nvml.dll`},
}

// functions are the library's functions in use.
var functions = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetClockInfo",
}

// Functions that not every version of the library has.
const (
	processesFunction = "nvmlDeviceGetComputeRunningProcesses_v3"
	sliceFunction     = "nvmlDeviceGetMigMode"
)

// Open loads and starts the library. The error says what is missing.
func Open() (*Library, error) {
	names := libraryNames[runtime.GOOS]
	if len(names) == 0 {
		return nil, fmt.Errorf("NVIDIA's management library does not exist for %s", runtime.GOOS)
	}
	so, err := dl.Open(names...)
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's management library was not found: %w", err)
	}
	l, err := open(so.Symbol)
	if err != nil {
		return nil, errors.Join(err, so.Close())
	}
	l.so = so
	return l, nil
}

// open finds the functions and starts the library.
func open(symbol func(name string) (dl.Proc, error)) (*Library, error) {
	l := &Library{procs: map[string]dl.Proc{}}
	for _, name := range functions {
		p, err := symbol(name)
		if err != nil {
			return nil, err
		}
		l.procs[name] = p
	}
	for _, name := range []string{processesFunction, sliceFunction} {
		if p, err := symbol(name); err == nil {
			l.procs[name] = p
		}
	}
	return l, l.call("nvmlInit_v2")
}

// call makes a call that returns a code, 0 for success. Pointers are passed with dl.Address and kept alive by the caller.
func (l *Library) call(name string, args ...uintptr) error {
	code := uint32(l.procs[name].CallKept(args...))
	if code == 0 {
		return nil
	}
	return l.failure(name, code)
}

func (l *Library) failure(name string, code uint32) error {
	return fmt.Errorf("%s: %s (%d)", name, dl.String(l.procs["nvmlErrorString"].CallKept(uintptr(code))), code)
}

// Path returns the path of the loaded file.
func (l *Library) Path() string { return l.so.Path() }

// Close stops the library and unloads it.
func (l *Library) Close() error {
	err := l.call("nvmlShutdown")
	if l.so != nil {
		err = errors.Join(err, l.so.Close())
	}
	return err
}

// DriverVersion returns the driver's own version, such as "580.159.04".
func (l *Library) DriverVersion() (string, error) { return l.text("nvmlSystemGetDriverVersion") }

// text makes a call whose last arguments are a buffer and its size.
func (l *Library) text(name string, args ...uintptr) (string, error) {
	buf := make([]byte, 96)
	err := l.call(name, append(args, dl.Address(unsafe.Pointer(&buf[0])), uintptr(len(buf)))...)
	runtime.KeepAlive(buf)
	s, _, _ := strings.Cut(string(buf), "\x00")
	return s, err
}

// Devices reads every GPU that is visible to this process, in the library's order, which is by bus and differs from CUDA's: match them by
// UUID.
func (l *Library) Devices() ([]Device, error) {
	gpus, err := l.gpus()
	if err != nil {
		return nil, err
	}
	var devices []Device
	for _, g := range gpus {
		d, err := g.read()
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// parseUUID parses "GPU-5c6e8ae8-9cd6-8d25-d0ef-be721e5f66d9"; any other format gives zeros.
func parseUUID(s string) (id [16]byte) {
	digits, ok := strings.CutPrefix(s, "GPU-")
	b, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	if ok && err == nil && len(b) == len(id) {
		copy(id[:], b)
	}
	return id
}
