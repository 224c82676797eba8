package memviz_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/browser"
	"tenon.dev/memviz"
)

var recordings = []string{"resnet50", "gpt2_amp_graph"}

// shown are the recordings that slow parts open: all with -long, otherwise the one with a graph.
func shown() []string {
	if *memviz.Long {
		return recordings
	}
	return recordings[1:]
}

// TestPage uses the page in two real browsers, in each of which its parts take turns.
func TestPage(t *testing.T) {
	browsers := make(chan *browser.Browser, 2)
	for range cap(browsers) {
		browsers <- chromium(t)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, *browser.Browser)
	}{
		{"Timeline", pageTimeline},
		{"Moves", pageMoves},
		{"Theme", pageTheme},
		{"Search", pageSearch},
		{"State", pageState},
		{"Views", pageViews},
		{"Links", pageLinks},
		{"Names", pageNames},
		{"Faults", pageFaults},
		{"Static", pageStatic},
		{"Devices", pageDevices},
		{"Window", pageWindow},
		{"Axis", pageAxis},
		{"Stray", pageStray},
		{"GoNames", pageGoNames},
		{"Trees", pageTrees},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			b := <-browsers
			t.Cleanup(func() { browsers <- b })
			part.run(t, b)
		})
	}
}

// pageTimeline compares what the timelines draw with the engine's figures, pixel by pixel where a state is a few pixels wide.
func pageTimeline(t *testing.T, b *browser.Browser) {
	for _, name := range shown() {
		t.Run(name, func(t *testing.T) {
			v := serve(t, b, snapshotOf(t, name), nil)
			d := v.info.Devices[0]
			v.equal("the file's name", v.of("#file"), name+".pickle.gz")
			v.equal("the peak", v.of(".fact b"), sizeText(d.MaxActive))
			v.equal("the marker", v.number("markerState()"), d.PeakState)
			var at memviz.State
			v.ask(fmt.Sprintf("at?device=0&state=%d&top=60", d.PeakState), &at)
			v.equal("who holds most, bytes", v.of("#inspector .holder .amount"), sizeText(at.Groups[0].Bytes))
			v.equal("stacks listed", v.number("document.querySelectorAll('#inspector .holder').length"), len(at.Groups))
			for _, from := range []int{d.Events * 3 / 5, d.Events / 3, 2} {
				v.heights(from, min(from+120, d.States-1))
			}
			v.strips()
			v.press("2")
			v.equal("the peak of segments", v.of(".fact b"), sizeText(d.MaxCached))
			v.strips()
			v.clean(v.origin)
		})
	}
}

// heights checks that strips end where the engine's totals are, for some states of a range.
func (v *view) heights(from, to int) {
	v.Helper()
	v.do(fmt.Sprintf("timelines.active.zoomTo(%d, %d, 0, 0)", from, to))
	picture := v.tab.Picture()
	ground, checked := v.colour("css('--plot')"), 0
	_, peak := v.point(0, v.number("device().max_active"))
	for s := from + 3; s < to-3; s += 7 {
		var at memviz.State
		v.ask(fmt.Sprintf("at?device=0&state=%d&top=1", s), &at)
		x, y := v.point(float64(s)+0.5, float64(at.Active))
		_, bottom := v.point(0, 0)
		if math.Abs(y-peak) < 24 || math.Abs(v.number("timelines.active.x(markerState())")-x) < 3 || bottom-y < 8 {
			continue // lines and words of the axes are drawn there
		}
		checked++
		if c := pixel(picture, x, y+3); far(c, ground) < 24 {
			v.Errorf("state %d: nothing is drawn just below its %d bytes", s, at.Active)
		}
		if c := pixel(picture, x, y-4); far(c, ground) > 40 {
			v.Errorf("state %d: %v is drawn above its %d bytes", s, c, at.Active)
		}
	}
	if checked < 3 && from > 100 {
		v.Errorf("only %d states of %d to %d could be checked", checked, from, to)
	}
}

