package browser_test

import (
	"bufio"
	"bytes"
	"fmt"
	"image/color"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/browser"
)

const page = `<!doctype html><title>t</title><style>body{margin:0;background:#fff}@media(prefers-color-scheme:dark){body{background:#102030}}</style>
<input id=i><script>const i=document.getElementById('i');window.keys=[];
addEventListener('keydown',e=>{keys.push(e.key);if(e.key==='/'){e.preventDefault();i.focus()}});addEventListener('click',e=>window.at=[e.clientX,e.clientY]);
addEventListener('wheel',e=>window.wheel=[e.deltaX,e.deltaY,e.shiftKey]);let d=null;addEventListener('mousedown',e=>d=e.clientX);
addEventListener('mousemove',e=>{window.over=e.clientX;if(e.buttons===1)window.dragged=e.clientX-d})</script>`

// serve serves the page at "/", with a policy, and nothing else.
func serve(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Security-Policy", "img-src 'self'; script-src 'unsafe-inline'")
		w.Write([]byte(page))
	}))
	t.Cleanup(server.Close)
	return server.URL + "/"
}

// TestTab uses every way to act on a page once and reads the effect back from the page.
func TestTab(t *testing.T) {
	tab := browser.Open(t, serve(t), 300, 200)
	tab.Click(150, 100)
	tab.Press("a")
	tab.Press("ArrowLeft")
	tab.Wheel(150, 100, 0, 40, browser.Shift)
	tab.Drag(100, 100, 160, 100)
	tab.Hover(20, 30)
	tab.Press("/")
	tab.Type("tex")
	tab.Press("t")
	tab.Wait("window.wheel && window.dragged === 60 && window.over === 20")
	var got struct {
		At    []int
		Keys  []string
		Wheel []any
		Typed string
		W, H  int
	}
	tab.Eval("({at, keys, wheel, typed: i.value, w: innerWidth, h: innerHeight})", &got)
	if len(got.At) != 2 || got.At[0] != 160 || strings.Join(got.Keys, " ") != "a ArrowLeft / t" || got.Wheel[2] != true ||
		got.Typed != "text" || got.W != 300 || got.H != 200 {
		t.Errorf("the page saw %+v", got)
	}
	tab.Prefer("prefers-color-scheme", "dark")
	tab.Wait("matchMedia('(prefers-color-scheme: dark)').matches")
	picture := tab.Picture()
	if c := color.RGBAModel.Convert(picture.At(200, 150)); c != (color.RGBA{0x10, 0x20, 0x30, 255}) || picture.Bounds().Dx() != 300 {
		t.Errorf("a pixel of the dark page is %v, size %v", c, picture.Bounds())
	}
}

// TestErrors shows that a page's errors and requests can be read as soon as a later expression has its value.
func TestErrors(t *testing.T) {
	tab := browser.Open(t, serve(t), 300, 200)
	if e := tab.Errors(); len(e) > 1 { // Chromium requests a favicon by itself, which this server does not have
		t.Errorf("a page without faults complained: %q", e)
	}
	tab.Eval(`console.error('planted', 7); fetch('/missing'); new Image().src = 'http://example.invalid/x.png';
		setTimeout(() => { throw new Error('thrown') })`, nil)
	tab.Eval("new Promise(done => setTimeout(done, 200))", nil)
	all := strings.Join(tab.Errors(), "\n")
	for _, want := range []string{"planted 7", "404", "example.invalid", "thrown"} {
		if !strings.Contains(all, want) {
			t.Errorf("no word of %q in the errors:\n%s", want, all)
		}
	}
	if r := strings.Join(tab.Requests(), " "); !strings.Contains(r, "/missing") {
		t.Errorf("requests are %s", r)
	}
}

// TestReload shows that the new page and its parts are loaded when Reload returns.
func TestReload(t *testing.T) {
	tab := browser.Open(t, serve(t), 300, 200)
	for i := range 20 {
		tab.Eval("window.old = true", nil)
		tab.Reload()
		var old bool
		if tab.Eval("'old' in window || document.readyState !== 'complete'", &old); old {
			t.Fatalf("reload %d returned before the new page was there", i)
		}
	}
}

// TestTabs shows that a tab draws behind another, and that each closes with its own test.
func TestTabs(t *testing.T) {
	b, url := browser.Start(t), serve(t)
	back := b.Open(t, url, 300, 200)
	t.Run("front", func(t *testing.T) {
		b.Open(t, url, 200, 100)
		back.Eval("new Promise(done => requestAnimationFrame(() => done()))", nil)
		if size := back.Picture().Bounds(); size.Dx() != 300 {
			t.Errorf("a picture of the tab behind is %v", size)
		}
	})
	back.Eval("1", new(int))
}

// failing is a test that the browser's methods may end, by a failure or a skip, while the real test continues.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *failing) Skip(args ...any) {
	f.said = fmt.Sprint(args...)
	runtime.Goexit()
}

// fails runs use with a separate test and returns that test's final message.
func fails(t *testing.T, use func(t testing.TB)) string {
	f, done := &failing{TB: t}, make(chan bool)
	go func() {
		defer close(done)
		use(f)
	}()
	<-done
	return f.said
}

// TestFailures shows that an error in a page ends the test and names the place.
func TestFailures(t *testing.T) {
	b, url := browser.Start(t), serve(t)
	for _, part := range []struct {
		name, want string
		use        func(t testing.TB)
	}{
		{"an expression that throws", "not defined", func(t testing.TB) { b.Open(t, url, 9, 9).Eval("throwing.nothing", nil) }},
		{"a promise that is rejected", "refused", func(t testing.TB) {
			b.Open(t, url, 9, 9).Eval("Promise.reject(new Error('refused'))", nil)
		}},
		{"an undefined value", "no value", func(t testing.TB) { b.Open(t, url, 9, 9).Eval("undefined", new(int)) }},
		{"a value of another type", "cannot unmarshal", func(t testing.TB) { b.Open(t, url, 9, 9).Eval("'a'", new(int)) }},
		{"an address that leads nowhere", "nonsense://", func(t testing.TB) { b.Open(t, "nonsense://", 9, 9) }},
	} {
		if said := fails(t, part.use); !strings.Contains(said, part.want) {
			t.Errorf("%s: %q", part.name, said)
		}
	}
}

// TestNotInstalled shows that a test is skipped if no browser is installed, with a message that says what to install.
func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if said := fails(t, func(t testing.TB) { browser.Start(t) }); !strings.Contains(said, "install Debian's package chromium") {
		t.Errorf("without a browser: %q", said)
	}
}

// TestKilled shows that the browser ends with its test's process, even if that process is killed.
func TestKilled(t *testing.T) {
	const mark = "TENON_BROWSER_KILLED" // set in the process that is to be killed
	if os.Getenv(mark) != "" {
		browser.Start(t)
		fmt.Println("started")
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Skip("processes are found in /proc")
	}
	browser.Start(t) // or skip
	var started []string
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), mark+"=1", "TMPDIR="+t.TempDir()) // the browser's folder is in its command line
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "started"; {
	}
	if started = processes(cmd.Env[len(cmd.Env)-1][len("TMPDIR="):]); len(started) == 0 {
		t.Error("no process of the browser was found")
	}
	cmd.Process.Kill()
	cmd.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := processes(cmd.Env[len(cmd.Env)-1][len("TMPDIR="):])
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d processes these outlived the test: %q", len(started), left)
		}
	}
}

// processes returns the ids of the running processes whose command line names folder.
func processes(folder string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte("--user-data-dir="+folder)) {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}
