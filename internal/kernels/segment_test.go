package kernels

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// draws are ways to choose one of size indexes, the i-th of n.
var draws = map[string]func(rng *rand.Rand, i, n, size int) int{
	"even":       func(rng *rand.Rand, i, n, size int) int { return rng.IntN(size) },
	"one":        func(rng *rand.Rand, i, n, size int) int { return size - 1 },
	"ascending":  func(rng *rand.Rand, i, n, size int) int { return i * size / n },
	"descending": func(rng *rand.Rand, i, n, size int) int { return (n - 1 - i) * size / n },
	"skewed": func(rng *rand.Rand, i, n, size int) int {
		return int(float64(size) * math.Pow(rng.Float64(), 8))
	},
}

// TestKeySort: keys come out ascending, and equal ones in their original order, for any number of blocks.
func TestKeySort(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for _, index := range []int{32, 64} {
		for _, size := range []int{1, 2, 256, 257, 70_000} {
			for _, count := range []int{1, 31, 33, 2048, 2049, 20_011} {
				for name, draw := range draws {
					h := newHost(t)
					h.limits.Multiprocessors = 1 + rng.IntN(9)
					s := keySort{count: count, bits: bits.Len(uint(size - 1)), index: index}
					check(t, s.prepare(h))
					width := index / 8
					put := func(p uint64, i, v int) {
						b := h.view(p + uint64(i*width))
						if index == 64 {
							binary.LittleEndian.PutUint64(b, uint64(v))
							return
						}
						binary.LittleEndian.PutUint32(b, uint32(v))
					}
					get := func(p uint64, i int) int {
						b := h.view(p + uint64(i*width))
						if index == 64 {
							return int(binary.LittleEndian.Uint64(b))
						}
						return int(int32(binary.LittleEndian.Uint32(b)))
					}
					type element struct{ key, at int }
					want := make([]element, count)
					for i := range want {
						want[i] = element{draw(rng, i, count, size), i}
						put(s.keys[0], i, want[i].key)
						put(s.with[0], i, i)
					}
					h.written(s.keys[0], count*width)
					h.written(s.with[0], count*width)
					slices.SortStableFunc(want, func(a, b element) int { return cmp.Compare(a.key, b.key) })
					check(t, s.sort(h))
					for i, w := range want {
						if g := (element{get(s.keys[0], i), get(s.with[0], i)}); g != w {
							t.Fatalf("%d bits, %d %s keys below %d: element %d is %v, want %v", index, count, name, size, i, g, w)
						}
					}
				}
			}
		}
	}
}

