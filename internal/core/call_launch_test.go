package core

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/kernel"
)

// TestLaunchRefusals checks that a launch that the kernel cannot run is refused where it is made, with the same message on every device,
// and that the session goes on.
func TestLaunchRefusals(t *testing.T) {
	build := func(name string, f func(k *kernel.Builder, b kernel.Buffer)) *kernel.Kernel {
		return kernel.Build(name, func(k *kernel.Builder) {
			b := k.Buffer("b", dtype.Float32)
			f(k, b)
		})
	}
	one := func(k *kernel.Builder, b kernel.Buffer) { b.Store(k.ThreadIdx(kernel.X), k.F32(1)) }
	plain := build("plain", one)
	fixed := build("fixed", func(k *kernel.Builder, b kernel.Buffer) { k.FixedThreads(64); one(k, b) })
	few := build("few", func(k *kernel.Builder, b kernel.Buffer) { k.Threads(64); one(k, b) })
	masked := build("masked", func(k *kernel.Builder, b kernel.Buffer) {
		k.If(k.ThreadIdx(kernel.X).Lt(k.I32(1)), func() { b.Atomic(kernel.AtomicAdd, k.I32(0), k.F32(1)) })
	})
	reader := build("reader", func(k *kernel.Builder, b kernel.Buffer) {
		k.Shared("s", dtype.Float32, 1).Store(k.I32(0), b.Load(k.I32(0)))
	})
	moved := build("moved", func(k *kernel.Builder, b kernel.Buffer) {
		at := k.Var(b.Offset(k.I64(1)).Addr())
		k.For(k.I32(0), k.I32(2), k.I32(1), func(kernel.Value) {
			one(k, k.At(at.Get(), dtype.Float32))
			at.Set(at.Get().Add(k.U64(4)))
		})
	})
	number := kernel.Build("number", func(k *kernel.Builder) { k.Scalar("n", dtype.Float32) })
	whole := kernel.Build("whole", func(k *kernel.Builder) { k.Scalar("n", dtype.Int64) })
	block := func(x, y int) LaunchShape { return LaunchShape{Grid: [3]int{1}, Block: [3]int{x, y}} }
	grid := func(n ...int) LaunchShape { return LaunchShape{Grid: [3]int(append(n, 0, 0, 0)), Block: [3]int{1}} }
	tiled := build("tiled", func(k *kernel.Builder, b kernel.Buffer) { k.Tile("t", dtype.Float32, 16, 16).Zero(); one(k, b) })
	ints := map[dtype.DType]*kernel.Kernel{}
	for _, dt := range []dtype.DType{dtype.Int8, dtype.Uint8, dtype.Int32, dtype.Uint32, dtype.Uint64, dtype.Bool} {
		ints[dt] = kernel.Build("ints", func(k *kernel.Builder) { k.Scalar("n", dt) })
	}
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Zeros([]int{64}, dtype.Float32)
		for _, c := range []struct {
			name, want string
			k          *kernel.Kernel
			shape      LaunchShape
			arg        Arg
		}{
			{"too few", "kernel fixed is written for blocks of 64 threads in x, but the launch has blocks of [32 1 1]; " +
				"give a LaunchShape with a Grid of such blocks and no Block", fixed,
				block(32, 0), Out(a)},
			{"in y", "for blocks of 64 threads in x, but the launch has blocks of [1 64 1]", fixed, block(1, 64), Out(a)},
			{"too many", "kernel few is written for blocks of at most 64 threads, but the launch has blocks of [65 1 1]; " +
				"launch smaller blocks", few, block(65, 0), Out(a)},
			{"in all", "kernel plain is written for blocks of at most 1024 threads", plain, block(512, 4), Out(a)},
			{"negative", "the launch has blocks of [-1 0 0]; give at least 1 thread", plain, block(-1, 0), Out(a)},
			{"huge", "the launch has blocks of [2000 1 1] threads; give at most 1024", plain, block(2000, 0), Out(a)},
			{"endless", "the launch has blocks of [1099511627776 1 1] threads; give at most 1024", plain, block(1<<40, 0), Out(a)},
			{"no block", "kernel plain does not fix the threads of its blocks, and the launch has no Block; give it one, such as " +
				"[3]int{256}, or call FixedThreads in the kernel", plain, LaunchShape{Grid: [3]int{1}}, Out(a)},
			{"no grid", "the launch has no Grid; give the number of blocks, such as [3]int{n, 1, 1}, with which an n of 0 launches nothing",
				fixed, LaunchShape{}, Out(a)},
			{"negative grid", "the launch has a grid of [1 -1 0]; give at least 0 blocks", plain, grid(1, -1), Out(a)},
			{"over a negative number", "the launch has a grid of [-1 1 1]; give at least 0 blocks", plain, Over(-1), Out(a)},
			{"large x", "the launch has a grid of [2147483648 1 1] blocks; a device takes at most 2147483647, 65535 and 65535", plain,
				grid(1 << 31), Out(a)},
			{"wrapping x", "the launch has a grid of [4294967297 1 1] blocks", plain, grid(1<<32 + 1), Out(a)},
			{"large y", "the launch has a grid of [1 65536 1] blocks", plain, grid(1, 65536), Out(a)},
			{"tiles", "kernel tiled is written for blocks of 1024 threads in x, but the launch has blocks of [128 1 1]; kernels with " +
				"tiles fix their threads: call FixedThreads(128) in it, or give no Block", tiled, block(128, 1), Out(a)},
			{"int32", "parameter n of kernel ints is of type int32, but the number 1099511627776 was given; give one from -2147483648 to " +
				"2147483647, or declare it int64", ints[dtype.Int32], block(1, 1), Integer(1 << 40)},
			{"int32 by 5", "the number 2147483653 was given; give one from -2147483648 to", ints[dtype.Int32], block(1, 1),
				Integer(1<<31 + 5)},
			{"int32 float", "but the number 3000000000 was given; give one from -2147483648", ints[dtype.Int32], block(1, 1), Number(3e9)},
			{"uint32", "the number -1 was given; give one from 0 to 4294967295, or declare it int64", ints[dtype.Uint32], block(1, 1),
				Integer(-1)},
			{"uint64", "the number -1 was given; give one from 0 to 9223372036854775807, or declare it int64", ints[dtype.Uint64],
				block(1, 1), Integer(-1)},
			{"uint8", "the number 256 was given; give one from 0 to 255, or declare", ints[dtype.Uint8], block(1, 1), Integer(256)},
			{"int8", "the number -129 was given; give one from -128 to 127, or", ints[dtype.Int8], block(1, 1), Number(-129)},
			{"bool", "the number 2 was given; give one from 0 to 1, or declare it int64", ints[dtype.Bool], block(1, 1), Integer(2)},
			{"input", "kernel plain writes its parameter b, but the tensor was given as an input; give it with Out", plain,
				block(64, 0), In(a)},
			{"moved", "kernel moved writes its parameter b, but the tensor was given as an input; give it with Out", moved,
				block(1, 0), In(a)},
			{"nil", "argument 0 of kernel plain is a nil tensor; give it one", plain, block(1, 0), Out(nil)},
			{"nil for a number", "argument 0 of kernel number is a nil tensor; give it one", number, block(1, 0), In(nil)},
			{"zero", "argument 0 of kernel plain is a zero value; make it with In, Out, Mapped, Number or Integer", plain,
				block(1, 0), Arg{}},
			{"over", "for blocks of 64 threads in x, but the launch has blocks of [256 1 1]", fixed, Over(64), Out(a)},
			{"fraction", "parameter n of kernel whole is of type int64, but the number 8.5 was given; give a whole number", whole,
				block(1, 0), Number(8.5)},
			{"no number", "but the number NaN was given; give a whole number", whole, block(1, 0), Number(math.NaN())},
			{"too large", "is of type int64, but the number 1e+20 was given; give one from -9223372036854775808 to 9223372036854775807",
				whole, block(1, 0), Number(1e20)},
			{"2^63", "the number 9.223372036854776e+18 was given; give one from", whole, block(1, 0), Number(1 << 63)},
			{"2^63 for uint64", "the number 9.223372036854776e+18 was given; give one from 0 to", ints[dtype.Uint64], block(1, 0),
				Number(1 << 63)},
			{"infinite", "the number +Inf was given; give a whole number", whole, block(1, 0), Number(math.Inf(1))},
			{"atomic", "kernel masked writes its parameter b", masked, block(64, 0), In(a)},
		} {
			wantError(t, Try(func() { x.Launch(c.k, c.shape, c.arg) }), fault.Invalid, c.want, "launch_test.go")
		}
		for dt, n := range map[dtype.DType][]int64{dtype.Int8: {-128, 127}, dtype.Uint8: {0, 255},
			dtype.Int32: {math.MinInt32, math.MaxInt32}, dtype.Uint32: {0, math.MaxUint32},
			dtype.Uint64: {0, math.MaxInt64}, dtype.Bool: {0, 1}} {
			for _, n := range n {
				x.Launch(ints[dt], block(1, 0), Integer(n))
			}
		}
		for _, n := range []Arg{Number(8), Number(-1 << 63), Integer(1<<63 - 1), Integer(-1 << 63)} {
			x.Launch(whole, block(1, 0), n)
		}
		x.Launch(reader, block(1, 0), In(a))
		x.Launch(moved, block(1, 0), Out(a))
		x.Launch(fixed, LaunchShape{Grid: [3]int{1}}, Out(a))
		want(t, x, x.Sum(a, nil, SumOpt{}), 64)
	})
}

