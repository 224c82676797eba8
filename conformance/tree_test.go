package conformance

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// treeTest is one behaviour of PyTorch's test_cudagraph_trees.py or of dynamo's test_cudagraphs.py. run gets an Exec of a device that
// nothing else uses, in a scope of its own, and the options that the test's regions are to have. After it there must be no recordings, and
// no memory of private pools.
type treeTest struct {
	name string
	run  func(t *testing.T, x *tenon.Exec, o compile.Opt)
	// both says that PyTorch asks it of the back end "cudagraphs" too, for which NoFusion stands.
	both bool
}

// treeTests are those of all files, which registerTrees adds.
var treeTests []treeTest

func registerTrees(tests ...treeTest) bool {
	treeTests = append(treeTests, tests...)
	return true
}

// TestTREE holds what test_cudagraph_trees.py pins, under its numbers.
func TestTREE(t *testing.T) { runTrees(t, "TREE-") }

// TestDYN holds what dynamo's test_cudagraphs.py pins, under its numbers.
func TestDYN(t *testing.T) { runTrees(t, "DYN-") }

func runTrees(t *testing.T, prefix string) {
	slices.SortFunc(treeTests, func(a, b treeTest) int { return cmp.Compare(a.name, b.name) })
	for i, c := range treeTests {
		if !strings.HasPrefix(c.name, prefix) {
			continue
		}
		if i > 0 && c.name == treeTests[i-1].name {
			t.Errorf("%s is there twice", c.name)
		}
		t.Run(c.name, func(t *testing.T) {
			if !c.both {
				c.in(t, compile.Opt{})
				return
			}
			t.Run("fused", func(t *testing.T) { c.in(t, compile.Opt{}) })
			t.Run("not_fused", func(t *testing.T) { c.in(t, compile.Opt{NoFusion: true}) })
		})
	}
}

// treeMachine selects the machine of the test under way, which has two devices where it is simulated.
var treeMachine tenon.Selector

func (c *treeTest) in(t *testing.T, o compile.Opt) {
	treeMachine = tenon.SimMachine(2, 0)
	if onGPU() {
		treeMachine = tenon.CUDA(0)
	}
	x := openDevice(t, treeMachine)
	if err := tenon.Try(func() { x.Scope(func(x *tenon.Exec) { c.run(t, x, o) }) }); err != nil {
		t.Fatal(err)
	}
	must(t, compile.Reset(x))
	settle(t, x.Device())
	check(t, "recordings are kept at the end", hasTrees(x), false)
	check(t, "live blocks of private pools at the end", treeBlocks(t, x), 0)
	check(t, "private segments at the end", privateSegments(t, x), 0)
}

// secondDevice opens the machine's second device until the test ends, which is skipped where there is none.
func secondDevice(t *testing.T) *tenon.Exec {
	t.Helper()
	if onGPU() && tenon.GPUs() < 2 {
		t.Skip("there is no second GPU")
	}
	return openDevice(t, treeMachine.At(1))
}

// treesOf returns what x's session has recorded.
func treesOf(t *testing.T, x *tenon.Exec) compile.Trees {
	t.Helper()
	trees, ok := compile.TreesOf(x)
	if !ok {
		t.Fatal("the session has no recordings")
	}
	return trees
}

// hasTrees reports whether x's session has what PyTorch calls a manager.
func hasTrees(x *tenon.Exec) bool {
	_, ok := compile.TreesOf(x)
	return ok
}

// descendants counts the recordings below each root.
func descendants(t *testing.T, x *tenon.Exec) []int {
	t.Helper()
	all := []int{}
	for _, r := range treesOf(t, x).Roots {
		all = append(all, r.Descendants())
	}
	return all
}

// treeBlocks counts the blocks in use of all private pools of the device.
func treeBlocks(t *testing.T, x *tenon.Exec) (n int) {
	t.Helper()
	snap, err := x.Device().Snapshot()
	must(t, err)
	for _, s := range snap.Segments() {
		for _, b := range s.Blocks {
			if s.Pool != [2]uint64{} && b.State == "active_allocated" {
				n++
			}
		}
	}
	return n
}

// privateSegments counts the segments of private pools.
func privateSegments(t *testing.T, x *tenon.Exec) (n int) {
	t.Helper()
	snap, err := x.Device().Snapshot()
	must(t, err)
	for _, s := range snap.Segments() {
		if s.Pool != [2]uint64{} {
			n++
		}
	}
	return n
}

// warnings catches what is logged as a warning until the test ends.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func catchWarnings(t *testing.T) *warnings {
	w, old := &warnings{}, slog.Default()
	slog.SetDefault(slog.New(w))
	t.Cleanup(func() { slog.SetDefault(old) })
	return w
}

// Enabled is of slog.Handler, as are the methods after it.
func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle keeps the message.
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, r.Message)
	return nil
}

// WithAttrs leaves attributes out.
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup leaves groups out.
func (w *warnings) WithGroup(string) slog.Handler { return w }

// want fails the test unless exactly n messages came since the last time, and the first has parts in this order.
func (w *warnings) want(t *testing.T, n int, parts ...string) {
	t.Helper()
	w.mu.Lock()
	texts := w.texts
	w.texts = nil
	w.mu.Unlock()
	if len(texts) != n {
		t.Errorf("%d warnings %q; want %d", len(texts), texts, n)
		return
	}
	if n == 0 {
		return
	}
	rest := texts[0]
	for _, p := range parts {
		_, after, ok := strings.Cut(rest, p)
		if !ok {
			t.Errorf("the warning is %q; want %q in it, in this order", texts[0], parts)
			return
		}
		rest = after
	}
}
