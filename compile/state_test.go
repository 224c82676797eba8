package compile_test

import (
	"errors"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// What a callable leaves open besides its results is the program's: the state of an optimizer, gradients, a table that it made and kept.
func TestCallablesLeaveState(t *testing.T) {
	x := open(t)
	in := x.Ones([]int{3, 4}, tenon.Float32)
	for _, mode := range []string{"two callables", "item", "cut", "table", "table with gradients", "address"} {
		run := func(compiled bool) (all []string) {
			m := nn.NewLinear(x, 4, 2, nn.LinearOpt{Generator: nn.NewHostGenerator(1)})
			o, err := optim.NewAdamW(nn.Params(m))
			must(t, err)
			defer func() {
				nn.Close(m)
				o.Close()
			}()
			var table *tenon.Tensor
			step := func(x *tenon.Exec, in *tenon.Tensor) (*tenon.Tensor, error) {
				o.ZeroGrad()
				loss := x.Mean(x.Square(m.Forward(x, in)), nil)
				switch mode {
				case "item":
					if _, err := x.Item(loss); err != nil {
						return nil, err
					}
				case "cut":
					must(t, compile.Break(x))
				case "table", "table with gradients":
					if table == nil {
						table = x.Keep(x.NoGrad().Exp(x.Full([]int{2}, 0.5, tenon.Float32)))
					}
					loss = x.Add(loss, x.Sum(table, nil))
				}
				if mode == "table with gradients" {
					return loss, nil
				}
				return loss, errors.Join(x.Backward(loss), o.Step(x))
			}
			f, eval := step, m.Forward
			if compiled {
				f, eval = compile.Func(step).Call, compile.Func(m.Forward).Call
			}
			for range 6 {
				loss, err := f(x, in)
				must(t, err)
				if mode == "table with gradients" {
					must(t, errors.Join(x.Backward(loss), o.Step(x)))
				}
				all = append(all, read(t, x, loss))
				all = append(all, read(t, x, eval(x.NoGrad(), in)))
				if mode == "address" {
					all = append(all, fmt.Sprint(m.Bias.Tensor().Grad().DataPtr() != 0))
				}
				all = append(all, read(t, x, m.Bias.Tensor().Grad()))
			}
			if table != nil {
				all = append(all, read(t, x, table))
				table.Close()
			}
			return append(all, read(t, x, m.Weight.Tensor()))
		}
		want := run(false)
		if got := run(true); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", mode, got, want)
		}
	}
	must(t, compile.Reset(x))
}
