package core

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/membarrier"
	"tenon.dev/internal/stack"
)

// A program may close a tensor on one goroutine while another one is in an operation on it, between the check that it is open and the
// launch. So the handle's memory is released only when every goroutine that was inside a session at the time has left it, or waits for the
// device; one that enters later finds the handle closed. Operations pay nothing for this, since they pass the session's gate anyway.

// door is the part of a gate that other sessions look at. It may outlive the session.
type door struct {
	// in has the bits below and, above them, a count of how often somebody has left or rested.
	in uint64
	// own and trips are the same for the door's owner, who alone writes them, without atomic operations: own has the bits, trips the count.
	// Kept apart, neither store has to wait for the other.
	own, trips uint64
	// owner is the goroutine that enters by own, or one of unowned, disowned and disowning. Whoever else comes takes that right away for
	// good. former is that goroutine afterwards.
	owner, former atomic.Uintptr
	// left says that somebody waits for the goroutine inside.
	left atomic.Bool
	// number is the session's number, or 0 if it has none.
	number uint16
	_      [16]byte // so that doors share no cache line
}

// Values of door.owner that stand for no goroutine: nobody has come yet whom the system allows to be the owner; the owner has lost its
// right; or it is about to, but may not have noticed.
const (
	unowned = iota
	disowned
	disowning
)

// The bits of door.in. busy: a goroutine is inside. resting: it waits for the device, and repeats its earlier checks afterwards. shut: the
// session is torn, and whoever was inside has finished. oneVisit is one in the count above the bits.
const (
	busy = 1 << iota
	resting
	shut
	oneVisit
)

// inside reports whether a goroutine may be in the middle of an operation.
func inside(v uint64) bool { return v&(busy|resting|shut) == busy }

// doors are the doors of all sessions, by number from 1 on, in a list that is never changed, but replaced. A number is reused once its
// session is gone. Sessions that find no free number come after those that have one.
var doors struct {
	sync.Mutex
	all atomic.Pointer[[]*door]
}

const mostNumbers = 1<<16 - 1

func init() { doors.all.Store(new([]*door)) }

// newDoor returns the door of s, which is forgotten when s is collected.
func newDoor(s *session) *door {
	membarrier.Prepare()
	d := &door{}
	doors.Lock()
	defer doors.Unlock()
	all := slices.Clone(*doors.all.Load())
	i := slices.Index(all, nil)
	if i < 0 {
		i, all = len(all), append(all, nil)
	}
	if all[i] = d; i < mostNumbers {
		d.number = uint16(i + 1)
	}
	doors.all.Store(&all)
	runtime.AddCleanup(s, forgetDoor, d)
	return d
}

func forgetDoor(d *door) {
	doors.Lock()
	defer doors.Unlock()
	all := slices.Clone(*doors.all.Load())
	all[slices.Index(all, d)] = nil
	doors.all.Store(&all)
}

// visit is a goroutine's stay inside a session.
type visit struct {
	door *door
	own  bool // by the words of the door's owner
	was  uint64
}

// over reports whether the visit has ended.
func (v visit) over() bool {
	d := v.door
	if v.own {
		return !inside(atomic.LoadUint64(&d.own)) || atomic.LoadUint64(&d.trips) != v.was
	}
	return atomic.LoadUint64(&d.in) != v.was
}

// visits are the stays of others.
type visits struct {
	list   []visit
	fenced bool
}

// add adds the stay in d, if there is one. Whoever enters d later sees what the caller stored before the first call of add.
func (vs *visits) add(d *door) {
	if o := d.owner.Load(); o > disowned && !vs.fenced && o != stack.Goroutine() {
		membarrier.Fence()
		vs.fenced = true
	}
	if v := atomic.LoadUint64(&d.in); inside(v) {
		vs.list = append(vs.list, visit{d, false, v})
	}
	if inside(atomic.LoadUint64(&d.own)) {
		vs.list = append(vs.list, visit{d, true, atomic.LoadUint64(&d.trips)})
	}
}

// closing is a closed handle that is still to be released, and the visits that it waits for.
type closing struct {
	t      *Tensor
	visits []visit
}

// closings are all of them.
var closings struct {
	sync.Mutex
	list []closing
}

