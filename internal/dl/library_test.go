//go:build !tenon_sim && linux

package dl

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

func openC(t testing.TB) *Library {
	t.Helper()
	l, err := Open("libtenon-no-such.so", "libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

func TestCall(t *testing.T) {
	c := openC(t)
	if c.Name() != "libc.so.6" {
		t.Errorf("Name() = %q", c.Name())
	}
	if p := c.Path(); !strings.HasPrefix(p, "/") || !strings.Contains(p, "libc") {
		t.Errorf("Path() = %q, want the file's path", p)
	}
	strlen, err := c.Symbol("strlen")
	if err != nil {
		t.Fatal(err)
	}
	s := []byte("tenon\x00")
	if n := strlen.Call(uintptr(unsafe.Pointer(&s[0]))); n != 5 {
		t.Errorf("strlen = %d, want 5", n)
	}
	malloc, err := c.Symbol("malloc")
	if err != nil {
		t.Fatal(err)
	}
	free, err := c.Symbol("free")
	if err != nil {
		t.Fatal(err)
	}
	addr := malloc.Call(16)
	defer free.Call(addr)
	copy(Bytes(addr, 16), "block\x00")
	if got := String(addr); got != "block" {
		t.Errorf("String = %q, want block", got)
	}
	if String(0) != "" {
		t.Error("String(0) is not empty")
	}
}

func TestOpenErrors(t *testing.T) {
	_, err := Open("libtenon-a.so", "libtenon-b.so")
	if err == nil || !strings.Contains(err.Error(), "libtenon-a.so") || !strings.Contains(err.Error(), "libtenon-b.so") {
		t.Errorf("Open of two absent libraries: %v; want both named", err)
	}
	if _, err := Open(); err == nil {
		t.Error("Open of nothing succeeded")
	}
	if _, err := openC(t).Symbol("tenon_no_such"); err == nil || !strings.Contains(err.Error(), "tenon_no_such") {
		t.Errorf("Symbol: %v; want the function named", err)
	}
}

// qsort calls back on the calling thread, which is enough to check arguments and results.
func TestCallback(t *testing.T) {
	qsort, err := openC(t).Symbol("qsort")
	if err != nil {
		t.Fatal(err)
	}
	v := []int32{3, 1, 2}
	less := Callback(func(a, b uintptr) uintptr {
		return uintptr(int(*(*int32)(Pointer(a)) - *(*int32)(Pointer(b))))
	})
	qsort.Call(uintptr(unsafe.Pointer(&v[0])), 3, 4, less)
	if v[0] != 1 || v[1] != 2 || v[2] != 3 {
		t.Errorf("sorted = %v", v)
	}
}

func TestCallKeptAllocatesNothing(t *testing.T) {
	yield, err := openC(t).Symbol("sched_yield")
	if err != nil {
		t.Fatal(err)
	}
	block := new([8]uintptr)
	n := testing.AllocsPerRun(100, func() {
		yield.CallKept(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, Address(unsafe.Pointer(block)))
	})
	runtime.KeepAlive(block)
	if n != 0 {
		t.Errorf("a call made %v allocations, want 0", n)
	}
}

func BenchmarkCallKept(b *testing.B) {
	abs, err := openC(b).Symbol("labs")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		abs.CallKept(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	}
}
