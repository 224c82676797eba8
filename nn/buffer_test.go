package nn_test

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// masked is a module with a mask that it makes itself.
type masked struct {
	Weight *nn.Param  `torch:"weight"`
	Mask   *nn.Buffer `torch:"mask"`
	Mean   *nn.Buffer `torch:"mean"`
}

// A non-persistent buffer is moved, converted and closed, but is in no state dict and no file.
func TestNonPersistentBuffer(t *testing.T) {
	host, sim := testdevice.Open(t, tenon.CPU()), testdevice.Open(t, tenon.Sim(64<<20))
	m := &masked{Weight: nn.NewParam(host.Ones([]int{2}, tenon.Float32)), Mask: nn.NewBuffer(host.Ones([]int{2}, tenon.Float32),
		nn.BufferOpt{NonPersistent: true}),
		Mean: nn.NewBuffer(host.Ones(nil, tenon.Float32))}
	if keys := slices.Sorted(maps.Keys(maps.Collect(nn.StateDict(m)))); !slices.Equal(keys, []string{"mean", "weight"}) {
		t.Errorf("the state has %v", keys)
	}
	if names := slices.Sorted(maps.Keys(maps.Collect(nn.Buffers(m)))); !slices.Equal(names, []string{"mask", "mean"}) {
		t.Errorf("the buffers are %v", names)
	}
	file := filepath.Join(t.TempDir(), "m.safetensors")
	if err := nn.SaveFile(host, m, file); err != nil {
		t.Fatal(err)
	}
	if err := nn.To(sim, m); err != nil {
		t.Fatal(err)
	}
	if err := nn.ToDType(sim, m, tenon.Float16); err != nil {
		t.Fatal(err)
	}
	if mask := m.Mask.Tensor(); mask.Device() != sim.Device() || mask.DType() != tenon.Float16 {
		t.Errorf("the mask is %v on %s", mask, mask.Device().Name())
	}
	if err := nn.LoadFile(sim, m, file); err != nil {
		t.Error(err)
	}
	nn.Close(m)
	if err := tenon.Try(func() { sim.Neg(m.Mask.Tensor()) }); err == nil {
		t.Error("the mask is open")
	}
}
