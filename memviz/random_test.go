package memviz

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
	"tenon.dev/memviz/replay"
)

// memory is a device of a few hundred MiB for an allocator: segments and pages lie anywhere, and streams make progress when the test says
// so.
type memory struct {
	rng    *rand.Rand
	room   uint64 // bytes
	held   map[uint64]uint64
	ranges map[uint64]uint64
	next   uint64
	old    []uint64 // addresses of freed segments, to reuse
	events map[alloc.Event]int
	last   alloc.Event
	now    int // events recorded before this one's time are complete
}

func (m *memory) Malloc(size uint64) (uint64, error) {
	if size > m.room {
		return 0, alloc.ErrOutOfMemory
	}
	m.room -= size
	addr := m.next
	if n := len(m.old); n > 0 && m.rng.IntN(2) == 0 && m.old[n-1]+size <= m.next && m.fits(m.old[n-1], size) {
		addr, m.old = m.old[n-1], m.old[:n-1]
	} else {
		m.next += (size + 4<<20) &^ (2<<20 - 1)
	}
	m.held[addr] = size
	return addr, nil
}

// fits reports whether a range is free.
func (m *memory) fits(addr, size uint64) bool {
	for _, in := range []map[uint64]uint64{m.held, m.ranges} {
		for a, n := range in {
			if addr < a+n && a < addr+size {
				return false
			}
		}
	}
	return true
}

func (m *memory) Free(addr uint64) error {
	m.room += m.held[addr]
	delete(m.held, addr)
	m.old = append(m.old, addr)
	return nil
}

func (m *memory) MemInfo() (free, total uint64, err error) { return m.room, 400 << 20, nil }

func (m *memory) AcquireEvent() (alloc.Event, error) {
	m.last++
	return m.last, nil
}

func (m *memory) ReleaseEvent(e alloc.Event) { delete(m.events, e) }

func (m *memory) RecordEvent(e alloc.Event, _ alloc.Stream) error {
	m.events[e] = m.now + m.rng.IntN(60)
	return nil
}

func (m *memory) QueryEvent(e alloc.Event) (bool, error)      { return m.events[e] <= m.now, nil }
func (m *memory) SyncEvent(alloc.Event) error                 { return nil }
func (m *memory) Capturing(alloc.Stream) (id uint64, ok bool) { return 0, false }
func (m *memory) SyncStream(alloc.Stream) error               { return nil }
func (m *memory) Unreserve(addr, _ uint64) error              { delete(m.ranges, addr); return nil }
func (m *memory) UnmapPage(addr, size uint64) error           { m.room += size; return nil }
func (m *memory) MapPage(addr, size uint64) error {
	if size > m.room {
		return alloc.ErrOutOfMemory
	}
	m.room -= size
	return nil
}

func (m *memory) Reserve(size uint64) (uint64, error) {
	addr := m.next
	m.next += size + 2<<20
	m.ranges[addr] = size
	return addr, nil
}

// driven is an allocator driven by a random program.
type driven struct {
	t      *testing.T
	rng    *rand.Rand
	m      *memory
	d      *alloc.Device
	stacks *snapshot.Stacks
	live   []*alloc.Block
	pools  []alloc.PoolID
	in     alloc.PoolID // the current diversion
}

func drive(t *testing.T, seed uint64, conf string) *driven {
	t.Helper()
	s, err := alloc.ParseSettings(conf)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 11))
	m := &memory{rng: rng, room: 400 << 20, held: map[uint64]uint64{}, ranges: map[uint64]uint64{}, next: 1 << 40,
		events: map[alloc.Event]int{}}
	p := &driven{t: t, rng: rng, m: m, d: alloc.New(m, alloc.Options{Settings: &s}), stacks: &snapshot.Stacks{}}
	return p
}

// record switches the history on, or changes it.
func (p *driven) record(entries int) {
	p.ok(p.d.RecordHistory(alloc.History{Enabled: alloc.HistoryAll, Context: alloc.LevelAll, MaxEntries: entries, Collect: func() any {
		n := p.rng.IntN(12)
		fs := []snapshot.Frame{{File: "train.py", Line: n, Name: "step" + strconv.Itoa(n)}, {File: "main.py", Line: 3, Name: "<module>"}}
		return p.stacks.Add(fs[n%3/2:])
	}}))
}

