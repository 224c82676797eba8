package vexec

import (
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// TestBlockSum sums with shared memory and barriers, as a halving tree.
func TestBlockSum(t *testing.T) {
	const threads = 256
	k := build(t, "blocksum", func(k *kernel.Builder) {
		k.FixedThreads(threads)
		in, out := k.Buffer("in", dtype.Float32), k.Buffer("out", dtype.Float32)
		n := k.Scalar("n", dtype.Int32)
		s := k.Shared("s", dtype.Float32, threads)
		dyn := k.Shared("dyn", dtype.Float32, -1)
		tid := k.ThreadIdx(kernel.X)
		acc := k.Var(k.F32(0))
		k.For(tid, n, k.BlockDim(kernel.X), func(i kernel.Value) {
			acc.Set(acc.Get().Add(in.Load(k.BlockIdx(kernel.X).Mul(n).Add(i))))
		})
		s.Store(tid, acc.Get())
		k.Barrier()
		for h := threads / 2; h > 0; h /= 2 {
			k.If(tid.Lt(k.I32(h)), func() { s.Store(tid, s.Load(tid).Add(s.Load(tid.Add(k.I32(h))))) })
			k.Barrier()
		}
		dyn.Store(tid, s.Load(k.I32(0)))
		k.Barrier()
		k.If(tid.Eq(k.I32(7)), func() { out.Store(k.BlockIdx(kernel.X), dyn.Load(k.I32(9))) })
	})
	const blocks, n = 5, 1000
	m := newFlat()
	xs := make([]float32, blocks*n)
	for i := range xs {
		xs[i] = float32(i%17) - 4
	}
	in, out := put(m, xs), m.alloc(4*blocks)
	if err := k.Run(&Env{Mem: m}, x(blocks), x(threads), 4*threads, pack(in, out, int32(n))); err != nil {
		t.Fatal(err)
	}
	for b, got := range get[float32](m, out) {
		var want float32
		for _, v := range xs[b*n : (b+1)*n] {
			want += v // exact: small integers
		}
		if got != want {
			t.Errorf("block %d: sum %v, want %v", b, got, want)
		}
	}
	regs, shared, local, most := k.Info()
	if regs < 1 || shared != 4*threads || local != 0 || most != threads {
		t.Errorf("Info = %d, %d, %d, %d", regs, shared, local, most)
	}
}

// TestExchange checks shuffles and votes against their definitions, for full and partial groups, uniform and varying lanes.
func TestExchange(t *testing.T) {
	k := build(t, "exchange", func(k *kernel.Builder) {
		in, at, out := k.Buffer("in", dtype.Int32), k.Buffer("at", dtype.Int32), k.Buffer("out", dtype.Int64)
		tid := k.ThreadIdx(kernel.X)
		v, lane := in.Load(tid), at.Load(tid)
		row := tid.Mul(k.I32(16))
		put := func(j int, x kernel.Value) { out.Store(row.Add(k.I32(j)), x.Convert(dtype.Int64)) }
		put(0, v.Shuffle(lane))
		put(1, v.Shuffle(k.I32(3)))
		put(2, v.ShuffleXor(5))
		put(3, v.ShuffleDown(16))
		put(4, v.ShuffleUp(3))
		put(5, v.Convert(dtype.Float64).ShuffleXor(16))
		put(6, v.Convert(dtype.Float16).ShuffleDown(1).Convert(dtype.Int32))
		c := v.And(k.I32(3)).Eq(k.I32(0))
		put(7, c.Any())
		put(8, c.All())
		put(9, c.Ballot())
		put(10, tid.ShuffleXor(1))
		put(11, tid.Lt(k.I32(40)).Ballot())
		put(12, k.I32(7).ShuffleXor(1))
		put(13, k.Bool(true).Ballot())
		put(14, k.LaneID())
		put(15, v.Shuffle(k.I32(40)))
	})
	for _, n := range []int{32, 64, 100, 7} {
		r := rand.New(rand.NewSource(int64(n)))
		m := newFlat()
		vs, at := make([]int32, n), make([]int32, n)
		for i := range vs {
			vs[i], at[i] = int32(r.Intn(1000)), int32(r.Intn(40)-4)
		}
		va, aa, out := put(m, vs), put(m, at), m.alloc(n*16*8)
		if err := k.Run(&Env{Mem: m}, x(1), x(n), 0, pack(va, aa, out)); err != nil {
			t.Fatal(err)
		}
		got := get[int64](m, out)
		for i := range n {
			g := i / 32 * 32
			from := func(j int) int64 {
				if j < 0 || j > 31 || g+j >= n {
					j = i - g
				}
				return int64(vs[g+j])
			}
			var ballot, low, all int64
			for j := g; j < min(g+32, n); j++ {
				all |= 1 << (j - g)
				if vs[j]&3 == 0 {
					ballot |= 1 << (j - g)
				}
				if j < 40 {
					low |= 1 << (j - g)
				}
			}
			other := int64(i ^ 1)
			if other >= int64(n) {
				other = int64(i)
			}
			want := []int64{from(int(at[i])), from(3), from((i - g) ^ 5), from(i - g + 16), from(i - g - 3),
				from((i - g) ^ 16), from(i - g + 1),
				int64(boolBits(ballot != 0)), int64(boolBits(ballot == all)), ballot, other, low, 7, all, int64(i % 32), int64(vs[i])}
			for j, w := range want {
				if got[i*16+j] != w {
					t.Fatalf("n=%d thread %d: result %d = %d, want %d", n, i, j, got[i*16+j], w)
				}
			}
		}
	}
}

// TestAtomics runs every atomic on global and shared memory, with results that do not depend on the order.
func TestAtomics(t *testing.T) {
	type c struct {
		op   kernel.Atomic
		t    dtype.DType
		want func(vs []int64, init int64) int64
	}
	fold := func(f func(a, b int64) int64) func([]int64, int64) int64 {
		return func(vs []int64, acc int64) int64 {
			for _, v := range vs {
				acc = f(acc, v)
			}
			return acc
		}
	}
	var cs []c
	for _, dt := range []dtype.DType{dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64, dtype.Float32, dtype.Float64} {
		cs = append(cs, c{kernel.AtomicAdd, dt, fold(func(a, b int64) int64 { return a + b })})
		if dt.IsFloat() {
			continue
		}
		cs = append(cs, c{kernel.AtomicMin, dt, fold(func(a, b int64) int64 { return min(a, b) })},
			c{kernel.AtomicMax, dt, fold(func(a, b int64) int64 { return max(a, b) })},
			c{kernel.AtomicAnd, dt, fold(func(a, b int64) int64 { return a & b })},
			c{kernel.AtomicOr, dt, fold(func(a, b int64) int64 { return a | b })},
			c{kernel.AtomicXor, dt, fold(func(a, b int64) int64 { return a ^ b })})
	}
	const threads, blocks = 100, 40
	for _, c := range cs {
		k := build(t, "atomic", func(k *kernel.Builder) {
			out, last := k.Buffer("out", c.t), k.Buffer("last", c.t)
			s := k.Shared("s", c.t, 1)
			tid := k.ThreadIdx(kernel.X)
			v := k.BlockIdx(kernel.X).Mul(k.BlockDim(kernel.X)).Add(tid).Rem(k.I32(97)).Add(k.I32(3)).Convert(c.t)
			k.If(tid.Eq(k.I32(0)), func() { s.Store(k.I32(0), k.Const(c.t, 5)) })
			k.Barrier()
			s.Atomic(c.op, k.I32(0), v)
			k.Barrier()
			out.Atomic(c.op, k.I32(0), v)
			k.If(tid.Eq(k.I32(1)), func() { last.Store(k.BlockIdx(kernel.X), s.Load(k.I32(0))) })
		})
		m := newFlat()
		out, last := m.alloc(8), m.alloc(blocks*8)
		copy(m.at(out).bytes, fillOne(c.t, 5))
		if err := k.Run(&Env{Mem: m, Workers: 2}, x(blocks), x(threads), 0, pack(out, last)); err != nil {
			t.Fatal(err)
		}
		var vs []int64
		for i := range blocks * threads {
			vs = append(vs, int64(i%97+3))
		}
		number := func(bits uint64) int64 {
			if c.t.IsFloat() {
				return int64(toFloat(c.t, bits))
			}
			return sint(c.t, bits)
		}
		if got := number(readBits(m, c.t, out, 1)[0]); got != c.want(vs, 5) {
			t.Errorf("global %d on %v: %d, want %d", c.op, c.t, got, c.want(vs, 5))
		}
		for b, bits := range readBits(m, c.t, last, blocks) {
			if got, want := number(bits), c.want(vs[b*threads:(b+1)*threads], 5); got != want {
				t.Errorf("shared %d on %v in block %d: %d, want %d", c.op, c.t, b, got, want)
			}
		}
	}
}

func fillOne(t dtype.DType, v float64) []byte {
	bits := uint64(v)
	if t.IsFloat() {
		bits = fromFloat(t, v)
	}
	b := make([]byte, t.Size())
	for j := range b {
		b[j] = byte(bits >> (8 * j))
	}
	return b
}

// TestAtomicReturns checks old values: each ticket is drawn once, and exchange and compare-and-swap chain through all threads.
func TestAtomicReturns(t *testing.T) {
	k := build(t, "tickets", func(k *kernel.Builder) {
		counter, seen, chain := k.Buffer("counter", dtype.Uint32), k.Buffer("seen", dtype.Int32), k.Buffer("chain", dtype.Uint64)
		ticket := counter.Atomic(kernel.AtomicAdd, k.I32(0), k.U32(1))
		seen.Atomic(kernel.AtomicAdd, ticket.Convert(dtype.Int32), k.I32(1))
		old := chain.Atomic(kernel.AtomicExch, k.I32(0), ticket.Convert(dtype.Uint64).Add(k.U64(1)))
		chain.Atomic(kernel.AtomicAdd, k.I32(1), old)
		k.Loop(func() { // an increment by compare-and-swap
			c := chain.Atomic(kernel.AtomicAdd, k.I32(2), k.U64(0))
			got := chain.CompareAndSwap(k.I32(2), c, c.Add(k.U64(1)))
			k.If(got.Eq(c), func() { k.Break() })
		})
	})
	const n = 64 * 50
	m := newFlat()
	counter, seen, chain := m.alloc(4), m.alloc(4*n), m.alloc(24)
	if err := k.Run(&Env{Mem: m, Workers: 2}, x(50), x(64), 0, pack(counter, seen, chain)); err != nil {
		t.Fatal(err)
	}
	for i, v := range get[int32](m, seen) {
		if v != 1 {
			t.Fatalf("ticket %d was drawn %d times", i, v)
		}
	}
	c := get[uint64](m, chain)
	if c[0]+c[1] != n*(n+1)/2 || c[2] != n {
		t.Fatalf("exchange lost a value (%d + %d), or compare-and-swap counted %d of %d", c[0], c[1], c[2], n)
	}
}

func here() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// TestFaults provokes each fault in each way of accessing memory, and checks that the fault has the Go line of the access.
//
//tenon:table of the ways to reach memory
func TestFaults(t *testing.T) {
	type body func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) (line int)
	far := func(k *kernel.Builder) kernel.Value { return k.I32(1 << 20) }
	cases := []struct {
		name   string
		code   int
		detail string
		f      body
	}{
		{"affine load", 700, "invalid 4-byte global read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, u.Load(i.Add(k.I32(50))))
			return here() - 1
		}},
		{"affine store", 700, "global write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i.Sub(k.I32(1)), k.F32(1))
			return here() - 1
		}},
		{"first bad thread", 700, "by thread (28,0,0) of block (1,0,0)", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i.Add(k.I32(40)), k.F32(1))
			return here() - 1
		}},
		{"uniform load", 700, "global read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, u.Load(far(k)))
			return here() - 1
		}},
		{"uniform store", 700, "global write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(far(k), k.F32(3))
			return here() - 1
		}},
		{"gather", 700, "global read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, u.Load(i.Rem(k.I32(3)).Mul(k.I32(1000))))
			return here() - 1
		}},
		{"scatter", 700, "global write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i.Rem(k.I32(3)).Mul(k.I32(1000)), k.F32(1))
			return here() - 1
		}},
		{"varying base", 700, "global read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			p := i.Lt(k.I32(9)).Select(u.Addr(), k.U64(64))
			u.Store(i, k.At(p, dtype.Float32).Load(k.I32(0)))
			return here() - 1
		}},
		{"null", 700, "global read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, k.At(k.U64(0), dtype.Float32).Load(i))
			return here() - 1
		}},
		{"misaligned base", 716, "misaligned 4-byte", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.At(u.Addr().Add(k.U64(2)), dtype.Float32).Store(i, k.F32(1))
			return here() - 1
		}},
		{"misaligned vector", 716, "misaligned 16-byte", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, u.LoadVec(i.Rem(k.I32(7)), 4)[0])
			return here() - 1
		}},
		{"misaligned vector, affine", 716, "misaligned 8-byte", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.StoreVec(i, k.F32(0), k.F32(1))
			return here() - 1
		}},
		{"atomic", 700, "global write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Atomic(kernel.AtomicAdd, far(k), k.F32(1))
			return here() - 1
		}},
		{"shared", 700, "shared write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.Shared("s", dtype.Int32, 30).Store(i, i)
			return here() - 1
		}},
		{"shared gather", 700, "shared read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			s := k.Shared("s", dtype.Float32, 30)
			u.Store(i, s.Load(i.Xor(k.I32(1))))
			return here() - 1
		}},
		{"local", 700, "local read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			s := k.Local("l", dtype.Float32, 3)
			u.Store(i, s.Load(i.Rem(k.I32(4))))
			return here() - 1
		}},
		{"local uniform", 700, "local write", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.Local("l", dtype.Float32, 3).Store(k.I32(-1), k.F32(0))
			return here() - 1
		}},
		{"table", 700, "table read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			s := k.TableF32("tab", []float32{1, 2})
			u.Store(i, s.Load(i))
			return here() - 1
		}},
		{"parameter array", 700, "parameter read", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			u.Store(i, k.Params("ps", dtype.Float32, 1).Load(i))
			return here() - 1
		}},
		{"assert", 710, "assertion failed: i is small, by thread (5,0,0) of block (0,0,0)",
			func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
				k.If(i.Gt(k.I32(3)), func() { k.Assert(i.Rem(k.I32(8)).Lt(k.I32(5)), "i is small") })
				return here() - 1
			}},
		{"assert uniform", 710, "never", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.Assert(k.BlockDim(kernel.X).Eq(k.I32(3)), "never")
			return here() - 1
		}},
		{"assert numbers", 710, "assertion failed: thread 5 of 32: 100% small, by thread",
			func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
				k.Assert(i.Lt(k.I32(5)), "thread %v of %v: 100%% small", i, k.BlockDim(kernel.X))
				return here() - 1
			}},
		{"assert wide number", 710, "5000000005 is not 1.5, by thread", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.Assert(i.Lt(k.I32(5)), "%v is not %v", i.Convert(dtype.Int64).Add(k.I64(5_000_000_000)), k.F32(1.5).Convert(dtype.Float16))
			return here() - 1
		}},
		{"assert loaded number", 710, "7.25 is low, by thread", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.If(i.Eq(k.I32(0)), func() { u.Store(k.I32(0), k.F32(7.25)) })
			k.Barrier()
			k.Assert(i.Lt(k.I32(5)), "%v is low", u.Load(i.Mul(k.I32(0))))
			return here() - 1
		}},
		{"assert span", 710, "thread (6,0,0)", func(k *kernel.Builder, u kernel.Buffer, i kernel.Value) int {
			k.Assert(i.Lt(k.I32(6)), "span")
			return here() - 1
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			line := 0
			k := build(t, "faulty", func(k *kernel.Builder) {
				u, out := k.Buffer("u", dtype.Float32), k.Buffer("out", dtype.Int32)
				i := k.BlockIdx(kernel.X).Mul(k.BlockDim(kernel.X)).Add(k.ThreadIdx(kernel.X))
				line = c.f(k, u, i)
				out.Store(i, k.I32(1)) // must not run
			})
			for _, workers := range []int{1, 2} {
				m := newFlat()
				u := m.alloc(4 * 100)
				out := m.alloc(4 * 100)
				err := k.Run(&Env{Mem: m, Workers: workers}, x(2), x(32), 0, append(pack(u, out), 0, 0, 0, 0))
				var f *Fault
				if !errors.As(err, &f) {
					t.Fatalf("no fault, but %v", err)
				}
				if f.Code != c.code || f.Kernel != "faulty" || !strings.HasSuffix(f.File, "block_test.go") || f.Line != line ||
					!strings.Contains(f.Detail, c.detail) {
					t.Fatalf("fault %d %s at %s:%d: %s; want %d at line %d: %s", f.Code, f.Kernel, f.File, f.Line, f.Detail,
						c.code, line, c.detail)
				}
				if !strings.Contains(f.Error(), "kernel faulty at ") {
					t.Errorf("Error() = %q", f.Error())
				}
			}
		})
	}
}

