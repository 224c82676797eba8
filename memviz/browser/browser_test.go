package browser_test

import (
	"errors"
	"image/color"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tenon.dev/memviz/browser"
)

const page = `<!doctype html><title>t</title><style>body{margin:0;background:#fff}@media(prefers-color-scheme:dark){body{background:#102030}}</style>
<input id=i><script>window.keys=[];addEventListener('keydown',e=>keys.push(e.key));addEventListener('click',e=>window.at=[e.clientX,e.clientY]);
addEventListener('wheel',e=>window.wheel=[e.deltaX,e.deltaY,e.shiftKey]);let d=null;addEventListener('mousedown',e=>d=e.clientX);
addEventListener('mousemove',e=>{if(e.buttons===1)window.dragged=e.clientX-d})</script>`

func start(t *testing.T) *browser.Browser {
	t.Helper()
	b, err := browser.Start(t.TempDir())
	if errors.Is(err, browser.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestTab uses every way to act on a page once and reads the effect back from the page.
func TestTab(t *testing.T) {
	b := start(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "img-src 'self'")
		w.Write([]byte(page))
	}))
	defer server.Close()
	tab, err := b.Open(server.URL+"/", 300, 200)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tab.Click(150, 100))
	must(tab.Press("a", 0))
	must(tab.Press("ArrowLeft", 0))
	must(tab.Wheel(150, 100, 0, 40, 8))
	must(tab.Drag(100, 100, 160, 100))
	must(tab.Eval("document.getElementById('i').focus()", nil))
	must(tab.Type("text"))
	must(tab.Wait("window.wheel && window.dragged === 60"))
	var got struct {
		At    []int
		Keys  []string
		Wheel []any
		Typed string
		W, H  int
	}
	must(tab.Eval("({at, keys, wheel, typed: document.getElementById('i').value, w: innerWidth, h: innerHeight})", &got))
	if len(got.At) != 2 || got.At[0] != 160 || len(got.Keys) != 2 || got.Keys[0] != "a" || got.Keys[1] != "ArrowLeft" || got.Wheel[2] != true ||
		got.Typed != "text" || got.W != 300 || got.H != 200 {
		t.Errorf("the page saw %+v", got)
	}
	must(tab.Prefer("prefers-color-scheme", "dark"))
	must(tab.Wait("matchMedia('(prefers-color-scheme: dark)').matches"))
	picture, err := tab.Picture()
	must(err)
	if c := color.RGBAModel.Convert(picture.At(200, 150)); c != (color.RGBA{0x10, 0x20, 0x30, 255}) || picture.Bounds().Dx() != 300 {
		t.Errorf("a pixel of the dark page is %v, size %v", c, picture.Bounds())
	}
	if e := tab.Errors(); len(e) > 1 { // Chromium asks for a favicon by itself, which this server has not
		t.Errorf("a page without faults complained: %q", e)
	}
	must(tab.Eval("console.error('planted'); fetch('/missing'); new Image().src = 'http://example.invalid/x.png'; setTimeout(() => { throw new Error('thrown') })", nil))
	must(tab.Eval("new Promise(done => setTimeout(done, 200))", nil))
	all := strings.Join(tab.Errors(), "\n")
	for _, want := range []string{"planted", "404", "example.invalid", "thrown"} {
		if !strings.Contains(all, want) {
			t.Errorf("no word of %q in the errors:\n%s", want, all)
		}
	}
	if r := strings.Join(tab.Requests(), " "); !strings.Contains(r, "/missing") {
		t.Errorf("requests are %s", r)
	}
	if err := tab.Eval("throwing.nothing", nil); err == nil || !strings.Contains(err.Error(), "not defined") {
		t.Errorf("an expression that throws gave %v", err)
	}
	if err := tab.Eval("undefined", new(int)); err == nil {
		t.Error("an undefined value was read")
	}
	for i := range 5 {
		must(tab.Eval("window.old = true", nil))
		must(tab.Reload())
		var old bool
		if must(tab.Eval("'old' in window || document.readyState !== 'complete'", &old)); old {
			t.Fatalf("reload %d returned before the new page was there", i)
		}
	}
	front, err := b.Open(server.URL+"/", 200, 100)
	must(err)
	must(tab.Eval("new Promise(done => requestAnimationFrame(() => done()))", nil)) // also behind another tab
	if picture, err = tab.Picture(); err != nil || picture.Bounds().Dx() != 300 {
		t.Errorf("a picture of a tab behind another: %v", err)
	}
	must(front.Close())
	must(tab.Close())
	if err := tab.Eval("1", nil); err == nil {
		t.Error("a closed tab answers")
	}
	if _, err := b.Open("nonsense://", 10, 10); err == nil {
		t.Error("an address that leads nowhere was opened")
	}
}

// TestEnded shows that a browser that is gone gives errors and no hangs.
func TestEnded(t *testing.T) {
	b := start(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Open("about:blank", 10, 10); err == nil {
		t.Error("a closed browser opened a tab")
	}
}

// TestNotInstalled shows what is said where there is no browser.
func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := browser.Start(t.TempDir()); !errors.Is(err, browser.ErrNotInstalled) || !strings.Contains(err.Error(), "Debian") {
		t.Errorf("without a browser: %v", err)
	}
}
