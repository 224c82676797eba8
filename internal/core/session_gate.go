package core

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/origin"
)

// A session is used by one goroutine at a time, and the gate detects violations. It asks whether somebody is inside, and not who: it is
// closed while a goroutine is inside the library with the session, and open while the library calls a function of the program, whichever
// goroutine uses the session from there. It detects two calls that overlap in time and, by levels, calls of functions that are not properly
// nested. Goroutines that take turns, each with whole calls, do no harm to the session and are not detected, although what one makes while
// another one's scope is open ends with that scope.

// gate guards everything that touches a session. Whatever enters a session closes it before it reads any other field, and the functions
// below core's methods rely on that. Its fields other than in, waiting, visitor and torn belong to the goroutine inside.
type gate struct {
	// door says whether a goroutine is inside; once the session is torn, it always does.
	*door
	// waiting counts the goroutines that found the gate closed. It stays above 0 once the session is torn.
	waiting atomic.Int32
	// visitor is the line where the first of them called, or nil.
	visitor atomic.Pointer[string]
	// torn says why nobody may enter any more, or is nil.
	torn atomic.Pointer[tear]
	// lent says that a goroutine of another session is inside, which runs the deferred calls.
	lent atomic.Bool
	// levels are the calls of functions of the program; the first height of them are under way.
	levels []*level
	height int
}

// tear holds the places, as file:line, of two calls that used the session at once.
type tear struct{ inside, entered string }

// Enter admits the calling goroutine to x's session for the method op, until Leave. It panics if another goroutine is inside, or if the
// session is torn.
func Enter(x *Exec, op string) { x.s.in(op) }

// Leave ends Enter. Callers defer it.
func Leave(x *Exec) { x.s.out() }

func (s *session) in(op string) {
	if d := s.gate.door; !(d.mine() && d.enterOwn() || d.freeCommon()) { // free, which is not inlined
		s.enterSlow(op)
	}
}

func (s *session) out() {
	if d := s.gate.door; d.owner.Load() > disowning { // nobody waits to enter, because whoever comes disowns first
		d.leaveOwn()
		if d.left.Load() {
			d.wentOut()
		}
	} else {
		s.outCommon()
	}
}

// outCommon is out for a goroutine that is not the owner, or no longer.
func (s *session) outCommon() {
	g := &s.gate
	if g.waiting.Load() == 0 {
		g.open()
		return
	}
	s.leaveSlow()
	if g.left.Load() { // a torn session does not open
		g.wentOut()
	}
}

// torn reports whether the session refuses all calls. Then nothing in it may be touched: the goroutine that tore it has closed its scopes.
func (s *session) torn() bool { return s.gate.torn.Load() != nil }

// patience is how long a goroutine that found the gate closed waits for the other one to leave, which then records where it was; yields is
// how many of its pauses only yield the processor.
const (
	patience = time.Second
	yields   = 100
)

func pause(i int) {
	if i < yields {
		runtime.Gosched()
		return
	}
	time.Sleep(min(time.Duration(i-yields+1)*10*time.Microsecond, time.Millisecond))
}

// wait returns true once the calling goroutine, which is counted as waiting, is inside, and false if the session is torn or patience is
// over; patience 0 has no limit. If the goroutine inside left without having seen this one, their calls did not overlap.
func (s *session) wait(patience time.Duration) bool {
	g := &s.gate
	at, began := where(), time.Now()
	here := &at
	for i := 0; ; i++ {
		if g.torn.Load() != nil {
			return false
		}
		g.visitor.CompareAndSwap(nil, here)
		if g.free() {
			g.visitor.CompareAndSwap(here, nil)
			g.waiting.Add(-1)
			return true
		}
		if pause(i); patience > 0 && time.Since(began) > patience && !g.lent.Load() {
			return false
		}
	}
}

func (s *session) enterSlow(op string) {
	g := &s.gate
	if g.torn.Load() != nil {
		panic(s.refused(op))
	}
	g.waiting.Add(1) // at once, so that the goroutine inside sees it even if it is about to leave
	if reentered() {
		g.waiting.Add(-1)
		panic(Refusal(op, fault.Invalid, "a function that the library calls in the middle of an operation, such as an observer of the "+
			"allocator, cannot use the operation's Exec; give it another one, from Fork"))
	}
	if s.wait(patience) {
		return
	}
	// If patience is over, the other goroutine tears the session when it leaves, because this one is still counted as waiting.
	other := s.otherInside()
	if t := g.torn.Load(); t != nil {
		other = t.inside
	}
	panic(shared(op, other))
}

