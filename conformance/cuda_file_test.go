package conformance

import (
	"path/filepath"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/torchfile"
)

// fileTests are the behaviours of files of tensors.
var fileTests = []cudaTest{
	{name: "CUDA-017_test_serialization_array_with_storage", run: testSaveShared},
	{name: "CUDA-029_test_specify_improper_device_name", run: testLoadNowhere},
	{name: "CUDA-031_test_serialization_array_with_empty", run: testSaveEmpty},
}

// saved writes a list to a file as torch.save does and opens the file until the test ends.
func saved(t *testing.T, x *tenon.Exec, vs ...any) (f *torchfile.File, list []*torchfile.Tensor) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "list.pt")
	must(t, torchfile.Save(x, name, vs))
	f, err := torchfile.Open(name)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	for _, v := range f.Root().([]any) {
		list = append(list, v.(*torchfile.Tensor))
	}
	return f, list
}

// testSaveShared saves a tensor twice, and one with a vector of its elements in place of its storage.
func testSaveShared(t *testing.T, x *tenon.Exec) {
	a, b := x.RandN([]int{5, 5}, tenon.Float32), x.Zeros([]int{2, 5}, tenon.Int32)
	was := []*tenon.Tensor{a, b, a, x.View(b, -1)}
	f, list := saved(t, x, was[0], was[1], was[2], was[3])
	is, err := f.LoadAll(x, list...)
	must(t, err)
	for i := range is {
		check(t, "type", is[i].DType(), was[i].DType())
		check(t, "shape", slices.Equal(is[i].Shape(), was[i].Shape()), true)
		check(t, "device", is[i].Device() == x.Device(), true)
		check(t, "elements", equal(t, x, is[i], was[i]), true)
	}
	x.CopyInto(is[0], x.Full([]int{5, 5}, 5, tenon.Float32))
	allAre(t, x, "the tensor that was there twice", is[2], 5)
	x.CopyInto(is[1], x.Full([]int{2, 5}, 10, tenon.Int32))
	allAre(t, x, "the elements", is[3], 10)
	check(t, "the saved tensor changes with the loaded one", equal(t, x, is[1], was[1]), false)
}

// testLoadNowhere loads without a valid device: onto nil and onto a closed one.
func testLoadNowhere(t *testing.T, x *tenon.Exec) {
	f, list := saved(t, x, x.RandN([]int{10, 10}, tenon.Float32))
	_, err := f.Load(nil, list[0])
	wantError(t, err, "nil")
	y, err := tenon.Open(tenon.Sim(0))
	must(t, err)
	must(t, y.Close())
	_, err = f.Load(y, list[0])
	wantError(t, err, "closed")
	_, err = f.LoadAll(nil, list...)
	wantError(t, err, "nil")
}

func testSaveEmpty(t *testing.T, x *tenon.Exec) {
	was := []*tenon.Tensor{x.RandN([]int{4, 4}, tenon.Float32), x.Empty([]int{0}, tenon.Float32)}
	f, list := saved(t, x, was[0], was[1])
	for _, load := range []func() ([]*tenon.Tensor, error){
		func() ([]*tenon.Tensor, error) { return f.LoadAll(x, list...) },
		func() ([]*tenon.Tensor, error) {
			a, err := f.Load(x, list[0])
			must(t, err)
			b, err := f.Load(x, list[1])
			return []*tenon.Tensor{a, b}, err
		},
	} {
		is, err := load()
		must(t, err)
		for i := range is {
			check(t, "type", is[i].DType(), was[i].DType())
			check(t, "shape", slices.Equal(is[i].Shape(), was[i].Shape()), true)
			check(t, "device", is[i].Device() == x.Device(), true)
			check(t, "elements", equal(t, x, is[i], was[i]), true)
		}
	}
}
