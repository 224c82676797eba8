package rt

import (
	"os"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
)

// openGPU opens the first GPU with the settings, or skips the test.
func openGPU(t *testing.T, conf string) *Device {
	t.Helper()
	if GPUs() == 0 {
		t.Skip("needs an NVIDIA GPU")
	}
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
	d, err := Open(Selector{Kind: CUDA})
	ok(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	d.Loose().SetCollection(false)
	return d
}

// fills writes v to the whole block and reads it back.
func fills(t *testing.T, d *Device, b *alloc.Block, v byte) {
	t.Helper()
	st := d.DefaultStream()
	n := b.Requested()
	ok(t, d.Driver().Memset(driver.Ptr(b.Addr()), uint32(v), 1, n, st.handle))
	got := make([]byte, n)
	ok(t, d.Driver().CopyDtoH(got, driver.Ptr(b.Addr()), st.handle))
	ok(t, st.Synchronize())
	for i, x := range got {
		if x != v {
			t.Fatalf("byte %d of %d is %d, want %d", i, n, x, v)
		}
	}
}

func TestExpandableSegmentsGPU(t *testing.T) {
	d := openGPU(t, "expandable_segments:True")
	on := alloc.Stream(d.DefaultStream().handle)
	before, _, err := d.MemInfo()
	ok(t, err)
	var blocks []*alloc.Block
	for i := range 6 {
		b, err := d.Alloc(15<<20, on)
		ok(t, err)
		fills(t, d, b, byte(i+1))
		blocks = append(blocks, b)
	}
	if s := d.Memory().Segments(); len(s) != 1 || !s[0].Expandable || s[0].TotalSize != 100<<20 {
		t.Errorf("segments %+v", s)
	}
	for _, b := range blocks[2:] {
		ok(t, d.Free(b))
	}
	ok(t, d.EmptyCache())
	if s := d.Memory().Segments(); len(s) != 1 || s[0].TotalSize != 40<<20 {
		t.Errorf("segments %+v", s)
	}
	fills(t, d, blocks[1], 9)
	big, err := d.Alloc(200<<20, on)
	ok(t, err)
	fills(t, d, big, 10)
	for _, b := range append(blocks[:2], big) {
		ok(t, d.Free(b))
	}
	ok(t, d.EmptyCache())
	if after, _, err := d.MemInfo(); err != nil || before-min(after, before) > 8<<20 {
		t.Errorf("%d bytes free before, %d after, %v", before, after, err)
	}
}

func TestAsyncBackendGPU(t *testing.T) {
	d := openGPU(t, "backend:cudaMallocAsync")
	main, err := d.Stream()
	ok(t, err)
	side, err := d.Stream()
	ok(t, err)
	on := alloc.Stream(main.handle)
	for range 20 {
		b, err := d.Alloc(160<<20, on)
		ok(t, err)
		ok(t, d.Driver().Memset(driver.Ptr(b.Addr()), 1, 1, 160<<20, main.handle))
		ok(t, side.WaitAll(main))
		ok(t, d.Driver().Memset(driver.Ptr(b.Addr()), 2, 1, 160<<20, side.handle))
		ok(t, d.Memory().RecordStream(b, alloc.Stream(side.handle)))
		ok(t, d.Free(b))
	}
	ok(t, d.Synchronize())
	if s := d.Memory().Stats(); s.AllocatedBytes.All().Current != 0 || s.AllocatedBytes.All().Peak != 160<<20 ||
		s.ReservedBytes.All().Peak < 160<<20 {
		t.Errorf("statistics\n%s", s.String())
	}
	c, err := d.BeginCapture(main, CaptureSpec{})
	ok(t, err)
	temp, err := d.Alloc(1<<20, on)
	ok(t, err)
	out, err := d.Alloc(1<<20, on)
	ok(t, err)
	ok(t, d.Driver().Memset(driver.Ptr(temp.Addr()), 7, 1, 1<<20, main.handle))
	ok(t, d.Driver().CopyDtoD(driver.Ptr(out.Addr()), driver.Ptr(temp.Addr()), 1<<20, main.handle))
	ok(t, d.Free(temp))
	g, err := c.End()
	ok(t, err)
	got := make([]byte, 1<<20)
	for range 3 {
		launch(t, g, main)
		ok(t, d.Driver().CopyDtoH(got, driver.Ptr(out.Addr()), main.handle))
		ok(t, main.Synchronize())
		if got[0] != 7 || got[1<<20-1] != 7 {
			t.Errorf("the graph wrote %d", got[0])
		}
	}
	ok(t, d.Free(out))
	ok(t, g.Close())
	ok(t, d.EmptyCache())
	_, err = d.Alloc(1<<40, on)
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "Requested               : 1024.00 GiB") {
		t.Errorf("out of memory: %v", err)
	}
	ok(t, d.EmptyCache())
	if s := d.Memory().Stats(); s.ReservedBytes.All().Current != 0 {
		t.Errorf("%d bytes stay reserved", s.ReservedBytes.All().Current)
	}
}

func TestRegisteredPinnedGPU(t *testing.T) {
	d := openGPU(t, "pinned_use_cuda_host_register:True,pinned_num_register_threads:8")
	st := d.DefaultStream()
	b, err := d.Alloc(64<<20, alloc.Stream(st.handle))
	ok(t, err)
	p, err := d.AllocPinned(64 << 20)
	ok(t, err)
	for i := range p.Bytes() {
		p.Bytes()[i] = byte(i)
	}
	ok(t, d.Driver().CopyHtoD(driver.Ptr(b.Addr()), p.Bytes(), st.handle))
	ok(t, p.Record(st))
	clear := make([]byte, 64<<20)
	ok(t, d.Driver().CopyDtoH(clear, driver.Ptr(b.Addr()), st.handle))
	ok(t, st.Synchronize())
	for i := range clear {
		if clear[i] != byte(i) {
			t.Fatalf("byte %d is %d", i, clear[i])
		}
	}
	ok(t, p.Release())
	ok(t, d.EmptyHostCache())
	if s := d.PinnedStats(); s.Allocations.Current != 0 || s.HostAllocs != 1 || s.HostFrees != 1 {
		t.Errorf("%+v", s)
	}
	ok(t, d.Free(b))
}

func TestOutOfMemoryGPU(t *testing.T) {
	d := openGPU(t, "")
	_, err := d.Alloc(1<<50, alloc.Stream(d.DefaultStream().handle))
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(),
		"Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of ") {
		t.Errorf("out of memory: %v", err)
	}
	users, usersErr := d.Processes()
	t.Logf("process %d: %v; processes %+v, %v", os.Getpid(), err, users, usersErr)
}
