// Package nvml reads the state of NVIDIA GPUs (names, memory, temperature, power, load) through NVIDIA's management library, for people.
// It may not know the device contract or the runtime: it makes no context, does no work, and nothing depends on its presence.
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

// NotReported is the value of a reading that the device or its permissions do not give.
const NotReported = -1

// Device is the state of one GPU when it was read.
type Device struct {
	// Name is the vendor's, such as "NVIDIA H200".
	Name string
	// UUID is the device's 16 bytes, equal to the driver's; all zero for a slice of a GPU, whose identity has another form.
	UUID [16]byte
	// MemoryTotal, MemoryUsed and MemoryFree are in bytes, over all processes; used includes what the driver reserves.
	MemoryTotal, MemoryUsed, MemoryFree uint64
	// Celsius is the temperature of the chip, Watts its power draw, Busy the percentage of the last moments in which a kernel ran; each
	// NotReported where there is none.
	Celsius, Watts, Busy float64
}

// Library is the open management library.
type Library struct {
	so    *dl.Library
	procs map[string]dl.Proc
}

// libraryNames are where the library is: Linux, WSL, Windows.
var libraryNames = map[string][]string{
	"linux":   {"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"},
	"windows": {"nvml.dll", `C:\Program Files\NVIDIA Corporation\NVSMI\nvml.dll`},
}

// functions are all that is used of the library.
var functions = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates",
}

// processesFunction is not in every version of the library.
const processesFunction = "nvmlDeviceGetComputeRunningProcesses_v3"

// Process is a process that computes on a GPU.
type Process struct {
	PID    int    // as the system that runs the driver numbers it, which in a container is not the process's own number
	Memory uint64 // bytes of the GPU's memory
}

// processInfo is nvmlProcessInfo_t.
type processInfo struct {
	pid                              uint32
	memory                           uint64
	gpuInstanceID, computeInstanceID uint32
}

// Processes lists the processes that compute on the GPU with that UUID, but for those whose memory the library does not tell.
func (l *Library) Processes(uuid [16]byte) ([]Process, error) {
	handle, err := l.byUUID(uuid)
	if err != nil {
		return nil, err
	}
	if l.procs[processesFunction] == 0 {
		return nil, fmt.Errorf("the library lacks %s; update the driver", processesFunction)
	}
	for room := 64; ; room *= 2 {
		infos, n := make([]processInfo, room), new(uint32)
		*n = uint32(room)
		code := uint32(l.procs[processesFunction].CallKept(handle, dl.Address(unsafe.Pointer(n)), dl.Address(unsafe.Pointer(&infos[0]))))
		runtime.KeepAlive(infos)
		const insufficientSize = 7 // NVML_ERROR_INSUFFICIENT_SIZE
		if code == insufficientSize && room < 1<<16 {
			continue
		}
		if code != 0 {
			return nil, l.failure(processesFunction, code)
		}
		var list []Process
		for _, p := range infos[:min(int(*n), room)] {
			const unknown = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
			if p.memory != unknown {
				list = append(list, Process{int(p.pid), p.memory})
			}
		}
		return list, nil
	}
}

// byUUID returns the handle of the GPU with that UUID.
func (l *Library) byUUID(uuid [16]byte) (uintptr, error) {
	n := new(uint32)
	if err := l.call("nvmlDeviceGetCount_v2", dl.Address(unsafe.Pointer(n))); err != nil {
		return 0, err
	}
	for i := range *n {
		handle := new(uintptr)
		if err := l.call("nvmlDeviceGetHandleByIndex_v2", uintptr(i), dl.Address(unsafe.Pointer(handle))); err != nil {
			return 0, err
		}
		text, err := l.text("nvmlDeviceGetUUID", *handle)
		if err != nil {
			return 0, err
		}
		if parseUUID(text) == uuid {
			return *handle, nil
		}
	}
	return 0, errors.New("the library knows no GPU of this identity")
}

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
	if p, err := symbol(processesFunction); err == nil {
		l.procs[processesFunction] = p
	}
	return l, l.call("nvmlInit_v2")
}

// call makes a call whose result is a code, 0 for success. Pointers are passed by dl.Address and kept alive by the caller.
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

// Path returns the file that was loaded.
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

// Devices reads every GPU that this process may see, in the library's order, which is that of the bus and not CUDA's: match them by UUID.
func (l *Library) Devices() ([]Device, error) {
	n := new(uint32)
	if err := l.call("nvmlDeviceGetCount_v2", dl.Address(unsafe.Pointer(n))); err != nil {
		return nil, err
	}
	var devices []Device
	for i := range *n {
		handle := new(uintptr)
		if err := l.call("nvmlDeviceGetHandleByIndex_v2", uintptr(i), dl.Address(unsafe.Pointer(handle))); err != nil {
			return nil, err
		}
		d, err := l.device(*handle)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// device reads one GPU. Temperature, power and load are not there on every device, and their absence is no error.
func (l *Library) device(handle uintptr) (Device, error) {
	d := Device{Celsius: NotReported, Watts: NotReported, Busy: NotReported}
	var err error
	if d.Name, err = l.text("nvmlDeviceGetName", handle); err != nil {
		return d, err
	}
	uuid, err := l.text("nvmlDeviceGetUUID", handle)
	if err != nil {
		return d, err
	}
	d.UUID = parseUUID(uuid)
	memory := new([3]uint64) // nvmlMemory_t: total, free, used
	if err := l.call("nvmlDeviceGetMemoryInfo", handle, dl.Address(unsafe.Pointer(memory))); err != nil {
		return d, err
	}
	d.MemoryTotal, d.MemoryFree, d.MemoryUsed = memory[0], memory[1], memory[2]

	const sensorGPU = 0 // NVML_TEMPERATURE_GPU
	v := new([2]uint32)
	if l.call("nvmlDeviceGetTemperature", handle, sensorGPU, dl.Address(unsafe.Pointer(v))) == nil {
		d.Celsius = float64(v[0])
	}
	if l.call("nvmlDeviceGetPowerUsage", handle, dl.Address(unsafe.Pointer(v))) == nil {
		d.Watts = float64(v[0]) / 1000
	}
	if l.call("nvmlDeviceGetUtilizationRates", handle, dl.Address(unsafe.Pointer(v))) == nil {
		d.Busy = float64(v[0])
	}
	return d, nil
}

// parseUUID reads "GPU-5c6e8ae8-9cd6-8d25-d0ef-be721e5f66d9"; what has another form gives zeros.
func parseUUID(s string) (id [16]byte) {
	digits, ok := strings.CutPrefix(s, "GPU-")
	b, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
	if ok && err == nil && len(b) == len(id) {
		copy(id[:], b)
	}
	return id
}