// strips checks colour, tooltip and details of large strips at the marker against the engine.
func (v *view) strips() {
	v.Helper()
	v.press("0", "p")
	v.do("timelines[where.view].zoomTo(markerState() - 60, markerState() + 60, 0, 0)")
	var list []struct {
		ID      uint32
		X, Y, H float64
		Colour  string
	}
	v.tab.Eval(`(t => t.stripsAt(markerState()).filter(s => s.size * t.ky > 9).slice(0, 6).map(s => {
		const b = t.plot.getBoundingClientRect(), c = Math.floor((markerState() - s.t.first) / s.t.width), off = s.t.offset[stepAt(s.t, s.i, c)];
		return {id: s.id, x: b.left + t.x(markerState()) + 2, y: b.top + t.y(off + s.size / 2), h: s.size * t.ky, colour: rgbText(stripRGB(s.t, s.i))};
	}))(timelines[where.view])`, &list)
	if len(list) == 0 {
		v.Fatal("no strip is large enough to check")
	}
	kind := v.text("where.view")
	picture := v.tab.Picture()
	right := 0
	for _, s := range list {
		var want [3]int
		fmt.Sscanf(s.Colour, "rgb(%d %d %d)", &want[0], &want[1], &want[2])
		for dx := 0.0; dx < 40; dx += 4 { // words may cover some of it
			if far(pixel(picture, s.X+dx, s.Y-2), want) < 12 {
				right++
				break
			}
		}
		v.tab.Hover(s.X, s.Y)
		v.settle()
		var a memviz.Allocation
		v.ask(fmt.Sprintf("alloc?device=0&view=%s&id=%d", kind, s.ID), &a)
		v.equal("the tooltip's size", v.of("#tip b"), sizeText(a.Size))
		if label := a.Stack.Label; label != "" && a.Stack.ID != 0 && !strings.Contains(label, " ") {
			if last := label[strings.LastIndex(label, ":")+1:]; !strings.Contains(v.of("#tip"), last) {
				v.Errorf("the tooltip %q does not name %q", v.of("#tip"), last)
			}
		}
	}
	if right < len(list)-1 {
		v.Errorf("%d of %d strips have their colour", right, len(list))
	}
	s := list[len(list)-1]
	v.tab.Click(s.X, s.Y)
	v.settle()
	var a memviz.Allocation
	v.ask(fmt.Sprintf("alloc?device=0&view=%s&id=%d", kind, s.ID), &a)
	v.equal("the selection's size", v.of("#inspector h2"), sizeText(a.Size))
	if text := v.of("#inspector"); !strings.Contains(text, a.Addr) || !strings.Contains(text, a.Stream) {
		v.Errorf("the details %q lack address %s or stream %s", text, a.Addr, a.Stream)
	}
	for _, f := range a.Stack.Frames[:min(1, len(a.Stack.Frames))] {
		if text := v.of("#inspector .frames"); f.Line > 0 && !strings.Contains(text, f.Name) {
			v.Errorf("the stack lacks the frame %s", f.Name)
		}
	}
	v.press("Escape")
	v.equal("the selection after Escape", v.number("Math.max(where.sel, where.seg)"), -1)
	v.tab.Hover(5, 5)
}

