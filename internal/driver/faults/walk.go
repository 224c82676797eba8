package faults

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/driver"
)

// Option changes what Walk expects.
type Option func(w *walk)

// Recovered allows the program to succeed although the named methods fail, as an allocator does that frees its cache and tries again.
func Recovered(methods ...string) Option {
	return func(w *walk) {
		for _, m := range methods {
			w.recovered[m] = true
		}
	}
}

// WithoutFaults leaves out the codes that are device faults, for programs whose device is opened outside of them.
func WithoutFaults() Option { return func(w *walk) { w.d.noFaults = true } }

// OneCode makes each call fail with only one of its codes, another one from call to call.
func OneCode() Option { return func(w *walk) { w.oneCode = true } }

// walk is the state of one Walk.
type walk struct {
	t          testing.TB
	d          *Device
	f          func(d driver.Device) error
	recovered  map[string]bool
	live       Live
	goroutines int
	failures   int
	oneCode    bool
}

// Walk runs f on a decorator of d, first without failures, then once for each driver call that f makes and each code that the call can fail
// with (with OneCode one of them), until no such call is left. f must release what it makes, also on errors. After each failure the error
// must name the call (a *driver.Error of it in its chain, or its name in the text), the live objects and goroutines must be as after the
// first run, and f must succeed again. Walk logs "walk <name>: <failures>".
func Walk(t testing.TB, d driver.Device, f func(d driver.Device) error, opts ...Option) {
	t.Helper()
	w := &walk{t: t, d: New(d), f: f, recovered: map[string]bool{}}
	for _, o := range opts {
		o(w)
	}
	w.d.Arm(0, 0)
	if err := f(w.d); err != nil {
		t.Fatalf("walk: the program fails by itself: %v", err)
	}
	w.live, w.goroutines = w.d.Live(), runtime.NumGoroutine()
	for n := 1; ; n++ {
		pick := 0
		if w.oneCode {
			pick = int(uint32(n)*0x9e3779b1>>16) % 3 // follows no pattern that a program's calls might have
		}
		reached, fired := w.step(n, pick)
		if pick > 0 && !fired {
			reached, fired = w.step(n, 0)
		}
		for fired && !w.oneCode {
			pick++
			_, fired = w.step(n, pick)
		}
		if t.Failed() {
			t.Fatalf("walk: stopped at call %d", n)
		}
		if !reached {
			break
		}
	}
	t.Logf("walk %s: %d", t.Name(), w.failures)
}

// step fails call n with the pick-th of its codes. It reports whether f made that many calls, and whether the code exists.
func (w *walk) step(n, pick int) (reached, fired bool) {
	t := w.t
	t.Helper()
	w.d.Arm(n, pick)
	err := w.f(w.d)
	method, code := w.d.Fired()
	reached = w.d.Calls() >= n
	w.d.Arm(0, 0)
	if method == "" {
		if err != nil {
			t.Errorf("walk: call %d: the program fails although nothing was injected: %v", n, err)
		}
		return reached, false
	}
	w.failures++
	var e *driver.Error
	switch {
	case err == nil && !w.recovered[method]:
		t.Errorf("walk: call %d, %s, failed with %v and the program reports no error", n, method, code)
	case err != nil && !(errors.As(err, &e) && e.Call == method) && !strings.Contains(err.Error(), method):
		t.Errorf("walk: call %d, %s, failed with %v, and the error does not name it: %v", n, method, code, err)
	}
	w.clean(method, code)
	if err := w.f(w.d); err != nil {
		t.Errorf("walk: after %s failed with %v the program fails without a failure: %v", method, code, err)
	}
	w.clean(method, code)
	return reached, true
}

// clean compares what is live with what was live after the first run.
func (w *walk) clean(method string, code driver.Code) {
	w.t.Helper()
	if live := w.d.Live(); live != w.live {
		w.t.Errorf("walk: after %s failed with %v these are live:\n%+v, want\n%+v", method, code, live, w.live)
	}
	n := runtime.NumGoroutine()
	for range 100 {
		if n <= w.goroutines {
			return
		}
		time.Sleep(time.Millisecond) // for goroutines that are about to end
		n = runtime.NumGoroutine()
	}
	w.t.Errorf("walk: after %s failed with %v there are %d goroutines, want %d", method, code, n, w.goroutines)
}