func (s *session) leaveSlow() {
	g := &s.gate
	if g.torn.Load() != nil {
		return
	}
	for i := 0; g.waiting.Load() > 0; i++ {
		if v := g.visitor.Load(); v != nil {
			s.tear(where(), *v)
			return
		}
		pause(i) // the visitor is about to say where it is
	}
	g.open()
}

// tear makes the session refuse all calls from now on, and closes the tensors of its scopes. The calling goroutine is inside; goroutines
// that are in functions of the program find nothing that they may touch when they return. What only one goroutine holds, such as a Together
// or a capture, is left to that goroutine.
func (s *session) tear(inside, entered string) {
	s.gate.waiting.Add(1)
	word, _ := s.gate.word()
	s.gate.owner.Store(disowned)
	atomic.StoreUint64(&s.gate.in, atomic.LoadUint64(&s.gate.in)|busy|shut) // busy is set already, except in tests that pass no gate
	if word == &s.gate.own {
		s.gate.leaveOwn()
	}
	if s.depth > 0 {
		s.frames[0].abandon()
	}
	s.popTo(nil)
	if s.putOff != nil {
		s.putOff.ran, s.putOff.done = 0, 0
		_ = s.putOff.end()
	}
	s.doing, s.run = s.doing[:0], nil
	s.gate.torn.Store(&tear{inside, entered})
}

// level is a call of a function of the program. Its address identifies the session and the depth, and stacks show it.
type level struct{ n int }

// run calls f, a function that the session with door d calls. Its frame identifies the goroutine that is in f.
//
//go:noinline
func (l *level) run(d *door, f func()) {
	f()
	runtime.KeepAlive(l)
	runtime.KeepAlive(d)
}

// within reports whether the calling goroutine is in a function of the program that the session with door d has called. It reads the
// goroutine's stack, which takes microseconds.
func (d *door) within() bool {
	mark := fmt.Sprintf(", %p, ", d)
	buf := make([]byte, 1<<12)
	n := runtime.Stack(buf, false)
	for n == len(buf) && n < 1<<20 {
		buf = make([]byte, 4*n)
		n = runtime.Stack(buf, false)
	}
	for line := range strings.Lines(string(buf[:n])) {
		if args, ok := strings.CutPrefix(line, "tenon.dev/internal/core.(*level).run("); ok && strings.Contains(args, mark) {
			return true
		}
	}
	return false
}

// outside calls f, a function of the program, with the gate open: f may call methods of the session, on any goroutine. Every call of a
// function of the program goes through outside.
func (s *session) outside(op string, f func()) {
	g := &s.gate
	if g.height == len(g.levels) {
		g.levels = append(g.levels, &level{len(g.levels)})
	}
	l := g.levels[g.height]
	g.height++
	_, in := g.word()
	held := in&busy != 0 // not in tests of this package, which call its methods without a gate
	if held {
		if g.waiting.Load() != 0 {
			s.leaveSlow()
			if s.torn() {
				panic(s.refused(op))
			}
		} else {
			g.open()
		}
	}
	done := false
	defer func() { s.back(op, l, held, done) }()
	l.run(g.door, f)
	done = true
}

// back enters the session again after the call l of a function of the program, and stops op if another goroutine is in a call that began
// later. During a panic done is false, and the panic goes on.
func (s *session) back(op string, l *level, held, done bool) {
	g := &s.gate
	if held && !g.free() {
		g.waiting.Add(1)
		if !s.wait(0) {
			if done {
				panic(s.refused(op))
			}
			return
		}
	}
	if top := g.height - 1; top != l.n {
		other := g.levels[top].where()
		s.tear(other, where())
		if done {
			panic(shared(op, other))
		}
		return
	}
	g.height--
}

// shared is the error of a call that found another goroutine in the session, at the line other if that is known.
func shared(op, other string) *fault.Error {
	if other != "" {
		other = ", the other at " + other
	}
	return Refusal(op, fault.Invalid, "two goroutines use one Exec at once%s; give each goroutine its own with Fork", other)
}

