// Package rt is one opened device as the tensor line sees it: its allocator, streams, kernel cache and limits.
// It alone imports both drivers. It must not depend on tensors.
package rt

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/disk"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/knob"
)

// Device is one opened device. Its methods are safe for concurrent use.
type Device struct {
	dev    driver.Device
	of     driver.Driver // the driver that opened it
	info   *driver.Info
	mem    *alloc.Device // all of the device's memory: settings, pools, statistics, and memory taken by address
	limits kernels.Limits
	// Host is true for this machine's processor, whose tensors act as scalars beside any device's.
	Host bool
	// lasting is true for the processor's device that Host returns, which Close leaves open.
	lasting bool

	loose Loose
	lent  lent
	// deferred is work that has yet to be issued.
	deferred deferredWork
	pinned   pinnedMemory
	index32  atomic.Int64

	// library is another device of the same driver, which is never closed and builds the kernels of this one, or nil.
	library *Device
	// funcs are the loaded kernels, and buildings those under way.
	funcsMu   sync.RWMutex
	funcs     map[kernels.Spec]Func
	buildings map[kernels.Spec]*building
	kin       map[kernels.Spec][]kernels.Spec // what chosen chose first, by kin
	mostOfKin int
	ahead     atomic.Int32   // how it builds ahead
	builders  sync.WaitGroup // of BuildAhead
	// blocks is the allocator that tensors use: mem, or a decorator around it. guards is one of the decorators once memory checks have been
	// on, leaks if a checker looks for leaks.
	blocks   atomic.Pointer[alloc.Allocator]
	guards   atomic.Pointer[alloc.Guards]
	leaks    *alloc.Leaks
	checksMu sync.Mutex
	// generator is the default generator.
	generator Generator
	// dump writes a snapshot when an allocation fails.
	dump  dump
	users sync.Map // *kernel.Kernel to Func
	// kept is the folder with the images of built-in kernels from earlier runs; nil if none are kept.
	kept  *disk.Folder
	stats struct {
		built, ahead, waited atomic.Int64 // waited in nanoseconds
		unlearned            atomic.Pointer[error]
	}

	// streams are in the order of their numbers; the first is the default one. They are made under mu and read without it.
	streams [MaxStreams]atomic.Pointer[Stream]
	// lost is the fault that lost the device, or the error that it was closed; told is true once a call has returned it.
	lost atomic.Pointer[fault.Error]
	told atomic.Bool
	// spoils are the operations that come after failed assertions, by stream, each list in order; nil if none ever failed. Only devices
	// that recover have any.
	spoils   atomic.Pointer[[MaxStreams][]spoilt]
	failures failures
	// traces see the device's actions; nil if there are none. traceMu is held to change them.
	traces  atomic.Pointer[[]*Trace]
	traceMu sync.Mutex
	// profiler sees the device's operations; nil if none does.
	profiler atomic.Pointer[Profiler]
	// kernels has the names of the loaded kernels, by driver.Func.
	kernels sync.Map
	// lines makes the launch ring keep the program's line of each operation.
	lines bool

	// gate counts the driver calls under way; closing is true once Close refuses new work. Close holds closeMu.
	gate    gate
	closing atomic.Bool
	closeMu sync.Mutex
	closed  bool

	openGraphs openGraphs // for the report of leaks

	modulesMu sync.Mutex
	modules   []driver.Module

	mu sync.Mutex
	// graphPools are the private pools that graphs hold.
	graphPools map[alloc.PoolID]*graphPool
	made       int       // default and users' streams
	capturing  int       // streams made for captures
	idle       []*Stream // those that no capture uses
	next       int

	freeStream driver.Stream // of the driver's memory pool, for memory that several streams used; under the allocator's lock

	// quiet is read-locked while the driver waits for a stream or the device, and locked while a capture begins, since none may begin
	// during such a wait.
	quiet      sync.RWMutex
	capturesMu sync.Mutex
	captures   []*Capture // under way

	poolMu sync.Mutex
	pools  []*MemPool // those that the program has not closed

	// eventMu is taken by the allocator, and so with mu held.
	eventMu sync.Mutex
	events  []driver.Event
	timing  []driver.Event
}

