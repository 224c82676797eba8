package nn_test

import (
	"path/filepath"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/safetensors"
	"tenon.dev/tenontest"
)

// Loading takes no memory on the device besides the module's, whatever types the file has, so that a module fits that fills the device.
func TestLoadMemory(t *testing.T) {
	const size = 512 // a weight has 1 MiB in single precision
	layers := func(x *tenon.Exec, seed uint64, dt tenon.DType) nn.Sequential {
		var m nn.Sequential
		for range 4 {
			seed++
			m = append(m, nn.NewLinear(x, size, size, nn.LinearOpt{DType: dt, Generator: nn.NewHostGenerator(seed)}))
		}
		return append(m, nn.NewConv2d(x, 64, 64, [2]int{3, 3}, nn.Conv2dOpt{DType: dt, Generator: nn.NewHostGenerator(seed)}))
	}
	type loading struct {
		file, module tenon.DType
		on           tenon.Selector
	}
	var cases []loading
	for _, s := range append([]tenon.Selector{tenon.Sim(16 << 20)}, tenon.CUDA(0))[:1+min(1, tenon.GPUs())] {
		cases = append(cases, loading{tenon.Float32, tenon.Float32, s}, loading{tenon.Float16, tenon.Float32, s},
			loading{tenon.Float32, tenon.Float16, s})
	}
	for _, c := range cases {
		file := filepath.Join(t.TempDir(), "m.safetensors")
		var want map[string]string
		tenontest.Run(t, func(host *tenon.Exec) {
			m := nn.Scoped(host, layers(host, 0, c.file))
			ok(t, nn.SaveFile(host, m, file))
			ok(t, nn.ToDType(host, m, c.module))
			want = bytesOf(t, host, m)
		}, tenon.CPU())
		tenontest.Run(t, func(x *tenon.Exec) {
			m := nn.Scoped(x, layers(x, 9, c.module))
			ok(t, nn.ToChannelsLast(x, m))
			x.Device().ResetPeakStats()
			has := x.Device().MemoryAllocated()
			for _, load := range []func() error{
				func() error { return nn.LoadFile(x, m, file) },
				func() error { return loadTensors(x, m, file) },
			} {
				ok(t, load())
				if peak := x.Device().MaxMemoryAllocated(); peak > has {
					t.Errorf("%v to %v: loading took %d bytes besides the %d of the module", c.file, c.module, peak-has, has)
				}
				for key, got := range bytesOf(t, x, m) {
					if got != want[key] {
						t.Errorf("%v to %v: %s is not what was saved", c.file, c.module, key)
					}
				}
				x.Device().ResetPeakStats()
			}
		}, c.on)
	}
}

// loadTensors is LoadFile by Load, from tensors of the processor.
func loadTensors(x *tenon.Exec, m any, file string) error {
	f, err := safetensors.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return x.Host().Do(func(host *tenon.Exec) error {
		state := map[string]*tenon.Tensor{}
		for _, a := range f.Infos() {
			b, err := f.Read(a.Name)
			if err != nil {
				return err
			}
			state[a.Name] = host.FromBytes(b, a.DType, a.Shape...)
		}
		return nn.Load(x, m, state)
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
