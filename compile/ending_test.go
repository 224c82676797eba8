package compile_test

import (
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A goroutine that ends within Do runs the deferred calls first, and leaves a session that another one can use.
func TestGoexit(t *testing.T) {
	x := open(t)
	s := x.Zeros([]int{1}, tenon.Float32)
	r := compile.New()
	for range 4 {
		done := make(chan bool)
		go func() {
			defer close(done)
			t.Error(r.Do(x, func(x *tenon.Exec) error {
				x.AddSInto(s, s, 1)
				x.MulSInto(s, s, 1)
				runtime.Goexit()
				return nil
			}))
		}()
		<-done
	}
	if v, err := x.Item(s); err != nil || v != 4 {
		t.Errorf("%v, %v; want 4", v, err)
	}
	if st := r.Stats(x); st.Replays != 2 {
		t.Errorf("%+v; want two replays", st)
	}
}

// TestCloseWithinDo: closing the device within Do runs the calls before it, as without a region, and the next Do ends with an error.
func TestCloseWithinDo(t *testing.T) {
	for runs := range 4 {
		x, err := tenon.Open(tenon.Sim(0))
		must(t, err)
		s := x.Zeros([]int{1}, tenon.Float32)
		r := compile.New()
		add := func(x *tenon.Exec) error {
			x.AddSInto(s, s, 1)
			return nil
		}
		for range runs {
			must(t, r.Do(x, add))
		}
		must(t, r.Do(x, func(x *tenon.Exec) error {
			must(t, add(x))
			defer func() {
				if n := deferred(x); n != 0 {
					t.Errorf("%d calls are still deferred", n)
				}
			}()
			return x.Close()
		}))
		if err := r.Do(x, add); err == nil || !strings.Contains(err.Error(), "was closed") {
			t.Errorf("after %d runs: %v", runs, err)
		}
	}
}
