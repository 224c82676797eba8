package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
)

// rowDropoutBits draws which elements of a float32 tensor [B, H, T, S] a dropout keeps. The result has a bit for each, in words of 32
// elements of a row, the first of which is the lowest bit. Words of neighbouring rows are adjacent: the shape is [B, H, words, rows], with
// more of both than needed, so that attention reads whole tiles.
var rowDropoutBits *row

func init() {
	rowDropoutBits = define(row{Name: "DropoutBits", takes: "; p; shape*", draws: wordsOfDropoutBits,
		infer: func(f *frame) {
			words, height := kernels.DropoutBitsShape(f.dims[2], f.dims[3])
			f.newOut(0, dtype.Uint32, []int{f.dims[0], f.dims[1], words, height}, nil)
		},
		run: func(f *frame) error {
			if infer.Numel(f.dims) == 0 {
				return nil
			}
			return kernels.DropoutBits(f, f.scalar[0].F, operand(f.out[0]), f.dims[2], f.dims[3], f.philox())
		}})
}

func wordsOfDropoutBits(f *frame) uint64 {
	return kernels.DropoutAdvance(f.Limits(), infer.Numel(f.dims))
}

// dropoutBits draws which elements of a tensor of the given four sizes a dropout keeps.
func (x *Exec) dropoutBits(p float64, shape ...int) *Tensor {
	f := x.op(rowDropoutBits)
	f.dims = append(f.dims, shape...)
	f.scalar[0] = kernels.FloatScalar(p)
	return f.call1()
}

// unpackBits returns the bool tensor of the bits of rows of n elements.
func (x *Exec) unpackBits(words *Tensor, rows, n int) *Tensor {
	words = x.Unsqueeze(x.Transpose(x.ToDType(x.Narrow(words, 3, 0, rows), dtype.Int64), 2, 3), -1)
	one := x.BitwiseLeftShift(x.Full(nil, 1, dtype.Int64), x.Arange(32, dtype.Int64, ArangeOpt{}))
	kept := x.NeS(x.BitwiseAnd(words, one), 0)
	s := kept.shape
	return x.Narrow(x.Reshape(kept, s[0], s[1], rows, -1), -1, 0, n)
}
