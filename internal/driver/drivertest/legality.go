package drivertest

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
)

var rewrite = flag.Bool("drivertest.rewrite", false, "write the table of calls in a capture to the suite's testdata")

//go:embed testdata/legality.txt
var legalityGolden string

// legalityColumns are the situations of the table: the capture's mode, and whether the call comes from the capturing thread. In the last
// two the calling thread has switched its own mode to relaxed.
var legalityColumns = []struct {
	name           string
	mode           driver.CaptureMode
	other, relaxed bool
}{
	{"global", driver.CaptureGlobal, false, false},
	{"g/other", driver.CaptureGlobal, true, false},
	{"local", driver.CaptureThreadLocal, false, false},
	{"l/other", driver.CaptureThreadLocal, true, false},
	{"relaxed", driver.CaptureRelaxed, false, false},
	{"r/other", driver.CaptureRelaxed, true, false},
	{"g/exch", driver.CaptureGlobal, false, true},
	{"g/o/exch", driver.CaptureGlobal, true, true},
}

// legalityCell is one call in one situation.
type legalityCell struct {
	*fixture
	// t is the calling thread's token.
	t driver.Thread
	// s is being captured and holds one node; idle and second are not being captured.
	s, idle, second driver.Stream
	// plain was recorded and is done; captured was recorded on s in the capture; never was not recorded. None has timing.
	plain, captured, never driver.Event
	// timed events were recorded and are done.
	timedA, timedB driver.Event
	// Shared by the whole table.
	p, q   driver.Ptr
	pinned []byte
	page   []byte
	graph  driver.Graph
	exec   driver.GraphExec
	module driver.Module
	// Created before the capture, for calls that destroy.
	mem   driver.Ptr
	host  []byte
	undo  []func()
	extra uintptr
}

// later schedules fn to run after the capture.
func (c *legalityCell) later(fn func()) { c.undo = append(c.undo, fn) }

// legalityRow is one call; setup runs before the capture begins, on the capturing thread, and in runs during the capture, before the call.
type legalityRow struct {
	name     string
	blocking bool
	setup    func(c *legalityCell)
	in       func(c *legalityCell)
	call     func(c *legalityCell) error
}

