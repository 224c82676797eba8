package check

// clock holds, for every stream by number, the last of its operations that is in the past. A clock never changes.
type clock []uint64

// at returns the clock's value for stream i.
func (c clock) at(i int) uint64 {
	if i < len(c) {
		return c[i]
	}
	return 0
}

// join returns the past of both.
func (c clock) join(o clock) clock {
	i := 0
	for i < len(o) && o[i] <= c.at(i) {
		i++
	}
	if i == len(o) {
		return c
	}
	n := make(clock, max(len(c), len(o)))
	copy(n, c)
	for ; i < len(o); i++ {
		n[i] = max(n[i], o[i])
	}
	return n
}

// Point is a point in a stream: everything that comes before it.
type Point struct{ past clock }

// Site is the place of a call whose operation runs later, because a graph records it.
type Site struct{ caller }

// Here returns the place of the caller's caller.
func Here() *Site { return &Site{called()} }

// Stream is a queue of operations. It and everything below must be used by one goroutine at a time: a machine's lock guards them.
type Stream struct {
	c      *Checker
	number int
	seq    uint64
	past   clock
	host   uint64 // the version of the host's clock included in past
}

// Stream returns a new stream of the checker's machine.
func (c *Checker) Stream() *Stream {
	c.streams++
	return &Stream{c: c, number: c.streams - 1}
}

// Task is one queued operation.
type Task struct {
	stream int
	seq    uint64
	past   clock
	name   string
	caller
}

// At returns the part of a graph's launch that the call at s recorded.
func (a *Task) At(s *Site) *Task {
	t := *a
	t.caller = s.caller
	return &t
}

// verb returns what an operation other than a kernel does to memory.
func (a *Task) verb(write bool) string {
	switch a.name {
	case allocAsync:
		return "allocation"
	case freeAsync:
		return "free"
	}
	return access(write, false)
}

// Enqueue adds an operation, called name in findings, after everything that the host knows to be complete.
func (s *Stream) Enqueue(name string) *Task {
	if s.host != s.c.version {
		s.host, s.past = s.c.version, s.past.join(s.c.host)
	}
	s.seq++
	return &Task{stream: s.number, seq: s.seq, past: s.past, name: name, caller: called()}
}

// Mark returns the point after all operations so far.
func (s *Stream) Mark() *Point {
	own := make(clock, max(len(s.past), s.number+1))
	copy(own, s.past)
	own[s.number] = s.seq
	return &Point{own}
}

// Wait orders later operations after p, which may be nil.
func (s *Stream) Wait(p *Point) {
	if p != nil {
		s.past = s.past.join(p.past)
	}
}

// Sync records that the host has waited for p, which may be nil.
func (c *Checker) Sync(p *Point) {
	if p == nil {
		return
	}
	if n := c.host.join(p.past); len(n) != len(c.host) || len(n) > 0 && &n[0] != &c.host[0] {
		c.host = n
		c.version++
	}
}

// before reports whether a comes before b, or is b.
func (a *Task) before(b *Task) bool { return a.stream == b.stream || b.past.at(a.stream) >= a.seq }