// pageMoves uses wheel, drag, small map and keys, and checks what is visible then.
func pageMoves(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "resnet50"), nil)
	d := v.info.Devices[0]
	for _, n := range []uint64{0, 1, 999, 1000, 1023, 1024, 1536, 10 << 10, 1_048_000, 1<<20 - 1, 1 << 20, 123 << 20, 1<<30 + 5<<26,
		1 << 40, 3 << 50} {
		v.equal(fmt.Sprintf("the text of %d bytes", n), v.text(fmt.Sprintf("bytes(%d)", n)), sizeText(n))
	}
	span := func() float64 { return v.number("(r => r.to - r.from)(range(1))") }
	state := func(x float64) float64 {
		return v.number(fmt.Sprintf("(t => { t.measure(); return t.stateAt(%g - t.plot.getBoundingClientRect().left) "+
			"})(timelines.active)", x))
	}
	v.equal("the first range", span(), d.States)
	before := state(500)
	v.tab.Wheel(500, 400, 0, -240, browser.None)
	v.settle()
	if s := span(); s > 0.7*float64(d.States) {
		t.Errorf("after the wheel %g states are visible", s)
	}
	if s := state(500); math.Abs(s-before) > 2 {
		t.Errorf("the wheel moved the state under the pointer from %g to %g", before, s)
	}
	v.tab.Drag(500, 400, 400, 400)
	v.settle()
	if s := state(400); math.Abs(s-before) > span()/200 {
		t.Errorf("a drag took state %g to %g", before, s)
	}
	zoomed := span()
	v.tab.Wheel(500, 400, 0, -240, browser.Alt)
	v.settle()
	if h := v.number("range(timelines.active.greatest).hi - range(timelines.active.greatest).lo"); h > 0.8*float64(d.MaxActive) {
		t.Errorf("Alt and wheel left %g bytes visible", h)
	}
	v.press("ArrowRight")
	if s := state(400); s <= before {
		t.Errorf("the right arrow did not move on: %g", s)
	}
	v.press("+")
	if s := span(); math.Abs(s-0.7*zoomed) > 1 {
		t.Errorf("+ left %g of %g states visible", s, zoomed)
	}
	v.press("-")
	v.press("Home")
	v.equal("the start after Home", v.number("range(1).from"), 0)
	v.press("End")
	v.equal("the end after End", v.number("range(1).to"), d.States)
	v.press("0")
	v.equal("the range after 0", span(), d.States)
	x, _ := v.point(float64(d.States)/4, 0)
	x2, _ := v.point(float64(d.States)/2, 0)
	mini := v.number("timelines.active.small.getBoundingClientRect().top + 20")
	v.tab.Drag(x, mini, x2, mini)
	v.settle()
	if s := span(); math.Abs(s-float64(d.States)/4) > float64(d.States)/100 {
		t.Errorf("a range picked on the small map shows %g states of %d", s, d.States)
	}
	v.press("0")
	v.tab.Eval("document.activeElement.blur()", nil)
	v.press("p", ".", ".", ",")
	v.equal("the marker", v.number("markerState()"), d.PeakState+1)
	v.press("Enter")
	largest := v.number("Math.max(...timelines.active.stripsAt(markerState()).map(s => s.size))")
	v.equal("the size that Enter selected", v.of("#inspector h2"), sizeText(uint64(largest)))
	first := v.number("where.sel")
	v.press("]")
	if v.number("where.sel") == first {
		t.Error("] selected nothing else")
	}
	v.press("z")
	if s := span(); s >= float64(d.States) {
		t.Error("z did not zoom")
	}
	v.press("s")
	if v.number("where.stack") == 0 {
		t.Error("s highlights no stack")
	}
	v.press("Escape", "Escape")
	v.equal("selection and highlight", v.text("`${where.sel} ${where.stack}`"), "-1 0")
	v.press("?")
	v.equal("the help", v.text("String(byId('help').open)"), "true")
	v.press("?")
	v.equal("the help", v.text("String(byId('help').open)"), "false")
	v.press("/")
	v.equal("the focus after /", v.text("document.activeElement.id"), "search")
	v.clean(v.origin)
}

// pageTheme checks that the page follows the system, and that a person's choice counts more.
func pageTheme(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "resnet50"), nil)
	ground := func() int {
		picture := v.tab.Picture()
		x, y := v.point(3, float64(v.info.Devices[0].MaxActive)*0.97)
		c := pixel(picture, x, y)
		return c[0] + c[1] + c[2]
	}
	if g := ground(); g < 600 {
		t.Errorf("the light page is dark: %d", g)
	}
	v.tab.Prefer("prefers-color-scheme", "dark")
	v.tab.Wait("document.documentElement.dataset.theme === 'dark'")
	v.settle()
	if g := ground(); g > 150 {
		t.Errorf("the dark page is light: %d", g)
	}
	v.contrast("dark")
	v.press("t")
	if g := ground(); g < 600 {
		t.Errorf("t did not make the page light: %d", g)
	}
	v.contrast("light")
	v.tab.Go(v.url)
	v.settle()
	v.equal("the theme after a reload", v.text("document.documentElement.dataset.theme"), "light")
	v.clean(v.origin)
}

