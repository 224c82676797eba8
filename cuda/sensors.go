package cuda

import (
	"encoding/hex"

	"tenon.dev/internal/rt"
)

// UUID is a device's identity, the same in all programs and after every start; nvidia-smi shows it behind "GPU-".
type UUID [16]byte

// String returns the 36 characters, such as "5c6e8ae8-9cd6-8d25-d0ef-be721e5f66d9".
func (u UUID) String() string {
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// UUID returns the device's identity.
func (d *Device) UUID() UUID { return d.rt().Info().UUID }

// Temperature returns the temperature of the chip in °C. NVIDIA's management library, NVML, which comes with the driver, is asked, as it is
// by the methods below. Where the library or the device does not tell, as a simulated device never does, it is an error of kind
// Unsupported; a processor's device gives one of kind Invalid. They neither wait for the device nor harm a capture.
func (d *Device) Temperature() (celsius int, err error) {
	defer returned(&err)
	return d.rt().Temperature()
}

// PowerDraw returns the power that the device draws, in watts; on recent ones the average of the last second. Errors are as Temperature's.
func (d *Device) PowerDraw() (watts float64, err error) {
	defer returned(&err)
	return d.rt().PowerDraw()
}

// ClockRate returns the present clock of the multiprocessors in MHz. Errors are as Temperature's.
func (d *Device) ClockRate() (mhz int, err error) {
	defer returned(&err)
	return d.rt().ClockRate()
}

// Utilization returns the percentages of the last moments, a sixth of a second to a second by device, in which a kernel ran, and in which
// memory was read or written. Errors are as Temperature's.
func (d *Device) Utilization() (kernels, memory int, err error) {
	defer returned(&err)
	return d.rt().Utilization()
}

// DeviceMemoryUsed returns the bytes of the device's memory that are in use, over all processes, with what the driver reserves; MemInfo
// tells what is free to this process, on every device. Errors are as Temperature's.
func (d *Device) DeviceMemoryUsed() (bytes uint64, err error) {
	defer returned(&err)
	return d.rt().MemoryUsed()
}

// Process is a program that computes on a device.
type Process struct {
	PID    int    // as the system that runs the driver numbers it, which in a container is not the program's own number
	Memory uint64 // bytes of the device's memory
}

// Processes lists the programs that compute on the device, but for those whose memory the driver does not tell. Errors are as
// Temperature's.
func (d *Device) Processes() (list []Process, err error) {
	defer returned(&err)
	users, err := d.rt().Processes()
	for _, u := range users {
		list = append(list, Process{u.PID, u.Bytes})
	}
	return list, err
}

// CheckError returns nil for CUDA's result code 0, and for any other an error with CUDA's sentence for it, such as "out of memory" for 2,
// of the kind that Tenon gives it. It is for programs that pass Tenon's handles and addresses to other libraries of CUDA.
func CheckError(code int) error { return rt.CheckCode(code) }
