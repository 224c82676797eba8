package rt

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Deferred is work for the device that a session has not issued yet.
type Deferred interface {
	// RunDeferred issues the work for op, which looks at the device without the session. It does nothing while the session is in a call.
	// With later, the session's next call gets an error that this one would return.
	RunDeferred(op string, later bool) error
}

// deferredWork is the work for one device that sessions have deferred.
type deferredWork struct {
	n  atomic.Int32
	mu sync.Mutex
	of []Deferred
}

// Defers notes that w has work for d, until DefersNoMore.
func (d *Device) Defers(w Deferred) {
	d.deferred.mu.Lock()
	defer d.deferred.mu.Unlock()
	d.deferred.of = append(d.deferred.of, w)
	d.deferred.n.Add(1)
}

// DefersNoMore ends Defers.
func (d *Device) DefersNoMore(w Deferred) {
	d.deferred.mu.Lock()
	defer d.deferred.mu.Unlock()
	if i := slices.Index(d.deferred.of, w); i >= 0 {
		d.deferred.of = slices.Delete(d.deferred.of, i, i+1)
		d.deferred.n.Add(-1)
	}
}

// RunDeferred issues the work that sessions have deferred, for op. With later, errors go to the sessions.
func (d *Device) RunDeferred(op string, later bool) error {
	if d.deferred.n.Load() == 0 {
		return nil
	}
	d.deferred.mu.Lock()
	all := slices.Clone(d.deferred.of)
	d.deferred.mu.Unlock()
	for _, w := range all {
		if err := w.RunDeferred(op, later); err != nil {
			return err
		}
	}
	return nil
}
