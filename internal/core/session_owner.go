package core

import (
	"sync"
	"sync/atomic"

	"tenon.dev/internal/membarrier"
	"tenon.dev/internal/stack"
)

// Most sessions are used by one goroutine all their life. The first that leaves a session becomes the owner of its door. From then on it
// enters by plain stores in a word of its own: it says that it is inside, and then looks whether it is still the owner. Another goroutine
// that comes disowns it, makes it pass a fence, and then looks whether it is inside. So one of the two sees the other, and only the second
// one pays for that. Afterwards everybody enters by an atomic operation. Whoever stores something else before it reads others' doors needs
// the fence as well (visits.add).

// free closes the gate if it was open, and reports whether it was.
func (g *gate) free() bool {
	d := g.door
	return d.mine() && d.enterOwn() || d.freeCommon()
}

// mine reports whether the calling goroutine is the owner.
func (d *door) mine() bool { return membarrier.Supported && d.owner.Load() == stack.Goroutine() }

// enterOwn is free for the owner. It fails if the caller is inside, or has just been disowned.
func (d *door) enterOwn() bool {
	if d.own != 0 {
		return false
	}
	d.own = busy
	if d.owner.Load() > disowning { // there is one owner at most
		return true
	}
	d.own = 0
	return false
}

// leaveOwn ends enterOwn.
func (d *door) leaveOwn() {
	d.trips++
	d.own = 0
}

// freeCommon is free for a goroutine that is not the owner.
func (d *door) freeCommon() bool {
	for {
		o := d.owner.Load()
		if o > disowned {
			if d.mine() {
				return false
			}
			d.disown()
			o = disowned
		}
		if atomic.LoadUint64(&d.own)&busy != 0 {
			return false
		}
		v := atomic.LoadUint64(&d.in)
		if v&busy != 0 || !atomic.CompareAndSwapUint64(&d.in, v, v|busy) {
			return false
		}
		if d.owner.Load() == o {
			return true
		}
		if !atomic.CompareAndSwapUint64(&d.in, v|busy, v+oneVisit) { // somebody became the owner before, and may be inside
			return false // the session was torn meanwhile
		}
	}
}

// open lets the next goroutine in.
func (g *gate) open() {
	d := g.door
	if d.owner.Load() > disowning {
		d.leaveOwn()
	} else {
		d.openCommon()
	}
	if d.left.Load() {
		d.wentOut()
	}
}

// openCommon is open for a goroutine that is not the owner, or no longer.
func (d *door) openCommon() {
	if word, _ := d.word(); word == &d.own {
		d.leaveOwn()
		return
	}
	if membarrier.Supported && d.owner.Load() == unowned && membarrier.Ready() {
		d.owner.Store(stack.Goroutine())
	}
	openPlain(&d.in)
}

// word returns the word by which the calling goroutine, which is inside, has entered, and what it holds.
func (d *door) word() (*uint64, uint64) {
	own := atomic.LoadUint64(&d.own)
	if d.owner.Load() > disowning || own&busy != 0 && d.former.Load() == stack.Goroutine() {
		return &d.own, own
	}
	return &d.in, atomic.LoadUint64(&d.in)
}

var disowns sync.Mutex

// disown takes the owner's right away. After that the owner is seen inside, or will see that it may not be.
func (d *door) disown() {
	disowns.Lock()
	defer disowns.Unlock()
	if o := d.owner.Load(); o > disowning {
		d.former.Store(o)
		if d.owner.CompareAndSwap(o, disowning) {
			membarrier.Fence()
			d.owner.CompareAndSwap(disowning, disowned)
		}
	}
}
