package kernels

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// collector is an Issuer that records the specs of its launches.
type collector struct {
	planner
	specs map[Spec]bool
}

func newCollector() *collector { return &collector{planner: *newPlanner(), specs: map[Spec]bool{}} }

func (c *collector) Issue(l *Launch) error {
	c.specs[l.Spec] = true
	return nil
}

// anyLayout returns an operand of the given shape that is dense, permuted, strided, broadcast or misaligned.
func anyLayout(rng *rand.Rand, t dtype.DType, shape []int) Operand {
	order := rng.Perm(len(shape))
	if rng.IntN(2) == 0 {
		for i := range order {
			order[i] = i
		}
	}
	o := Operand{Ptr: 1 << 20, DType: t, Shape: shape, Stride: make([]int, len(shape))}
	stride := 1
	for _, d := range order {
		d = len(shape) - 1 - d
		if rng.IntN(6) == 0 {
			stride *= 2
		}
		o.Stride[d] = stride
		stride *= shape[d]
	}
	if rng.IntN(4) == 0 {
		o.Ptr += uint64(rng.IntN(8) * t.Size())
	}
	return o
}

func anyShape(rng *rand.Rand) []int {
	shape := make([]int, rng.IntN(6))
	for d := range shape {
		shape[d] = 1 + rng.IntN(1<<(1+rng.IntN(7)))
	}
	return shape
}

// TestKernelsDoNotGrowWithShapes bounds how many kernels one operation on one combination of types can need.
func TestKernelsDoNotGrowWithShapes(t *testing.T) {
	const calls = 4000
	var rng *rand.Rand // each operation draws its own numbers, independent of the map's order
	repeated := func(o Operand) Operand {
		for d := range o.Stride {
			if rng.IntN(4) == 0 {
				o.Stride[d] = 0
			}
		}
		return o
	}
	for name, c := range map[string]struct {
		most int
		call func(is Issuer, shape []int) error
	}{
		"pointwise": {40, func(is Issuer, shape []int) error {
			f := dtype.Float32
			return Pointwise(is, Add, f, nil, []Operand{anyLayout(rng, f, shape)}, []Operand{repeated(anyLayout(rng, f, shape)),
				anyLayout(rng, f, shape)})
		}},
		"reduce": {180, func(is Issuer, shape []int) error {
			dims := make([]bool, len(shape))
			for d := range dims {
				dims[d] = rng.IntN(2) == 0
			}
			out := anyLayout(rng, dtype.Float32, outShape(Operand{Shape: shape}, dims))
			return Reduce(is, Sum, dtype.Float32, nil, []Operand{out}, []Operand{repeated(anyLayout(rng, dtype.Float32, shape))}, dims)
		}},
		"rows": {60, func(is Issuer, shape []int) error {
			if len(shape) == 0 {
				return nil
			}
			f := dtype.Float32
			return Softmax(is, false, f, anyLayout(rng, f, shape), anyLayout(rng, f, shape), rng.IntN(len(shape)))
		}},
		"random": {8, func(is Issuer, shape []int) error {
			return Random(is, RandomNormal, make([]Scalar, 2), anyLayout(rng, dtype.Float32, shape), Philox{})
		}},
		"dropout": {8, func(is Issuer, shape []int) error {
			f := dtype.Float32
			return Dropout(is, f, 0.5, anyLayout(rng, f, shape), anyLayout(rng, dtype.Bool, shape), anyLayout(rng, f, shape), Philox{})
		}},
	} {
		is := newCollector()
		rng = rand.New(rand.NewPCG(41, 42))
		for range calls {
			check(t, c.call(is, anyShape(rng)))
		}
		if n := len(is.specs); n > c.most {
			t.Errorf("%s: %d kernels for %d calls, more than %d", name, n, calls, c.most)
		}
		t.Logf("%s: %d kernels for %d calls", name, len(is.specs), calls)
	}
}

// TestKernelsAreReproducible builds kernels twice: their text must be the same to the byte, and specs must have different names.
func TestKernelsAreReproducible(t *testing.T) {
	is := newCollector()
	x, y, v := at(1<<20, dtype.Float32, 64, 128), at(1<<20, dtype.Float16, 64, 128), at(1<<20, dtype.Float32, 64)
	check(t, Pointwise(is, GELU, dtype.Float32, nil, []Operand{x}, []Operand{y}))
	check(t, Pointwise(is, Pow, dtype.Float32, nil, []Operand{permuted(x, 1, 0)},
		[]Operand{permuted(y, 1, 0), permuted(at(1<<20, dtype.Float32, 128, 64), 0, 1)}))
	check(t, Pointwise(is, Add, dtype.Float32, []Scalar{{}}, []Operand{x}, []Operand{y, {}}))
	check(t, Pointwise(is, Add, dtype.Float32, []Scalar{{}}, []Operand{x}, []Operand{{}, y}))
	check(t, Reduce(is, Sum, dtype.Float32, nil, []Operand{v}, []Operand{x}, []bool{false, true}))
	check(t, Reduce(is, VarMean, dtype.Float32, []Scalar{{}}, []Operand{at(4096, dtype.Float32), at(4096, dtype.Float32)},
		[]Operand{at(1<<20, dtype.Float32, 1<<20)}, []bool{true}))
	check(t, Softmax(is, false, dtype.Float32, x, y, 1))
	check(t, LayerNorm(is, dtype.Float32, x, v, v, y, Operand{}, Operand{}, 1e-5))
	check(t, Random(is, RandomNormal, make([]Scalar, 2), x, Philox{}))
	check(t, Dropout(is, dtype.Float32, 0.5, x, at(4096, dtype.Bool, 64, 128), x, Philox{}))
	names := map[string]Spec{}
	for s := range is.specs {
		var text [2][]byte
		for i := range text {
			p, err := Build(&s).Program()
			check(t, err)
			if text[i] = kir.Print(p); i == 0 {
				if other, ok := names[p.Name]; ok {
					t.Errorf("%+v and %+v are both named %s", s, other, p.Name)
				}
				names[p.Name] = s
			}
		}
		if !bytes.Equal(text[0], text[1]) {
			t.Errorf("%+v: two builds differ", s)
		}
	}
}

func TestBuildOfUnknownFamilies(t *testing.T) {
	for _, f := range []Family{0, familyCount, 255} {
		if _, err := Build(&Spec{Family: f}).Program(); err == nil || !strings.Contains(err.Error(), "name") {
			t.Errorf("family %d: %v", f, err)
		}
	}
}
