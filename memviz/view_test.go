package memviz_test

import (
	"context"
	"encoding/json"
	"fmt"
	"image"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/browser"
	"tenon.dev/memviz"
)

const (
	pageWidth  = 1440
	pageHeight = 900
)

// chromium starts a browser for one test, or skips the test with one line if none is installed.
func chromium(t *testing.T) *browser.Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("the page is not tested in short runs")
	}
	return browser.Start(t)
}

// snapshotOf opens a snapshot that PyTorch wrote.
func snapshotOf(t *testing.T, name string) *memviz.Recording {
	t.Helper()
	rec, err := memviz.Open(filepath.Join("..", "internal", "snapshot", "testdata", name+".pickle.gz"), memviz.Options{NoCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	return rec
}

// view is a page under test: a tab, with access to the engine's own answers. Its methods end the test on failure.
type view struct {
	*testing.T
	tab    *browser.Tab
	url    string
	origin string
	info   memviz.Info
}

// serve starts a server for a recording and opens its page.
func serve(t *testing.T, b *browser.Browser, rec, before *memviz.Recording) *view {
	t.Helper()
	s, err := memviz.NewServer(rec, before)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	v := &view{T: t, url: s.URL(), origin: s.URL()}
	v.ask("info", &v.info)
	v.open(b, v.url)
	return v
}

// open opens an address in a new tab and waits until the page is loaded.
func (v *view) open(b *browser.Browser, url string) {
	v.Helper()
	v.tab = b.Open(v, url, pageWidth, pageHeight)
	v.settle()
}

func (v *view) must(err error) {
	v.Helper()
	if err != nil {
		v.Fatal(err)
	}
}

// ask reads an answer of the engine.
func (v *view) ask(request string, answer any) {
	v.Helper()
	r, err := http.Get(v.url + request)
	v.must(err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	v.must(err)
	if r.StatusCode != http.StatusOK {
		v.Fatalf("%s: %s", request, body)
	}
	v.must(json.Unmarshal(body, answer))
}

// idle is true when the page awaits no answer and has nothing left to draw.
const idle = "document.documentElement.dataset.ready === '1' && pending === 0 && !follow.waits && !stackTimer && !views.state.frame && " +
	"!Object.values(timelines).some(x => x.frame || x.overFrame) && ![...tiles.map.values()].includes(null)"

// settle waits until the page has been idle for two frames.
func (v *view) settle() {
	v.Helper()
	v.tab.Wait(idle)
	v.tab.Eval("new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done())), 4))", nil)
	v.tab.Wait(idle)
}

// do evaluates a statement and settles.
func (v *view) do(code string) {
	v.Helper()
	v.tab.Eval("void ("+code+")", nil)
	v.settle()
}

// number evaluates a number, text a string.
func (v *view) number(code string) float64 {
	v.Helper()
	var n float64
	v.tab.Eval(code, &n)
	return n
}

func (v *view) text(code string) string {
	v.Helper()
	var s string
	v.tab.Eval(code, &s)
	return s
}

// of returns the text of the first element that a selector finds.
func (v *view) of(selector string) string {
	v.Helper()
	return v.text(fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
}

func (v *view) press(keys ...string) {
	v.Helper()
	for _, k := range keys {
		v.tab.Press(k)
	}
	v.settle()
}

func (v *view) equal(what string, got, want any) {
	v.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		v.Errorf("%s is %v, want %v", what, got, want)
	}
}

// clean fails if the page logged an error, or requested anything that is not below prefix.
func (v *view) clean(prefix string) {
	v.Helper()
	for _, e := range v.tab.Errors() {
		v.Errorf("the page complained: %s", e)
	}
	for _, r := range v.tab.Requests() {
		if !strings.HasPrefix(r, prefix) && !strings.HasPrefix(r, "data:") && r != "about:blank" {
			v.Errorf("the page asked for %s", r)
		}
	}
}

// sizeText writes bytes as the page does, computed in another way: three significant digits, binary units.
func sizeText(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	e := int(math.Log2(float64(n))) / 10
	x := float64(n) / math.Pow(1024, float64(e))
	if x >= 1023.5 {
		e, x = e+1, x/1024
	}
	digits := 0
	switch {
	case x < 10:
		digits = 2
	case x < 100:
		digits = 1
	}
	s := fmt.Sprintf("%.*f", digits, x)
	if digits > 0 {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s + " " + []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[e]
}

// pixel is a colour without its opacity.
func pixel(p image.Image, x, y float64) [3]int {
	r, g, b, _ := p.At(int(math.Round(x)), int(math.Round(y))).RGBA()
	return [3]int{int(r >> 8), int(g >> 8), int(b >> 8)}
}

func far(a, b [3]int) int {
	d := 0
	for i := range a {
		d = max(d, a[i]-b[i], b[i]-a[i])
	}
	return d
}

// colour evaluates "rgb(r g b)" or "#rrggbb".
func (v *view) colour(code string) [3]int {
	v.Helper()
	s := v.text(code)
	var c [3]int
	if _, err := fmt.Sscanf(s, "#%02x%02x%02x", &c[0], &c[1], &c[2]); err == nil {
		return c
	}
	if _, err := fmt.Sscanf(s, "rgb(%d %d %d)", &c[0], &c[1], &c[2]); err != nil {
		v.Fatalf("%s gave %q, no colour", code, s)
	}
	return c
}

// point returns the position on the screen, in CSS pixels, of a state and a number of bytes.
func (v *view) point(state, bytes float64) (x, y float64) {
	v.Helper()
	var p [2]float64
	v.tab.Eval(fmt.Sprintf("(t => { t.measure(); const b = t.plot.getBoundingClientRect(); return [b.left + t.x(%g), b.top + t.y(%g)] "+
		"})(timelines[where.view])", state, bytes), &p)
	return p[0], p[1]
}
