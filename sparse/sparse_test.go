package sparse

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
)

// opened runs f on the processor, on a simulated device and, if there is one, on a GPU, and checks that f left nothing behind.
func opened(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	simulated(t, f)
	if tenon.GPUs() > 0 {
		on(t, "cuda", tenon.CUDA(0), f)
	}
}

// simulated is opened for tests that a GPU does not survive.
func simulated(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	on(t, "cpu", tenon.CPU(), f)
	on(t, "sim", tenon.Sim(0), f)
}

func on(t *testing.T, name string, sel tenon.Selector, f func(t *testing.T, x *tenon.Exec)) {
	t.Run(name, func(t *testing.T) {
		x, err := tenon.Open(sel)
		if err != nil {
			t.Fatal(err)
		}
		before := testdevice.Storages()
		x.Scope(func(x *tenon.Exec) { f(t, x) })
		if n := core.LiveStorages() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

func read[T dtype.Element](t *testing.T, x *tenon.Exec, a *tenon.Tensor) []T {
	t.Helper()
	v, err := tenon.Read[T](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// random returns n indexes [len(sizes), n], some of them equal, and values [n, dense…] of small integers.
func random(r *rand.Rand, n int, sizes, dense []int) (indices []int64, values []float32) {
	indices = make([]int64, len(sizes)*n)
	for i := range indices {
		indices[i] = int64(r.IntN(sizes[i/n]))
	}
	for range n * places(dense) {
		values = append(values, float32(r.IntN(100)-50))
	}
	return indices, values
}

// at returns the position of index i among sizes, in row-major order.
func at(indices []int64, n, i int, sizes []int) (flat int) {
	for d, size := range sizes {
		flat = flat*size + int(indices[d*n+i])
	}
	return flat
}

var shapes = []struct {
	n             int
	sizes, dense  []int
	turned, empty bool
}{
	{n: 1, sizes: []int{1}}, {n: 300, sizes: []int{40}}, {n: 300, sizes: []int{9, 11}}, {n: 200, sizes: []int{5, 4}, dense: []int{3}},
	{n: 500, sizes: []int{3, 2, 6}, dense: []int{2, 5}},
	{n: 50, sizes: nil, dense: []int{4}}, {n: 0, sizes: []int{3, 2}, dense: []int{2}}, {n: 0, sizes: []int{0, 2}},
	{n: 200, sizes: []int{5, 4}, dense: []int{40}, turned: true}, {n: 7, sizes: []int{3}, dense: []int{2, 0}},
}

// TestCOO compares the dense form, the coalesced form and the gradients with loops.
func TestCOO(t *testing.T) {
	opened(t, func(t *testing.T, x *tenon.Exec) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, c := range shapes {
			indices, numbers := random(r, c.n, c.sizes, c.dense)
			width, total := places(c.dense), places(c.sizes)
			index := tenon.From(x, indices, len(c.sizes), c.n)
			if c.turned {
				index = x.Transpose(x.Contiguous(x.Transpose(index, 0, 1)), 0, 1)
			}
			values := tenon.From(x, numbers, append([]int{c.n}, c.dense...)...).SetRequiresGrad(true)
			shape := append(slices.Clone(c.sizes), c.dense...)
			s := NewCOO(x, index, values, shape)
			if s.NNZ() != c.n || !slices.Equal(s.Shape(), shape) || s.Coalesced() || !s.Values().SharesStorage(values) {
				t.Fatalf("%v: %d values, shape %v", c, s.NNZ(), s.Shape())
			}
			want, sums := make([]float32, total*width), map[int][]float32{}
			for i := range c.n {
				place := at(indices, c.n, i, c.sizes)
				if sums[place] == nil {
					sums[place] = make([]float32, width)
				}
				for j := range width {
					want[place*width+j] += numbers[i*width+j]
					sums[place][j] += numbers[i*width+j]
				}
			}
			dense := s.ToDense(x)
			if got := read[float32](t, x, dense); !slices.Equal(got, want) || !slices.Equal(dense.Shape(), shape) {
				t.Fatalf("%v: the dense form is %v %v, want %v", c, dense.Shape(), got, want)
			}
			small := s.Coalesce(x)
			checkCoalesced(t, x, small, sums, c.sizes)
			if again := small.Coalesce(x); again != small {
				t.Errorf("%v: what is coalesced is coalesced again", c)
			}
			if got := read[float32](t, x, small.ToDense(x)); !slices.Equal(got, want) {
				t.Fatalf("%v: the dense form of the coalesced is %v, want %v", c, got, want)
			}
			// half the gradient of the sum of squares is the sum at the value's index
			for _, y := range []*tenon.Tensor{dense, small.Values()} {
				g, err := x.Grad([]*tenon.Tensor{x.Sum(x.Mul(y, y), nil)}, []*tenon.Tensor{values})
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range read[float32](t, x, g[0]) {
					if sum := sums[at(indices, c.n, i/width, c.sizes)][i%width]; v != 2*sum {
						t.Fatalf("%v: gradient %d is %v, want %v", c, i, v, 2*sum)
					}
				}
			}
		}
	})
}

func checkCoalesced(t *testing.T, x *tenon.Exec, s *COO, sums map[int][]float32, sizes []int) {
	t.Helper()
	indices, values := read[int64](t, x, s.Indices()), read[float32](t, x, s.Values())
	n, width, last := s.NNZ(), places(s.Values().Shape()[1:]), -1
	if !s.Coalesced() || n != len(sums) {
		t.Fatalf("%d indexes are left, want %d", n, len(sums))
	}
	for i := range n {
		place := at(indices, n, i, sizes)
		if place <= last || !slices.Equal(values[i*width:(i+1)*width], sums[place]) {
			t.Fatalf("index %d is of place %d after %d, with the values %v, want %v", i, place, last,
				values[i*width:(i+1)*width], sums[place])
		}
		last = place
	}
}

// TestCOOTypes sums values of every type; halves are exact up to the last rounding.
func TestCOOTypes(t *testing.T) {
	opened(t, func(t *testing.T, x *tenon.Exec) {
		index := tenon.From(x, []int64{2, 0, 2, 2}, 1, 4)
		for _, dt := range []tenon.DType{tenon.Bool, tenon.Uint8, tenon.Int8, tenon.Int16, tenon.Int32, tenon.Int64, tenon.Float16,
			tenon.BFloat16, tenon.Float32,
			tenon.Float64, tenon.Complex64, tenon.Complex128} {
			s := NewCOO(x, index, x.ToDType(tenon.From(x, []float32{100, 1, 3, 4}), dt), []int{3})
			want := x.ToDType(tenon.From(x, []float32{1, 0, 107}), dt)
			for what, got := range map[string]*tenon.Tensor{"dense": s.ToDense(x), "coalesced": s.Coalesce(x).ToDense(x)} {
				if same, err := x.Equal(got, want); err != nil || !same || got.DType() != dt {
					t.Errorf("%v, %s: %v, %v", dt, what, got, err)
				}
			}
		}
	})
}

// TestCOOOfAFunction makes a large sparse tensor three times in a region, where the calls repeat and are deferred, and once eagerly.
func TestCOOOfAFunction(t *testing.T) {
	opened(t, func(t *testing.T, x *tenon.Exec) {
		const n, rows, width = 102397, 1000000, 64
		r := rand.New(rand.NewPCG(3, 4))
		at := make([]int64, n)
		for i := range at {
			at[i] = int64(r.IntN(rows))
		}
		indices, base := tenon.From(x, at, 1, n), x.Rand([]int{n, width}, tenon.Float32)
		f := func(x *tenon.Exec) *COO { return NewCOO(x, indices, x.MulS(x.AddS(base, 1), 2), []int{rows, width}) }
		want := f(x)
		region := compile.New()
		for i := range 3 {
			x.Scope(func(x *tenon.Exec) {
				var got *COO
				if err := region.Do(x, func(x *tenon.Exec) error {
					got = f(x).Keep(x)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				for _, p := range [][2]*tenon.Tensor{{got.Indices(), want.Indices()}, {got.Values(), want.Values()}} {
					if same, err := x.Equal(p[0], p[1]); err != nil || !same {
						t.Errorf("call %d: %v is not %v, %v", i, p[0], p[1], err)
					}
				}
				if !slices.Equal(got.Shape(), []int{rows, width}) {
					t.Errorf("call %d: the shape is %v", i, got.Shape())
				}
			})
		}
	})
}

// TestCOOCloses checks that Close closes the handles of the sparse tensor and not its parts, that Keep moves them, and that a scope closes
// them.
func TestCOOCloses(t *testing.T) {
	opened(t, func(t *testing.T, x *tenon.Exec) {
		i, v := tenon.From(x, []int64{1, 0}, 1, 2), tenon.From(x, []float32{3, 4})
		s := NewCOO(x, i, v, []int{2})
		s.Close()
		s.Close()
		(*COO)(nil).Close()
		new(COO).Close()
		if got := read[float32](t, x, v); got[1] != 4 {
			t.Error(got)
		}
		if err := tenon.Try(func() { s.ToDense(x) }); fault.KindOf(err) != fault.Closed {
			t.Errorf("after Close: %v", err)
		}
		var kept, gone *COO
		x.Scope(func(x *tenon.Exec) {
			kept, gone = NewCOO(x, i, v, []int{2}).Keep(x), NewCOO(x, i, v, []int{2})
			v.Close()
		})
		if got := read[float32](t, x, kept.ToDense(x)); got[0] != 4 || got[1] != 3 {
			t.Error(got)
		}
		if err := tenon.Try(func() { gone.Coalesce(x) }); fault.KindOf(err) != fault.Closed {
			t.Errorf("after its scope: %v", err)
		}
	})
}

func TestCOORefuses(t *testing.T) {
	opened(t, func(t *testing.T, x *tenon.Exec) {
		i, v := x.Zeros([]int{1, 2}, tenon.Int64), x.Zeros([]int{2, 3}, tenon.Float32)
		var zero COO
		for _, c := range []struct {
			want string
			f    func()
		}{
			{"indices must be int64", func() { NewCOO(x, v, v, []int{2, 3}) }},
			{"indices must be int64", func() { NewCOO(x, x.View(i, 2), v, []int{2, 3}) }},
			{"for as many indexes", func() { NewCOO(x, i, x.Zeros(nil, tenon.Float32), []int{2}) }},
			{"for as many indexes", func() { NewCOO(x, i, x.Zeros([]int{3}, tenon.Float32), []int{2}) }},
			{"dense dimensions [3]", func() { NewCOO(x, i, v, []int{2}) }},
			{"dense dimensions [3]", func() { NewCOO(x, i, v, []int{2, 4}) }},
			{"has no room for 2 indexes", func() { NewCOO(x, i, v, []int{0, 3}) }},
			{"has no room for 2 indexes", func() { NewCOO(x, i, v, []int{-1, 3}) }},
			{"at most 32", func() {
				NewCOO(x, x.Zeros([]int{33, 1}, tenon.Int64), x.Zeros([]int{1}, tenon.Float32), slices.Repeat([]int{1}, 33))
			}},
			{"more places than can be counted", func() {
				NewCOO(x, x.Zeros([]int{2, 1}, tenon.Int64), x.Zeros([]int{1}, tenon.Float32), []int{1 << 40, 1 << 40})
			}},
			{"operand 1 is nil", func() { NewCOO(x, i, nil, []int{2, 3}) }},
			{"the Exec is nil", func() { NewCOO(nil, i, v, []int{2, 3}) }},
			{"nil or a zero value", func() { (*COO)(nil).ToDense(x) }},
			{"nil or a zero value", func() { zero.Coalesce(x) }},
			{"nil or a zero value", func() { zero.Values() }},
		} {
			if err := tenon.Try(c.f); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if _, err := x.Capture(func(x *tenon.Exec) { NewCOO(x, i, v, []int{2, 3}).Coalesce(x) }); err == nil ||
			!strings.Contains(err.Error(), "Coalesce") {
			t.Errorf("Coalesce in a capture: %v", err)
		}
	})
}

// TestCOOBeyond uses indexes outside the shape.
func TestCOOBeyond(t *testing.T) {
	simulated(t, func(t *testing.T, x *tenon.Exec) {
		for _, bad := range []int64{-1, 3} {
			err := tenon.Try(func() {
				NewCOO(x, tenon.From(x, []int64{0, 0, 1, bad}, 2, 2), x.Zeros([]int{2}, tenon.Float32), []int{9, 3})
				core.Check("Synchronize", x.Synchronize())
			})
			want := fmt.Sprintf("index %d is out of range for size 3, in the operand indices; give numbers from 0 to size-1", bad)
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "NewCOO") || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	})
}
