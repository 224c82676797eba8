package rt

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"tenon.dev/internal/alloc"
)

// Loose queues the blocks of tensors that became garbage. Cleanups only call Put, which makes no driver call; the next allocation drains
// the queue.
type Loose struct {
	full atomic.Bool
	// since counts the bytes of tensors that became loose since the last collection.
	since atomic.Uint64
	off   atomic.Bool

	mu     sync.Mutex
	blocks []*alloc.Block
}

// Loose returns the device's queue.
func (d *Device) Loose() *Loose { return &d.loose }

// Put queues a block to be freed.
func (l *Loose) Put(b *alloc.Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, b)
	l.full.Store(true)
}

// FreeLoose frees the queued blocks and returns how many there were.
func (d *Device) FreeLoose() (int, error) {
	l := &d.loose
	if !l.full.Load() {
		return 0, nil
	}
	l.mu.Lock()
	blocks := l.blocks
	l.blocks = nil
	l.full.Store(false)
	l.mu.Unlock()
	var first error
	for _, b := range blocks {
		if err := d.Free(b); first == nil {
			first = err
		}
	}
	return len(blocks), first
}

// Add notes that a tensor of n bytes became loose.
func (l *Loose) Add(n int) { l.since.Add(uint64(n)) }

// SetCollection switches the collection of garbage tensors under memory pressure on or off; it is on at first.
func (l *Loose) SetCollection(on bool) { l.off.Store(!on) }

// collect is the allocator's callback for freeing garbage tensors. It always collects before an out-of-memory error; before the allocator
// grows, it collects only if enough memory became loose since the last collection, an eighth of the reserved memory. It reports whether
// memory may have become free.
func (d *Device) collect(p alloc.Pressure) bool {
	l := &d.loose
	if l.off.Load() || !p.Failing && (l.since.Load() == 0 || l.since.Load() < p.Reserved/8) {
		return false
	}
	l.since.Store(0)
	runtime.GC()
	waitCleanups()
	n, err := d.FreeLoose()
	return n > 0 && err == nil
}

// waitCleanups waits until the cleanups that the last collection queued have run, at most a second.
func waitCleanups() {
	s := []metrics.Sample{{Name: "/gc/cleanups/queued:cleanups"}, {Name: "/gc/cleanups/executed:cleanups"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		time.Sleep(time.Millisecond)
		return
	}
	queued := s[0].Value.Uint64()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Microsecond) {
		metrics.Read(s)
		if s[1].Value.Uint64() >= queued {
			return
		}
	}
}
