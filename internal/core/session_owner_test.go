package core

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev/internal/membarrier"
	"tenon.dev/internal/stack"
)

// ownGate returns a gate that the calling goroutine owns, if that is possible here.
func ownGate(t *testing.T) *gate {
	t.Helper()
	membarrier.Prepare()
	for began := time.Now(); membarrier.Supported && !membarrier.Ready() && time.Since(began) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	g := &gate{door: &door{}}
	if !g.free() {
		t.Fatal("a new gate is closed")
	}
	g.open()
	if membarrier.Ready() != (g.owner.Load() == stack.Goroutine() && membarrier.Supported) {
		t.Fatalf("the owner is %d", g.owner.Load())
	}
	return g
}

// visitor does f on another goroutine, and waits for it.
func visitor(f func()) {
	var all sync.WaitGroup
	all.Go(f)
	all.Wait()
}

// staysIn returns how many stays others see in g.
func staysIn(g *gate) (n int) {
	visitor(func() {
		var vs visits
		vs.add(g.door)
		n = len(vs.list)
	})
	return n
}

func TestOwner(t *testing.T) {
	enter := func(t *testing.T, g *gate, want bool) {
		t.Helper()
		if got := g.free(); got != want {
			t.Errorf("the gate is free: %v", got)
		}
	}
	t.Run("inside", func(t *testing.T) {
		g := ownGate(t)
		for range 3 {
			enter(t, g, true)
			enter(t, g, false)
			if n := staysIn(g); n != 1 {
				t.Errorf("%d stays", n)
			}
			g.open()
			if n := staysIn(g); n != 0 {
				t.Errorf("%d stays", n)
			}
		}
		if membarrier.Ready() && g.in != oneVisit {
			t.Error("the owner has entered as all do")
		}
	})
	t.Run("disowned while outside", func(t *testing.T) {
		g := ownGate(t)
		visitor(func() {
			enter(t, g, true)
			g.open()
		})
		if o := g.owner.Load(); o > disowned {
			t.Errorf("the owner is %d", o)
		}
		enter(t, g, true)
		visitor(func() { enter(t, g, false) })
		g.open()
		visitor(func() { enter(t, g, true) })
		enter(t, g, false)
	})
	t.Run("disowned while inside", func(t *testing.T) {
		g := ownGate(t)
		enter(t, g, true)
		visitor(func() { enter(t, g, false) })
		enter(t, g, false)
		if n := staysIn(g); n != 1 {
			t.Errorf("%d stays", n)
		}
		g.rest()
		if n := staysIn(g); n != 0 {
			t.Errorf("%d stays while the goroutine inside waits", n)
		}
		g.resume()
		if n := staysIn(g); n != 1 {
			t.Errorf("%d stays", n)
		}
		g.open()
		visitor(func() {
			enter(t, g, true)
			g.open()
		})
		enter(t, g, true)
		g.open()
		enter(t, g, true)
	})
}

// race calls mine on the calling goroutine and theirs on another one at nearly the same time, each with the number of the round, and then
// check. Before mine, stores are still on their way to memory, so that what mine stores becomes visible late unless it passes a fence.
func race(rounds int32, mine, theirs func(i int32), check func(i int32) bool) {
	var round, done atomic.Int32
	go func() {
		for i := int32(1); i <= rounds; i++ {
			await(&round, i)
			if round.Load() > rounds {
				return
			}
			theirs(i)
			done.Store(i)
		}
	}()
	defer round.Store(rounds + 1)
	far := make([]int32, 1<<24)
	for i := int32(1); i <= rounds; i++ {
		round.Store(i)
		for range i % 64 * 8 { // the other goroutine needs some time to begin
			done.Load()
		}
		for n := range int32(48) {
			far[(i*48+n)*4099%int32(len(far))] = i
		}
		mine(i)
		if await(&done, i); !check(i) {
			return
		}
	}
}

func await(v *atomic.Int32, least int32) {
	for n := 1; v.Load() < least; n++ {
		if n%4096 == 0 {
			runtime.Gosched()
		}
	}
}

// TestGateAdmitsOne has two goroutines enter gates at the same time: one is inside at a time.
func TestGateAdmitsOne(t *testing.T) {
	const rounds = 3000
	var gates [rounds + 1]*gate
	for i := range gates {
		gates[i] = ownGate(t)
	}
	var inside, both atomic.Int32
	enter := func(i int32) {
		g := gates[i]
		for range 3 {
			if !g.free() {
				continue
			}
			if inside.Add(1) != 1 {
				both.Add(1)
			}
			for range 200 {
				inside.Load()
			}
			inside.Add(-1)
			g.open()
		}
	}
	race(rounds, enter, enter, func(i int32) bool {
		if both.Load() > 0 {
			t.Errorf("round %d: two goroutines are inside", i)
		} else if !gates[i].free() {
			t.Errorf("round %d: the gate stays closed", i)
		}
		return !t.Failed()
	})
}

// TestCloseSeesOwner checks that a goroutine that closes something and then looks into a door, and the door's owner, who enters and then
// looks whether it is closed, do not miss each other.
func TestCloseSeesOwner(t *testing.T) {
	const rounds = 3000
	var gates [rounds + 1]*gate
	for i := range gates {
		gates[i] = ownGate(t)
	}
	var closed atomic.Int32
	var missed bool
	var seen int
	race(rounds, func(i int32) {
		if !gates[i].free() {
			t.Fatal("the gate is closed")
		}
		missed = closed.Load() < i
	}, func(i int32) {
		closed.Store(i)
		var vs visits
		vs.add(gates[i].door)
		seen = len(vs.list)
	}, func(i int32) bool {
		if missed && seen == 0 {
			t.Errorf("round %d: the owner found it open, and was not seen", i)
		}
		return !t.Failed()
	})
}
