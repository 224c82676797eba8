package profile_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/browser"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// shots is the folder for screenshots of the page, for a person to look at.
var shots = flag.String("shots", "", "folder for screenshots of the page")

// trained returns the profile of two training steps.
func trained(t *testing.T) *profile.Profile {
	t.Helper()
	x := testdevice.Open(t, tenon.Sim(0))
	net := nn.Sequential{nn.NewLinear(x, 64, 128), nn.ReLU{}, nn.NewLinear(x, 128, 10)}
	opt, err := optim.NewAdamW(nn.Params(net))
	if err != nil {
		t.Fatal(err)
	}
	p, err := x.Device().Profile(cuda.ProfileOpt{Bandwidth: 1e12})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		x.Scope(func(x *tenon.Exec) {
			y := net.Forward(x, tenon.From(x, make([]float32, 32*64), 32, 64))
			if err := errors.Join(x.Backward(x.Mean(x.Mul(y, y), nil)), opt.Step(x)); err != nil {
				t.Fatal(err)
			}
			opt.ZeroGrad()
		})
	}
	prof, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	prof.Commit = "0123abc"
	return prof
}

func writePage(t *testing.T, path string, p *profile.Profile) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.WriteHTML(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestPageInBrowser uses the page as a reader does.
func TestPageInBrowser(t *testing.T) {
	p := trained(t)
	page := filepath.Join(t.TempDir(), "profile.html")
	writePage(t, page, p)
	tab := browser.Open(t, "file://"+page, 1280, 900)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	shot := func(name string) {
		t.Helper()
		if *shots != "" {
			must(os.WriteFile(filepath.Join(*shots, name+".png"), tab.PNG(), 0o644))
		}
	}
	is := func(expression string, want any) {
		t.Helper()
		var got any
		tab.Eval(expression, &got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", expression, got, want)
		}
	}
	rows := func(by profile.By) []profile.Row {
		all, err := p.Rows(by)
		must(err)
		return all
	}
	chip := func(by profile.By) {
		t.Helper()
		tab.Eval(fmt.Sprintf("document.querySelector('[data-by=%s]').click()", by), nil)
	}
	const count, first = "document.querySelectorAll('#rows tr').length", "document.querySelector('#rows td').textContent"
	shot("top")
	is("document.querySelector('#title').textContent", p.Device.Name)
	is("document.querySelector('#facts').textContent.includes(' · commit 0123abc')", true)
	is(count, len(rows(profile.ByOp)))
	is(first, rows(profile.ByOp)[0].Key)
	chip(profile.ByLine)
	is(count, len(rows(profile.ByLine)))
	chip(profile.ByModule)
	is("[...document.querySelectorAll('#rows td:first-child')].some(d => d.textContent === 'Sequential/Linear')", true)
	chip(profile.ByTime)
	is(count, min(100, len(rows(profile.ByTime))))
	tab.Press("/")
	tab.Type("matmul (backward)")
	is("[...document.querySelectorAll('#rows td:first-child')].every(d => d.textContent.startsWith('MatMul (backward)')) && "+
		count+" > 0", true)
	tab.Press("Escape")
	chip(profile.ByOp)
	tab.Eval("document.querySelector('[data-column=calls]').click()", nil)
	most := 0
	for _, r := range rows(profile.ByOp) {
		most = max(most, r.Calls)
	}
	is("document.querySelector('#rows td:nth-child(2)').textContent", most)
	tab.Eval("document.querySelector('#memory').scrollIntoView()", nil)
	shot("memory")
	for _, c := range []string{"lanes", "chart"} {
		is("(c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return d.some((v, i) => i % 4 === 3 && v > "+
			"0); })(document.getElementById('"+c+"'))", true)
	}
	is("document.querySelector('#legend').textContent.includes('optimizer state')", true)
	tab.Eval("document.querySelector('#table').scrollIntoView()", nil)
	shot("table")
	tab.Prefer("prefers-color-scheme", "dark")
	tab.Wait("document.documentElement.classList.contains('dark')")
	tab.Eval("scrollTo(0, 0)", nil)
	shot("dark")
	tab.Press("t")
	is("document.documentElement.classList.contains('dark')", false)

	hostile := sample()
	hostile.Ops[0].Name = "</script><script>document.title='run'</script>{{js}}\x1b[31m\u202e"
	hostile.Device.Name = "<b>\u202edevice\x07"
	writePage(t, page, hostile)
	tab.Reload()
	tab.Wait("document.querySelectorAll('#rows tr').length === 5")
	is("document.title", "tenon profile")
	is("document.body.innerText.includes(\"</script><script>document.title='run'</script>{{js}}\")", true)
	is(`/[\u0000-\u0008\u001b\u009b\u202e]/.test(document.body.innerText)`, false)
	if e := tab.Errors(); len(e) > 0 {
		t.Errorf("the page complains: %q", e)
	}
	for _, r := range tab.Requests() {
		if !strings.HasPrefix(r, "file://") && !strings.HasPrefix(r, "data:") {
			t.Errorf("the page asked for %s", r)
		}
	}
}
