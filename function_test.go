package tenon_test

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/kernel"
)

// faulty is a function whose Backward is wrong in the way that how names.
type faulty struct{ how string }

func (f faulty) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	c.Value = f.how
	return []*tenon.Tensor{x.Neg(in[0])}
}

func (faulty) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	switch c.Value {
	case "error":
		return nil, errors.New("no derivative here")
	case "operation":
		x.Add(g[0], x.Zeros([]int{7}, tenon.Float32))
	case "two":
		return []*tenon.Tensor{g[0], g[0]}, nil
	}
	return []*tenon.Tensor{x.Zeros([]int{7}, tenon.Float32)}, nil
}

// An error in a user's derivative names the user's type and the line of the forward call.
func TestFunctionErrors(t *testing.T) {
	x := openSim(t)
	for how, want := range map[string]string{
		"error":     "Backward of tenon_test.faulty failed: no derivative here",
		"operation": "the derivative of Function tenon_test.faulty failed: Add(float32[3], float32[7]): The size of tensor a (3)",
		"two":       "Backward of tenon_test.faulty returned 2 gradients, but Forward got 1 inputs; return one for each",
		"shape":     "Backward of tenon_test.faulty returned a gradient of shape [7] for input 0 of shape [3]",
	} {
		a := x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true)
		out := x.Sum(x.Apply(faulty{how}, a)[0], nil)
		err := x.Backward(out)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "function_test.go:") != 2 {
			t.Errorf("%s: %v", how, err)
		}
		if a.Grad() != nil {
			t.Errorf("%s: a failed pass left a gradient", how)
		}
	}
}

// refusing is a function whose Forward refuses its input.
type refusing struct{ faulty }

func (f refusing) Forward(*tenon.Exec, *tenon.FunctionContext, ...*tenon.Tensor) []*tenon.Tensor {
	if f.how == "plain" {
		panic(errors.New("no error of Tenon"))
	}
	if f.how == "named" {
		panic(errNoRows)
	}
	panic(&tenon.Error{Kind: tenon.Invalid, Op: "Refusing", Msg: "the input has no rows"})
}

var errNoRows = &tenon.Error{Kind: tenon.Invalid, Op: "Refusing", Msg: "no rows"}

// An error with which a program's own operation panics becomes the error of Do, with the line of the panic. Another panic goes on.
func TestFunctionOwnError(t *testing.T) {
	x := openSim(t)
	apply := func(how string) error {
		return x.Do(func(x *tenon.Exec) error {
			x.Apply(refusing{faulty{how}}, x.Ones([]int{3}, tenon.Float32))
			return nil
		})
	}
	err := apply("tenon")
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != tenon.Invalid || !strings.HasSuffix(e.File, "function_test.go") ||
		!strings.HasPrefix(err.Error(), "Refusing: the input has no rows (at ") {
		t.Errorf("%v", err)
	}
	if err := apply("named"); !errors.Is(err, errNoRows) || errors.Is(err, e) || !strings.Contains(err.Error(), "function_test.go:") ||
		errNoRows.Line != 0 {
		t.Errorf("%v, %+v", err, errNoRows)
	}
	defer func() {
		if r := recover(); r == nil || r.(error).Error() != "no error of Tenon" {
			t.Errorf("%v", r)
		}
	}()
	t.Error(apply("plain"))
}

// A line that the cause of an error ends in is not said again.
func TestFunctionErrorLines(t *testing.T) {
	x := openSim(t)
	a := x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true)
	err := x.Backward(x.Sum(x.Apply(faulty{"error"}, a)[0], nil))
	if err == nil || strings.Count(err.Error(), " (at ") != 1 {
		t.Error(err)
	}
}

// cubed is x³, with a kernel for its derivative. Its second derivative is right if twice, and counts as 0 if constant.
type cubed struct{ twice, constant bool }

var slopeKernel = kernel.Build("slope", func(k *kernel.Builder) {
	n, x, y := k.Scalar("n", tenon.Int64), k.BufferRO("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, k.F32(3).Mul(x.Load(i)).Mul(x.Load(i))) })
})

func (cubed) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	c.Save(in[0])
	return []*tenon.Tensor{x.Mul(x.Mul(in[0], in[0]), in[0])}
}

func (f cubed) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	if f.twice {
		return []*tenon.Tensor{x.Mul(g[0], x.Apply(slope{}, c.Saved()[0])[0])}, nil
	}
	y := x
	if f.constant {
		y = x.NoGrad()
	}
	return []*tenon.Tensor{x.Mul(g[0], slope{}.Forward(y, nil, c.Saved()[0])[0])}, nil
}

// slope is 3x², by a kernel, with a derivative.
type slope struct{}

func (slope) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	out := x.NoGrad().EmptyLike(in[0])
	x.Launch(slopeKernel, tenon.Over(in[0].Numel()), tenon.Integer(in[0].Numel()), tenon.In(in[0]), tenon.Out(out))
	if c != nil {
		c.Save(in[0])
	}
	return []*tenon.Tensor{out}
}

func (slope) Backward(x *tenon.Exec, c *tenon.FunctionContext, g ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	return []*tenon.Tensor{x.Mul(g[0], x.MulS(c.Saved()[0], 6))}, nil
}

// A launch in a derivative is refused where its own derivative would be missing from a sum.
func TestSecondDerivativeOfLaunch(t *testing.T) {
	x := openSim(t)
	second := func(f tenon.Function) (float64, error) {
		a := tenon.From(x, []float32{2}).SetRequiresGrad(true)
		y := x.Sum(x.Add(x.Apply(f, a)[0], x.Mul(a, a)), nil)
		g, err := x.Grad([]*tenon.Tensor{y}, []*tenon.Tensor{a}, tenon.GradOpt{CreateGraph: true})
		if err != nil {
			return 0, err
		}
		if err := x.Backward(x.Sum(g[0], nil)); err != nil {
			return 0, err
		}
		return x.Item(a.Grad())
	}
	_, err := second(cubed{})
	for _, part := range []string{"kernel slope is launched on tensor 0, which requires grad", "function_test.go:"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	for f, want := range map[cubed]float64{{twice: true}: 14, {constant: true}: 2} {
		if got, err := second(f); err != nil || got != want {
			t.Errorf("%+v: %v %v, want %v", f, got, err, want)
		}
	}
	a := tenon.From(x, []float32{2}).SetRequiresGrad(true) // without CreateGraph nothing is missing
	if err := x.Backward(x.Sum(x.Apply(cubed{}, a)[0], nil)); err != nil {
		t.Error(err)
	}
	wantItem(t, x, a.Grad(), 12)
}

// A segment that is recomputed may launch kernels as it did before: their results are constant in both runs.
func TestLaunchInCheckpoint(t *testing.T) {
	x := openSim(t)
	for _, create := range []bool{false, true} {
		a := tenon.From(x, []float32{2}).SetRequiresGrad(true)
		y := x.Checkpoint(func(x *tenon.Exec, in []*tenon.Tensor) []*tenon.Tensor {
			b := x.Exp(in[0])
			return []*tenon.Tensor{x.Mul(x.Mul(b, b), slope{}.Forward(x, nil, in[0])[0])}
		}, a)
		if err := x.Backward(x.Sum(y[0], nil), tenon.BackwardOpt{CreateGraph: create}); err != nil {
			t.Errorf("CreateGraph %v: %v", create, err)
		}
	}
}
