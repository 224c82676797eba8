package alloc

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev/fault"
)

func TestExpandableGrows(t *testing.T) {
	b := newBench(t, 1<<30, "expandable_segments:True", Options{})
	k := b.alloc(30*mib, 0)
	at := k.Addr()
	b.want("reserved_bytes.all.current", 40*mib)
	b.want("segment.all.current", 0)
	b.want("num_device_alloc", 1)
	b.free(k)
	if k = b.alloc(70*mib, 0); k.Addr() != at { // the same place, grown
		t.Errorf("70 MiB at %#x, want %#x", k.Addr(), at)
	}
	b.want("reserved_bytes.all.current", 80*mib)
	b.want("num_device_alloc", 2)
	small := b.alloc(512, 0)
	if small.Addr()>>20 == at>>20 || len(b.f.ranges) != 2 {
		t.Error("small and large requests share a range")
	}
	l := b.alloc(100*mib, 0)
	b.free(k)
	b.ok(b.EmptyCache()) // 70 MiB hold three whole pages
	b.want("reserved_bytes.all.current", (80-60+100+2)*mib)
	infos := b.Segments()
	if len(infos) != 2 || infos[0].Addr != at+60*mib || !infos[0].Expandable || infos[0].TotalSize != 120*mib {
		t.Errorf("segments %+v", infos)
	}
	b.free(l, small)
	b.ok(b.EmptyCache())
	b.want("reserved_bytes.all.current", 0)
	if len(b.f.ranges) != 0 {
		t.Errorf("%d ranges are left", len(b.f.ranges))
	}
	b.want("inactive_split.all.allocated", 0)
}

// TestExpandableMixed is CUDA-307: the option switched between allocations.
func TestExpandableMixed(t *testing.T) {
	b := newBench(t, 1200*mib, "max_split_size_mb:40", Options{})
	b.ok(b.SetMemoryFraction(0.1))
	var live []*Block
	for _, on := range []string{"False", "True", "False"} {
		s, err := b.Settings().Update("max_split_size_mb:40,expandable_segments:" + on)
		b.ok(err)
		b.SetSettings(s)
		live = append(live, b.alloc(40*mib, 0))
	}
	_, err := b.Alloc(40*mib, 0)
	b.fails(err, fault.OutOfMemory, "set for this process is 120.00 MiB,")
	b.free(live...)
	if k := b.alloc(120*mib, 0); k.expandable() {
		t.Error("the option is off, the block expandable")
	}
}

// TestExpandableOff: expandable blocks are skipped while the option is off.
func TestExpandableOff(t *testing.T) {
	b := newBench(t, 1<<30, "expandable_segments:True", Options{})
	k := b.alloc(50*mib, 0)
	at := k.Addr()
	b.free(k)
	b.SetSettings(DefaultSettings())
	if k = b.alloc(50*mib, 0); k.Addr() == at || k.expandable() {
		t.Error("an expandable block was handed out")
	}
	b.free(k)
	if again := b.alloc(45*mib, 0); again.expandable() {
		t.Error("an expandable block was handed out")
	}
}

func TestExpandableBestFit(t *testing.T) {
	b := newBench(t, 4<<30, "expandable_segments:True", Options{})
	blocks := []*Block{b.alloc(60*mib, 0), b.alloc(20*mib, 0), b.alloc(40*mib, 0), b.alloc(20*mib, 0), b.alloc(20*mib, 0)}
	at := blocks[0].Addr()
	b.free(blocks[0], blocks[2], blocks[4]) // 60 free, 20 live, 40 free, 20 live, 20 free and room to grow
	if k := b.alloc(15*mib, 0); k.Addr() != at+80*mib {
		t.Errorf("15 MiB at offset %d MiB; 40 MiB is the best fit, since 20 MiB can grow", (k.Addr()-at)/mib)
	}
}

// TestExpandableNoRoom: a mapping that fails is undone, and pages that were mapped before stay cached.
func TestExpandableNoRoom(t *testing.T) {
	for undone := range 2 {
		testExpandableNoRoom(t, undone)
	}
}

func testExpandableNoRoom(t *testing.T, undone int) {
	left := undone
	b := newBench(t, 100*mib, "expandable_segments:True", Options{})
	k := b.alloc(40*mib, 0)
	_, err := b.Alloc(80*mib, 0)
	b.fails(err, fault.OutOfMemory, "Tried to allocate 80.00 MiB")
	b.want("reserved_bytes.all.current", 40*mib)
	b.f.fail = func(call string) error {
		if call == "UnmapPage" {
			if left--; left < 0 {
				return errInjected
			}
		}
		return nil
	}
	if _, err := b.Alloc(80*mib, 0); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	b.want("reserved_bytes.all.current", int64(100-20*undone)*mib) // what could not be undone
	b.f.fail = nil
	b.ok(check(b.Device, b.f))
	b.free(k)
	b.alloc(100*mib, 0)
}

