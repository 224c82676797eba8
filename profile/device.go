package profile

// DeviceOf returns the device with the given name and its figures, if they are known: those that Tenon reaches there according to
// docs/measurements.md.
func DeviceOf(name string) Device {
	d := Device{Name: name}
	if name == "NVIDIA H200" {
		d.Bandwidth = 4.4e12 // an add of two tensors of 4 GiB
		d.Rates = map[string]float64{"bfloat16": 813.1e12, "float16": 779.2e12, "float32": 52e12, "tf32": 402.5e12}
	}
	return d
}
