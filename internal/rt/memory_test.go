package rt

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/record"
)

// openConf opens a simulated device of 1 GiB with the settings, behind a recorder of its calls.
func openConf(t *testing.T, conf string) (*Device, *record.Device) {
	t.Helper()
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
	var rec *record.Device
	d, err := Open(Selector{Kind: Sim, Memory: 1 << 30, Wrap: func(dd driver.Device) driver.Device {
		rec = record.New(dd)
		return rec
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	d.Loose().SetCollection(false)
	return d, rec
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestExpandableSegments(t *testing.T) {
	d, rec := openConf(t, "expandable_segments:True")
	if !d.Info().VirtualMemory {
		t.Skip("the simulator has no virtual memory on this system")
	}
	st := d.DefaultStream().handle
	on := alloc.Stream(st)
	a, err := d.Alloc(15<<20, on)
	ok(t, err)
	b, err := d.Alloc(30<<20, on)
	ok(t, err)
	if b.Addr() != a.Addr()+15<<20 {
		t.Errorf("blocks at %#x and %#x do not lie in one segment", a.Addr(), b.Addr())
	}
	if rec.Count("MemAlloc") != 0 || rec.Count("MemReserve") != 1 || rec.Count("MemMap") != 3 {
		t.Errorf("calls:\n%s", rec.Text())
	}
	ok(t, d.Driver().Memset(driver.Ptr(a.Addr()), 1, 1, 45<<20, st)) // across pages and blocks
	ok(t, d.Free(b))
	ok(t, d.EmptyCache())
	if rec.Count("MemUnmap") != 2 {
		t.Errorf("calls:\n%s", rec.Text())
	}
	ok(t, d.UpdateSettings("expandable_segments:False"))
	c, err := d.Alloc(30<<20, on)
	ok(t, err)
	if rec.Count("MemAlloc") != 1 {
		t.Errorf("calls:\n%s", rec.Text())
	}
	ok(t, d.Free(a))
	ok(t, d.Free(c))
	ok(t, d.EmptyCache())
	if free, total, err := d.MemInfo(); free != total || err != nil || rec.Count("MemUnreserve") != 1 {
		t.Errorf("%d of %d bytes free, %v", free, total, err)
	}
}

func TestAsyncBackend(t *testing.T) {
	d, rec := openConf(t, "backend:cudaMallocAsync")
	side, err := d.Stream()
	ok(t, err)
	sim := rec.Device.(*hostsim.Device)
	on := alloc.Stream(d.DefaultStream().handle)
	a, err := d.Alloc(1<<20, on)
	ok(t, err)
	if s := d.Memory().Stats(); s.AllocatedBytes.All().Current != 1<<20 || s.ReservedBytes.All().Current != 32<<20 ||
		s.Active.All().Current != 0 {
		t.Errorf("statistics\n%s", s.String())
	}
	release := sim.Hold(side.handle)
	defer release()
	ok(t, d.Memory().RecordStream(a, alloc.Stream(side.handle)))
	ok(t, d.Memory().RecordStream(a, alloc.Stream(side.handle)))
	addr := a.Addr()
	ok(t, d.Free(a))
	b, err := d.Alloc(1<<20, on)
	ok(t, err)
	if b.Addr() == addr {
		t.Error("memory that another stream still uses was handed out")
	}
	release()
	ok(t, d.Synchronize())
	c, err := d.Alloc(1<<20, on)
	ok(t, err)
	if c.Addr() != addr {
		t.Error("memory that no stream uses any more was not handed out")
	}
	ok(t, d.Free(b))
	ok(t, d.Free(c))
	if err := d.Free(c); err == nil || !strings.Contains(err.Error(), "invalid device pointer") {
		t.Errorf("freed twice: %v", err)
	}
	ok(t, d.EmptyCache())
	if free, total, err := d.MemInfo(); free != total || err != nil {
		t.Errorf("%d of %d bytes free, %v", free, total, err)
	}
	d.Memory().ResetPeakStats()
	if s := d.Memory().Stats(); s.AllocatedBytes.All().Peak != 0 || s.ReservedBytes.All().Peak != 0 {
		t.Errorf("statistics\n%s", s.String())
	}
	raw, err := d.RawAlloc(100, d.DefaultStream())
	ok(t, err)
	ok(t, d.RawFree(raw))
	_, err = d.Memory().PoolLive(alloc.PoolID{0, 1}, nil)
	if fault.KindOf(err) != fault.Unsupported {
		t.Errorf("PoolLive: %v", err)
	}
	if _, err = d.Memory().Checkpoint(alloc.PoolID{0, 1}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("Checkpoint: %v", err)
	}
}

func TestAsyncOutOfMemory(t *testing.T) {
	d, _ := openConf(t, "backend:cudaMallocAsync")
	on := alloc.Stream(d.DefaultStream().handle)
	a, err := d.Alloc(600<<20, on)
	ok(t, err)
	_, err = d.Alloc(600<<20, on)
	want := "Allocation on device 0 would exceed allowed memory. (out of memory)\n" +
		"Currently allocated     : 600.00 MiB\n" +
		"Requested               : 600.00 MiB\n" +
		"Device limit            : 1024.00 MiB\n" +
		"Free (according to CUDA): 424.00 MiB\n" +
		"Limit of this process   : 1024.00 MiB\n" +
		"close tensors that are done with, or make the batch smaller"
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), want) {
		t.Errorf("out of memory: %v\nwant %s", err, want)
	}
	ok(t, d.Free(a))
	if a, err = d.Alloc(600<<20, on); err != nil {
		t.Fatalf("after the free: %v", err)
	}
	ok(t, d.Free(a))
	ok(t, d.Memory().SetMemoryFraction(0.25))
	_, err = d.Alloc(257<<20, on)
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "Limit of this process   : 256.00 MiB") {
		t.Errorf("over the fraction: %v", err)
	}
	if a, err = d.Alloc(256<<20, on); err != nil {
		t.Fatalf("within the fraction: %v", err)
	}
	ok(t, d.Free(a))
}

// TestAsyncCapture allocates and frees in a capture: the graph does so at every launch. Memory that was allocated before is freed after the
// capture.
func TestAsyncCapture(t *testing.T) {
	d, rec := openConf(t, "backend:cudaMallocAsync")
	st, err := d.Stream()
	ok(t, err)
	before, err := d.Alloc(4096, alloc.Stream(st.handle))
	ok(t, err)
	c, err := d.BeginCapture(st, CaptureSpec{})
	ok(t, err)
	temp, err := d.Alloc(4096, alloc.Stream(st.handle))
	ok(t, err)
	out, err := d.Alloc(4096, alloc.Stream(st.handle))
	ok(t, err)
	ok(t, d.Driver().Memset(driver.Ptr(temp.Addr()), 3, 1, 4096, st.handle))
	ok(t, d.Driver().CopyDtoD(driver.Ptr(out.Addr()), driver.Ptr(temp.Addr()), 4096, st.handle))
	ok(t, d.Free(temp))
	ok(t, d.Free(before))
	if rec.Count("MemFreeAsync") != 1 {
		t.Errorf("calls:\n%s", rec.Text())
	}
	g, err := c.End()
	ok(t, err)
	if g.Nodes() != 5 {
		t.Errorf("%d nodes, want 5", g.Nodes())
	}
	got := make([]byte, 4096)
	for range 2 {
		launch(t, g, st)
		ok(t, d.Driver().CopyDtoH(got, driver.Ptr(out.Addr()), st.handle))
		ok(t, st.Synchronize())
		if got[0] != 3 || got[4095] != 3 {
			t.Errorf("read %d, %d", got[0], got[4095])
		}
	}
	ok(t, d.Free(out))
	ok(t, g.Close())
	again, err := d.Alloc(4096, alloc.Stream(st.handle))
	ok(t, err)
	if rec.Count("MemFreeAsync") != 3 {
		t.Errorf("what was held back in the capture was not freed:\n%s", rec.Text())
	}
	ok(t, d.Free(again))
}

func TestBackendErrors(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
	_, err := Open(Selector{Kind: Sim, Wrap: func(d driver.Device) driver.Device { return poolless{d, d.Info()} }})
	if fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "has no memory pool; take backend:cudaMallocAsync out "+
		"of PYTORCH_CUDA_ALLOC_CONF") {
		t.Errorf("a device without pools: %v", err)
	}
}

