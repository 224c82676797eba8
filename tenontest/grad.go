package tenontest

import (
	"fmt"
	"math"
	"testing"

	"tenon.dev"
)

// AssertGrad fails the test unless the gradients that Backward gives for f are close to numerical ones, for every element of every input.
// Inputs must be float64, and so must f's result, which may have any shape: its elements are weighted with different numbers and added up.
// The numerical gradients are central differences with steps of about 1e-6, and the two may differ by 1e-5 + 1e-3·|gradient|, as in
// PyTorch's gradcheck. f runs twice for every element. It must give the same result each time, so it must not draw random numbers, and it
// must be smooth near the inputs. f gets copies of the inputs. A module that f uses must be float64 too: nn.ToDType converts it, and
// nn.Eval turns its dropout off. The test continues.
func AssertGrad(t testing.TB, x *tenon.Exec, f func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor, inputs ...*tenon.Tensor) {
	t.Helper()
	var text string
	err := x.Do(func(x *tenon.Exec) (err error) {
		text, err = checkGrad(x, f, inputs)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if text != "" {
		t.Error(text)
	}
}

// function is what AssertGrad differentiates.
type function = func(x *tenon.Exec, in ...*tenon.Tensor) *tenon.Tensor

// checkGrad says how the gradients of f are wrong, or returns "".
func checkGrad(x *tenon.Exec, f function, inputs []*tenon.Tensor) (string, error) {
	if f == nil || len(inputs) == 0 {
		return "the function is nil or has no inputs; give both", nil
	}
	values, leaves := make([][]float64, len(inputs)), make([]*tenon.Tensor, len(inputs))
	for k, in := range inputs {
		if in == nil || in.DType() != tenon.Float64 {
			return fmt.Sprintf("input %d is %v; numerical gradients need float64", k, in), nil
		}
		var err error
		if values[k], err = tenon.Read[float64](x, in); err != nil {
			return "", err
		}
		leaves[k] = tenon.From(x, values[k], in.Shape()...).SetRequiresGrad(true)
	}
	sum, err := weighted(x, f, leaves)
	if err != nil {
		return err.Error(), nil
	}
	if err := x.Backward(sum); err != nil {
		return "", err
	}
	for k, leaf := range leaves {
		text, err := checkInput(x.NoGrad(), f, leaves, k, leaf.Grad(), values[k])
		if err == nil && text != "" {
			text, err = whyWrong(x.NoGrad(), f, leaves, text)
		}
		if text != "" || err != nil {
			return text, err
		}
	}
	return "", nil
}

// whyWrong returns text, which says that gradients are wrong, or why they cannot be checked: f is not the same function each time.
func whyWrong(x *tenon.Exec, f function, in []*tenon.Tensor, text string) (string, error) {
	var sums [2]float64
	for i := range sums {
		y, err := weighted(x, f, in)
		if err != nil {
			return "", err
		}
		if sums[i], err = x.Item(y); err != nil {
			return "", err
		}
	}
	if math.Float64bits(sums[0]) == math.Float64bits(sums[1]) {
		return text, nil
	}
	return fmt.Sprintf("the function gives different results for the same inputs, first %v and then %v (the sum of its elements with "+
		"weights), so it has no numerical gradients; if it draws random numbers, for dropout for instance, turn that off with nn.Eval",
		sums[0], sums[1]), nil
}

// weighted returns the sum of f's result with different weights.
func weighted(x *tenon.Exec, f function, in []*tenon.Tensor) (*tenon.Tensor, error) {
	y := f(x, in...)
	if y == nil || y.DType() != tenon.Float64 {
		return nil, fmt.Errorf("the function returns %v; numerical gradients need float64", y)
	}
	w := make([]float64, y.Numel())
	for i := range w {
		w[i] = 1 + 0.5*math.Sin(float64(1+7*i))
	}
	return x.Sum(x.Mul(y, tenon.From(x, w, y.Shape()...)), nil), nil
}

// checkInput compares the gradient of input k, whose elements are values.
func checkInput(x *tenon.Exec, f function, in []*tenon.Tensor, k int, grad *tenon.Tensor, values []float64) (string, error) {
	got := make([]float64, len(values)) // an input that the result does not depend on has no gradient
	if grad != nil {
		var err error
		if got, err = tenon.Read[float64](x, grad); err != nil {
			return "", err
		}
	}
	moved := append([]*tenon.Tensor(nil), in...)
	at := func(i int, v float64) (sum float64, err error) {
		err = x.Do(func(x *tenon.Exec) error {
			was := values[i]
			values[i] = v
			moved[k] = tenon.From(x, values, in[k].Shape()...)
			values[i] = was
			y, err := weighted(x, f, moved)
			if err == nil {
				sum, err = x.Item(y)
			}
			return err
		})
		return sum, err
	}
	wrong, worst, furthest, numerical := 0, 0, -1., 0.
	for i, v := range values {
		h := 1e-6 * max(1, math.Abs(v))
		above, err := at(i, v+h)
		if err != nil {
			return "", err
		}
		below, err := at(i, v-h)
		if err != nil {
			return "", err
		}
		want := (above - below) / (v + h - (v - h))
		apart := math.Abs(got[i] - want)
		if apart <= 1e-5+1e-3*math.Abs(want) {
			continue
		}
		wrong++
		if apart > furthest || math.IsNaN(apart) {
			worst, furthest, numerical = i, apart, want
		}
	}
	if wrong == 0 {
		return "", nil
	}
	text := fmt.Sprintf("%d of %d gradients of input %d are wrong; element %d has %v, and numerically %v", wrong, len(values), k, worst,
		got[worst], numerical)
	if grad == nil {
		text += "; there is no gradient: the result was not computed from the input by recorded operations"
	}
	return text, nil
}
