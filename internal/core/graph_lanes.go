package core

import (
	"slices"

	"tenon.dev/internal/rt"
)

// A recorded graph has its work in one row. If enough parts of it do not wait for each other, such as the gradients of a layer's weight
// and of its input, it is recorded a second time in two lanes, which the device runs side by side. By then all addresses are known, so
// what must come before what follows from the memory that each piece of work reads and writes, including memory that the pool gave out
// again: nothing has to be known about calls, and nothing is allocated.

const (
	// laneCount is the number of lanes; that of a lane is 0 or 1.
	laneCount = 2
	// laneHop is the time in nanoseconds that work waits in addition for work of another lane, laneNode that of a kernel besides its memory
	// or arithmetic. Like the rates below they are estimates for an H200, which only decide whether lanes are worth it.
	laneHop, laneNode = 1200, 2000
	// laneBytes and the others are rates per nanosecond.
	laneBytes, laneFLOPs, laneHalfFLOPs = 4000, 45e3, 600e3
	// laneFull is the time from which on work takes all memory bandwidth or all arithmetic of the device, in nanoseconds.
	laneFull = 6000
	// laneMost is the most pieces of work for which lanes are tried, and laneSpans the most pieces of memory that they use in all: the
	// search grows with the square.
	laneMost, laneSpans = 1000, 8000
)

// laneSpan is a piece of memory that work reads, or also writes.
type laneSpan struct {
	from, to uint64
	writes   bool
}

// laneWork is a piece of work: the memory that it uses, its estimated time, and what it takes all of.
type laneWork struct {
	spans []laneSpan
	cost  float64
	takes int
}

// What work may take all of, so that no other work that does runs beside it.
const (
	takesNothing = iota
	takesArithmetic
	takesBandwidth
	takesKinds
)

// after reports whether w must come after the earlier work v.
func (w *laneWork) after(v *laneWork) bool {
	for _, a := range w.spans {
		for _, b := range v.spans {
			if (a.writes || b.writes) && a.from < b.to && b.from < a.to {
				return true
			}
		}
	}
	return false
}

// lanes distributes work. In lane of[i], work i comes after all earlier work of that lane, and awaits the work awaits[i] of the other one
// unless that is -1.
type lanes struct{ of, awaits []int }

// distribute puts each piece of work, in their order, into the lane in which it can begin first. It returns false if that saves too little.
func distribute(work []laneWork) (l lanes, ok bool) {
	total, spans := 0.0, 0
	for i := range work {
		spans += len(work[i].spans)
		total += work[i].cost
	}
	if len(work) > laneMost || spans > laneSpans {
		return l, false
	}
	done := make([]float64, len(work))
	var free [laneCount]float64
	var taken [takesKinds]float64     // until when
	awaited := [laneCount]int{-1, -1} // the last work that the lane has awaited
	for i := range work {
		last, ready := [laneCount]int{-1, -1}, [laneCount]float64{}
		// Of the work in a lane that this comes after, only the latest counts, and only if the other lane has not awaited it.
		counts := func(lane, j int) bool { return last[lane] < 0 && j > awaited[1-lane] }
		for j := i - 1; j >= 0 && (counts(0, j) || counts(1, j)); j-- {
			if lane := l.of[j]; counts(lane, j) && work[i].after(&work[j]) {
				last[lane], ready[lane] = j, done[j]
			}
		}
		best, begin := 0, 0.0
		for lane := range laneCount {
			at := free[lane]
			if other := 1 - lane; last[other] > awaited[lane] {
				at = max(at, ready[other]+laneHop)
			}
			if lane == 0 || at < begin {
				best, begin = lane, at
			}
		}
		if k := work[i].takes; k != takesNothing {
			begin = max(begin, taken[k])
			taken[k] = begin + work[i].cost
		}
		done[i] = begin + work[i].cost
		free[best] = done[i]
		l.of = append(l.of, best)
		wait := -1
		if other := 1 - best; last[other] > awaited[best] {
			wait, awaited[best] = last[other], last[other]
		}
		l.awaits = append(l.awaits, wait)
	}
	return l, max(free[0], free[1]) < 0.95*total && slices.Contains(l.of, 1)
}

