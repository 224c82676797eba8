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

// The codes of cuCtxEnablePeerAccess that are not failures here.
const peerAccessAlreadyEnabled driver.Code = 704

// peers is what the open devices of a process know about each other.
type peers struct {
	// several is set once two devices have been open at the same time, so that tokens of both may nest.
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

// leave removes d. When the last opening of a device is closed, its context is released, and with it the access to and from it.
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

// device returns an opening of a device, or nil; mu must be held.
func (p *peers) device(ordinal uintptr) *Device {
	for _, o := range p.open {
		if o.ordinal == ordinal {
			return o
		}
	}
	return nil
}

// CopyPeer copies n bytes from another device with cuMemcpyPeerAsync, which goes through the host if there is no direct path; 0 bytes queue
// nothing.
func (d *Device) CopyPeer(dst driver.Ptr, from int, src driver.Ptr, n uint64, s driver.Stream) error {
	if n == 0 {
		return nil
	}
	ctx, err := d.reach(from)
	if err != nil {
		return err
	}
	t := d.Enter() // the call names its contexts, but still requires a current one
	defer t.Leave()
	if _, err := d.token("CopyPeer", t); err != nil {
		return err
	}
	return d.do("CopyPeer", procMemcpyPeer, uintptr(dst), d.ctx, uintptr(src), ctx, uintptr(n), uintptr(s))
}

// reach returns the context of another device. The first time, it also gives this device direct access to the other's memory, if possible.
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

// access gives d direct access to other's memory: in one call to everything allocated with cuMemAlloc, and separately to each mapping and
// to the pool. If it fails, copies go through the host, and the copy reports any fault. Legal in a capture. The peers' mu must be held.
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

// admit gives another device read and write access to all current and future mappings and to the pool's memory. The peers' mu must be held.
func (d *Device) admit(reader uintptr) {
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readers = append(d.readers, reader)
	*w = accessOf(reader)
	//tenon:unordered each mapping gets access separately
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

// admitAll gives the devices that read this one's memory read and write access to a new mapping. If that fails, copies go through the host.
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

// accessOf is a CUmemAccessDesc with read and write access for a device.
func accessOf(ordinal uintptr) words {
	const readWrite = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	return words{locationOf(ordinal), readWrite}
}

// locationOf is a device's CUmemLocation: type CU_MEM_LOCATION_TYPE_DEVICE and the ordinal.
func locationOf(ordinal uintptr) uint64 { return 1 | uint64(ordinal)<<32 }
