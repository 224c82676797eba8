package recorded

import (
	"errors"
	"fmt"
	"slices"
)

// ErrNotOffered is what a runner's Call returns for an op that does not exist.
var ErrNotOffered = errors.New("the op is not offered")

// valueless are the ops of the op database whose values are random or uninitialised: only dtype, shape and strides are compared.
var valueless = []string{"bernoulli", "empty_like", "multinomial", "normal", "rand_like", "randint", "randn"}

// beyondInput reports whether a case's values come from memory that the recording lacks: as_strided/partial_views makes views of the
// storage of which the input was elements 5 to 14, and a view from its start shows the elements before.
func (c *Case) beyondInput() bool {
	offset, given := c.Kwargs["storage_offset"].(int64)
	return c.Op == "as_strided" && c.Variant == "partial_views" && given && offset == 0
}

// Outcome is the result of a call for a case.
type Outcome struct {
	// Out is the result in the form of Case.Out.
	Out Value
	// Grads are the gradients in the form of Case.Grads; they are compared if the case has any.
	Grads []*Tensor
}

// strideless are ops whose result layout depends on the kernel that PyTorch chose.
var strideless = []string{"nn.functional.scaled_dot_product_attention"}

// Runner runs cases through a function and compares the results.
type Runner struct {
	// Call runs one case. ErrNotOffered means that the op does not exist; any other error fails the case.
	Call func(*Case) (Outcome, error)
	// Required are ops that must be offered: a case of one that is not offered fails.
	Required []string
	// Strides says which strides of results are compared. Those of gradients are not: in PyTorch they depend on the kernel.
	Strides StrideRule
	// Failed is called for each case that fails, with the reason.
	Failed func(*Case, error)
}

// Tally counts cases.
type Tally struct {
	// Passed, Failed and NotOffered add up to the cases run; Gradients counts passed cases whose gradients were also compared.
	Passed, Failed, NotOffered, Gradients int
}

// String returns the summary line of a run.
func (t Tally) String() string {
	return fmt.Sprintf("ops: %d passed, %d failed, %d not offered, %d gradients compared", t.Passed, t.Failed, t.NotOffered, t.Gradients)
}

// Run runs all cases. An error means that the file cannot be read.
func (r *Runner) Run(cases *Cases) (Tally, error) {
	var t Tally
	for one, err := range cases.All() {
		if err != nil {
			return t, err
		}
		err := r.one(one)
		switch {
		case errors.Is(err, ErrNotOffered) && !slices.Contains(r.Required, one.Op):
			t.NotOffered++
		case err != nil:
			t.Failed++
			r.Failed(one, err)
		default:
			t.Passed++
			if one.GradOut != nil {
				t.Gradients++
			}
		}
	}
	return t, nil
}

// one runs and compares one case.
func (r *Runner) one(c *Case) error {
	got, err := r.Call(c)
	if err != nil {
		return err
	}
	skip := slices.Contains(valueless, c.Op) || c.beyondInput()
	strides := r.Strides
	if slices.Contains(strideless, c.Op) {
		strides = AnyStrides
	}
	errs := []error{Compare("out", got.Out, c.Out, Rule{SkipValues: skip, Strides: strides})}
	if c.GradOut != nil {
		if len(got.Grads) != len(c.Grads) {
			return errors.Join(errs[0], differ("grads", "length", len(got.Grads), len(c.Grads)))
		}
		for i, g := range c.Grads {
			errs = append(errs, Compare(fmt.Sprintf("grads[%d]", i), got.Grads[i], g, Rule{SkipValues: slices.Contains(valueless, c.Op),
				Strides: AnyStrides}))
		}
	}
	return errors.Join(errs...)
}
