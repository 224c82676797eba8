package core

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmbeddingScalesRepeatedRows: no two threads write one element where an index that names a row twice rescales it.
func TestEmbeddingScalesRepeatedRows(t *testing.T) {
	found := filepath.Join(t.TempDir(), "found")
	t.Setenv("TENON_CHECK", found)
	t.Setenv("TENON_CHECK_TOOLS", "racecheck")
	x := toClose(t, nil)
	w := From(x, []float32{3, 4, 6, 8, 30, 40}, 3, 2)
	got, err := Read[float32](x, x.Embedding(From(x, []int64{1, 0, 1, 1}), w, EmbeddingOpt{MaxNorm: 5}))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{3, 4, 3, 4, 3, 4, 3, 4} {
		if d := got[i] - want; d > 1e-4 || d < -1e-4 {
			t.Errorf("the rows are %v", got)
			break
		}
	}
	if rows, err := Read[float32](x, w); err != nil || rows[4] != 30 || rows[5] != 40 {
		t.Errorf("the row that no index names is %v, %v", rows[4:], err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(found)
	if err != nil || !strings.Contains(string(text), `"kernel":"scatter`) {
		t.Fatalf("the checker saw no scatter: %v, %s", err, text)
	}
	if strings.Contains(string(text), `"finding":`) {
		t.Errorf("the checker found %s", text)
	}
}
