package nn

import "tenon.dev"

// Module is a layer or network with one input and one output. A module with more inputs has a Forward with other parameters; everything
// else in this package works with it too. A module of your own is usually a struct of modules; a field that not every instance needs may
// be nil, and then has no parameters.
type Module interface {
	// Forward returns the output for in, in the caller's scope, and closes all other tensors that it made: it calculates in x.Within, which
	// does both.
	Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor
}

// Func makes a module from a function without parameters, such as nn.Func((*tenon.Exec).SiLU).
type Func func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor

// Forward calls f.
func (f Func) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	if f == nil {
		fail("Func", "the function is nil; give it one")
	}
	return f(x, in)
}

// Sequential runs modules one after another. Its parameters are named by the module's index: "0.weight". An empty or nil one returns its
// input, as [Identity] does.
type Sequential []Module

// Forward passes in to the first module and each output to the next, and closes each intermediate output as soon as the next module has
// used it.
func (s Sequential) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		t := in
		for i, m := range s {
			if m == nil {
				fail("Sequential", "module %d is nil; leave it out", i)
			}
			out := m.Forward(x, t)
			if t != out && temporary(x, t) {
				t.Close()
			}
			t = out
		}
		return t
	})
}

// Identity returns its input.
type Identity struct{}

// Forward returns in.
func (Identity) Forward(_ *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return in }

// Flatten merges dimensions From to To into one; negative ones count from the end, and the zero value stands for PyTorch's 1 to -1.
type Flatten struct{ From, To int }

// Forward returns in with those dimensions merged, as a view where possible.
func (f Flatten) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	from, to, n := f.From, f.To, in.Dim()
	if f == (Flatten{}) {
		from, to = 1, -1
	}
	if from < 0 {
		from += n
	}
	if to < 0 {
		to += n
	}
	if from < 0 || to >= n || from > to {
		fail("Flatten", "dimensions %d to %d of a tensor of shape %v cannot be made one", f.From, f.To, in.Shape())
	}
	shape := append([]int(nil), in.Shape()[:from]...)
	size := 1
	for _, d := range in.Shape()[from : to+1] {
		size *= d
	}
	shape = append(append(shape, size), in.Shape()[to+1:]...)
	return x.Reshape(in, shape...)
}
