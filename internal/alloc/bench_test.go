package alloc

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// crowded returns a device with many free blocks that cannot merge, of n sizes on each of two streams, as in a program that has run for a
// while, and the live blocks between them.
func crowded(b testing.TB, n int) (*Device, []*Block) {
	d := New(newFakeDevice(140<<30), Options{})
	r := rand.New(rand.NewPCG(1, 2))
	var live []*Block
	for i := range 2 * n {
		size := uint64(r.IntN(900<<10)) + 1
		if i%4 < 2 {
			size = uint64(r.IntN(64<<20)) + 2<<20
		}
		k, err := d.Alloc(size, Stream(i%2))
		if err != nil {
			b.Fatal(err)
		}
		live = append(live, k)
	}
	r.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	for _, k := range live[n:] {
		if err := d.Free(k); err != nil {
			b.Fatal(err)
		}
	}
	return d, live[:n]
}

func pair(b testing.TB, d *Device, size uint64, s Stream) {
	k, err := d.Alloc(size, s)
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Free(k); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAllocFree times one allocation and its free from the cache.
func BenchmarkAllocFree(b *testing.B) {
	b.Run("exact", func(b *testing.B) { // one block of the size is free
		d := New(newFakeDevice(1<<30), Options{})
		for b.Loop() {
			pair(b, d, smallBuffer*8, 0)
		}
	})
	b.Run("exact/crowded", func(b *testing.B) {
		d, _ := crowded(b, 1000)
		k, err := d.Alloc(100<<20, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Free(k); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			pair(b, d, 100<<20, 0)
		}
	})
	b.Run("split", func(b *testing.B) { // the block is split off a larger one and merged with it again
		d := New(newFakeDevice(1<<30), Options{})
		for b.Loop() {
			pair(b, d, 4096, 0)
		}
	})
	b.Run("split/crowded", func(b *testing.B) {
		d, _ := crowded(b, 1000)
		for b.Loop() {
			pair(b, d, 4096, 0)
		}
	})
	b.Run("raw", func(b *testing.B) {
		d := New(newFakeDevice(1<<30), Options{})
		for b.Loop() {
			addr, err := d.RawAlloc(4096, 0)
			if err != nil {
				b.Fatal(err)
			}
			if err := d.RawFree(addr); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("record", func(b *testing.B) { // with the history on
		d := New(newFakeDevice(1<<30), Options{})
		if err := d.RecordHistory(History{Enabled: HistoryAll, MaxEntries: 10000}); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			pair(b, d, 4096, 0)
		}
	})
	b.Run("goroutines8", func(b *testing.B) {
		d, _ := crowded(b, 1000)
		var wg sync.WaitGroup
		n := b.N/8 + 1
		b.ResetTimer()
		for g := range 8 {
			wg.Go(func() {
				for range n {
					k, err := d.Alloc(uint64(g+1)*4096, Stream(g%2))
					if err != nil {
						b.Error(err)
						return
					}
					if err := d.Free(k); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// BenchmarkSnapshot takes a snapshot of 40,000 events and about 1,500 blocks.
func BenchmarkSnapshot(b *testing.B) {
	d, _ := crowded(b, 1000)
	if err := d.RecordHistory(History{Enabled: HistoryAll, Context: LevelAll, MaxEntries: 40000, Collect: func() any { return d }}); err !=
		nil {
		b.Fatal(err)
	}
	for range 20000 {
		pair(b, d, 4096, 0)
	}
	for b.Loop() {
		if s := d.Snapshot(); len(s.Trace) != 40000 {
			b.Fatalf("%d entries", len(s.Trace))
		}
	}
}

// BenchmarkReplay replays PyTorch's recorded runs; the metric is allocator operations per second.
func BenchmarkReplay(b *testing.B) {
	runs := loadTorchRuns(b, "testdata/fuzz.json.gz")
	ops := 0
	for b.Loop() {
		for i := range runs {
			p, err := newTorchReplay(&runs[i])
			if err != nil {
				b.Fatal(err)
			}
			p.quick = true
			for k := range runs[i].Ops {
				if err := p.step(&runs[i].Ops[k]); err != nil {
					b.Fatal(err)
				}
			}
			ops += len(runs[i].Ops)
		}
	}
	b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
}
