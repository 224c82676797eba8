//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/driver"
)

// The codes of cuCtxEnablePeerAccess that are no failure here.
const peerAccessAlreadyEnabled driver.Code = 704

// peers is what the open devices of a process know of each other.
type peers struct {
	// several says that two devices have been open at once, and so that tokens of two may nest.
	several atomic.Bool
	mu      sync.Mutex
	open    []*Device // in the order in which they were opened
}

// join makes d known to the others.
func (p *peers) join(d *Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if twin := p.device(d.ordinal); twin != nil { // the same device, opened before
		d.readers = slices.Clone(twin.readers)
		d.reads = slices.Clone(twin.reads)
	} else if len(p.open) > 0 {
		p.several.Store(true)
	}
	p.open = append(p.open, d)
}

// leave forgets d. With the last opening of a device its context goes, and the access to it and from it.
func (p *peers) leave(d *Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = slices.DeleteFunc(p.open, func(o *Device) bool { return o == d })
	if p.device(d.ordinal) != nil {
		return
	}
	is := func(ordinal uintptr) bool { return ordinal == d.ordinal }
	for _, o := range p.open {
		o.reads, o.readers = slices.DeleteFunc(o.reads, is), slices.DeleteFunc(o.readers, is)
	}
}

// device returns an opening of a device, or nil; mu is held.
func (p *peers) device(ordinal uintptr) *Device {
	for _, o := range p.open {
		if o.ordinal == ordinal {
			return o
		}
	}
	return nil
}

// CopyPeer copies n bytes from another device by cuMemcpyPeerAsync, which takes the way through the host where there is no direct one; 0
// bytes queue nothing.
func (d *Device) CopyPeer(dst driver.Ptr, from int, src driver.Ptr, n uint64, s driver.Stream) error {
	if n == 0 {
		return nil
	}
	ctx, err := d.reach(from)
	if err != nil {
		return err
	}
	t := d.Enter() // contexts are named, but a current one is asked for
	defer t.Leave()
	if _, err := d.token("CopyPeer", t); err != nil {
		return err
	}
	return d.do("CopyPeer", procMemcpyPeer, uintptr(dst), d.ctx, uintptr(src), ctx, uintptr(n), uintptr(s))
}

// reach returns the context of another device. The first time it also lets this device read the other's memory directly, where it can.
func (d *Device) reach(from int) (uintptr, error) {
	if lost := d.lost.Load(); lost != nil {
		return 0, &driver.Error{Call: "CopyPeer", Code: lost.Code, Detail: lost.Detail}
	}
	p := &d.lib.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.device(uintptr(from))
	if other == nil {
		return 0, &driver.Error{Call: "CopyPeer", Code: driver.InvalidDevice, Detail: fmt.Sprintf("device %d is not open", from)}
	}
	if other.ordinal != d.ordinal && !slices.Contains(d.reads, other.ordinal) {
		d.access(other)
		for _, o := range p.open {
			if o.ordinal == d.ordinal {
				o.reads = append(o.reads, other.ordinal)
			}
		}
	}
	return other.ctx, nil
}

// access lets d read other's memory directly: what cuMemAlloc made by the contexts, mapped memory and that of pools one by one. What fails
// here leaves the way through the host, and a fault comes to light with the copy. It is legal in a capture. The peers' mu is held.
func (d *Device) access(other *Device) {
	t := d.Enter()
	defer t.Leave()
	th := t.(*thread)
	if th.code != driver.Success {
		return
	}
	th.out[0] = 0
	if d.lib.call(procDeviceCanAccessPeer, th.out.at(0), d.ordinal, other.ordinal) != driver.Success || int32(th.out[0]) == 0 {
		return
	}
	old, err := d.CaptureExchangeMode(t, driver.CaptureRelaxed)
	if err != nil {
		return
	}
	code := d.lib.call(procCtxEnablePeerAccess, other.ctx, 0)
	if code == driver.Success || code == peerAccessAlreadyEnabled {
		for _, o := range d.lib.peers.open {
			if o.ordinal == other.ordinal {
				o.admit(d.ordinal)
			}
		}
	}
	_, _ = d.CaptureExchangeMode(t, old)
}

// admit lets another device read and write what is mapped and the pool's memory, and what will be. The peers' mu is held.
func (d *Device) admit(reader uintptr) {
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readers = append(d.readers, reader)
	*w = accessOf(reader)
	//tenon:unordered each mapping is let be read by itself
	for r := range d.held {
		if r.kind == heldMapping {
			d.lib.call(procMemSetAccess, r.handle, r.size, w.at(0), 1)
		}
	}
	if d.pool != 0 {
		d.lib.call(procMemPoolSetAccess, d.pool, w.at(0), 1)
	}
	runtime.KeepAlive(w)
}

// admitAll lets the devices that read this one's memory read and write a new mapping. Where that fails, copies go through the host.
func (d *Device) admitAll(p driver.Ptr, n uint64) {
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, reader := range d.readers {
		*w = accessOf(reader)
		d.lib.call(procMemSetAccess, uintptr(p), uintptr(n), w.at(0), 1)
	}
	runtime.KeepAlive(w)
}

// accessOf is CUmemAccessDesc of reading and writing by a device.
func accessOf(ordinal uintptr) words {
	const readWrite = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	return words{locationOf(ordinal), readWrite}
}

// locationOf is CUmemLocation of a device: type CU_MEM_LOCATION_TYPE_DEVICE and ordinal.
func locationOf(ordinal uintptr) uint64 { return 1 | uint64(ordinal)<<32 }
