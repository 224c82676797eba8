package compile_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A goroutine that ends within Do runs what was put off first, and leaves a session that another one can use.
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

// A Do within which the device is closed ends with an error, and so does the next one.
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
		for i, f := range []func(x *tenon.Exec) error{
			func(x *tenon.Exec) error { return errors.Join(add(x), x.Close()) },
			add,
		} {
			if err := r.Do(x, f); err == nil || !strings.Contains(err.Error(), "was closed") {
				t.Errorf("Do %d after %d runs: %v", i, runs, err)
			}
		}
	}
}
