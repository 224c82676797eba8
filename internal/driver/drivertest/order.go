package drivertest

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"tenon.dev/internal/driver"
)

// orderTests runs the repaired version of every ordering program, which must be right on any device.
var orderTests = func() []test {
	ts := []test{{"RandomPrograms", false, testRandomPrograms}}
	for _, p := range orderPrograms {
		ts = append(ts, test{p.name, false, func(f *fixture) {
			devs := []*fixture{f, f}
			for range 5 {
				if err := p.run(devs, true); err != nil {
					f.Errorf("with its wait: %v", err)
				}
			}
		}})
	}
	return ts
}()

// orderProgram is a program that needs one wait to be right. run leaves that wait out unless repaired, and returns an error for a wrong
// result. Its two fixtures may be one device or two.
type orderProgram struct {
	name string
	run  func(f []*fixture, repaired bool) error
}

var orderPrograms = []orderProgram{
	{"ReadAfterWrite", readAfterWrite},
	{"WriteAfterRead", writeAfterRead},
	{"WriteAfterWrite", writeAfterWrite},
	{"FreeReuse", freeReuse},
	{"PinnedReuse", pinnedReuse},
	{"GraphBranch", graphBranch},
	{"CrossDevice", crossDevice},
	{"PeerRead", peerRead},
	{"PeerOverwrite", peerOverwrite},
}

// Hazards runs each ordering program with and without its wait, on the devices that open returns for the seed of a random schedule. Under
// seeds 1 to 100 a program without its wait must go wrong at least once, and its repaired version never. open returns one device or two
// devices of one driver, and closes them through t.Cleanup.
func Hazards(t *testing.T, open func(t *testing.T, seed uint64) []driver.Device, k Kernels) {
	for _, p := range orderPrograms {
		t.Run(p.name, func(t *testing.T) {
			wrong := 0
			for seed := uint64(1); seed <= 100; seed++ {
				for _, repaired := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d/%v", seed, repaired), func(t *testing.T) {
						devs := open(t, seed)
						fs := make([]*fixture, 2)
						for i := range fs {
							d := devs[min(i, len(devs)-1)]
							fs[i] = newFixture(t, &suite{open: func(*testing.T) driver.Device { return d }, k: k})
						}
						err := p.run(fs, repaired)
						if err != nil && repaired {
							t.Errorf("goes wrong with its wait: %v", err)
						}
						if err != nil && !repaired {
							wrong++
						}
					})
				}
			}
			t.Logf("wrong without its wait under %d of 100 seeds", wrong)
			if wrong == 0 {
				t.Error("right under all 100 seeds although a wait is missing")
			}
		})
	}
}

// after makes s wait for the work queued on from so far, if repaired.
func (f *fixture) after(repaired bool, from, s driver.Stream) {
	f.Helper()
	if repaired {
		f.fork(from, f.event(false), s)
	}
}

// all checks that the n f32 elements at p, read on s, equal v.
func (f *fixture) all(s driver.Stream, p driver.Ptr, v float32, n int) error {
	f.Helper()
	for i, x := range f.floats(s, p, n) {
		if x != v {
			return fmt.Errorf("element %d is %v, want %v", i, x, v)
		}
	}
	return nil
}

// set queues a fill of n f32 elements at p with v.
func (f *fixture) set(s driver.Stream, p driver.Ptr, v float32, n int) {
	f.Helper()
	f.ok(f.d.Memset(p, math.Float32bits(v), 4, uint64(n), s))
}

const orderN = 256

func readAfterWrite(fs []*fixture, repaired bool) error {
	f := fs[0]
	a, b := f.stream(), f.stream()
	x, y, z := f.alloc(4*orderN), f.alloc(4*orderN), f.alloc(4*orderN)
	f.fill(x, 1, orderN)
	f.fill(y, 1, orderN)
	f.saxpy(a, x, y, 1, orderN)
	f.after(repaired, a, b)
	f.ok(f.d.CopyDtoD(z, y, 4*orderN, b))
	f.sync(a)
	return f.all(b, z, 2, orderN)
}

