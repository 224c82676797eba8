package rt

import (
	"os"
	"strconv"
	"strings"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/lib/nvml"
)

// management opens NVIDIA's management library, if there is one.
var management = sync.OnceValues(nvml.Open)

// sensed reads a value of the device from the management library.
func sensed[T any](d *Device, what string, read func(g nvml.GPU) (T, error)) (v T, err error) {
	if d.Host {
		return v, fault.New(fault.Invalid, "Expected a cuda device, but got: cpu")
	}
	if d.info.PCIBusID == "" {
		return v, fault.New(fault.Unsupported, "%s has no %s: it is not a device on this machine's bus", d.info.Name, what)
	}
	l, err := management()
	if err == nil {
		var g nvml.GPU
		if g, err = l.GPU(d.info.UUID); err == nil {
			v, err = read(g)
		}
	}
	if err != nil {
		return v, fault.Wrap(fault.Unsupported, err, "the %s of %s cannot be read", what, d.info.Name)
	}
	return v, nil
}

// Temperature returns the chip's temperature in °C.
func (d *Device) Temperature() (int, error) { return sensed(d, "temperature", nvml.GPU.Temperature) }

// PowerDraw returns the power draw in watts.
func (d *Device) PowerDraw() (float64, error) { return sensed(d, "power draw", nvml.GPU.Power) }

// ClockRate returns the multiprocessors' current clock rate in MHz.
func (d *Device) ClockRate() (int, error) { return sensed(d, "clock rate", nvml.GPU.Clock) }

// Utilization returns for what percentage of the last sample period a kernel ran, and for what percentage memory was read or written.
func (d *Device) Utilization() (kernels, memory int, err error) {
	v, err := sensed(d, "utilization", func(g nvml.GPU) (v [2]int, err error) {
		v[0], v[1], err = g.Utilization()
		return v, err
	})
	return v[0], v[1], err
}

// MemoryUsed returns the bytes of the device's memory that are in use, over all processes.
func (d *Device) MemoryUsed() (uint64, error) {
	return sensed(d, "memory in use", func(g nvml.GPU) (uint64, error) {
		_, used, _, err := g.Memory()
		return used, err
	})
}

// Processes lists the processes that use the device's memory.
func (d *Device) Processes() ([]alloc.ProcessMemory, error) {
	list, err := sensed(d, "list of processes", nvml.GPU.Processes)
	var users []alloc.ProcessMemory
	for _, p := range list {
		users = append(users, alloc.ProcessMemory{PID: p.PID, Bytes: p.Memory, Self: p.PID == os.Getpid()})
	}
	return users, err
}

// CheckCode returns the error that Tenon's own calls return for a CUDA result code; 0 gives nil.
func CheckCode(code int) error {
	if code == int(driver.Success) {
		return nil
	}
	return wrap(&driver.Error{Call: "CUDA", Code: driver.Code(code)}, "a call of CUDA failed")
}

// GPUs returns how many NVIDIA GPUs can be opened; 0 without a working driver. Starting the driver fixes the value of CUDA_VISIBLE_DEVICES;
// before that, GPUs asks the management library, if there is one.
func GPUs() int {
	if !libcuda.Started() {
		if n, ok := gpusBeforeStart(); ok {
			return n
		}
	}
	n, err := libcuda.New().DeviceCount()
	if err != nil {
		return 0
	}
	return n
}

// gpusBeforeStart counts the GPUs that the driver would show once it is started, if that can be known.
func gpusBeforeStart() (n int, ok bool) {
	l, err := management()
	if err != nil || !libcuda.Loads() {
		return 0, false
	}
	uuids, sliced, err := l.UUIDs()
	if err != nil || sliced {
		return 0, false
	}
	list, set := knob.VisibleDevices.Lookup()
	return visible(uuids, list, set)
}

// visible returns how many of the GPUs with these UUIDs CUDA shows to a process whose CUDA_VISIBLE_DEVICES is list, by the rules of the
// CUDA programming guide: numbers, or prefixes of UUIDs that match exactly one GPU, up to the first entry that names none; a GPU named
// twice makes all invisible. ok is false for MIG devices, which only the driver knows.
func visible(uuids []string, list string, set bool) (n int, ok bool) {
	if !set {
		return len(uuids), true
	}
	if strings.Contains(list, "MIG-") {
		return 0, false
	}
	seen := map[int]bool{}
	for entry := range strings.SplitSeq(list, ",") {
		i := gpuNamed(uuids, strings.TrimSpace(entry))
		if i < 0 {
			break
		}
		if seen[i] {
			return 0, true
		}
		seen[i] = true
	}
	return len(seen), true
}

// gpuNamed returns the index of the GPU that an entry of CUDA_VISIBLE_DEVICES names, or -1. Only the leading digits of a number count, as
// in C.
func gpuNamed(uuids []string, entry string) int {
	if strings.HasPrefix(entry, "GPU-") {
		found := -1
		for i, u := range uuids {
			if strings.HasPrefix(u, entry) {
				if found >= 0 {
					return -1
				}
				found = i
			}
		}
		return found
	}
	digits := strings.TrimPrefix(entry, "+")
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	if i, err := strconv.Atoi(digits); err == nil && i < len(uuids) {
		return i
	}
	return -1
}
