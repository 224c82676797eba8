package ptx

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

// tileProgram returns a program over tiles a (16x32), b (32x16) and c (16x16) with the given instructions.
func tileProgram(t *testing.T, threads int, types [3]string, body string) *kir.Program {
	t.Helper()
	text := fmt.Sprintf(`kernel "tiles" threads %d fixed
param0 "x" buffer %s
tile0 "a" %s 16 32
tile1 "b" %s 32 16
tile2 "c" %s 16 16
tile3 "row" f32 1 16
{
  v0 = param 0
  v1 = const.i64 0
  v2 = const.b 1
  %s
}
`, threads, types[0], types[0], types[1], types[2], strings.ReplaceAll(body, "YIELD", "yield v0, v1, v2"))
	ps, err := kir.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return ps[0]
}

var halves = [3]string{"f16", "f16", "f32"}

func TestUnsupportedTiles(t *testing.T) {
	for _, c := range []struct{ name, want, body string }{
		{"loaded sum", "tile c is both a sum of products and loaded", "tile_load.cols.x1 tile2 (v3, v4) {\nYIELD\n}\ntile_dot.exact " +
			"tile2, tile0, tile1"},
		{"row of nothing", "a map reads tile row as a row, but nothing loads it", "tile_dot.exact tile2, tile0, tile1\n" +
			"tile_map tile2, tile3 (v3, v4, v5, v6) { yield v5 }"},
		{"multiplied row", "tile row is an operand of a product and a row that a map reads", "tile_load.cols.x1 tile3 (v3, v4) " +
			"{\nYIELD\n}\ntile_dot.exact tile2, tile3, tile1\ntile_map tile2, tile3 (v5, v6, v7, v8) { yield v7 }"},
		{"turned row", "loaded along its rows; load it AlongCols", "tile_load.rows.x1 tile3 (v3, v4) {\nYIELD\n}\ntile_dot.exact tile2, " +
			"tile0, tile1\ntile_map tile2, tile3 (v5, v6, v7, v8) { yield v7 }"},
		{"own operand", "tile c is added to itself", "tile_dot.exact tile2, tile2, tile1"},
	} {
		const threads = 64
		types := halves
		if c.name == "loaded sum" {
			types[0] = "f32"
		}
		_, err := Compile([]*kir.Program{tileProgram(t, threads, types, c.body)}, Target{Major: 8})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		if _, err := DynamicShared(tileProgram(t, threads, types, c.body), Target{Major: 8}); err == nil {
			t.Errorf("%s: DynamicShared accepts it", c.name)
		}
	}
	if _, err := DynamicShared(tileProgram(t, 64, halves, "tile_zero tile2"), Target{Major: 6}); fault.KindOf(err) != fault.Unsupported {
		t.Errorf("capability 6.0: %v", err)
	}
}

// TestUnits checks that products use the units that suit types, layouts and devices.
func TestUnits(t *testing.T) {
	load := func(a, b string) string {
		return "tile_load." + a + ".x1 tile0 (v3, v4) {\nYIELD\n}\ntile_load." + b + ".x1 tile1 (v5, v6) {\nYIELD\n}\n"
	}
	for _, c := range []struct {
		types   [3]string
		a, b    string
		dot     string
		target  Target
		want    string
		without string
	}{
		{halves, "cols", "cols", "exact", Target{Major: 8}, "mma.sync.aligned.m16n8k16.row.col.f32.f16", ""},
		{[3]string{"bf16", "bf16", "f32"}, "rows", "rows", "exact", Target{Major: 9}, "mma.sync.aligned.m16n8k16.row.col.f32.bf16",
			"wgmma"},
		{halves, "cols", "cols", "exact", Target{Major: 7, Minor: 5}, "fma.rn.f32", "mma.sync"},
		{[3]string{"f32", "f32", "f32"}, "cols", "cols", "exact", Target{Major: 8}, "fma.rn.f32", "mma.sync"},
		{[3]string{"f32", "f32", "f32"}, "cols", "cols", "tf32", Target{Major: 8}, "m16n8k8.row.col.f32.tf32", "fma.rn"},
		{[3]string{"f64", "f64", "f64"}, "cols", "rows", "exact", Target{Major: 9}, "fma.rn.f64", ""},
		{[3]string{"i8", "i8", "i32"}, "cols", "rows", "exact", Target{Major: 8}, "m16n8k32.row.col.s32.s8.s8.s32",
			"mad.lo.s32 %r1, %r1, %r1"},
		{[3]string{"i8", "i8", "i32"}, "cols", "cols", "exact", Target{Major: 8}, "mad.lo.s32", "mma.sync"},
	} {
		p := tileProgram(t, 32, c.types, "tile_zero tile2\n"+load(c.a, c.b)+"tile_dot."+c.dot+" tile2, tile0, tile1\n")
		text, err := Compile([]*kir.Program{p}, c.target)
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		if !strings.Contains(string(text), c.want) {
			t.Errorf("%v: no %s", c, c.want)
		}
		if c.without != "" && strings.Contains(string(text), c.without) {
			t.Errorf("%v: there is %s", c, c.without)
		}
	}
}

