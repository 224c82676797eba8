package compile_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
)

// gated is a driver that holds back one launch.
type gated struct {
	driver.Device
	armed     atomic.Bool
	held, off chan struct{}
}

func (d *gated) Launch(l *driver.Launch) error {
	if d.armed.CompareAndSwap(true, false) {
		close(d.held)
		<-d.off
	}
	return d.Device.Launch(l)
}

// A session that is reading a tensor that a region or a function left open, while its memory is about to be reused, reads the old contents.
func TestReadWhileMoving(t *testing.T) {
	for _, callable := range []bool{false, true} {
		for _, use := range []string{"read", "write"} {
			t.Run(fmt.Sprintf("%v/%s", callable, use), func(t *testing.T) { readWhileMoving(t, callable, use) })
		}
	}
}

func readWhileMoving(t *testing.T, callable bool, use string) {
	var d *gated
	x := openRandom(t, 6, 0, func(own driver.Device) driver.Device {
		d = &gated{Device: own, held: make(chan struct{}), off: make(chan struct{})}
		return d
	})
	live := core.LiveStorages()
	y, err := x.Fork()
	must(t, err)
	in := x.Ones([]int{side, side}, tenon.Float32)
	body := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Sin(x.MulS(a, 2)) }
	f := compile.Func(body)
	r := compile.New()
	run := func(a *tenon.Tensor) (out *tenon.Tensor, err error) {
		if callable {
			err = tenon.Try(func() { out = f.Call(x, a) })
			return out, err
		}
		err = r.Do(x, func(x *tenon.Exec) error { out = x.Keep(body(x, a)); return nil })
		return out, err
	}
	var kept *tenon.Tensor
	for range 5 {
		kept.Close()
		kept, err = run(in)
		must(t, err)
	}
	want, before := read(t, x, kept), r.Stats(x)
	if callable {
		before = f.Stats(x)
	}
	warm := y.AddS(kept, 1)
	y.AddSInto(kept, kept, 0)
	must(t, y.Synchronize())
	warm.Close()
	other := x.Full([]int{side, side}, 3, tenon.Float32)
	must(t, x.Synchronize())
	var got *tenon.Tensor
	var failed error
	var wg sync.WaitGroup
	d.armed.Store(true)
	wg.Go(func() {
		failed = tenon.Try(func() {
			if use == "read" {
				got = y.MulS(kept, 1)
			} else {
				y.MulSInto(kept, kept, 1)
			}
		})
	})
	<-d.held
	next, err := run(other)
	close(d.off)
	wg.Wait()
	must(t, err)
	must(t, failed)
	if use == "write" {
		got = y.MulS(kept, 1)
	}
	if s := read(t, y, got); s != want {
		t.Errorf("got %.60s, want %.60s", s, want)
	}
	if s, want := read(t, x, next), read(t, x, body(x, other)); s != want {
		t.Errorf("the run made %.60s, want %.60s", s, want)
	}
	for range 3 { // the recordings run again
		n, err := run(in)
		must(t, err)
		if s := read(t, x, n); s != want {
			t.Errorf("afterwards %.60s, want %.60s", s, want)
		}
		n.Close()
	}
	after := r.Stats(x)
	if callable {
		after = f.Stats(x)
	}
	if after.Recordings != before.Recordings || after.Replays == before.Replays {
		t.Errorf("%+v, before that %+v", after, before)
	}
	for _, v := range []*tenon.Tensor{got, kept, next, in, other} {
		v.Close()
	}
	must(t, y.Close())
	must(t, compile.Reset(x))
	must(t, x.Synchronize())
	if n := leftOver(x, live); n > 0 {
		t.Errorf("%d storages are left", n)
	}
}

// Sessions that read what another session's runs leave open, while it continues to run, either read it or get an error that names the calls
// that use it.
func TestReadsBesideRuns(t *testing.T) {
	x := openRandom(t, 7, 0, nil)
	live := core.LiveStorages()
	const readers, runs, old = 3, 300, 3
	r := compile.New()
	type numbered struct {
		t *tenon.Tensor
		n float32
	}
	var latest atomic.Pointer[numbered]
	var done atomic.Bool
	var reads, refused atomic.Int64
	var wg sync.WaitGroup
	for range readers {
		y, err := x.Fork()
		must(t, err)
		wg.Go(func() {
			for !done.Load() {
				v := latest.Load()
				if v == nil {
					continue
				}
				var got []float32
				err := tenon.Try(func() {
					y.Scope(func(y *tenon.Exec) {
						var err error
						if got, err = tenon.Read[float32](y, y.AddS(v.t, 1)); err != nil {
							panic(err)
						}
					})
				})
				switch {
				case err != nil && (strings.Contains(err.Error(), "have not run yet") || strings.Contains(err.Error(), "closed")):
					refused.Add(1)
				case err != nil:
					t.Error(err)
					return
				case got[0] != v.n+1 || got[len(got)-1] != v.n+1:
					t.Errorf("run %v reads as %v and %v", v.n, got[0]-1, got[len(got)-1]-1)
					return
				default:
					reads.Add(1)
				}
			}
			if err := y.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	a := x.Zeros([]int{side, side}, tenon.Float32)
	var open []*tenon.Tensor
	for n := 0; n < runs || reads.Load() == 0 && n < 1000*runs; n++ {
		var out *tenon.Tensor
		err := r.Do(x, func(x *tenon.Exec) error {
			out = x.Keep(x.AddS(x.MulS(a, 0), float64(n)))
			return nil
		})
		must(t, err)
		latest.Store(&numbered{out, float32(n)})
		if open = append(open, out); len(open) > old && n%2 == 0 {
			open[0].Close()
			open = open[1:]
		}
		runtime.Gosched()
	}
	done.Store(true)
	wg.Wait()
	t.Logf("%d reads, %d refused, %+v", reads.Load(), refused.Load(), r.Stats(x))
	if reads.Load() == 0 {
		t.Error("nothing was read")
	}
	for _, v := range append(open, a) {
		v.Close()
	}
	must(t, compile.Reset(x))
	if n := leftOver(x, live); n > 0 {
		t.Errorf("%d storages are left", n)
	}
}