// TestFoldBySegments: sums and products of small integers are exact for every length of runs and lists, with indexes that differ between
// lines and with shared ones.
func TestFoldBySegments(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	for _, c := range []struct {
		lines  int
		shared bool
		dim    int // along which the lines lie; those along the first dimension have adjacent neighbours
		dt     dtype.DType
		most   int
	}{
		{1, false, 0, dtype.Float32, 40_000},
		{5, false, 1, dtype.Float32, 700},
		{5, false, 0, dtype.Float64, 700},
		{5, true, 1, dtype.Float32, 700},
		{5, true, 0, dtype.Complex64, 700},
		{17, true, 0, dtype.Float32, 700},
		{40, true, 1, dtype.Float32, 700},
		{16, true, 0, dtype.Float32, 9000},
		{40, true, 0, dtype.Float16, 700},
	} {
		for _, count := range []int{1, 64, 65, 128, 129, 255, 700, 9000, 40_000} {
			for _, size := range []int{1, 3, 300} {
				for name, draw := range draws {
					if count > c.most {
						continue
					}
					h := newHost(t)
					if size == 3 {
						h.index32 = 100
					}
					kind := indexAdd
					if count == 129 || count == 9000 && size == 1 {
						kind = indexMultiply
					}
					shape := func(n int) []int {
						if c.dim == 0 {
							return []int{n, c.lines}
						}
						return []int{c.lines, n}
					}
					// split returns the line of element n of an array of lines of length m, and the position in it.
					split := func(n, m int) (line, i int) {
						if c.dim == 0 {
							return n % c.lines, n / c.lines
						}
						return n / m, n % m
					}
					drawn := make([]int, c.lines*count)
					for line := range c.lines {
						for i := range count {
							drawn[line*count+i] = draw(rng, i, count, size)
							if c.shared {
								drawn[line*count+i] = drawn[i]
							}
						}
					}
					index := h.empty(dtype.Int64, shape(count)...)
					h.write(index, func(n int) complex128 {
						line, i := split(n, count)
						return complex(float64(drawn[line*count+i]), 0)
					})
					if c.shared {
						index.Stride = append([]int(nil), index.Stride...)
						index.Stride[1-c.dim] = 0
					}
					part, dst := h.empty(c.dt, shape(count)...), h.empty(c.dt, shape(size)...)
					least, span := -1, 3
					if kind == indexMultiply {
						least, span = 1, 1
					}
					h.write(part, func(n int) complex128 {
						if v := least + rng.IntN(span); kind == indexAdd || rng.IntN(2) == 0 {
							return complex(float64(v), 0)
						}
						return -1
					})
					h.write(dst, func(int) complex128 { return complex(float64(rng.IntN(9)-4), 0) })
					want, v := h.read(dst), h.read(part)
					for n := range v {
						line, i := split(n, count)
						to := drawn[line*count+i]
						if c.dim == 0 {
							to = to*c.lines + line
						} else {
							to += line * size
						}
						if kind == indexAdd {
							want[to] += v[n]
						} else {
							want[to] *= v[n]
						}
					}
					g := indexPlan{kind: kind, ops: [3]Operand{addressed(dst, c.dim).Operand, index, part},
						step: addressed(dst, c.dim).Step, size: size}
					check(t, g.segments(h, index.Shape, c.dim))
					for i, got := range h.read(dst) {
						if got != want[i] {
							t.Fatalf("%+v, %d %s indexes below %d: element %d is %v, want %v", c, count, name, size, i, got, want[i])
						}
					}
				}
			}
		}
	}
}

// TestFoldRepeats: the bits of sums do not depend on the device's size, and sums of halves are rounded once.
func TestFoldRepeats(t *testing.T) {
	const count, size = 3000, 7
	var first []float64
	for _, processors := range []int{1, 3, 132} {
		rng := rand.New(rand.NewPCG(5, 1))
		h := newHost(t)
		h.limits.Multiprocessors = processors
		index, part, dst := h.empty(dtype.Int32, count), h.empty(dtype.Float32, count), h.of(dtype.Float32, make([]float64, size), size)
		h.write(index, func(int) complex128 { return complex(float64(rng.IntN(size)), 0) })
		h.write(part, func(int) complex128 { return complex(rng.NormFloat64(), 0) })
		check(t, ScatterAdd(h, addressed(dst, 0), index, part, 0))
		got := h.read(dst)
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Errorf("with %d multiprocessors the sums are %v, with 1 %v", processors, got, first)
		}
	}
	for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		for _, n := range []int{10, 1000} {
			h := newHost(t)
			index, part, dst := h.of(dtype.Int64, make([]float64, n), n), h.empty(dt, n), h.of(dt, []float64{0.25}, 1)
			sum := float32(0.25)
			h.write(part, func(int) complex128 { return 0.1 })
			for _, v := range h.read(part) {
				sum += float32(v)
			}
			check(t, ScatterAdd(h, addressed(dst, 0), index, part, 0))
			got, want := h.read(dst)[0], rounded(dt, float64(sum))
			if math.Abs(got-want) > math.Abs(want)*0x1p-8 {
				t.Errorf("%v: %d times 0.1 are %v, want %v", dt, n, got, want)
			}
		}
	}
}

func BenchmarkScatterAdd(b *testing.B) {
	for _, c := range []struct{ rows, size, width int }{{4096, 50_000, 64}, {1 << 16, 1 << 12, 1}} {
		b.Run(fmt.Sprintf("%dx%d-into-%d", c.rows, c.width, c.size), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(6, 1))
			h := newHost(b)
			index := h.empty(dtype.Int64, c.rows, 1)
			h.write(index, func(int) complex128 { return complex(float64(rng.IntN(c.size)), 0) })
			part, dst := h.random(rng, dtype.Float32, c.rows, c.width), h.random(rng, dtype.Float32, c.size, c.width)
			for b.Loop() {
				h.memory = h.memory[:3]
				check(b, ScatterAdd(h, addressed(dst, 0), expanded(index, c.rows, c.width), part, 0))
			}
		})
	}
}