// MaxStreams is the most streams that a device has, so that a set of them fits in one word: the default stream, those that users share
// round-robin, as many as PyTorch's pool has, and those of captures under way.
const (
	MaxStreams     = 64
	userStreams    = 32
	firstCapture   = 1 + userStreams
	capturesAtOnce = MaxStreams - firstCapture
)

func newDevice(dev driver.Device, host bool) (*Device, error) {
	info := dev.Info()
	d := &Device{dev: dev, info: info, Host: host, lines: knob.LaunchLines.Get(), gate: newGate()}
	d.gate.of = d
	d.limits = kernels.Limits{
		Multiprocessors: info.Multiprocessors, MaxThreadsPerSM: info.MaxThreadsPerSM, MaxThreadsPerBlock: info.MaxThreadsPerBlock,
		SharedPerBlock: info.SharedPerBlockOptin, Major: info.Major, Minor: info.Minor,
	}
	d.kept = keptImages()
	d.graphPools = map[alloc.PoolID]*graphPool{}
	d.index32.Store(1<<31 - 1)
	d.generator.dev, d.generator.seed = d, DefaultSeed
	d.funcs = map[kernels.Spec]Func{}
	d.buildings = map[kernels.Spec]*building{}
	d.kin, d.mostOfKin = map[kernels.Spec][]kernels.Spec{}, kernelsOfKin
	if err := d.newMemory(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	d.made = 1
	if _, err := d.newStream(0); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return d, nil
}

// Usable returns why the device cannot be used, or nil.
func (d *Device) Usable() error {
	if d == nil || d.dev == nil {
		return fault.New(fault.Invalid, "the device is nil or a zero value; use one that an Exec's Device returned")
	}
	return nil
}

// Driver returns the driver's device.
func (d *Device) Driver() driver.Device { return d.dev }

// Info describes the device.
func (d *Device) Info() *driver.Info { return d.info }

// String names the device in messages, such as "device 1 (NVIDIA H200)", and the processor "CPU".
func (d *Device) String() string {
	if d.Host {
		return d.info.Name
	}
	return fmt.Sprintf("device %d (%s)", d.info.Ordinal, d.info.Name)
}

// Apart names two devices in one message so that they can be told apart.
func Apart(d, o *Device) (a, b string) {
	a, b = d.String(), o.String()
	switch {
	case a != b:
	case d.of == o.of:
		b = "another opening of " + b
	default:
		b = "another machine's " + b
	}
	return a, b
}

// apart is an error of kind Invalid that names two devices.
func apart(d, o *Device, format string) error {
	a, b := Apart(d, o)
	return fault.New(fault.Invalid, format, a, b)
}

// Peer reports whether d and o are devices of one driver that are not the processor: streams of one can wait for the other's events, and
// bytes go from one to the other in the order of streams.
func (d *Device) Peer(o *Device) bool { return d.of != nil && d.of == o.of && !d.Host }

// Memory is the caching allocator.
func (d *Device) Memory() *alloc.Device { return d.mem }

// Limits are the properties that launch shapes depend on.
func (d *Device) Limits() *kernels.Limits { return &d.limits }

// Synchronize waits for all work of the device and returns its fault, if any. Work that others capture meanwhile does not count.
func (d *Device) Synchronize() error {
	_, err := d.synchronize()
	return err
}

// synchronize also returns, for each stream, the latest operation that is complete.
func (d *Device) synchronize() (issued [MaxStreams]uint64, err error) {
	d.trace(deviceSynchronization, 0, 0)
	for s := range d.allStreams {
		issued[s.id] = s.Seq()
	}
	t, err := d.enter()
	if err != nil {
		return issued, err
	}
	defer d.leave(t)
	if err := d.wait(t); err != nil {
		return issued, d.checkAlloc(err, "the device could not be waited for")
	}
	for s := range d.allStreams {
		s.finished(issued[s.id])
	}
	return issued, d.failed(d.dev.DeviceFailed, func(s *Stream) uint64 { return issued[s.id] })
}

// allStreams yields the streams in the order of their numbers.
func (d *Device) allStreams(yield func(s *Stream) bool) {
	for i := range d.streams {
		if s := d.streams[i].Load(); s != nil && !yield(s) {
			return
		}
	}
}

// EmptyCache returns unused cached memory to the driver, including that of dropped tensors.
func (d *Device) EmptyCache() error {
	_, err := d.FreeLoose()
	if e := d.checkAlloc(d.mem.EmptyCache(), "cached memory could not be given back"); e != nil {
		err = errors.Join(err, e)
		if d.lost.Load() != nil { // the fault just found ends the wait for events
			_ = d.mem.EmptyCache()
		}
	}
	return err
}

// Close waits for all work and releases the device, even while others use it: their later calls return an error of kind Closed, and
// captures under way fail with one. A second call waits for the first and does nothing. If the device's fault was reported before, Close
// returns nil, as all frees do. The device that Host returns stays open, and Close returns only what the memory checks found there.
func (d *Device) Close() error {
	if d.lasting {
		return d.MemoryDefects()
	}
	d.closeMu.Lock()
	defer d.closeMu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.unlist()
	d.refuseWork()
	d.builders.Wait()
	d.mem.Abandon()
	known := d.told.Load()
	first := d.Synchronize()
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	keep(d.freeTensors())
	keep(d.checkAlloc(d.mem.FreeHeld(), "memory of a graph could not be given back"))
	keep(d.closePools())
	keep(d.EmptyCache())
	keep(d.pinned.freeForgotten())
	if err := d.checkAlloc(d.pinned.host(d).EmptyCache(), "page-locked memory could not be given back"); err != nil {
		keep(err)
		if d.lost.Load() != nil { // as in EmptyCache
			_ = d.pinned.host(d).EmptyCache()
		}
	}
	keep(d.MemoryDefects())
	if p := d.profiler.Load(); p != nil {
		keep(p.dropTwins())
	}
	d.gate.shut()
	keep(d.pinned.withdraw(d))
	d.unregisterAll()
	d.endProfile()
	t := d.dev.Enter()
	for _, e := range d.takeEvents() {
		keep(d.dev.EventDestroy(t, e))
	}
	if d.freeStream != 0 {
		keep(d.dev.StreamDestroy(t, d.freeStream))
	}
	for i := range d.streams {
		if s := d.streams[i].Load(); s != nil {
			keep(d.dev.StreamDestroy(t, s.handle))
		}
	}
	for _, m := range d.modules {
		keep(d.dev.UnloadModule(t, m))
	}
	t.Leave()
	keep(d.dev.Close())
	d.generator.Keep(d, nil) // what open graphs share there refers to d and would keep it from becoming garbage
	if !known {
		first = d.Check(first, "the device could not be closed cleanly")
	} else {
		first = nil
	}
	d.lost.CompareAndSwap(nil, d.errClosed())
	return first
}

// Alloc allocates n > 0 bytes for a tensor that is used on s; Free gives the block back. Blocks of garbage tensors are freed first.
func (d *Device) Alloc(n uint64, s alloc.Stream) (*alloc.Block, error) {
	return d.allocFrom(alloc.PoolID{}, n, s)
}

func (d *Device) allocFrom(pool alloc.PoolID, n uint64, s alloc.Stream) (*alloc.Block, error) {
	if d.loose.full.Load() {
		if _, err := d.FreeLoose(); err != nil {
			return nil, err
		}
	}
	if err := d.Lost(); err != nil {
		return nil, err
	}
	b, err := (*d.blocks.Load()).AllocFrom(pool, n, s)
	if err == nil {
		d.trace(memoryAllocation, b.Addr(), b.Size())
		return b, nil
	}
	if d.Host && fault.KindOf(err) == fault.OutOfMemory { // the allocator's message is about a GPU
		s := d.mem.Stats()
		held, reserved := s.AllocatedBytes.All().Current, s.ReservedBytes.All().Current
		remedy := "make the work smaller"
		if held > 0 {
			remedy = "close tensors that are done with, or " + remedy
		}
		return nil, fault.New(fault.OutOfMemory, "the host has no room for %s; tensors hold %s, and %s is cached for more: %s",
			alloc.FormatSize(n), alloc.FormatSize(uint64(held)), alloc.FormatSize(uint64(reserved-held)), remedy)
	}
	return b, d.checkAlloc(err, "memory could not be allocated")
}

// Free gives a block back. An error of the driver only delays the block's reuse: the allocator tries again, and the next call reports a
// device fault that appears here.
func (d *Device) Free(b *alloc.Block) error {
	if d.leaks != nil && d.leaks.Closed() { // Close freed it
		return nil
	}
	d.trace(memoryDeallocation, b.Addr(), 0)
	if err := (*d.blocks.Load()).Free(b); err != nil {
		return d.freed(err)
	}
	return nil
}

// freeTensors frees the blocks that tensors still hold, if a checker looks for leaks; the tensors' own frees then do nothing.
func (d *Device) freeTensors() (first error) {
	if d.leaks == nil {
		return nil
	}
	d.leaks.Close(func(addr uint64, err error) {
		d.trace(memoryDeallocation, addr, 0)
		if err := d.freed(err); first == nil {
			first = err
		}
	})
	return first
}

// Own tells the leak check and the profiler that b, which RestorePool made, belongs to a tensor.
func (d *Device) Own(b *alloc.Block) {
	if p := d.Profiler(); p != nil {
		p.owned(b.Addr())
	}
	if d.leaks != nil {
		d.leaks.Own(b)
	}
}

// PoolOf returns the id of b's private pool, or the zero id. A tensor may ask although Close has freed its memory.
func (d *Device) PoolOf(b *alloc.Block) alloc.PoolID {
	if d.leaks != nil {
		return d.leaks.PoolOf(b)
	}
	return b.Pool()
}

// freed returns an error of the allocator's Free, except the driver's: a sticky one loses the device, the others are dropped.
func (d *Device) freed(err error) error {
	if err == nil {
		return nil
	}
	if c, ok := codeOf(err); ok {
		if c.Sticky() && !d.info.Inline {
			d.lose(err)
		}
		return nil
	}
	return err
}

// Index32 returns the largest number of elements that kernels address with 32-bit indexes.
func (d *Device) Index32() int { return int(d.index32.Load()) }

// SetIndex32 lowers that limit, so that tests reach the 64-bit path with small tensors.
func (d *Device) SetIndex32(n int) { d.index32.Store(int64(n)) }

// KernelsBuilt returns how many built-in kernels were built and loaded.
func (d *Device) KernelsBuilt() int64 { return d.stats.built.Load() }

// WaitedForKernels returns how long callers of Func have waited for kernels to be built, all together.
func (d *Device) WaitedForKernels() time.Duration { return time.Duration(d.stats.waited.Load()) }

// wrap gives a driver's error the kind that users act on; nil stays nil.
func wrap(err error, msg string) error {
	if err == nil {
		return nil
	}
	if own, is := err.(*fault.Error); is { // not the driver's
		return own
	}
	kind := fault.System
	if c, ok := codeOf(err); ok {
		switch {
		case c == driver.OutOfMemory:
			kind = fault.OutOfMemory
		case c.Sticky():
			kind = fault.Device
		case c >= driver.StreamCaptureUnsupported && c <= driver.StreamCaptureWrongThread:
			kind = fault.Capture
		}
	}
	return fault.Wrap(kind, err, "%s", msg)
}