// contrast checks every pair of text and ground colours for the 4.5 to 1 of WCAG 2.1, success criterion 1.4.3.
func (v *view) contrast(theme string) {
	v.Helper()
	light := func(c [3]int) float64 {
		l := 0.0
		for i, share := range []float64{0.2126, 0.7152, 0.0722} {
			x := float64(c[i]) / 255
			if x <= 0.04045 {
				x /= 12.92
			} else {
				x = math.Pow((x+0.055)/1.055, 2.4)
			}
			l += share * x
		}
		return l
	}
	for _, ink := range []string{"ink", "muted", "faint", "accent", "danger", "good", "pool", "peak"} {
		for _, ground := range []string{"plot", "panel", "raise", "ground"} {
			a, b := light(v.colour("css('--"+ink+"')")), light(v.colour("css('--"+ground+"')"))
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
				v.Errorf("%s: %s on %s has contrast %.2f", theme, ink, ground, ratio)
			}
		}
	}
}

// pageSearch types a query and compares what is listed and drawn with the engine's answer.
func pageSearch(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), nil)
	var all memviz.SearchResult
	v.ask("search?device=0&q=dropout&limit=200", &all)
	v.press("/")
	v.tab.Type("dropout")
	v.tab.Wait("where.q === 'dropout'")
	v.settle()
	v.equal("the count", v.of("#inspector h2"), fmt.Sprintf("%d allocations", all.Count))
	v.equal("the rows", v.number("document.querySelectorAll('#inspector .result').length"), len(all.Results))
	v.equal("the first row", v.of("#inspector .result b"), sizeText(all.Results[0].Size))
	lit := v.number("(t => { let n = 0; for (const p of t.wanted(t.from, t.to, t.plotW * t.ratio)) { const x = tile(p), {lit} = " +
		"t.litOf(x, p); for (let i = 0; i < x.strips; i++) if (lit(i)) n++; } return n })(timelines.active)")
	if lit == 0 {
		t.Error("nothing stands out")
	}
	v.press("Enter")
	v.equal("the focus after Enter", v.text("document.activeElement.className.split(' ')[0]"), "holder")
	v.press("o")
	most := v.number("timelines.active.greatest")
	if most <= 0 || most > float64(all.Bytes) {
		t.Errorf("stacked alone, %g bytes match at most, and %d in all", most, all.Bytes)
	}
	v.do("document.querySelector('#inspector .result').click()")
	v.equal("the selection", v.number("where.sel"), all.Results[0].ID)
	v.press("Escape", "/")
	v.do("byId('search').value = 'size>>3', byId('search').dispatchEvent(new Event('input'))")
	v.tab.Wait("where.q === 'size>>3'")
	v.settle()
	if text := v.of("#inspector .danger"); !strings.Contains(text, "size") {
		t.Errorf("a broken query is answered with %q", v.of("#inspector"))
	}
	v.press("Escape")
	v.equal("the query after Escape", v.text("where.q"), "")
	// A refused request is an error in the log of the browser too; it is the only one.
	for _, e := range v.tab.Errors() {
		if !strings.Contains(e, "400") {
			t.Errorf("the page complained: %s", e)
		}
	}
}

