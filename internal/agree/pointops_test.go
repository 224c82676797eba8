package agree

import (
	"fmt"
	"math/rand/v2"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// everyType lists all element types.
var everyType = func() (ts []dtype.DType) {
	for t := dtype.Invalid + 1; t.Valid(); t++ {
		ts = append(ts, t)
	}
	return ts
}()

// layout is a shape and the views of a pointwise operation's operands; operands beyond the end of the list start again from its beginning.
type layout struct {
	name      string
	shape     []int
	outs, ins []view
	index32   int
}

// layouts reach every class of the pointwise engine: a single run with and without vectors, with repeated and held inputs; 1, 2, 3 and 4, 5
// to 8 and more dimensions, with and without vectors; empty arrays; splits at a lowered limit of 32-bit indexes.
var layouts = []layout{
	{name: "one_run", shape: []int{1031}, outs: []view{dense}, ins: []view{dense}},
	{name: "shifted", shape: []int{515}, outs: []view{shifted}, ins: []view{shifted, dense}},
	{name: "scalar", shape: []int{}, outs: []view{dense}, ins: []view{dense}},
	{name: "nothing", shape: []int{3, 0, 5}, outs: []view{dense}, ins: []view{dense}},
	{name: "one_repeated", shape: []int{700}, outs: []view{dense}, ins: []view{dense, repeated}},
	{name: "first_repeated", shape: []int{333}, outs: []view{dense}, ins: []view{repeated, dense}},
	{name: "held", shape: []int{520}, outs: []view{dense}, ins: []view{dense, held}},
	{name: "held_first", shape: []int{9, 48}, outs: []view{aligned}, ins: []view{held, dense}},
	{name: "aligned_rows", shape: []int{9, 56}, outs: []view{aligned}, ins: []view{aligned, dense}},
	{name: "padded_rows", shape: []int{13, 33}, outs: []view{padded}, ins: []view{dense, padded}},
	{name: "row_repeated", shape: []int{6, 5, 32}, outs: []view{dense}, ins: []view{dense, outerRepeated}},
	{name: "column_repeated", shape: []int{7, 64}, outs: []view{dense}, ins: []view{innerRepeated, dense}},
	{name: "turned", shape: []int{24, 40}, outs: []view{dense}, ins: []view{turned, dense}},
	{name: "turned_result", shape: []int{5, 3, 20}, outs: []view{turned}, ins: []view{dense, backward}},
	{name: "stepped", shape: []int{401}, outs: []view{stepped}, ins: []view{stepped, backward}},
	{name: "five", shape: []int{3, 4, 2, 5, 7}, outs: []view{padded}, ins: []view{backward, stepped, turned}},
	{name: "ten", shape: []int{2, 3, 2, 2, 2, 3, 2, 2, 2, 2}, outs: []view{dense}, ins: []view{turned, stepped, dense}},
	{name: "split_run", shape: []int{2000}, outs: []view{dense}, ins: []view{dense}, index32: 600},
	{name: "split", shape: []int{24, 40}, outs: []view{dense}, ins: []view{turned, dense}, index32: 100},
	{name: "split_rows", shape: []int{30, 7, 8}, outs: []view{aligned}, ins: []view{stepped, innerRepeated}, index32: 333},
}

// opScalars are values for an operation's scalars that make sense as sizes, exponents and weights.
func opScalars(n int) []kernels.Scalar {
	floats := []float64{0.75, 1.25, 2, 0.5, 0.9, 0.1, 1.5, 1e-3}
	ints := []int64{3, 5, 2, 7, 1, 4, 6, 8}
	s := make([]kernels.Scalar, n)
	for i := range s {
		s[i] = kernels.Scalar{F: floats[i%8], Im: floats[(i+3)%8], I: ints[i%8]}
	}
	return s
}

// inputType is the type of op's input i if op computes in t and the other inputs have type t.
func inputType(op *kernels.PointOp, i int, t dtype.DType) dtype.DType {
	if i < len(op.InTypes) && op.InTypes[i] != dtype.Invalid {
		return op.InTypes[i]
	}
	return t
}

// pointTrial returns a trial of op computing in t, with the given operand types (nil: t and those that op fixes).
func pointTrial(op *kernels.PointOp, t dtype.DType, l layout, outTypes, inTypes []dtype.DType) trial {
	tr := trial{name: fmt.Sprintf("pointwise %s %v %s %v %v", op.Name, t, l.name, outTypes, inTypes), index32: l.index32, optional: true}
	for i := range op.Outs {
		ot := t
		if outTypes != nil {
			ot = outTypes[i%len(outTypes)]
		}
		tr.arrays = append(tr.arrays, out(ot, l.outs[i%len(l.outs)], l.shape...))
	}
	s := opScalars(op.Scalars)
	for i := range op.Ins {
		it := inputType(op, i, t)
		if inTypes != nil {
			it = inTypes[i%len(inTypes)]
		}
		fill, number := filling(anything), kernels.Scalar{F: -1.5, Im: 0.25, I: 3}
		if op == kernels.BCE { // it stops the device for other inputs
			fill, number = probabilities, kernels.FloatScalar(0.75)
		}
		a := in(it, l.ins[i%len(l.ins)], fill, l.shape...)
		if tr.arrays = append(tr.arrays, a); a == absent {
			s = append(s, number)
		}
	}
	tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
		for i := range ops { // as operands that promote to float16 do
			if (t == dtype.Float16 || t == dtype.BFloat16) && outTypes != nil && ops[i].DType != t && ops[i].Ptr != 0 {
				ops[i].Via = t
			}
		}
		return kernels.Pointwise(is, op, t, s, ops[:op.Outs], ops[op.Outs:])
	}
	return tr
}

