package replay

import (
	"fmt"
	"testing"

	"tenon.dev/internal/alloc"
)

// TestRangeMemory checks that ranges on the device hold everything mapped in them and do not overlap.
func TestRangeMemory(t *testing.T) {
	const gib = 1 << 30
	run := func(addr, size uint64, s alloc.Stream) alloc.SegmentInfo {
		return alloc.SegmentInfo{Addr: addr, TotalSize: size, Stream: s, Large: true, Expandable: true}
	}
	maps := func(addr, size uint64, s alloc.Stream) driverStep {
		return driverStep{addr: addr, size: size, stream: s, mapped: true}
	}
	page := uint64(largePage)
	for _, c := range []struct {
		name         string
		start        []alloc.SegmentInfo
		steps        []driverStep
		least, apart uint64 // the least size of a range, and the distance to the next
	}{
		{"nothing", nil, []driverStep{{addr: 1, size: 5}}, Unlimited, 0},
		{"one range", nil, []driverStep{maps(gib, page, 0), maps(gib+page, page, 0)}, Unlimited, 0},
		{"two streams", nil, []driverStep{maps(gib, page, 0), maps(3*gib, page, 1), maps(gib+page, page, 0)}, 2 * page, 2 * gib},
		{"ranges come and go", nil, []driverStep{maps(gib, page, 0), maps(2*gib, page, 0), maps(5*gib, page, 0)}, page, gib},
		{"small and large", nil, []driverStep{maps(gib, page, 0), maps(3*gib, 2*mib, 0)}, page, 2 * gib},
		{"runs of one range", []alloc.SegmentInfo{run(gib, page, 0), run(gib+4*page, page, 0), run(9*gib, page, 1)},
			[]driverStep{maps(gib+2*page, page, 0)}, 5 * page, 8 * gib},
		{"a range that reaches into another", nil, []driverStep{maps(gib, gib, 0), maps(gib+page, page, 1)}, gib, 0},
		{"an ordinary segment before a run", []alloc.SegmentInfo{{Addr: gib, TotalSize: 5}, run(2*gib, page, 0), run(4*gib, page, 1)},
			nil, page, 2 * gib},
	} {
		total := rangeMemory(c.start, c.steps)
		size := (total + total/8 + page - 1) / page * page
		if size < c.least || c.apart > 0 && size > c.apart {
			t.Errorf("%s: ranges have %d bytes, want %d to %d", c.name, size, c.least, c.apart)
		}
	}
}

// TestSizes writes numbers so that their difference shows.
func TestSizes(t *testing.T) {
	if got := fmt.Sprintf("%s, %s", sizes(3*mib, 5*mib)...); got != "3.00 MiB, 5.00 MiB" {
		t.Error(got)
	}
	if got := fmt.Sprintf("%s, %s", sizes(3<<30, 3<<30+1)...); got != "3221225472 bytes, 3221225473" {
		t.Error(got)
	}
}
