package rt

import (
	"strings"
	"testing"

	"tenon.dev/fault"
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

// openCounting opens a simulated device whose frees are counted.
func openCounting(t *testing.T) (*Device, *frees) {
	t.Helper()
	var f *frees
	d, err := Open(Selector{Kind: Sim, Wrap: func(dev driver.Device) driver.Device {
		f = &frees{Device: dev}
		return f
	}})
	ok(t, err)
	return d, f
}

// TestLeaksAreLeft: if a checker looks for leaks, closing a device frees the memory of tensors and nothing that was allocated by address,
// whether guards and poison are off, on, or were switched on late.
func TestLeaksAreLeft(t *testing.T) {
	t.Setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
	for _, c := range []struct {
		looks, guard, poison string
		late                 bool
		want                 int
	}{
		{"memcheck", "0", "0", false, 1},
		{"memcheck", "1", "1", false, 1},
		{"memcheck,leaks", "0", "0", false, 3},
		{"memcheck,leaks", "1", "0", false, 3},
		{"memcheck,leaks", "0", "1", false, 3},
		{"memcheck,leaks", "1", "1", false, 3},
		{"memcheck,leaks", "0", "0", true, 3},
	} {
		t.Setenv("TENON_CHECK_TOOLS", c.looks)
		t.Setenv("TENON_GUARD", c.guard)
		t.Setenv("TENON_POISON", c.poison)
		d, f := openCounting(t)
		var blocks []*alloc.Block
		for i := range 3 {
			b, err := d.Alloc(1000, alloc.Stream(d.streams[0].Load().handle))
			ok(t, err)
			blocks = append(blocks, b)
			if c.late && i == 1 {
				d.SetMemoryChecks(MemoryChecks{Poison: true, Guard: true})
			}
		}
		if _, err := d.Malloc(1000); err != nil {
			t.Fatal(err)
		}
		if _, err := d.RawAlloc(1000, d.DefaultStream()); err != nil {
			t.Fatal(err)
		}
		if err := d.Free(blocks[0]); err != nil || f.n != 1 {
			t.Errorf("%+v: %v after %d frees", c, err, f.n)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if f.n != c.want {
			t.Errorf("%+v: %d frees", c, f.n)
		}
		for _, b := range blocks[1:] {
			if err := d.Free(b); err != nil || f.n != c.want { // like a tensor that is closed after its device
				t.Errorf("%+v: %v, %d frees", c, err, f.n)
			}
		}
	}
}

// TestLeaksHaveGuards: closing a device checks the guard zones of the tensors that it frees, and reports what was written.
func TestLeaksHaveGuards(t *testing.T) {
	t.Setenv("TENON_CHECK_TOOLS", "memcheck,leaks")
	t.Setenv("TENON_GUARD", "1")
	d, _ := openCounting(t)
	s := d.DefaultStream().handle
	b, err := d.Alloc(1000, alloc.Stream(s))
	ok(t, err)
	ok(t, d.Driver().Memset(driver.Ptr(b.Addr()), 1, 1, 1003, s))
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "3 bytes changed, the first of which is byte 1 past the end") {
		t.Errorf("closing: %v", err)
	}
}

// A pool that is restored when its device has just been closed is gone with it.
func TestRestorePoolAfterClose(t *testing.T) {
	d, _ := openCounting(t)
	p, err := d.NewMemPool(nil)
	ok(t, err)
	b, err := p.Alloc(1000, alloc.Stream(d.DefaultStream().handle))
	ok(t, err)
	c, err := d.CheckpointPool(p.ID())
	ok(t, err)
	ok(t, d.Free(b))
	ok(t, d.Close())
	if _, err := d.RestorePool(c, nil); fault.KindOf(err) != fault.Closed {
		t.Errorf("restoring a pool of a closed device: %v", err)
	}
}

// TestLeaksRestored: if a checker looks for leaks, blocks that restoring a pool freed are not freed again at the end, and blocks that it
// made are.
func TestLeaksRestored(t *testing.T) {
	t.Setenv("TENON_CHECK_TOOLS", "leaks,cached")
	t.Setenv("TENON_GUARD", "1")
	d, f := openCounting(t)
	p, err := d.NewMemPool(nil)
	ok(t, err)
	on := alloc.Stream(d.DefaultStream().handle)
	a, err := p.Alloc(1000, on)
	ok(t, err)
	c, err := d.CheckpointPool(p.ID())
	ok(t, err)
	b, err := p.Alloc(3<<20, on)
	ok(t, err)
	made, err := d.RestorePool(c, []*alloc.Block{a, b})
	ok(t, err)
	if len(made) != 1 {
		t.Fatalf("made %v", made)
	}
	for _, m := range made {
		d.Own(m)
	}
	if err := d.Close(); err != nil || f.n != 2 {
		t.Errorf("%v, %d frees", err, f.n)
	}
}

// TestLeft: a watched device says what is left on it, of tensors and of memory that was taken by address, with caching on and off and with
// guards that are switched on late; garbage is not left.
func TestLeft(t *testing.T) {
	d, _ := openCounting(t)
	d.WatchLeaks()
	d.WatchLeaks()
	on := d.DefaultStream()
	left := func(want uint64) {
		t.Helper()
		if n, _, _, err := d.Left(); err != nil || n != want {
			t.Errorf("%d bytes are left, %v; want %d", n, err, want)
		}
	}
	left(0)
	a, err := d.Alloc(1000, alloc.Stream(on.handle))
	ok(t, err)
	left(1024)
	d.SetMemoryChecks(MemoryChecks{Guard: true})
	b, err := d.Alloc(1000, alloc.Stream(on.handle))
	ok(t, err)
	left(1024 + 1536)
	d.SetMemoryChecks(MemoryChecks{})
	d.mem.SetCaching(false)
	c, err := d.Alloc(1000, alloc.Stream(on.handle))
	ok(t, err)
	raw, err := d.RawAlloc(100, on)
	ok(t, err)
	left(1024 + 1536 + 1000 + 100)
	ok(t, d.Free(a))
	ok(t, d.Free(c))
	ok(t, d.RawFree(raw))
	left(1536)
	d.Loose().Put(b)
	left(0)
	ok(t, d.MemoryDefects())
	ok(t, d.Close())
}
