package core

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/rt"
)

// holder is a simulated device, whose streams can be stopped.
type holder interface {
	Hold(s driver.Stream) (release func())
}

// simExec opens a simulated device behind wrap, if it is not nil.
func simExec(t *testing.T, wrap func(d driver.Device) driver.Device) (*Exec, holder) {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	var sim holder
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Memory: 256 << 20, Wrap: func(d driver.Device) driver.Device {
		sim = d.(holder)
		if wrap != nil {
			return wrap(d)
		}
		return d
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(dev, host), sim
}

func forks(t *testing.T, x *Exec, n int) []*Exec {
	t.Helper()
	var ys []*Exec
	for range n {
		y, err := x.Fork()
		if err != nil {
			t.Fatal(err)
		}
		ys = append(ys, y)
	}
	return ys
}

func idle(t *testing.T, x *Exec) bool {
	t.Helper()
	done, err := x.Stream().Query()
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// elsewhere runs f on another goroutine and waits for it.
func elsewhere(f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Wait()
}

// TestReadersDoNotWait checks that many streams read at once without waiting for each other, and that a write waits for all of them.
func TestReadersDoNotWait(t *testing.T) {
	x, sim := simExec(t, nil)
	w := From(x, []float32{1, 2})
	ys := forks(t, x, 6)
	if err := x.Device().Synchronize(); err != nil {
		t.Fatal(err)
	}
	var releases []func()
	var results []*Tensor
	for i, y := range ys[:5] {
		if i%2 == 0 {
			releases = append(releases, sim.Hold(y.Stream().Handle()))
		}
		results = append(results, y.MulS(w, 10))
	}
	for i, y := range ys[:5] {
		if i%2 == 0 {
			continue
		}
		if err := y.Synchronize(); err != nil { // would not return if it waited for a held stream
			t.Fatal(err)
		}
		want(t, y, results[i], 10, 20)
	}
	ys[5].AddSInto(w, w, 1)
	for _, release := range releases {
		if idle(t, ys[5]) {
			t.Fatal("a write came before a read")
		}
		release()
	}
	for i, y := range ys[:5] {
		want(t, y, results[i], 10, 20)
	}
	want(t, ys[5], w, 2, 3)
}

// TestConcurrentAccessesAreKept checks that neither access is lost if two streams use a storage for the first time at once.
func TestConcurrentAccessesAreKept(t *testing.T) {
	x, _ := simExec(t, nil)
	ys := forks(t, x, 2)
	for kind, note := range map[string]func(s *storage, st *rt.Stream, seq uint64){
		"read": (*storage).didRead, "write": (*storage).didWrite} {
		all := make([]storage, 100000)
		var at [2]atomic.Int64
		var wg sync.WaitGroup
		for i, y := range ys {
			wg.Go(func() {
				for j := range all {
					at[i].Store(int64(j))
					for spins := 0; at[1-i].Load() < int64(j); spins++ {
						if spins > 200 {
							runtime.Gosched()
						}
					}
					for range i * (j % 300) { // one comes a little later than the other, by varying times
						at[i].Load()
					}
					note(&all[j], y.Stream(), 1)
				}
			})
		}
		wg.Wait()
		for j := range all {
			s := &all[j]
			found := []uint64{s.reader.Load(), s.writer.Load()}
			if o := s.further(); o != nil {
				for _, y := range ys {
					found = append(found, o.reads[y.Stream().ID()].Load(), o.writes[y.Stream().ID()].Load())
				}
			}
			for _, y := range ys {
				if !slices.Contains(found, pack(y.Stream().ID(), 1)) {
					t.Fatalf("the %s by stream %d was forgotten", kind, y.Stream().ID())
				}
			}
		}
	}
}

// TestWritersOfParts checks that a reader waits for all streams that write different parts of one storage.
func TestWritersOfParts(t *testing.T) {
	x, sim := simExec(t, nil)
	ys := forks(t, x, 3)
	w := x.Zeros([]int{2}, dtype.Float32)
	parts := [2]*Tensor{x.Narrow(w, 0, 0, 1), x.Narrow(w, 0, 1, 1)}
	if err := x.Device().Synchronize(); err != nil {
		t.Fatal(err)
	}
	var releases []func()
	for i, part := range parts {
		releases = append(releases, sim.Hold(ys[i].Stream().Handle()))
		ys[i].AddSInto(part, part, 1)
	}
	sum := ys[2].AddS(w, 0)
	for _, release := range releases {
		if idle(t, ys[2]) {
			t.Fatal("a writer was forgotten")
		}
		release()
	}
	want(t, ys[2], sum, 1, 1)
}

// gated stops the next launch after it was armed, until told to go on.
type gated struct {
	driver.Device
	armed, stuck  atomic.Bool
	there, resume chan struct{}
	stream        driver.Stream
	overtaken     atomic.Bool
}

func (g *gated) Launch(l *driver.Launch) error {
	if g.armed.CompareAndSwap(true, false) {
		g.stream = l.Stream
		g.stuck.Store(true)
		close(g.there)
		<-g.resume
		g.stuck.Store(false)
	} else if g.stuck.Load() && l.Stream == g.stream {
		g.overtaken.Store(true)
	}
	return g.Device.Launch(l)
}

// TestIssuersTakeTurns checks that if two goroutines issue to one stream, the number of an operation implies that all before it are
// launched.
func TestIssuersTakeTurns(t *testing.T) {
	g := &gated{there: make(chan struct{}), resume: make(chan struct{})}
	x, sim := simExec(t, func(d driver.Device) driver.Device { g.Device = d; return g })
	ys := forks(t, x, 3)
	shared, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	a := From(x, []float32{1})
	if err := x.Device().Synchronize(); err != nil {
		t.Fatal(err)
	}
	release := sim.Hold(shared.Handle())
	g.armed.Store(true)
	var first, second, early *Tensor
	var wg sync.WaitGroup
	wg.Go(func() { first = ys[0].On(shared).AddS(a, 1) })
	<-g.there
	done := make(chan struct{})
	wg.Go(func() {
		second = ys[1].On(shared).AddS(a, 2)
		early = ys[2].AddS(second, 10)
		close(done)
	})
	for stacks, over := make([]byte, 1<<20), false; !over; { // until the second has launched, or waits for its turn
		select {
		case <-done:
			over = true
		default:
			over = strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), ".(*Stream).await(")
		}
	}
	close(g.resume)
	wg.Wait()
	late := ys[2].AddS(first, 20)
	if idle(t, ys[2]) {
		t.Error("work of a held stream was not waited for")
	}
	release()
	want(t, ys[2], late, 22)
	want(t, ys[2], early, 13)
	if g.overtaken.Load() {
		t.Error("an operation was launched before one of a smaller number")
	}
}

