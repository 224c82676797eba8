package rt

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Deferred is work for the device that a session has not issued yet.
type Deferred interface {
	// RunDeferred issues the work for op, which looks at the device without the session, if the calling goroutine is the one that makes
	// the work. With later, the session's next call gets an error that this one would return.
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

// RunDeferred issues the work that the calling goroutine's sessions have deferred, for op. With later, errors go to the sessions.
func (d *Device) RunDeferred(op string, later bool) error {
	if d.deferred.n.Load() == 0 {
		return nil
	}
	d.deferred.mu.Lock()
	all := slices.Clone(d.deferred.of)
	d.deferred.mu.Unlock()
	var failed error
	for _, w := range all {
		failed = errors.Join(failed, w.RunDeferred(op, later))
	}
	return failed
}
