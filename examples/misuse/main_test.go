package main

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/tenontest"
)

// Every mistake gets an error of one line with a kind, has no other effect, and can be repeated.
func TestMistakes(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		sum := ones(x, 3)
		defer sum.Close()
		held := x.Device().MemoryAllocated()
		for _, m := range mistakes {
			err := try(x, m)
			var e *tenon.Error
			if !errors.As(err, &e) || e.Kind == 0 || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", m.name, err)
			}
			if again := try(x, m); again == nil || err != nil && again.Error() != err.Error() {
				t.Errorf("%s: %v, and the second time %v", m.name, err, again)
			}
			x.AddSInto(sum, sum, 1)
			if n := x.Device().MemoryAllocated(); n != held {
				t.Errorf("%s holds %d bytes", m.name, n-held)
			}
		}
		if v, err := x.Item(x.Sum(sum, nil)); err != nil || v != float64(3*(1+len(mistakes))) {
			t.Errorf("after all mistakes the sum is %v, %v", v, err)
		}
	}, tenon.Sim(64<<20))
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run("capture", &out); err != nil || strings.Count(out.String(), "in a capture: ") != 3 {
		t.Errorf("%v\n%s", err, out.String())
	}
}