// TestCaptureBesideOthers runs a capture and eager work of other goroutines on the same tensor, in every order of reads and writes: the
// eager work runs immediately, the graph when it is replayed, and the graph has only the capture's own work.
func TestCaptureBesideOthers(t *testing.T) {
	for _, c := range []string{"rr", "rw", "wr", "ww"} {
		for _, when := range []string{"before", "after", "both"} {
			t.Run(c+when, func(t *testing.T) { captureBeside(t, c[0] == 'w', c[1] == 'w', when) })
		}
	}
}

func captureBeside(t *testing.T, captured, eager bool, when string) {
	x, sim := simExec(t, nil)
	ys := forks(t, x, 4)
	w := From(x, []float32{1})
	value := float32(1) // of w, in the program's order
	type result struct {
		x    *Exec
		t    *Tensor
		want float32
	}
	var results []result
	others := func() {
		for _, y := range ys[:3] {
			elsewhere(func() {
				if eager {
					y.AddInto(w, w, w)
					value *= 2
					return
				}
				results = append(results, result{y, y.MulS(w, 10), value * 10})
			})
		}
	}
	var out *Tensor
	g := captureOf(t, ys[3], CaptureOpt{}, func(y *Exec) {
		if when != "after" {
			others()
		}
		if captured {
			y.AddSInto(w, w, 1)
		} else {
			out = y.MulS(w, 3)
		}
		if when != "before" {
			others()
		}
	})
	if g.Nodes() != 1 {
		t.Fatalf("the graph has %d nodes, want 1", g.Nodes())
	}
	releases := []func(){}
	for _, y := range ys {
		releases = append(releases, sim.Hold(y.Stream().Handle()))
	}
	others()
	mustReplay(t, ys[3], g)
	before := value
	if captured {
		value++
	}
	others()
	for _, release := range slices.Backward(releases) {
		release()
	}
	if !captured {
		want(t, ys[3], out, 3*before)
	}
	for _, r := range results {
		want(t, r.x, r.t, r.want)
	}
	want(t, x, w, value)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWaitsBesideCapture checks that while one goroutine captures, others can capture, wait and free memory, and that the first capture is
// complete.
func TestWaitsBesideCapture(t *testing.T) {
	x, _ := simExec(t, nil)
	ys := forks(t, x, 3)
	u, w := ys[0].Ones([]int{4}, dtype.Float32), ys[1].Ones([]int{4}, dtype.Float32)
	var out, second *Tensor
	var g1 *Graph
	g := captureOf(t, ys[0], CaptureOpt{}, func(y *Exec) {
		a := y.MulS(u, 2)
		elsewhere(func() {
			ys[1].AddSInto(w, w, 1)
			var err error
			if g1, err = ys[1].Capture(func(y *Exec) { second = y.MulS(w, 2) }, CaptureOpt{}); err != nil {
				t.Errorf("a second capture: %v", err)
			}
			for what, f := range map[string]func() error{
				"Device.Synchronize": ys[1].Device().Synchronize, "Synchronize": ys[1].Synchronize, "EmptyCache": ys[1].Device().EmptyCache,
				"Query": func() error { _, err := ys[1].Stream().Query(); return err },
				"Item":  func() error { _, err := ys[1].Item(ys[1].Sum(w, nil, SumOpt{})); return err },
			} {
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for what, f := range map[string]func() error{
				"Synchronize of the capture's stream": y.Stream().Synchronize,
				"Query of the capture's stream":       func() error { _, err := y.Stream().Query(); return err },
				"work on the capture's stream":        func() error { return Try(func() { ys[2].On(y.Stream()).Neg(w) }) },
				"WaitStream":                          func() error { return ys[2].WaitStream(y.Stream()) },
			} {
				t.Run(what, func(t *testing.T) { wantError(t, f(), fault.Capture, "stream", "captured at ", "_test.go:") })
			}
		})
		out = y.AddS(a, 1)
	})
	mustReplay(t, ys[2], g)
	want(t, ys[2], out, 3, 3, 3, 3)
	if g.Nodes() != 2 {
		t.Errorf("the first graph has %d nodes, want 2", g.Nodes())
	}
	if g1 != nil {
		mustReplay(t, ys[1], g1)
		want(t, ys[1], second, 4, 4, 4, 4)
		if err := g1.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCaptureRefusesOuterExec checks that work of the captured function on an Exec from outside, which would run now, fails with one error
// that names its line, and that nothing runs.
func TestCaptureRefusesOuterExec(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a, h := From(x, []float32{1}), From(x.Host(), []float32{1})
		u := leafOf(x, 3)
		for name, f := range map[string]func(y *Exec){
			"alone":    func(*Exec) { x.AddSInto(a, a, 1) },
			"first":    func(y *Exec) { b := x.MulS(a, 2); y.AddSInto(b, b, 1) },
			"mixed":    func(y *Exec) { b := y.MulS(a, 2); x.AddSInto(b, b, 1) },
			"modes":    func(y *Exec) { b := y.MulS(a, 2); x.NoGrad().TF32(true).MulS(b, 1) },
			"passed":   func(*Exec) { _ = Try(func() { x.AddSInto(a, a, 1) }) },
			"host":     func(y *Exec) { y.MulS(a, 2); x.Host().AddSInto(h, h, 1) },
			"its host": func(y *Exec) { y.MulS(a, 2); _ = Try(func() { y.Host().AddSInto(h, h, 1) }) },
			"backward": func(y *Exec) { _ = x.Backward(y.Sum(y.Mul(u, u), nil, SumOpt{}), BackwardOpt{}) },
			"grad":     func(y *Exec) { _, _ = x.Grad([]*Tensor{y.Sum(y.Mul(u, u), nil, SumOpt{})}, []*Tensor{u}, GradOpt{}) },
		} {
			_, err := x.Capture(f, CaptureOpt{})
			wantError(t, err, fault.Capture, "not part of the graph", "order_test.go")
			if n := strings.Count(err.Error(), "\n"); n != 0 {
				t.Errorf("%s: more than one error: %v", name, err)
			}
		}
		want(t, x, a, 1)
		want(t, x.Host(), h, 1)
		if u.Grad() != nil {
			t.Error("a gradient was left")
		}
		// A backward pass runs on the streams of the forward calls, which may have been made outside.
		w := leafOf(x, 3)
		y := x.Mul(w, w)
		g := captureOf(t, x, CaptureOpt{}, func(c *Exec) {
			if err := c.Backward(y, BackwardOpt{Gradient: c.MulS(a, 2)}); err != nil {
				t.Error(err)
			}
		})
		mustReplay(t, x, g)
		want(t, x, w.Grad(), 12)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCaptureRefusesWaits checks that a wait for the device in the captured function fails, and the capture with the same error alone,
// which names the wait's line.
func TestCaptureRefusesWaits(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1})
		var y *Exec
		before := x.Device().NewEvent(false)
		if err := before.Record(x.Stream()); err != nil {
			t.Fatal(err)
		}
		for name, wait := range map[string]func() error{
			"stream":     func() error { return x.Stream().Synchronize() },
			"its stream": func() error { return y.Stream().Synchronize() },
			"device":     func() error { return x.Device().Synchronize() },
			"query":      func() error { _, err := x.Stream().Query(); return err },
			"event":      before.Synchronize,
			"its query":  func() error { _, err := before.Query(); return err },
			"close a fork": func() error {
				f, err := x.Fork()
				if err != nil {
					return err
				}
				return f.Close()
			},
		} {
			var inner error
			_, err := x.Capture(func(c *Exec) {
				y = c
				y.AddSInto(a, a, 1)
				inner = wait()
			}, CaptureOpt{})
			wantError(t, err, fault.Capture, "cannot be waited for in a capture", "order_test.go")
			if inner == nil || inner.Error() != err.Error() || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: the wait gives %v, and the capture %v", name, inner, err)
			}
		}
		want(t, x, a, 1)
	})
}

