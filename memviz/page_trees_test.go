package memviz_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/browser"
	"tenon.dev/memviz"
)

// compiled runs a region whose second half has two branches, and returns a file with its device's snapshot after replays, or where record
// is true after a recording.
func compiled(t *testing.T, record bool) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x, err := tenon.Open(tenon.Sim(256 << 20))
	must(err)
	defer x.Close()
	must(x.Device().RecordMemoryHistory())
	a := x.Ones([]int{1 << 20}, tenon.Float32)
	defer a.Close()
	r := compile.New()
	var h, loss *tenon.Tensor
	forward := func(x *tenon.Exec, long bool) error {
		h.Close()
		loss.Close()
		h, loss = x.Keep(x.Sin(a)), nil
		if err := compile.Break(x); err != nil {
			return err
		}
		if long {
			loss = x.Keep(x.Exp(x.Reshape(x.MatMul(x.View(h, 1024, 1024), x.View(x.Cos(h), 1024, 1024)), 1<<20)))
		} else {
			loss = x.Keep(x.Sum(x.Tanh(h), nil))
		}
		return nil
	}
	for _, long := range []bool{false, false, true, true, false, true} {
		must(r.Do(x, func(x *tenon.Exec) error { return forward(x, long) }))
	}
	if record {
		must(r.Do(x, func(x *tenon.Exec) error {
			if err := forward(x, true); err != nil {
				return err
			}
			return compile.Break(x)
		}))
	}
	path := filepath.Join(t.TempDir(), "compiled.pickle")
	must(x.Device().DumpSnapshot(path))
	h.Close()
	loss.Close()
	must(compile.Reset(x))
	return path
}