// TestMaskedAccess: inactive lanes may have invalid addresses.
func TestMaskedAccess(t *testing.T) {
	k := build(t, "masked", func(k *kernel.Builder) {
		u := k.Buffer("u", dtype.Float32)
		i := k.ThreadIdx(kernel.X)
		odd := i.And(k.I32(1)).Eq(k.I32(1))
		k.If(i.Lt(k.I32(10)), func() { u.Store(i, u.Load(i).Add(k.F32(1))) })
		k.If(i.Lt(k.I32(10)).And(odd), func() {
			u.Store(i, u.Load(i).Add(k.F32(1)))
			j := i.Xor(k.I32(1))
			u.Store(j, u.Load(j).Mul(k.F32(2)))
		})
		k.If(i.Rem(k.I32(5)).Eq(k.I32(0)).And(i.Lt(k.I32(10))), func() {
			vs := u.LoadVec(i.Shr(k.I32(1)).Shl(k.I32(1)), 2)
			u.Store(i, vs[0].Add(vs[1]))
		})
	})
	m := newFlat()
	u := put(m, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	if err := k.Run(&Env{Mem: m}, x(1), x(64), 0, pack(u)); err != nil {
		t.Fatal(err)
	}
	want := []float32{0, 3, 6, 5, 10, 7, 14, 9, 18, 11}
	want[0] = 2 + 3
	want[0], want[2], want[4], want[6], want[8] = 2, 6, 10, 14, 18
	for i, v := range want {
		if i%5 == 0 {
			j := i &^ 1
			v = want[j] + want[j+1]
		}
		if got := get[float32](m, u)[i]; got != v {
			t.Errorf("u[%d] = %v, want %v", i, got, v)
		}
	}
}

// TestAdjacentAllocations: the lanes of one access may touch several allocations.
func TestAdjacentAllocations(t *testing.T) {
	k := build(t, "several", func(k *kernel.Builder) {
		u, d, n := k.Buffer("u", dtype.Int64), k.Scalar("d", dtype.Int64), k.Scalar("n", dtype.Int32)
		i := k.ThreadIdx(kernel.X)
		at := i.Rem(n).Convert(dtype.Int64).Mul(d)
		u.Store(at, u.Load(at).Add(k.I64(1)))
		aff := i.Convert(dtype.Int64).Mul(d)
		u.Store(aff, u.Load(aff).Add(k.I64(100)))
	})
	m := newFlat()
	a := m.alloc(8)
	b, c := m.alloc(8), m.alloc(8)
	if b-a != c-b {
		t.Fatal("allocations are not evenly spaced")
	}
	if err := k.Run(&Env{Mem: m}, x(1), x(3), 0, pack(a, int64(b-a)/8, int32(3))); err != nil {
		t.Fatal(err)
	}
	for _, p := range []uint64{a, b, c} {
		if got := get[int64](m, p)[0]; got != 101 {
			t.Errorf("got %d, want 101", got)
		}
	}
}

// TestLaunchRefused checks the errors of launches that cannot begin.
func TestLaunchRefused(t *testing.T) {
	k := buildSaxpy(t)
	fixed := build(t, "fixed", func(k *kernel.Builder) {
		k.FixedThreads(64)
		k.Barrier()
	})
	args := make([]byte, 64)
	for _, c := range []struct {
		k           *Kernel
		grid, block [3]uint32
		args        []byte
		code        int
		want        string
	}{
		{k, x(0), x(1), args, 1, "empty"}, {k, x(1), x(0), args, 1, "empty"}, {k, x(1), x(1025), args, 701, "1025 threads"},
		{k, x(1), x(32), args[:8], 1, "8 bytes of arguments where 32"}, {fixed, x(1), x(32), nil, 1, "exactly 64"},
		{fixed, x(1), [3]uint32{32, 2, 1}, nil, 1, "exactly 64"},
	} {
		err := c.k.Run(&Env{}, c.grid, c.block, 0, c.args)
		var f *Fault
		if !errors.As(err, &f) || f.Code != c.code || !strings.Contains(f.Error(), c.want) {
			t.Errorf("%v %v: %v, want code %d with %q", c.grid, c.block, err, c.code, c.want)
		}
	}
	if err := fixed.Run(&Env{}, x(3), x(64), 0, nil); err != nil {
		t.Error(err)
	}
	if _, err := Load([]byte("nonsense")); err == nil {
		t.Error("nonsense was loaded")
	}
}

func TestLoadRefusesTwins(t *testing.T) {
	p, err := kernel.Build("twin", func(k *kernel.Builder) { k.Barrier() }).Program()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(kir.PrintAll([]*kir.Program{p, p})); err == nil {
		t.Error("two kernels of one name were loaded")
	}
}

// TestWarmLaunchAllocatesNothing covers launches on one goroutine and on several.
func TestWarmLaunchAllocatesNothing(t *testing.T) {
	k := buildSaxpy(t)
	m := newFlat()
	const n = 1 << 20
	args := pack(float32(2), int64(n), m.alloc(4*n), m.alloc(4*n))
	for _, workers := range []int{1, 2} {
		e := &Env{Mem: m, Workers: workers}
		launch := func() {
			if err := k.Run(e, x(n/256), x(256), 0, args); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			launch()
		}
		if got := testing.AllocsPerRun(20, launch); got != 0 {
			t.Errorf("%d workers: %v allocations a launch", workers, got)
		}
	}
}

// TestClock: a spin on the device clock ends, and the clock comes from the environment.
func TestClock(t *testing.T) {
	k := build(t, "spin", func(k *kernel.Builder) {
		out := k.Buffer("out", dtype.Int64)
		start := k.Clock()
		k.Loop(func() { k.If(k.Clock().Sub(start).Ge(k.I64(1000)), func() { k.Break() }) })
		out.Store(k.ThreadIdx(kernel.X), k.Clock().Sub(start))
	})
	m := newFlat()
	out := m.alloc(8 * 4)
	now := int64(5)
	if err := k.Run(&Env{Mem: m, Clock: func() int64 { now += 300; return now }}, x(1), x(4), 0, pack(out)); err != nil {
		t.Fatal(err)
	}
	for _, v := range get[int64](m, out) {
		if v != 1500 {
			t.Errorf("clock difference %d, want 1500", v)
		}
	}
	if err := k.Run(&Env{Mem: m}, x(1), x(4), 0, pack(out)); err != nil {
		t.Fatal(err)
	}
}

// watching records what a launch reports about itself.
type watching struct {
	said []string
	last int
}

func (w *watching) Block(x, y, z uint32, shared int) {
	w.said = append(w.said, fmt.Sprintf("block %d,%d,%d with %d shared bytes", x, y, z, shared))
}

func (w *watching) Barrier() { w.said = append(w.said, "barrier") }

func (w *watching) Touch(t *Touch) {
	w.last = t.Loc
	what := "read"
	switch {
	case t.Atomic:
		what = "atomic"
	case t.Write:
		what = "write"
	}
	w.said = append(w.said, fmt.Sprintf("%s of %d bytes at %d of space %d by %d, outside %v", what, t.Size, t.Addr, t.Space,
		t.Lane, t.Outside))
}

// TestWatch checks that every access of a launch is reported before it is made, in program order.
func TestWatch(t *testing.T) {
	k := build(t, "watched", func(k *kernel.Builder) {
		k.FixedThreads(2)
		out, in, s := k.Buffer("out", dtype.Int32), k.Buffer("in", dtype.Int32), k.Shared("s", dtype.Int32, 2)
		tid := k.ThreadIdx(kernel.X)
		s.Store(tid, in.Load(tid))
		k.Barrier()
		k.If(tid.Eq(k.I32(1)), func() { out.Atomic(kernel.AtomicAdd, k.I32(0), s.Load(k.I32(1).Sub(tid))) })
		out.Store(tid.Add(k.I32(1000)), in.Load(k.I32(0)))
	})
	m := newFlat()
	out, in := m.alloc(8), m.alloc(8)
	w := &watching{}
	err := k.Run(&Env{Mem: m, Watch: w}, x(2), x(2), 0, pack(out, in))
	var f *Fault
	if !errors.As(err, &f) || f.Code != 700 {
		t.Fatalf("a store far outside gave %v", err)
	}
	a, b := out, in
	want := []string{"block 0,0,0 with 16 shared bytes",
		fmt.Sprintf("read of 4 bytes at %d of space 0 by 0, outside false", b),
		fmt.Sprintf("read of 4 bytes at %d of space 0 by 1, outside false", b+4),
		"write of 4 bytes at 0 of space 1 by 0, outside false", "write of 4 bytes at 4 of space 1 by 1, outside false", "barrier",
		"read of 4 bytes at 0 of space 1 by 1, outside false", fmt.Sprintf("atomic of 4 bytes at %d of space 0 by 1, outside false", a),
		fmt.Sprintf("read of 4 bytes at %d of space 0 by 0, outside false", b),
		fmt.Sprintf("read of 4 bytes at %d of space 0 by 1, outside false", b),
		fmt.Sprintf("write of 4 bytes at %d of space 0 by 0, outside false", a+4000), fmt.Sprintf("write of 4 bytes at %d of space 0 by "+
			"1, outside false", a+4004)}
	if !slices.Equal(w.said, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(w.said, "\n"), strings.Join(want, "\n"))
	}
	if !k.Atomics() || k.Name() != "watched" {
		t.Errorf("%s, atomics %v", k.Name(), k.Atomics())
	}
	if file, line := k.Place(w.last); file != f.File || line != f.Line || line == 0 {
		t.Errorf("the last access is told at %s:%d, and fails at %s:%d", file, line, f.File, f.Line)
	}
	if file, line := k.Place(1 << 20); file != "" || line != 0 {
		t.Errorf("a place that is not there is %s:%d", file, line)
	}
}

