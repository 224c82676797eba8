package tenon_test

import (
	"math/rand/v2"
	"reflect"
	"strings"

	"tenon.dev"
)

// intoMethod is a method of Exec that writes its results to existing tensors, with the plain method that makes new ones.
type intoMethod struct {
	name        string
	into, plain reflect.Value
	// results is the number of destinations. left holds the indexes of the plain method's arguments that the destination replaces.
	results int
	left    map[int]bool
}

// intoMethods finds them by reflection.
func intoMethods() (ms []intoMethod) {
	t := reflect.TypeFor[*tenon.Exec]()
	for i := range t.NumMethod() {
		m := t.Method(i)
		plain, ok := t.MethodByName(strings.TrimSuffix(m.Name, "Into"))
		if !strings.HasSuffix(m.Name, "Into") || !ok {
			continue
		}
		into := intoMethod{name: plain.Name, into: m.Func, plain: plain.Func, results: plain.Type.NumOut(), left: map[int]bool{}}
		if plain.Type.NumIn()+into.results > m.Type.NumIn() { // a factory
			for j := 1; j < plain.Type.NumIn(); j++ {
				if in := plain.Type.In(j); in == reflect.TypeFor[tenon.DType]() || in == reflect.TypeFor[[]int]() {
					into.left[j] = true
				}
			}
		}
		ms = append(ms, into)
	}
	return ms
}

// random returns a tensor of small numbers, the same for the same seed.
func random(x *tenon.Exec, seed uint64, dt tenon.DType, shape ...int) *tenon.Tensor {
	r := rand.New(rand.NewPCG(seed, 7))
	n := 1
	for _, d := range shape {
		n *= d
	}
	v := make([]complex128, n)
	for i := range v {
		if v[i] = complex(2*r.NormFloat64(), 0); dt == tenon.Complex64 || dt == tenon.Complex128 {
			v[i] += complex(0, 2*r.NormFloat64())
		}
	}
	t := tenon.From(x, v, shape...)
	if dt == tenon.Complex128 {
		return t
	}
	if dt == tenon.Complex64 {
		return x.ToDType(t, dt)
	}
	return x.ToDType(x.Contiguous(x.RealPart(t)), dt)
}

type operands = []any

// intoOperands makes the arguments, by name, of methods that need something other than a matrix for every tensor.
var intoOperands = map[string][]func(x *tenon.Exec, dt tenon.DType) operands{
	"MM":  {products([]int{3, 4}, []int{4, 5}), products([]int{4, 4}, []int{4, 4})},
	"BMM": {products([]int{2, 3, 4}, []int{2, 4, 5}), products([]int{2, 4, 4}, []int{2, 4, 4})},
	"MatMul": {products([]int{3, 4}, []int{4, 5}), products([]int{2, 3, 4}, []int{4, 5}), products([]int{4}, []int{4, 5}),
		products([]int{4}, []int{4})},
	"MV":      {products([]int{3, 4}, []int{4})},
	"Dot":     {products([]int{4}, []int{4})},
	"VDot":    {products([]int{4}, []int{4})},
	"Outer":   {products([]int{3}, []int{4})},
	"AddMM":   {products([]int{3, 5}, []int{3, 4}, []int{4, 5})},
	"AddMV":   {products([]int{3}, []int{3, 4}, []int{4})},
	"AddR":    {products([]int{3, 4}, []int{3}, []int{4})},
	"AddBMM":  {products([]int{3, 5}, []int{2, 3, 4}, []int{2, 4, 5})},
	"BAddBMM": {products([]int{2, 3, 5}, []int{2, 3, 4}, []int{2, 4, 5})},
	"Linear": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 2, 3, 4), random(x, 2, dt, 5, 4), random(x, 3, dt, 5)}
	}, func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), random(x, 2, dt, 5, 4), (*tenon.Tensor)(nil)}
	}},
	"AvgPool2d": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 2, 3, 6, 5), [2]int{2, 3}}
	}},
	"TensorDot": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), random(x, 2, dt, 4, 5), []int{1}, []int{0}}
	}},
	"Cat": {joined}, "Stack": {joined},
	"Gather": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), 1, tenon.From(x, []int{1, 0, 3, 2, 2, 2}, 3, 2)}
	}},
	"IndexSelect": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), 1, tenon.From(x, []int{3, 0, 3})}
	}},
	"TakeAlongDim": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), tenon.From(x, []int{1, 0, 3, 2, 2, 2}, 3, 2), []int{1}}
	}},
	"MaskedSelect": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), x.GtS(random(x, 2, tenon.Float32, 3, 4), 0)}
	}},
	"MaskedFillS": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), x.GtS(random(x, 2, tenon.Float32, 3, 4), 0), 2.0}
	}},
	"Where": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{x.GtS(random(x, 2, tenon.Float32, 3, 4), 0), random(x, 1, dt, 3, 4), random(x, 3, dt, 3, 4)}
	}},
	"ScatterS": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{random(x, 1, dt, 3, 4), 1, places34(x), 2.0}
	}},
	"IndexCopy":  {func(x *tenon.Exec, dt tenon.DType) operands { return ofSlices(x, dt) }},
	"IndexAdd":   {func(x *tenon.Exec, dt tenon.DType) operands { return ofSlices(x, dt) }},
	"IndexFill":  {func(x *tenon.Exec, dt tenon.DType) operands { return append(ofSlices(x, dt)[:3], x.Full(nil, 2, dt)) }},
	"IndexFillS": {func(x *tenon.Exec, dt tenon.DType) operands { return append(ofSlices(x, dt)[:3], 2.0) }},
	"Scatter":    {func(x *tenon.Exec, dt tenon.DType) operands { return scattered(x, dt) }},
	"ScatterAdd": {func(x *tenon.Exec, dt tenon.DType) operands { return scattered(x, dt) }},
	"Bernoulli": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{x.ToDType(x.Sigmoid(random(x, 1, tenon.Float32, 3, 4)), dt)}
	}},
	"Multinomial": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{x.Abs(random(x, 1, dt, 3, 4)), 3}
	}},
	"Arange":    {func(x *tenon.Exec, dt tenon.DType) operands { return operands{7.0, dt, []tenon.ArangeOpt{{Step: 2}}} }},
	"Linspace":  {func(x *tenon.Exec, dt tenon.DType) operands { return operands{0.0, 7.0, 5, dt} }},
	"LinspaceC": {func(x *tenon.Exec, dt tenon.DType) operands { return operands{0i, 7 + 3i, 5, dt} }},
	"Eye": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{3, dt, []tenon.EyeOpt{{Columns: new(4)}}}
	}},
	"RandInt": {func(x *tenon.Exec, dt tenon.DType) operands {
		return operands{int64(9), []int{3, 5}, dt, []tenon.RandIntOpt{{Low: -2}}}
	}},
	"Rand":  {func(x *tenon.Exec, dt tenon.DType) operands { return operands{[]int{3, 5}, dt} }},
	"RandN": {func(x *tenon.Exec, dt tenon.DType) operands { return operands{[]int{3, 5}, dt} }},
}

