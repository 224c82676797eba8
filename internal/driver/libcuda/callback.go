//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"fmt"
	"sync"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// callbacks are the registered host functions of the process, by id. The number of C callbacks is limited, so all streams share one.
var callbacks struct {
	mu    sync.RWMutex
	last  driver.CallbackID
	funcs map[driver.CallbackID]func()
}

var hostFunc = sync.OnceValue(func() uintptr { return dl.Callback(runCallback) })

func lookupCallback(id driver.CallbackID) func() {
	callbacks.mu.RLock()
	defer callbacks.mu.RUnlock()
	return callbacks.funcs[id]
}

// runCallback runs on a driver thread. The function itself runs in its own goroutine, on an ordinary Go thread; the driver's thread, and so
// the stream, waits for it.
func runCallback(id uintptr) {
	fn := lookupCallback(driver.CallbackID(id))
	if fn == nil {
		return // unregistered since it was queued
	}
	done := make(chan struct{})
	go func() {
		// Deferred, so that a function that ends its goroutine does not block the stream forever.
		defer close(done)
		fn()
	}()
	<-done
}

// Callback queues a call of the function registered as id. If id is unregistered before the stream gets there, nothing is called.
func (d *Device) Callback(s driver.Stream, id driver.CallbackID) error {
	if lookupCallback(id) == nil {
		return &driver.Error{Call: "Callback", Code: driver.InvalidValue, Detail: fmt.Sprintf("no callback is registered as %d", id)}
	}
	return d.do("Callback", procLaunchHostFunc, uintptr(s), hostFunc(), uintptr(id))
}

// RegisterCallback registers fn until UnregisterCallback or Close.
func (d *Device) RegisterCallback(fn func()) driver.CallbackID {
	callbacks.mu.Lock()
	callbacks.last++
	id := callbacks.last
	if callbacks.funcs == nil {
		callbacks.funcs = map[driver.CallbackID]func(){}
	}
	callbacks.funcs[id] = fn
	callbacks.mu.Unlock()
	d.hold(heldCallback, uintptr(id))
	return id
}

// UnregisterCallback removes id.
func (d *Device) UnregisterCallback(id driver.CallbackID) {
	callbacks.mu.Lock()
	delete(callbacks.funcs, id)
	callbacks.mu.Unlock()
	d.mu.Lock()
	delete(d.held, resource{kind: heldCallback, handle: uintptr(id)})
	d.mu.Unlock()
}
