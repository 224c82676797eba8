package snapshot_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"tenon.dev/internal/pickle"
	"tenon.dev/internal/snapshot"
)

var (
	events    = flag.Int("events", 200_000, "events of the synthetic snapshot")
	synthetic = flag.String("synthetic", "", "write the synthetic snapshot to this file")
)

// writeSynthetic writes a snapshot as Python's pickler writes PyTorch's: every dict and list is memoised, lists come in batches of 1,000,
// two thirds of the entries have a list of frames of their own with shared frames in it. The program keeps up to 5,000 blocks alive.
func writeSynthetic(w io.Writer, n int) error {
	r := rand.New(rand.NewPCG(1, 2))
	p := pickle.NewWriter(w)
	p.EmptyDict()
	p.Memoize()
	p.Mark()
	p.String("segments")
	p.EmptyList()
	p.Memoize()
	p.String("device_traces")
	p.EmptyList()
	p.Memoize()
	p.Mark()
	p.EmptyList()
	p.Memoize()
	var frames, stacks []uint32
	frame := func(i int) {
		if i < len(frames) {
			p.Get(frames[i])
			return
		}
		p.EmptyDict()
		frames = append(frames, p.Memoize())
		p.Mark()
		p.String("name")
		p.String(fmt.Sprint("forward", i))
		p.String("filename")
		p.String(fmt.Sprintf("/usr/lib/python3/dist-packages/model/layer%d.py", i/7))
		p.String("line")
		p.Int(int64(100 + i))
		p.SetItems()
	}
	stack := func() {
		if len(stacks) > 100 && r.IntN(3) == 0 {
			p.Get(stacks[r.IntN(len(stacks))])
			return
		}
		p.EmptyList()
		stacks = append(stacks, p.Memoize())
		p.Mark()
		kind := r.IntN(500)
		for k := range 8 {
			frame(min(len(frames), (kind*(k+1))%300))
		}
		p.Appends()
	}
	type block struct{ addr, size uint64 }
	var live []block
	when := int64(1_700_000_000_000_000)
	entry := func(action string, b block) {
		p.EmptyDict()
		p.Memoize()
		p.Mark()
		p.String("action")
		p.String(action)
		p.String("addr")
		p.Uint(b.addr)
		p.String("size")
		p.Uint(b.size)
		p.String("stream")
		p.Int(0)
		p.String("time_us")
		p.Int(when)
		p.String("compile_context")
		p.String("N/A")
		p.String("user_metadata")
		p.String("")
		p.String("frames")
		stack()
		p.SetItems()
		when += int64(r.IntN(20))
	}
	pending := block{}
	for i := 0; i < n; i++ {
		if i%1000 == 0 {
			p.Mark()
		}
		switch {
		case pending.size > 0:
			entry("free_completed", pending)
			pending = block{}
		case len(live) < 2500 || len(live) < 5000 && r.IntN(2) == 0:
			b := block{0x7f0000000000 + 512*uint64(r.IntN(1<<27)), 512 * uint64(1+r.IntN(1<<14))}
			live = append(live, b)
			entry("alloc", b)
		default:
			k := r.IntN(len(live))
			pending = live[k]
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			entry("free_requested", pending)
		}
		if i%1000 == 999 || i == n-1 {
			p.Appends()
		}
	}
	p.Appends()
	p.SetItems()
	return p.Close()
}

// TestSyntheticFile writes the synthetic snapshot to a file, for other programs: -synthetic FILE -events 10000000.
func TestSyntheticFile(t *testing.T) {
	if *synthetic == "" {
		t.Skip("no -synthetic FILE given")
	}
	f, err := os.Create(*synthetic)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	if err := writeSynthetic(w, *events); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkRead reads the synthetic snapshot from a file, and gives the events to a function that counts them.
func BenchmarkRead(b *testing.B) {
	name := b.TempDir() + "/synthetic.pickle"
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := writeSynthetic(w, *events); err != nil {
		b.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			b.Fatal(err)
		}
		n := 0
		_, err := snapshot.Read(f, snapshot.ReadOptions{Events: func(_ int, batch []snapshot.Event) error {
			n += len(batch)
			return nil
		}})
		if err != nil || n != *events {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(*events)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mevents/s")
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
}
