package stack

import (
	"iter"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Functions that may be inlined into each other, and some that may not.
func leaf(t *Table) *Stack { return t.Capture() }

func small(t *Table) *Stack { return leaf(t) }

//go:noinline
func deep(t *Table, n int, f func(*Table) *Stack) *Stack {
	if n == 0 {
		return f(t)
	}
	return deep(t, n-1, f)
}

func names(s *Stack) string {
	var b strings.Builder
	for f := range s.All() {
		b.WriteString(f.Function[strings.LastIndexByte(f.Function, '.')+1:] + " ")
	}
	return b.String()
}

func TestCapture(t *testing.T) {
	var table Table
	s := deep(&table, 2, small)
	if got := names(s); !strings.HasPrefix(got, "small deep deep deep TestCapture tRunner ") {
		t.Errorf("the stack is %s", got)
	}
	for f := range s.All() {
		if !strings.HasSuffix(f.File, "stack_test.go") || f.Line == 0 {
			t.Errorf("the innermost call is at %s:%d", f.File, f.Line)
		}
		break
	}
	var again [2]*Stack
	for i := range again {
		again[i] = deep(&table, 3, small)
	}
	if again[0] != again[1] || again[0] == s || table.Len() != 2 {
		t.Errorf("equal stacks are two objects, or different ones are one; the table has %d", table.Len())
	}
	if a, b := small(&table), small(&table); a == b {
		t.Error("calls from two places are one stack")
	}
}

// TestDeep captures a stack that is deeper than maxDepth.
func TestDeep(t *testing.T) {
	var table Table
	s := deep(&table, 3*maxDepth, leaf)
	if n := strings.Count(names(s), "deep"); n != maxDepth {
		t.Errorf("%d calls are kept, want %d", n, maxDepth)
	}
}

// TestGrowth captures while goroutine stacks grow and move, and while others capture the same stacks.
func TestGrowth(t *testing.T) {
	var table Table
	var wg sync.WaitGroup
	all := make([]*Stack, 16)
	for i := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 100 {
				s := deep(&table, n, func(t *Table) *Stack {
					var room [2048]byte
					runtime.KeepAlive(&room)
					return leaf(t)
				})
				if n == 50 {
					all[i] = s
				}
			}
		}()
	}
	wg.Wait()
	for _, s := range all {
		if s != all[0] {
			t.Error("equal stacks of several goroutines are different objects")
		}
	}
	if table.Len() != 100 {
		t.Errorf("there are %d stacks, want 100", table.Len())
	}
}

func TestCaptureAllocates(t *testing.T) {
	var table Table
	// The first run adds the stacks.
	if n := testing.AllocsPerRun(100, func() { deep(&table, 10, small) }); n != 0 {
		t.Errorf("a capture of a known stack allocates %v times", n)
	}
}

func BenchmarkCapture(b *testing.B) {
	for _, depth := range []int{5, 20, 60} {
		b.Run(map[int]string{5: "depth5", 20: "depth20", 60: "depth60"}[depth], func(b *testing.B) {
			var table Table
			deep(&table, depth, func(t *Table) *Stack {
				for b.Loop() {
					leaf(t)
				}
				return nil
			})
		})
	}
}

// BenchmarkCallers measures a capture without frame pointers, for comparison.
func BenchmarkCallers(b *testing.B) {
	for _, depth := range []int{5, 20, 60} {
		b.Run(map[int]string{5: "depth5", 20: "depth20", 60: "depth60"}[depth], func(b *testing.B) {
			var pcs [maxDepth]uintptr
			deep(nil, depth, func(t *Table) *Stack {
				for b.Loop() {
					runtime.Callers(0, pcs[:])
				}
				return nil
			})
		})
	}
}

//go:noinline
func outerA(f func()) { f() }

//go:noinline
func outerB(f func()) { f() }

// TestRoutes captures through frames that are not ordinary calls. If one of them ended the walk, stacks that differ beyond it would count
// as one.
func TestRoutes(t *testing.T) {
	var table Table
	var nothing *[4096]int
	for name, route := range map[string]func(f func()){
		"reflection": func(f func()) { reflect.ValueOf(f).Call(nil) },
		"method value": func(f func()) {
			g := (caller)(f).call
			g()
		},
		"deferred": func(f func()) { defer f() },
		"panic": func(f func()) {
			defer func() { _ = recover() }()
			defer f()
			panic("stop")
		},
		"fault": func(f func()) {
			defer func() { _ = recover() }()
			defer f()
			nothing[1000]++
		},
		"sorting": func(f func()) {
			slices.SortFunc([]int{2, 1}, func(a, b int) int {
				f()
				return a - b
			})
		},
		"iterator": func(f func()) {
			for range func(yield func() bool) { yield() } {
				f()
			}
		},
		"coroutine": func(f func()) {
			next, stop := iter.Pull(func(yield func(int) bool) {
				f()
				yield(1)
			})
			defer stop()
			next()
		},
		"once": func(f func()) { new(sync.Once).Do(f) },
	} {
		var a, b *Stack
		outerA(func() { route(func() { a = leaf(&table) }) })
		outerB(func() { route(func() { b = leaf(&table) }) })
		if a == b || a == nil || b == nil {
			t.Errorf("%s: two stacks are one", name)
			continue
		}
		if name == "coroutine" { // has its own stack
			continue
		}
		for s, want := range map[*Stack]string{a: "outerA", b: "outerB"} {
			if !strings.Contains(names(s), want) {
				t.Errorf("%s: %s is missing in %s", name, want, names(s))
			}
		}
	}
}

type caller func()

//go:noinline
func (c caller) call() { c() }

//go:noinline
func addressesOf(at []uintptr) int { return Addresses(at) }

// TestAddresses: the same calls have the same addresses, and other calls have others.
func TestAddresses(t *testing.T) {
	var at [3][8]uintptr
	for i := range 3 {
		n := 0
		if i < 2 {
			n = addressesOf(at[i][:])
		} else {
			n = addressesOf(at[i][:])
		}
		if n < 2 {
			t.Fatalf("%d addresses", n)
		}
	}
	if at[0] != at[1] {
		t.Errorf("two calls of one line: %x and %x", at[0], at[1])
	}
	if at[0] == at[2] {
		t.Errorf("the calls of two lines: %x", at[0])
	}
}
