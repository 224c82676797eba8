package ptx

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"tenon.dev/internal/kir"
)

// aheadKernel is a product of each matrix of a batch, in a loop whose next iteration's loads may run ahead. Words in capitals are replaced.
const aheadKernel = `kernel "ahead" threads 256 fixed
param0 "a" buffer bf16 readonly
param1 "b" buffer bf16 readonly
param2 "c" buffer f32
param3 "k" scalar i32
param4 "amap" array u64 16 align 64
param5 "bmap" array u64 16 align 64
param6 "batch" scalar i32
SHARED
tile0 "a" bf16 128 32
tile1 "b" bf16 32 128
tile2 "c" f32 128 128
TILES
VARS
{
  v0 = param 0
  v1 = param 1
  v2 = param 2
  v3 = param 3
  v4 = param 6
  v5 = const.i32 0
  v6 = const.i32 1
  v7 = const.i32 32
  v8 = const.i32 128
  for.i32 v9 = v5, v4, v6 stages 1 {
    OUTER
    tile_zero tile2
    for.i32 v12 = START, END, v7 stages STAGES {
      INNER
      tile_load.cols.x8 tile0 map 4[v12, v5, PLACE] (v13, v14) {
        v15 = lt.i32 v14, v3
        v16 = cvt.i64 v14
        yield v0, v16, v15
      }
      tile_load.cols.x8 tile1 map 5[v5, v12, PLACE] (v17, v18) {
        v19 = lt.i32 v18, v3
        v20 = cvt.i64 v18
        yield v1, v20, v19
      }
      tile_dot.exact tile2, tile0, tile1
    }
    AFTER
    tile_each.x4 tile2 (v21, v22, v23, v24, v25, v26) {
      v27 = cvt.i64 v22
      store.f32x4 v2[v27], STORED, v24, v25, v26
    }
  }
}
`

// TestLoadsAheadOfALoop checks which loops' loads run ahead of a loop around them. They do not if that could give other values, or if there
// is no shared memory for it.
//
//tenon:table kernels, each with whether its loads run ahead
func TestLoadsAheadOfALoop(t *testing.T) {
	const later = `for.i32 v70 = v5, v6, v6 {
		v71 = lt.i32 v9, v8
		if v71 {
			LEAVE
		}
	}`
	const wide = "v30 = mul.i32 v9, v8\nv31 = mulhi.i32 v9, v8\nv32 = add.i32 v30, v31"
	const array, stored, loaded = `shared0 "s" i32 4`, "store.i32 shared0[v5], v9\nbarrier", "v31 = load.i32 shared0[v5]"
	for name, c := range map[string]struct {
		ahead bool
		with  []string
	}{
		"plain":                      {true, nil},
		"a place computed before":    {true, []string{"OUTER", "v30 = mul.i32 v9, v8", "PLACE", "v30"}},
		"a product of 64 bits":       {true, []string{"OUTER", wide, "PLACE", "v32"}},
		"its half":                   {true, []string{"OUTER", wide, "PLACE", "v30"}},
		"a loop in the body":         {true, []string{"OUTER", strings.Replace(later, "LEAVE", "break", 1)}},
		"an end that changes":        {false, []string{"END", "v9"}},
		"a start that changes":       {false, []string{"START", "v9"}},
		"a variable":                 {false, []string{"VARS", "var0 i32", "OUTER", "set 0, v9\nv31 = get 0", "PLACE", "v31"}},
		"a variable read within":     {false, []string{"VARS", "var0 i32", "OUTER", "set 0, v9", "INNER", "v31 = get 0", "PLACE", "v31"}},
		"shared memory":              {false, []string{"SHARED", array, "OUTER", stored + "\n" + loaded, "PLACE", "v31"}},
		"shared memory, read within": {false, []string{"SHARED", array, "OUTER", stored, "INNER", loaded, "PLACE", "v31"}},
		"a body that may end early":  {false, []string{"OUTER", strings.Replace(later, "LEAVE", "return", 1)}},
		"a full shared memory":       {false, []string{"STAGES", "13"}},
		"more stages than fit":       {false, []string{"STAGES", "16"}},
		"another product":            {true, []string{"TILES", moreTiles, "OUTER", moreLoads, "AFTER", moreDot}},
		"a rounding read again": {true, []string{"OUTER", "v80 = cvt.f32 v9\nv81 = cvt.bf16 v80\nv82 = cvt.f32 v81\nv83 = cvt.i32 v82",
			"PLACE", "v83", "AFTER", "v84 = cvt.f32 v81", "STORED", "v84"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			plan, out := compileAhead(t, aheadKernel, c.with)
			if got := len(plan.around) > 0; got != c.ahead {
				t.Errorf("its loads run ahead: %v, want %v", got, c.ahead)
			}
			arrived, waits := strings.Index(out, "cp.async.wait_all"), strings.Index(out, "mbarrier.try_wait")
			if name == "another product" && !(arrived > 0 && arrived < waits) { // even if the loop after it runs no iteration
				t.Error("the other product's operands are not awaited before the pipelined loop")
			}
			if name == "a rounding read again" { // and not that of the next iteration, which its loads compute
				all := regexp.MustCompile(`cvt\.rn\.bf16x2\.f32 %r\d+, (%f\d+),`).FindAllStringSubmatch(out, -1)
				if kept := all[len(all)-1][1]; strings.Index(out, "cvt.rn.f32.s32 "+kept+",") > waits {
					t.Errorf("%s is rounded and stored, which is made for the next iteration", kept)
				}
			}
		})
	}
}

