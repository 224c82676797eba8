package agree

import (
	"fmt"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// fold is a shape whose reduced dimensions are marked by r.
type fold struct {
	name    string
	shape   []int
	dims    string
	in, out view
	index32 int
}

// folds reach every block shape of a reduction: rows by a group of 32 and by a block, wide and deep columns, both split into parts for a
// second launch of either shape; with and without vectors; the orders and numbers of dimensions; 64-bit indexes; nothing to reduce.
var folds = []fold{
	{name: "all", shape: []int{100, 333}, dims: "rr"},
	{name: "0-d", shape: []int{}, dims: ""},
	{name: "few", shape: []int{5}, dims: "r"},
	{name: "parts", shape: []int{70001}, dims: "r"},
	{name: "parts_shifted", shape: []int{70003}, dims: "r", in: shifted},
	{name: "turned", shape: []int{33, 64}, dims: "rr", in: turned},
	{name: "stepped", shape: []int{20001}, dims: "r", in: stepped},
	{name: "rows", shape: []int{70, 64}, dims: "kr"},
	{name: "odd_rows", shape: []int{70, 67}, dims: "kr", in: padded, out: stepped},
	{name: "long_rows", shape: []int{3, 9000}, dims: "kr", in: aligned},
	{name: "rows_in_parts", shape: []int{2, 40000}, dims: "kr"},
	{name: "many_short_rows", shape: []int{9000, 5}, dims: "kr"},
	{name: "columns", shape: []int{100, 64}, dims: "rk"},
	{name: "columns_backward", shape: []int{40, 30}, dims: "rk", in: backward},
	{name: "odd_columns", shape: []int{100, 63}, dims: "rk", in: shifted},
	{name: "columns_in_parts", shape: []int{9000, 3}, dims: "rk"},
	{name: "many_columns_in_parts", shape: []int{3000, 96}, dims: "rk"},
	{name: "few_in_columns", shape: []int{9, 500}, dims: "rk"},
	{name: "channels", shape: []int{8, 5, 6, 7}, dims: "rkrr"},
	{name: "middle", shape: []int{6, 50, 8}, dims: "krk"},
	{name: "outer", shape: []int{10, 12, 8}, dims: "rkr"},
	{name: "repeated", shape: []int{40, 50}, dims: "kr", in: innerRepeated},
	{name: "rows_repeated", shape: []int{40, 48}, dims: "rk", in: outerRepeated},
	{name: "six", shape: []int{4, 3, 2, 4, 3, 2}, dims: "rkrkrk", in: turned},
	{name: "ten", shape: []int{2, 3, 2, 2, 2, 3, 2, 2, 2, 2}, dims: "rkrkrkrkkk", in: turned},
	{name: "nothing", shape: []int{4, 0}, dims: "kr"},
	{name: "no_results", shape: []int{0, 4}, dims: "kr"},
	{name: "far_rows", shape: []int{70, 64}, dims: "kr", index32: 1000},
	{name: "far_columns", shape: []int{100, 64}, dims: "rk", index32: 1000},
	{name: "far_parts", shape: []int{70001}, dims: "r", index32: 1000},
	{name: "far_six", shape: []int{4, 3, 2, 4, 3, 2}, dims: "rkrkrk", in: turned, index32: 100},
}

// results are the types of op's results if it computes in t.
func results(op *kernels.ReduceOp, t dtype.DType) []dtype.DType {
	switch op {
	case kernels.ArgMax, kernels.ArgMin, kernels.CountNonzero:
		return []dtype.DType{dtype.Int64}
	case kernels.MaxIndex, kernels.MinIndex:
		return []dtype.DType{t, dtype.Int64}
	case kernels.All, kernels.Any:
		return []dtype.DType{dtype.Bool}
	}
	return []dtype.DType{t, t, t}[:op.Outs]
}

// reduceTrial returns a trial of op on elements of type from, computing in t.
func reduceTrial(op *kernels.ReduceOp, from, t dtype.DType, f fold) trial {
	tr := trial{name: fmt.Sprintf("reduce %s %v %v %s", op.Name, from, t, f.name), index32: f.index32, optional: true}
	dims, kept := make([]bool, len(f.shape)), []int{}
	for d, n := range f.shape {
		if dims[d] = f.dims[d] == 'r'; !dims[d] {
			kept = append(kept, n)
		}
	}
	for _, ot := range results(op, t) {
		tr.arrays = append(tr.arrays, out(ot, f.out, kept...))
	}
	fill := mild
	if strings.Contains(f.name, "rows") {
		fill = spotted
	}
	for range op.Ins {
		tr.arrays = append(tr.arrays, in(from, f.in, fill, f.shape...))
	}
	tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
		return kernels.Reduce(is, op, t, opScalars(op.Scalars), ops[:op.Outs], ops[op.Outs:], dims)
	}
	return tr
}

// allFolds are the reductions that are tried with every fold.
var allFolds = []*kernels.ReduceOp{kernels.Sum, kernels.MaxIndex, kernels.VarMean, kernels.LogSumExp, kernels.SquaredErrorMean}

// tryReductions tries every reduction with every type that it computes in, with share of the folds for each, and some reductions with all
// folds. It returns the number of combinations of reduction and type.
func tryReductions(p *pair, share int) (combinations int) {
	all := map[*kernels.ReduceOp]bool{}
	for _, op := range allFolds {
		all[op] = true
	}
	next := 0
	for _, op := range kernels.ReduceOps() {
		types, floats := 0, 0
		for _, t := range everyType {
			if !p.try(reduceTrial(op, t, t, folds[0])) {
				continue
			}
			types++
			if t.IsFloat() {
				floats++
			}
			next++
			for j := range share {
				p.try(reduceTrial(op, t, t, folds[1+(next*share+j)%(len(folds)-1)]))
			}
			if all[op] && (t == dtype.Float32 || t == dtype.BFloat16 || t == dtype.Int64 || share > 1) {
				for _, f := range folds[1:] {
					p.try(reduceTrial(op, t, t, f))
				}
			}
		}
		// Integers and bool sum in int64; reductions of two operands are losses, which take only floats.
		for i, from := range []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Int16, dtype.Int32} {
			if op.Ins > 1 {
				break
			}
			p.try(reduceTrial(op, from, dtype.Int64, folds[(next+i*7)%len(folds)]))
		}
		if combinations += types; floats != 4 {
			p.t.Errorf("reduce %s can be built for %d types, %d of the four floats", op.Name, types, floats)
		}
	}
	return combinations
}
