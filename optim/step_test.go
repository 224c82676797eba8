package optim_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// A step changes parameters and all of their state, and only reads the gradients: whoever saved one of these for a derivative, or reads it
// on another stream, relies on that.
func TestStepSaysWhatItChanges(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for name, make := range optimizers {
			var ps []*nn.Param
			for _, dt := range []tenon.DType{tenon.Float32, tenon.Float32, tenon.Float64} {
				p := nn.NewParam(x.Ones([]int{3}, dt))
				defer p.Close()
				p.SetGrad(x.Ones([]int{3}, dt))
				ps = append(ps, p)
			}
			o, err := make(ps...)
			ok(t, err)
			defer o.Close()
			ok(t, o.Step(x)) // makes the state
			changed := map[string][]*tenon.Tensor{"state": optim.States(o)}
			for _, p := range ps {
				changed["parameters"] = append(changed["parameters"], p.Tensor())
				changed["gradients"] = append(changed["gradients"], p.Grad())
			}
			before := map[*tenon.Tensor]int{}
			for _, ts := range changed {
				for _, v := range ts {
					before[v] = v.Version()
				}
			}
			ok(t, o.Step(x))
			for what, ts := range changed {
				for i, v := range ts {
					if is := v.Version() > before[v]; is != (what != "gradients") {
						t.Errorf("%s: a step changes tensor %d of the %s: %v", name, i, what, is)
					}
				}
			}
			if len(changed["state"]) == 0 && name != "SGD" {
				t.Errorf("%s has no state", name)
			}
		}
	})
}