// postponed reports whether the release of t, which is closed, is postponed, because somebody may be in the middle of an operation on it:
// in the session with its number or, if others have used it, in any.
func (t *Tensor) postponed() bool {
	var stays visits
	switch all := *doors.all.Load(); {
	case t.maker == 0 || t.closed.elsewhere():
		for _, d := range all {
			if d != nil {
				stays.add(d)
			}
		}
	case int(t.maker) <= len(all) && all[t.maker-1] != nil:
		stays.add(all[t.maker-1])
	}
	if stays.list == nil {
		return false
	}
	closings.Lock()
	closings.list = append(closings.list, closing{t, stays.list})
	closings.Unlock()
	// A goroutine that leaves at this moment may not see that somebody waits.
	for i := 0; i < 16 && letGoLeft() > 0; i++ {
		runtime.Gosched()
	}
	return true
}

// letGoLeft releases the closed handles that nobody uses any more, and returns how many are left.
func letGoLeft() (n int) {
	closings.Lock()
	var free []*Tensor
	fence := false
	for _, c := range closings.list {
		for _, v := range c.visits {
			if !v.over() {
				v.door.left.Store(true)
				fence = fence || v.own && !v.door.mine()
			}
		}
	}
	if fence {
		membarrier.Fence() // whoever leaves by own from now on sees left
	}
	closings.list = slices.DeleteFunc(closings.list, func(c closing) bool {
		if slices.ContainsFunc(c.visits, func(v visit) bool { return !v.over() }) {
			return false
		}
		free = append(free, c.t)
		return true
	})
	n = len(closings.list)
	closings.Unlock()
	for _, t := range free {
		t.letGo()
	}
	return n
}

// wentOut is called by a goroutine that has left and was waited for.
func (d *door) wentOut() {
	d.left.Store(false)
	letGoLeft()
}

// rest marks that the goroutine inside waits for the device, until resume. After that it uses no handle that it checked before.
func (g *gate) rest() {
	if word, v := g.word(); v&busy != 0 { // not in tests of this package, which pass no gate
		atomic.StoreUint64(word, v|resting)
		if g.door.left.Load() {
			g.door.wentOut()
		}
	}
}

func (g *gate) resume() {
	if word, v := g.word(); v&resting != 0 {
		if word == &g.own {
			atomic.AddUint64(&g.trips, 1)
		} else {
			v += oneVisit
		}
		atomic.StoreUint64(word, v&^resting)
	}
}

// lifetime is the state of a handle: whether it is closed, whether the end of its scope did that, and whether sessions with another number
// than its maker's have used it.
type lifetime struct{ bits atomic.Uint32 }

const (
	isClosed = 1 << iota
	usedElsewhere
	scopeEnded
)

// Load reports whether the handle is closed.
func (l *lifetime) Load() bool { return l.bits.Load()&isClosed != 0 }

// end closes the handle, with further bits how, and reports whether it was closed before.
func (l *lifetime) end(how uint32) bool { return l.bits.Or(isClosed|how)&isClosed != 0 }

// withScope reports whether the end of a scope closed the handle.
func (l *lifetime) withScope() bool { return l.bits.Load()&scopeEnded != 0 }

// elsewhere reports whether sessions with other numbers have used the handle.
func (l *lifetime) elsewhere() bool { return l.bits.Load()&usedElsewhere != 0 }

// usedBy records that s uses t, before s checks whether t is closed or its memory claimed. So whoever closes or claims t knows about s, or
// s finds it closed or claimed.
func (t *Tensor) usedBy(s *session) {
	if n := s.gate.number; (n != t.maker || n == 0) && !t.closed.elsewhere() {
		t.st.marks.Or(foreignUse)
		t.closed.bits.Or(usedElsewhere)
	}
}

// lonely waits until every operation that other sessions were in at the call has ended, and reports whether that happened within tries.
func (s *session) lonely(tries int) bool {
	var stays visits
	for _, d := range *doors.all.Load() {
		if d != nil && d != s.gate.door {
			stays.add(d)
		}
	}
	for i := 0; ; i++ {
		stays.list = slices.DeleteFunc(stays.list, visit.over)
		if len(stays.list) == 0 || i == tries {
			return len(stays.list) == 0
		}
		pause(i)
	}
}
