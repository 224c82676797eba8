package agree

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A kernelCase is one launch whose buffers must hold the same bits afterwards on both back ends.
type kernelCase struct {
	prog        *kir.Program
	grid, block int
	args        []argument
	// high is the block's size in y and z; 0 means 1.
	high [2]int
	// shared is the dynamic shared memory in bytes.
	shared int
}

// argument is a buffer or, with scalar set, the bytes of a parameter passed by value.
type argument struct {
	data   []byte
	t      kir.Type
	scalar bool
}

// buffer returns a buffer argument; it is compared afterwards, with all NaNs of floats equal.
func buffer(t kir.Type, data []byte) argument { return argument{data: data, t: t} }

// zeros returns a buffer of n zero elements.
func zeros(t kir.Type, n int) argument { return buffer(t, make([]byte, n*t.Size())) }

// scalar returns a parameter of type t with the given bits.
func scalar(t kir.Type, bits uint64) argument {
	return argument{data: binary.LittleEndian.AppendUint64(nil, bits)[:t.Size()], t: t, scalar: true}
}

// put appends the low bytes of bits as an element of type t.
func put(b []byte, t kir.Type, bits uint64) []byte {
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], bits)
	return append(b, all[:t.Size()]...)
}

// specials returns bit patterns of type t for which operations are likely to differ.
func specials(t kir.Type) []uint64 {
	switch t {
	case dtype.Bool:
		return []uint64{0, 1}
	case dtype.Float16:
		return []uint64{0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x3c01, 0x3800, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
			0x5bff, 0x57f8, 0xd800}
	case dtype.BFloat16:
		return []uint64{0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x3f81, 0x3f00, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x477f,
			0x4780, 0xcf00, 0x4f00, 0x5f00}
	case dtype.Float32:
		var s []uint64
		for _, f := range specialFloats() {
			s = append(s, uint64(math.Float32bits(float32(f))))
		}
		return s
	case dtype.Float64:
		var s []uint64
		for _, f := range specialFloats() {
			s = append(s, math.Float64bits(f))
		}
		return s
	}
	n := uint(8 * t.Size())
	top := uint64(1) << (n - 1)
	s := []uint64{0, 1, 2, 3, 5, 7, ^uint64(0), ^uint64(1), top, top - 1, top + 1, top | top>>1, 0x55, 0x80, 0x7f, 0xff, 31,
		32, 33, 64, 8, 16}
	for e := uint(8); e < n; e += 7 { // neighbours of powers of two, and ties of conversions to floats
		s = append(s, 1<<e, 1<<e-1, 1<<e+1, 1<<e|1<<(e-8), 3<<(e-1)|1)
	}
	return s
}

func specialFloats() []float64 {
	s := []float64{0, 0.5, 1, 1.5, 2, 2.5, 3, 0.49999997, 1.0000001, 1e-45, 1.1754944e-38, 1.1754942e-38, 3.4028234e38, math.Inf(1), 5e-324,
		2.2250738585072014e-308, math.MaxFloat64, 65504, 65519.99, 65520, 65536, 6e-8, 2.98e-8, 127, 127.5, 128, 255, 256,
		32767, 32768, 65535,
		2147483520, 2147483647, 2147483648, 4294967040, 4294967295, 4294967296, 9223371487098961920, 9223372036854775807,
		18446742974197923840,
		18446744073709551616, 8388607.5, 8388608, 4503599627370495.5, 1e10, 3.14159274, 0.1, 1.00390625, 1.01171875, 1.003906250001}
	for _, f := range s[:len(s):len(s)] {
		s = append(s, -f)
	}
	return append(s, math.NaN())
}

// operands returns the contents of n-element inputs of the given types: first all combinations of their special values, as far as they fit,
// then random bits, then random numbers of moderate size.
func operands(rng *rand.Rand, types []kir.Type, n int) [][]byte {
	sets := make([][]uint64, len(types))
	out := make([][]byte, len(types))
	for j, t := range types {
		sets[j], out[j] = specials(t), make([]byte, 0, n*t.Size())
	}
	for i := range n {
		k := i
		for j, t := range types {
			var bits uint64
			switch {
			case i < n/2:
				bits = sets[j][k%len(sets[j])]
				k /= len(sets[j])
				if i >= n/4 { // a random choice, if the combinations do not fit
					bits = sets[j][rng.IntN(len(sets[j]))]
				}
			case i < 3*n/4:
				bits = randomBits(rng, t)
			default:
				bits = moderate(rng, t)
			}
			out[j] = put(out[j], t, bits)
		}
	}
	return out
}

func randomBits(rng *rand.Rand, t kir.Type) uint64 {
	if t == dtype.Bool {
		return rng.Uint64() & 1
	}
	return rng.Uint64()
}

func moderate(rng *rand.Rand, t kir.Type) uint64 {
	x := rng.NormFloat64() * math.Pow(2, float64(rng.IntN(40)-20))
	switch t {
	case dtype.Float64:
		return math.Float64bits(x)
	case dtype.Float32:
		return uint64(math.Float32bits(float32(x)))
	case dtype.Float16:
		return uint64(dtype.F16FromFloat64(x))
	case dtype.BFloat16:
		return uint64(dtype.BF16FromFloat64(x))
	case dtype.Bool:
		return rng.Uint64() & 1
	}
	return uint64(int64(x))
}

// pointSize is the number of elements that elementwise cases run on.
const pointSize = 16 << 10

// launch makes the kernelCase of a pointCase.
func (c pointCase) launch(rng *rand.Rand) kernelCase {
	k := kernelCase{prog: c.prog, grid: pointSize / 256, block: 256, args: []argument{zeros(c.out, pointSize)}}
	for j, data := range operands(rng, c.ins, pointSize) {
		k.args = append(k.args, buffer(c.ins[j], data))
	}
	k.args = append(k.args, scalar(dtype.Int32, pointSize))
	return k
}