func (p *driven) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// step takes one step of the program.
func (p *driven) step() {
	p.m.now++
	switch n := p.rng.IntN(200); {
	case n < 100 || len(p.live) == 0:
		size := uint64(1 + p.rng.IntN(1<<(6+p.rng.IntN(20))))
		if n == 0 {
			size = 1 << 40
		}
		b, err := p.d.Alloc(size, alloc.Stream(p.rng.IntN(3)))
		if fault.KindOf(err) == fault.OutOfMemory {
			for range 1 + len(p.live)/2 {
				p.free()
			}
			return
		}
		p.ok(err)
		p.live = append(p.live, b)
		if p.rng.IntN(9) == 0 {
			p.ok(p.d.RecordStream(b, alloc.Stream(p.rng.IntN(3))))
		}
	case n < 194:
		p.free()
	case n < 195:
		p.ok(p.d.EmptyCache())
	case n < 196 && p.in == (alloc.PoolID{}):
		p.in = alloc.NewPoolID()
		p.pools = append(p.pools, p.in)
		p.ok(p.d.BeginAllocateToPool(p.in, alloc.StreamFilter(alloc.Stream(p.rng.IntN(3)))))
	case n < 199 && p.in != (alloc.PoolID{}):
		p.ok(p.d.EndAllocateToPool(p.in))
		p.in = alloc.PoolID{}
	case n == 199 && len(p.pools) > 1:
		p.ok(p.d.ReleasePool(p.pools[0]))
		p.pools = p.pools[1:]
	}
}

func (p *driven) free() {
	if len(p.live) == 0 {
		return
	}
	i := p.rng.IntN(len(p.live))
	p.ok(p.d.Free(p.live[i]))
	p.live[i] = p.live[len(p.live)-1]
	p.live = p.live[:len(p.live)-1]
}

// snapshot returns the allocator's snapshot, and checks it against the allocator's statistics.
func (p *driven) snapshot() *snapshot.Snapshot {
	st := p.d.Stats()
	a := p.d.Snapshot()
	s := &snapshot.Snapshot{Stacks: p.stacks, Notes: make([]snapshot.Note, 1), Traces: make([][]snapshot.Event, 1),
		Settings: a.Settings.Map()}
	id := func(context any) snapshot.StackID { i, _ := context.(snapshot.StackID); return i }
	for _, e := range a.Trace {
		s.Traces[0] = append(s.Traces[0], snapshot.Event{Action: snapshot.Action(e.Action), Addr: e.Addr, Size: e.Size,
			Stream: uint64(e.Stream), TimeUS: e.Time, Stack: id(e.Context)})
	}
	var total, allocated, active, asked uint64
	for _, g := range a.Segments {
		w := snapshot.Segment{Addr: g.Addr, TotalSize: g.TotalSize, Allocated: g.Allocated, Active: g.Active, Requested: g.Requested,
			Stream: uint64(g.Stream),
			Type:   map[bool]string{false: "small", true: "large"}[g.Large], Pool: g.Pool, Expandable: g.Expandable, Stack: id(g.Context)}
		for _, b := range g.Blocks {
			w.Blocks = append(w.Blocks, snapshot.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested,
				State: snapshot.BlockState(b.State), Stack: id(b.Context)})
		}
		s.Segments = append(s.Segments, w)
		total, allocated, active, asked = total+g.TotalSize, allocated+g.Allocated, active+g.Active, asked+g.Requested
	}
	for _, c := range []struct {
		name string
		got  uint64
		want alloc.Stat
	}{{"reserved", total, st.ReservedBytes.All()}, {"allocated", allocated, st.AllocatedBytes.All()},
		{"active", active, st.ActiveBytes.All()}, {"requested", asked, st.RequestedBytes.All()}} {
		if int64(c.got) != c.want.Current {
			p.t.Errorf("the segments have %d bytes %s, the statistics %d", c.got, c.name, c.want.Current)
		}
	}
	for key, n := range st.Flatten() {
		if n < 0 && key != "max_split_size" {
			p.t.Errorf("%s is %d", key, n)
		}
	}
	return s
}

