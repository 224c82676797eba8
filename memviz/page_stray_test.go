package memviz_test

import (
	"strings"
	"testing"

	"tenon.dev/internal/browser"
	"tenon.dev/internal/snapshot"
)

// pageStray shows a trace with little data: one allocation in no segment, on the second device, with which the page begins since the
// first has no trace. The page draws it, explains what it cannot draw, and counts it correctly.
func pageStray(t *testing.T, b *browser.Browser) {
	s := &snapshot.Snapshot{Stacks: &snapshot.Stacks{}, Notes: make([]snapshot.Note, 1), Traces: make([][]snapshot.Event, 2)}
	s.Segments = []snapshot.Segment{{Addr: 1 << 40, TotalSize: 2 << 20, Type: "small",
		Blocks: []snapshot.Block{{Addr: 1 << 40, Size: 2 << 20}}}}
	s.Traces[1] = []snapshot.Event{{Action: snapshot.ActionAlloc, Addr: 0x7f0000000000, Size: 1000}}
	v := serve(t, b, opened(t, s), nil)
	v.equal("the device that it begins with", v.number("device().device"), 1)
	if text := v.of(".facts"); !strings.Contains(text, "1event1allocationColour") {
		t.Errorf("above the timeline stands %q", text)
	}
	v.press("2")
	picture := v.tab.Picture()
	words, ground := 0, v.colour("css('--plot')")
	for x := 300.0; x < 900; x++ {
		for y := 380.0; y < 520; y++ {
			if far(pixel(picture, x, y), ground) > 60 {
				words++
			}
		}
	}
	if words < 300 {
		t.Errorf("a timeline of no segments is not explained: %d pixels of text", words)
	}
	v.press("3")
	v.equal("the block map's titles", v.text("views.state.titles.map(t => [t.g.stray, t.g.segments.length, t.g.size].join()).join(' ')"),
		"true,1,1000")
	if text := v.of(".block-legend"); !strings.Contains(text, "made by this event") {
		t.Errorf("the block map's legend is %q", text)
	}
	v.press(",")
	v.equal("before the event", v.number("views.state.pieces.length"), 0)
	v.clean(v.origin)
}