func init() {
	for _, name := range []string{"AddMM", "AddR", "AddBMM", "BAddBMM"} {
		f := intoOperands[name][0]
		intoOperands[name+"C"] = []func(x *tenon.Exec, dt tenon.DType) operands{func(x *tenon.Exec, dt tenon.DType) operands {
			return append(f(x, dt)[:3:3], []tenon.AddMMCOpt{{Beta: 1 + 2i, Alpha: 2 - 1i}})
		}}
	}
}

// products returns operands of these shapes, followed by the options with factors if there are three.
func products(shapes ...[]int) func(x *tenon.Exec, dt tenon.DType) operands {
	return func(x *tenon.Exec, dt tenon.DType) (all operands) {
		for i, s := range shapes {
			all = append(all, random(x, uint64(i+1), dt, s...))
		}
		if len(shapes) == 3 {
			all = append(all, []tenon.AddMMOpt{{Beta: 0.5, Alpha: 2}})
		}
		return all
	}
}

func joined(x *tenon.Exec, dt tenon.DType) operands {
	return operands{[]*tenon.Tensor{random(x, 1, dt, 3, 4), random(x, 2, dt, 3, 4)}, []int{1}}
}

func places34(x *tenon.Exec) *tenon.Tensor { return tenon.From(x, []int{1, 0, 3, 2, 2, 0}, 3, 2) }

func scattered(x *tenon.Exec, dt tenon.DType) operands {
	return operands{random(x, 1, dt, 3, 4), 1, places34(x), random(x, 2, dt, 3, 4)}
}

// ofSlices returns a matrix, a dimension, indexes along it and the columns for them.
func ofSlices(x *tenon.Exec, dt tenon.DType) operands {
	return operands{random(x, 1, dt, 3, 4), 1, tenon.From(x, []int{3, 0}), random(x, 2, dt, 3, 2)}
}

// operandsOf returns functions that make the arguments of m, without the Exec.
func (m *intoMethod) operandsOf() []func(x *tenon.Exec, dt tenon.DType) operands {
	if fs := intoOperands[m.name]; fs != nil {
		return fs
	}
	return []func(x *tenon.Exec, dt tenon.DType) operands{func(x *tenon.Exec, dt tenon.DType) (all operands) {
		t := m.plain.Type()
		for i := 1; i < t.NumIn(); i++ {
			switch in := t.In(i); in {
			case reflect.TypeFor[*tenon.Tensor]():
				all = append(all, random(x, uint64(i), dt, 3, 4))
			case reflect.TypeFor[float64]():
				all = append(all, 2.0)
			case reflect.TypeFor[int]():
				all = append(all, 1)
			case reflect.TypeFor[[]int]():
				all = append(all, []int{1})
			default: // options are left out
				all = append(all, reflect.Zero(in).Interface())
			}
		}
		return all
	}}
}

// call runs the plain method on x.
func (m *intoMethod) call(x *tenon.Exec, args operands) (out []*tenon.Tensor) {
	for _, v := range m.invoke(m.plain, x, args) {
		out = append(out, v.Interface().(*tenon.Tensor))
	}
	return out
}

// callInto runs the method with Into.
func (m *intoMethod) callInto(x *tenon.Exec, dst []*tenon.Tensor, args operands) {
	var all operands
	for _, d := range dst {
		all = append(all, d)
	}
	for i, a := range args {
		if !m.left[i+1] {
			all = append(all, a)
		}
	}
	m.invoke(m.into, x, all)
}

func (m *intoMethod) invoke(f reflect.Value, x *tenon.Exec, args operands) []reflect.Value {
	in := []reflect.Value{reflect.ValueOf(x)}
	for _, a := range args {
		in = append(in, reflect.ValueOf(a))
	}
	if f.Type().IsVariadic() {
		if len(in) < f.Type().NumIn() {
			in = append(in, reflect.Zero(f.Type().In(len(in))))
		}
		return f.CallSlice(in)
	}
	return f.Call(in)
}
