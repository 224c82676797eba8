package kernel_test

import (
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/kernel"
)

// mistaken are kernels with a mistake each, in the line in which the function begins, and what the error says first.
var mistaken = []struct {
	want  string
	build func(k *kernel.Builder)
}{
	{"operand 2 of Add is int64; it must be int32: convert it", func(k *kernel.Builder) { k.I32(1).Add(k.I64(1)) }},
	{"a value is used outside the If, loop or tile operation in which it was made; carry it out in a variable, k.Var",
		func(k *kernel.Builder) { var v kernel.Value; k.If(first(k), func() { v = k.I32(1) }); v.Neg() }},
	{"Barrier stands in divergent flow, where not all threads of the block take part; move it out of the If, ForEach or loop",
		func(k *kernel.Builder) { k.If(first(k), func() { k.Barrier() }) }},
	{"ShuffleXor stands in divergent flow", func(k *kernel.Builder) { k.If(first(k), func() { k.F32(1).ShuffleXor(1) }) }},
	{"Tile.Zero stands in divergent flow",
		func(k *kernel.Builder) { k.If(first(k), k.Tile("t", dtype.Float32, 16, 16).Zero) }},
	{"a 64x64 tile is not the product of 64x64 and 32x32; want MxN of MxK and KxN",
		func(k *kernel.Builder) { square(k, "s", 64).Dot(square(k, "l", 64), square(k, "r", 32), false) }},
	{"a tile of float32 is loaded from a buffer of bfloat16; declare both with one type",
		func(k *kernel.Builder) { square(k, "s", 16).Load(0, 1, fromBFloat16(k)) }},
	{"parameter \"in\" is declared twice; give each a name of its own",
		func(k *kernel.Builder) { k.Scalar("in", dtype.Int32); k.Buffer("in", dtype.Int32) }},
	{"a value, variable or memory of the kernel is a zero value; use what the kernel's Builder returned",
		func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Store(k.I32(0), kernel.Value{}) }},
	{"tile t is summed in 0 parts; give at least 1", func(k *kernel.Builder) { k.TileInParts("t", dtype.Float32, 16, 16, 0) }},
	{"Barrier stands after a return that only some threads take; put what the others do into an If instead",
		func(k *kernel.Builder) { k.If(first(k), k.Return); k.Barrier() }},
	{"BlockSum stands in divergent flow, where not all threads of the block take part; move it out of the If, ForEach or loop",
		func(k *kernel.Builder) { k.If(first(k), func() { k.BlockSum(k.F32(1)) }) }},
	{"BlockMin stands in divergent flow", func(k *kernel.Builder) { k.ForEach(k.I64(9), func(i kernel.Value) { k.BlockMin(i) }) }},
	{"BlockMax stands after a return that only some threads take; put what the others do into an If instead",
		func(k *kernel.Builder) { k.If(first(k), k.Return); k.BlockMax(k.F32(1)) }},
	{"BlockMax works on 32- and 64-bit integers, float32 and float64, not on float16; convert the value",
		func(k *kernel.Builder) { k.BlockMax(k.Const(dtype.Float16, 1)) }},
	{"blocks have 64 threads after a BlockSum, BlockMax or BlockMin for 32; call FixedThreads once, before them",
		func(k *kernel.Builder) { k.FixedThreads(32); k.BlockSum(k.I32(1)); k.FixedThreads(64) }},
	{"Load comes before Wait, while earlier kernels may still write global memory; move it behind",
		func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Load(k.I32(0)); k.Wait() }},
	{"Wait may be called once, and not in the function of an If or a loop", func(k *kernel.Builder) { k.If(first(k), k.Wait) }},
	{"a value of type int32 is stored to an array of float32; convert it",
		func(k *kernel.Builder) { k.Shared("s", dtype.Float32, 4).StoreVec(k.I32(0), k.F32(1), k.I32(1)) }},
	{"a width of 3 elements does not exist; want 1, 2, 4, 8 or 16",
		func(k *kernel.Builder) { k.Shared("s", dtype.Float32, 4).LoadVec(k.I32(0), 3) }},
	{"one access of 32 bytes is too wide; the limit is 16",
		func(k *kernel.Builder) { k.Shared("s", dtype.Float32, 8).LoadVec(k.I32(0), 8) }},
	{"only shared arrays have accesses to several elements; load or store one at a time",
		func(k *kernel.Builder) { k.Local("l", dtype.Float32, 4).LoadVec(k.I32(0), 2) }},
	{"an offset is int32; it must be int64: convert it", func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Prefetch(k.I32(0)) }},
	{"Exp2 works on float32, not on float64; convert the value", func(k *kernel.Builder) { k.F64(1).Exp2() }},
	{"Neg works on integers, float32 and float64, not on float16; convert the value",
		func(k *kernel.Builder) { k.Const(dtype.Float16, 1).Neg() }},
	{"And works on integers and bool, not on float32; convert the value", func(k *kernel.Builder) { k.F32(1).And(k.F32(2)) }},
	{"MulWide works on int32 and uint32, not on int64; convert the value", func(k *kernel.Builder) { k.I64(1).MulWide(k.I64(1)) }},
	{"Clz works on 32- and 64-bit integers, not on int8; convert the value", func(k *kernel.Builder) { k.Int(dtype.Int8, 1).Clz() }},
	{"operand 1 of Any is int32; it must be bool: convert it", func(k *kernel.Builder) { k.I32(1).Any() }},
	{"the amount of Shl is int64; it must be int32 or uint32: convert it", func(k *kernel.Builder) { k.I32(1).Shl(k.I64(1)) }},
	{"the index is float32; it must be int32 or int64: convert it",
		func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Load(k.F32(1)) }},
	{"an offset is int32; it must be int64: convert it", func(k *kernel.Builder) { k.Buffer("b", dtype.Float32).Offset(k.I32(1)) }},
	{"a variable is read where it may not have been set; begin with a value, k.Var, or set it on every way there",
		func(k *kernel.Builder) { k.VarOf(dtype.Int32).Get() }},
	{"the count of ForEach is int32; it must be int64: convert it", func(k *kernel.Builder) { k.ForEach(k.I32(1), func(kernel.Value) {}) }},
	{"the index of a ForEach is used outside its function, where it may be too large; move the use inside",
		func(k *kernel.Builder) { index(k).Neg() }},
	{"Break stands outside a loop; call it in the function of a For or Loop", func(k *kernel.Builder) { k.Break() }},
	{"a function that records a part of the kernel is nil; give it one", func(k *kernel.Builder) { k.Guess(nil) }},
	{"a function that records a part of the kernel is nil; give it one",
		func(k *kernel.Builder) { k.Guess(func() []kernel.Value { k.Rarely(first(k), nil); return nil }) }},
	{"a condition has type int32; compare it to get a bool",
		func(k *kernel.Builder) { k.Guess(func() []kernel.Value { k.Rarely(k.I32(1), func() {}); return nil }) }},
	{"the function of Guess returns 1 values and then 0; it must record the same each time", func(k *kernel.Builder) { k.Guess(once(k)) }},
	{"an operation follows a Break, and is never reached; remove it",
		func(k *kernel.Builder) { k.Loop(func() { k.Break(); k.Barrier() }) }},
}

