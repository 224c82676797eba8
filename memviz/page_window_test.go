package memviz_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/browser"
)

// pageWindow checks every view in a small window: a view without details uses the whole height, and every tab is visible.
func pageWindow(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), snapshotOf(t, "resnet50"))
	v.tab.Resize(900, 600)
	v.settle()
	for _, key := range []string{"1", "2", "3", "4", "5", "6", "7"} {
		v.press(key)
		foot := "byId('view')"
		if v.number("+withDetails.has(where.view)") == 1 {
			foot = "byId('inspector')"
		}
		if bottom := v.number(foot + ".getBoundingClientRect().bottom"); bottom != 600 {
			t.Errorf("view %s ends at %g of 600 pixels", key, bottom)
		}
		if over := v.number("Math.max(0, document.documentElement.scrollWidth - innerWidth) + Math.max(0, byId('tabs').scrollWidth - " +
			"byId('tabs').clientWidth)"); over != 0 {
			t.Errorf("view %s: %g pixels do not fit into the window's width", key, over)
		}
	}
	for width := 900; width <= 1300; width += 50 {
		v.tab.Resize(width, 600)
		v.settle()
		if over := v.number("byId('tabs').scrollWidth - byId('tabs').clientWidth"); over > 0 {
			t.Errorf("in a window of %d pixels the tabs lack %g", width, over)
		}
	}
	v.press("1")
	for _, width := range []int{1300, 1000} {
		v.tab.Resize(width, 700)
		v.settle()
		place, small := v.number("byId('view').clientWidth"), v.number("timelines.active.small.clientWidth")
		if place != small {
			t.Errorf("in a window of %d pixels the overview is %g wide in a place of %g", width, small, place)
		}
	}
	v.clean(v.origin)
}

// pageAxis checks the labels around a timeline: an event's number is placed where its effect begins, and the marker, which is at the peak
// at first, leaves the peak's figure readable.
func pageAxis(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), nil)
	d := v.info.Devices[0]
	type word struct {
		Text    string
		X, Wide float64
	}
	words := func() (list []word) {
		v.tab.Eval(`(() => {
			const p = CanvasRenderingContext2D.prototype, was = p.fillText, list = [];
			p.fillText = function (text, x, y) {
				const wide = this.measureText(text).width;
				if (this === timelines.active.base.getContext('2d')) list.push({text, wide, x: this.textAlign === 'center' ? x - wide / 2 : x});
				was.call(this, text, x, y);
			};
			timelines.active.draw();
			p.fillText = was;
			return list;
		})()`, &list)
		return list
	}
	marker := v.number("timelines.active.x(markerState())")
	found := false
	for _, w := range words() {
		if w.Text == "peak "+sizeText(d.MaxActive) {
			found = true
			if w.X-2 < marker && marker < w.X+w.Wide+2 {
				t.Errorf("the marker at %g goes through %q, from %g to %g", marker, w.Text, w.X, w.X+w.Wide)
			}
		}
	}
	if !found {
		t.Error("the peak's figure is not there")
	}
	v.do(fmt.Sprintf("timelines.active.zoomTo(%d, %d, 0, 0)", d.Events-9, d.States))
	seen := 0
	for _, w := range words() {
		if e, err := strconv.Atoi(strings.ReplaceAll(w.Text, ",", "")); err == nil && e > d.Events-10 {
			seen++
			if x := v.number(fmt.Sprintf("timelines.active.x(%d)", e+1)); math.Abs(w.X+w.Wide/2-x) > 1 || e >= d.Events {
				t.Errorf("event %d of %d is marked at %g, its effect begins at %g", e, d.Events, w.X+w.Wide/2, x)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d events are marked", seen)
	}
	v.clean(v.origin)
}
