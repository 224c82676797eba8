package stack

import (
	"runtime"
	"strings"
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
		got, _ := Represented()
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
	p := NewProxy("stack.(*queue)")
	is()
	p.For([]*Stack{first, second})
	is(first, second)
	done := make(chan []*Stack)
	go func() {
		calls, _ := Represented()
		done <- calls
	}()
	if other := <-done; other != nil {
		t.Errorf("another goroutine represents %d calls", len(other))
	}
	inner := NewProxy("stack.(*queue)")
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

// queue runs work for calls that were made earlier.
type queue struct{ table *Table }

//go:noinline
func (q *queue) run(call *Stack, work func(q *queue, call *Stack) *Stack) *Stack {
	return work(q, call)
}

func workspace(q *queue, call *Stack) *Stack {
	capture := func() *Stack { return q.table.CaptureFor(call, []string{"stack.(*queue)"}) }
	return capture()
}

// A stack that is captured for a call has the work's own functions and then those of the call, and is one for each place and call.
func TestCaptureFor(t *testing.T) {
	q := &queue{&Table{}}
	first, second := deep(q.table, 1, small), deep(q.table, 2, small)
	var got [4]*Stack
	for i, call := range []*Stack{first, second, first, second} {
		got[i] = q.run(call, workspace)
		n := names(got[i])
		if !strings.Contains(n, "workspace") || !strings.HasSuffix(n, names(call)) || strings.Contains(n, "queue).run") {
			t.Errorf("capture %d is %s, for %s", i, n, names(call))
		}
	}
	if got[0] != got[2] || got[1] != got[3] || got[0] == got[1] {
		t.Errorf("not one stack for each call: %p", got)
	}
}
