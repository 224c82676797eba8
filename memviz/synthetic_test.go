package memviz

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/internal/snapshot"
)

// program makes the history of a training-like program: steps of a forward part that allocates, a backward part that frees, and some
// memory that stays for long, in segments of 2 and 20 MiB on two streams. It has about n events, and occasionally a failure.
type program struct {
	rng      *rand.Rand
	events   []snapshot.Event
	n        int
	emit     func([]snapshot.Event) error
	stacks   *snapshot.Stacks
	names    []snapshot.StackID
	next     uint64 // address of the next segment
	free     map[uint64][]uint64
	live     []snapshot.Event
	segments []snapshot.Segment
}

// newProgram returns a program that passes its history to emit in batches.
func newProgram(seed uint64, n int, emit func([]snapshot.Event) error) *program {
	p := &program{rng: rand.New(rand.NewPCG(seed, 1)), n: n, emit: emit, stacks: &snapshot.Stacks{}, next: 1 << 32,
		free: map[uint64][]uint64{}}
	for i := range min(300, 5+n/20) {
		var fs []snapshot.Frame
		for d := range 3 + i%20 {
			fs = append(fs, snapshot.Frame{File: "/src/model" + decimal(d%7) + ".go", Line: 10*d + i, Name: "layer" + decimal(i) +
				".step" + decimal(d)})
		}
		p.names = append(p.names, p.stacks.Add(fs))
	}
	return p
}

func (p *program) event(e snapshot.Event) error {
	e.TimeUS = 1_700_000_000_000_000 - int64(p.n)
	p.events = append(p.events, e)
	p.n--
	if len(p.events) == 4096 {
		return p.flush()
	}
	return nil
}

func (p *program) flush() error {
	err := p.emit(p.events)
	p.events = p.events[:0]
	return err
}

// size draws a size class: many small, few large.
func (p *program) size() uint64 {
	return 512 << min(p.rng.IntN(17), p.rng.IntN(17))
}

func (p *program) alloc(size uint64) error {
	stream := uint64(0)
	if p.rng.IntN(10) == 0 {
		stream = 7
	}
	key := size<<8 | stream
	if len(p.free[key]) == 0 {
		seg := max(2<<20, size)
		g := snapshot.Segment{Addr: p.next, TotalSize: seg, Stream: stream, Type: "large"}
		if seg == 2<<20 {
			g.Type = "small"
		}
		p.segments = append(p.segments, g)
		if err := p.event(snapshot.Event{Action: snapshot.ActionSegmentAlloc, Addr: p.next, Size: seg, Stream: stream,
			Stack: p.names[0]}); err != nil {
			return err
		}
		for at := uint64(0); at+size <= seg; at += size {
			p.free[key] = append(p.free[key], p.next+at)
		}
		p.next += seg
	}
	list := p.free[key]
	addr := list[len(list)-1]
	p.free[key] = list[:len(list)-1]
	e := snapshot.Event{Action: snapshot.ActionAlloc, Addr: addr, Size: size, Stream: stream, Stack: p.names[p.rng.IntN(len(p.names))]}
	p.live = append(p.live, e)
	return p.event(e)
}

func (p *program) release(i int) error {
	e := p.live[i]
	p.live[i] = p.live[len(p.live)-1]
	p.live = p.live[:len(p.live)-1]
	p.free[e.Size<<8|e.Stream] = append(p.free[e.Size<<8|e.Stream], e.Addr)
	e.Action = snapshot.ActionFreeRequested
	if err := p.event(e); err != nil {
		return err
	}
	e.Action = snapshot.ActionFreeCompleted
	return p.event(e)
}

// run makes the history and returns the snapshot without it.
func (p *program) run() (*snapshot.Snapshot, error) {
	for p.n > 40 {
		step := min(1500, p.n/4)
		for range step {
			if err := p.alloc(p.size()); err != nil {
				return nil, err
			}
			if len(p.live) > 0 && p.rng.IntN(3) == 0 {
				if err := p.release(len(p.live) - 1); err != nil {
					return nil, err
				}
			}
		}
		for len(p.live) > 800+p.rng.IntN(100) {
			if err := p.release(len(p.live) - 1 - p.rng.IntN(200)); err != nil {
				return nil, err
			}
		}
		if p.rng.IntN(40) == 0 {
			if err := p.event(snapshot.Event{Action: snapshot.ActionOOM, Addr: 1 << 20, Size: 64 << 20, Stack: p.names[1]}); err != nil {
				return nil, err
			}
		}
	}
	if err := p.flush(); err != nil {
		return nil, err
	}
	s := &snapshot.Snapshot{Stacks: p.stacks, Notes: []snapshot.Note{{}}, Traces: make([][]snapshot.Event, 1),
		Settings: map[string]any{"max_split_size": int64(-1)}}
	slices.SortFunc(p.live, func(a, b snapshot.Event) int { return int(int64(a.Addr - b.Addr)) })
	i := 0
	for _, g := range p.segments {
		at := g.Addr
		add := func(b snapshot.Block) {
			g.Blocks = append(g.Blocks, b)
			at += b.Size
		}
		for ; i < len(p.live) && p.live[i].Addr < g.Addr+g.TotalSize; i++ {
			e := p.live[i]
			if e.Addr > at {
				add(snapshot.Block{Addr: at, Size: e.Addr - at})
			}
			add(snapshot.Block{Addr: e.Addr, Size: e.Size, Requested: e.Size, State: snapshot.ActiveAllocated, Stack: e.Stack})
			g.Allocated, g.Active, g.Requested = g.Allocated+e.Size, g.Active+e.Size, g.Requested+e.Size
		}
		if end := g.Addr + g.TotalSize; end > at {
			add(snapshot.Block{Addr: at, Size: end - at})
		}
		s.Segments = append(s.Segments, g)
	}
	return s, nil
}

// synthetic returns a recording of a program with about n events.
func synthetic(t testing.TB, seed uint64, n int) *Recording {
	t.Helper()
	var b bytes.Buffer
	err := importSnapshot(func(o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
		return newProgram(seed, n, func(batch []snapshot.Event) error { return o.Events(0, batch) }).run()
	}, &b, source{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := load("synthetic", bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}
