package rt

import (
	"testing"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// frees counts the frees of a device.
type frees struct {
	driver.Device
	n int
}

func (f *frees) MemFree(t driver.Thread, p driver.Ptr) error {
	f.n++
	return f.Device.MemFree(t, p)
}

// TestLeaksAreLeft: where a checker looks for leaks, closing a device frees what tensors hold and nothing that was allocated by address.
func TestLeaksAreLeft(t *testing.T) {
	t.Setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
	for _, looks := range []string{"memcheck", "memcheck,leaks"} {
		t.Setenv("TENON_CHECK_TOOLS", looks)
		var f *frees
		d, err := Open(Selector{Kind: Sim, Wrap: func(dev driver.Device) driver.Device {
			f = &frees{Device: dev}
			return f
		}})
		if err != nil {
			t.Fatal(err)
		}
		var blocks []*alloc.Block
		for range 3 {
			b, err := d.Alloc(1000, alloc.Stream(d.streams[0].Load().handle))
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, b)
		}
		if _, err := d.Malloc(1000); err != nil {
			t.Fatal(err)
		}
		if err := d.Free(blocks[0]); err != nil || f.n != 1 {
			t.Errorf("%v after %d frees", err, f.n)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		want := 1
		if d.tensors.on {
			want = 3
		}
		if f.n != want || d.tensors.on != (looks != "memcheck") {
			t.Errorf("%s: %d frees, want %d", looks, f.n, want)
		}
		if err := d.Free(blocks[1]); err != nil { // as a tensor's that is closed after its device
			t.Error(err)
		}
	}
}
