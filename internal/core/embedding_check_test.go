package core

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/rt"
)

// TestEmbeddingScalesRepeatedRows: no two threads write one element where an index that names a row twice rescales it. The memory checker
// watches a process of its own.
func TestEmbeddingScalesRepeatedRows(t *testing.T) {
	const watched = "TENON_TEST_WATCHED"
	if os.Getenv(watched) != "" {
		scaleRepeatedRows(t)
		return
	}
	found := filepath.Join(t.TempDir(), "found")
	cmd := exec.Command(os.Args[0], "-test.run=^TestEmbeddingScalesRepeatedRows$")
	cmd.Env = append(os.Environ(), watched+"=1", "TENON_CHECK="+found, "TENON_CHECK_TOOLS=racecheck")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(found)
	if err != nil || !strings.Contains(string(text), `"kernel":"scatter`) {
		t.Fatalf("the checker saw no scatter: %v, %s", err, text)
	}
	if strings.Contains(string(text), `"finding":`) {
		t.Errorf("the checker found %s", text)
	}
}

func scaleRepeatedRows(t *testing.T) {
	t.Helper()
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim})
	if err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(dev, host)
	w := From(x, []float32{3, 4, 6, 8, 30, 40}, 3, 2)
	got, err := Read[float32](x, x.Embedding(From(x, []int64{1, 0, 1, 1}), w, EmbeddingOpt{MaxNorm: 5}))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{3, 4, 3, 4, 3, 4, 3, 4} {
		if d := got[i] - want; d > 1e-4 || d < -1e-4 {
			t.Fatalf("the rows are %v", got)
		}
	}
	if rows, err := Read[float32](x, w); err != nil || rows[4] != 30 || rows[5] != 40 {
		t.Errorf("the weights are %v, %v; no index names the last row", rows, err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}
