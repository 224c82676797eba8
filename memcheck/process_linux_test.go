package memcheck

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// If no more files can be opened, nothing is run, and the error says why.
func TestNoPipes(t *testing.T) {
	f := newFake(t)
	f.test("a", "exit 0")
	next, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	free := uint64(next.Fd())
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for room := range uint64(4) {
		r, _ := f.run()
		limit := old
		limit.Cur = free + room
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		_, err := r.Do(t.Context())
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
		if err == nil || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("room for %d files: %v", room, err)
		}
	}
}
