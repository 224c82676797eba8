package snapshot_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// planted returns a snapshot with two trees that have every part of one.
func planted() *snapshot.Snapshot {
	return &snapshot.Snapshot{
		Stacks:   &snapshot.Stacks{},
		Segments: []snapshot.Segment{{Device: 1, Addr: 4096, TotalSize: 8192, Pool: [2]uint64{0, 3}}},
		Trees: []snapshot.Tree{
			{Device: 1, Pool: [2]uint64{0, 3}, State: "execution", Generation: 7, Nodes: []snapshot.TreeNode{
				{ID: -2, Parent: -1, Name: "main.step", Kind: "inference", From: "a.go:1", To: "a.go:9", Calls: 4, WarmUp: true, Runs: 1,
					Place: -1, Grown: 8192},
				{ID: 0, Parent: -1, Function: 1, Name: "main.step", Kind: "forward", From: "a.go:1", To: "a.go:9", Calls: 4, Runs: 5,
					Generation: 7, Used: 512, Spans: [][2]uint64{{4096, 256}, {5000, 256}},
					Outputs: []snapshot.TreeOutput{{Addr: 4096, Size: 256, Op: "Sin", At: "a.go:9", Live: true}}},
				{ID: 2, Function: 2, Kind: "backward", Place: 1},
			}},
			{Device: 0, Pool: [2]uint64{0, 4}, State: "idle"},
		},
	}
}

// TestTreesWriteRead checks that the trees of a snapshot come back as they were, and that a snapshot without any has no part for them.
func TestTreesWriteRead(t *testing.T) {
	s := planted()
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := snapshot.Read(bytes.NewReader(b.Bytes()), snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Trees, s.Trees) {
		t.Errorf("%+v came back as\n%+v", s.Trees, got.Trees)
	}
	s.Trees = nil
	b.Reset()
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b.Bytes(), []byte("graph_trees")) {
		t.Error("a snapshot without trees has a part for them")
	}
}

// TestTreesThatCannotBe checks that a file with trees that Tenon does not write is refused, and says why.
func TestTreesThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		change func(s *snapshot.Snapshot)
		want   string
	}{
		{func(s *snapshot.Snapshot) {
			s.Trees[0].Nodes[1].Parent = 5
		}, "node 0 of a graph tree is there twice, or comes before its parent"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].ID = 0 }, "node 0 of a graph tree is there twice"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].ID = -1 }, "node -1 of a graph tree is there twice"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].Place = -2 }, "node 2 of a graph tree has place -2"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Device = -1 }, "a graph tree has device -1"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Device = 1 << 20 }, "a graph tree has device 1048576"},
		{func(s *snapshot.Snapshot) { s.Trees = make([]snapshot.Tree, 1<<10+1) }, "the file has 1025 graph trees"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes = make([]snapshot.TreeNode, 1<<14+1) }, "a graph tree lacks a part"},
	} {
		s := planted()
		c.change(s)
		var b bytes.Buffer
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
		_, err := snapshot.Read(&b, snapshot.ReadOptions{})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
