package nvml

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"tenon.dev/internal/dl"
)

// GPU is one of the library's devices. Its methods read its current state; a reading that the device or its permissions do not provide is
// an error.
type GPU struct {
	l      *Library
	handle uintptr
}

// gpus returns all GPUs that are visible to this process.
func (l *Library) gpus() ([]GPU, error) {
	n := new(uint32)
	if err := l.call("nvmlDeviceGetCount_v2", dl.Address(unsafe.Pointer(n))); err != nil {
		return nil, err
	}
	gpus := make([]GPU, *n)
	for i := range gpus {
		handle := new(uintptr)
		if err := l.call("nvmlDeviceGetHandleByIndex_v2", uintptr(i), dl.Address(unsafe.Pointer(handle))); err != nil {
			return nil, err
		}
		gpus[i] = GPU{l, *handle}
	}
	return gpus, nil
}

// GPU returns the GPU with that UUID.
func (l *Library) GPU(uuid [16]byte) (GPU, error) {
	gpus, err := l.gpus()
	if err != nil {
		return GPU{}, err
	}
	for _, g := range gpus {
		text, err := g.UUID()
		if err != nil {
			return GPU{}, err
		}
		if parseUUID(text) == uuid {
			return g, nil
		}
	}
	return GPU{}, errors.New("the library knows no GPU of this identity")
}

// UUIDs returns the UUIDs of all GPUs that are visible to this process, and whether any of them is divided into slices, which CUDA then
// counts instead.
func (l *Library) UUIDs() (texts []string, sliced bool, err error) {
	gpus, err := l.gpus()
	if err != nil {
		return nil, false, err
	}
	for _, g := range gpus {
		text, err := g.UUID()
		if err != nil {
			return nil, false, err
		}
		texts = append(texts, text)
		sliced = sliced || g.sliced()
	}
	return texts, sliced, nil
}

// UUID returns the UUID as text, such as "GPU-5c6e8ae8-9cd6-8d25-d0ef-be721e5f66d9".
func (g GPU) UUID() (string, error) { return g.l.text("nvmlDeviceGetUUID", g.handle) }

// sliced reports whether the GPU is divided into slices.
func (g GPU) sliced() bool {
	if g.l.procs[sliceFunction] == 0 {
		return false
	}
	now, pending := new(uint32), new(uint32)
	err := g.l.call(sliceFunction, g.handle, dl.Address(unsafe.Pointer(now)), dl.Address(unsafe.Pointer(pending)))
	return err == nil && *now != 0 // a GPU that cannot be divided has no mode
}

// Temperature returns the chip's temperature in °C.
func (g GPU) Temperature() (int, error) {
	const sensorGPU = 0 // NVML_TEMPERATURE_GPU
	v := new(uint32)
	err := g.l.call("nvmlDeviceGetTemperature", g.handle, sensorGPU, dl.Address(unsafe.Pointer(v)))
	return int(*v), err
}

// Power returns the power draw in watts.
func (g GPU) Power() (float64, error) {
	v := new(uint32)
	err := g.l.call("nvmlDeviceGetPowerUsage", g.handle, dl.Address(unsafe.Pointer(v)))
	return float64(*v) / 1000, err
}

// Clock returns the SM clock in MHz.
func (g GPU) Clock() (int, error) {
	const clockSM = 1 // NVML_CLOCK_SM
	v := new(uint32)
	err := g.l.call("nvmlDeviceGetClockInfo", g.handle, clockSM, dl.Address(unsafe.Pointer(v)))
	return int(*v), err
}

// Utilization returns the percentages of the last sampling period during which a kernel ran and during which memory was read or written.
func (g GPU) Utilization() (kernels, memory int, err error) {
	v := new([2]uint32) // nvmlUtilization_t: gpu, memory
	err = g.l.call("nvmlDeviceGetUtilizationRates", g.handle, dl.Address(unsafe.Pointer(v)))
	return int(v[0]), int(v[1]), err
}

// Memory returns the bytes over all processes; used includes what the driver reserves.
func (g GPU) Memory() (total, used, free uint64, err error) {
	v := new([3]uint64) // nvmlMemory_t: total, free, used
	err = g.l.call("nvmlDeviceGetMemoryInfo", g.handle, dl.Address(unsafe.Pointer(v)))
	return v[0], v[2], v[1], err
}

// read reads the GPU's state. Not every device reports temperature, power and load; their absence is not an error.
func (g GPU) read() (Device, error) {
	d := Device{Celsius: NotReported, Watts: NotReported, Busy: NotReported}
	var err error
	if d.Name, err = g.l.text("nvmlDeviceGetName", g.handle); err != nil {
		return d, err
	}
	uuid, err := g.UUID()
	if err != nil {
		return d, err
	}
	d.UUID = parseUUID(uuid)
	if d.MemoryTotal, d.MemoryUsed, d.MemoryFree, err = g.Memory(); err != nil {
		return d, err
	}
	if v, err := g.Temperature(); err == nil {
		d.Celsius = float64(v)
	}
	if v, err := g.Power(); err == nil {
		d.Watts = v
	}
	if v, _, err := g.Utilization(); err == nil {
		d.Busy = float64(v)
	}
	return d, nil
}

// Process is a process that computes on a GPU.
type Process struct {
	PID    int    // in the numbering of the system that runs the driver; in a container this is not the process's own number
	Memory uint64 // bytes of the GPU's memory
}

// processInfo is nvmlProcessInfo_t.
type processInfo struct {
	pid                              uint32
	memory                           uint64
	gpuInstanceID, computeInstanceID uint32
}

// Processes lists the processes that compute on the GPU, except those whose memory the library does not report.
func (g GPU) Processes() ([]Process, error) {
	l := g.l
	if l.procs[processesFunction] == 0 {
		return nil, fmt.Errorf("the library lacks %s; update the driver", processesFunction)
	}
	for room := 64; ; room *= 2 {
		infos, n := make([]processInfo, room), new(uint32)
		*n = uint32(room)
		code := uint32(l.procs[processesFunction].CallKept(g.handle, dl.Address(unsafe.Pointer(n)), dl.Address(unsafe.Pointer(&infos[0]))))
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
