package rt

import (
	"sync/atomic"
	"testing"
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