// pageTrees shows what the pool of compiled regions holds.
func pageTrees(t *testing.T, b *browser.Browser) {
	rec, err := memviz.Open(compiled(t, false), memviz.Options{NoCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	v := serve(t, b, rec, nil)
	var pools []memviz.GraphPool
	v.ask("trees?device=0", &pools)
	if len(pools) != 1 || len(pools[0].Nodes) != 6 {
		t.Fatalf("%+v", pools)
	}
	p := pools[0]
	v.press("8")
	v.equal("the view", v.text("where.view"), "trees")
	v.equal("rows", v.number("document.querySelectorAll('.trees tbody tr').length"), len(p.Nodes))
	text := v.of(".trees")
	for _, want := range []string{"private pool " + p.Pool, sizeText(p.Reserved) + " in ", "execution, generation", "path 0 → 2",
		sizeText(p.Live) + " in use by tensors",
		"└ graph 1", "└ graph 2", "warm-up of function 0", "page_trees_test.go:"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	v.do("document.querySelector('[data-key=\"" + p.Pool + " 2\"]').click()")
	if text := v.of(".trees tr.open"); !strings.Contains(text, "Exp") || !strings.Contains(text, "4 MiB") ||
		!strings.Contains(text, "in use") {
		t.Errorf("the outputs of graph 2 are %q", text)
	}
	if dir := os.Getenv("SHOTS"); dir != "" {
		os.WriteFile(dir+"/trees.png", v.tab.PNG(), 0o644)
	}
	// The block map of the graph's segments alone: its output lies where the allocator knows of nothing.
	v.do("document.querySelector('.trees tr.open .actions button').click()")
	v.equal("the search", v.text("where.q"), "graph:2 pool:"+strings.Trim(p.Pool, "()"))
	v.equal("segments shown", v.number("views.state.segments.length"), len(p.Nodes[2].Segments))
	v.equal("outputs that the allocator counts as free", v.text("views.state.segments.flatMap(s => s.lent).map(o => `${o.node.id} "+
		"${o.op} ${o.size}`).sort().join()"), "0 Sin 4194304,2 Exp 4194304")
	if text := v.of("#inspector"); !strings.Contains(text, "1 graph") || !strings.Contains(text, "output of graph 2: Exp") {
		t.Errorf("the details of a search for a graph are %q", text)
	}
	if text := v.of(".block-legend"); !strings.Contains(text, "output of a replay") {
		t.Errorf("the legend is %q", text)
	}
	var at struct{ X, Y, DimX, DimY float64 }
	v.tab.Eval(`(() => {
		const m = views.state, box = m.canvas.getBoundingClientRect(), mid = id => {
			for (const p of m.pieces) for (const o of p.s.lent) if (o.node.id === id && o.offset >= p.from && o.offset < p.to) return { x: box.x + 16 + p.x + (o.offset - p.from + o.size * 0.9) / (p.to - p.from) * p.w, y: box.y + p.y + 9 };
		}, a = mid('2'), b = mid('0');
		return { X: a.x, Y: a.y, DimX: b.x, DimY: b.y };
	})()`, &at)
	picture, free := v.tab.Picture(), v.colour("css('--free')")
	most := func(x, y float64) (d int) {
		for dx := -6.0; dx <= 6; dx++ {
			d = max(d, int(far(pixel(picture, x+dx, y+6), free)))
		}
		return d
	}
	if lit, dim := most(at.X, at.Y), most(at.DimX, at.DimY); lit < 100 || dim > lit/2 {
		t.Errorf("the output of graph 2 is %d from free memory, that of graph 0, which is not looked for, %d", lit, dim)
	}
	v.tab.Hover(at.X, at.Y)
	v.settle()
	if text := v.of("#tip"); !strings.Contains(text, "output of graph 2: Exp") {
		t.Errorf("above the output stands %q", text)
	}
	if dir := os.Getenv("SHOTS"); dir != "" {
		os.WriteFile(dir+"/blocks.png", v.tab.PNG(), 0o644)
	}
	v.press("2")
	v.clean(v.origin)
	pageRecordedTrees(t, b)
}

// pageRecordedTrees shows blocks that are graphs' outputs, and the same in a static file.
func pageRecordedTrees(t *testing.T, b *browser.Browser) {
	path := compiled(t, true)
	rec, err := memviz.Open(path, memviz.Options{NoCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	v := serve(t, b, rec, nil)
	v.do("update({ view: 'state', state: device().states - 1 })")
	outputs := v.text("views.state.segments.flatMap(s => s.blocks).filter(b => b.output).map(b => `${b.output.node.id} ${b.output.op} " +
		"${b.size}`).sort().join()")
	if outputs == "" {
		t.Error("no block is an output")
	}
	var found memviz.SearchResult
	v.ask("search?device=0&q="+"tree:0", &found)
	v.equal("what the search for the tree finds", found.Count, v.number("views.state.segments.flatMap(s => s.blocks).filter(b => "+
		"b.output && !b.output.node.warm_up).length"))
	v.do("update({ sel: views.state.segments.flatMap(s => s.blocks).find(b => b.output).id })")
	if text := v.of("#inspector"); !strings.Contains(text, "output of") {
		t.Errorf("the details of an output are %q", text)
	}
	v.clean(v.origin)
	var file bytes.Buffer
	if err := memviz.WriteStatic(&file, rec, nil); err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(t.TempDir(), "compiled.html")
	v.must(os.WriteFile(place, file.Bytes(), 0o600))
	s := &view{T: t}
	s.open(b, "file://"+place)
	s.press("8")
	s.equal("rows of the static file", s.number("document.querySelectorAll('.trees tbody tr').length"),
		s.number("views.trees.pools[0].nodes.length"))
	s.clean("file:")
}

// treesText returns what WriteTrees writes of a file.
func treesText(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if err := memviz.WriteTrees(&b, f, filepath.Base(path)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestWriteTrees checks that the text has the trees, the growth of the pool, and the outputs in use.
func TestWriteTrees(t *testing.T) {
	path := compiled(t, false)
	text := treesText(t, path)
	for _, want := range []string{"device 0, private pool (", "execution, generation", "graph  ", "\n0*", "\n  1 ", "\n  2*", "\nw0",
		"warm-up", "page_trees_test.go:", "4 MiB",
		"in use of 0: 4 MiB at 0x", "in use of 2: 4 MiB at 0x", "Exp at "} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	if text := treesText(t, filepath.Join("..", "internal", "snapshot", "testdata", "gpt2_amp_graph.pickle.gz")); !strings.Contains(text,
		"has no graph trees") {
		t.Errorf("of PyTorch's snapshot it is %q", text)
	}
}
