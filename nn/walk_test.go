package nn_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// inner has a cycle in its type.
type inner struct {
	Lin  *nn.Linear
	Next *inner
}

// What would be learned, moved and saved no more than if it were not there is an error, and what cannot hold anything is none.
func TestHiddenModules(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLinear(x, 2, 2, nn.LinearOpt{})
		defer nn.Close(l)
		for name, m := range map[string]any{
			"param":     &struct{ w *nn.Param }{l.Weight},
			"buffer":    &struct{ w []*nn.Buffer }{[]*nn.Buffer{nil}},
			"module":    &struct{ fc *nn.Linear }{l},
			"interface": &struct{ fc nn.Module }{l},
			"list":      &struct{ fc nn.Sequential }{nn.Sequential{l}},
			"map":       &struct{ fc map[string]nn.Module }{map[string]nn.Module{"a": l}},
			"struct":    &struct{ fc inner }{inner{Lin: l}},
			"deep":      []any{&struct{ fc *inner }{&inner{Lin: l}}},
		} {
			wantError(t, func() {
				for range nn.Params(m) {
				}
			}, "Params", "is not exported")
			if _, err := optim.NewSGD(nn.Params(m), optim.SGDOpt{}); err == nil {
				t.Errorf("%s: an optimizer took what it could not see", name)
			}
		}
		n := 0
		for range nn.Params(&struct {
			FC     *nn.Linear
			number int
			any    any
			none   *nn.Linear
			f      func(m nn.Module)
			texts  map[string][]string
			out    *nn.Linear `torch:"-"`
		}{FC: l, number: 3, any: l, texts: map[string][]string{"a": nil}, out: l}) {
			n++
		}
		if n != 2 {
			t.Errorf("%d parameters were found", n)
		}
	})
}
