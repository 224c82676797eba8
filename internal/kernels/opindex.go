package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// indexed registers an op that sees the row-major linear index of its element.
func indexed(name string, ins, scalars int, types []dtype.DType, f func(k *kernel.Builder, t dtype.DType, i kernel.Value, in,
	s []Num) Num) *PointOp {
	return point(PointOp{Name: name, Ins: ins, Scalars: scalars, ScalarTypes: types,
		BuildAt: func(k *kernel.Builder, t dtype.DType, i kernel.Value, in, s []Num) []Num {
			return []Num{f(k, t, i, in, s)}
		}})
}

var wholeNumbers = []dtype.DType{dtype.Int64, dtype.Int64, dtype.Int64}

// Ops that see indexes.
var (
	// Arange is scalar 0 + i·scalar 1; floats round once.
	Arange = indexed("arange", 0, 2, nil, func(_ *kernel.Builder, t dtype.DType, i kernel.Value, _, s []Num) Num {
		return realNum(i.Convert(t)).MulAdd(s[1], s[0])
	})
	// Linspace goes from scalar 0 to scalar 1 in scalar 3 elements (Int64), which are scalar 2 apart; the upper half counts from the end.
	// For integers the step is computed and used in float32, as in PyTorch.
	Linspace = indexed("linspace", 0, 4, []dtype.DType{dtype.Invalid, dtype.Invalid, dtype.Invalid, dtype.Int64},
		func(k *kernel.Builder, t dtype.DType, i kernel.Value, _, s []Num) Num {
			i = i.Convert(dtype.Int64)
			n := s[3].Re
			low := i.Lt(n.Div(k.I64(2)).Max(k.I64(1))) // a single element is the start
			start, end, step := s[0], s[1], s[2]
			if t.IsInt() {
				t = dtype.Float32
				start, end = start.Convert(t), end.Convert(t)
				step = end.Sub(start).Div(realNum(n.Sub(k.I64(1)).Max(k.I64(1)).Convert(t)))
			}
			up := realNum(i).Convert(t).MulAdd(step, start)
			down := realNum(n.Sub(i).Sub(k.I64(1))).Convert(t).MulAdd(step.Neg(), end)
			return choose(low, up, down)
		})
	// Eye is 1 where row = column; scalar 0 is the number of columns.
	Eye = indexed("eye", 0, 1, wholeNumbers, func(_ *kernel.Builder, _ dtype.DType, i kernel.Value, _, s []Num) Num {
		n := s[0].Re.Convert(i.Type())
		return realNum(i.Div(n).Eq(i.Rem(n)))
	})
	// Tril keeps the elements on or below diagonal scalar 2 of matrices with scalar 0 rows and scalar 1 columns; Triu keeps those on or
	// above it.
	Tril = triangle("tril", kernel.Value.Le)
	Triu = triangle("triu", kernel.Value.Ge)
	// OneHot is 1 where the class in0, repeated along the last dimension, equals the index along it; scalar 0 is the number of classes.
	OneHot = indexed("one_hot", 1, 1, wholeNumbers, func(_ *kernel.Builder, _ dtype.DType, i kernel.Value, in, s []Num) Num {
		return realNum(i.Rem(s[0].Re.Convert(i.Type())).Convert(dtype.Int64).Eq(in[0].Re.Convert(dtype.Int64)))
	})
)

func triangle(name string, keeps func(a, b kernel.Value) kernel.Value) *PointOp {
	return indexed(name, 1, 3, wholeNumbers, func(_ *kernel.Builder, _ dtype.DType, i kernel.Value, in, s []Num) Num {
		rows, columns := s[0].Re.Convert(i.Type()), s[1].Re.Convert(i.Type())
		q := i.Div(columns)
		column, row := i.Sub(q.Mul(columns)).Convert(dtype.Int64), q.Rem(rows).Convert(dtype.Int64)
		return choose(keeps(column.Sub(row), s[2].Re), in[0], in[0].like(0))
	})
}
