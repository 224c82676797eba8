package agree

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// reducible are the Go types of the numbers that a block reduces.
type reducible interface {
	float32 | float64 | int32 | uint32 | int64 | uint64
}

// resultsOfBlock is the number of results of a thread of blockKernel.
const resultsOfBlock = 8

// blockKernel reduces the numbers a and b of the threads of a block in several ways. With threads = 0, launches choose the block's size.
func blockKernel(t testing.TB, dt dtype.DType, threads int) *kir.Program {
	t.Helper()
	p, err := kernel.Build(fmt.Sprintf("block_%v_%d", dt, threads), func(k *kernel.Builder) {
		if threads > 0 {
			k.FixedThreads(threads)
		}
		a, b, out := k.BufferRO("a", dt), k.BufferRO("b", dt), k.Buffer("out", dt)
		size := k.BlockDim(kernel.X).Mul(k.BlockDim(kernel.Y)).Mul(k.BlockDim(kernel.Z))
		i := k.ThreadIdx(kernel.Z).Mul(k.BlockDim(kernel.Y)).Add(k.ThreadIdx(kernel.Y)).Mul(k.BlockDim(kernel.X)).
			Add(k.ThreadIdx(kernel.X)).Add(size.Mul(k.BlockIdx(kernel.X)))
		x, y := a.Load(i), b.Load(i)
		results := []kernel.Value{k.BlockSum(x), k.BlockMax(x), k.BlockMin(x), k.BlockSum(y), k.BlockMax(y), k.BlockMin(y)}
		chain := k.Var(x)
		k.For(k.I32(0), k.I32(3), k.I32(1), func(kernel.Value) { chain.Set(y.Sub(k.BlockSum(chain.Get()))) })
		branch := k.Var(y)
		k.If(results[1].Lt(results[4]), func() { branch.Set(k.BlockSum(x.Add(y))) })
		for j, v := range append(results, chain.Get(), branch.Get()) {
			out.Store(i.Mul(k.I32(resultsOfBlock)).Add(k.I32(j)), v)
		}
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reduceBlock combines numbers in the order that the documentation of BlockSum states.
func reduceBlock[T reducible](numbers []T, combine func(a, b T) T) T {
	var warps []T
	for warp := range slices.Chunk(slices.Clone(numbers), 32) {
		for half := 16; half > 0; half /= 2 {
			for i := 0; i < half && i+half < len(warp); i++ {
				warp[i] = combine(warp[i], warp[i+half])
			}
		}
		warps = append(warps, warp[0])
	}
	all := warps[0]
	for _, w := range warps[1:] {
		all = combine(all, w)
	}
	return all
}

func addOf[T reducible](a, b T) T { return a + b }

func isNegative[T reducible](a T) bool { return math.Signbit(float64(a)) }

// maxOf and minOf ignore a NaN, and know the sign of zeros.
func maxOf[T reducible](a, b T) T {
	if a != a || b > a || b == a && isNegative(a) {
		return b
	}
	return a
}

func minOf[T reducible](a, b T) T {
	if a != a || b < a || b == a && isNegative(b) {
		return b
	}
	return a
}

// wantOfBlock returns what each thread of blockKernel stores.
func wantOfBlock[T reducible](a, b []T) (all [][resultsOfBlock]T) {
	chain, branch, both := slices.Clone(a), slices.Clone(b), make([]T, len(a))
	for range 3 {
		sum := reduceBlock(chain, addOf)
		for i := range chain {
			chain[i] = b[i] - sum
		}
	}
	if reduceBlock(a, maxOf) < reduceBlock(b, maxOf) {
		for i := range both {
			both[i] = a[i] + b[i]
		}
		for i, sum := 0, reduceBlock(both, addOf); i < len(branch); i++ {
			branch[i] = sum
		}
	}
	for i := range a {
		all = append(all, [resultsOfBlock]T{reduceBlock(a, addOf), reduceBlock(a, maxOf), reduceBlock(a, minOf), reduceBlock(b, addOf),
			reduceBlock(b, maxOf), reduceBlock(b, minOf), chain[i], branch[i]})
	}
	return all
}

// numbersOfBlocks returns the numbers of some blocks of n threads: random ones; of floats also a NaN, nothing but NaNs, zeros of both signs
// and negative zeros.
func numbersOfBlocks[T reducible](rng *rand.Rand, n int, float bool) (blocks [][]T) {
	fill := func(f func() float64) {
		block := make([]T, n)
		for i := range block {
			block[i] = T(f())
		}
		blocks = append(blocks, block)
	}
	if !float {
		integers := make([]T, 2*n)
		for i := range integers {
			integers[i] = T(rng.Uint64())
		}
		return [][]T{integers[:n], integers[n:]}
	}
	number := func() float64 { return rng.NormFloat64() * math.Exp2(float64(rng.IntN(20))) }
	negative := math.Copysign(0, -1)
	for range 3 {
		fill(number)
	}
	fill(number)
	blocks[3][rng.IntN(n)] = T(math.NaN())
	fill(math.NaN)
	fill(func() float64 { return []float64{0, negative}[rng.IntN(2)] })
	fill(func() float64 { return negative })
	return blocks
}

func testBlock[T reducible](t *testing.T, m *machine, bitsOf func(T) uint64) {
	dt := dtype.Of[T]()
	rng := rand.New(rand.NewPCG(7, uint64(dt)))
	launches := blockKernel(t, dt, 0)
	m.load(t, []*kir.Program{launches})
	for _, c := range []struct{ x, y, z int }{{1, 1, 1}, {31, 1, 1}, {32, 1, 1}, {33, 1, 1}, {96, 1, 1}, {256, 1, 1}, {1000, 1, 1},
		{1024, 1, 1}, {5, 3, 1}, {3, 5, 7}, {1, 1, 64}} {
		n := c.x * c.y * c.z
		programs := []*kir.Program{launches}
		if n == c.x {
			programs = append(programs, blockKernel(t, dt, n))
			m.load(t, programs[1:])
		}
		as, bs := numbersOfBlocks[T](rng, n, dt.IsFloat()), numbersOfBlocks[T](rng, n, dt.IsFloat())
		var a, b []byte
		for i := range as {
			for j := range n {
				a, b = put(a, dt, bitsOf(as[i][j])), put(b, dt, bitsOf(bs[i][j]))
			}
		}
		var want []byte
		for i := range as {
			for _, results := range wantOfBlock(as[i], bs[i]) {
				for _, r := range results {
					want = put(want, dt, bitsOf(r))
				}
			}
		}
		for _, p := range programs {
			got, err := m.run(kernelCase{prog: p, grid: len(as), block: c.x, high: [2]int{c.y, c.z},
				args: []argument{buffer(dt, a), buffer(dt, b), zeros(dt, len(want)/dt.Size())}})
			if err != nil {
				t.Fatal(err)
			}
			if !sameNumbers(dt, got[2], want) {
				t.Errorf("%s with blocks of %v: the results are not those of a loop%s", p.Name, c, firstOther(dt, got[2], want, n))
			}
		}
	}
}

func sameNumbers(t kir.Type, a, b []byte) bool { return len(a) == len(b) && differ(t, a, b) == "" }

// firstOther describes the first element of got that is not that of want.
func firstOther(t kir.Type, got, want []byte, threads int) string {
	for i, s := 0, t.Size(); i < len(want); i += s {
		if differ(t, got[i:i+s], want[i:i+s]) != "" {
			at := i / s / resultsOfBlock
			return fmt.Sprintf(": block %d, thread %d, result %d is %#x, want %#x", at/threads, at%threads, i/s%resultsOfBlock,
				bits(got[i:i+s]), bits(want[i:i+s]))
		}
	}
	return ""
}

func testBlocks(t *testing.T, m *machine) {
	testBlock(t, m, func(v float32) uint64 { return uint64(math.Float32bits(v)) })
	testBlock(t, m, math.Float64bits)
	testBlock(t, m, func(v int32) uint64 { return uint64(v) })
	testBlock(t, m, func(v uint32) uint64 { return uint64(v) })
	testBlock(t, m, func(v int64) uint64 { return uint64(v) })
	testBlock(t, m, func(v uint64) uint64 { return v })
}

// The reductions of a block have the bits of a loop on the host in the documented order, for blocks of any size.
func TestBlocksOnGPU(t *testing.T)       { testBlocks(t, openGPU(t)) }
func TestBlocksOnSimulator(t *testing.T) { testBlocks(t, openSim(t)) }

// TestBlocksAssemble assembles the reductions of a block; none may spill much.
func TestBlocksAssemble(t *testing.T) {
	as := assembler(t)
	var progs []*kir.Program
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64} {
		for _, threads := range []int{0, 1, 33, 256, 1024} {
			progs = append(progs, blockKernel(t, dt, threads))
		}
	}
	targets := withArch(as, targets...)
	for i, target := range targets {
		text, err := ptx.Compile(shareOf(progs, i, len(targets)), target)
		if err != nil {
			t.Fatal(err)
		}
		if s := spilled(assemble(t, as, target, text)); s != "" {
			t.Errorf("%v: %s", target, s)
		}
	}
}