// once is a function for Guess that returns a value only the first time.
func once(k *kernel.Builder) func() []kernel.Value {
	vs := []kernel.Value{k.I32(1)}
	return func() []kernel.Value {
		k.Rarely(first(k), func() {})
		defer func() { vs = nil }()
		return vs
	}
}

// index returns the index of a ForEach that has ended.
func index(k *kernel.Builder) (v kernel.Value) {
	k.ForEach(k.I64(1), func(i kernel.Value) { v = i })
	return v
}

func square(k *kernel.Builder, name string, n int) kernel.Tile {
	return k.Tile(name, dtype.Float32, n, n)
}

// fromBFloat16 returns what loads a tile from a buffer of BFloat16.
func fromBFloat16(k *kernel.Builder) func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
	b := k.Buffer("b", dtype.BFloat16)
	return func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		return b, k.I64(0), k.Bool(true)
	}
}

func first(k *kernel.Builder) kernel.Value { return k.ThreadIdx(kernel.X).Eq(k.I32(0)) }

// misdeclared are mistakes that belong to no line of the kernel: the error names that of Build.
var misdeclared = []struct {
	want  string
	build func(k *kernel.Builder)
}{
	{"shared array \"s\" has no elements", func(k *kernel.Builder) { k.Shared("s", dtype.Int32, 0) }},
	{"its shared arrays take 4194304 bytes, and a block may have 49152; make them smaller, or declare one with -1 elements",
		func(k *kernel.Builder) { k.Shared("s", dtype.Float32, 1<<20) }},
	{"blocks of 96 threads cannot share tiles; give a power of two from 32 to 1024",
		func(k *kernel.Builder) { k.FixedThreads(96); square(k, "s", 16).Zero() }},
	{"blocks of 0 threads do not exist; want 1 to 1024", func(k *kernel.Builder) { k.Threads(0) }},
}

// TestMistakes: the error of a mistake names the kernel, the line in which it was recorded and a remedy, and shows no text of the IR.
func TestMistakes(t *testing.T) {
	for _, c := range mistaken {
		f := runtime.FuncForPC(reflect.ValueOf(c.build).Pointer())
		file, line := f.FileLine(f.Entry())
		_, err := kernel.Build("k", c.build).Program()
		wantMistake(t, err, c.want, file, line)
	}
	for _, c := range misdeclared {
		_, file, line, _ := runtime.Caller(0)
		_, err := kernel.Build("k", c.build).Program()
		wantMistake(t, err, c.want, file, line+1)
	}
}

func wantMistake(t *testing.T, err error, want, file string, line int) {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Op != "kernel k" || !strings.HasPrefix(e.Msg, want) || strings.Contains(e.Msg, " = ") {
		t.Errorf("got  %v\nwant kernel k: %s", err, want)
	} else if e.File != file || e.Line != line {
		t.Errorf("%s: at %s:%d, want %s:%d", want, e.File, e.Line, file, line)
	}
}