// TestVaryingSteps: the counter of a loop whose lanes have different steps is kept through each iteration, even if the body no longer uses
// it.
func TestVaryingSteps(t *testing.T) {
	k := build(t, "steps", func(k *kernel.Builder) {
		out := k.Buffer("out", dtype.Int32)
		tid := k.ThreadIdx(kernel.X)
		turns := k.Var(k.I32(0))
		step := tid.Rem(k.I32(5)).Add(k.I32(1))
		k.For(tid.Rem(k.I32(3)), k.I32(40).Sub(tid.Rem(k.I32(7))), step, func(i kernel.Value) {
			x := i.Mul(i)
			y := tid.Rem(k.I32(11)).Mul(k.I32(1000003))
			z := y.Xor(tid.Rem(k.I32(13)))
			turns.Set(turns.Get().Add(z.Mul(y).Or(k.I32(1)).And(k.I32(1))).Add(x.Sub(x)))
		})
		out.Store(tid, turns.Get())
	})
	const n = 200
	m := newFlat()
	out := m.alloc(4 * n)
	if err := k.Run(&Env{Mem: m}, x(1), x(n), 0, pack(out)); err != nil {
		t.Fatal(err)
	}
	for i, got := range get[int32](m, out) {
		want := int32(0)
		for c := i % 3; c < 40-i%7; c += i%5 + 1 {
			want++
		}
		if got != want {
			t.Fatalf("thread %d took %d turns, want %d", i, got, want)
		}
	}
}
