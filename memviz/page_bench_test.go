package memviz

import (
	"context"
	"testing"

	"tenon.dev/internal/browser"
)

// BenchmarkPage measures in a real browser how long a person waits: ms/first from the request of the page to its first complete picture,
// and, after a drag by a fifth of the width at a zoom where every drag needs new tiles, ms/drawn to the next picture and ms/whole to the
// picture with all tiles.
func BenchmarkPage(b *testing.B) {
	rec := reopenBench(b, benchColumns(b))
	defer rec.Close()
	s, err := NewServer(rec, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	tab := browser.Open(b, s.URL(), 1440, 900)
	const whole = "document.documentElement.dataset.ready === '1' && timelines.active.drawn.length > 0 && !timelines.active.frame && " +
		"![...tiles.map.values()].includes(null)"
	tab.Wait(whole)
	var first, drawn, all float64
	tab.Eval("performance.now()", &first)
	tab.Eval("void timelines.active.zoomTo(device().states * 0.3, device().states * 0.3 + 3000)", nil)
	for range b.N {
		tab.Wait(whole)
		var ms [2]float64
		tab.Eval(`(async () => {
			const t = timelines.active, began = performance.now(), frame = () => new Promise(done => requestAnimationFrame(done));
			t.pan(t.plotW / 5);
			while (t.frame) await frame();
			const drawn = performance.now();
			while (t.frame || [...tiles.map.values()].includes(null)) await frame();
			return [drawn - began, performance.now() - began];
		})()`, &ms)
		drawn += ms[0]
		all += ms[1]
	}
	b.ReportMetric(first, "ms/first")
	b.ReportMetric(drawn/float64(b.N), "ms/drawn")
	b.ReportMetric(all/float64(b.N), "ms/whole")
	if e := tab.Errors(); len(e) > 0 {
		b.Errorf("the page complained: %q", e)
	}
}
