package check

import (
	"fmt"
	"math"
	"slices"

	"tenon.dev/internal/checklog"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/vexec"
)

// Launch watches one launch of a kernel; see [vexec.Watcher].
type Launch struct {
	c      *Checker
	t      *Task
	k      *vexec.Kernel
	ext    [3]uint32
	at     [3]uint32
	races  bool // whether they are looked for
	inits  bool
	bounds bool
	// atomics is set if blocks may order themselves.
	atomics bool
	// The first epochs of the launch and of the block.
	launch, block uint32
	// blocks are the blocks so far, if races are looked for, which names them.
	blocks []blockAt
	// shared has one cell per byte.
	shared []cell
	// told holds the places at which each kind of defect was found, so that repeats by other threads are cheap.
	told map[place]bool
	// memo is the run of the last foreign epoch, memoBefore whether it comes before: most accesses ask about the same one.
	memo       uint32
	memoBefore bool
}

// blockAt is a block with its first epoch.
type blockAt struct {
	first uint32
	at    [3]uint32
}

// nobody is the thread of a cell's write if nobody has written there in the present block. Touches have greater ones.
const nobody = math.MinInt32

type place struct {
	class string
	loc   int
	other side
}

var _ vexec.Watcher = (*Launch)(nil)

// Launch begins to watch a launch of blocks of ext threads as operation t. It blocks other calls until End.
func (c *Checker) Launch(t *Task, k *vexec.Kernel, ext [3]uint32) *Launch {
	c.log.launched(k.Name())
	l := &Launch{c: c, t: t, k: k, ext: ext, atomics: k.Atomics(), told: map[place]bool{},
		races: c.log.look(checklog.Race), inits: c.log.look(checklog.Uninitialized), bounds: c.log.look(checklog.OutOfBounds)}
	c.mu.Lock()
	l.launch = c.begin(t, k)
	l.block = l.launch
	return l
}

// End ends the launch.
func (l *Launch) End() { l.c.mu.Unlock() }

// Block begins a block.
func (l *Launch) Block(x, y, z uint32, shared int) {
	l.c.epoch++
	l.block, l.at = l.c.epoch, [3]uint32{x, y, z}
	if l.races {
		l.blocks = append(l.blocks, blockAt{l.block, l.at})
	}
	if len(l.shared) < shared {
		l.shared = make([]cell, shared)
	}
}

// Barrier orders the threads of the block.
func (l *Launch) Barrier() { l.c.epoch++ }

// Touch checks and records an access.
func (l *Launch) Touch(t *vexec.Touch) {
	switch {
	case t.Outside:
		l.invalid(t, checklog.OutOfBounds)
		return
	case t.Addr%uint64(t.Size) != 0:
		l.invalid(t, checklog.Misaligned)
		return
	case t.Space == kir.Shared:
		l.touchShared(t)
		return
	}
	r := l.c.find(t.Addr)
	if r == nil || uint64(t.Size) > r.size-(t.Addr-r.base) {
		if !l.c.elsewhere(t.Addr, uint64(t.Size)) {
			l.invalid(t, checklog.OutOfBounds)
		}
		return
	}
	for off, n := t.Addr-r.base, uint64(t.Size); n > 0; { // one page, unless the region begins at an unaligned address
		lo := off % pageBytes
		hi := min(lo+n, pageBytes)
		p := r.page(off / pageBytes)
		if l.inits {
			l.initialised(t, p, lo, hi)
		}
		if l.races {
			for cells, i := p.at(lo, hi), 0; i < len(cells); i++ {
				l.note(t, &cells[i])
			}
		}
		off += hi - lo
		n -= hi - lo
	}
}

// initialised checks that what is read was written, and records what is written.
func (l *Launch) initialised(t *vexec.Touch, p *page, lo, hi uint64) {
	if !t.Write || t.Atomic {
		if _, ok := p.missing(lo, hi); ok {
			l.tell(t, checklog.Uninitialized, side{}, func(f *checklog.Finding) {
				f.Message = fmt.Sprintf("Uninitialized __global__ memory read of size %d bytes", t.Size)
				f.Details = append(f.Details, "Address "+hex(t.Addr))
				if r := l.c.find(t.Addr); r != nil {
					f.Allocation = &checklog.Allocation{Address: hex(r.base), Size: r.size, Relation: "inside the allocation",
						Stack: frames(r.made)}
				}
			})
		}
	}
	if t.Write {
		p.set(lo, hi)
	}
}

func (l *Launch) touchShared(t *vexec.Touch) {
	for i := range t.Size {
		b := &l.shared[int(t.Addr)+i]
		if b.w.epoch < l.block { // from an earlier block or launch
			*b = cell{w: side{epoch: l.block, thread: nobody}}
			if l.inits && (!t.Write || t.Atomic) { // reported once
				l.tell(t, checklog.Uninitialized, side{}, func(f *checklog.Finding) {
					f.Message = fmt.Sprintf("Uninitialized __shared__ memory read of size %d bytes", t.Size)
					f.Details = append(f.Details, "Address "+hex(t.Addr))
				})
			}
		}
		if l.races {
			l.note(t, b)
		} else if t.Write {
			b.w.epoch = l.c.epoch
		}
	}
}