// TestEmptyLaunch: a launch with a Grid whose last count is given launches nothing if a count is 0; counts that are left out are 1.
func TestEmptyLaunch(t *testing.T) {
	count := kernel.Build("count", func(k *kernel.Builder) {
		k.Buffer("b", dtype.Float32).Atomic(kernel.AtomicAdd, k.I32(0), k.F32(1))
	})
	opened(t, func(t *testing.T, x *Exec) {
		for grid, blocks := range map[[3]int]float32{{0, 1, 1}: 0, {3, 0, 1}: 0, {0, 0, 2}: 0, {0, 2, 0}: 0, {3, 0, 0}: 3, {3, 2, 0}: 6,
			{3, 2, 2}: 12} {
			a := x.Zeros([]int{1}, dtype.Float32)
			x.Launch(count, LaunchShape{Grid: grid, Block: [3]int{1}}, Out(a))
			want(t, x, a, blocks)
		}
		none := x.Zeros([]int{0}, dtype.Float32)
		x.Launch(count, LaunchShape{Grid: [3]int{none.Numel(), 1, 1}, Block: [3]int{1}}, Out(none))
		x.Launch(count, Over(0), Out(none))
		wantError(t, Try(func() { x.Launch(count, Over(0)) }), fault.Invalid, "kernel count has 1 parameters")
	})
}

