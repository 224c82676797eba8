package agree

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// prologueOf returns an operation that makes a matrix of type t from whole numbers, a factor of type t and a float32 to add:
// (whole·factor, rounded, + number)·scalar.
func prologueOf(t dtype.DType) *kernels.PointOp {
	f := dtype.Float32
	return kernels.Fuse([]dtype.DType{dtype.Int8, t, f}, []kernels.FusedStep{
		{Op: kernels.Mul, Compute: t, Ins: []kernels.FusedIn{{Value: 0, Via: t}, {Value: 1}}, Outs: []kernels.FusedOut{{DType: t}}},
		{Op: kernels.Add, Compute: f, Ins: []kernels.FusedIn{{Value: 3}, {Value: 2}}, Outs: []kernels.FusedOut{{DType: f}}},
		{Op: kernels.Mul, Compute: f, Ins: []kernels.FusedIn{{Value: 4}, {Value: kernels.ScalarIn}}, Outs: []kernels.FusedOut{{DType: t}}},
	}, []int{5})
}

// tryPrologues runs products of few rows that make their matrix, which lies along either axis. Its operands are one number, one for
// each line, one for each place in a line, and one for each element.
func tryPrologues(p *pair) {
	p.limits = hopper
	f, half := dtype.Float32, dtype.BFloat16
	for i, c := range []struct {
		m, n, k int
		t       dtype.DType
		turned  bool // the matrix lies along the depth
		off     int  // elements by which the whole numbers are off alignment
	}{
		{1, 264, 768, half, true, 0}, {2, 40, 3080, half, true, 0}, {4, 136, 1040, dtype.Float16, true, 0}, {1, 72, 264, half, true, 2},
		{1, 2056, 96, half, false, 0}, {3, 1000, 64, half, false, 0}, {2, 264, 100, f, false, 1}, {3, 68, 1028, f, true, 0},
	} {
		lines, length := c.k, c.n
		if c.turned {
			lines, length = c.n, c.k
		}
		lie := func(o kernels.Operand, line, place int) kernels.Operand {
			o.Shape, o.Stride = []int{c.k, c.n}, []int{line, place}
			if c.turned {
				o.Stride = []int{place, line}
			}
			return o
		}
		kinds := [][2]int{{0, 0}, {1, 0}, {0, 1}, {length, 1}}
		for j := range 4 {
			factor, number := kinds[(i+j)%4], kinds[(i/2+3*j)%4]
			results := []*array{out(c.t, dense, c.m, c.n)}
			if j%2 == 1 {
				results = append(results, out(half, dense, c.m, c.n), out(dtype.Bool, dense, c.m, c.n))
			}
			n := len(results)
			p.try(trial{name: fmt.Sprintf("matmul with prologue %d, operands %v %v", i, factor, number),
				arrays: append(results, in(c.t, dense, whole, c.m, c.k), in(dtype.Int8, dense, whole, c.off+lines*length),
					in(c.t, dense, mild, lines*length), in(f, dense, mild, lines*length), in(f, dense, mild, c.n),
					in(half, dense, mild, c.m, c.n)),
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					ins := o[n+1:]
					ins[0].Ptr += uint64(c.off)
					opt := kernels.MatmulOpt{Alpha: 1, Prologue: &kernels.Prologue{Op: prologueOf(c.t),
						Scalars: []kernels.Scalar{kernels.FloatScalar(0.25)}, Ins: []kernels.Operand{lie(ins[0], length, 1),
							lie(ins[1], factor[0], factor[1]), lie(ins[2], number[0], number[1])}}}
					to := o[0]
					if n > 1 {
						to.Ptr, opt.Epilogue = 0, &kernels.Epilogue{Op: epilogueOf(c.t), Outs: o[:n], Ins: ins[3:],
							Scalars: []kernels.Scalar{kernels.FloatScalar(0.25)}}
					}
					return kernels.Matmul(is, to, o[n], lie(kernels.Operand{DType: c.t}, length, 1), opt)
				}})
		}
	}
}