// TestPipelines checks which loops run their loads ahead.
func TestPipelines(t *testing.T) {
	const loads = "tile_load.cols.x8 tile0 ($, $) {\nYIELD\n}\ntile_load.cols.x8 tile1 ($, $) {\nYIELD\n}\n"
	const dot = "tile_dot.exact tile2, tile0, tile1\n"
	for _, c := range []struct {
		name, body string
		stages     int
		ahead      bool
	}{
		{"two stages", loads + dot, 2, true},
		{"one stage", loads + dot, 1, false},
		{"store in the body", loads + dot + "store.f16 v0[v1], v3\n", 3, false},
		{"loaded twice", loads + dot + loads, 3, false},
		{"zeroed operand", loads + "tile_zero tile0\n" + dot, 3, false},
		{"loaded in a branch", "if v2 {\n" + loads + "}\n" + dot, 3, false},
		{"left early", loads + dot + "break\n", 3, false},
		{"left by a loop within", loads + dot + "loop {\nbreak\n}\n", 3, true},
		{"no loads", "", 3, false},
	} {
		body := "$ = const.f16 0x0\n$ = const.i32 0\n$ = const.i32 64\n$ = const.i32 8\ntile_zero tile2\n" +
			fmt.Sprintf("for.i32 $ = v4, v5, v6 stages %d {\n%s}\n", c.stages, c.body)
		for n := 3; strings.Contains(body, "$"); n++ {
			body = strings.Replace(body, "$", fmt.Sprintf("v%d", n), 1)
		}
		text, err := Compile([]*kir.Program{tileProgram(t, 64, halves, body)}, Target{Major: 8})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := strings.Contains(string(text), "cp.async.commit_group"); got != c.ahead {
			t.Errorf("%s: loads run ahead: %v, want %v", c.name, got, c.ahead)
		}
	}
}

// gathered is a program with a product by wgmma. For every thread its right operand has 4 groups of lines and 2 parts of lines. A column's
// offset is in shared memory; a line's is a remainder.
const gathered = `kernel "gathered" threads 128 fixed
param0 "a" buffer bf16 readonly
param1 "b" buffer bf16 readonly
param2 "k" scalar i32
shared0 "places" i32 128
tile0 "a" bf16 64 64
tile1 "b" bf16 64 128
tile2 "c" f32 64 128
{
  v0 = param 0
  v1 = param 1
  v2 = param 2
  tile_zero tile2
  v3 = const.i32 0
  v4 = const.i32 64
  for.i32 v5 = v3, v2, v4 stages %d {
    tile_load.cols.x8 tile0 (v6, v7) {
      v8 = mulwide.i32 v6, v2
      v9 = add.i32 v7, v5
      v10 = cvt.i64 v9
      v11 = add.i64 v8, v10
      v12 = lt.i32 v9, v2
      yield v0, v11, v12
    }
    tile_load.cols.x8 tile1 (v13, v14) {
      v15 = load.i32 shared0[v14]
      v16 = add.i32 v13, v5
      v17 = rem.i32 v16, v2
      v18 = cvt.i64 v15
      v19 = cvt.i64 v17
      v20 = add.i64 v18, v19
      v21 = lt.i32 v16, v2
      yield v1, v20, v21
    }
    tile_dot.exact tile2, tile0, tile1
  }
}
`