// manyLayouts are the operations that are tried with every layout: with zero to five inputs, several results, index inputs, fixed input
// types.
var manyLayouts = []*kernels.PointOp{kernels.Copy, kernels.Add, kernels.Where, kernels.AddCMul, kernels.Fill, kernels.Arange,
	kernels.Tril, kernels.OneHot,
	kernels.SGDMomentum.PointOp, kernels.AdamWAMS.PointOp, kernels.CrossEntropyBackward, kernels.Exp, kernels.DivFloor}

// tryPointOps tries every operation with every type that it computes in, with share of the layouts for each, and some operations with all
// layouts. It returns the number of combinations of operation and type.
func tryPointOps(p *pair, share int) (combinations int) {
	many := map[*kernels.PointOp]bool{}
	for _, op := range manyLayouts {
		many[op] = true
	}
	next := 0
	for _, op := range kernels.PointOps() {
		types, floats := 0, 0
		for _, t := range everyType {
			if !p.try(pointTrial(op, t, layouts[0], nil, nil)) {
				continue
			}
			types++
			if t.IsFloat() {
				floats++
			}
			next++
			for j := range share {
				// Every other time, operand types that differ from the one computed in.
				l := layouts[1+(next*share+j)%(len(layouts)-1)]
				var outs, ins []dtype.DType
				if (next+j)%2 == 0 {
					outs = []dtype.DType{everyType[(next/2+5*j)%len(everyType)]}
				}
				if (next+j)%4 == 0 && op.InTypes == nil {
					ins = []dtype.DType{everyType[(next/4+3*j)%len(everyType)], t}
				}
				p.try(pointTrial(op, t, l, outs, ins))
			}
			if many[op] && (t == dtype.Float32 || t == dtype.BFloat16 || t == dtype.Int8 || t == dtype.Complex64 || share > 1) {
				for _, l := range layouts[1:] {
					p.try(pointTrial(op, t, l, nil, nil))
				}
			}
		}
		if combinations += types; types == 0 || floats%4 != 0 {
			p.t.Errorf("pointwise %s can be built for %d types, %d of the four floats", op.Name, types, floats)
		}
	}
	return combinations
}

// tryCopies converts every type to every other.
func tryCopies(p *pair) {
	for _, from := range everyType {
		for _, to := range everyType {
			for i := range 2 {
				l := []layout{{name: "one_run", shape: []int{2053}, outs: []view{dense}, ins: []view{dense}}, layouts[12]}[i]
				tr := pointTrial(kernels.Copy, from, l, []dtype.DType{to}, nil)
				tr.optional = false
				p.try(tr)
			}
		}
	}
}

