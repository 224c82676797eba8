package nn_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/safetensors"
)

// normed is a module with parameters and buffers of several types.
func normed(x *tenon.Exec, seed uint64, width int) nn.Sequential {
	g := nn.NewHostGenerator(seed)
	return nn.Sequential{nn.NewLinear(x, 4, width, nn.LinearOpt{Generator: g}), nn.NewBatchNorm1d(x, width)}
}

// bytesOf returns the elements of all tensors of m's state.
func bytesOf(t *testing.T, x *tenon.Exec, m any) map[string]string {
	t.Helper()
	out := map[string]string{}
	for key, v := range nn.StateDict(m) {
		b, err := x.Bytes(v)
		if err != nil {
			t.Fatal(err)
		}
		out[key] = string(b)
	}
	return out
}

// After loading, a module holds exactly what the other one saved, on any device.
func TestFiles(t *testing.T) {
	for _, sel := range []tenon.Selector{tenon.CPU(), tenon.Sim(64 << 20)} {
		x, err := tenon.Open(sel)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		a, b := normed(x, 0, 8), normed(x, 1, 8)
		defer nn.Close(a)
		defer nn.Close(b)
		x.Scope(func(x *tenon.Exec) { a.Forward(x, x.RandN([]int{5, 4}, tenon.Float32)) }) // moves the running statistics
		path := filepath.Join(t.TempDir(), "m.safetensors")
		if err := nn.SaveFile(x, a, path); err != nil {
			t.Fatal(err)
		}
		if err := nn.LoadFile(x, b, path); err != nil {
			t.Fatal(err)
		}
		want := bytesOf(t, x, a)
		for key, got := range bytesOf(t, x, b) {
			if got != want[key] || len(want) != 7 {
				t.Errorf("%s: %x was loaded where %x was saved", key, got, want[key])
			}
		}
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, i := range f.Infos() {
			keys = append(keys, i.String())
		}
		slices.Sort(keys)
		if want := "0.bias float32[8],0.weight float32[8 4],1.bias float32[8],1.num_batches_tracked int64[],1.running_mean " +
			"float32[8],1.running_var float32[8],1.weight float32[8]"; strings.Join(keys, ",") != want {
			t.Errorf("the file holds %v", keys)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestFileErrors(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	a, wide, other := normed(x, 0, 8), normed(x, 0, 9), normed(x, 1, 8)
	defer nn.Close(nn.Sequential{a, wide, other})
	folder := t.TempDir()
	path, torn := filepath.Join(folder, "m.safetensors"), filepath.Join(folder, "torn.safetensors")
	if err := nn.SaveFile(x, a, path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(torn, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := bytesOf(t, x, wide)
	if err := nn.LoadFile(x, wide, path); err == nil || !strings.Contains(err.Error(), "cannot load "+path+
		": Error(s) in loading state_dict: size mismatch for 0.bias") {
		t.Errorf("another shape: %v", err)
	}
	if after := bytesOf(t, x, wide); after["0.weight"] != before["0.weight"] {
		t.Error("a failed load changed a parameter")
	}
	if err := nn.LoadFile(x, a, filepath.Join(folder, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := nn.LoadFile(x, a, torn); err == nil || !strings.HasPrefix(err.Error(), "LoadFile: cannot read "+torn+": ") ||
		!strings.Contains(err.Error(), "file_test.go:") {
		t.Errorf("a torn file: %v", err)
	}
	if err := nn.LoadFile(x, nn.Sequential{a[0]}, path, nn.LoadOpt{Partial: true}); err != nil {
		t.Errorf("a part: %v", err)
	}
	if err := nn.SaveFile(x, a, filepath.Join(folder, "absent", "m")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := nn.SaveFile(x, struct{ linear nn.Module }{a}, path); err == nil ||
		!strings.Contains(err.Error(), "field linear of struct { linear nn.Module } holds a module or parameter, but is not exported") {
		t.Errorf("a module whose fields are not exported: %v", err)
	}
	if err := nn.SaveFile(x, struct{ A nn.ReLU }{}, path); err == nil ||
		!strings.Contains(err.Error(), "struct { A nn.ReLU } has no parameters or buffers to save") {
		t.Errorf("a module without parameters: %v", err)
	}
	a[0].(*nn.Linear).Bias.Tensor().Close()
	if err := nn.SaveFile(x, a, path); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a closed parameter: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*partial*")); len(left) > 0 || err != nil {
		t.Errorf("a failed save left %v, %v", left, err)
	}
	if err := nn.LoadFile(x, other, path); err != nil {
		t.Errorf("after a failed save the older file is not what it was: %v", err)
	}
}
