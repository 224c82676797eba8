package memviz

import (
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tenon.dev/internal/snapshot"
)

var long = flag.Bool("long", false, "run the benchmarks on 10 million events, and the tests that take long")

// Long is the flag for the package's external tests.
var Long = long

// benchEvents is the length of the traces of benchmarks.
func benchEvents() int {
	if *long {
		return 10_000_000
	}
	return 200_000
}

// benchColumns writes a column file of a synthetic trace and returns its path.
func benchColumns(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bench.columns")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	err = importSnapshot(func(o snapshot.ReadOptions) (*snapshot.Snapshot, error) {
		return newProgram(1, benchEvents(), func(batch []snapshot.Event) error { return o.Events(0, batch) }).run()
	}, f, source{})
	if err != nil {
		b.Fatal(err)
	}
	return path
}

func reopenBench(b *testing.B, path string) *Recording {
	b.Helper()
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	rec, err := openColumns(f, "bench")
	if err != nil {
		b.Fatal(err)
	}
	return rec
}

// get answers a request or fails.
func get(t testing.TB, v *viewer, request string) []byte {
	t.Helper()
	body, err := answerText(v, request)
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	return body
}

// answerText answers a request written as the page writes it.
func answerText(v *viewer, request string) ([]byte, error) {
	u, err := url.Parse(request)
	if err != nil {
		return nil, err
	}
	body, _, err := v.answer(u.Path, u.Query())
	return body, err
}

// firstPicture makes the requests that the page makes before it draws.
func firstPicture(t testing.TB, v *viewer) {
	get(t, v, "info")
	top := v.rec.devices[0].activeLine.topTile()
	get(t, v, fmt.Sprintf("tile?device=0&view=active&level=%d&index=0", top))
	for i := range 2 {
		get(t, v, fmt.Sprintf("tile?device=0&view=active&level=%d&index=%d", max(top-1, 0), i))
	}
	get(t, v, fmt.Sprintf("at?device=0&state=%d&top=20", v.rec.devices[0].activeLine.peak))
}

// BenchmarkReopen opens a column file and answers for the first picture; goal: 10 million events within 2 s.
func BenchmarkReopen(b *testing.B) {
	path := benchColumns(b)
	st, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(st.Size())
	for b.Loop() {
		rec := reopenBench(b, path)
		firstPicture(b, &viewer{rec: rec})
		rec.Close()
	}
}

// BenchmarkPan draws tiles of every level, as panning and zooming do; goal: each within 50 ms. It prints the slowest.
func BenchmarkPan(b *testing.B) {
	rec := reopenBench(b, benchColumns(b))
	defer rec.Close()
	v := &viewer{rec: rec}
	d := rec.devices[0]
	top := d.activeLine.topTile()
	var slowest time.Duration
	i := 0
	for b.Loop() {
		level := i % (top + 1)
		tiles := (d.activeLine.states-1)/(TileColumns<<level) + 1
		request := fmt.Sprintf("tile?device=0&view=active&level=%d&index=%d", level, i*7919%tiles)
		if i%3 == 2 {
			request += fmt.Sprintf("&min=512&lo=%d&hi=%d", d.activeLine.max/4, d.activeLine.max/4+d.activeLine.max/64)
		}
		began := time.Now()
		get(b, v, request)
		slowest = max(slowest, time.Since(began))
		i++
	}
	b.ReportMetric(slowest.Seconds()*1e3, "slowest-ms")
}

// BenchmarkTurnover draws the coarsest tile, and a narrow window, of the hardest kind of trace: every allocation lives about as long as a
// column is wide, so that all of them compete for strips.
func BenchmarkTurnover(b *testing.B) {
	n := benchEvents()
	width := n / TileColumns
	var start, end []uint32
	var size []uint64
	for i := 0; i+3 < n; i += 3 {
		start, size = append(start, uint32(i+1)), append(size, uint64(512*(1+i*7919%4096)))
		end = append(end, uint32(min(n+1, i+2+width*(100+i*31%100)/100)))
	}
	t := newTimeline(n+1, start, end, size, nil)
	for name, r := range map[string]tileRequest{"whole": {min: 512}, "window": {min: 512, lo: t.max / 2, hi: t.max/2 + t.max/32}} {
		r.level = t.topTile()
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				t.draw(r, noStack, noTime)
			}
		})
	}
}

// BenchmarkFilter builds the timeline of a search, as the first tile with a filter does.
func BenchmarkFilter(b *testing.B) {
	rec := reopenBench(b, benchColumns(b))
	defer rec.Close()
	for b.Loop() {
		rec.filters = nil
		if _, err := rec.line(rec.devices[0], ViewActive, "layer1 size>=4k"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSearch finds allocations and lists the largest.
func BenchmarkSearch(b *testing.B) {
	rec := reopenBench(b, benchColumns(b))
	defer rec.Close()
	for b.Loop() {
		rec.filters = nil
		get(b, &viewer{rec: rec}, "search?device=0&q=layer&limit=100")
	}
}

// BenchmarkState asks for the holders of memory and for the blocks in random states.
func BenchmarkState(b *testing.B) {
	rec := reopenBench(b, benchColumns(b))
	defer rec.Close()
	v := &viewer{rec: rec}
	i := 0
	for b.Loop() {
		state := i * 7919 * 31 % rec.devices[0].entry.Events
		get(b, v, fmt.Sprintf("at?device=0&state=%d&top=20", state))
		get(b, v, fmt.Sprintf("blocks?device=0&state=%d", state))
		i++
	}
}

// BenchmarkImport reads a pickle and writes its column file; goal: 150 MB/s.
func BenchmarkImport(b *testing.B) {
	n := benchEvents()
	path := filepath.Join(b.TempDir(), "bench.pickle")
	var trace []snapshot.Event
	s, err := newProgram(1, n, func(batch []snapshot.Event) error {
		trace = append(trace, batch...)
		return nil
	}).run()
	if err != nil {
		b.Fatal(err)
	}
	s.Traces[0] = trace
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Write(f); err != nil {
		b.Fatal(err)
	}
	size, _ := f.Seek(0, io.SeekCurrent)
	f.Close()
	b.SetBytes(size)
	folder := b.TempDir()
	for b.Loop() {
		rec, err := Open(path, Options{Cache: folder})
		if err != nil {
			b.Fatal(err)
		}
		if got := rec.devices[0].entry.Events; got != len(trace) {
			b.Fatalf("%d events of %d", got, len(trace))
		}
		rec.Close()
		for _, kept := range columnFiles(b, folder) {
			os.Remove(kept)
		}
	}
}

// columnFiles returns the column files of a folder.
func columnFiles(t testing.TB, folder string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(folder, "*.columns"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}
