package replay

import (
	"os"
	"testing"

	"tenon.dev/internal/snapshot"
)

func open(t testing.TB, file string) *snapshot.Snapshot {
	t.Helper()
	f, err := os.Open(file)
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

// TestTorch replays PyTorch's recorded snapshots under their own settings: every block at its address, every segment taken and returned in
// turn, the snapshot's segments at the end.
func TestTorch(t *testing.T) {
	for _, name := range []string{"resnet50", "gpt2_amp_graph","extra_expandable","extra_streams","small_p0"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, "../../internal/snapshot/testdata/"+name+".pickle.gz")
			p, err := New(s, 0)
			if err != nil {
				t.Fatal(err)
			}
			c, err := p.Check()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", p.Recorded)
			t.Logf("%+v", c)
			for _, n := range p.Notes { t.Log(n) }
		})
	}
}
