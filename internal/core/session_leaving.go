package core

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// A program may close a tensor on one goroutine while another one is in an operation on it, between the check that it is open and the
// launch. What the handle holds is let go only when every goroutine that was inside a session at the time has left it, or waits for the
// device: one that enters later finds the handle closed. Operations pay nothing for this, since they pass the session's gate anyway.

// door is the part of a gate that others look at. They may outlive the session.
type door struct {
	// in has the bits below and, above them, how often somebody has left or rested.
	in uint64
	// left says that somebody waits for whoever is inside.
	left atomic.Bool
	// number is the session's, 0 for none.
	number uint16
	_      [48]byte // or others' doors would share the line of memory
}

// The bits of door.in: a goroutine is inside; it waits for the device, and what it checked before it checks again; the session is torn, and
// whoever was inside has come to its end.
const (
	busy = 1 << iota
	resting
	shut
	visits
)

// inside reports whether a goroutine may be in the middle of an operation.
func inside(v uint64) bool { return v&(busy|resting|shut) == busy }

// doors are those of all sessions, by number from 1 on: a list that is never changed, but replaced. A number is given again once its
// session is gone. What finds none stands behind those that have one.
var doors struct {
	sync.Mutex
	all atomic.Pointer[[]*door]
}

const mostNumbers = 1<<16 - 1

func init() { doors.all.Store(new([]*door)) }

// newDoor returns the door of s, which is forgotten with s.
func newDoor(s *session) *door {
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
	in   uint64
}

// over reports whether it has ended.
func (v visit) over() bool { return atomic.LoadUint64(&v.door.in) != v.in }

// closing is a closed handle that is still to be let go, and for what.
type closing struct {
	t      *Tensor
	visits []visit
}

// closings are all of them.
var closings struct {
	sync.Mutex
	list []closing
}

// postponed reports whether t, which is closed, is let go later, since somebody may be in the middle of an operation on it: in the session
// of its number or, where others have used it, in any.
func (t *Tensor) postponed() bool {
	var visits []visit
	look := func(d *door) {
		if d == nil {
			return
		}
		if v := atomic.LoadUint64(&d.in); inside(v) {
			visits = append(visits, visit{d, v})
		}
	}
	switch all := *doors.all.Load(); {
	case t.maker == 0 || t.closed.elsewhere():
		for _, d := range all {
			look(d)
		}
	case int(t.maker) <= len(all):
		look(all[t.maker-1])
	}
	if visits == nil {
		return false
	}
	closings.Lock()
	closings.list = append(closings.list, closing{t, visits})
	closings.Unlock()
	// Whoever leaves at this moment may not see that somebody waits.
	for i := 0; i < 16 && letGoLeft() > 0; i++ {
		runtime.Gosched()
	}
	return true
}

// letGoLeft lets the closed handles go that nobody uses any more, and returns how many are left.
func letGoLeft() (n int) {
	closings.Lock()
	var free []*Tensor
	closings.list = slices.DeleteFunc(closings.list, func(c closing) bool {
		still := false
		for _, v := range c.visits {
			if !v.over() {
				v.door.left.Store(true)
				still = true
			}
		}
		if !still {
			free = append(free, c.t)
		}
		return !still
	})
	n = len(closings.list)
	closings.Unlock()
	for _, t := range free {
		t.letGo()
	}
	return n
}

// wentOut is called by who has left and was waited for.
func (d *door) wentOut() {
	d.left.Store(false)
	letGoLeft()
}

// rest says that the goroutine inside waits for the device now, until resume. It uses no handle that it has checked before.
func (g *gate) rest() {
	if v := atomic.LoadUint64(&g.door.in); v&busy != 0 { // not in tests of this package, which pass no gate
		atomic.StoreUint64(&g.door.in, v|resting)
		if g.door.left.Load() {
			g.door.wentOut()
		}
	}
}

func (g *gate) resume() {
	if v := atomic.LoadUint64(&g.door.in); v&resting != 0 {
		atomic.StoreUint64(&g.door.in, v&^resting+visits)
	}
}

// lifetime is the state of a handle: whether it is closed, and whether sessions of other numbers than its maker's have used it.
type lifetime struct{ bits atomic.Uint32 }

const (
	isClosed = 1 << iota
	usedElsewhere
)

// Load reports whether the handle is closed.
func (l *lifetime) Load() bool { return l.bits.Load()&isClosed != 0 }

// end closes the handle, and reports whether it was closed before.
func (l *lifetime) end() bool { return l.bits.Or(isClosed)&isClosed != 0 }

// elsewhere reports whether sessions of other numbers have used the handle.
func (l *lifetime) elsewhere() bool { return l.bits.Load()&usedElsewhere != 0 }

// usedBy notes that s uses t, before it looks whether t is closed, or claimed with its memory: so whoever closes or claims t knows of s, or
// s finds it closed or claimed.
func (t *Tensor) usedBy(s *session) {
	if n := s.gate.number; (n != t.maker || n == 0) && !t.closed.elsewhere() {
		t.st.marks.Or(foreignUse)
		t.closed.bits.Or(usedElsewhere)
	}
}

// lonely waits until no other session is in the middle of an operation that it was in when s asked, and reports whether that came soon.
func (s *session) lonely(tries int) bool {
	var visits []visit
	for _, d := range *doors.all.Load() {
		if d == nil || d == s.gate.door {
			continue
		}
		if v := atomic.LoadUint64(&d.in); inside(v) {
			visits = append(visits, visit{d, v})
		}
	}
	for i := 0; ; i++ {
		visits = slices.DeleteFunc(visits, visit.over)
		if len(visits) == 0 || i == tries {
			return len(visits) == 0
		}
		pause(i)
	}
}