// laneWork describes the units of the plan, as r recorded them.
func (g *Segment) laneWork(r *Recorded) (work []laneWork) {
	d, stands := g.d, g.stands(r)
	for step, i := range r.plan.units(len(d.calls)) {
		var w laneWork
		n := &r.notes[i]
		rate, bytes := laneFLOPs, 0
		use := func(e *element, writes bool) {
			if e.st == nil {
				return
			}
			st := stands[d.slotIn(e.st)]
			if e.dt.Size() == 2 {
				rate = laneHalfFLOPs
			}
			bytes += e.form.extent * e.dt.Size()
			w.spans = append(w.spans, laneSpan{st.ptr, st.ptr + uint64(st.bytes), writes})
		}
		if step != nil {
			for _, a := range step.group.ins {
				use(a.of(d.calls), false)
			}
			for _, a := range step.group.outs {
				use(a.of(d.calls), true)
			}
		} else {
			c := &d.calls[i]
			for j := range c.in {
				use(&c.in[j], false)
			}
			for j := range c.many {
				use(&c.many[j], false)
			}
			for j := range c.out {
				use(&c.out[j], true)
			}
			for _, st := range c.wrote {
				s := stands[st.slot]
				w.spans = append(w.spans, laneSpan{s.ptr, s.ptr + uint64(s.bytes), true})
			}
		}
		for k, at := range n.work {
			w.spans = append(w.spans, laneSpan{at, at + uint64(n.room[k]), true})
		}
		if nodes := n.to - n.from; nodes > 0 {
			move, compute := float64(bytes)/laneBytes, float64(n.flops)/rate
			w.cost = laneNode*float64(nodes) + max(move, compute)
			switch {
			case max(move, compute) < laneFull:
			case move > compute:
				w.takes = takesBandwidth
			default:
				w.takes = takesArithmetic
			}
		}
		work = append(work, w)
	}
	return work
}

// recordLanes records r again in two lanes, on the stream on, which nobody else uses, and one more, if that is worth it. If that fails, r
// stays as it is, in one row. The error is that of closing the graph that is replaced.
func (g *Segment) recordLanes(r *Recorded, on *rt.Stream, pool *rt.MemPool) error {
	l, ok := distribute(g.laneWork(r))
	if !ok {
		return nil
	}
	again := g.tryLanes(r, on, pool, l)
	if again == nil {
		return nil
	}
	row := r.g
	r.g, r.lanes = again, laneCount
	return row.Close()
}

// tryLanes returns the graph in the lanes l, or nil.
func (g *Segment) tryLanes(r *Recorded, on *rt.Stream, pool *rt.MemPool, l lanes) *rt.Graph {
	dev, s := on.Device(), g.d.s
	side, err := dev.CaptureStream()
	if err != nil {
		return nil
	}
	defer dev.ReturnCaptureStream(side)
	rc, err := dev.BeginCapture(on, rt.CaptureSpec{Pool: pool.ID(), Track: true})
	if err != nil {
		return nil
	}
	stands := g.stands(r)
	c := &capture{x: s.first(on), rc: rc, pool: rc.Pool(), linear: true, generators: r.generators} // with the numbers drawn from them
	s.capture = c
	s.lent = &lending{run: on, of: g.Stream(), manual: true, fixed: true,
		stand: func(st *storage) *storage { return stands[g.d.slotIn(st)] }}
	mark, launches, whole := s.mark(), s.launches, false
	defer func() {
		s.capture, s.lent, s.launches = nil, nil, launches
		if !whole {
			s.restore(mark)
			_ = rc.Abort() // the graph in one row remains; what is wrong with the device shows in its run
		}
	}()
	if err := Try(func() { whole = g.runLanes(r, c, l, [laneCount]*rt.Stream{on, side}) }); err != nil || !whole {
		return nil
	}
	graph, err := rc.End()
	if err != nil {
		return nil
	}
	return graph
}

// runLanes runs the units in their lanes, and reports whether they made the work that they had made before.
func (g *Segment) runLanes(r *Recorded, c *capture, l lanes, streams [laneCount]*rt.Stream) bool {
	d, rc := g.d, c.rc
	Check("Do", rc.Join(streams[1], streams[0]))
	marks := map[int]*rt.Mark{}
	for _, j := range l.awaits {
		if j >= 0 {
			marks[j] = nil
		}
	}
	unit := 0
	for step, i := range r.plan.units(len(d.calls)) {
		st, n := streams[l.of[unit]], &r.notes[i]
		if j := l.awaits[unit]; j >= 0 {
			Check("Do", rc.Await(st, marks[j]))
		}
		n.works = 0
		d.s.lent.run, d.s.lent.notes = st, n
		if rc.Tracked() != n.from {
			return false
		}
		d.runUnit(step, i)
		if rc.Tracked() != n.to || n.works != len(n.work) {
			return false
		}
		if _, awaited := marks[unit]; awaited {
			m, err := rc.Mark(st)
			Check("Do", err)
			marks[unit] = m
		}
		unit++
	}
	Check("Do", rc.JoinAll())
	c.advance()
	return true
}