// poolless is a device without memory pools.
type poolless struct {
	driver.Device
	info *driver.Info
}

func (p poolless) Info() *driver.Info {
	i := *p.info
	i.PoolMemory = false
	return &i
}

// walkMemory walks a program on a new device with the settings: whichever call fails, the error names it and nothing leaks.
func walkMemory(t *testing.T, conf string, program func(d *Device, side *Stream) error, opts ...faults.Option) {
	t.Helper()
	s, err := alloc.ParseSettings(conf)
	ok(t, err)
	base, err := hostsim.New(hostsim.Options{Capacity: 1 << 30}).Open(0)
	ok(t, err)
	defer base.Close()
	th := base.Enter()
	defer th.Leave()
	h, err := base.StreamCreate(th, true, 0)
	ok(t, err)
	faults.Walk(t, base, func(dd driver.Device) (err error) {
		d := &Device{dev: dd, info: dd.Info()}
		var b alloc.Backend = &virtualBackend{backend{d}}
		if s.Backend == alloc.BackendAsync {
			b = &orderedBackend{backend{d}}
		}
		d.useMemory(alloc.New(b, alloc.Options{Settings: &s}))
		defer func() {
			base.Synchronize(th)
			d.mem.EmptyCache()
			d.mem.EmptyCache() // the first one may have met the failure
			for _, e := range d.events {
				dd.EventDestroy(th, e)
			}
			if d.freeStream != 0 {
				dd.StreamDestroy(th, d.freeStream)
			}
		}()
		return program(d, &Stream{dev: d, handle: h})
	}, append(opts, faults.WithoutFaults())...)
}

