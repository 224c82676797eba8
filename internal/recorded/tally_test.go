package recorded

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// TestRunner runs the recorded cases through a "library" that returns the recorded results, some of them spoilt.
func TestRunner(t *testing.T) {
	cases, err := OpenCases(data + "ops_a.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	said := map[string]string{}
	r := Runner{
		Required: []string{"abs", "sin", "exp"},
		Failed:   func(c *Case, err error) { said[c.Name()] = err.Error() },
		Call: func(c *Case) (Outcome, error) {
			got := Outcome{Out: c.Out, Grads: c.Grads}
			switch c.Op {
			case "add", "empty_like": // the spoilt values only count for the first
				x := *c.Out.(*Tensor)
				x.Data = make([]byte, len(x.Data))
				got.Out = &x
			case "abs":
				return got, ErrNotOffered
			case "mul":
				return got, ErrNotOffered
			case "neg":
				return got, refused
			case "sin":
				got.Grads = nil
			case "exp":
				if len(c.Grads) > 0 {
					got.Grads = []*Tensor{tensor(dtype.Float32, nil, 1)}
				}
			case "cos":
				if x, ok := c.Out.(*Tensor); ok && len(x.Shape) > 0 {
					y := *x
					y.Strides = append([]int{77}, x.Strides[1:]...)
					got.Out = &y
				}
			}
			return got, nil
		},
	}
	tally, err := r.Run(cases)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for one, err := range cases.All() {
		if err != nil {
			t.Fatal(err)
		}
		count[one.Op]++
	}
	if tally.Passed+tally.Failed+tally.NotOffered != 10076 || tally.NotOffered != count["mul"] || tally.Failed != len(said) {
		t.Errorf("%v, %d said to fail", tally, len(said))
	}
	failed := map[string]int{}
	for name, why := range said {
		op, _, _ := strings.Cut(name, "/")
		failed[op]++
		want := map[string]string{
			"add": "elements differ", "abs": "not offered", "neg": "refused", "sin": "grads: length is 0", "exp": "grads[0]",
			"cos": "out: strides is [77",
		}[op]
		if want == "" || !strings.Contains(why, want) {
			t.Errorf("%s fails: %s", name, why)
		}
	}
	if failed["abs"] != count["abs"] || failed["neg"] != count["neg"] || failed["add"] < count["add"]/2 || failed["sin"] == 0 ||
		failed["exp"] == 0 || failed["cos"] == 0 {
		t.Errorf("failures by op %v of %v", failed, count)
	}
	if want := "ops: 3 passed, 2 failed, 1 not offered, 4 gradients compared"; (Tally{3, 2, 1, 4}).String() != want {
		t.Errorf("%v", Tally{3, 2, 1, 4})
	}
	broken := &Cases{text: []byte(`{"cases":[1]}`)}
	if _, err := r.Run(broken); err == nil {
		t.Error("broken cases: no error")
	}
}
