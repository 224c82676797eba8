package cost

import (
	"strings"
	"testing"
)

var sink []byte

// failing records a failure in place of a test.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Errorf(string, ...any) { f.failed = true }

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		bytes, most, calls int
		fails              bool
	}{{1 << 20, 2 << 20, 1, false}, {4 << 20, 2 << 20, 2, true}, {0, 1 << 20, 1, false}} {
		f, calls := &failing{TB: t}, 0
		Within(f, c.most, func() {
			calls++
			sink = make([]byte, c.bytes)
		})
		if f.failed != c.fails || calls != c.calls {
			t.Errorf("%d bytes of %d: failed %v after %d calls", c.bytes, c.most, f.failed, calls)
		}
	}
	// Allocations made only by the first call, such as tables that are built once, are not caused by the input.
	f, once := &failing{TB: t}, strings.Repeat("x", 4<<20)
	Within(f, 2<<20, func() { sink, once = []byte(once), "" })
	if f.failed {
		t.Error("what only the first call took has failed the test")
	}
}

func TestOf(t *testing.T) {
	if n := Of(func() { sink = make([]byte, 3<<20) }); n < 3<<20 || n > 4<<20 {
		t.Errorf("3 MiB are %d bytes", n)
	}
}
