package stack

import (
	"sync"
	"sync/atomic"
)

// Proxy says which calls the goroutine that made it works for now: calls that were made earlier, maybe elsewhere, and whose work was put
// off. What the work does is theirs, so whoever records where something comes from asks Represented first.
type Proxy struct {
	goroutine uintptr
	outer     *Proxy
	runners   []string
	calls     []*Stack
}

var proxies struct {
	count atomic.Int32
	sync.Mutex
	of map[uintptr]*Proxy // by goroutine
}

// NewProxy returns a proxy that works for no call yet. One within another replaces it until it ends. runners are the types whose methods
// do the work, such as "core.(*queue)".
func NewProxy(runners ...string) *Proxy {
	proxies.Lock()
	defer proxies.Unlock()
	if proxies.of == nil {
		proxies.of = map[uintptr]*Proxy{}
	}
	g := Goroutine()
	p := &Proxy{goroutine: g, outer: proxies.of[g], runners: runners}
	proxies.of[g] = p
	proxies.count.Add(1)
	return p
}

// For says that the goroutine works for calls from now on, or on its own account if there are none. The proxy keeps the slice.
func (p *Proxy) For(calls []*Stack) { p.calls = calls }

// End ends the proxy.
func (p *Proxy) End() {
	proxies.Lock()
	defer proxies.Unlock()
	if p.outer != nil {
		proxies.of[p.goroutine] = p.outer
	} else {
		delete(proxies.of, p.goroutine)
	}
	proxies.count.Add(-1)
}

// Represented returns the calls that the calling goroutine works for, or nil if it works on its own account. The slice is valid until the
// goroutine goes on. runners are those of NewProxy.
func Represented() (calls []*Stack, runners []string) {
	if proxies.count.Load() == 0 {
		return nil, nil
	}
	proxies.Lock()
	defer proxies.Unlock()
	p := proxies.of[Goroutine()]
	if p == nil {
		return nil, nil
	}
	return p.calls, p.runners
}