// pageState steps through events and compares the block map with the engine's.
func pageState(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), nil)
	d := v.info.Devices[0]
	// The marked row is in sight as soon as the view is, though what stands above and beside the list takes its place after it.
	v.do("update({view: 'state', state: device().states - 1}, true)")
	if low := v.number("(r => r ? Math.max(0, r.bottom - views.state.table.scroller.getBoundingClientRect().bottom) : " +
		"1e9)(document.querySelector('.event.on')?.getBoundingClientRect())"); low > 1 {
		t.Errorf("the marked row stands %g pixels below the list", low)
	}
	v.do("update({view: 'active', state: -1}, true)")
	v.press("3")
	check := func(state int) {
		t.Helper()
		v.tab.Wait(fmt.Sprintf("views.state.map && views.state.map.state === %d", state))
		v.settle()
		var m memviz.BlockMap
		v.ask(fmt.Sprintf("blocks?device=0&state=%d", state), &m)
		var size uint64
		for _, s := range m.Segments {
			size += s.Size
		}
		head := v.of(".state-view .facts")
		if !strings.Contains(head, sizeText(size)) || !strings.Contains(head, fmt.Sprintf("%d segments", len(m.Segments))) &&
			!strings.Contains(head, fmt.Sprintf("%dsegments", len(m.Segments))) {
			t.Errorf("state %d: %q lacks %s or %d segments", state, head, sizeText(size), len(m.Segments))
		}
		var list memviz.EventList
		v.ask(fmt.Sprintf("events?device=0&from=%d&count=1", state-1), &list)
		row := v.of(".event.on")
		if !strings.Contains(row, sizeText(list.Events[0].Size)) {
			t.Errorf("state %d: the marked row is %q, the event has %d bytes", state, row, list.Events[0].Size)
		}
		var places []struct {
			X, Y   float64
			Colour string
		}
		v.tab.Eval(`(w => { const b = w.scroller.getBoundingClientRect(), out = [];
			for (const p of w.pieces) for (const x of p.s.blocks) {
				const k = p.w / (p.to - p.from), a = (Math.max(x.offset, p.from) - p.from) * k, z = (Math.min(x.offset + x.size, p.to) - p.from) * k;
				if (z - a > 12 && out.length < 40) out.push({x: b.left + 16 + p.x + z - 5, y: b.top + p.y + 3 - w.scroller.scrollTop, colour: stackColour(x.stack)});
			} return out })(views.state)`, &places)
		picture := v.tab.Picture()
		right := 0
		for _, p := range places {
			var want [3]int
			fmt.Sscanf(p.Colour, "rgb(%d %d %d)", &want[0], &want[1], &want[2])
			if far(pixel(picture, p.X, p.Y), want) < 12 {
				right++
			}
		}
		if len(places) < 5 || right < len(places)*9/10 {
			t.Errorf("state %d: %d of %d blocks have their colour", state, right, len(places))
		}
	}
	check(d.PeakState)
	v.press("ArrowDown")
	check(d.PeakState + 1)
	v.press("End")
	check(d.Events)
	if titles := v.text("views.state.titles.map(t => t.g.private ? t.g.pool : '-').join(' ')"); !strings.Contains(titles, "(1,0)") {
		t.Errorf("the private pool is not marked: %s", titles)
	}
	v.do("document.querySelector('.event').click()")
	if s := v.number("markerState()"); s >= float64(d.Events) {
		t.Error("a click on a row did not move the marker")
	}
	v.do("update({state: device().peak_state, q: 'dropout'})")
	var found memviz.SearchResult
	v.ask(fmt.Sprintf("search?device=0&q=dropout%%20event:%d&limit=200", d.PeakState-1), &found)
	v.equal("blocks that stand out in a search", v.number("views.state.lit.size"), found.Count)
	v.do("update({q: ''})")
	var row [2]float64
	v.tab.Eval("(r => [r.left + 60, r.top + 10])(document.querySelector('#inspector .holder').getBoundingClientRect())", &row)
	v.tab.Hover(row[0], row[1])
	v.tab.Wait("views.state.hoverStack > 0")
	v.tab.Hover(5, 5)
	v.tab.Wait("views.state.hoverStack === 0")
	var at [2]float64
	v.tab.Eval(
		`(w => { const b = w.scroller.getBoundingClientRect(), p = w.pieces.find(p => p.s.blocks.some(x => x.offset >= p.from && x.offset + x.size <= p.to && x.size / p.s.size > 0.3)), x = p.s.blocks.find(x => x.size / p.s.size > 0.3);
		return [b.left + 16 + p.x + (x.offset + x.size / 2 - p.from) * p.w / (p.to - p.from), b.top + p.y + 9 - w.scroller.scrollTop] })(views.state)`, &at)
	v.tab.Click(at[0], at[1])
	v.settle()
	if id := v.number("where.sel"); id < 0 {
		t.Error("a click on a block selects nothing")
	}
	v.equal("the tooltip and the details", v.of("#tip b"), v.text("bytes(views.state.over.b.size)"))
	v.clean(v.origin)
}

