package benchrun

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/fault"
)

// rounds is a row with the ratios given, in one unit.
func rounds(unit string, ratios ...float64) PairRow {
	r := PairRow{Name: "x", Unit: unit}
	for _, q := range ratios {
		r.Before, r.After = append(r.Before, 2), append(r.After, 2*q)
	}
	return r
}

// The interval excludes from each end as many ratios as fair coins allow: none of 6, one of 9, two of 12 (tables of the sign test).
func TestPairRatio(t *testing.T) {
	increasing := func(n int) (v []float64) {
		for i := range n {
			v = append(v, float64(i+1))
		}
		return v
	}
	for n, want := range map[int][3]float64{1: {1, 0, 0}, 5: {3, 0, 0}, 6: {3.5, 1, 6}, 8: {4.5, 1, 8}, 9: {5, 2, 8}, 11: {6, 2, 10},
		12: {6.5, 3, 10}, 20: {10.5, 6, 15}} {
		median, low, high, ok := rounds("µs", increasing(n)...).ratio()
		if got := [3]float64{median, low, high}; got != want || ok != (n > 5) {
			t.Errorf("%d rounds: %v %v, want %v", n, got, ok, want)
		}
	}
}

func TestPairVerdict(t *testing.T) {
	six := func(a, b float64) []float64 { return []float64{a, a, a, b, b, b} }
	for _, c := range []struct {
		row  PairRow
		want string
	}{
		{rounds("µs", six(1.1, 1.2)...), "**worse**"},
		{rounds("TB/s", six(1.1, 1.2)...), "better"},
		{rounds("µs", six(0.8, 0.9)...), "better"},
		{rounds("GFLOP/s", six(0.8, 0.9)...), "**worse**"},
		{rounds("µs", six(0.9, 1.3)...), "open"},
		{rounds("TB/s", six(0.9, 1.3)...), ""},
		{rounds("µs", six(1.01, 1.04)...), ""},
		{rounds("µs", 2), "too few rounds"},
		{rounds("TB/s", 2, 2), "too few rounds"},
		{rounds("allocs/op", six(0, 0)...), "better"},
		{PairRow{Name: "gpt2.speed", Unit: "times", Before: six(1, 1), After: six(1.4, 1.5)}, "better"},
	} {
		if got := c.row.verdict(); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.row.Unit, c.row.After, got, c.want)
		}
	}
}

func TestPairsPage(t *testing.T) {
	dir := t.TempDir()
	p := &Pairs{Before: "0123456", After: "789abcd", Tests: "^TestX$"}
	before, after := &Run{Device: "NVIDIA H200", Host: "h"}, &Run{Device: "NVIDIA H200", Host: "h", Date: "2026-01-01", Go: "go1.26"}
	before.Add(Figure{Name: "add", Unit: "µs", Sample: one(4)}, Figure{Name: "add.allocs", Unit: "allocs/op"},
		Figure{Name: "gone", Unit: "µs", Sample: one(1)}, Figure{Name: "other", Unit: "µs", Sample: one(1)})
	after.Add(Figure{Name: "add", Unit: "µs", Sample: one(5)}, Figure{Name: "add.allocs", Unit: "allocs/op"},
		Figure{Name: "new", Unit: "µs", Sample: one(1)}, Figure{Name: "other", Unit: "ms", Sample: one(1)})
	for range 6 {
		if err := p.Add(before, after); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Add(before, &Run{Device: "NVIDIA H200", Host: "another"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("pairs of two machines: %v", err)
	}
	if err := p.Write(filepath.Join(dir, "a.pairs.json")); err != nil {
		t.Fatal(err)
	}
	all, err := ReadPairs(dir)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	page := string(Page([]string{"r.json"}, []*Run{after}, all))
	for _, want := range []string{"### 789abcd after 0123456, on NVIDIA H200", "BEFORE_COMMIT=0123456 ROWS='^TestX$' bench/gpu.sh",
		"| `add` | 4 µs | 5 µs | 1.250 (1.250–1.250) | 6 | **worse** |"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	for _, name := range []string{"`gone`", "`new`", "`other`", "`add.allocs`"} {
		if strings.Contains(page, "| "+name+" |") {
			t.Errorf("the page has a pair of %s:\n%s", name, page)
		}
	}
	if _, _, err := Runs(dir); err != nil {
		t.Errorf("a file of pairs counts as a run: %v", err)
	}
	for _, text := range []string{"[]", `{"rows":[{"name":"x","before":[1],"after":[]}]}`} {
		if err := os.WriteFile(filepath.Join(dir, "a.pairs.json"), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPairs(dir); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}
