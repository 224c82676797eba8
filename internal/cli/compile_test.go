package cli

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/browser"
)

// shots is the folder for screenshots of the pages, for a person to look at.
var shots = flag.String("shots", "", "folder for screenshots of the pages")

// explained runs a region with fused kernels, a read and a fork, and a callable that is skipped, and returns the file with both.
func explained(t *testing.T, change func(all []*compile.Explanation)) string {
	t.Helper()
	x, err := tenon.Open(tenon.Sim(1 << 28))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w := tenon.From(x, make([]float32, 64), 64)
	r := compile.New()
	for i, n := range []int{64, 64, 64, 64, 32} {
		err := r.Do(x, func(x *tenon.Exec) error {
			a := x.Zeros([]int{n}, tenon.Float32)
			b := x.AddS(x.MulS(a, 2), float64(i))
			_, err := tenon.Read[float32](x, b)
			x.AddInto(w, w, x.Sigmoid(x.Exp(w)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
		x.AddSInto(a, a, 1)
		return x.MulS(a, 2)
	})
	net.Call(x, w).Close()
	all := []*compile.Explanation{r.Explain(x), net.Explain(x)}
	if change != nil {
		change(all)
	}
	name := filepath.Join(t.TempDir(), "explain.jsonl")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		err = errors.Join(err, e.WriteJSON(f))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCompileExplain(t *testing.T) {
	out, errs, exit := run("compile", "explain", explained(t, nil), "--bandwidth", "4800")
	if exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	for _, want := range []string{"group {", "compile_test.go:", "fork at the first call", "cut by Read", "at least", "skip: ",
		"Opt.Static", "2 replayed", "timeline, in the host's time from the beginning of each run:\n  run 1: segment 0 warm-up at ",
		"  run 4: segment 0 replayed at "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	t.Log(out)
	set := explained(t, func(all []*compile.Explanation) { all[0].Bandwidth = 4800e9 })
	if out, _, _ := run("compile", "explain", set); strings.Count(out, "at least") == 0 {
		t.Error("the bandwidth that the program set is forgotten")
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{bad}, {bad + "x"}} {
		if _, errs, exit := run(append([]string{"compile", "explain"}, args...)...); exit != 1 || errs == "" {
			t.Errorf("%v: status %d, %q", args, exit, errs)
		}
	}
}

func TestCompileExplainPage(t *testing.T) {
	const evil = `</script><script>document.title="taken"</script><img src=x onerror="document.title='taken'">`
	name := explained(t, func(all []*compile.Explanation) {
		s := &all[1].Segments[0]
		s.From, s.Because, all[1].Device, all[1].Name = evil, evil, evil, evil
		all[0].Segments[0].Graphs[0].Lanes = 2
		s.Kernels[0].Text, s.Kernels[0].Lines[0] = evil, evil
		s.Skips[0].Text = evil
		s.Runs[0].Way = evil
		all[1].Limits = []compile.Reason{{Text: evil, Times: 3, Remedy: evil}}
		all[0].Forks[0].Remedy = evil
	})
	page := filepath.Join(t.TempDir(), "explain.html")
	if _, errs, exit := run("compile", "explain", name, "--html", page, "--bandwidth", "4800"); exit != 0 || errs != "" {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "<img") || strings.Count(string(text), "<script") != 1 {
		t.Error("a text of the program became a part of the page")
	}
	for _, want := range []string{"segment 0 warm-up at ", "segment 0 replayed at ",
		"<h1>tenon.dev/internal/cli.explained.func1 on device 0", " kernel in 2 lanes; inputs: "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	tab := browser.Open(t, "file://"+page, 1280, 1400)
	var got struct {
		Title               string
		Bars, Kernels, Pre  int
		Rows, Boxes         int
		Forks, Cuts, Skips  int
		Limits              int
		Wide                bool
		Paper, Dark, Replay string
	}
	tab.Eval(`(() => {
		const n = s => document.querySelectorAll(s).length, paper = () => getComputedStyle(document.body).backgroundColor;
		const light = paper();
		document.getElementById('theme').click();
		const dark = paper();
		document.getElementById('theme').click();
		return {title: document.title, bars: n('.timeline:not(.runs) svg'), rows: n('.runs svg'), boxes: n('.runs rect'),
			kernels: n('tr.fused'), pre: n('.fused pre'), forks: n('.forks tbody tr'), cuts: n('.cuts tbody tr'),
			skips: n('.skip'), limits: n('.limit'), wide: document.documentElement.scrollWidth > innerWidth, paper: light, dark,
			replay: document.querySelector('.timeline:not(.runs) svg').getAttribute('aria-label')};
	})()`, &got)
	if got.Title != "tenon compile explain: explain.jsonl" || got.Bars < 3 || got.Rows != 6 || got.Boxes < 6 ||
		got.Kernels < 2 || got.Pre != got.Kernels ||
		got.Forks != 1 || got.Cuts < 1 ||
		got.Skips != 1 || got.Limits != 1 || got.Wide || got.Paper == got.Dark || !strings.Contains(got.Replay, "2 replayed") {
		t.Errorf("the page shows %+v", got)
	}
	if e := tab.Errors(); len(e) > 0 {
		t.Errorf("the page complained: %q", e)
	}
	if *shots == "" {
		return
	}
	for _, theme := range []string{"light", "dark"} {
		if err := os.WriteFile(filepath.Join(*shots, theme+".png"), tab.PNG(), 0o644); err != nil {
			t.Fatal(err)
		}
		tab.Eval("document.getElementById('theme').click()", nil)
	}
}