// pageViews compares the other views with the engine's answers.
func pageViews(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), snapshotOf(t, "resnet50"))
	d := v.info.Devices[0]
	v.press("4")
	var at memviz.State
	v.ask(fmt.Sprintf("at?device=0&state=%d&top=200", d.PeakState), &at)
	v.equal("rows of the peak", v.number("document.querySelectorAll('.list tbody tr').length"), len(at.Groups))
	v.equal("its first row", v.of(".list tbody .strong"), sizeText(at.Groups[0].Bytes))
	v.do("document.querySelector('.fold-button').click()")
	v.tab.Wait("document.querySelectorAll('.open .frame').length > 0")
	v.do("[...document.querySelectorAll('.group .small')][1].click()")
	v.equal("the flame graph's root", v.of(".flame"), "all"+sizeText(at.Active))
	var wide float64
	v.tab.Eval("[...document.querySelectorAll('.flame')].filter(e => e.style.top === '21px').reduce((n, e) => n + "+
		"parseFloat(e.style.width.slice(5)), 0)", &wide)
	if wide < 98 || wide > 100.01 {
		t.Errorf("the outermost frames are %g %% wide together", wide)
	}
	v.press("5")
	var oom memviz.OOM
	v.ask("oom?device=0&index=0", &oom)
	v.equal("the failed allocation", v.of(".oom-title em"), sizeText(oom.Size))
	v.equal("why", v.of(".summary .first"), oom.Summary[0])
	if text := sizeText(oom.Size) + " were asked for"; !strings.HasPrefix(oom.Summary[0], text) ||
		!strings.Contains(oom.Summary[0], sizeText(oom.DeviceFree)) {
		t.Errorf("%q writes sizes unlike the page, which has %q", oom.Summary[0], text)
	}
	v.equal("reasons", v.number("document.querySelectorAll('.reason').length"), len(oom.Reasons))
	v.press("6")
	var diff memviz.Diff
	v.ask("diff?device=0&at=peak", &diff)
	if text := v.of(".fact b"); text != sizeText(diff.BeforeActive)+" → "+sizeText(diff.AfterActive) {
		t.Errorf("the comparison begins with %q", text)
	}
	first := diff.Groups[0]
	if text := v.of(".list tbody .strong"); !strings.Contains(text,
		sizeText(uint64(math.Abs(float64(first.AfterBytes)-float64(first.BeforeBytes))))) {
		t.Errorf("the greatest change is %q, the engine has %d to %d", text, first.BeforeBytes, first.AfterBytes)
	}
	v.press("7")
	if text := v.of(".settings"); !strings.Contains(text, "garbage_collection_threshold") {
		t.Errorf("the settings are %q", text)
	}
	v.clean(v.origin)

	alone := serve(t, b, snapshotOf(t, "resnet50"), nil)
	alone.press("5")
	alone.equal("no failure", alone.of(".empty h2"), "No allocation failed")
	alone.press("6")
	alone.equal("no comparison", alone.of(".empty h2"), "One snapshot is open")
	alone.clean(alone.origin)
}