// refused is the error of every call on a torn session.
func (s *session) refused(op string) *fault.Error {
	t := s.gate.torn.Load()
	return Refusal(op, fault.Invalid, "two goroutines used this Exec at once, at %s and at %s, so its scopes are no longer valid and "+
		"were closed; use another Exec, one from Open or forked before, and give each goroutine its own with Fork", t.inside, t.entered)
}

// where returns the line of the program's call that is under way.
func where() string {
	file, line := caller()
	return fmt.Sprintf("%s:%d", file, line)
}

// where returns the line of the program's call during which l's function runs.
func (l *level) where() string {
	mark := fmt.Appendf(nil, "(*level).run(%p", l)
	for _, stack := range stacks(true)[1:] {
		if at := bytes.Index(stack, mark); at >= 0 {
			return origin.In(string(stack[bytes.LastIndexByte(stack[:at], '\n')+1:]))
		}
	}
	return "a line of a goroutine that has ended"
}

// stacks returns the stack of the calling goroutine or, with all, of all goroutines, the calling one's first.
func stacks(all bool) [][]byte {
	for n := 1 << 18; ; n *= 2 {
		buf := make([]byte, n)
		if m := runtime.Stack(buf, all); m < n || n >= 1<<26 {
			return bytes.Split(buf[:m], []byte("\n\n"))
		}
	}
}

// reentered reports whether the calling goroutine itself is in the middle of an operation, in a function that was not called through a
// level.
func reentered() bool {
	stack := string(stacks(false)[0])
	_, stack, _ = strings.Cut(stack, "core.(*session).enterSlow(")
	_, stack, _ = strings.Cut(stack, "core.(*session).in(")
	frames := strings.SplitAfterN(stack, "\n", 5) // the rest of in's two lines, and the two of its caller, which has not begun
	if len(frames) == 5 && !strings.HasPrefix(frames[2], "tenon.dev/internal/core.Enter(") {
		stack = frames[4]
	}
	return midway(stack)
}

// around are functions of this package that stacks show but that are no part of an operation.
var around = []string{"Enter(", "(*session).in(", "Try("}

// midway reports whether the innermost call of this package in a stack is that of an operation. A function of the seam that has only called
// Enter does not count yet.
func midway(stack string) bool {
	seam, literal := false, false
	for line := range strings.Lines(stack) {
		name, ok := strings.CutPrefix(line, "tenon.dev/internal/core.")
		switch {
		case !ok:
			seam = seam && strings.HasPrefix(line, "\t") // a function of another package has called the seam
		case strings.HasPrefix(name, "Enter("):
			seam = true
		case !seam && !slices.ContainsFunc(around, func(f string) bool { return strings.HasPrefix(name, f) }):
			if strings.HasPrefix(name, "(*level).run(") {
				return false
			}
			if !strings.Contains(name, ".func") {
				return true
			}
			literal = true // it may be part of what the level runs, around the program's function
		}
	}
	return literal
}

// otherInside returns the program's line of the goroutine that is in the middle of an operation of s, or "" if nothing tells it from
// goroutines in operations of other sessions.
func (s *session) otherInside() string {
	var all, ours []string
	for _, stack := range stacks(true)[1:] {
		text := string(stack)
		if !midway(text) || strings.Contains(text, "core.(*session).wait(") {
			continue
		}
		_, frames, _ := strings.Cut(text, "\n")
		line := origin.In(frames)
		all = append(all, line)
		if s.shown(frames) {
			ours = append(ours, line)
		}
	}
	if len(ours) == 1 {
		return ours[0]
	}
	if len(all) == 1 {
		return all[0]
	}
	return ""
}

// shown reports whether the operation in the stack frames has s or one of its Execs as an argument. Arguments with a question mark may be
// what an earlier call left there.
func (s *session) shown(frames string) bool {
	marks := map[string]bool{fmt.Sprintf("%p", s): true}
	for k := s.known.Load(); k != nil; k = k.next {
		marks[fmt.Sprintf("%p", k.x)] = true
	}
	for line := range strings.Lines(frames) {
		name, ok := strings.CutPrefix(line, "tenon.dev/internal/core.")
		if !ok {
			continue
		}
		if strings.HasPrefix(name, "(*level).run(") { // what is below is another call
			return false
		}
		args := name[strings.LastIndexByte(name, '(')+1:]
		if slices.ContainsFunc(strings.FieldsFunc(args, func(r rune) bool { return strings.ContainsRune(" ,{})\n", r) }),
			func(arg string) bool { return marks[arg] }) {
			return true
		}
	}
	return false
}