// shared allocates, uses and frees memory of two streams.
func shared(d *Device, side *Stream) error {
	var blocks []*alloc.Block
	for _, n := range []uint64{100, 3 << 20, 30 << 20} {
		b, err := d.mem.Alloc(n, 0)
		if err != nil {
			for _, b := range blocks {
				err = errors.Join(err, d.mem.Free(b))
			}
			return err
		}
		blocks = append(blocks, b)
	}
	var err error
	for _, b := range blocks {
		err = errors.Join(err, d.mem.RecordStream(b, alloc.Stream(side.handle)), d.mem.Free(b))
	}
	if err != nil {
		return err
	}
	b, err := d.mem.Alloc(5<<20, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.mem.Free(b), d.mem.EmptyCache())
}

func TestExpandableFailures(t *testing.T) {
	walkMemory(t, "expandable_segments:True", shared, faults.Recovered("MemMap", "MemReserve"))
}

func TestAsyncFailures(t *testing.T) {
	walkMemory(t, "backend:cudaMallocAsync", shared, faults.Recovered("MemAllocAsync"))
}

// TestRegisteredPinned page-locks ordinary memory, with threads, from several goroutines at once.
func TestRegisteredPinned(t *testing.T) {
	d, rec := openConf(t, "pinned_use_cuda_host_register:True,pinned_num_register_threads:8")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, n := range []int{100, 1 << 20, 9 << 20} {
				p, err := d.AllocPinned(n)
				if err != nil {
					t.Error(err)
					return
				}
				p.Bytes()[0], p.Bytes()[n-1] = 1, 2
				if err := p.Free(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if rec.Count("HostAlloc") != 0 || rec.Count("HostRegister") < 3 {
		t.Errorf("calls:\n%s", rec.Text())
	}
	ok(t, d.EmptyHostCache())
	if s := d.PinnedStats(); rec.Count("HostUnregister") != rec.Count("HostRegister") || s.Allocations.Current != 0 ||
		s.HostFreeTime.Count != s.HostFrees {
		t.Errorf("%+v, calls:\n%s", s, rec.Text())
	}
	ok(t, d.UpdateSettings("pinned_use_cuda_host_register:False"))
	p, err := d.AllocPinned(100)
	ok(t, err)
	ok(t, p.Free())
	if rec.Count("HostAlloc") != 1 {
		t.Errorf("calls:\n%s", rec.Text())
	}
}

func TestRegisteredPinnedFailures(t *testing.T) {
	base, err := hostsim.New(hostsim.Options{}).Open(0)
	ok(t, err)
	defer base.Close()
	faults.Walk(t, base, func(dd driver.Device) error {
		d := &Device{dev: dd, info: dd.Info()}
		h := d.pinned.host(d)
		h.SetRegister(true, 2)
		defer h.EmptyCache()
		p, err := d.AllocPinned(100_000)
		if err != nil {
			return err
		}
		return errors.Join(p.Free(), h.EmptyCache())
	}, faults.WithoutFaults(), faults.Recovered("HostRegister"))
}

// elsewhere is a device that sees registered memory at another address.
type elsewhere struct{ driver.Device }

func (elsewhere) HostRegister(driver.Thread, []byte) error {
	return &driver.Error{Call: "HostRegister", Code: driver.NotSupported}
}

func TestRegisteredElsewhere(t *testing.T) {
	t.Setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_use_cuda_host_register:True")
	d := openSim(t, func(d driver.Device) driver.Device { return elsewhere{d} })
	_, err := d.AllocPinned(100)
	if err == nil || !strings.HasPrefix(err.Error(), "the host and the device would see registered memory at different addresses; call "+
		"SetAllocatorSettings") {
		t.Errorf("error %v", err)
	}
}

// TestGuardFailures walks allocations with guard zones and poison.
func TestGuardFailures(t *testing.T) {
	base, err := hostsim.New(hostsim.Options{Capacity: 1 << 30}).Open(0)
	ok(t, err)
	defer base.Close()
	th := base.Enter()
	defer th.Leave()
	h, err := base.StreamCreate(th, true, 0)
	ok(t, err)
	faults.Walk(t, base, func(dd driver.Device) error {
		d := &Device{dev: dd, info: dd.Info()}
		d.useMemory(alloc.New(&backend{d}, alloc.Options{}))
		d.SetMemoryChecks(MemoryChecks{Poison: true, Guard: true})
		defer func() {
			base.Synchronize(th)
			d.mem.EmptyCache()
		}()
		b, err := d.Alloc(100, alloc.Stream(h))
		if err != nil {
			return err
		}
		err = errors.Join(d.guards.Load().Free(b), d.MemoryDefects())
		return errors.Join(err, d.mem.EmptyCache())
	}, faults.WithoutFaults(), faults.Recovered("MemAlloc"))
}

// A setting that does not parse is an error for every kind of device, even the processor, whether the device reads it or not.
func TestOpenSetting(t *testing.T) {
	t.Setenv("TENON_POISON", "maybe")
	for _, sel := range []Selector{{Kind: Best}, {Kind: CUDA}, {Kind: Sim}, {Kind: CPU}} {
		d, err := Open(sel)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), `TENON_POISON is "maybe"; set it to 1 or 0, or unset it`) {
			t.Errorf("kind %d: %v", sel.Kind, err)
		}
		if err == nil {
			ok(t, d.Close())
		}
	}
}

