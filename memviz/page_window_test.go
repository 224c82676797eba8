package memviz_test

import (
	"testing"

	"tenon.dev/memviz/browser"
)

// pageWindow looks at every view in a small window: a view without details has all of the height, and every tab can be seen.
func pageWindow(t *testing.T, b *browser.Browser) {
	v := serve(t, b, snapshotOf(t, "gpt2_amp_graph"), snapshotOf(t, "resnet50"))
	v.must(v.tab.Resize(900, 600))
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
		if over := v.number("Math.max(0, document.documentElement.scrollWidth - innerWidth) + Math.max(0, byId('tabs').scrollWidth - byId('tabs').clientWidth)"); over != 0 {
			t.Errorf("view %s: %g pixels do not fit into the window's width", key, over)
		}
	}
	v.press("1")
	for _, width := range []int{1300, 1000} {
		v.must(v.tab.Resize(width, 700))
		v.settle()
		place, small := v.number("byId('view').clientWidth"), v.number("timelines.active.small.clientWidth")
		if place != small {
			t.Errorf("in a window of %d pixels the overview is %g wide in a place of %g", width, small, place)
		}
	}
	v.clean(v.origin)
}
