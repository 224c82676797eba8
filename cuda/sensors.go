package cuda

import (
	"encoding/hex"

	"tenon.dev/internal/rt"
)

// UUID is a device's identity, the same in all programs and after every start; nvidia-smi shows it after "GPU-".
type UUID [16]byte

// String returns the 36 characters, such as "5c6e8ae8-9cd6-8d25-d0ef-be721e5f66d9".
func (u UUID) String() string {
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// UUID returns the device's identity.
func (d *Device) UUID() UUID { return d.rt().Info().UUID }

// Temperature returns the temperature of the chip in °C. Like the methods below, it asks NVIDIA's management library, NVML, which comes
// with the driver. If the library or the device does not have the value, as for a simulated device, it returns an error of kind
// Unsupported; for the processor's device, one of kind Invalid. These methods neither wait for the device nor harm a capture.
func (d *Device) Temperature() (celsius int, err error) {
	defer returned(&err)
	return d.rt().Temperature()
}

// PowerDraw returns the power that the device draws, in watts; on recent devices the average of the last second. Errors are as for
// Temperature.
func (d *Device) PowerDraw() (watts float64, err error) {
	defer returned(&err)
	return d.rt().PowerDraw()
}

// ClockRate returns the current clock rate of the multiprocessors in MHz. Errors are as for Temperature.
func (d *Device) ClockRate() (mhz int, err error) {
	defer returned(&err)
	return d.rt().ClockRate()
}

// Utilization returns for what percentage of the last sample period a kernel ran, and for what percentage memory was read or written. The
// period is a sixth of a second to a second, depending on the device. Errors are as for Temperature.
func (d *Device) Utilization() (kernels, memory int, err error) {
	defer returned(&err)
	return d.rt().Utilization()
}

// DeviceMemoryUsed returns the bytes of the device's memory that are in use, over all processes, including what the driver reserves.
// MemInfo returns what is free to this process, and works on every device. Errors are as for Temperature.
func (d *Device) DeviceMemoryUsed() (bytes uint64, err error) {
	defer returned(&err)
	return d.rt().MemoryUsed()
}

// Process is a program that computes on a device.
type Process struct {
	PID    int    // in the system that runs the driver; in a container the program itself sees another PID
	Memory uint64 // bytes of the device's memory
}

// Processes lists the programs that compute on the device, except those whose memory the driver does not report. Errors are as for
// Temperature.
func (d *Device) Processes() (list []Process, err error) {
	defer returned(&err)
	users, err := d.rt().Processes()
	for _, u := range users {
		list = append(list, Process{u.PID, u.Bytes})
	}
	return list, err
}

// CheckError returns nil for CUDA's result code 0, and for any other code an error with CUDA's message, such as "out of memory" for 2, and
// the kind that Tenon's own errors have. It is for programs that pass Tenon's handles and addresses to other CUDA libraries.
func CheckError(code int) error { return rt.CheckCode(code) }