// pageLinks opens an address that leads to a view, a range and a selection, goes elsewhere and comes back.
func pageLinks(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "resnet50"), nil)
	v.do("timelines.active.zoomTo(1000, 1500)")
	v.press("p")
	v.press("Enter")
	link := v.text("writeAddress.flush(), location.href")
	sel := v.number("where.sel")
	if sel < 0 {
		t.Fatal("nothing is selected")
	}
	w := &view{T: t, url: v.url, origin: v.origin, info: v.info}
	w.open(b, link)
	w.equal("the range", w.text("`${where.from} ${where.to}`"),
		v.text("`${Math.round(where.from * 100) / 100} ${Math.round(where.to * 100) / 100}`"))
	w.equal("the selection", w.number("where.sel"), sel)
	w.equal("its size", w.of("#inspector h2"), v.of("#inspector h2"))
	w.press("4")
	w.equal("the view", w.text("document.querySelector('[aria-selected=true]').id"), "tab-peak")
	w.do("history.back()")
	w.tab.Wait("where.view === 'active'")
	w.equal("the view after Back", w.text("document.querySelector('[aria-selected=true]').id"), "tab-active")
	w.do("location.hash = '#view=nonsense&from=x&sel=-7'")
	w.equal("the view of a broken link", w.text("where.view"), "active")
	w.clean(w.origin)
}

// pageNames checks that everything that can be operated has a name and can be reached with the Tab key.
func pageNames(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), nil)
	for _, k := range []string{"1", "2", "3", "4", "5", "6", "7"} {
		v.press(k)
		nameless := v.text(
			`[...document.querySelectorAll('button, input, select, canvas[tabindex], [tabindex="0"]')].filter(e => e.checkVisibility() &&
			!(e.getAttribute('aria-label') || e.textContent.trim() || e.labels && e.labels.length)).map(e => e.outerHTML.slice(0, 80)).join('\n')`)
		if nameless != "" {
			t.Errorf("view %s: without a name: %s", k, nameless)
		}
	}
	v.press("1")
	// Where Tab starts from after a blur is the browser's choice; from the first link every element lies ahead.
	v.tab.Eval("document.getElementById('skip').focus()", nil)
	reached := map[string]bool{}
	for range 30 {
		v.tab.Press("Tab")
		reached[v.text("document.activeElement.id || document.activeElement.className || document.activeElement.tagName")] = true
	}
	for _, want := range []string{"tab-active", "search", "theme", "help-button", "colour", "layer", "divider"} {
		if !reached[want] {
			t.Errorf("Tab does not reach %s; it reaches %v", want, reached)
		}
	}
	v.clean(v.origin)
}

// pageGoNames looks at how functions of Go are written: without their packages' paths.
func pageGoNames(t *testing.T, b *browser.Browser) {
	v := serve(t, b, opened(t, twoDevices()), nil)
	for _, c := range [][2]string{
		{"{name: 'example.com/mod/pkg.(*T).Func', file: '/src/a.go'}", "pkg.(*T).Func"},
		{"{name: 'main.main', file: 'main.go'}", "main.main"},
		{"{name: 'a.b/pkg.Map[go.shape.struct { a/b.X int }]', file: 'x.go'}", "pkg.Map[go.shape.struct { a/b.X int }]"},
		{"{name: 'at::native::div/', file: 'x.cpp'}", "at::native::div/"},
	} {
		v.equal(c[0], v.text("callName("+c[0]+")"), c[1])
	}
	v.equal("a label", v.text("shortLabel('/src/model.go:12:example.com/net/model.weights')"), "model.weights  model.go:12")
	v.clean(v.origin)
}