// TestReuse checks that a thread computes what belongs to a line or a column once for all its groups, and what does not change once for all
// iterations, and that loads are then started before the products of an iteration.
func TestReuse(t *testing.T) {
	for _, c := range []struct{ stages, loads, remainders, multiplications, comparisons, before int }{
		// Loads are emitted 3 times, for two iterations before the loop and in it. Each has 1 inner index of a and 4 of b, and a bound of
		// the loop.
		{4, 2, 3 * 4, 4 + 3*5, 3 * (5 + 1), 12},
		// Products that do not run in the background have no registers to spare: the 4 groups of a and 8 of b share nothing.
		{2, 2 * 8, 2 * 8, 2 * 4, 2 * (4 + 8 + 1), 0},
	} {
		ps, err := kir.Parse(fmt.Appendf(nil, gathered, c.stages))
		if err != nil {
			t.Fatal(err)
		}
		text, err := Compile(ps, Target{Major: 9, Arch: true})
		if err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]int{"ld.shared.b32": c.loads, "rem.s32": c.remainders, "mul.wide.s32": c.multiplications,
			"setp.lt.s32": c.comparisons} {
			if got := strings.Count(string(text), what); got != want {
				t.Errorf("%d stages: %s %d times, want %d", c.stages, what, got, want)
			}
		}
		before, _, _ := strings.Cut(string(text), "wgmma.fence.sync.aligned")
		turn := before[strings.LastIndex(before, "bar.sync"):]
		if got := strings.Count(turn, "cp.async.cg"); got != c.before {
			t.Errorf("%d stages: %d loads before products, want %d", c.stages, got, c.before)
		}
	}
}

// TestMapped checks which loads are copies by tensor maps: those of a loop in which all loads have one and wgmma reads the tiles.
func TestMapped(t *testing.T) {
	for _, c := range []struct {
		name   string
		target Target
		mapped bool
		change func(loop *kir.Instr)
	}{
		{"both", Target{Major: 9, Arch: true}, true, func(*kir.Instr) {}},
		{"portable", Target{Major: 9}, false, func(*kir.Instr) {}},
		{"later", Target{Major: 10, Arch: true}, false, func(*kir.Instr) {}},
		{"one", Target{Major: 9, Arch: true}, false, func(loop *kir.Instr) { loop.Blocks[0].Instrs[1].Args = nil }},
		{"no pipeline", Target{Major: 9, Arch: true}, false, func(loop *kir.Instr) { loop.Imm = 1 }},
	} {
		for _, g := range goldens(t) {
			if g.name != "testdata/mapped" {
				continue
			}
			body := g.progs[0].Body.Instrs
			for _, in := range body[len(body)-1].Blocks[0].Instrs {
				if in.Op == kir.OpFor {
					c.change(in)
				}
			}
			text, err := Compile(g.progs, c.target)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(text), "cp.async.bulk.tensor"); got != c.mapped {
				t.Errorf("%s: loads by tensor maps: %v, want %v", c.name, got, c.mapped)
			}
		}
	}
}

// TestPairsInRegions: a region that is emitted for several groups has its own products for each.
func TestPairsInRegions(t *testing.T) {
	text := `kernel "pairs" threads 32 fixed
param0 "a" buffer f32
tile0 "a" f32 16 16
{
  v0 = param 0
  v1 = const.i32 77
  tile_load.cols.x4 tile0 (v2, v3) {
    v4 = mul.i32 v2, v1
    v5 = mulhi.i32 v2, v1
    v6 = add.i32 v4, v5
    v7 = cvt.i64 v6
    v8 = const.b 1
    yield v0, v7, v8
  }
}
`
	ps, err := kir.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Compile(ps, Target{Major: 8})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(out), "mul.wide.s32"); got != 2 {
		t.Errorf("two groups have %d products, not 2", got)
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, name := range []string{"saxpy", "product"} {
		var progs []*kir.Program
		for _, g := range goldens(b) {
			if g.name == "testdata/"+name {
				progs = g.progs
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := Compile(progs, Target{Major: 9}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