// TestRandomPrograms drives the allocator with random programs on three streams, with private pools, failures, and traces that begin late
// or whose ring was full, and compares what the viewer and the reports say with the snapshots themselves.
func TestRandomPrograms(t *testing.T) {
	programs := uint64(24)
	if *long {
		programs = 2000
	}
	confs := []string{"", "expandable_segments:True", "max_split_size_mb:24,roundup_power2_divisions:4",
		"expandable_segments:True,max_split_size_mb:32"}
	var before []byte
	for seed := range programs {
		conf := confs[seed%uint64(len(confs))]
		t.Run(fmt.Sprintf("%d %s", seed, conf), func(t *testing.T) {
			p := drive(t, seed, conf)
			late, entries := 0, 0
			switch seed / 4 % 3 {
			case 1:
				late = 150
			case 2:
				entries = 200
			}
			for i := range 700 {
				if i == late {
					p.record(entries)
				}
				p.step()
			}
			s := p.snapshot()
			var b bytes.Buffer
			p.ok(s.Write(&b))
			path := filepath.Join(t.TempDir(), "random.pickle")
			p.ok(os.WriteFile(path, b.Bytes(), 0o600))
			rec, err := Open(path, Options{NoCache: true})
			p.ok(err)
			defer rec.Close()
			s, err = snapshot.Read(&b, snapshot.ReadOptions{})
			p.ok(err)
			checkView(t, rec, s)
			raw := must(os.ReadFile(path))
			checkReports(t, s, raw, before)
			before = raw
			checkReplay(t, s, confs)
		})
	}
}

// negative finds negative figures in answers. Only two are allowed: the -1 of a piece at its segment's end and of no limit.
var negative = regexp.MustCompile(`"(\w+)":-\d+`)

// checkView compares the viewer's answers with the snapshot.
func checkView(t *testing.T, rec *Recording, s *snapshot.Snapshot) {
	t.Helper()
	d := rec.devices[0]
	checkLast(t, rec, d, s)
	checkWalk(t, rec, d, s.Traces[0])
	v := &viewer{rec: rec}
	answer := func(request string) []byte {
		body, err := answerText(v, request)
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		for _, m := range negative.FindAllStringSubmatch(string(body), -1) {
			if !slices.Contains([]string{"before", "after", "max_split_size"}, m[1]) || !strings.HasSuffix(m[0], ":-1") {
				t.Errorf("%s answers %s", request, m[0])
			}
		}
		return body
	}
	info := must(decoded[Info](answer("info")))
	peak := uint64(0)
	for state := 0; state <= d.entry.Events; state += 29 {
		at := must(decoded[State](answer(fmt.Sprintf("at?device=0&state=%d&top=5", state))))
		sum, count := at.Rest.Bytes, at.Rest.Count
		for _, g := range at.Groups {
			sum, count = sum+g.Bytes, count+g.Count
		}
		m := must(decoded[BlockMap](answer(fmt.Sprintf("blocks?device=0&state=%d", state))))
		var size uint64
		blocks := len(m.Strays)
		for _, g := range m.Segments {
			end := uint64(0)
			var active, gap uint64
			for _, b := range g.Blocks {
				if b.Offset < end || b.Offset+b.Size > g.Size {
					t.Errorf("state %d: a block at %d+%d of segment %s of %d bytes, after %d", state, b.Offset, b.Size, g.Addr, g.Size, end)
				}
				gap = max(gap, b.Offset-end)
				end = (b.Offset + b.Size + 511) &^ 511 // the trace has the requested size
				active += b.Size
			}
			if gap = max(gap, g.Size-end); gap != g.Largest || active != g.Active {
				t.Errorf("state %d: segment %s: %d active, a gap of %d; shown are %d and %d", state, g.Addr, active, gap,
					g.Active, g.Largest)
			}
			size += g.Size
			blocks += len(g.Blocks)
		}
		if sum != at.Active || count != at.Count || at.Active != d.activeLine.total(state) || at.Cached != size || blocks != count {
			t.Errorf("state %d: %d bytes of %d in %d allocations of %d (%d blocks), %d cached of %d", state, sum, at.Active, count,
				at.Count, blocks, size, at.Cached)
		}
		peak = max(peak, at.Active)
	}
	if peak > info.Devices[0].MaxActive || info.Devices[0].MaxActive != d.activeLine.total(info.Devices[0].PeakState) ||
		len(info.Devices[0].OOMs) != d.failures(s) {
		t.Errorf("the peak is %d, %d in its state; at least %d was seen; %d failures", info.Devices[0].MaxActive,
			d.activeLine.total(info.Devices[0].PeakState), peak, len(info.Devices[0].OOMs))
	}
	for i := range info.Devices[0].OOMs {
		o := must(decoded[OOM](answer(fmt.Sprintf("oom?device=0&index=%d", i))))
		var free uint64
		for _, r := range o.Reasons {
			free += r.Bytes
			if r.Largest > r.Bytes || r.Pieces == 0 {
				t.Errorf("failure %d: %+v", i, r)
			}
		}
		if free != o.Free || o.Free > o.Cached || o.Active != d.activeLine.total(o.State) || len(o.Summary) == 0 {
			t.Errorf("failure %d: %d free of %d, %d cached, %d active", i, free, o.Free, o.Cached, o.Active)
		}
	}
	for _, request := range []string{"tile?device=0&view=active&level=0&index=0", fmt.Sprintf("tile?device=0&view=cached&level=%d&index=0",
		info.Devices[0].TopLevel), "search?device=0&q=size%3E1k&limit=50", "events?device=0&from=0&count=100"} {
		answer(request)
	}
}