// TestMemPoolFailures walks the life of a private pool with a Source that allocates from the driver.
func TestMemPoolFailures(t *testing.T) {
	walkMemory(t, "", func(d *Device, side *Stream) error {
		p, err := d.NewMemPool(driverSource{d})
		if err != nil {
			return err
		}
		b, err := p.Alloc(100, alloc.Stream(side.Handle()))
		if err != nil {
			return errors.Join(err, p.Close())
		}
		c, err := d.CheckpointPool(p.ID())
		if err == nil {
			var made map[uint64]*alloc.Block
			if made, err = d.RestorePool(c, []*alloc.Block{b}); err == nil {
				b = made[c.Live()[0]]
			}
		}
		return errors.Join(err, d.mem.Free(b), p.Close())
	}, faults.Recovered("MemAlloc"))
}

// driverSource takes a pool's memory from the driver.
type driverSource struct{ d *Device }

func (s driverSource) Alloc(size uint64, _ *Stream) (uint64, error) { return s.d.Malloc(size) }
func (s driverSource) Free(addr, size uint64, _ *Stream) error      { return s.d.FreeMalloc(addr) }

// An out-of-memory error of the processor is about the host, not about a GPU.
func TestHostOutOfMemory(t *testing.T) {
	d, err := Open(Selector{Kind: CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.Alloc(1<<46, 0)
	if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "the host has no room for 65536.00 GiB; tensors hold 0 "+
		"bytes, and 0 bytes is cached for more: make the work smaller") {
		t.Errorf("got %v", err)
	}
}
