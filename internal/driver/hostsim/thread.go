package hostsim

import (
	"runtime"

	"tenon.dev/internal/driver"
)

// token is a thread's right to make context-bound calls of one device. All tokens of one thread are one object with a count.
type token struct {
	dev   *device
	id    uint64
	depth int                // under the machine's mu
	mode  driver.CaptureMode // under the machine's mu
}

// Enter locks the goroutine to its thread and returns the thread's token.
func (d *device) Enter() driver.Thread {
	runtime.LockOSThread()
	id := threadID()
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	t := d.tokens[id]
	if t == nil {
		if n := len(d.spare); n > 0 {
			t, d.spare = d.spare[n-1], d.spare[:n-1]
		} else {
			t = &token{dev: d}
		}
		t.id, t.mode = id, driver.CaptureGlobal
		d.tokens[id] = t
	}
	t.depth++
	return t
}

// ID identifies the calling thread, like the id of a CUDA token: called on another thread it is not the token's id.
func (t *token) ID() uint64 { return threadID() }

// Leave gives up the token.
func (t *token) Leave() {
	m := t.dev.m
	m.mu.Lock()
	if t.depth == 0 {
		m.mu.Unlock()
		panic("hostsim: Leave without Enter")
	}
	if t.depth--; t.depth == 0 {
		delete(t.dev.tokens, t.id)
		t.dev.spare = append(t.dev.spare, t)
	}
	m.mu.Unlock()
	runtime.UnlockOSThread()
}

// entered reports whether the calling goroutine holds a token; without one, work on the legacy stream has no device. mu is held. The inline
// device is the only one of its machine and needs no token.
func (d *device) entered() bool { return d.m.inline || d.tokens[threadID()] != nil }
