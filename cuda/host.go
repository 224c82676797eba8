package cuda

// HostRegister page-locks b, memory of the Go program, where it is, so that copies between it and devices go on while the host does. b
// stays reachable until HostUnregister. Memory that is page-locked already, in part or whole, is an error. It may not be called in a
// capture.
func (d *Device) HostRegister(b []byte) (err error) {
	defer returned(&err)
	return d.rt().HostRegister(b)
}

// HostUnregister waits for the device's work and ends what HostRegister of the same memory began.
func (d *Device) HostUnregister(b []byte) (err error) {
	defer returned(&err)
	return d.rt().HostUnregister(b)
}
