package rt

import (
	"reflect"
	"slices"
	"sort"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
)

// registered is the host memory that programs page-locked.
var registered registrations

// registrations lists pieces of page-locked host memory by address.
type registrations struct {
	mu   sync.RWMutex
	list []registration
}

type registration struct {
	addr  uint64
	bytes []byte // keeps Go memory reachable
	dev   *Device
}

func addressOf(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

// after returns the index of the first registration that begins above addr; mu is held.
func (r *registrations) after(addr uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.list[i].addr > addr })
}

// HostRegister page-locks b, so that copies between it and devices run while the host continues. b must stay where it is until
// HostUnregister, as Go memory does. If part of b is page-locked already, it returns an error. It is safe for concurrent use.
func (d *Device) HostRegister(b []byte) error {
	if len(b) == 0 {
		return fault.New(fault.Invalid, "no memory was given to page-lock; give at least a byte")
	}
	back := backend{d}
	err := back.relaxed(func(t driver.Thread) error { return d.dev.HostRegister(t, b) })
	if err != nil {
		return d.Check(err, "host memory could not be page-locked")
	}
	r := &registered
	r.mu.Lock()
	defer r.mu.Unlock()
	addr := addressOf(b)
	r.list = slices.Insert(r.list, r.after(addr), registration{addr, b, d})
	return nil
}

// HostUnregister waits for the device's work and undoes HostRegister of the same memory. It is safe for concurrent use.
func (d *Device) HostUnregister(b []byte) error {
	r := &registered
	r.mu.Lock()
	defer r.mu.Unlock()
	addr := addressOf(b)
	i := r.after(addr) - 1
	if i < 0 || r.list[i].addr != addr || r.list[i].dev != d {
		return fault.New(fault.Invalid, "the memory is not registered with the device; give HostUnregister what HostRegister got")
	}
	end := func(t driver.Thread) error { return d.dev.HostUnregister(t, r.list[i].bytes) }
	back := backend{d}
	err := back.freeing(end)
	if err != nil {
		return d.Check(err, "host memory could not be unlocked")
	}
	r.list = slices.Delete(r.list, i, i+1)
	return nil
}

// HostRegistered reports whether b lies in memory that HostRegister page-locked.
func HostRegistered(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	r := &registered
	r.mu.RLock()
	defer r.mu.RUnlock()
	addr := addressOf(b)
	i := r.after(addr) - 1
	return i >= 0 && addr-r.list[i].addr+uint64(len(b)) <= uint64(len(r.list[i].bytes))
}

// unregisterAll forgets the memory registered with d. The driver is about to be closed, which releases it.
func (d *Device) unregisterAll() {
	r := &registered
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(g registration) bool { return g.dev == d })
}
