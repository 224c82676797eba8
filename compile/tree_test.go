package compile_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/snapshot"
)

// treeOf returns the only tree of a snapshot of x's device, as stored in a file, and its pool's segments.
func treeOf(t *testing.T, x *tenon.Exec) (tree snapshot.Tree, segments []snapshot.Segment) {
	t.Helper()
	s, err := (*core.Exec)(x).Device().Snapshot()
	must(t, err)
	var file bytes.Buffer
	must(t, s.Write(&file))
	back, err := snapshot.Read(&file, snapshot.ReadOptions{})
	must(t, err)
	if !reflect.DeepEqual(back.Trees, s.Trees) {
		t.Fatalf("the file has\n%+v\nwant\n%+v", back.Trees, s.Trees)
	}
	if len(s.Trees) != 1 {
		t.Fatalf("%d trees", len(s.Trees))
	}
	for _, g := range s.Segments {
		if g.Pool == s.Trees[0].Pool {
			segments = append(segments, g)
		}
	}
	return s.Trees[0], segments
}

// showTree writes what a test checks of a tree, one line per node.
func showTree(tree snapshot.Tree) string {
	b := fmt.Sprintln(tree.State)
	for _, n := range tree.Nodes {
		b += fmt.Sprintf("%d after %d: function %d, %s, %d calls, %d runs, place %d, used %d:", n.ID, n.Parent, n.Function, n.Kind,
			n.Calls, n.Runs, n.Place, n.Used)
		for _, o := range n.Outputs {
			b += fmt.Sprintf(" %s %d %v", o.Op, o.Size, o.Live)
		}
		b += "\n"
	}
	return b
}

// A snapshot shows the uses of the pool of compiled regions: which recordings follow each other, what made the pool grow, and whose outputs
// are in use.
func TestSnapshotHasTrees(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{1 << 10}, tenon.Float32)
	r := compile.New()
	var kept, other *tenon.Tensor
	step := func(which int) {
		t.Helper()
		must(t, r.Do(x, func(x *tenon.Exec) error {
			kept.Close()
			other.Close()
			y := x.Sin(a)
			kept, other = x.Keep(y), nil
			if err := compile.Break(x); err != nil {
				return err
			}
			if which == 1 {
				other = x.Keep(x.Exp(x.Tanh(y)))
			} else {
				other = x.Keep(x.Sum(x.MatMul(x.View(y, 32, 32), x.View(y, 32, 32)), nil))
			}
			return nil
		}))
	}
	check := func(when, want string) {
		t.Helper()
		tree, segments := treeOf(t, x)
		if got := showTree(tree); got != want {
			t.Errorf("%s:\n%swant\n%s", when, got, want)
		}
		for _, n := range tree.Nodes {
			if !strings.Contains(n.Name, "TestSnapshotHasTrees") || !strings.Contains(n.From, "tree_test.go:") ||
				!strings.Contains(n.To, "tree_test.go:") {
				t.Errorf("%s: node %d is of %s, from %s to %s", when, n.ID, n.Name, n.From, n.To)
			}
			for _, o := range n.Outputs {
				if !strings.Contains(o.At, "tree_test.go:") {
					t.Errorf("%s: an output of node %d is made at %q", when, n.ID, o.At)
				}
				if !n.WarmUp && !slices.ContainsFunc(n.Spans, func(s [2]uint64) bool {
					return s[0] <= o.Addr && o.Addr+o.Size <= s[0]+s[1]
				}) {
					t.Errorf("%s: an output of node %d is not where that writes", when, n.ID)
				}
			}
		}
		if grown, reserved := grownIn(tree, segments); grown != reserved || reserved == 0 {
			t.Errorf("%s: the nodes made the pool grow by %d bytes, and it has %d", when, grown, reserved)
		}
	}
	step(0)
	check("after the warm-up", `warm-up
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0: Sin 4096 true
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0: Sum 4 true
`)
	step(0)
	check("after the recording", `recording
0 after -1: function 0, inference, 1 calls, 1 runs, place 0, used 4096: Sin 4096 true
1 after 0: function 1, inference, 2 calls, 1 runs, place 1, used 4100: Sum 4 true
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0:
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0:
`)
	step(0)
	check("after a replay", `execution
0 after -1: function 0, inference, 1 calls, 2 runs, place 0, used 4096: Sin 4096 true
1 after 0: function 1, inference, 2 calls, 2 runs, place 1, used 4100: Sum 4 true
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0:
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0:
`)
	other.Close()
	check("after a replay, with one output", `execution
0 after -1: function 0, inference, 1 calls, 2 runs, place 0, used 4096: Sin 4096 true
1 after 0: function 1, inference, 2 calls, 2 runs, place 1, used 4100: Sum 4 false
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0:
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0:
`)
	for range 2 {
		step(1)
	}
	check("with a branch", `recording
0 after -1: function 0, inference, 1 calls, 4 runs, place 0, used 4096: Sin 4096 true
1 after 0: function 1, inference, 2 calls, 2 runs, place -1, used 4100: Sum 4 false
2 after 0: function 2, inference, 2 calls, 1 runs, place 1, used 4096: Exp 4096 true
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0:
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0:
-4 after -1: function 2, inference, 2 calls, 1 runs, place -1, used 0:
`)
	kept.Close()
	check("of a recording, with one output", `recording
0 after -1: function 0, inference, 1 calls, 4 runs, place 0, used 4096: Sin 4096 false
1 after 0: function 1, inference, 2 calls, 2 runs, place -1, used 4100: Sum 4 false
2 after 0: function 2, inference, 2 calls, 1 runs, place 1, used 4096: Exp 4096 true
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0:
-3 after -1: function 1, inference, 2 calls, 1 runs, place -1, used 0:
-4 after -1: function 2, inference, 2 calls, 1 runs, place -1, used 0:
`)
	must(t, compile.Reset(x))
	s, err := (*core.Exec)(x).Device().Snapshot()
	must(t, err)
	if len(s.Trees) > 0 {
		t.Errorf("after Reset: %+v", s.Trees)
	}
	other.Close()
}