// pageFaults shows what the page says when there is nothing to show or nobody answers.
func pageFaults(t *testing.T, b *browser.Browser) {
	rec := snapshotOf(t, "resnet50")
	s, err := memviz.NewServer(rec, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	v := &view{T: t, url: s.URL(), origin: s.URL()}
	v.open(b, v.url)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	v.tab.Eval("void timelines.active.zoomTo(100, 200)", nil)
	v.tab.Wait("!byId('notice').hidden")
	if text := v.of("#notice"); !strings.Contains(text, "does not answer") {
		t.Errorf("the notice is %q", text)
	}
	for _, e := range v.tab.Errors() {
		if !strings.Contains(e, "ERR_CONNECTION_REFUSED") {
			t.Errorf("the page complained: %s", e)
		}
	}
	var refused bool
	v.tab.Eval("(() => { try { decodeTile(new ArrayBuffer(128)); return false } catch { return true } })()", &refused)
	if !refused {
		t.Error("a tile of an unknown form was taken")
	}

	empty := filepath.Join(t.TempDir(), "empty.pickle")
	// {'segments': [], 'device_traces': []} in protocol 2.
	if err := os.WriteFile(empty, []byte("\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u."), 0o600); err != nil {
		t.Fatal(err)
	}
	nothing, err := memviz.Open(empty, memviz.Options{NoCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer nothing.Close()
	var html bytes.Buffer
	if err := memviz.WriteStatic(&html, nothing, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "empty.html")
	if err := os.WriteFile(path, html.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	tab := b.Open(t, "file://"+path, pageWidth, pageHeight)
	tab.Wait("document.querySelector('.empty h2')")
	e := &view{T: t, tab: tab}
	e.equal("an empty snapshot", e.of(".empty h2"), "The snapshot holds nothing")
	e.equal("fields for a search of nothing", e.number("[...document.querySelectorAll('.search')].filter(x => x.offsetWidth).length"), 0)
	tab.Eval("void byId('help-button').click()", nil)
	e.equal("the keyboard's help", e.number("+byId('help').open"), 1)
	e.clean("file://")
}

// pageStatic opens static files, which must show the same without any server.
func pageStatic(t *testing.T, b *browser.Browser) {
	for _, name := range shown() {
		t.Run(name, func(t *testing.T) {
			rec := snapshotOf(t, name)
			var html bytes.Buffer
			if err := memviz.WriteStatic(&html, rec, nil); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), name+".html")
			if err := os.WriteFile(path, html.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			served := serve(t, b, rec, nil)
			d := served.info.Devices[0]
			a := served.tab.Picture()
			v := &view{T: t, url: served.url, origin: "file://" + path}
			v.open(b, v.origin)
			v.equal("the peak", v.of(".fact b"), sizeText(d.MaxActive))
			v.equal("the holders", v.of("#inspector h2"), sizeText(d.MaxActive))
			c := v.tab.Picture()
			differ := 0
			for y := 100; y < pageHeight-40; y++ {
				for x := 80; x < 1050; x++ {
					if far(pixel(a, float64(x), float64(y)), pixel(c, float64(x), float64(y))) > 8 {
						differ++
					}
				}
			}
			if differ > 0 {
				t.Errorf("%d pixels of the timeline are other than the server's", differ)
			}
			v.press("p", "Enter")
			v.equal("the largest at the peak", v.of("#inspector h2"),
				sizeText(uint64(v.number("Math.max(...timelines.active.stripsAt(markerState()).map(s => s.size))"))))
			v.press("Escape", "3", "ArrowDown", "4", "5", "6", "7", "2", "1")
			v.equal("strips of at least 1 k, 1 KiB and 1024 B", v.text("['1k', '1KiB', '1024'].map(x => drawnMatches('size>=' + "+
				"x).length === drawnMatches('size>=1024').length && drawnMatches('-size>=' + x).length === "+
				"drawnMatches('size<1024').length).join()"), "true,true,true")
			v.do("update({q: 'forward'})")
			if text := v.of("#inspector h2"); !strings.Contains(text, "strip") || strings.HasPrefix(text, "0") {
				t.Errorf("search says %q", text)
			}
			v.clean(v.origin)
			html.Reset()
			v.must(memviz.WriteStatic(&html, rec, nil, memviz.StaticOptions{View: memviz.ViewState, Bytes: 1 << 16}))
			v.must(os.WriteFile(path, html.Bytes(), 0o600))
			v.tab.Go(v.origin)
			v.settle()
			v.equal("the view that was asked for", v.text("document.querySelector('[aria-selected=true]').id"), "tab-state")
			for _, r := range v.tab.Requests() {
				if strings.HasPrefix(r, "http") {
					t.Errorf("the static file asked for %s", r)
				}
			}
		})
	}
}
