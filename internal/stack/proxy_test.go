package stack

import (
	"runtime"
	"sync"
	"testing"
)

func TestGoroutine(t *testing.T) {
	mine := Goroutine()
	if mine == 0 {
		t.Fatal("a goroutine is 0")
	}
	var all sync.WaitGroup
	var seen sync.Map
	start := make(chan bool)
	for range 100 {
		all.Go(func() {
			g := Goroutine()
			if _, twice := seen.LoadOrStore(g, true); twice || g == mine {
				t.Error("two goroutines are the same")
			}
			<-start
			grow(100)
			runtime.Gosched()
			if Goroutine() != g {
				t.Error("a goroutine changes when its stack grows")
			}
		})
	}
	for n := 0; n < 100; {
		n = 0
		seen.Range(func(any, any) bool { n++; return true })
		runtime.Gosched()
	}
	close(start)
	all.Wait()
	if Goroutine() != mine {
		t.Error("a goroutine changes")
	}
}

func grow(n int) byte {
	var a [1 << 10]byte
	if n > 0 {
		a[n] = grow(n - 1)
	}
	return a[n]
}

// A proxy speaks for its goroutine alone, and one within another until it ends.
func TestProxy(t *testing.T) {
	var table Table
	first, second := deep(&table, 1, small), deep(&table, 2, small)
	is := func(want ...*Stack) {
		t.Helper()
		got := Represented()
		if len(got) != len(want) {
			t.Fatalf("%d calls are represented, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("call %d is %s, want %s", i, names(got[i]), names(want[i]))
			}
		}
	}
	is()
	p := NewProxy()
	is()
	p.For([]*Stack{first, second})
	is(first, second)
	done := make(chan []*Stack)
	go func() { done <- Represented() }()
	if other := <-done; other != nil {
		t.Errorf("another goroutine represents %d calls", len(other))
	}
	inner := NewProxy()
	is()
	inner.For([]*Stack{second})
	is(second)
	inner.End()
	is(first, second)
	p.For(nil)
	is()
	p.End()
	is()
	if n := proxies.count.Load(); n != 0 || len(proxies.of) != 0 {
		t.Errorf("%d and %d proxies are left", n, len(proxies.of))
	}
}