// tryInPlace writes results over inputs.
func tryInPlace(p *pair) {
	for _, t := range everyType {
		for _, v := range []view{dense, shifted, stepped, turned} {
			a, b := out(t, v, 20, 30), in(t, dense, anything, 20, 30)
			p.try(trial{name: fmt.Sprintf("pointwise add_in_place %v %d", t, v), arrays: []*array{a, a, b},
				run: func(is kernels.Issuer, ops []kernels.Operand) error {
					return kernels.Pointwise(is, kernels.Add, t, nil, ops[:1], ops[1:])
				}})
		}
	}
}

// tryMultiTensor runs optimizer steps and other operations over lists of tensors, more than one launch takes, some of them unaligned.
func tryMultiTensor(p *pair) {
	ops := []*kernels.PointOp{kernels.Add, kernels.AddCMul}
	for _, s := range kernels.StepOps() {
		ops = append(ops, s.PointOp)
	}
	for _, op := range ops {
		for _, t := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16} {
			tr := trial{name: fmt.Sprintf("multi_tensor %s %v", op.Name, t)}
			const tensors = 37
			for i := range tensors {
				n, v := 1+i*i%700, dense
				switch {
				case i == 9:
					n = 0
				case i == 20:
					n = 5000
				case i%10 == 7 && t != dtype.Float64:
					v = shifted
				}
				for range op.Outs {
					tr.arrays = append(tr.arrays, out(t, v, n))
				}
				for range op.Ins {
					tr.arrays = append(tr.arrays, in(t, v, mild, n))
				}
			}
			tr.arrays = append(tr.arrays, in(dtype.Float64, dense, stepRows, 3, kernels.RowLen))
			tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
				var outs, ins [][]kernels.Operand
				rows := kernels.Rows{Ptr: ops[len(ops)-1].Ptr}
				for i := range tensors {
					outs, ins = append(outs, ops[:op.Outs]), append(ins, ops[op.Outs:op.Outs+op.Ins])
					ops = ops[op.Outs+op.Ins:]
					rows.Which = append(rows.Which, int32(i%3))
				}
				return kernels.MultiTensor(is, op, t, rows, outs, ins)
			}
			p.try(tr)
		}
	}
	tryScaledSteps(p)
	for _, op := range kernels.StepOps() {
		for _, t := range []dtype.DType{dtype.Float32, dtype.Float64} {
			found := func(rng *rand.Rand, t dtype.DType, n int) []byte { return make([]byte, n*t.Size()) } // nothing found
			if t == dtype.Float64 {
				found = mild
			}
			tr := trial{name: fmt.Sprintf("advance %s %v", op.Name, t),
				arrays: []*array{newArray(true, dtype.Float64, dense, stepRows, 700, kernels.RowLen),
					in(t, dense, mild, 1), in(dtype.Float32, dense, found, 1)}}
			tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
				rows := kernels.Rows{Ptr: ops[0].Ptr}
				for i := range 650 {
					rows.Which = append(rows.Which, int32(i*3%700))
				}
				numbers := []float64{.01, -1, .1, .8, .95, 1e-6, .004}[:op.Numbers]
				if err := kernels.Advance(is, op, numbers, rows, ops[1], ops[2]); err != nil {
					return err
				}
				rows.Which = rows.Which[:40]
				return kernels.Advance(is, op, numbers, rows, kernels.Operand{}, kernels.Operand{})
			}
			p.try(tr)
		}
	}
}