// legality prints the result of each call while a stream is being captured, and compares the results with the golden table.
func legality(f *fixture) {
	var b strings.Builder
	fmt.Fprintf(&b, "# What each call returns while stream s is captured: 0 or the error's number; ! = the capture is then invalidated.\n")
	fmt.Fprintf(&b,
		"# Columns: the capture's mode and the calling thread (the capturing one, or /other); exch = the caller's own mode is relaxed.\n")
	fmt.Fprintf(&b, "%-40s", "call")
	for _, col := range legalityColumns {
		fmt.Fprintf(&b, " %-8s", col.name)
	}
	b.WriteString("\n")
	shared := legalityCell{fixture: f, p: f.alloc(4096), q: f.alloc(4096), pinned: f.host(64), page: make([]byte, 64)}
	setup := f.stream()
	f.fill(shared.p, 0, 1024)
	fn := f.fn("saxpy")
	shared.graph = f.capture(setup, driver.CaptureThreadLocal, func() { f.ok(f.d.Memset(shared.p, 0, 1, 4, setup)) })
	shared.exec = f.instantiate(shared.graph)
	var err error
	shared.module, err = f.d.LoadModule(f.th, f.s.k.Saxpy)
	f.ok(err)
	f.Cleanup(func() { f.d.UnloadModule(f.th, shared.module) })
	rows := legalityRows(fn)
	golden := legalityGolden
	if i := f.d.Info(); i.VirtualMemory && i.PoolMemory {
		rows = append(rows, memoryRows()...)
	} else {
		golden = withoutRows(golden, memoryRows())
	}
	for _, row := range rows {
		line := fmt.Sprintf("%-40s", row.name)
		for col := range legalityColumns {
			line += fmt.Sprintf(" %-8s", legalityCall(shared, row, col))
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	if *rewrite {
		_, file, _, _ := runtime.Caller(0)
		f.ok(os.WriteFile(filepath.Join(filepath.Dir(file), "testdata", "legality.txt"), []byte(b.String()), 0o644))
		return
	}
	compareTables(f, golden, b.String())
}

// withoutRows returns the table without some rows.
func withoutRows(table string, rows []legalityRow) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		name := strings.TrimSpace(line[:min(40, len(line))])
		if !slices.ContainsFunc(rows, func(r legalityRow) bool { return r.name == name }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// compareTables reports the rows that differ.
func compareTables(f *fixture, want, got string) {
	rows := func(s string) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(s) {
			m[strings.TrimSpace(line[:min(40, len(line))])] = strings.TrimSpace(line)
		}
		return m
	}
	w, g := rows(want), rows(got)
	for line := range strings.Lines(got) {
		name := strings.TrimSpace(line[:min(40, len(line))])
		if w[name] != g[name] {
			f.Errorf("the device and the golden table differ:\ngot  %s\nwant %s", g[name], w[name])
		}
	}
	for line := range strings.Lines(want) {
		if name := strings.TrimSpace(line[:min(40, len(line))]); g[name] == "" {
			f.Errorf("the golden table has a row that no call makes: %s", w[name])
		}
	}
	if testing.Verbose() {
		f.Logf("the device's table:\n%s", got)
	}
}

// legalityCall makes one call in one situation and returns the cell's text.
func legalityCall(c legalityCell, row legalityRow, col int) string {
	f, k := c.fixture, legalityColumns[col]
	stream := func(nonBlocking bool) driver.Stream {
		s, err := f.d.StreamCreate(f.th, nonBlocking, 0)
		f.ok(err)
		c.later(func() { f.d.StreamDestroy(f.th, s) })
		return s
	}
	event := func(timing bool) driver.Event {
		e, err := f.d.EventCreate(f.th, timing)
		f.ok(err)
		c.later(func() { f.d.EventDestroy(f.th, e) })
		return e
	}
	c.s, c.idle, c.second = stream(!row.blocking), stream(true), stream(true)
	c.plain, c.captured, c.never, c.timedA, c.timedB = event(false), event(false), event(false), event(true), event(true)
	for _, e := range []driver.Event{c.plain, c.timedA, c.timedB} {
		f.ok(f.d.EventRecord(e, c.idle))
	}
	f.sync(c.idle)
	if row.setup != nil {
		row.setup(&c)
	}
	f.begin(c.s, k.mode)
	f.ok(f.d.Memset(c.p, 0, 1, 4, c.s))
	f.ok(f.d.EventRecord(c.captured, c.s))
	if row.in != nil {
		row.in(&c)
	}
	var err error
	call := func(t driver.Thread) {
		c.t = t
		if k.relaxed {
			old, err := f.d.CaptureExchangeMode(t, driver.CaptureRelaxed)
			if err != nil {
				f.Errorf("%s: CaptureExchangeMode: %v", row.name, err)
			}
			defer f.d.CaptureExchangeMode(t, old)
		}
		err = row.call(&c)
	}
	if k.other {
		f.onThread(call)
	} else {
		call(f.th)
	}
	st, _, serr := f.d.CaptureInfo(c.s)
	f.ok(serr)
	if g, err := f.d.CaptureEnd(f.th, c.s); err == nil {
		f.d.GraphDestroy(f.th, g)
	}
	f.ok(f.d.Synchronize(f.th))
	for i := len(c.undo) - 1; i >= 0; i-- {
		c.undo[i]()
	}
	text := fmt.Sprint(int32(codeOf(err)))
	if st == driver.CaptureInvalidated {
		text += "!"
	}
	if st == driver.CaptureNone {
		text += "-"
	}
	return text
}

// legalityRows returns the table's calls; fn is the saxpy kernel.
func legalityRows(fn driver.Func) []legalityRow {
	var rows []legalityRow
	rows = append(rows, contextRows()...)
	rows = append(rows, streamRows()...)
	rows = append(rows, eventRows()...)
	rows = append(rows, workRows(fn)...)
	rows = append(rows, graphRows()...)
	rows = append(rows, moduleRows(fn)...)
	return append(rows, invalidatedRows(fn)...)
}