func writeAfterRead(fs []*fixture, repaired bool) error {
	f := fs[0]
	a, b := f.stream(), f.stream()
	x, y := f.alloc(4*orderN), f.alloc(4*orderN)
	f.fill(x, 1, orderN)
	f.fill(y, 0, orderN)
	f.saxpy(a, x, y, 1, orderN)
	f.saxpy(a, x, y, 1, orderN)
	f.after(repaired, a, b)
	f.set(b, x, 5, orderN)
	f.sync(b)
	return f.all(a, y, 2, orderN)
}

func writeAfterWrite(fs []*fixture, repaired bool) error {
	f := fs[0]
	a, b := f.stream(), f.stream()
	y := f.alloc(4 * orderN)
	f.set(a, y, 1, orderN)
	f.after(repaired, a, b)
	f.set(b, y, 2, orderN)
	f.sync(a)
	return f.all(b, y, 2, orderN)
}

// freeReuse gives a block that one stream may still be using to another, as a caching allocator does that ignores streams.
func freeReuse(fs []*fixture, repaired bool) error {
	f := fs[0]
	a, b := f.stream(), f.stream()
	block := f.alloc(4 * orderN)
	out := f.alloc(4 * orderN)
	f.set(a, block, 1, orderN)
	f.ok(f.d.CopyDtoD(out, block, 4*orderN, a))
	// a's tensor is freed here; its block goes to b.
	f.after(repaired, a, b)
	f.set(b, block, 2, orderN)
	f.sync(b)
	return f.all(a, out, 1, orderN)
}

// pinnedReuse overwrites page-locked memory before a queued copy has read it.
func pinnedReuse(fs []*fixture, repaired bool) error {
	f := fs[0]
	s, p, b := f.stream(), f.alloc(512), f.host(512)
	got := make([]byte, 512)
	copy(b, bytes.Repeat([]byte{1}, 512))
	f.ok(f.d.CopyHtoD(p, b, s))
	if repaired {
		e := f.event(false)
		f.ok(f.d.EventRecord(e, s))
		f.ok(f.d.EventSynchronize(f.th, e))
	}
	copy(b, bytes.Repeat([]byte{2}, 512))
	f.ok(f.d.CopyDtoH(got, p, s))
	if !bytes.Equal(got, bytes.Repeat([]byte{1}, 512)) {
		return fmt.Errorf("the device got %d, want 1", got[0])
	}
	return nil
}

// graphBranch captures a fork whose branches use one buffer; the join comes after the use instead of before it.
func graphBranch(fs []*fixture, repaired bool) error {
	f := fs[0]
	a, b, e := f.stream(), f.stream(), f.event(false)
	x, y, z := f.alloc(4*orderN), f.alloc(4*orderN), f.alloc(4*orderN)
	f.fill(x, 1, orderN)
	f.fill(y, 0, orderN)
	g := f.capture(a, driver.CaptureThreadLocal, func() {
		f.fork(a, e, b)
		f.saxpy(b, x, y, 1, orderN)
		f.after(repaired, b, a)
		f.ok(f.d.CopyDtoD(z, y, 4*orderN, a))
		f.fork(b, e, a)
	})
	f.ok(f.d.GraphLaunch(f.instantiate(g), a))
	return f.all(a, z, 1, orderN)
}

// crossDevice passes page-locked memory from one device to another.
func crossDevice(fs []*fixture, repaired bool) error {
	f, g := fs[0], fs[1]
	a, b := f.stream(), g.stream()
	x, y, h := f.alloc(4*orderN), g.alloc(4*orderN), f.host(4*orderN)
	clear(h)
	f.set(a, x, 3, orderN)
	f.ok(f.d.CopyDtoH(h, x, a))
	if repaired {
		e := f.event(false)
		f.ok(f.d.EventRecord(e, a))
		g.ok(g.d.StreamWait(b, e))
	}
	g.ok(g.d.CopyHtoD(y, h, b))
	f.sync(a)
	return g.all(b, y, 3, orderN)
}
