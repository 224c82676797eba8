package profile

// DeviceOf returns the device with the given name and its figures, if they are known: those that Tenon reaches there according to
// docs/measurements.md.
func DeviceOf(name string) Device {
	d := Device{Name: name}
	switch name { // the bandwidth is that of an add of two tensors of 4 GiB
	case "NVIDIA H200":
		d.Bandwidth = 4.4e12
		d.Rates = map[string]float64{"bfloat16": 838.3e12, "float16": 805.2e12, "float32": 52e12, "tf32": 402.5e12}
	case "NVIDIA H100 80GB HBM3":
		d.Bandwidth = 3.057e12
		d.Rates = map[string]float64{"bfloat16": 812.2e12, "float16": 779.3e12, "float32": 51.7e12, "tf32": 382.5e12}
	}
	return d
}
