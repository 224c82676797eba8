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
// nothing else uses, in a new scope, and the options for the test's regions. It must leave no recordings and no memory of private pools.
type treeTest struct {
	name string
	run  func(t *testing.T, x *tenon.Exec, o compile.Opt)
	// both says that PyTorch also tests it with the back end "cudagraphs", which NoFusion corresponds to.
	both bool
}

// treeTests are the tests of all files; registerTrees adds them.
var treeTests []treeTest

func registerTrees(tests ...treeTest) bool {
	treeTests = append(treeTests, tests...)
	return true
}

// TestTREE checks the behaviours that test_cudagraph_trees.py pins, under their numbers.
func TestTREE(t *testing.T) { runTrees(t, "TREE-") }

// TestDYN checks the behaviours that dynamo's test_cudagraphs.py pins, under their numbers.
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

// treeMachine selects the machine of the current test, which has two devices if it is simulated.
var treeMachine tenon.Selector

func (c *treeTest) in(t *testing.T, o compile.Opt) {
	treeMachine = tenon.SimMachine(2, 0)
	if onGPU() {
		treeMachine = tenon.CUDA(0)
	}
	o.CheckPool = true // as PyTorch's tests assert
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

// secondDevice opens the machine's second device until the test ends, and skips the test if there is none.
func secondDevice(t *testing.T) *tenon.Exec {
	t.Helper()
	if onGPU() && tenon.GPUs() < 2 {
		t.Skip("there is no second GPU")
	}
	return openDevice(t, treeMachine.At(1))
}

// treesOf returns the recordings of x's session.
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

// warnings collects logged warnings until the test ends.
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

// Enabled implements slog.Handler, as do the methods after it.
func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle keeps the message.
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, r.Message)
	return nil
}

// WithAttrs ignores attributes.
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup ignores groups.
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
