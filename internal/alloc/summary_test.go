package alloc

import (
	"os"
	"strings"
	"testing"
)

// TestSummaryRecorded compares the table with the one that PyTorch wrote for the same figures (rounded down to the table's units).
func TestSummaryRecorded(t *testing.T) {
	const kib = 1 << 10
	st := func(current, peak, allocated, freed int64) Stat { return Stat{current, peak, allocated, freed} }
	s := Stats{
		AllocatedBytes: StatArray{st(552166*kib, 3416*mib, 74306*mib, 73767*mib), st(27566*kib, 87*mib, 339*mib, 312*mib),
			st(524600*kib, 3384*mib, 73966*mib, 73454*mib)},
		RequestedBytes: StatArray{st(547499*kib, 3403*mib, 73663*mib, 73128*mib), st(27563*kib, 87*mib, 339*mib, 312*mib),
			st(519936*kib, 3371*mib, 73324*mib, 72816*mib)},
		ReservedBytes: StatArray{st(822*mib, 3884*mib, 7456*mib, 6634*mib), st(36*mib, 88*mib, 140*mib, 104*mib),
			st(786*mib, 3836*mib, 7316*mib, 6530*mib)},
		InactiveSplitBytes: StatArray{st(269081*kib, 721049*kib, 39934*mib, 39671*mib), st(9297*kib, 22413*kib, 378*mib, 369*mib),
			st(259784*kib, 716824*kib, 39555*mib, 39301*mib)},
		Allocation:    StatArray{st(322, 970, 8374, 8052), st(236, 877, 3921, 3685), st(86, 232, 4453, 4367)},
		Segment:       StatArray{st(45, 126, 242, 197), st(18, 44, 70, 52), st(27, 89, 172, 145)},
		InactiveSplit: StatArray{st(38, 96, 3733, 3695), st(16, 81, 1230, 1214), st(22, 54, 2503, 2481)},
		OOMs:          1, AllocRetries: 1,
	}
	s.ActiveBytes, s.Active = s.AllocatedBytes, s.Allocation
	want, err := os.ReadFile("testdata/summary.txt") // of PyTorch 2.11 on an H200
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Summary(0, false); got != string(want) {
		t.Errorf("the table differs from PyTorch's:\n%s", got)
	}
	short := s.Summary(3, true)
	if strings.Contains(short, "from large pool") || !strings.Contains(short, "device ID 3 ") || strings.Count(short, "\n") != 4+2+2*11+1 {
		t.Errorf("abbreviated:\n%s", short)
	}
	for line := range strings.Lines(short) {
		if len(line) != 78 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}

// TestSummaryUnits checks the limits at which the unit changes.
func TestSummaryUnits(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{sizeCell(0, 0), "     0 B  "},
		{sizeCell(768*1024-1, 768*1024-1), "786431 B  "},
		{sizeCell(768*1024, 768*1024), "   768 KiB"},
		{sizeCell(5, 768*1024), "     0 KiB"},
		{sizeCell(1<<50, 1<<50), "  1024 TiB"},
		{sizeCell(1<<62, 1<<62), "  4096 PiB"},
		{countCell(749_999, 749_999), " 749999   "},
		{countCell(750_000, 750_000), "    750 K "},
		{countCell(3_000_000_000, 3_000_000_000), "   3000 M "},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