// TestExpandableFailingUnmap fails each page of an unmapping in turn.
func TestExpandableFailingUnmap(t *testing.T) {
	for _, call := range []string{"SyncStream", "UnmapPage", "Unreserve"} {
		for n := range 3 {
			b := newBench(t, 1<<30, "expandable_segments:True", Options{})
			b.free(b.alloc(100*mib, 0))
			left := n
			b.f.fail = func(c string) error {
				if c == call {
					if left--; left < 0 {
						return errInjected
					}
				}
				return nil
			}
			err := b.EmptyCache()
			if !errors.Is(err, errInjected) && n == 0 || call == "UnmapPage" && b.stat("reserved_bytes.all.current") !=
				int64(100-20*n)*mib {
				t.Errorf("%s %d: error %v", call, n, err)
			}
			b.ok(check(b.Device, b.f))
			b.f.fail = nil
			b.ok(b.EmptyCache())
			b.want("reserved_bytes.all.current", 0)
			if len(b.f.ranges) != 0 {
				t.Errorf("%s %d: the range is left", call, n)
			}
		}
	}
}

// plainDevice is a device without virtual memory.
type plainDevice struct{ Backend }

func TestExpandableUnsupported(t *testing.T) {
	s, err := ParseSettings("expandable_segments:True")
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeDevice(1 << 30)
	d := New(plainDevice{f}, Options{Settings: &s})
	k, err := d.Alloc(30*mib, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.segments) != 1 || k.expandable() {
		t.Error("no segment was allocated")
	}
	if err := check(d, f); err != nil {
		t.Error(err)
	}
}

// TestExpandablePool: a pool can have expandable segments although the settings have none, with smaller pages on a small device.
func TestExpandablePool(t *testing.T) {
	for _, c := range []struct{ total, page uint64 }{{1 << 30, 2 * mib}, {8 << 30, 20 * mib}, {140 << 30, 20 * mib}} {
		b := newBench(t, c.total, "", Options{})
		id := NewPoolID()
		b.ok(b.NewExpandablePool(id))
		b.fails(b.NewExpandablePool(id), fault.Invalid, "exists already")
		from := func(id PoolID, size uint64) *Block {
			k, err := b.AllocFrom(id, size, 0)
			b.ok(err)
			return k
		}
		k := from(id, 15*mib)
		at, held := k.Addr(), (15*mib+c.page-1)/c.page*c.page
		b.want("reserved_bytes.all.current", int64(held))
		b.free(k)
		for size := uint64(16 * mib); size <= 60*mib; size += 4 * mib { // each grows into the same place
			if k = from(id, size); k.Addr() != at {
				t.Errorf("%d bytes are at %#x, want %#x", size, k.Addr(), at)
			}
			held = (size + c.page - 1) / c.page * c.page
			b.want("reserved_bytes.all.current", int64(held))
			b.free(k)
		}
		k = from(PoolID{}, 15*mib)
		if k.expandable() {
			t.Error("the default pool has expandable segments too")
		}
		b.free(k)
		b.ok(b.ReleasePool(id))
		b.ok(b.EmptyCache())
		b.want("reserved_bytes.all.current", 0)
		if len(b.f.ranges) != 0 {
			t.Errorf("%d ranges are left", len(b.f.ranges))
		}
	}

	d := New(plainDevice{newFakeDevice(1 << 30)}, Options{})
	if err := d.NewExpandablePool(NewPoolID()); err != nil {
		t.Errorf("a device without virtual memory: %v", err)
	}

	b, id := newBench(t, 1<<30, "", Options{}), NewPoolID()
	b.ok(b.NewExpandablePool(id))
	b.f.reserve = func(uint64) (uint64, error) { return 0, fmt.Errorf("cuMemAddressReserve: %w", ErrOutOfMemory) }
	k, err := b.AllocFrom(id, 15*mib, 0)
	b.ok(err)
	if k.expandable() || b.EmptyCache() != nil || b.Free(k) != nil {
		t.Error("without addresses for a range, memory does not come in an ordinary segment")
	}
	b.f.reserve = nil
	k, err = b.AllocFrom(id, 50*mib, 0)
	b.ok(err)
	if !k.expandable() {
		t.Error("there are addresses again, and the segment is an ordinary one")
	}
	b.free(k)
	b.ok(b.ReleasePool(id))
	b.ok(b.EmptyCache())

	b, id = newBench(t, 10<<30, "", Options{}), NewPoolID()
	b.ok(b.NewExpandablePool(id))
	b.ok(b.SetMemoryFraction(120. / 10240))
	k, err = b.AllocFrom(id, 90*mib, 0) // five pages
	b.ok(err)
	_, err = b.AllocFrom(id, 31*mib, 0)
	b.fails(err, fault.OutOfMemory, "set for this process is 120.00 MiB,")
	b.want("reserved_bytes.all.current", 100*mib)
	b.free(k)
	k, err = b.AllocFrom(id, 120*mib, 0)
	b.ok(err)
	b.free(k)
	b.ok(b.ReleasePool(id))
	b.ok(b.EmptyCache())
}
