package membarrier_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev/internal/membarrier"
)

func ready(t *testing.T) {
	t.Helper()
	if !membarrier.Supported {
		t.Skip("fences for others need Linux on amd64, without the race detector")
	}
	membarrier.Prepare()
	for began := time.Now(); !membarrier.Ready(); time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Skip("the kernel has no membarrier(2), so that everybody enters by an atomic operation")
		}
	}
}

// TestFence checks that one of two goroutines that store and then load sees the other's store, although only one has a fence.
func TestFence(t *testing.T) {
	ready(t)
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("with one processor two goroutines never run at once")
	}
	type word struct {
		v uint64
		_ [56]byte
	}
	var fast, slow word
	var round, done atomic.Uint64
	var sawSlow uint64
	const rounds = 3000 // without the fence about one in a hundred fails
	go func() {
		for i := uint64(1); i <= rounds; i++ {
			for n := 0; round.Load() < i; n++ {
				yield(n)
			}
			fast.v = i
			sawSlow = atomic.LoadUint64(&slow.v)
			done.Store(i)
		}
	}()
	for i := uint64(1); i <= rounds; i++ {
		round.Store(i)
		atomic.StoreUint64(&slow.v, i)
		membarrier.Fence()
		sawFast := atomic.LoadUint64(&fast.v)
		for n := 0; done.Load() < i; n++ {
			yield(n)
		}
		if sawFast < i && sawSlow < i {
			t.Fatalf("round %d: neither sees the other", i)
		}
	}
}

// yield lets others run, now and then, where there are fewer processors than goroutines that wait.
func yield(n int) {
	if n&0xfff == 0xfff {
		runtime.Gosched()
	}
}
