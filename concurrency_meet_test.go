package tenon_test

import (
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// Two goroutines that meet in a session are told so by functions that enter it themselves too: such a function is not an operation in whose
// middle another one was called.
func TestMeetingOfFunctionsThatEnter(t *testing.T) {
	for name, prepare := range map[string]func(x *tenon.Exec) (enter func()){
		"SetGrad": func(x *tenon.Exec) func() {
			w, g := x.Ones([]int{2}, tenon.Float32).SetRequiresGrad(true), x.NoGrad().Ones([]int{2}, tenon.Float32)
			return func() { w.SetGrad(g) }
		},
		"NewParam": func(x *tenon.Exec) func() {
			a := x.Ones([]int{2}, tenon.Float32)
			return func() { nn.NewParam(a) }
		},
		"Add": func(x *tenon.Exec) func() {
			a := x.Ones([]int{2}, tenon.Float32)
			return func() { x.Add(a, a) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			y := session(t, openSim(t))
			both := tenon.Try(func() {
				y.Scope(func(x *tenon.Exec) {
					enter := prepare(x)
					core.Enter((*core.Exec)(x), "Neg")
					told := make(chan error, 1)
					go func() { told <- tenon.Try(enter) }()
					time.Sleep(20 * time.Millisecond) // until it waits, or is refused wrongly
					core.Leave((*core.Exec)(x))
					if err := <-told; err == nil || !strings.Contains(err.Error(), "two goroutines use") {
						t.Errorf("the second goroutine is told %v", err)
					}
				})
			})
			if both == nil || !strings.Contains(both.Error(), after) {
				t.Errorf("the first goroutine is told %v", both)
			}
		})
	}
}
