package kernel_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// parts are one of each thing that a Builder returns.
type parts struct {
	k      *kernel.Builder
	v, w   kernel.Value // Float32 and Int32
	c      kernel.Value // Bool
	x      kernel.Var
	b      kernel.Buffer
	s      kernel.Array
	m      kernel.TensorMap
	tile   kernel.Tile
	column kernel.Tile
}

func partsOf(k *kernel.Builder) parts {
	return parts{k, k.F32(1), k.I32(0), k.Bool(true), k.Var(k.F32(0)), k.Buffer("b", dtype.Float32), k.Shared("s", dtype.Float32, 4),
		k.TensorMap("m"), k.Tile("t", dtype.Float32, 16, 16), k.Tile("u", dtype.Float32, 16, 1)}
}

// foreign are uses of what belongs to kernel first, f, in kernel k, whose own parts are o.
var foreign = map[string]func(o, f parts){
	"store":         func(o, f parts) { o.b.Store(o.w, f.v) },
	"store vector":  func(o, f parts) { o.b.StoreVec(o.w, o.v, f.v) },
	"index":         func(o, f parts) { o.b.Load(f.w) },
	"shared index":  func(o, f parts) { o.s.Load(f.w) },
	"shared store":  func(o, f parts) { o.s.Store(f.w, f.v) },
	"shared loads":  func(o, f parts) { o.s.LoadVec(f.w, 2) },
	"shared stores": func(o, f parts) { o.s.StoreVec(o.w, o.v, f.v) },
	"shared atomic": func(o, f parts) { o.s.Atomic(kernel.AtomicAdd, f.w, f.v) },
	"set":           func(o, f parts) { o.x.Set(f.v) },
	"var":           func(o, f parts) { o.k.Var(f.v) },
	"other type":    func(o, f parts) { o.b.Store(o.w, f.w) },
	"sum":           func(o, f parts) { o.v.Add(f.v) },
	"sum of types":  func(o, f parts) { o.v.Add(f.w) },
	"left":          func(o, f parts) { f.v.Add(o.v) },
	"fma":           func(o, f parts) { o.v.FMA(o.v, f.v) },
	"select":        func(o, f parts) { o.c.Select(o.v, f.v) },
	"condition":     func(o, f parts) { o.k.If(f.c, func() {}) },
	"loop":          func(o, f parts) { o.k.For(f.w, f.w, f.w, func(kernel.Value) {}) },
	"ForEach":       func(o, f parts) { o.k.ForEach(f.w, func(kernel.Value) {}) },
	"assert":        func(o, f parts) { o.k.Assert(f.c, "") },
	"block sum":     func(o, f parts) { o.k.BlockSum(f.v) },
	"address":       func(o, f parts) { o.k.At(f.b.Addr(), dtype.Float32).Store(o.w, o.v) },
	"get":           func(o, f parts) { o.x.Set(f.x.Get()) },
	"guess":         func(o, f parts) { o.k.Guess(func() []kernel.Value { return []kernel.Value{f.v} }) },
	"rare":          func(o, f parts) { o.k.Guess(func() []kernel.Value { o.k.Rarely(f.c, func() {}); return nil }) },
	"buffer":        func(o, f parts) { f.b.Store(o.w, o.v) },
	"array":         func(o, f parts) { f.s.Store(o.w, o.v) },
	"factor":        func(o, f parts) { o.tile.Dot(o.tile, f.tile, false) },
	"left factor":   func(o, f parts) { o.tile.Dot(f.tile, o.tile, false) },
	"transposed":    func(o, f parts) { o.tile.DotTransposed(o.tile, f.tile) },
	"rows":          func(o, f parts) { o.column.AddRows(f.tile) },
	"round":         func(o, f parts) { o.tile.Round(f.tile) },
	"mapped tile": func(o, f parts) {
		o.tile.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value { return v }, f.column)
	},
	"map's result": func(o, f parts) {
		o.tile.Map(func(row, col, v kernel.Value, _ []kernel.Value) kernel.Value { return f.v })
	},
	"group": func(o, f parts) { o.m.Group(f.w) },
	"tensor map": func(o, f parts) {
		o.tile.LoadMapped(f.m, o.w, o.w, o.w, kernel.AlongCols, 1, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			return o.b, o.w, o.c
		})
	},
	"pixels": func(o, f parts) {
		patches := []kernel.Patch{{Channel: o.w, Col: f.w, Row: o.w}}
		o.tile.LoadPixels(o.m, kernel.Pixels{Col: o.w, Row: o.w, Image: o.w, Patches: patches}, kernel.AlongCols, 1,
			func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return o.b, o.w, o.c })
	},
	"pixels' map": func(o, f parts) {
		o.tile.LoadPixels(f.m, kernel.Pixels{Col: o.w, Row: o.w, Image: o.w}, kernel.AlongCols, 1,
			func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return o.b, o.w, o.c })
	},
	"loaded buffer": func(o, f parts) {
		o.tile.Load(kernel.AlongCols, 1, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			return f.b, row.Convert(dtype.Int64), o.c
		})
	},
}