// failures counts the failed allocations of the trace.
func (d *device) failures(s *snapshot.Snapshot) (n int) {
	for _, e := range s.Traces[d.index] {
		if e.Action == snapshot.ActionOOM {
			n++
		}
	}
	return n
}

func decoded[T any](body []byte) (v T, err error) {
	err = json.Unmarshal(body, &v)
	return v, err
}

// checkReports adds up the figures of the text reports.
func checkReports(t *testing.T, s *snapshot.Snapshot, raw, before []byte) {
	t.Helper()
	report := func(write func(w io.Writer, r io.Reader, name string) error) string {
		var b strings.Builder
		if err := write(&b, bytes.NewReader(raw), "random"); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	var total uint64
	for _, g := range s.Segments {
		total += g.TotalSize
	}
	for _, write := range []func(io.Writer, io.Reader, string) error{WriteSegments, WriteMemory} {
		var sum int64
		text := report(write)
		for line := range strings.Lines(text) {
			n, err := strconv.ParseInt(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 10, 64)
			// PyTorch writes a negative number for free blocks whose request was larger
			if err != nil || n < 0 && !strings.Contains(line, "inactive;<gaps> ") {
				t.Fatalf("the line %q: %v", line, err)
			}
			sum += n
		}
		if sum != int64(total) {
			t.Errorf("the lines add up to %d of %d bytes", sum, total)
		}
		if err := WriteFlameGraph(io.Discard, strings.NewReader(text), "random"); err != nil {
			t.Error(err)
		}
	}
	if text := report(WriteStats); regexp.MustCompile(` \(?-\d`).MatchString(text) ||
		!strings.Contains(text, fmt.Sprintf("segments: %d\n", len(s.Segments))) {
		t.Errorf("the statistics say\n%s", text)
	}
	trace := report(WriteTrace)
	if want := slices.MaxFunc(append(s.Traces[0], snapshot.Event{}), func(a, b snapshot.Event) int {
		return cmp.Compare(a.TimeUS, b.TimeUS)
	}); want.TimeUS > 0 && strings.Count(trace, "\n") < len(s.Traces[0])/2 {
		t.Errorf("the trace has %d lines for %d events", strings.Count(trace, "\n"), len(s.Traces[0]))
	}
	if before != nil {
		if err := WriteCompare(io.Discard, bytes.NewReader(before), bytes.NewReader(raw), "before", "after"); err != nil {
			t.Error(err)
		}
	}
	var perfetto bytes.Buffer
	if err := s.WriteTrace(&perfetto); err != nil || !json.Valid(perfetto.Bytes()) ||
		regexp.MustCompile(`"(dur|allocated|reserved|ts)":\s*-`).Match(perfetto.Bytes()) {
		t.Errorf("the trace for Perfetto is no JSON, or has negative figures: %v", err)
	}
	if err := s.WriteProfile(io.Discard); err != nil {
		t.Error(err)
	}
}

// checkReplay replays the program under all settings, sometimes on a device that is too small.
func checkReplay(t *testing.T, s *snapshot.Snapshot, confs []string) {
	t.Helper()
	var raw bytes.Buffer
	if err := s.Write(&raw); err != nil {
		t.Fatal(err)
	}
	p, err := replay.Read(&raw)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Check()
	if err != nil || c.Equal > c.Allocs || c.Followed > c.DriverSteps {
		t.Errorf("%+v, %v", c, err)
	}
	for _, conf := range confs {
		r, err := p.Run(replay.Options{Settings: conf, Memory: 200 << 20})
		if err != nil || r.PeakAllocated > r.PeakReserved || r.PeakRequested > r.PeakReserved || r.EndReserved > r.PeakReserved ||
			r.Fragmentation < 0 || r.PeakReserved > 200<<20 && p.Recorded.StartReserved <= 200<<20 {
			t.Errorf("%q: %+v, %v", conf, r, err)
		}
	}
}