// moreTiles, moreLoads and moreDot are a product whose operands are not pipelined.
const (
	moreTiles = "tile3 \"x\" bf16 128 32\ntile4 \"y\" bf16 32 128"
	moreLoads = `tile_load.cols.x8 tile3 (v60, v61) {
		v62 = lt.i32 v61, v3
		v63 = cvt.i64 v61
		yield v0, v63, v62
	}
	tile_load.cols.x8 tile4 (v64, v65) {
		v66 = lt.i32 v65, v3
		v67 = cvt.i64 v65
		yield v1, v67, v66
	}`
	moreDot = "tile_dot.exact tile2, tile3, tile4"
)

// compileAhead returns the plan of aheadProgram's tiles and its PTX.
func compileAhead(t *testing.T, text string, with []string) (plan *tilePlan, ptx string) {
	t.Helper()
	ps, target := aheadProgram(t, text, with), Target{Major: 9, Arch: true}
	plan, err := planTiles(ps[0], target, 90)
	if err != nil {
		t.Fatal(err)
	}
	if plan.total > sharedLimit(90) {
		t.Errorf("the tiles take %d bytes, of %d", plan.total, sharedLimit(90))
	}
	out, err := Compile(ps, target)
	if err != nil {
		t.Fatal(err)
	}
	checkSources(t, string(out))
	again, err := Compile(ps, target)
	if err != nil || string(again) != string(out) {
		t.Errorf("a second text differs: %v", err)
	}
	return plan, string(out)
}

// aheadProgram parses text after the replacement of the words in with, which are followed by what takes their place, and of others by what
// is plain.
func aheadProgram(t *testing.T, text string, with []string) []*kir.Program {
	t.Helper()
	for i := 0; i < len(with); i += 2 {
		text = strings.ReplaceAll(text, with[i], with[i+1])
	}
	for _, d := range [][2]string{{"SHARED\n", ""}, {"TILES\n", ""}, {"VARS\n", ""}, {"OUTER", ""}, {"INNER", ""}, {"AFTER", ""},
		{"START", "v5"}, {"END", "v3"}, {"STAGES", "4"}, {"PLACE", "v9"}, {"STORED", "v23"}} {
		text = strings.ReplaceAll(text, d[0], d[1])
	}
	seen := map[string]string{} // values are numbered in order
	text = regexp.MustCompile(`\bv\d+\b`).ReplaceAllStringFunc(text, func(v string) string {
		if seen[v] == "" {
			seen[v] = "v" + itoa(len(seen))
		}
		return seen[v]
	})
	ps, err := kir.Parse([]byte(text))
	if err == nil {
		err = kir.Verify(ps[0])
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return ps
}

// TestWarpsMeetForRacecheck: with Meet no warp only says how far it is.
func TestWarpsMeetForRacecheck(t *testing.T) {
	text, err := os.ReadFile("testdata/drift.kir")
	if err != nil {
		t.Fatal(err)
	}
	ps, err := kir.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	count := func(meet bool, what string) int {
		out, err := Compile(ps, Target{Major: 9, Arch: true, Meet: meet})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(out), what)
	}
	arrivals := count(false, "bar.arrive")
	if arrivals == 0 || count(true, "bar.arrive") != 0 {
		t.Errorf("%d arrivals without Meet and %d with it", arrivals, count(true, "bar.arrive"))
	}
	if more := count(true, "bar.sync 0") - count(false, "bar.sync 0"); more != arrivals {
		t.Errorf("warps meet at %d more barriers, want %d", more, arrivals)
	}
}

// checkSources checks that no register is copied to itself, as happens to a value that was not computed again, and that all operands have
// registers.
func checkSources(t *testing.T, ptx string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`mov\.[a-z0-9]+ (%\w+), (%\w+);`).FindAllStringSubmatch(ptx, -1) {
		if m[1] == m[2] {
			t.Errorf("%s", m[0])
		}
	}
	if m := regexp.MustCompile(`\n.*(, [,;}]|\{[,}]| \[[+\]]).*`).FindString(ptx); m != "" {
		t.Errorf("an operand is missing: %s", m)
	}
}
