package conformance

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/recorded"
)

// recordedOf returns a recorded tensor of float32 numbers.
func recordedOf(grad bool, v ...float32) *recorded.Tensor {
	return &recorded.Tensor{DType: tenon.Float32, TypeName: "float32", Shape: []int{len(v)}, Strides: []int{1}, Grad: grad,
		Data: dtype.AsBytes(v)}
}

// TestRunner plants faults in the registry and checks that the runner names them.
func TestRunner(t *testing.T) {
	x := open(t)
	c := &recorded.Case{Op: "planted", Type: "f32", Input: recordedOf(true, 1, 2), Kwargs: recorded.Dict{"alpha": 2.0},
		Out: recordedOf(false, 2, 4), GradOut: []*recorded.Tensor{recordedOf(false, 1, 1)},
		Grads: []*recorded.Tensor{recordedOf(false, 2, 2)}}
	right := func(x *tenon.Exec, a *args) any { return x.MulS(a.tensor(0, "input"), a.float(1, "alpha", 1)) }
	plain := *c
	plain.GradOut = nil
	for name, p := range map[string]struct {
		c    *recorded.Case
		f    func(x *tenon.Exec, a *args) any
		want string
	}{
		"nothing":  {c, right, ""},
		"argument": {c, func(x *tenon.Exec, a *args) any { return x.MulS(a.tensor(0, "input"), 2) }, "does not look at the argument alpha"},
		"kind": {c, func(x *tenon.Exec, a *args) any { return x.MulS(a.tensor(0, "input"), float64(a.int(1, "alpha", 1))) },
			"cannot use the argument alpha"},
		"error": {c, func(x *tenon.Exec, a *args) any { return x.View(right(x, a).(*tenon.Tensor), 3) }, "View"},
		"panic": {c, func(*tenon.Exec, *args) any { panic("planted") }, "panic: planted"},
		"count": {c, func(x *tenon.Exec, a *args) any { y := right(x, a).(*tenon.Tensor); return []*tenon.Tensor{y, y} },
			"2 differentiable results, but 1 recorded"},
		"history": {c, func(x *tenon.Exec, a *args) any { return right(x.NoGrad(), a) }, "does not require grad"},
		"storage": {&plain, func(x *tenon.Exec, a *args) any {
			return x.Clone(right(x, a).(*tenon.Tensor))
		}, "left 2 storages for 1 in its results"},
	} {
		for _, capture := range []bool{false, true} {
			registry["planted"] = p.f
			r := &opRunner{capture: capture}
			out, err := r.call(x, p.c)
			delete(registry, "planted")
			switch {
			case p.want == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case p.want == "":
				if err := recorded.Compare("out", out.Out, c.Out, recorded.Rule{}); err != nil {
					t.Error(err)
				}
				if err := recorded.Compare("grad", out.Grads[0], c.Grads[0], recorded.Rule{}); err != nil {
					t.Error(err)
				}
			case name == "storage" && capture: // a graph keeps what it made
			case err == nil || !strings.Contains(err.Error(), p.want):
				t.Errorf("%s: got the error %v, want one with %q", name, err, p.want)
			}
		}
	}
	if _, err := (&opRunner{}).call(x, c); err != recorded.ErrNotOffered {
		t.Errorf("an operation that the registry lacks gives %v", err)
	}
}

// TestTransfer loads tensors with their strides and reads them back in row-major order.
func TestTransfer(t *testing.T) {
	x := open(t)
	for _, strides := range [][]int{{3, 1}, {1, 2}, {7, 2}, {1, 0}} {
		r := recordedOf(false, 1, 2, 3, 4, 5, 6)
		r.Shape, r.Strides = []int{2, 3}, strides
		if strides[1] == 0 {
			r = recordedOf(false, 1, 1, 1, 2, 2, 2)
			r.Shape, r.Strides = []int{2, 3}, strides
		}
		x.Scope(func(x *tenon.Exec) {
			got, err := store(x, load(x, r))
			if err != nil {
				t.Fatal(err)
			}
			if err := recorded.Compare("tensor", got, r, recorded.Rule{}); err != nil {
				t.Error(err)
			}
		})
	}
}
