package snapshot_test

import (
	"bytes"
	"os"
	"testing"

	"tenon.dev/internal/snapshot"
)

func open(t testing.TB, name string) *snapshot.Snapshot {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := snapshot.Read(f, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestX(t *testing.T) {
	for _, n := range []string{"resnet50", "gpt2_amp_graph", "extra_expandable", "extra_streams", "small_p0", "small_p1", "small_p2", "small_p3", "small_p4", "small_p5"} {
		s := open(t, n)
		t.Log(n, len(s.Segments), len(s.Traces), len(s.Traces[0]), s.Stacks.Len(), s.Stacks.FrameCount(), len(s.Annotations), len(s.Notes))
		var b bytes.Buffer
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
		t.Log(b.Len())
		os.WriteFile("/tmp/w_"+n+".pickle", b.Bytes(), 0o644)
	}
}
