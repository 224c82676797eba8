package rt

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
)

// TestLostUnderChecker: a GPU does not say which kernel failed, so the error lists operations that may be the cause, unless the report of
// compute-sanitizer's memcheck names the kernel.
func TestLostUnderChecker(t *testing.T) {
	const named, suspected = "the memory checker's report names the kernel and its line", "the cause may be "
	op := RegisterOp("test.Lost")
	for _, c := range []struct {
		tools string
		code  driver.Code
		lines bool
		want  map[string]bool
	}{
		{"", driver.LaunchFailed, false, map[string]bool{named: false, suspected: true}},
		{"racecheck", driver.LaunchFailed, false, map[string]bool{named: false, suspected: true}},
		{"memcheck,leaks", driver.LaunchFailed, false, map[string]bool{named: true, suspected: false}},
		{"memcheck", driver.LaunchFailed, true, map[string]bool{named: true, suspected: true}},
		{"memcheck", driver.Assert, false, map[string]bool{named: false}},
	} {
		t.Run(fmt.Sprint(c.tools, " ", int(c.code), " ", c.lines), func(t *testing.T) {
			d, err := Open(Selector{Kind: Sim})
			if err != nil {
				t.Fatal(err)
			}
			d.info.Recovers = false // as a GPU
			if c.tools != "" {
				t.Setenv("TENON_CHECK_TOOLS", c.tools)
			}
			if c.lines {
				t.Setenv("TENON_LAUNCH_LINES", "1")
			}
			if meet := d.target().Meet; meet != (c.tools == "racecheck") {
				t.Errorf("warps meet in kernels: %v", meet)
			}
			d.DefaultStream().Began(op, 1)
			text := d.Check(&driver.Error{Call: "Launch", Code: c.code}, "the kernel could not be launched").Error()
			for part, want := range c.want {
				if strings.Contains(text, part) != want {
					t.Errorf("%s\nwant %q in it: %t", text, part, want)
				}
			}
			if strings.Contains(text, "could not be launched") {
				t.Error(text)
			}
			t.Log(text)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
