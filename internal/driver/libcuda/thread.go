//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"runtime"
	"sync"

	"tenon.dev/internal/driver"
)

// thread is the token that Enter returns. Tokens are reused, so a token must not be used after its Leave.
type thread struct {
	device *Device
	// outer is the context that Leave restores, or 0.
	outer uintptr
	// out receives the results of calls made with the token.
	out words
	// code is the reason why the context could not be made current.
	code driver.Code
}

var threads = sync.Pool{New: func() any { return new(thread) }}

// Enter locks the goroutine to its thread and makes the device's context current there if it is not already. If tokens of two devices nest
// on one goroutine, each call makes the context of its own token's device current, and work on the legacy stream goes to the innermost
// token's device.
func (d *Device) Enter() driver.Thread {
	runtime.LockOSThread()
	t := threads.Get().(*thread)
	t.device, t.outer, t.code = d, 0, driver.Success
	if d.lost.Load() != nil {
		return t
	}
	t.code = d.lib.call(procCtxGetCurrent, t.out.at(0))
	if current := uintptr(t.out[0]); t.code == driver.Success && current != d.ctx {
		t.outer = current
		t.code = d.lib.call(procCtxSetCurrent, d.ctx)
	}
	return t
}

// ID returns the operating system's number of the thread.
func (t *thread) ID() uint64 { return threadID() }

// Leave restores the context of an outer token of another device and unlocks the thread. A thread that had no context keeps this one, so
// that the next Enter on it is fast.
func (t *thread) Leave() {
	if t.outer != 0 { // another device's, which works even if this one is lost
		t.device.lib.call(procCtxSetCurrent, t.outer)
	}
	t.device = nil
	threads.Put(t)
	runtime.UnlockOSThread()
}

// token returns the token behind t. It fails if t is not a token of this device or if its context could not be made current.
func (d *Device) token(op string, t driver.Thread) (*thread, error) {
	th, ok := t.(*thread)
	if !ok || th.device != d {
		return nil, &driver.Error{Call: op, Code: driver.InvalidContext, Detail: "it needs a Thread from this device's Enter, " +
			"before its Leave"}
	}
	code := th.code
	if code == driver.Success && d.lost.Load() == nil && d.lib.peers.several.Load() {
		code = th.current()
	}
	if code != driver.Success {
		return nil, d.failure(op, code)
	}
	return th, nil
}

// current makes the token's context the thread's current one again, in case a token of another device has replaced it.
func (t *thread) current() driver.Code {
	lib := t.device.lib
	code := lib.call(procCtxGetCurrent, t.out.at(0))
	if code == driver.Success && uintptr(t.out[0]) != t.device.ctx {
		code = lib.call(procCtxSetCurrent, t.device.ctx)
	}
	return code
}
