// Package conformance tests Tenon's operations against recorded cases of PyTorch. For each operation it defines how a recorded call is
// made through the public face. It uses only what a user of the module can use: it calls only tenon.
package conformance

import (
	"fmt"
	"slices"

	"tenon.dev"
	"tenon.dev/internal/recorded"
)

// registry holds, by PyTorch's name of an operation, the function that calls a case of it. The function gets the case's arguments and
// returns a *tenon.Tensor, a []*tenon.Tensor, or a number of a type that recorded.Value holds.
var registry = map[string]func(x *tenon.Exec, a *args) any{}

// offer adds an operation to the registry.
func offer(name string, call func(x *tenon.Exec, a *args) any) {
	if registry[name] != nil {
		panic("conformance: " + name + " is in the registry twice")
	}
	registry[name] = call
}

// offered returns the registry's function for a case, or nil. It excludes Unique along a dimension and two modes of interpolation, which
// Tenon does not have; attention with dropout, which depends on PyTorch's random numbers; PyTorch's float32 attention kernel, whose errors
// exceed those of the type; TopK of integers and bfloat16, whose cases have equal elements, of which PyTorch may return any; and one
// transposed convolution, in which PyTorch rounds each product to bfloat16 before it adds them.
func offered(c *recorded.Case) func(x *tenon.Exec, a *args) any {
	switch p, _ := c.Kwargs["dropout_p"].(float64); {
	case c.Op == "unique" && c.Kwargs["dim"] != nil, c.Op == attentionOp && (p > 0 || c.Type == "f32"):
		return nil
	case c.Op == "nn.functional.conv_transpose2d" && c.Type == "bf16" && c.Kwargs["groups"] == recorded.Value(int64(2)):
		return nil
	case c.Op == "nn.functional.interpolate" && (c.Kwargs["mode"] == "bicubic" || c.Kwargs["mode"] == "area"):
		return nil
	case c.Op == "topk" && slices.Contains([]string{"i64", "i32", "u8", "bf16"}, c.Type):
		return nil
	}
	return registry[c.Op]
}

const attentionOp = "nn.functional.scaled_dot_product_attention"

// args are the arguments of a recorded call, with its tensors on the device. Each accessor takes the argument's position, where the input
// is number 0, and its name, which is used if it was not given by position; position -1 means keyword-only. An argument that was not
// given, or was None, has the default. Keyword tensors that require a gradient are read in the operation's own order, which is the order
// of their gradients.
type args struct {
	c  *recorded.Case
	at []any
	kw map[string]any
	// leaves are the tensors that require a gradient.
	leaves []*tenon.Tensor
	grads  map[*tenon.Tensor]bool
	used   map[string]bool
}

// badCase is the panic for an argument of another kind than the registry's function expects.
type badCase struct{ msg string }

// newArgs copies the case's tensors to the device.
func newArgs(x *tenon.Exec, c *recorded.Case) *args {
	a := &args{c: c, kw: map[string]any{}, used: map[string]bool{}, grads: map[*tenon.Tensor]bool{}}
	a.at = append(a.at, a.convert(x, c.Input))
	for _, v := range c.Args {
		a.at = append(a.at, a.convert(x, v))
	}
	for _, v := range a.at {
		a.claim(v)
	}
	for k, v := range c.Kwargs {
		a.kw[k] = a.convert(x, v)
	}
	return a
}

// convert turns the tensors within a recorded value into tensors of the device.
func (a *args) convert(x *tenon.Exec, v recorded.Value) any {
	switch v := v.(type) {
	case *recorded.Tensor:
		t := load(x, v)
		if v.Grad {
			a.grads[t.SetRequiresGrad(true)] = true
		}
		return t
	case recorded.List:
		out := make([]any, len(v))
		for i := range v {
			out[i] = a.convert(x, v[i])
		}
		return out
	}
	return v
}

// claim appends the tensors of v that require a gradient to the order of gradients.
func (a *args) claim(v any) {
	switch v := v.(type) {
	case *tenon.Tensor:
		if a.grads[v] {
			a.leaves = append(a.leaves, v)
			delete(a.grads, v)
		}
	case []any:
		for i := range v {
			a.claim(v[i])
		}
	}
}

// get returns an argument, or nil.
func (a *args) get(i int, name string) any {
	if i >= 0 && i < len(a.at) {
		return a.at[i]
	}
	v := a.kw[name]
	a.used[name] = true
	a.claim(v)
	return v
}

// unused returns a keyword that the function did not read, or "". It ignores device and requires_grad, which do not concern the
// operation.
func (a *args) unused() string {
	for k := range a.kw {
		if !a.used[k] && k != "device" && k != "requires_grad" {
			return k
		}
	}
	return ""
}

func (a *args) wrong(name string, v any) {
	panic(badCase{fmt.Sprintf("the registry's function cannot use the argument %s, which is %T %v", name, v, v)})
}

// has reports whether an argument was given and is not None.
func (a *args) has(i int, name string) bool { return a.get(i, name) != nil }

