package memviz

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/snapshot"
)

//go:noinline
func activations(x *tenon.Exec) []*tenon.Tensor {
	var out []*tenon.Tensor
	for range 5 {
		out = append(out, x.Rand([]int{3 << 20}, tenon.Float32))
	}
	return out
}

// A snapshot of a Tenon program is shown like PyTorch's: who held what at the peak, by Go stack, and why an allocation failed.
func TestOwnSnapshot(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(96 << 20))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	d := x.Device()
	d.SetGarbageCollection(false)
	before := x.Rand([]int{1000}, tenon.Float32)
	defer before.Close()
	if err := d.RecordMemoryHistory(); err != nil {
		t.Fatal(err)
	}
	kept := activations(x)
	if err := tenon.Try(func() { x.Rand([]int{9 << 20}, tenon.Float32) }); err == nil {
		t.Fatal("36 MiB fitted")
	}
	for _, k := range kept[1:] {
		k.Close()
	}
	path := filepath.Join(t.TempDir(), "own.pickle")
	if err := d.DumpSnapshot(path); err != nil {
		t.Fatal(err)
	}
	rec, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	defer kept[0].Close()
	dev := rec.devices[0]
	s, err := rec.at(dev, dev.activeLine.peak, 3, "")
	if err != nil {
		t.Fatal(err)
	}
	if g := s.Groups[0]; !strings.HasSuffix(g.Label, ":tenon.dev/memviz.activations") || g.Count != 5 || g.Bytes != 5*12<<20 {
		t.Errorf("at the peak: %+v", s)
	}
	o, err := rec.oom(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	if o.Size != 36<<20 || o.Active != s.Active || !strings.Contains(strings.Join(o.Summary, " "), "is own_test.go:") {
		t.Errorf("%+v", o)
	}
	// A block that existed before the recording is in its segment in every state.
	m := rec.blocks(dev, 0)
	if len(m.Segments) != 1 || len(m.Segments[0].Blocks) != 1 || m.Segments[0].Blocks[0].Size != 4000 {
		t.Errorf("before: %+v", m)
	}
	own := must(d.Snapshot())
	var b bytes.Buffer
	if err := own.Write(&b); err != nil {
		t.Fatal(err)
	}
	later := must(snapshot.Read(&b, snapshot.ReadOptions{}))
	i := slices.IndexFunc(rec.segments, func(g snapshot.Segment) bool { return g.Addr == later.Segments[0].Addr })
	if i < 0 || len(rec.segments) != len(later.Segments) {
		t.Errorf("%d segments, the device has %d", len(rec.segments), len(later.Segments))
	}
	if rec.devices[0].cachedLine.last != uint64(d.MemoryReserved()) {
		t.Errorf("%d bytes cached at the end, the device says %d", rec.devices[0].cachedLine.last, d.MemoryReserved())
	}
}
