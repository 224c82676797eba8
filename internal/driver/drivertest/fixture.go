package drivertest

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"unsafe"

	"tenon.dev/internal/driver"
)

// fixture holds a program's device, its token and what it must release.
type fixture struct {
	*testing.T
	s     *suite
	d     driver.Device
	th    driver.Thread
	funcs map[string]driver.Func
}

// newFixture opens and enters the device until the test ends.
func newFixture(t *testing.T, s *suite) *fixture {
	t.Helper()
	d := s.open(t)
	f := &fixture{T: t, s: s, d: d, th: d.Enter(), funcs: map[string]driver.Func{}}
	t.Cleanup(f.th.Leave)
	return f
}

// ok fails the test at once if err is not nil.
func (f *fixture) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("unexpected error: %v", err)
	}
}

// code fails the test unless err is an *Error of the named call with the wanted code.
func (f *fixture) code(err error, call string, want driver.Code) {
	f.Helper()
	var e *driver.Error
	switch {
	case err == nil:
		f.Errorf("%s: no error, want %d (%v)", call, want, want)
	case !errors.As(err, &e):
		f.Errorf("%s: error %T %v is not a *driver.Error", call, err, err)
	case e.Code != want || e.Call != call:
		f.Errorf("got %v, want %s: %v (%d)", err, call, want, want)
	}
}

// alloc returns n bytes of device memory until the test ends.
func (f *fixture) alloc(n uint64) driver.Ptr {
	f.Helper()
	p, err := f.d.MemAlloc(f.th, n)
	f.ok(err)
	f.Cleanup(func() { f.d.MemFree(f.th, p) })
	return p
}

// host returns n bytes of page-locked memory until the test ends.
func (f *fixture) host(n uint64) []byte {
	f.Helper()
	b, err := f.d.HostAlloc(f.th, n)
	f.ok(err)
	f.Cleanup(func() { f.d.HostFree(f.th, b) })
	return b
}

// stream returns a non-blocking stream until the test ends.
func (f *fixture) stream() driver.Stream {
	f.Helper()
	return f.streamOf(true)
}

// streamOf returns a stream until the test ends.
func (f *fixture) streamOf(nonBlocking bool) driver.Stream {
	f.Helper()
	s, err := f.d.StreamCreate(f.th, nonBlocking, 0)
	f.ok(err)
	f.Cleanup(func() { f.d.StreamSynchronize(f.th, s); f.d.StreamDestroy(f.th, s) })
	return s
}

// event returns an event until the test ends.
func (f *fixture) event(timing bool) driver.Event {
	f.Helper()
	e, err := f.d.EventCreate(f.th, timing)
	f.ok(err)
	f.Cleanup(func() { f.d.EventDestroy(f.th, e) })
	return e
}

// fn returns the suite's kernel with that name, loaded at most once.
func (f *fixture) fn(name string) driver.Func {
	f.Helper()
	if fn, ok := f.funcs[name]; ok {
		return fn
	}
	images := map[string][]byte{"saxpy": f.s.k.Saxpy, "spin": f.s.k.Spin, "illegal": f.s.k.Illegal, "assert": f.s.k.Assert}
	m, err := f.d.LoadModule(f.th, images[name])
	f.ok(err)
	f.Cleanup(func() { f.d.UnloadModule(f.th, m) })
	fn, err := f.d.Function(f.th, m, name)
	f.ok(err)
	f.funcs[name] = fn
	return fn
}

// saxpyLaunch returns the launch of y += a*x over n elements on s.
func (f *fixture) saxpyLaunch(s driver.Stream, x, y driver.Ptr, a float32, n int) *driver.Launch {
	f.Helper()
	args := binary.LittleEndian.AppendUint64(nil, uint64(x))
	args = binary.LittleEndian.AppendUint64(args, uint64(y))
	args = binary.LittleEndian.AppendUint32(args, math.Float32bits(a))
	args = binary.LittleEndian.AppendUint32(args, uint32(n))
	return &driver.Launch{Func: f.fn("saxpy"), Stream: s, Grid: [3]uint32{uint32(n+127) / 128, 1, 1},
		Block: [3]uint32{128, 1, 1}, Args: args}
}

// saxpy launches y += a*x over n elements on s.
func (f *fixture) saxpy(s driver.Stream, x, y driver.Ptr, a float32, n int) {
	f.Helper()
	f.ok(f.d.Launch(f.saxpyLaunch(s, x, y, a, n)))
}

// one launches a kernel of one thread with one 64-bit argument.
func (f *fixture) one(name string, s driver.Stream, arg uint64) error {
	f.Helper()
	return f.d.Launch(&driver.Launch{Func: f.fn(name), Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1},
		Args: binary.LittleEndian.AppendUint64(nil, arg)})
}

// spin keeps s busy for ms milliseconds of device time.
func (f *fixture) spin(s driver.Stream, ms int) {
	f.Helper()
	f.ok(f.one("spin", s, uint64(ms)*uint64(f.d.Info().ClockKHz)))
}

// sync waits for s.
func (f *fixture) sync(s driver.Stream) {
	f.Helper()
	f.ok(f.d.StreamSynchronize(f.th, s))
}

// fill sets n f32 elements at p to v, complete on return.
func (f *fixture) fill(p driver.Ptr, v float32, n int) {
	f.Helper()
	s := f.stream()
	f.ok(f.d.Memset(p, math.Float32bits(v), 4, uint64(n), s))
	f.sync(s)
}

// floats reads n f32 elements at p after all work of s.
func (f *fixture) floats(s driver.Stream, p driver.Ptr, n int) []float32 {
	f.Helper()
	b := make([]byte, 4*n)
	f.ok(f.d.CopyDtoH(b, p, s))
	f.sync(s)
	return asFloats(b)
}

// want fails the test unless the n f32 elements at p, read after all work of s, all equal v.
func (f *fixture) want(s driver.Stream, p driver.Ptr, v float32, n int) {
	f.Helper()
	for i, x := range f.floats(s, p, n) {
		if x != v {
			f.Errorf("element %d of %d is %v, want %v", i, n, x, v)
			return
		}
	}
}

// asFloats views bytes as f32.
func asFloats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// onThread runs fn on another thread with its own token and waits for it.
func (f *fixture) onThread(fn func(t driver.Thread)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := f.d.Enter()
		defer t.Leave()
		fn(t)
	}()
	<-done
}

// codeOf returns err's code, or Success.
func codeOf(err error) driver.Code {
	var e *driver.Error
	switch {
	case err == nil:
		return driver.Success
	case errors.As(err, &e):
		return e.Code
	}
	return driver.Unknown
}
