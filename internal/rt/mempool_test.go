package rt

import (
	"sync/atomic"
	"testing"

	"tenon.dev/internal/alloc"
)

// Another thread that returns free memory to the device does not get between the two halves of a pool's Close.
func TestClosePoolWhileFlushed(t *testing.T) {
	d := openSim(t, nil)
	var done atomic.Bool
	flushed := make(chan error)
	go func() {
		for !done.Load() {
			if err := d.Memory().EmptyReleased(); err != nil {
				flushed <- err
				return
			}
		}
		flushed <- nil
	}()
	for range 3000 {
		p, err := d.NewMemPool(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
}

// What waits before memory is unmapped does not meet a stream in another thread's capture.
func TestUnmapWaitsBesideCaptures(t *testing.T) {
	d := openSim(t, nil)
	p, err := d.NewMemPool(nil)
	ok(t, err)
	d.Lend(p.ID(), nil)
	s, err := d.Stream()
	ok(t, err)
	var done atomic.Bool
	waited := make(chan error)
	go func() {
		for !done.Load() {
			if err := (&virtualBackend{backend{d}}).SyncStream(alloc.Stream(s.handle)); err != nil {
				waited <- err
				return
			}
		}
		waited <- nil
	}()
	for range 1000 {
		c, err := d.BeginCapture(s, CaptureSpec{})
		ok(t, err)
		ok(t, c.Abort())
	}
	done.Store(true)
	ok(t, <-waited)
	d.EndLend(p.ID())
	ok(t, p.Close())
}
