package cuda

// HostRegister page-locks b, memory of the Go program, in place, so that copies between it and devices run while the host continues. b
// stays reachable until HostUnregister. Memory that is page-locked already, in part or whole, is an error. HostRegister must not be called
// in a capture.
func (d *Device) HostRegister(b []byte) (err error) {
	defer returned(&err)
	return d.rt().HostRegister(b)
}

// HostUnregister waits for the device's work and undoes HostRegister of the same memory.
func (d *Device) HostUnregister(b []byte) (err error) {
	defer returned(&err)
	return d.rt().HostUnregister(b)
}