// TestForeign: what belongs to one kernel is refused in another, by the name of the kernel that it belongs to, whether that one is finished
// or still being built.
func TestForeign(t *testing.T) {
	_, file, _, _ := runtime.Caller(0)
	check := func(name string, err error) {
		t.Helper()
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Op != "kernel second" || !strings.Contains(e.Msg, "belongs to kernel first") {
			t.Errorf("%s: %v", name, err)
		} else if e.File != file || e.Line == 0 {
			t.Errorf("%s: at %s:%d, want a line of %s", name, filepath.Base(e.File), e.Line, filepath.Base(file))
		}
	}
	for name, use := range foreign {
		var f parts
		kernel.Build("first", func(k *kernel.Builder) { f = partsOf(k) })
		_, err := kernel.Build("second", func(k *kernel.Builder) { use(partsOf(k), f) }).Program()
		check(name, err)
		if name == "buffer" || name == "array" || name == "left" || name == "get" {
			continue // while first is being built, these are its own instructions, with operands of second
		}
		kernel.Build("first", func(k *kernel.Builder) {
			f := partsOf(k)
			_, err := kernel.Build("second", func(k *kernel.Builder) { use(partsOf(k), f) }).Program()
			check(name+", nested", err)
		})
	}
}

// TestAfterBuild: a Builder and what it returned are refused after Build, with a panic, since there is no kernel to fail.
func TestAfterBuild(t *testing.T) {
	var f parts
	first := kernel.Build("first", func(k *kernel.Builder) { f = partsOf(k) })
	before, err := first.Program()
	if err != nil {
		t.Fatal(err)
	}
	text := string(kir.Print(before))
	for name, use := range map[string]func(){
		"barrier": f.k.Barrier, "parameter": func() { f.k.Scalar("late", dtype.Int32) },
		"shared": func() { f.k.Shared("t", dtype.Int32, 1) },
		"local":  func() { f.k.Local("t", dtype.Int32, 1) }, "table": func() { f.k.TableF32("t", []float32{1}) },
		"threads": func() { f.k.FixedThreads(32) }, "tile": func() { f.k.Tile("late", dtype.Float32, 16, 16) },
		"var": func() { f.k.VarOf(dtype.Int32) }, "fail": func() { f.k.Fail("no") }, "if": func() { f.k.If(f.c, func() {}) },
		"neg": func() { f.v.Neg() }, "tile zero": f.tile.Zero, "params": func() { f.k.Params("late", dtype.Int32, 4) },
		"map": func() { f.k.TensorMap("late") }, "offset": func() { f.b.Offset(f.w) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				e, ok := recover().(*fault.Error)
				if !ok || e.Kind != fault.Invalid || !strings.Contains(e.Msg, "belongs to kernel first, whose function has ended") {
					t.Errorf("got %v", e)
				}
			}()
			use()
		})
	}
	if after, err := first.Program(); err != nil || string(kir.Print(after)) != text {
		t.Errorf("the kernel has changed, or failed: %v", err)
	}
}
