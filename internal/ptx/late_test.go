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
	}{
		"plain":                    {true, nil},
		"a value of the iteration": {true, []string{"OUTER", "v30 = mul.i32 v9, v8", "AT", "v30"}},
		"the counter":              {true, []string{"AT", "v9"}},
		"a condition of the iteration": {true, []string{"OUTER", "v30 = lt.i32 v9, v8",
			"REGION", "v31 = select.i32 v30, v21, v22", "AT", "v31"}},
		"a load in the region":        {true, []string{"REGION", "v30 = load.bf16 v0[v27]", "FIRST", "v30"}},
		"a load before the loop":      {false, []string{"OUTER", "v30 = load.bf16 v2[v5]"}},
		"a load after the loop":       {true, []string{"AFTER", "v30 = load.bf16 v2[v5]", "FIRST", "v30"}},
		"a store before the loop":     {false, []string{"OUTER", "v30 = cvt.bf16 v9\nstore.bf16 v2[v5], v30"}},
		"a barrier before the loop":   {false, []string{"OUTER", "barrier"}},
		"a barrier after the loop":    {true, []string{"AFTER", "barrier"}},
		"shared memory in the region": {false, []string{"SHARED", array, "REGION", "v30 = load.i32 shared0[v5]", "AT", "v30"}},
		"a variable": {false, []string{"VARS", "var0 i32", "OUTER", "set 0, v9",
			"REGION", "v30 = get 0", "AT", "v30"}},
		"a variable from before": {true, []string{"VARS", "var0 i32", "for.i32 v9", "set 0, v8\nfor.i32 v9",
			"REGION", "v30 = get 0", "AT", "v30"}},
		"something after it":              {false, []string{"LAST", "v30 = add.i32 v9, v8"}},
		"two passages":                    {false, []string{"LAST", "tile_each.x1 tile2 (v40, v41, v42) {\n}"}},
		"sums that are more than rounded": {false, []string{"REGION", "v30 = neg.f32 v23\nv31 = cvt.bf16 v30", "FIRST", "v31"}},
		"a rounding read again": {true, []string{"OUTER", "v80 = cvt.f32 v9\nv81 = cvt.bf16 v80",
			"REGION", "v82 = cvt.f32 v81\nv83 = cvt.i32 v82", "AT", "v83"}},
		"as many stages as leave room":         {true, []string{"STAGES", "11"}},
		"stages that leave no room for halves": {true, []string{"STAGES", "13"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			with := append(c.with, "buffer f32", "buffer bf16", "REGION", "", "LAST", "", "AT", "v22", "FIRST", "v90")
			ps := aheadProgram(t, lateKernel, with)
			target := Target{Major: 9, Arch: true}
			plan, err := planTiles(ps[0], target, 90)
			if err != nil {
				t.Fatal(err)
			}
			late := false
			for _, q := range plan.around {
				late = late || q.late != nil
				if q.late != nil && (q.stages < leastStages || q.late.steps != 128*128/(4*2*256)) {
					t.Errorf("%d stages and %d steps", q.stages, q.late.steps)
				}
			}
			if late != c.late {
				t.Errorf("the tile is late: %v, want %v", late, c.late)
			}
			if plan.total > sharedLimit(90) {
				t.Errorf("the tiles take %d bytes, of %d", plan.total, sharedLimit(90))
			}
			text, err := Compile(ps, target)
			if err != nil {
				t.Fatal(err)
			}
			checkSources(t, string(text))
			stores := regexp.MustCompile(`st\.global\.v\d\.b\d+`).FindAllStringIndex(string(text), -1)
			if n := len(stores); late && n != 3*groupsPerStep {
				t.Errorf("the region is there %d times, want 3 times for %d groups: in the loop, after it and at the end", n, groupsPerStep)
			}
			if name == "a rounding read again" {
				before := map[string]bool{}
				for _, m := range regexp.MustCompile(`cvt\.rn\.f32\.s32 (%f\d+),`).FindAllStringSubmatch(string(text), -1) {
					before[m[1]] = true
				}
				reads := regexp.MustCompile(`cvt\.rzi\.s32\.f32 %r\d+, (%f\d+);`).FindAllStringSubmatch(string(text), -1)
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

// TestPairsOfColumns: a map that loads what belongs to both columns of a pair loads it once for a thread's two columns, and once for all of
// its rows.
func TestPairsOfColumns(t *testing.T) {
	const text = `tile_map tile2 (v50, v51, v52) {
	v53 = const.i32 MASK
	v54 = and.i32 v51, v53
	v55 = cvt.i64 v54
	v56, v57 = load.bf16x2 v1[v55]
	v58 = and.i32 v51, v6
	v59 = eq.i32 v58, v5
	v60 = select.bf16 v59, v56, v57
	v61 = cvt.f32 v60
	v62 = add.f32 v52, v61
	yield v62
}`
	for mask, want := range map[string]int{"-2": 128 / 8, "-4": 128 / 4, "-1": 128 / 4} {
		after := strings.Replace(text, "MASK", mask, 1)
		ps := aheadProgram(t, lateKernel, []string{"AFTER", after, "buffer f32", "buffer bf16", "REGION", "", "LAST", "", "AT", "v22",
			"FIRST", "v90"})
		out, err := Compile(ps, Target{Major: 9, Arch: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(out), "ld.global.nc."); got != want {
			t.Errorf("with columns & %s there are %d loads, want %d", mask, got, want)
		}
	}
}
