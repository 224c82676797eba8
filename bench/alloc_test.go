package bench

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"tenon.dev/internal/alloc"
)

// vacuum is a device that costs nothing, so that only the allocator is measured.
type vacuum struct {
	alloc.Backend // streams and events; replays of programs that use them are measured with all events complete
	total         uint64
	next          uint64
	event         alloc.Event
}

func (v *vacuum) Malloc(size uint64) (uint64, error) {
	v.next += 1 << 20
	at := v.next
	v.next += size
	return at, nil
}
func (v *vacuum) Free(uint64) error                           { return nil }
func (v *vacuum) MemInfo() (uint64, uint64, error)            { return v.total, v.total, nil }
func (v *vacuum) Capturing(alloc.Stream) (uint64, bool)       { return 0, false }
func (v *vacuum) AcquireEvent() (alloc.Event, error)          { v.event++; return v.event, nil }
func (v *vacuum) ReleaseEvent(alloc.Event)                    {}
func (v *vacuum) RecordEvent(alloc.Event, alloc.Stream) error { return nil }
func (v *vacuum) QueryEvent(alloc.Event) (bool, error)        { return true, nil }
func (v *vacuum) SyncEvent(alloc.Event) error                 { return nil }
func (v *vacuum) Reserve(size uint64) (uint64, error)         { return v.Malloc(size) }
func (v *vacuum) Unreserve(uint64, uint64) error              { return nil }
func (v *vacuum) MapPage(uint64, uint64) error                { return nil }
func (v *vacuum) UnmapPage(uint64, uint64) error              { return nil }
func (v *vacuum) SyncStream(alloc.Stream) error               { return nil }

// busy returns an allocator with a thousand free blocks of many sizes that cannot be merged, as in a program that has run for a while.
func busy(t *testing.T) *alloc.Device {
	d := alloc.New(&vacuum{total: 140 << 30}, alloc.Options{})
	var drop []*alloc.Block
	for i := range uint64(2000) {
		size := (i*7919)%(900<<10) + 1
		if i%4 < 2 {
			size = 2<<20 + (i*104729)%(62<<20)
		}
		b, err := d.Alloc(size, alloc.Stream(i/2%2))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			drop = append(drop, b)
		}
	}
	for _, b := range drop {
		if err := d.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// TestAllocator measures the caching allocator without a device below it.
func TestAllocator(t *testing.T) {
	d := busy(t)
	pair := func(size uint64, s alloc.Stream) error {
		b, err := d.Alloc(size, s)
		if err != nil {
			return err
		}
		return d.Free(b)
	}
	const count = 200_000
	times := func(name string, size uint64) {
		if err := pair(size, 0); err != nil {
			t.Fatal(err)
		}
		var ns []float64
		for range 12 {
			start := time.Now()
			for range count {
				if err := pair(size, 0); err != nil {
					t.Fatal(err)
				}
			}
			ns = append(ns, float64(time.Since(start).Nanoseconds())/count)
		}
		recordFigure(name, "ns", ns)
	}
	times("alloc.exact", 200<<20) // the only free block that fits, used whole
	times("alloc.split", 4096)    // split off a larger block and merged back
	recordFigure("alloc.allocs", "allocs/op", []float64{testing.AllocsPerRun(1000, func() {
		addr, err := d.RawAlloc(4096, 0)
		if err == nil {
			err = d.RawFree(addr)
		}
		if err != nil {
			t.Error(err)
		}
	})})
	var rate []float64
	for range 8 {
		start := time.Now()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for range count / 4 {
					if err := pair(uint64(g+1)*4096, alloc.Stream(g%2)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		rate = append(rate, 8*count/4/time.Since(start).Seconds()/1e6)
	}
	recordFigure("alloc.parallel", "Mpairs/s", rate)
}

// torchOp is an operation of a run recorded from PyTorch.
type torchOp struct {
	kind   string
	id     int
	ids    []int
	bytes  uint64
	stream alloc.Stream
}

// torchRun is a run recorded from PyTorch.
type torchRun struct {
	Conf     string
	Fraction *float64
	Total    uint64              `json:"total_memory"`
	RawOps   [][]json.RawMessage `json:"ops"`
	ops      []torchOp
}

// torchRuns reads the recorded runs, without the results of PyTorch's allocator.
func torchRuns(t *testing.T) []torchRun {
	f, err := os.Open("../internal/alloc/testdata/fuzz.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var runs []torchRun
	if err := json.NewDecoder(z).Decode(&runs); err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		r := &runs[i]
		for _, raw := range r.RawOps {
			var o torchOp
			decode := func(i int, to any) {
				if err := json.Unmarshal(raw[i], to); err != nil {
					t.Fatal(err)
				}
			}
			decode(0, &o.kind)
			if o.kind == "fm" {
				decode(1, &o.ids)
			} else {
				decode(1, &o.id)
			}
			decode(2, &o.bytes)
			decode(3, &o.stream)
			r.ops = append(r.ops, o)
		}
	}
	return runs
}

// replay performs the operations.
func (r *torchRun) replay() error {
	s, err := alloc.ParseSettings(r.Conf)
	if err != nil {
		return err
	}
	d := alloc.New(&vacuum{total: r.Total}, alloc.Options{Settings: &s})
	if r.Fraction != nil {
		if err := d.SetMemoryFraction(*r.Fraction); err != nil {
			return err
		}
	}
	blocks := map[int]*alloc.Block{}
	free := func(id int) error {
		b := blocks[id]
		delete(blocks, id)
		return d.Free(b)
	}
	for i := range r.ops {
		o := &r.ops[i]
		err = nil
		switch o.kind {
		case "a":
			blocks[o.id], err = d.Alloc(o.bytes, o.stream)
		case "oom":
			if _, e := d.Alloc(o.bytes, o.stream); e == nil {
				err = fmt.Errorf("%d bytes are there", o.bytes)
			}
		case "f":
			err = free(o.id)
		case "fm":
			for _, id := range o.ids {
				if e := free(id); e != nil {
					err = e
				}
			}
		case "r":
			err = d.RecordStream(blocks[o.id], o.stream)
		case "e":
			err = d.EmptyCache()
		default:
			err = fmt.Errorf("unknown operation")
		}
		if err != nil {
			return fmt.Errorf("%q, operation %d %s: %w", r.Conf, i, o.kind, err)
		}
	}
	return nil
}

// TestAllocatorReplay measures PyTorch's recorded runs; internal/alloc tests that each decision is PyTorch's.
func TestAllocatorReplay(t *testing.T) {
	runs := torchRuns(t)
	var rate []float64
	for range 12 {
		ops := 0
		start := time.Now()
		for i := range runs {
			if err := runs[i].replay(); err != nil {
				t.Fatal(err)
			}
			ops += len(runs[i].ops)
		}
		rate = append(rate, float64(ops)/time.Since(start).Seconds()/1e6)
	}
	recordFigure("alloc.replay", "Mops/s", rate)
}
