package tenontest_test

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// scaled is a function whose derivative is right if factor is 1.
type scaled struct{ factor float64 }

func (scaled) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	c.Save(in[0])
	return []*tenon.Tensor{x.Mul(in[0], in[0])}
}

func (s scaled) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	return []*tenon.Tensor{x.MulS(x.Mul(g[0], c.Saved()[0]), 2*s.factor)}, nil
}

func TestGradients(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		a, b := x.RandN([]int{2, 3}, tenon.Float64), x.RandN([]int{4, 3}, tenon.Float64)
		tenontest.AssertGrad(t, x, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Tanh(x.MM(in[0], x.Transpose(in[1], 0, 1)))
		}, a, b)
	})
}

// The gradients of a module, whose parameters are float32, are checked in float64.
func TestModuleGradients(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		layer := nn.NewLinear(x, 3, 2)
		defer nn.Close(layer)
		if err := nn.ToDType(x, layer, tenon.Float64); err != nil {
			t.Fatal(err)
		}
		tenontest.AssertGrad(t, x, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return layer.Forward(x, in[0])
		}, x.RandN([]int{4, 3}, tenon.Float64))
	})
}

// Right gradients pass, and wrong, missing and impossible ones are reported.
func TestAssertGrad(t *testing.T) {
	for name, c := range map[string]struct {
		dt   tenon.DType
		f    func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor
		want string
	}{
		"right": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Tanh(x.MM(in[0], x.Transpose(in[1], 0, 1)))
		}, ""},
		"a function": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Add(x.Apply(scaled{1}, in[0])[0], in[1])
		}, ""},
		"an unused input": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return x.Exp(in[0]) }, ""},
		"a wrong function": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Add(x.Apply(scaled{1.01}, in[0])[0], in[1])
		}, "6 of 6 gradients of input 0 are wrong; element 3 has 4.02"},
		"a broken history": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Add(in[0], x.Exp(x.Detach(in[1])))
		}, "6 of 6 gradients of input 1 are wrong; element "},
		"dropout": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor {
			return x.Add(x.Dropout(in[0], 0.5), in[1])
		}, "the function gives different results for the same inputs, first "},
		"float32": {tenon.Float32, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return in[0] },
			"numerical gradients need float64"},
		"an error": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return x.MM(in[0], in[1]) }, "grad_test.go:"},
		"a nil result": {tenon.Float64, func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor { return nil },
			"the function returns nil tensor"},
	} {
		t.Run(name, func(t *testing.T) {
			got := told(t, func(t testing.TB) {
				tenontest.Run(t, func(x *tenon.Exec) {
					in := x.ToDType(tenon.From(x, []float64{0.1, 0.5, -1, 2, 0.7, 3}, 2, 3), c.dt)
					tenontest.AssertGrad(t, x, c.f, in, x.AddS(in, 0.25))
				})
			})
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
