package alloc

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"tenon.dev/fault"
)

// inspectedDevice is memory that guards can inspect, byte by byte.
type inspectedDevice struct {
	mem       map[uint64]byte
	fill      error // of Fill
	idle      bool  // Inspect does nothing
	capturing bool
	runs      *atomic.Uint64
}

func (d *inspectedDevice) Runs(PoolID) *atomic.Uint64   { return d.runs }
func (d *inspectedDevice) Recorded(PoolID, Stream) bool { return d.capturing }

func (d *inspectedDevice) Fill(addr uint64, v byte, n uint64, _ Stream) error {
	for i := range n {
		d.mem[addr+i] = v
	}
	return d.fill
}

func (d *inspectedDevice) Inspect(f func() error) error {
	if d.idle {
		return nil
	}
	return f()
}

func (d *inspectedDevice) Read(p []byte, addr uint64, _ Stream) error {
	for i := range p {
		p[i] = d.mem[addr+uint64(i)]
	}
	return nil
}

func (d *inspectedDevice) Poison(addr uint64, v uint32, n uint64, _ Stream) error {
	for i := range 4 * n {
		d.mem[addr+i] = byte(v >> (8 * (i % 4)))
	}
	return nil
}

// TestDecorators puts guards, the leak check and both over each strategy: writes past the end are reported, live blocks go back at the end,
// and each works with the other.
func TestDecorators(t *testing.T) {
	for _, strategy := range []string{"caching", "ordered", "direct"} {
		for _, over := range []string{"", "guards", "leaks", "leaks guards"} {
			t.Run(strategy+"/"+over, func(t *testing.T) { decorated(t, strategy, over) })
		}
	}
}