// When the pool is left to a tensor whose address the program has, a snapshot shows the new pool, and what made that grow.
func TestSnapshotAfterThePoolIsLeft(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{1 << 20}, tenon.Float32)
	exp, sin := compile.New(), compile.New()
	var kept *tenon.Tensor
	runExp := func() {
		doKeeping(t, exp, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) { keep(x.Exp(a)) })
	}
	runSin := func() {
		must(t, sin.Do(x, func(x *tenon.Exec) error { kept = x.Keep(x.Sin(a)); return nil }))
	}
	runExp()
	runSin()
	old, _ := treeOf(t, x)
	kept.DataPtr()
	runSin()
	runExp()
	tree, segments := treeOf(t, x)
	if tree.Pool == old.Pool {
		t.Fatal("the pool is not left")
	}
	if got, want := showTree(tree), `recording
0 after -1: function 0, inference, 1 calls, 1 runs, place 0, used 4194304: Exp 4194304 false
`; got != want {
		t.Errorf("%swant\n%s", got, want)
	}
	if grown, reserved := grownIn(tree, segments); grown != reserved || reserved == 0 {
		t.Errorf("the nodes made the pool grow by %d bytes, and it has %d", grown, reserved)
	}
}

// A function that runs without a graph in a new pool counts neither its runs in the pool that was left, nor by how much that grew.
func TestSnapshotOfAWarmUpInANewPool(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{1 << 20}, tenon.Float32)
	exp, sin, cos := compile.New(), compile.New(), compile.New()
	run := func(r *compile.Region, f func(t *tenon.Tensor) *tenon.Tensor) (y *tenon.Tensor) {
		must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(f(a)); return nil }))
		return y
	}
	run(exp, x.Exp).Close()
	kept := run(sin, x.Sin)
	old, _ := treeOf(t, x)
	kept.DataPtr()
	run(sin, x.Sin).Close() // leaves the pool
	must(t, compile.MarkStep(x))
	defer run(cos, x.Cos).Close()
	defer run(exp, x.Exp).Close() // warms up, since what is before it in the step does
	tree, segments := treeOf(t, x)
	if tree.Pool == old.Pool {
		t.Fatal("the pool is not left")
	}
	if got, want := showTree(tree), `warm-up
-4 after -1: function 2, inference, 1 calls, 1 runs, place -1, used 0: Cos 4194304 true
-2 after -1: function 0, inference, 1 calls, 1 runs, place -1, used 0: Exp 4194304 true
`; got != want {
		t.Errorf("%swant\n%s", got, want)
	}
	if grown, reserved := grownIn(tree, segments); grown != reserved || reserved == 0 {
		t.Errorf("the nodes made the pool grow by %d bytes, and it has %d", grown, reserved)
	}
}

// grownIn returns by how many bytes the nodes made the pool grow, and how many it has.
func grownIn(tree snapshot.Tree, segments []snapshot.Segment) (grown, reserved uint64) {
	for _, n := range tree.Nodes {
		grown += n.Grown
	}
	for _, g := range segments {
		reserved += g.TotalSize
	}
	return grown, reserved
}

// A callable's recordings have the name of its function, including those of backward passes.
func TestSnapshotNamesCallables(t *testing.T) {
	x := open(t)
	a := x.Ones([]int{4}, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(squareOf)
	for range 3 {
		x.Scope(func(x *tenon.Exec) { must(t, x.Backward(x.Sum(f.Call(x, a), nil))) })
	}
	tree, _ := treeOf(t, x)
	kinds := map[string]int{}
	for _, n := range tree.Nodes {
		if !n.WarmUp {
			kinds[n.Kind]++
		}
		if !strings.HasSuffix(n.Name, ".squareOf") {
			t.Errorf("node %d is of %s", n.ID, n.Name)
		}
	}
	if kinds["forward"] != 1 || kinds["backward"] != 1 {
		t.Error(kinds)
	}
	a.SetGrad(nil)
	must(t, compile.Reset(x))
}

func squareOf(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Mul(a, x.Sin(a)) }

// Other goroutines may take snapshots while regions run.
func TestSnapshotsBesideRuns(t *testing.T) {
	x := open(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	seen := map[string]bool{}
	wg.Go(func() {
		for {
			s, err := (*core.Exec)(x).Device().Snapshot()
			if err != nil {
				t.Error(err)
			}
			for _, tree := range s.Trees {
				seen[tree.State] = true
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	y, err := x.Fork()
	must(t, err)
	for seed := range uint64(sessionPrograms / 4) {
		if _, _, err := walkProgram(y, streamsOf(t, y), seed, compile.New()); err != nil {
			t.Errorf("program %d: %v", seed, err)
		}
	}
	close(done)
	wg.Wait()
	must(t, y.Close())
	for _, state := range []string{"warm-up", "recording", "execution"} {
		if !seen[state] {
			t.Errorf("no snapshot has the state %s", state)
		}
	}
}
