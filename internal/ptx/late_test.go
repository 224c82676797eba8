package ptx

import (
	"regexp"
	"strings"
	"testing"
)

// lateKernel is aheadKernel with a tile that leaves the registers as halves.
var lateKernel = aheadKernel[:strings.Index(aheadKernel, "    tile_each")] + `    tile_each.x4 tile2 (v21, v22, v23, v24, v25, v26) {
      v27 = cvt.i64 v22
      v90 = cvt.bf16 v23
      v91 = cvt.bf16 v24
      v92 = cvt.bf16 v25
      v93 = cvt.bf16 v26
      REGION
      v94 = cvt.i64 AT
      store.bf16x4 v2[v94], FIRST, v91, v92, v93
    }
    LAST
  }
}
`

// TestLateTiles checks which tiles are stored while the products of the next one run: those for which it makes no difference, and which fit
// beside three stages.
//
//tenon:table kernels, each with whether its tile is late
func TestLateTiles(t *testing.T) {
	const array = `shared0 "s" i32 4`
	for name, c := range map[string]struct {
		late bool
		with []string
		// stages, if not 0, is how many stages there are, and alone says that they do not run ahead of the loop around.
		stages int
		alone  bool
	}{
		"plain":                    {late: true, with: nil},
		"a value of the iteration": {late: true, with: []string{"OUTER", "v30 = mul.i32 v9, v8", "AT", "v30"}},
		"the counter":              {late: true, with: []string{"AT", "v9"}},
		"a condition of the iteration": {late: true, with: []string{"OUTER", "v30 = lt.i32 v9, v8",
			"REGION", "v31 = select.i32 v30, v21, v22", "AT", "v31"}},
		"a load in the region":        {late: false, with: []string{"REGION", "v30 = load.bf16 v0[v27]", "FIRST", "v30"}},
		"a load before the loop":      {late: false, with: []string{"OUTER", "v30 = load.bf16 v2[v5]"}},
		"a load after the loop":       {late: true, with: []string{"AFTER", "v30 = load.bf16 v2[v5]", "FIRST", "v30"}},
		"a store before the loop":     {late: false, with: []string{"OUTER", "v30 = cvt.bf16 v9\nstore.bf16 v2[v5], v30"}},
		"a barrier before the loop":   {late: false, with: []string{"OUTER", "barrier"}},
		"a barrier after the loop":    {late: true, with: []string{"AFTER", "barrier"}},
		"shared memory in the region": {late: false, with: []string{"SHARED", array, "REGION", "v30 = load.i32 shared0[v5]", "AT", "v30"}},
		"a store to shared memory": {late: false, with: []string{"SHARED", array, "REGION",
			"v30 = const.i32 1\nstore.i32 shared0[v22], v30"}},
		"a variable": {late: false, with: []string{"VARS", "var0 i32", "OUTER", "set 0, v9",
			"REGION", "v30 = get 0", "AT", "v30"}},
		"a variable from before": {late: true, with: []string{"VARS", "var0 i32", "for.i32 v9", "set 0, v8\nfor.i32 v9",
			"REGION", "v30 = get 0", "AT", "v30"}},
		"something after it":              {late: false, with: []string{"LAST", "v30 = add.i32 v9, v8"}},
		"two passages":                    {late: false, with: []string{"LAST", "tile_each.x1 tile2 (v40, v41, v42) {\n}"}},
		"sums that are more than rounded": {late: false, with: []string{"REGION", "v30 = neg.f32 v23\nv31 = cvt.bf16 v30", "FIRST", "v31"}},
		"a rounding read again": {late: true, with: []string{"OUTER", "v80 = cvt.f32 v9\nv81 = cvt.bf16 v80",
			"REGION", "v82 = cvt.f32 v81\nv83 = cvt.i32 v82", "AT", "v83"}},
		"as many stages as leave room":         {late: true, with: []string{"STAGES", "11"}},
		"stages that leave no room for halves": {late: true, with: []string{"STAGES", "13"}},
		"a constant after the loop": {late: true, with: []string{"AFTER", "v30 = const.i32 5", "REGION", "v31 = add.i32 v22, v30", "AT",
			"v31"}},
		"two products in the loop": {late: false, with: []string{"TILES", "tile3 \"d\" f32 128 128", "tile_dot.exact tile2, tile0, tile1",
			"tile_dot.exact tile2, tile0, tile1\ntile_dot.exact tile3, tile0, tile1"}},
		"idle warps": {late: true, with: []string{"tile0 \"a\" bf16 128 32", "tile0 \"a\" bf16 64 32", "tile2 \"c\" f32 128 128",
			"tile2 \"c\" f32 64 128"}},
		"operands after the loop": {stages: 12, with: []string{"STAGES", "12", "TILES", moreTiles, "AFTER", moreLoads + "\n" + moreDot}},
		"operands and no passage": {stages: 13, alone: true, with: []string{"STAGES", "13", "TILES", moreTiles, "AFTER",
			moreLoads + "\n" + moreDot}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			with := append(c.with, "buffer f32", "buffer bf16", "REGION", "", "LAST", "", "AT", "v22", "FIRST", "v90")
			plan, text := compileAhead(t, lateKernel, with)
			late := false
			for _, q := range plan.around {
				late = late || q.late != nil
				if q.late == nil {
					continue
				}
				if rows := plan.tiles[2].Rows; q.stages < leastStages || q.late.steps != rows*128/(4*groupsPerStep*256) {
					t.Errorf("%d stages and %d steps for %d rows", q.stages, q.late.steps, rows)
				}
			}
			for _, q := range plan.loops {
				if c.stages > 0 && (q.stages != c.stages || (q.around == nil) != c.alone) {
					t.Errorf("%d stages, and they run ahead: %v; want %d, %v", q.stages, q.around != nil, c.stages, !c.alone)
				}
			}
			if late != c.late {
				t.Errorf("the tile is late: %v, want %v", late, c.late)
			}
			stores := regexp.MustCompile(`st\.global\.v\d\.b\d+`).FindAllStringIndex(text, -1)
			if n := len(stores); late && n != 3*groupsPerStep {
				t.Errorf("the region is there %d times, want 3 times for %d groups: in the loop, after it and at the end", n, groupsPerStep)
			}
			guarded := regexp.MustCompile(`@%p\d+ bra \$L\d+;\n\tcvt\.rn\.bf16x2\.f32`).MatchString(text)
			if late && guarded != (name == "idle warps") {
				t.Errorf("some threads have no elements to leave: %v", guarded)
			}
			if name == "a rounding read again" {
				before := map[string]bool{}
				for _, m := range regexp.MustCompile(`cvt\.rn\.f32\.s32 (%f\d+),`).FindAllStringSubmatch(text, -1) {
					before[m[1]] = true
				}
				reads := regexp.MustCompile(`cvt\.rzi\.s32\.f32 %r\d+, (%f\d+);`).FindAllStringSubmatch(text, -1)
				for _, m := range reads {
					if before[m[1]] {
						t.Errorf("%s, which is of the next tile, is read in the region", m[0])
					}
				}
				if len(before) == 0 || len(reads) == 0 {
					t.Errorf("%d numbers, read %d times", len(before), len(reads))
				}
			}
		})
	}
}

