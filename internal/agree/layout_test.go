package agree

import (
	"math"
	"math/rand/v2"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// view is a layout of an array's elements in memory.
type view int

const (
	dense view = iota
	// shifted is dense, starting at the second element of its memory.
	shifted
	// padded has 3 extra elements between rows; aligned has rows that start at multiples of 16 elements.
	padded
	aligned
	// stepped uses every second element of each row; backward also goes through them in the opposite direction.
	stepped
	backward
	// turned has its dimensions in the opposite order.
	turned
	// channelsLast has the second of four dimensions innermost.
	channelsLast
	// repeated uses one element for all, outerRepeated one row, innerRepeated one column.
	repeated
	outerRepeated
	innerRepeated
	// held is a number passed with the launch, not an array.
	held
)

// lay returns the strides and the position of the first element of an array with the given shape, and the number of elements of its memory.
func (v view) lay(shape []int) (stride []int, first, count int) {
	stride = make([]int, len(shape))
	run := 1
	order := make([]int, len(shape))
	for i := range order {
		order[i] = len(shape) - 1 - i
		if v == turned {
			order[i] = i
		}
	}
	if v == channelsLast {
		order = []int{1, 3, 2, 0}
	}
	for i, d := range order {
		step := run
		switch {
		case v == stepped && i == 0, v == backward && i == 0:
			step = 2 * run
		}
		stride[d] = step
		run = step * shape[d]
		switch {
		case v == padded && i == 0:
			run += 3
		case v == aligned && i == 0:
			run = (run + 15) / 16 * 16
		}
		if v == repeated || v == outerRepeated && i > 0 || v == innerRepeated && i == 0 {
			stride[d], run = 0, step
		}
	}
	count = max(1, run)
	switch v {
	case shifted:
		return stride, 1, count + 1
	case backward:
		for d, n := range shape {
			first += max(0, n-1) * stride[d]
			stride[d] = -stride[d]
		}
	}
	return stride, first, count
}

// array is an operand of a trial.
type array struct {
	t      dtype.DType
	shape  []int
	stride []int
	// first is the position of the first element in the array's memory, which has count elements.
	first, count int
	// fill generates the contents; a written array has some as well, so that elements that are not written are compared too.
	fill filling
	out  bool
	// at is the position in the batch's memory.
	at int
}

// absent is an omitted operand.
var absent = (*array)(nil)

func newArray(out bool, t dtype.DType, v view, fill filling, shape ...int) *array {
	if v == held {
		return absent
	}
	stride, first, count := v.lay(shape)
	return &array{t: t, shape: shape, stride: stride, first: first, count: count, fill: fill, out: out}
}

// in and out return arrays that are read and written.
func in(t dtype.DType, v view, fill filling, shape ...int) *array {
	return newArray(false, t, v, fill, shape...)
}
func out(t dtype.DType, v view, shape ...int) *array { return newArray(true, t, v, anything, shape...) }

// operand describes a in memory that begins at base.
func (a *array) operand(base uint64) kernels.Operand {
	if a == absent {
		return kernels.Operand{}
	}
	return kernels.Operand{Ptr: base + uint64(a.at+a.first*a.t.Size()), DType: a.t, Shape: a.shape, Stride: a.stride}
}

// filling generates n elements of a real type.
type filling func(rng *rand.Rand, t dtype.DType, n int) []byte

// anything generates the special values of the type in all combinations with other operands, then random bits, then moderate numbers.
func anything(rng *rand.Rand, t dtype.DType, n int) []byte {
	return operands(rng, []dtype.DType{t}, n)[0]
}

// holed is mild with a NaN here and there.
func holed(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := mild(rng, t, n)
	for i := rng.IntN(50); i < n; i += 50 + rng.IntN(200) {
		put(b[i*t.Size():][:0], t, realBits(t, math.NaN()))
	}
	return b
}

// mild generates numbers whose sums stay finite, including a few zeros and subnormal-sized numbers.
func mild(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := make([]byte, 0, n*t.Size())
	for range n {
		x := rng.NormFloat64()
		switch rng.IntN(40) {
		case 0:
			x = 0
		case 1:
			x *= 1e-7
		case 2:
			x *= 30
		}
		b = put(b, t, realBits(t, x))
	}
	return b
}

// spotted is mild with an occasional infinity or NaN.
func spotted(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := mild(rng, t, n)
	if t.IsFloat() {
		s := specials(t)
		for range n/300 + 1 {
			i := rng.IntN(n) * t.Size()
			copy(b[i:i+t.Size()], put(nil, t, s[rng.IntN(len(s))]))
		}
	}
	return b
}

// positive generates numbers in [2^-4, 4].
func positive(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := make([]byte, 0, n*t.Size())
	for range n {
		b = put(b, t, realBits(t, 0.0625+rng.Float64()*3.9))
	}
	return b
}

// probabilities generates numbers in [0, 1], including both ends.
func probabilities(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := make([]byte, 0, n*t.Size())
	for range n {
		switch p := max(0, min(1, rng.Float64()*1.1-0.05)); {
		case t.IsFloat():
			b = put(b, t, realBits(t, p))
		case t == dtype.Complex64:
			b = put(put(b, dtype.Float32, realBits(dtype.Float32, p)), dtype.Float32, 0)
		case t == dtype.Complex128:
			b = put(put(b, dtype.Float64, realBits(dtype.Float64, p)), dtype.Float64, 0)
		default:
			b = append(append(b, byte(math.Round(p))), make([]byte, t.Size()-1)...)
		}
	}
	return b
}

// whole generates integers from -3 to 3: all sums of their products are exact in every type.
func whole(rng *rand.Rand, t dtype.DType, n int) []byte {
	b := make([]byte, 0, n*t.Size())
	for range n {
		b = put(b, t, integer(t, rng.IntN(7)-3))
	}
	return b
}

// below generates integers from 0 to limit-1.
func below(limit int) filling {
	return func(rng *rand.Rand, t dtype.DType, n int) []byte {
		b := make([]byte, 0, n*t.Size())
		for range n {
			b = put(b, t, uint64(rng.IntN(limit)))
		}
		return b
	}
}

// distinct generates runs of length elements, each of distinct integers from 0 to limit-1.
func distinct(limit, length int) filling {
	return func(rng *rand.Rand, t dtype.DType, n int) []byte {
		b := make([]byte, 0, n*t.Size())
		for len(b) < n*t.Size() {
			for _, v := range rng.Perm(limit)[:length] {
				b = put(b, t, uint64(v))
			}
		}
		return b[:n*t.Size()]
	}
}

// exactly generates the given integers.
func exactly(vs ...uint64) filling {
	return func(_ *rand.Rand, t dtype.DType, n int) []byte {
		b := make([]byte, 0, n*t.Size())
		for i := range n {
			b = put(b, t, vs[i%len(vs)])
		}
		return b
	}
}