// decorate returns an Allocator of the strategy with decorators over it, its device, and the memory that guards inspect.
func decorate(t *testing.T, strategy, over string) (a Allocator, g *Guards, l *Leaks, f *fakeDevice, mem *inspectedDevice) {
	t.Helper()
	var d *Device
	if strategy == "ordered" {
		ordered, o := openOrdered(t, 1<<30, nil)
		d, f = ordered, o.fakeDevice
	} else {
		f = newFakeDevice(1 << 30)
		d = New(f, Options{})
		d.SetCaching(strategy == "caching")
	}
	h := History{Enabled: HistoryState, Context: LevelState, Collect: func() any { return 7 }}
	if err := d.RecordHistory(h); strategy == "ordered" {
		if fault.KindOf(err) != fault.Unsupported {
			t.Errorf("a history: %v", err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	a = d
	if strings.Contains(over, "guards") {
		mem = &inspectedDevice{mem: map[uint64]byte{}}
		g = NewGuards(a, mem, func(context any) string {
			if context == nil {
				return ""
			}
			return fmt.Sprintf("line %d", context)
		})
		g.Set(true, true)
		a = g
	}
	if strings.Contains(over, "leaks") {
		l = NewLeaks(a)
		a = l
	}
	return a, g, l, f, mem
}

func decorated(t *testing.T, strategy, over string) {
	a, g, l, f, mem := decorate(t, strategy, over)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var blocks []*Block
	for range 3 {
		b, err := a.AllocFrom(PoolID{}, 1000, 3)
		ok(err)
		blocks = append(blocks, b)
	}
	addr := blocks[0].Addr()
	ok(a.Free(blocks[0]))
	if g != nil {
		if mem.mem[addr] != 0xff || mem.mem[addr+3] != 0x7f {
			t.Errorf("freed memory is not poisoned: %#x", mem.mem[addr])
		}
		ok(g.Defects())
		mem.mem[blocks[1].Addr()+1000+2] = 1
	}
	if l == nil {
		ok(a.Free(blocks[1]))
		ok(a.Free(blocks[2]))
	} else {
		var order []uint64
		l.Close(func(addr uint64, err error) {
			order = append(order, addr)
			ok(err)
		})
		if len(order) != 2 || order[0] >= order[1] || !l.Closed() {
			t.Errorf("freed %#x at the end", order)
		}
		ok(a.Free(blocks[1])) // nothing more
	}
	if g != nil {
		want := "1 bytes changed, the first of which is byte 3 past the end; it was allocated at line 7"
		if strategy == "ordered" {
			want = "1 bytes changed, the first of which is byte 3 past the end; record the memory history"
		}
		if _, err := g.AllocFrom(PoolID{}, 1000, 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the next allocation: %v", err)
		}
	}
	ok(a.EmptyCache())
	if f.used != 0 {
		t.Errorf("%d bytes are left", f.used)
	}
}

// TestGuardsFail fails the fill of a zone: the block goes back. While a stream is captured, or if the device cannot be waited for, nothing
// is checked.
func TestGuardsFail(t *testing.T) {
	_, g, _, f, mem := decorate(t, "direct", "guards")
	mem.fill = errInjected
	if _, err := g.AllocFrom(PoolID{}, 1000, 3); !errors.Is(err, errInjected) || f.used != 0 {
		t.Errorf("error %v, %d bytes are left", err, f.used)
	}
	mem.fill = nil
	b, err := g.AllocFrom(PoolID{}, 1000, 3)
	if err != nil {
		t.Fatal(err)
	}
	mem.mem[b.Addr()+1000]++
	mem.idle = true
	if err := errors.Join(g.Free(b), g.Defects()); err != nil {
		t.Error(err)
	}
	mem.idle, mem.capturing = false, true
	if b, err = g.AllocFrom(PoolID{}, 1000, 3); err != nil || b.Size() != 1000 {
		t.Fatalf("a block of %d bytes in a capture, %v", b.Size(), err)
	}
	if err := errors.Join(g.Free(b), g.Defects()); err != nil {
		t.Error(err)
	}
}

// TestGuardsOfGraphs: where graphs write whoever has the memory, nothing is poisoned, and a zone is checked unless one has run since.
func TestGuardsOfGraphs(t *testing.T) {
	_, g, _, _, mem := decorate(t, "caching", "guards")
	mem.runs = new(atomic.Uint64)
	for _, ran := range []bool{false, true} {
		b, err := g.AllocFrom(PoolID{}, 1000, 3)
		if err != nil {
			t.Fatal(err)
		}
		mem.mem[b.Addr()], mem.mem[b.Addr()+1000] = 1, 1
		if ran {
			mem.runs.Add(1)
		}
		if err := g.Free(b); err != nil {
			t.Error(err)
		}
		if err := g.Defects(); (err == nil) != ran {
			t.Errorf("a graph has run: %v; the defect is %v", ran, err)
		}
		if mem.mem[b.Addr()] != 1 {
			t.Error("memory of graphs is poisoned")
		}
	}
}

// TestDecoratorsForget restores a pool: blocks that Restore freed are neither checked nor freed again, and blocks that it made are freed at
// the end if they have an owner.
func TestDecoratorsForget(t *testing.T) {
	a, g, l, f, mem := decorate(t, "caching", "leaks guards")
	d := g.Allocator.(*Device)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	id := NewPoolID()
	ok(d.NewPool(id, nil))
	kept, err := a.AllocFrom(id, 1000, 3)
	ok(err)
	k, err := d.Checkpoint(id)
	ok(err)
	late, err := a.AllocFrom(id, 3*mib, 3)
	ok(err)
	mem.mem[kept.Addr()+1000]++
	mem.mem[late.Addr()+3*mib]++
	r, err := d.Restore(k)
	ok(err)
	g.Forget(r.Freed)
	l.Forget(r.Freed)
	for _, b := range r.Made {
		l.Own(b)
	}
	l.Close(func(_ uint64, err error) { ok(err) })
	ok(g.Defects())
	ok(d.ClosePool(id))
	if f.used != 0 {
		t.Errorf("%d bytes are left", f.used)
	}
}

// TestLeaksTell: the leak check tells what is live, and the device what was allocated by address; a block that Close freed has no pool.
func TestLeaksTell(t *testing.T) {
	a, _, l, _, _ := decorate(t, "direct", "leaks")
	d := l.Allocator.(*Device)
	id := NewPoolID()
	if err := d.NewPool(id, nil); err != nil {
		t.Fatal(err)
	}
	var blocks []*Block
	for _, from := range []PoolID{{}, id} {
		b, err := a.AllocFrom(from, 1000, 3)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	raw, err := d.RawAlloc(100, 3)
	if err != nil {
		t.Fatal(err)
	}
	first, second := blocks[0].Addr(), blocks[1].Addr()
	want := fmt.Sprintf("[{%d 1000 1000 active_allocated 7} {%d 1000 1000 active_allocated 7}]", min(first, second), max(first, second))
	if got := fmt.Sprint(l.Live()); got != want {
		t.Errorf("live are %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(d.RawLive()), fmt.Sprintf("[{%d 100 100 active_allocated 7}]", raw); got != want {
		t.Errorf("live by address are %s, want %s", got, want)
	}
	if l.PoolOf(blocks[0]) != (PoolID{}) || l.PoolOf(blocks[1]) != id {
		t.Errorf("pools %v and %v", l.PoolOf(blocks[0]), l.PoolOf(blocks[1]))
	}
	l.Close(func(_ uint64, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err := d.RawFree(raw); err != nil || len(l.Live()) != 0 || len(d.RawLive()) != 0 || l.PoolOf(blocks[1]) != (PoolID{}) {
		t.Errorf("after Close: %v, live are %v and %v, pool %v", err, l.Live(), d.RawLive(), l.PoolOf(blocks[1]))
	}
}