// TestLaunchOfMistake: the launch of a kernel with a mistake fails with the line of the mistake, and says where the launch is, by whole
// paths.
func TestLaunchOfMistake(t *testing.T) {
	_, file, line, _ := runtime.Caller(0)
	mixed := kernel.Build("mixed", func(k *kernel.Builder) { k.I32(1).Add(k.I64(1)) })
	lost := kernel.Build("lost", func(k *kernel.Builder) { k.If(k.Bool(true), func() { k.Barrier() }); k.F64(1).Exp2() })
	opened(t, func(t *testing.T, x *Exec) {
		_, _, at, _ := runtime.Caller(0)
		for i, err := range []error{
			Try(func() { x.Launch(mixed, Over(1)) }),
			Try(func() { x.Launch(lost, Over(1)) }),
		} {
			want := []string{"Launch: kernel mixed, launched at %s:%d: operand 2 of Add is int64; it must be int32: convert it (at %s:%d)",
				"Launch: kernel lost, launched at %s:%d: Exp2 works on float32, not on float64; convert the value (at %s:%d)"}[i]
			wantError(t, err, fault.Invalid)
			if want = fmt.Sprintf(want, file, at+2+i, file, line+1+i); err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
	})
}

// TestLaunchShared: what a block takes of shared memory is refused where no GPU has it, and what a GPU has can be used.
func TestLaunchShared(t *testing.T) {
	build := func(n int) *kernel.Kernel {
		return kernel.Build("shared", func(k *kernel.Builder) {
			b, last := k.Buffer("b", dtype.Float32), k.Scalar("last", dtype.Int32)
			s := k.Shared("s", dtype.Float32, n)
			s.Store(last, k.F32(7))
			b.Store(k.I32(0), s.Load(last))
		})
	}
	static, large, huge, dynamic := build(48<<8), build(48<<8+1), build(1<<62), build(-1)
	opened(t, func(t *testing.T, x *Exec) {
		a, most := x.Zeros([]int{1}, dtype.Float32), x.m.stream.Device().Limits().SharedPerBlock
		launch := func(k *kernel.Kernel, bytes, last int) error {
			return Try(func() {
				x.Launch(k, LaunchShape{Grid: [3]int{1}, Block: [3]int{1}, Shared: bytes}, Out(a), Integer(int64(last)))
			})
		}
		for _, c := range []struct {
			want  string
			k     *kernel.Kernel
			bytes int
		}{
			{"its shared arrays take 49156 bytes, and a block may have 49152; make them smaller, or declare one with " +
				"-1 elements", large, 0},
			{"its shared arrays take 18446744073709551616 bytes", huge, 0},
			{fmt.Sprintf("a block of kernel shared takes %d bytes of shared memory, and the device has %d for one; take less",
				most+1, most),
				dynamic, most + 1},
			{fmt.Sprintf("a block of kernel shared takes %d bytes", 1<<40), dynamic, 1 << 40},
			{"the launch brings no memory for array s of kernel shared, which is declared with -1 elements; give its size in bytes as " +
				"LaunchShape.Shared", dynamic, 0},
			{"-4 bytes of shared memory; give at least 0", dynamic, -4},
			{"4 bytes of dynamic shared memory, for which kernel shared declares no array; declare one with -1 elements", static, 4},
		} {
			wantError(t, launch(c.k, c.bytes, 0), fault.Invalid, c.want, "launch_test.go")
		}
		for _, err := range []error{launch(static, 0, 48<<8-1), launch(dynamic, most, most/4-1), launch(dynamic, 4, 0)} {
			if err != nil {
				t.Error(err)
			}
		}
		want(t, x, a, 7)
	})
}

// TestLaunchRecordsNothing: a backward pass from what a launch made fails, and the error says what gives a kernel a derivative.
func TestLaunchRecordsNothing(t *testing.T) {
	fill := kernel.Build("fill", func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Store(k.I32(0), k.F32(1)) })
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Zeros([]int{1}, dtype.Float32)
		x.Launch(fill, LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, Out(a))
		wantError(t, x.Backward(x.Sum(a, nil, SumOpt{}), BackwardOpt{}), fault.Invalid,
			"does not require grad and was not made by an operation that does; was it made under NoGrad, or by "+
				"Grad without CreateGraph? A kernel's Launch records nothing either: wrap it in a Function")
	})
}
