package hostsim

import (
	"math"
	"math/rand/v2"

	"tenon.dev/internal/driver"
)

// Policy orders the work of different streams. Work of one stream always runs in order.
type Policy struct {
	kind   policyKind
	seed   uint64
	stream driver.Stream
}

type policyKind uint8

const (
	policyFIFO policyKind = iota
	policyRandom
	policyInterleave
	policyStarve
)

// FIFO runs the operation that can begin earliest on the device clock; ties go to the one queued first.
func FIFO() Policy { return Policy{} }

// Random runs any stream that can proceed, and the blocks of a kernel in any order; equal seeds give equal schedules.
func Random(seed uint64) Policy { return Policy{kind: policyRandom, seed: seed} }

// Interleave runs one operation of each stream in turn.
func Interleave() Policy { return Policy{kind: policyInterleave} }

// Starve runs s only while nothing else can run.
func Starve(s driver.Stream) Policy { return Policy{kind: policyStarve, stream: s} }

// setPolicy changes the schedule; mu is held.
func (m *machine) setPolicy(p Policy) {
	m.policy = p
	m.rng = rand.New(rand.NewPCG(p.seed, 0))
}

// farFuture is later than any device time.
const farFuture = math.MaxInt64

// candidate is one operation that can run: a stream's head, or a node of the graph that the stream is running.
type candidate struct {
	s    *stream
	node int32 // -1: the head itself
	at   int64 // when it can begin
	seq  uint64
}

// choose returns the operation to run next, of all that can begin before limit; mu is held.
func (m *machine) choose(limit int64) (best candidate, at int64, ok bool) {
	seen := 0
	m.candidates(func(c candidate) bool {
		if c.at < limit {
			if seen++; seen == 1 || m.better(c, best, seen) {
				best = c
			}
		}
		return true
	})
	return best, best.at, seen > 0
}

// moves reports whether work queued up to seq is running or can run; mu is held.
func (m *machine) moves(seq uint64) bool {
	moves := m.running != 0 && m.running <= seq
	if !moves {
		m.candidates(func(c candidate) bool { moves = c.seq <= seq; return !moves })
	}
	return moves
}

// candidates calls visit for everything that can run, until it returns false; mu is held.
func (m *machine) candidates(visit func(c candidate) bool) {
	for _, s := range m.active {
		switch {
		case s.held > 0 || s.busy:
		case s.graph != nil:
			for _, n := range s.graph.ready {
				if !visit(candidate{s, n, s.graph.at[n], s.head().seq}) {
					return
				}
			}
		default:
			if at, ok := m.start(s); ok && !visit(candidate{s, -1, at, s.head().seq}) {
				return
			}
		}
	}
}

// better reports whether the policy prefers c to best; c is the seen-th candidate.
func (m *machine) better(c, best candidate, seen int) bool {
	switch m.policy.kind {
	case policyRandom:
		return m.rng.IntN(seen) == 0 // each of n candidates is kept with probability 1/n
	case policyInterleave:
		if c.s.turn != best.s.turn {
			return c.s.turn < best.s.turn
		}
	case policyStarve:
		if a, b := c.s.handle == m.policy.stream, best.s.handle == m.policy.stream; a != b {
			return b
		}
	}
	if c.at != best.at {
		return c.at < best.at
	}
	return c.seq < best.seq
}

// start returns when the head of s can begin, if everything it waits for has run.
func (m *machine) start(s *stream) (int64, bool) {
	o, d := s.head(), s.dev
	at := max(s.ready, o.issued)
	switch {
	case s.legacy:
		for _, b := range m.active {
			if b.dev == d && b.blocking && b.head().seq < o.seq {
				return 0, false
			}
		}
		at = max(at, d.blocking)
	case s.blocking:
		if !d.legacy.idleTo(o.seq) {
			return 0, false
		}
		at = max(at, d.legacy.ready)
	}
	switch o.kind {
	case opWait:
		if !o.rec.done {
			return 0, false
		}
		at = max(at, o.rec.at)
	case opGraph:
		if o.exec.done != o.ticket {
			return 0, false
		}
		at = max(at, o.exec.end)
	}
	return at, true
}

// run runs one operation that can begin before limit, and reports whether there was one. mu is held before and after, and unlocked while
// the operation runs.
func (m *machine) run(limit int64) bool {
	c, at, ok := m.choose(limit)
	if !ok {
		return false
	}
	s := c.s
	if m.opts.RealTime {
		at = max(at, m.clock())
	}
	m.turn++
	s.turn = m.turn
	o := s.head()
	if c.node >= 0 {
		s.graph.begin(c.node)
		o = &s.graph.nodes[c.node].op
	}
	switch o.kind {
	case opRecord:
		r := o.rec
		if c.node >= 0 {
			r = o.event.reached(m, s.graph, at)
		}
		r.done, r.at, r.failure = true, at, s.failure
		m.finish(c, at)
	case opWait:
		s.inherits(o.rec.failure)
		m.finish(c, at)
	case opGraph:
		o.exec.start(o.ticket, at+m.cost(launchCost))
		s.graph = o.exec
		if len(o.exec.nodes) == 0 {
			m.finishGraph(s)
		}
	case opCallback:
		m.call(c, o.callback, at)
	default:
		m.running = c.seq
		s.busy = true
		s.task = s.head().task
		m.mu.Unlock()
		ns, fault := s.perform(o, at)
		m.mu.Lock()
		m.running = 0
		s.busy = false
		end := at + ns
		if m.opts.RealTime {
			end = max(end, m.clock())
		}
		switch {
		case fault == nil:
			m.finish(c, end)
		case fault.Code == driver.Assert:
			s.failed(fault)
			m.finish(c, end)
		default:
			s.dev.poison(fault)
		}
	}
	return true
}

// finish records that c ran and is complete at end; mu is held.
func (m *machine) finish(c candidate, end int64) {
	s := c.s
	if c.node >= 0 {
		s.graph.finish(c.node, end)
		if s.graph.left == 0 {
			m.finishGraph(s)
		}
	} else {
		m.complete(s, end)
	}
	m.served++
	m.changed.Broadcast()
}

// complete removes the head of s, whose work is complete at end.
func (m *machine) complete(s *stream, end int64) {
	s.ready = max(s.ready, end)
	s.dev.latest = max(s.dev.latest, s.ready)
	if s.blocking {
		s.dev.blocking = max(s.dev.blocking, s.ready)
	}
	s.pop(m)
}

// finishGraph ends the run of the graph at the head of s.
func (m *machine) finishGraph(s *stream) {
	e := s.graph
	s.graph = nil
	e.done++
	m.complete(s, e.end)
	m.changed.Broadcast()
}

// call runs a host callback on its own goroutine, since it may wait for something the host does; the stream waits for it.
func (m *machine) call(c candidate, id driver.CallbackID, at int64) {
	fn := m.callbacks[id]
	seq := c.seq
	if c.node < 0 {
		c.s.busy = true
	}
	m.now = max(m.now, at) // the host learns that the device got here
	m.learn(target{s: c.s})
	m.changed.Broadcast() // a launching call waits for work, not for a callback
	go func() {
		if fn != nil {
			fn()
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if c.s.idleTo(seq) {
			return // the device was lost in the meantime
		}
		if c.node < 0 {
			c.s.busy = false
		}
		m.heard(1)
		end := at + m.cost(callbackCost)
		if m.opts.RealTime {
			end = max(end, m.clock())
		}
		m.finish(c, end)
		if m.opts.RealTime {
			m.poke()
		}
	}()
}