// TestEventsDuringCaptures checks that an event that was recorded before a capture can be waited for during it, on the thread that captures
// if the capture is relaxed and otherwise on any other, and that the capture goes on.
func TestEventsDuringCaptures(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		a := From(x, []float32{1})
		before := x.Device().NewEvent(false)
		if err := before.Record(x.Stream()); err != nil {
			t.Fatal(err)
		}
		wait := func() error {
			done, err := before.Query()
			if err == nil && !done {
				err = before.Synchronize()
			}
			return errors.Join(err, before.Synchronize())
		}
		for _, mode := range []rt.CaptureMode{rt.CaptureRelaxed, rt.CaptureThreadLocal, rt.CaptureGlobal} {
			var err error
			g := captureOf(t, x, CaptureOpt{Mode: mode}, func(x *Exec) {
				x.AddSInto(a, a, 1)
				if mode == rt.CaptureRelaxed {
					err = wait()
				} else {
					elsewhere(func() { err = wait() })
				}
				x.AddSInto(a, a, 1)
			})
			if err != nil {
				t.Errorf("mode %v: %v", mode, err)
			}
			x.FillInto(a, 1)
			mustReplay(t, x, g)
			want(t, x, a, 3)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCapturesAreEqual checks that a function that is captured and replayed a hundred times makes the same driver calls in the same order.
func TestCapturesAreEqual(t *testing.T) {
	var rec *record.Device
	x, _ := simExec(t, func(d driver.Device) driver.Device { rec = record.New(d); return rec })
	var sides []*rt.Stream
	for range 6 {
		st, err := x.Device().Stream()
		if err != nil {
			t.Fatal(err)
		}
		sides = append(sides, st)
	}
	var ins []*Tensor
	for i := range 12 {
		ins = append(ins, x.On(sides[i%6]).Full([]int{3}, float64(i), dtype.Float32))
	}
	names := regexp.MustCompile(`[a-z]+[0-9]+`)
	var first string
	for i := range 100 {
		rec.Reset()
		g := captureOf(t, x, CaptureOpt{}, func(y *Exec) {
			a := y.Full([]int{3}, 1, dtype.Float32)
			var parts []*Tensor
			for j, in := range ins {
				parts = append(parts, y.On(sides[j%6]).Add(a, in))
			}
			sum := y.Cat(parts, 0)
			y.On(sides[2]).MulS(sum, 2)
		})
		mustReplay(t, x, g)
		x.Sum(ins[3], nil, SumOpt{}).Close()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if err := x.Device().Synchronize(); err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{} // names given meanwhile continue the numbering
		text := names.ReplaceAllStringFunc(rec.Text(), func(name string) string {
			if seen[name] == "" {
				seen[name] = fmt.Sprintf("%s%d", strings.TrimRight(name, "0123456789"), len(seen))
			}
			return seen[name]
		})
		if i == 1 { // the first makes streams and events
			first = text
		}
		if i > 1 && text != first {
			t.Fatalf("capture %d differs:\n%s", i, difference(first, text))
		}
	}
}

// difference returns the first line in which two texts differ.
func difference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return fmt.Sprintf("line %d\n%s\n%s", i, la[i], lb[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(la), len(lb))
}