// tensor returns a tensor, or nil.
func (a *args) tensor(i int, name string) *tenon.Tensor {
	switch v := a.get(i, name).(type) {
	case nil:
		return nil
	case *tenon.Tensor:
		return v
	default:
		a.wrong(name, v)
		return nil
	}
}

// isTensor reports whether an argument that may be a number is a tensor.
func (a *args) isTensor(i int, name string) bool {
	_, ok := a.get(i, name).(*tenon.Tensor)
	return ok
}

// tensors returns a list of tensors.
func (a *args) tensors(i int, name string) []*tenon.Tensor {
	l, ok := a.get(i, name).([]any)
	if !ok {
		a.wrong(name, a.get(i, name))
	}
	out := make([]*tenon.Tensor, len(l))
	for j, v := range l {
		if out[j], ok = v.(*tenon.Tensor); !ok {
			a.wrong(name, v)
		}
	}
	return out
}

// float returns a real number; integers and bools are converted.
func (a *args) float(i int, name string, def float64) float64 {
	switch v := a.get(i, name).(type) {
	case nil:
		return def
	case float64:
		return v
	case int64:
		return float64(v)
	case bool:
		if v {
			return 1
		}
		return 0
	default:
		a.wrong(name, v)
		return 0
	}
}

// option is float for an option, nil if it was not given.
func (a *args) option(i int, name string) tenon.Scalar {
	if !a.has(i, name) {
		return nil
	}
	return a.float(i, name, 0)
}

// complex returns a number.
func (a *args) complex(i int, name string, def complex128) complex128 {
	if v, ok := a.get(i, name).(complex128); ok {
		return v
	}
	if a.get(i, name) == nil {
		return def
	}
	return complex(a.float(i, name, 0), 0)
}

// scalar returns a number as a 0-d tensor, for operations whose scalars are real.
func (a *args) scalar(x *tenon.Exec, i int, name string, d tenon.DType) *tenon.Tensor {
	if d == tenon.Complex128 {
		return x.View(tenon.From(x, []complex128{a.complex(i, name, 0)}))
	}
	return x.View(x.ToDType(tenon.From(x, []complex64{complex64(a.complex(i, name, 0))}), d))
}

// isComplex reports whether an argument is a complex number.
func (a *args) isComplex(i int, name string) bool {
	_, ok := a.get(i, name).(complex128)
	return ok
}

// int returns an integer.
func (a *args) int(i int, name string, def int) int {
	switch v := a.get(i, name).(type) {
	case nil:
		return def
	case int64:
		return int(v)
	default:
		a.wrong(name, v)
		return 0
	}
}

// ints returns a list of integers, which may be given as a single one; nil if it was not given.
func (a *args) ints(i int, name string) []int {
	switch v := a.get(i, name).(type) {
	case nil:
		return nil
	case int64:
		return []int{int(v)}
	case []any:
		out := make([]int, len(v))
		for j := range v {
			n, ok := v[j].(int64)
			if !ok {
				a.wrong(name, v)
			}
			out[j] = int(n)
		}
		return out
	default:
		a.wrong(name, v)
		return nil
	}
}

// pair returns two integers, which may be given as a single one.
func (a *args) pair(i int, name string, def int) [2]int {
	switch v := a.ints(i, name); len(v) {
	case 0:
		return [2]int{def, def}
	case 1:
		return [2]int{v[0], v[0]}
	default:
		return [2]int{v[0], v[1]}
	}
}

// bool returns a bool.
func (a *args) bool(i int, name string, def bool) bool {
	switch v := a.get(i, name).(type) {
	case nil:
		return def
	case bool:
		return v
	default:
		a.wrong(name, v)
		return false
	}
}

// str returns a string.
func (a *args) str(i int, name, def string) string {
	switch v := a.get(i, name).(type) {
	case nil:
		return def
	case string:
		return v
	default:
		a.wrong(name, v)
		return ""
	}
}

// choice returns the choice whose PyTorch name is the argument's text; the zero value if it was not given.
func choice[T named](a *args, i int, name string) T {
	text := a.str(i, name, T(0).String())
	v, ok := choiceOf[T](text)
	if !ok {
		a.wrong(name, text)
	}
	return v
}

// named is a type of choices that have PyTorch's names.
type named interface {
	~uint8
	String() string
}

// choiceOf returns the choice whose PyTorch name is text.
func choiceOf[T named](text string) (v T, ok bool) {
	for v := range T(16) {
		if v.String() == text {
			return v, true
		}
	}
	return 0, false
}

// dtype returns an element type; the zero value if it was not given.
func (a *args) dtype(i int, name string) tenon.DType {
	switch v := a.get(i, name).(type) {
	case nil:
		return 0
	case tenon.DType:
		return v
	default:
		a.wrong(name, v)
		return 0
	}
}

// memoryFormat returns a memory format, such as "channels_last"; the default is "".
func (a *args) memoryFormat(i int, name string) string {
	switch v := a.get(i, name).(type) {
	case nil:
		return ""
	case recorded.MemoryFormat:
		return string(v)
	default:
		a.wrong(name, v)
		return ""
	}
}