// TestColumnsAreNotLate: a tile of one column passes through no shared memory.
func TestColumnsAreNotLate(t *testing.T) {
	a, b := strings.Index(lateKernel, "    tile_each"), strings.Index(lateKernel, "    LAST")
	text := lateKernel[:a] + `tile_zero tile3
    tile_rows.sum tile3, tile2
    tile_each.x1 tile3 (v21, v22, v23) {
      v90 = cvt.bf16 v23
      v94 = cvt.i64 v21
      store.bf16 v2[v94], v90
    }
` + lateKernel[b:]
	_, out := compileAhead(t, text, []string{"threads 256", "threads 128", "bf16 128 32", "bf16 256 32", "bf16 32 128", "bf16 32 32",
		"f32 128 128", "f32 256 32", "TILES", "tile3 \"s\" f32 256 1", "buffer f32", "buffer bf16", "LAST", ""})
	if !strings.Contains(out, "cvt.rn.bf16.f32") {
		t.Error("nothing is rounded")
	}
}

// TestPairsOfColumns: a map that loads what belongs to both columns of a pair loads it once for a thread's two columns, and once for all of
// its rows. Of two columns, what depends on which one it is has two values.
func TestPairsOfColumns(t *testing.T) {
	const text = `tile_map tile2 (v50, v51, v52) {
	v53 = const.i32 MASK
	v63 = const.i32 1
	v54 = and.i32 v51, v53
	v55 = cvt.i64 v54
	v56, v57 = load.bf16x2 v1[v55]
	v58 = and.i32 v51, v63
	v64 = and.i32 v51, v63
	v59 = eq.i32 v58, v64
	v60 = select.bf16 v59, v56, v57
	v61 = cvt.f32 v60
	v62 = add.f32 v52, v61
	yield v62
}`
	for mask, want := range map[string]int{"-2": 128 / 8, "-4": 128 / 4, "-1": 128 / 4, "1": 2, "3": 128 / 4} {
		after := strings.Replace(text, "MASK", mask, 1)
		_, out := compileAhead(t, lateKernel, []string{"AFTER", after, "buffer f32", "buffer bf16", "REGION", "", "LAST", "", "AT", "v22",
			"FIRST", "v90"})
		if got := strings.Count(out, "ld.global.nc."); got != want {
			t.Errorf("with columns & %s there are %d loads, want %d", mask, got, want)
		}
	}
}
