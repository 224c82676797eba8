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
	block := func(x, y int) LaunchShape { return LaunchShape{Block: [3]int{x, y}} }
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
			{"negative", "give counts of at least 0", plain, block(-1, 0), Out(a)},
			{"huge", "of at most 1024 threads", plain, block(1<<40, 0), Out(a)},
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
			{"too large", "but the number 1e+20 was given; give a whole number", whole, block(1, 0), Number(1e20)},
			{"atomic", "kernel masked writes its parameter b", masked, block(64, 0), In(a)},
		} {
			wantError(t, Try(func() { x.Launch(c.k, c.shape, c.arg) }), fault.Invalid, c.want, "launch_test.go")
		}
		for _, n := range []Arg{Number(8), Integer(1<<63 - 1), Integer(-1 << 63)} {
			x.Launch(whole, block(1, 0), n)
		}
		x.Launch(reader, block(1, 0), In(a))
		x.Launch(moved, block(1, 0), Out(a))
		x.Launch(fixed, LaunchShape{}, Out(a))
		want(t, x, x.Sum(a, nil, SumOpt{}), 64)
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
			Try(func() { x.Launch(mixed, LaunchShape{}) }),
			Try(func() { x.Launch(lost, LaunchShape{}) }),
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
			return Try(func() { x.Launch(k, LaunchShape{Shared: bytes}, Out(a), Integer(int64(last))) })
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
		x.Launch(fill, LaunchShape{}, Out(a))
		wantError(t, x.Backward(x.Sum(a, nil, SumOpt{}), BackwardOpt{}), fault.Invalid,
			"does not require grad and was not made by an operation that does; was it made under NoGrad? A kernel's Launch records "+
				"nothing either: wrap it in a Function")
	})
}
