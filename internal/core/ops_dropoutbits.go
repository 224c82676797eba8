package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowDropoutBits draws which elements of a float32 tensor of the given shape a dropout keeps. The result has a bit for each, in words of 32
// elements of a row; the first is the lowest bit.
var rowDropoutBits *row

func init() {
	rowDropoutBits = define(row{Name: "DropoutBits", takes: "; p; shape*", draws: wordsOfDropoutBits,
		infer: func(f *frame) {
			last := len(f.dims) - 1
			shape := append([]int(nil), f.dims...)
			shape[last] = kernels.DropoutWords(shape[last])
			f.newOut(0, dtype.Uint32, shape, nil)
		},
		run: func(f *frame) error {
			if infer.Numel(f.dims) == 0 {
				return nil
			}
			return kernels.DropoutBits(f, f.scalar[0].F, operand(f.out[0]), f.dims[len(f.dims)-1], f.philox())
		}})
}

func wordsOfDropoutBits(f *frame) uint64 {
	return kernels.DropoutAdvance(f.Limits(), infer.Numel(f.dims))
}

// dropoutBits draws which elements a dropout keeps.
func (x *Exec) dropoutBits(p float64, shape ...int) *Tensor {
	f := x.op(rowDropoutBits)
	f.dims = append(f.dims, shape...)
	f.scalar[0] = kernels.FloatScalar(p)
	return f.call1()
}

// unpackBits returns the bool tensor of the bits of rows of n elements.
func (x *Exec) unpackBits(words *Tensor, n int) *Tensor {
	s := words.shape
	places := x.Arange(32, dtype.Int64, ArangeOpt{})
	bits := x.BitwiseAnd(x.Unsqueeze(x.ToDType(words, dtype.Int64), -1), x.BitwiseLeftShift(x.Full(nil, 1, dtype.Int64), places))
	flat := x.View(bits, append(append([]int(nil), s[:len(s)-1]...), s[len(s)-1]*32)...)
	return x.NeS(x.Narrow(flat, -1, 0, n), 0)
}