// tryScaledSteps runs steps over gradients of several types that are multiplied by a factor, and norms over such lists.
func tryScaledSteps(p *pair) {
	halves := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.BFloat16, dtype.Float16}
	for _, op := range kernels.StepOps() {
		tr := trial{name: "scaled multi_tensor " + op.Name}
		const tensors = 50
		for i := range tensors {
			n := 1 + i*i%700
			for range op.Outs {
				tr.arrays = append(tr.arrays, out(dtype.Float32, dense, n))
			}
			for j := range op.Ins {
				t := dtype.Float32
				if j == 1 {
					t = halves[i%len(halves)]
				}
				tr.arrays = append(tr.arrays, in(t, dense, mild, n))
			}
		}
		tr.arrays = append(tr.arrays, in(dtype.Float64, dense, stepRows, 3, kernels.RowLen))
		tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
			var outs, ins [][]kernels.Operand
			rows := kernels.Rows{Ptr: ops[len(ops)-1].Ptr, Factor: ops[len(ops)-1].Ptr + 8*kernels.RowLen}
			for i := range tensors {
				outs, ins = append(outs, ops[:op.Outs]), append(ins, ops[op.Outs:op.Outs+op.Ins])
				ops = ops[op.Outs+op.Ins:]
				rows.Which = append(rows.Which, int32(i%3))
			}
			return kernels.MultiTensor(is, op.PointOp, dtype.Float32, rows, outs, ins)
		}
		p.try(tr)
	}
	for _, types := range [][]dtype.DType{{dtype.Float32}, {dtype.BFloat16}, halves} {
		for _, result := range []dtype.DType{dtype.Float32, types[0]} {
			if result != dtype.Float32 && len(types) > 1 {
				continue
			}
			const tensors = 140
			tr := trial{name: fmt.Sprintf("multi_reduce %v %v", types, result), arrays: []*array{out(result, dense, tensors)}}
			for i := range tensors {
				n := i * i % 700
				if i == 5 {
					n = 40001
				}
				tr.arrays = append(tr.arrays, in(types[i%len(types)], dense, mild, n))
			}
			tr.run = func(is kernels.Issuer, ops []kernels.Operand) error {
				return kernels.MultiReduce(is, kernels.Norm2, result, nil, ops[0], ops[1:])
			}
			p.try(tr)
		}
	}
}

// tryScale divides gradients by a scale, and updates one.
func tryScale(p *pair) {
	zeros := func(rng *rand.Rand, t dtype.DType, n int) []byte { return make([]byte, n*t.Size()) }
	scales := func(scale float32, steps int) filling {
		return func(_ *rand.Rand, t dtype.DType, _ int) (b []byte) {
			for _, v := range kernels.ScaleRow(scale, steps) {
				b = put(b, t, realBits(t, v))
			}
			return b
		}
	}
	for _, t := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16} {
		for i, fill := range []filling{mild, spotted, anything} {
			a := newArray(true, t, dense, fill, 70*(i*i*10+1))
			flag := newArray(true, dtype.Float32, dense, zeros, 1)
			p.try(trial{name: fmt.Sprintf("unscale %v %d", t, i),
				arrays: []*array{a, flag, in(dtype.Float64, dense, scales(12, 0), kernels.RowLen)},
				run: func(is kernels.Issuer, ops []kernels.Operand) error {
					rows := kernels.Rows{Ptr: ops[2].Ptr, Which: []int32{0}, Flag: ops[1].Ptr}
					return kernels.MultiTensor(is, kernels.Unscale, t, rows, [][]kernels.Operand{ops[:1]}, [][]kernels.Operand{ops[:1]})
				}})
		}
	}
	for i, row := range []filling{scales(12, 0), scales(65536, 6), scales(3e38, 6), scales(1e-40, 3)} {
		for _, flags := range []filling{zeros, mild} {
			p.try(trial{name: fmt.Sprintf("update_scale %d", i),
				arrays: []*array{newArray(true, dtype.Float64, dense, row, kernels.RowLen), out(dtype.Float32, dense, 1),
					newArray(true, dtype.Float32, dense, flags, 3)}, run: func(is kernels.Issuer, ops []kernels.Operand) error {
					return kernels.UpdateScale(is, ops[0], ops[1], []uint64{ops[2].Ptr, ops[2].Ptr + 4, ops[2].Ptr + 8}, 2, .3, 7)
				}})
		}
	}
}

// stepRows fills rows of optimizers: counts from 0 up, numbers between 0 and 2, and every third row to be skipped.
func stepRows(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := make([]byte, 0, n*t.Size())
	for i := range n {
		v := 2 * rng.Float64()
		switch i % kernels.RowLen {
		case 0:
			v = float64(i / kernels.RowLen)
		case kernels.RowMemory:
			v = float64(i / kernels.RowLen % 3 / 2)
		}
		b = put(b, t, realBits(t, v))
	}
	return b
}
