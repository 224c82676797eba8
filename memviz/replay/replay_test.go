package replay

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

const recordings = "../../internal/snapshot/testdata/"

func open(t testing.TB, name string) *snapshot.Snapshot {
	t.Helper()
	f, err := os.Open(recordings + name + ".pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := snapshot.Read(f, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func program(t testing.TB, s *snapshot.Snapshot) *Program {
	t.Helper()
	p, err := newProgram(s, new(0))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func check(t testing.TB, p *Program) Check {
	t.Helper()
	c, err := p.Check()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func run(t testing.TB, p *Program, o Options) Result {
	t.Helper()
	r, err := p.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTorch replays PyTorch's recorded snapshots under their own settings: every block at its address, every segment taken and returned in
// turn, the snapshot's own sums and segments at the end.
func TestTorch(t *testing.T) {
	for name, want := range map[string]struct {
		allocs, steps, segments, ooms int
		settings                      string
	}{
		"resnet50":         {3159, 126, 126, 0, ""},
		"gpt2_amp_graph":   {5215, 117, 45, 1, ""}, // begins in the middle; a graph's pool, an empty_cache, a failed allocation
		"extra_expandable": {206, 58, 6, 0, "expandable_segments:True,max_split_size_mb:64"},
		"extra_streams":    {206, 71, 71, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, name)
			p := program(t, s)
			c := check(t, p)
			if !c.Exact() {
				t.Errorf("the replay is another: %q", c.Differences)
			}
			if c.Allocs != want.allocs || c.Equal != want.allocs || c.DriverSteps != want.steps || c.Followed != want.steps ||
				c.Segments != want.segments || !c.FinalEqual || int(c.OOMs) != want.ooms || c.Settings != want.settings {
				t.Errorf("%+v, want %+v", c, want)
			}
			sums(t, s, p, &c)
		})
	}
}

// sums compares the program with sums computed from the file directly.
func sums(t *testing.T, s *snapshot.Snapshot, p *Program, c *Check) {
	t.Helper()
	var reserved, peak, held uint64
	for _, g := range s.Segments {
		held += g.TotalSize
	}
	reserved = held
	for i := len(s.Traces[0]) - 1; i >= 0; i-- {
		peak = max(peak, reserved)
		switch e := s.Traces[0][i]; e.Action {
		case snapshot.ActionSegmentAlloc, snapshot.ActionSegmentMap:
			reserved -= e.Size
		case snapshot.ActionSegmentFree, snapshot.ActionSegmentUnmap:
			reserved += e.Size
		}
	}
	var allocs, frees uint64
	for _, e := range s.Traces[0] {
		switch e.Action {
		case snapshot.ActionAlloc:
			allocs += e.Size
		case snapshot.ActionFreeCompleted:
			frees += e.Size
		}
	}
	r := p.Recorded
	if c.PeakReserved != peak || c.EndReserved != held || r.PeakReserved != peak || r.EndReserved != held || r.StartReserved != reserved {
		t.Errorf("reserved: peak %d and %d of %d, end %d and %d of %d, start %d of %d", c.PeakReserved, r.PeakReserved, peak,
			c.EndReserved, r.EndReserved, held, r.StartReserved, reserved)
	}
	if r.AllocBytes != allocs || r.FreeBytes != frees || c.PeakRequested != r.PeakRequested {
		t.Errorf("%d bytes allocated of %d, %d freed of %d, at most %d in use of %d", r.AllocBytes, allocs, r.FreeBytes, frees,
			c.PeakRequested, r.PeakRequested)
	}
}

// TestTruncated cuts the front off PyTorch's traces, as a full ring buffer does. The earlier state is then inferred from the rest: the
// replay is still exact, except where nothing shows the size of a large block's remainder.
func TestTruncated(t *testing.T) {
	for name, inexact := range map[string]int{"resnet50": 0, "gpt2_amp_graph": 2, "extra_streams": 0, "extra_expandable": 0} {
		s := open(t, name)
		whole := s.Traces[0]
		left := 0
		for i := range 40 {
			s.Traces[0] = whole[len(whole)*i/40:]
			p := program(t, s)
			if c := check(t, p); !c.Exact() {
				left++
				t.Logf("%s, %d of 40: %s", name, i, c.Differences[0])
			}
			if i > 0 && !strings.Contains(strings.Join(p.Notes, " "), "The trace begins in the middle") {
				t.Errorf("%s, %d of 40: no note says that the trace begins in the middle: %q", name, i, p.Notes)
			}
			if s := strings.Join(p.Notes, " "); strings.Contains(s, "contradict") {
				t.Errorf("%s, %d of 40: %q", name, i, p.Notes)
			}
		}
		if left > inexact {
			t.Errorf("%s: %d of 40 cuts are not exact, %d were", name, left, inexact)
		}
	}
}

// TestOther replays under other settings: the program's requests are the same, and the figures have the right relations.
func TestOther(t *testing.T) {
	p := program(t, open(t, "gpt2_amp_graph"))
	var results []Result
	for _, s := range p.AutoSettings(false) {
		r := run(t, p, Options{Settings: s})
		if r.PeakRequested != p.Recorded.PeakRequested || r.OOMs != 0 {
			t.Errorf("%q: peak requested %d, recorded %d; %d failures", s, r.PeakRequested, p.Recorded.PeakRequested, r.OOMs)
		}
		if r.PeakRequested > r.PeakAllocated || r.PeakAllocated > r.PeakReserved || r.EndReserved > r.PeakReserved {
			t.Errorf("%q: %+v", s, r)
		}
		if r.Recorded != (s == "") || r.DriverCalls != r.Calls.Total() || r.DriverCalls == 0 {
			t.Errorf("%q: %+v", s, r)
		}
		results = append(results, r)
	}
	own := run(t, p, Options{})
	if own.PeakReserved != p.Recorded.PeakReserved {
		t.Errorf("the recording's settings reserve %d, the recording %d", own.PeakReserved, p.Recorded.PeakReserved)
	}
	Sort(results)
	if results[0].PeakReserved >= own.PeakReserved || !strings.Contains(results[0].Settings, "expandable_segments:True") {
		t.Errorf("the best is %+v", results[0])
	}
	for i := 1; i < len(results); i++ {
		if results[i].PeakReserved < results[i-1].PeakReserved {
			t.Errorf("%q before %q", results[i-1].Settings, results[i].Settings)
		}
	}
	if n, m := len(p.AutoSettings(false)), len(p.AutoSettings(true)); m <= n {
		t.Errorf("%d settings without, %d with a fraction", n, m)
	}
}

// TestMemory replays on devices that are too small, and finds the smallest one that is large enough.
func TestMemory(t *testing.T) {
	p := program(t, open(t, "resnet50"))
	for _, settings := range []string{"", "expandable_segments:True", "max_split_size_mb:64"} {
		fit, err := p.Fit(settings, 0)
		if err != nil {
			t.Fatal(err)
		}
		free := run(t, p, Options{Settings: settings})
		if fit > free.PeakReserved || fit < free.PeakAllocated {
			t.Errorf("%q fits into %d; a free run reserves %d for %d", settings, fit, free.PeakReserved, free.PeakAllocated)
		}
		if r := run(t, p, Options{Settings: settings, Memory: fit}); r.OOMs != 0 || r.PeakReserved > fit || r.FirstOOM != nil {
			t.Errorf("%q on %d bytes: %+v", settings, fit, r)
		}
		r := run(t, p, Options{Settings: settings, Memory: fit - smallPage})
		if r.OOMs == 0 || r.FirstOOM == nil || r.FirstOOM.Bytes == 0 || !strings.Contains(r.FirstOOM.Message, "CUDA out of memory") ||
			r.Retries == 0 {
			t.Errorf("%q on %d bytes: %+v", settings, fit-smallPage, r)
		}
		if r := run(t, p, Options{Settings: settings, Memory: fit / 2}); r.OOMs < 2 || r.PeakReserved > fit/2 || r.Calls.Refusals == 0 {
			t.Errorf("%q on half of that: %+v", settings, r)
		}
		// pages are mapped whole
		if r := run(t, p, Options{Settings: settings, Memory: 2 * fit, Fraction: 0.25}); r.OOMs == 0 || r.PeakReserved > fit/2+largePage {
			t.Errorf("%q within a quarter of twice that: %+v", settings, r)
		}
	}
}

// TestFailedAllocation replays a trace with a failed allocation of 1 PiB.
func TestFailedAllocation(t *testing.T) {
	p := program(t, open(t, "gpt2_amp_graph"))
	if r := run(t, p, Options{Memory: 8 << 30}); r.OOMs != 1 || r.Rescued != 0 || int(r.FirstOOM.Event) != p.Recorded.Events-1 {
		t.Errorf("%+v", r)
	}
	if r := run(t, p, Options{Memory: 1 << 51}); r.OOMs != 0 || r.Rescued != 1 {
		t.Errorf("%+v", r)
	}
	fit, err := p.Fit("", 0)
	if err != nil || fit > p.Recorded.PeakReserved {
		t.Errorf("it fits into %d, %v", fit, err)
	}
}

func TestErrors(t *testing.T) {
	s := &snapshot.Snapshot{Traces: [][]snapshot.Event{nil, nil}, Stacks: &snapshot.Stacks{}}
	fails := func(err error, part string) {
		t.Helper()
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %q", err, part)
		}
	}
	_, err := newProgram(s, nil)
	fails(err, "holds no trace; record the history")
	s.Traces[1] = []snapshot.Event{{Action: snapshot.ActionAlloc, Addr: 512}}
	for _, device := range []int{0, -1, 2} {
		_, err = newProgram(s, &device)
		fails(err, "no trace of device "+strconv.Itoa(device)+", but of 1; choose one of these")
	}
	_, err = newProgram(s, nil)
	fails(err, "event 0 of the trace allocates 0 bytes: the file is damaged")
	p := program(t, open(t, "extra_streams"))
	_, err = p.Run(Options{Settings: "max_split_size_mb:2"})
	fails(err, "max_split_size_mb too small")
	_, err = p.Run(Options{Settings: "backend:cudaMallocAsync"})
	fails(err, "choose the driver's own allocator")
	_, err = p.Run(Options{Fraction: 2})
	fails(err, "Invalid fraction value")
	_, err = p.Fit("nonsense:1", 0)
	fails(err, "Unrecognized CachingAllocator option: nonsense")
	for _, none := range []*Program{nil, {}} {
		_, err = none.Run()
		fails(err, "the program is nil or a zero value; use one that Read returned")
		_, err = none.Check()
		fails(err, "the program is nil")
		_, err = none.Fit("", 0)
		fails(err, "the program is nil")
		if len(none.AutoSettings(true)) == 0 {
			t.Error("no settings")
		}
	}
	_, err = Read(nil)
	fails(err, "the snapshot's reader is nil")
	_, err = Read(strings.NewReader("{\"a\": 1}"))
	fails(err, "it is not a pickle, as DumpSnapshot writes, but JSON")
}
