package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

var compactTypes = []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64, dtype.Float16,
	dtype.BFloat16, dtype.Float32,
	dtype.Float64, dtype.Complex64, dtype.Complex128}

// maskOf fills a mask in which one of gap elements is nonzero. The zeros of floats have either sign, and some nonzero elements are NaN.
func maskOf(h *host, rng *rand.Rand, o Operand, gap int) {
	h.write(o, func(int) complex128 {
		switch {
		case rng.IntN(gap) > 0:
			if o.DType.IsFloat() || o.DType.IsComplex() {
				return complex(math.Copysign(0, float64(rng.IntN(2))-0.5), 0)
			}
			return 0
		case o.DType.IsFloat() && rng.IntN(2) == 0:
			return complex(math.NaN(), 0)
		case o.DType.IsComplex() && rng.IntN(2) == 0:
			return complex(0, 2)
		}
		return 1
	})
}

// compactViews are masks in several orders and sizes, with few, many and the maximum number of dimensions.
func compactViews(h *host, t dtype.DType) map[string]Operand {
	big := make([]int, 20)
	for i := range big {
		big[i] = 1 + i%2
	}
	return map[string]Operand{
		"scalar":   h.empty(t),
		"one":      h.empty(t, 1),
		"run":      h.empty(t, compactPart),
		"more":     h.empty(t, 3*compactPart+5),
		"matrix":   h.empty(t, 37, 61),
		"turned":   permuted(h.empty(t, 61, 7, 13), 2, 0, 1),
		"stepped":  sliced(h.empty(t, 9, 500), 1, 3, 498, 2),
		"backward": sliced(h.empty(t, 9, 500), 1, 0, 500, -1),
		"repeated": expanded(h.empty(t, 1, 40), 70, 40),
		"many":     permuted(h.empty(t, big...), 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
	}
}

// counted returns the mask's compaction after Count, with the numbers and indexes of the nonzero elements.
func counted(t *testing.T, h *host, mask Operand) (c Compaction, at []int, ix [][]int) {
	t.Helper()
	n := mask.Numel()
	c = Compaction{Mask: mask, Starts: h.empty(dtype.Int64, CompactStarts(n))}
	check(t, c.Count(h))
	vs := h.readComplex(mask)
	walkIndex(mask.Shape, func(i int, index []int) {
		if vs[i] != 0 {
			at, ix = append(at, i), append(ix, slices.Clone(index))
		}
	})
	starts := h.read(c.Starts)
	for b, s := range starts {
		before, _ := slices.BinarySearch(at, b*compactPart)
		if int(s) != before {
			t.Fatalf("start %d of %d is %v, want %d", b, len(starts), s, before)
		}
	}
	return c, at, ix
}

func TestCompaction(t *testing.T) {
	for _, dt := range compactTypes {
		for _, index32 := range []int{1<<31 - 1, 10} {
			rng := rand.New(rand.NewPCG(1, uint64(dt)))
			h := newHost(t)
			h.index32 = index32
			for name, mask := range compactViews(h, dt) {
				for _, gap := range []int{1, 2, 100} {
					maskOf(h, rng, mask, gap)
					t.Run(fmt.Sprint(dt, name, gap, index32), func(t *testing.T) { testCompaction(t, h, rng, mask) })
				}
			}
		}
	}
}

func testCompaction(t *testing.T, h *host, rng *rand.Rand, mask Operand) {
	c, at, ix := counted(t, h, mask)
	rank, m := len(mask.Shape), len(at)
	places := permuted(h.empty(dtype.Int64, rank, m), 1, 0)
	check(t, c.Places(h, places))
	got := h.read(places)
	for i, index := range ix {
		for d, v := range index {
			if int(got[i*rank+d]) != v {
				t.Fatalf("index %d is %v, want %v", i, got[i*rank:(i+1)*rank], index)
			}
		}
	}
	from := h.random(rng, mask.DType, mask.Shape...)
	values := h.readComplex(from)
	taken := h.empty(mask.DType, m)
	check(t, c.Take(h, taken, from))
	for i, v := range h.readComplex(taken) {
		if v != values[at[i]] {
			t.Fatalf("element %d is %v, want %v", i, v, values[at[i]])
		}
	}
	if m > 1 { // a shorter vector gets only the first ones
		few := h.of(dtype.Bool, make([]float64, m), m)
		few.Shape = []int{m - 1}
		whole := Compaction{Mask: mask, Starts: c.Starts}
		ones := h.empty(dtype.Bool, mask.Shape...)
		h.write(ones, func(int) complex128 { return 1 })
		check(t, whole.Take(h, few, ones))
		few.Shape = []int{m}
		if f := h.read(few); f[m-2] != 1 || f[m-1] != 0 {
			t.Errorf("the last of %d elements that get %d are %v", m, m-1, f[m-2:])
		}
	}
	source, spread := h.random(rng, mask.DType, m+1), h.empty(mask.DType, mask.Shape...)
	check(t, c.Spread(h, spread, from, source))
	next, of := 0, h.readComplex(source)
	for i, v := range h.readComplex(spread) {
		want := values[i]
		if next < m && at[next] == i {
			want = of[next]
			next++
		}
		if v != want {
			t.Fatalf("spread element %d is %v, want %v", i, v, want)
		}
	}
	if source.Shape = []int{m - 1}; m > 0 {
		if err := c.Spread(h, spread, from, source); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("more true elements than the %d that", m-1)) {
			t.Errorf("a source that is too short gives the error %v", err)
		}
	}
}

func TestCompactionRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 33, compactPart, 2*compactPart + 77} {
		h := newHost(t)
		mask, order, out := h.empty(dtype.Bool, n), h.empty(dtype.Int64, n), h.empty(dtype.Int64, n)
		maskOf(h, rng, mask, 3)
		perm := rng.Perm(n)
		h.write(order, func(i int) complex128 { return complex(float64(perm[i]), 0) })
		c, _, _ := counted(t, h, mask)
		check(t, c.Ranks(h, out, order))
		got, sum := h.read(out), -1.0
		for i, v := range h.read(mask) {
			if sum += v; got[perm[i]] != sum {
				t.Fatalf("of %d, rank %d is %v, want %v", n, i, got[perm[i]], sum)
			}
		}
	}
}

// TestCompactionOfNothing covers masks without elements, and with more blocks than one round of the scan handles.
func TestCompactionOfNothing(t *testing.T) {
	h := newHost(t)
	counted(t, h, h.empty(dtype.Float32, 3, 0))
	rng := rand.New(rand.NewPCG(5, 6))
	starts := h.empty(dtype.Int64, 2*compactPart+4)
	want, sum := make([]float64, starts.Numel()), 0.0
	h.write(starts, func(i int) complex128 {
		want[i] = sum
		v := float64(rng.IntN(compactPart))
		sum += v
		return complex(v, 0)
	})
	l := h.NewLaunch()
	l.Spec = Spec{Family: FamilyCompact, Op: uint16(compactScan), Compute: dtype.Int64}
	var a compactArgs
	a.starts.host, a.n.host = starts.Ptr, len(want)-1
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{compactThreads, 1, 1}
	check(t, h.Issue(l))
	if got := h.read(starts); !slices.Equal(got, want) {
		t.Error("the sums of counts of several rounds are wrong")
	}
}

// TestRepeatIndex compares running sums of several types, and the repeated indexes, with loops.
func TestRepeatIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, dt := range []dtype.DType{dtype.Int64, dtype.Int32, dtype.Uint8} {
		for _, n := range []int{1, 31, compactPart, 3*compactPart + 70} {
			for _, most := range []int{1, 2, 5} {
				h := newHost(t)
				counts := sliced(h.empty(dt, 2*n), 0, 0, 2*n, 2)
				h.write(counts, func(int) complex128 { return complex(float64(rng.IntN(most)), 0) })
				sums, running, want := make([]float64, n), 0.0, []float64(nil)
				for i, v := range h.read(counts) {
					running += v
					sums[i] = running
					for range int(v) {
						want = append(want, float64(i))
					}
				}
				out := h.empty(dtype.Int64, n)
				check(t, RunningSums(h, out, counts))
				if got := h.read(out); !slices.Equal(got, sums) {
					t.Fatalf("%v, %d counts: sums are wrong", dt, n)
				}
				index := h.empty(dtype.Int64, len(want))
				check(t, RepeatIndex(h, index, out))
				if got := h.read(index); !slices.Equal(got, want) {
					t.Fatalf("%v, %d counts: places are %v, want %v", dt, n, got, want)
				}
				for _, other := range []int{len(want) + 1, len(want) - 1} {
					if other < 0 {
						continue
					}
					err := RepeatIndex(h, h.empty(dtype.Int64, other), out)
					if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the repeats sum to %d, and the output size is %d",
						len(want), other)) {
						t.Errorf("an index of %d of %d gives the error %v", other, len(want), err)
					}
				}
			}
		}
	}
	h := newHost(t)
	if err := RunningSums(h, h.empty(dtype.Int64, 2), h.of(dtype.Int64, []float64{1, -3}, 2)); err == nil ||
		!strings.Contains(err.Error(), "the number -3 is negative") {
		t.Errorf("a negative count gives the error %v", err)
	}
}
