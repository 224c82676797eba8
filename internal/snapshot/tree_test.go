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

// TestDamagedTrees checks that a file with invalid trees is refused with the reason.
func TestDamagedTrees(t *testing.T) {
	for _, c := range []struct {
		change func(s *snapshot.Snapshot)
		want   string
	}{
		{func(s *snapshot.Snapshot) {
			s.Trees[0].Nodes[1].Parent = 5
		}, "node 0 of a graph tree occurs twice or before its parent"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].ID = 0 }, "node 0 of a graph tree occurs twice"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].ID = -1 }, "node -1 of a graph tree occurs twice"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Nodes[2].Place = -2 }, "node 2 of a graph tree has place -2"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Device = -1 }, "a graph tree has device -1"},
		{func(s *snapshot.Snapshot) { s.Trees[0].Device = 1 << 20 }, "a graph tree has device 1048576"},
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

// TestManyTrees checks that a file can be read however many trees and nodes the snapshot has: a writer leaves out what a reader refuses.
func TestManyTrees(t *testing.T) {
	s := planted()
	s.Trees = append(s.Trees, make([]snapshot.Tree, 2000)...)
	nodes := make([]snapshot.TreeNode, 1<<16+10)
	for i := range nodes {
		nodes[i] = snapshot.TreeNode{ID: int64(i), Parent: int64(i) - 1, Place: -1}
	}
	s.Trees[1].Nodes = nodes
	if snapshot.CheckTrees(s.Trees) == nil || snapshot.CheckTrees(s.Trees[1:2]) == nil {
		t.Fatal("so many trees or nodes are not refused")
	}
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := snapshot.Read(&b, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Trees) != 1<<10 || len(got.Trees[1].Nodes) != 1<<16 || !reflect.DeepEqual(got.Trees[0], s.Trees[0]) {
		t.Errorf("%d trees and %d nodes were read", len(got.Trees), len(got.Trees[1].Nodes))
	}
}

func TestJoinSpans(t *testing.T) {
	got := snapshot.JoinSpans([][2]uint64{{30, 5}, {10, 5}, {15, 5}, {12, 1}, {50, 0}, {1<<64 - 1, 2}, {34, 10}})
	if want := [][2]uint64{{10, 10}, {30, 14}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