// note looks for a race with the cell's accesses and records this one.
func (l *Launch) note(t *vexec.Touch, b *cell) {
	now := side{l.c.epoch, int32(t.Lane), uint16(t.Loc)}
	raced := !l.ordered(b.w, now) && !(t.Atomic && b.atomic && b.w.epoch >= l.launch)
	if raced {
		l.race(t, b.w, true)
	}
	if !t.Write {
		switch {
		case b.r.epoch == now.epoch:
			if b.r.thread != now.thread {
				b.r.thread = vexec.Several
			}
			return
		case !l.ordered(b.r, now) && l.ordered(b.r2, now):
			b.r2 = b.r
		}
		b.r = now
		return
	}
	for _, r := range [2]side{b.r, b.r2} {
		if !raced && !l.ordered(r, now) && !(t.Atomic && r.epoch >= l.launch) {
			l.race(t, r, false)
			raced = true // one finding per access
		}
	}
	*b = cell{w: now, atomic: t.Atomic}
}

// ordered reports whether an access comes before now, or is by the same thread.
func (l *Launch) ordered(o, now side) bool {
	switch {
	case o.epoch == 0 || o.thread == nobody:
		return true
	case o.epoch >= l.block:
		return o.epoch != now.epoch || o.thread == now.thread && now.thread != vexec.Several
	case o.epoch >= l.launch:
		return l.atomics
	case o.epoch != l.memo:
		l.memo, l.memoBefore = o.epoch, l.c.runOf(o.epoch).task.before(l.t)
	}
	return l.memoBefore
}

// race reports that t and an earlier access are not ordered.
func (l *Launch) race(t *vexec.Touch, other side, wrote bool) {
	class := checklog.Race
	key := side{loc: other.loc}
	if other.epoch < l.launch {
		class, key.epoch = checklog.StreamRace, l.c.runOf(other.epoch).first
	}
	l.tell(t, class, key, func(f *checklog.Finding) {
		o := l.c.runOf(other.epoch)
		first, second := o.task.verb(wrote), access(t.Write, t.Atomic)
		f.Other = []checklog.Frame{o.frame(other)}
		what := "with no barrier between"
		switch {
		case class == checklog.StreamRace:
			what = fmt.Sprintf("by %s and %s, which are not ordered", o.name(), l.k.Name())
			f.Details = append(f.Details, fmt.Sprintf("the %s of %s was queued by %s", first, o.name(), top(o.task.pcs)))
		case other.epoch < l.block:
			what = "by two blocks"
		}
		f.Message = raceText(second, first, f.Space, what)
		f.Details = append(f.Details, "Address "+hex(t.Addr), fmt.Sprintf("%s at %s%s", first, f.Other[0].Text, l.by(other)))
	})
}

// by returns which thread of the launch made an access, as a clause; nothing for another launch's.
func (l *Launch) by(s side) string {
	if s.epoch < l.launch {
		return ""
	}
	i, _ := slices.BinarySearchFunc(l.blocks, s.epoch+1, func(b blockAt, e uint32) int { return int(b.first) - int(e) })
	at := l.blocks[i-1].at
	in := fmt.Sprintf("in block (%d,%d,%d)", at[0], at[1], at[2])
	if t := l.thread(int(s.thread)); t != nil {
		return fmt.Sprintf(", by thread (%d,%d,%d) %s", t[0], t[1], t[2], in)
	}
	return ", " + in
}

// thread returns the place in the block of the thread of a lane, nil if that stands for no single thread.
func (l *Launch) thread(lane int) *[3]int {
	if lane <= vexec.Several {
		return nil
	}
	x, y := int(l.ext[0]), int(l.ext[1])
	return &[3]int{lane % x, lane / x % y, lane / x / y}
}

// name returns the name of the run's operation.
func (r *run) name() string {
	if r.kernel != nil {
		return r.kernel.Name()
	}
	return r.task.name
}

// frame returns the place of an access of the run.
func (r *run) frame(s side) checklog.Frame {
	if r.kernel == nil {
		f := top(r.task.pcs)
		return checklog.Frame{Function: r.task.name, File: f.File, Line: f.Line,
			Text: fmt.Sprintf("%s in %s:%d", r.task.name, f.File, f.Line)}
	}
	file, line := r.kernel.Place(int(s.loc))
	return newFrame(r.kernel.Name(), file, line)
}

// top returns the innermost frame outside of the library.
func top(pcs []uintptr) checklog.Frame {
	if f := frames(pcs); len(f) > 0 {
		return f[0]
	}
	return checklog.Frame{}
}

// invalid reports an access that the device will refuse.
func (l *Launch) invalid(t *vexec.Touch, class string) {
	if !l.bounds {
		return
	}
	l.tell(t, class, side{}, func(f *checklog.Finding) {
		f.Message = fmt.Sprintf("Invalid __%s__ %s of size %d bytes", f.Space, f.Access, t.Size)
		if class == checklog.Misaligned || f.Space == "shared" {
			what := "out of bounds"
			if class == checklog.Misaligned {
				what = "misaligned"
			}
			f.Details = append(f.Details, fmt.Sprintf("Access to %s is %s", hex(t.Addr), what))
			return
		}
		l.c.relate(f, t.Addr, uint64(t.Size))
	})
}

// tell adds a finding about t, completed by fill, once per place.
func (l *Launch) tell(t *vexec.Touch, class string, other side, fill func(f *checklog.Finding)) {
	key := place{class, t.Loc, other}
	if l.told[key] {
		return
	}
	l.told[key] = true
	file, line := l.k.Place(t.Loc)
	f := &checklog.Finding{Class: class, Kernel: l.k.Name(), Device: []checklog.Frame{newFrame(l.k.Name(), file, line)},
		Access: access(t.Write, t.Atomic),
		Space:  "global", Size: t.Size, Address: hex(t.Addr)}
	l.t.tell(f)
	if t.Space == kir.Shared {
		f.Space = "shared"
	}
	f.Block = &[3]int{int(l.at[0]), int(l.at[1]), int(l.at[2])}
	f.Thread = l.thread(t.Lane)
	fill(f)
	l.c.log.add(f)
}
