package compile_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
)

func open(t *testing.T) *tenon.Exec { return openOn(t, machine()) }

// openAlone opens a device that ends with the test. The simulator's kernels are memory that each collection of garbage reads, and the
// common device keeps them until the process ends: tests that build hundreds would slow down all tests after them.
func openAlone(t *testing.T) *tenon.Exec {
	if onGPU() {
		return open(t)
	}
	x := openWrapped(t, func(d driver.Device) driver.Device { return d })
	t.Cleanup(func() { must(t, x.Close()) })
	return x
}

func openOn(t *testing.T, s tenon.Selector) *tenon.Exec {
	x, closed := openUntil(t, s)
	t.Cleanup(closed)
	return x
}

// openUntil returns an Exec and the function that closes it, for a test that opens many devices: the memory of one serves the next.
func openUntil(t *testing.T, s tenon.Selector) (x *tenon.Exec, closed func()) {
	x, err := tenon.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return x, func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// twice runs f in a region twice, so that the calls of the second run are deferred.
func twice(t *testing.T, x *tenon.Exec, f func(x *tenon.Exec, second bool) error) *compile.Region {
	t.Helper()
	r := compile.New()
	for i := range 2 {
		must(t, r.Do(x, func(x *tenon.Exec) error { return f(x, i == 1) }))
	}
	return r
}

func deferred(x *tenon.Exec) int { return core.Deferred((*core.Exec)(x)) }

func TestDoPutsOffWhatComesAgain(t *testing.T) {
	x := open(t)
	a, b := tenon.From(x, []float32{1, 2, 3}, 3), tenon.From(x, []float32{10, 20, 30}, 3)
	r := compile.New()
	for i := range 3 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			c := x.Mul(x.AddS(a, float64(i)), b)
			x.AddInto(b, b, x.View(c, 3))
			if n := deferred(x); n != 3 {
				t.Errorf("run %d: %d calls are deferred, want 3", i, n)
			}
			return nil
		}))
	}
	if got, want := r.Stats(x), (compile.Stats{Runs: 3, New: 3, Deferred: 9, WarmUps: 1, Recordings: 1, Replays: 1,
		Kernels: 9}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got, err := tenon.Read[float32](x, b)
	must(t, err)
	if want := "[240 1200 3600]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// Calls that need the elements get them, and later calls are deferred again.
func TestForces(t *testing.T) {
	x := open(t)
	a := tenon.From(x, []float32{1, 2}, 2)
	g, err := x.Capture(func(x *tenon.Exec) { x.AddInto(a, a, a) })
	must(t, err)
	defer g.Close()
	for name, f := range map[string]func(x *tenon.Exec, t *tenon.Tensor) error{
		"Bytes":        func(x *tenon.Exec, y *tenon.Tensor) error { _, err := x.Bytes(y); return err },
		"Item":         func(x *tenon.Exec, y *tenon.Tensor) error { _, err := x.Item(x.Narrow(y, 0, 0, 1)); return err },
		"DataPtr":      func(x *tenon.Exec, y *tenon.Tensor) error { y.DataPtr(); return nil },
		"Synchronize":  func(x *tenon.Exec, y *tenon.Tensor) error { return x.Synchronize() },
		"Replay":       func(x *tenon.Exec, y *tenon.Tensor) error { return x.Replay(g) },
		"WaitStream":   func(x *tenon.Exec, y *tenon.Tensor) error { return x.WaitStream(x.Stream()) },
		"RecordStream": func(x *tenon.Exec, y *tenon.Tensor) error { return x.RecordStream(y, x.Stream()) },
		"To":           func(x *tenon.Exec, y *tenon.Tensor) error { x.Host().To(y); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			twice(t, x, func(x *tenon.Exec, second bool) error {
				y := x.Exp(a)
				if n := deferred(x); second && n != 1 {
					t.Errorf("%d calls are deferred before", n)
				}
				err := f(x, y)
				if n := deferred(x); n != 0 {
					t.Errorf("%d calls are deferred after", n)
				}
				x.Sin(y)
				if n := deferred(x); second && n != 1 {
					t.Errorf("%d calls are deferred at the end", n)
				}
				return err
			})
		})
	}
}

// A handle without elements knows everything else, and a tensor that is closed before its call has run is freed after its last use.
func TestPendingHandles(t *testing.T) {
	x := open(t)
	const n = 1 << 16
	a := x.Ones([]int{n}, tenon.Float32)
	live := core.LiveStorages()
	var peak [2]int64
	r := compile.New()
	for i := range 2 {
		x.Device().ResetPeakStats()
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y := x.Within(func(x *tenon.Exec) *tenon.Tensor { return x.AddS(a, 1) })
			for range 20 {
				next := x.Sin(y)
				y.Close()
				y = next
			}
			if s := y.Shape(); len(s) != 1 || s[0] != n || y.DType() != tenon.Float32 || !y.IsContiguous() {
				t.Errorf("the handle is %v %v", y.Shape(), y.DType())
			}
			return nil
		}))
		peak[i] = x.Device().MaxMemoryAllocated()
	}
	if peak[1] > peak[0] {
		t.Errorf("the peak is %d bytes, %d without putting off", peak[1], peak[0])
	}
	if d := core.LiveStorages() - live; d > 0 {
		t.Errorf("%d storages are left", d)
	}
}

// However a region ends, deferred calls run first.
func TestEnds(t *testing.T) {
	x := open(t)
	sum := x.Zeros([]int{1}, tenon.Float32)
	one := x.Ones([]int{1}, tenon.Float32)
	r := compile.New()
	planned := errors.New("planned")
	bad := x.Ones([]int{7}, tenon.Float32)
	ends := []func(x *tenon.Exec) error{
		func(*tenon.Exec) error { return nil },
		func(*tenon.Exec) error { return nil },
		func(*tenon.Exec) error { return planned },
		func(x *tenon.Exec) error { x.Add(x.Ones([]int{2}, tenon.Float32), bad); return nil },
		func(*tenon.Exec) error { panic(planned) },
		func(*tenon.Exec) error { return nil },
	}
	for i, end := range ends {
		var err error
		func() {
			defer func() {
				if v := recover(); v != nil {
					err = v.(error)
				}
			}()
			err = r.Do(x, func(x *tenon.Exec) error {
				x.AddInto(sum, sum, one)
				return end(x)
			})
		}()
		switch i {
		case 2, 4:
			if err != planned { // itself, as from the Exec's own Do
				t.Errorf("end %d: %v", i, err)
			}
		case 3:
			if err == nil || !strings.Contains(err.Error(), "The size of tensor a (2) must match") ||
				!strings.Contains(err.Error(), "compile_test.go") {
				t.Errorf("end %d: %v", i, err)
			}
		default:
			must(t, err)
		}
		v, err := x.Item(sum)
		must(t, err)
		if v != float64(i+1) {
			t.Errorf("after end %d the sum is %v", i, v)
		}
	}
}

// Another session that uses tensors of a region's deferred calls gets an error with both lines, unless both sessions only read; it may use
// the tensors afterwards.
func TestOtherSessions(t *testing.T) {
	x := open(t)
	y, err := x.Fork()
	must(t, err)
	a, s, w := x.Ones([]int{2}, tenon.Float32), x.Ones([]int{2}, tenon.Float32), x.Ones([]int{2}, tenon.Float32)
	g, err := y.Capture(func(y *tenon.Exec) { y.AddInto(a, a, a) })
	must(t, err)
	defer g.Close()
	twice(t, x, func(x *tenon.Exec, second bool) error {
		b := x.Exp(a)
		x.AddInto(s, s, a)
		for name, use := range map[string]func() error{
			"reads what is to be made":  func() error { return tenon.Try(func() { y.Sin(b) }) },
			"reads what is to change":   func() error { return tenon.Try(func() { y.Sin(s) }) },
			"gets what is to be made":   func() error { _, err := y.Bytes(b); return err },
			"gets what is to change":    func() error { _, err := y.Bytes(s); return err },
			"writes what is to be made": func() error { return tenon.Try(func() { y.AddInto(b, w, w) }) },
			"writes what is to be read": func() error { return tenon.Try(func() { y.AddInto(a, w, w) }) },
			"replays over what is read": func() error { return y.Replay(g) },
		} {
			if err := use(); second && (err == nil || strings.Count(err.Error(), "compile_test.go") != 2 ||
				!strings.Contains(err.Error(), "compiled region of another Exec")) {
				t.Errorf("another session %s: %v", name, err)
			}
		}
		must(t, tenon.Try(func() { y.Sin(a) }))
		_, err := y.Bytes(a)
		return err
	})
	must(t, tenon.Try(func() { y.Sin(s) }))
}

// Sessions whose regions read the same weights do not disturb each other.
func TestSharedWeights(t *testing.T) {
	x := open(t)
	w := tenon.From(x, []float32{1, 2, 3, 4}, 4)
	must(t, x.Synchronize())
	r := compile.New()
	var wg sync.WaitGroup
	for g := range 4 {
		y, err := x.Fork()
		must(t, err)
		wg.Go(func() {
			for i := range 50 {
				if err := r.Do(y, func(y *tenon.Exec) error {
					v, err := y.Item(y.Sum(y.MulS(y.Mul(w, w), float64(g+i)), nil))
					if want := float64(30 * (g + i)); err == nil && v != want {
						err = fmt.Errorf("%v, want %v", v, want)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A direct assignment to a tensor comes after the calls that were deferred before it.
func TestAssign(t *testing.T) {
	x := open(t)
	g, rate := x.Full([]int{1}, 10, tenon.Float64), x.Full([]int{1}, 2, tenon.Float64)
	twice(t, x, func(x *tenon.Exec, second bool) error {
		must(t, core.Assign("Assign", []*core.Tensor{(*core.Tensor)(rate)}, []float64{2}))
		d := x.Mul(g, rate)
		must(t, core.Assign("Assign", []*core.Tensor{(*core.Tensor)(rate)}, []float64{0.5}))
		v, err := x.Item(d)
		if v != 20 {
			t.Errorf("%v, want 20", v)
		}
		return err
	})
}

// A call that fails half-way leaves the handles of its results to the program.
func TestFailureHalfWay(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	r := compile.New()
	a := x.Ones([]int{1 << 21, 2}, tenon.Float32) // 16 MiB
	var kept [2]*tenon.Tensor
	for i := range 2 {
		var hog *tenon.Tensor
		if i == 1 {
			must(t, x.Device().EmptyCache())
			hog = x.Empty([]int{36 << 20}, tenon.Uint8) // then the values, of 8 MiB, fit, and the indexes, of 16, do not
		}
		err := r.Do(x, func(x *tenon.Exec) error {
			v, n := x.MaxDim(a, 1)
			if i == 1 {
				kept[0], kept[1] = x.Keep(v), x.Keep(n)
			}
			return nil
		})
		var e *tenon.Error
		if failed := errors.As(err, &e) && e.Kind == tenon.OutOfMemory; failed != (i == 1) {
			t.Fatalf("run %d: %v", i, err)
		}
		if hog != nil {
			hog.Close()
		}
	}
	other := x.Full([]int{1 << 20}, 7, tenon.Float32)
	for _, k := range kept {
		_, read := x.Bytes(k)
		for name, err := range map[string]error{"read": read, "used": tenon.Try(func() { x.AddS(k, 1) }),
			"written":               tenon.Try(func() { x.FillInto(k, 1) }),
			"asked for its address": tenon.Try(func() { k.DataPtr() })} {
			if err == nil || !strings.Contains(err.Error(), "was never made") {
				t.Errorf("a tensor that was never made is %s: %v", name, err)
			}
		}
		k.Close()
	}
	v, err := x.Item(x.Sum(other, nil))
	must(t, err)
	if v != 7<<20 {
		t.Errorf("another tensor has the sum %v", v)
	}
}

// A region forgets sessions that have ended.
func TestForksCome(t *testing.T) {
	x := open(t)
	r := compile.New()
	for range 300 {
		y, err := x.Fork()
		must(t, err)
		for range 2 {
			must(t, r.Do(y, func(y *tenon.Exec) error { y.Ones([]int{1}, tenon.Float32); return nil }))
		}
		must(t, y.Close())
	}
	if n := compile.Sessions(r); n > 2 {
		t.Errorf("the region knows %d sessions", n)
	}
}

// A call that fails when it runs loses its result and later ones; the rest of the program continues.
func TestOutOfMemory(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	r := compile.New()
	small := x.Ones([]int{4}, tenon.Float32)
	var lost *tenon.Tensor
	for i := range 3 {
		n := 1 << 10
		if i == 1 {
			n = 1 << 26
		}
		err := r.Do(x, func(x *tenon.Exec) error {
			big := x.Expand(x.Narrow(small, 0, 0, 1), n)
			y := x.AddS(big, 1)
			s := x.Sum(x.Flip(y, 0), nil) // of what no kernel makes and adds up at once
			if i == 1 {
				lost = x.Keep(s)
			}
			return nil
		})
		var e *tenon.Error
		if got := errors.As(err, &e) && e.Kind == tenon.OutOfMemory; got != (i == 1) {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if lost != nil {
		if err := tenon.Try(func() { x.Sin(lost) }); err == nil {
			t.Error("a tensor that was never made can be used")
		}
		lost.Close()
	}
}

// Several goroutines use one region, each with its own session.
func TestGoroutines(t *testing.T) {
	x := open(t)
	r := compile.New()
	var wg sync.WaitGroup
	for g := range 8 {
		y, err := x.Fork()
		must(t, err)
		wg.Go(func() {
			for i := range 20 {
				err := r.Do(y, func(y *tenon.Exec) error {
					a := y.Full([]int{16}, float64(g), tenon.Float32)
					s := y.Sum(y.AddS(y.Mul(a, a), float64(i)), nil)
					v, err := y.Item(s)
					if want := float64(16 * (g*g + i)); err == nil && v != want {
						err = fmt.Errorf("goroutine %d, run %d: %v, want %v", g, i, v, want)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMisuse(t *testing.T) {
	x := open(t)
	var r *compile.Region
	for _, err := range []error{r.Do(x, func(*tenon.Exec) error { return nil }), new(compile.Region).Do(x, nil), compile.New().Do(x, nil),
		compile.New().Do(nil, func(*tenon.Exec) error { return nil })} {
		if err == nil || !strings.Contains(err.Error(), "Do: ") || !strings.Contains(err.Error(), "compile_test.go") {
			t.Errorf("%v", err)
		}
	}
}

// Calls on an Exec that was closed, or whose device was, are refused by name, also if there are recordings.
func TestMisuseOfClosed(t *testing.T) {
	x := open(t)
	fork, err := x.Fork()
	must(t, err)
	other, closed := openUntil(t, machine())
	nothing := func(*tenon.Exec) error { return nil }
	for _, c := range []struct {
		x     *tenon.Exec
		close func()
	}{{fork, func() { must(t, fork.Close()) }}, {other, closed}} {
		r, f := compile.New(), compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.AddS(a, 1) })
		a := c.x.Ones([]int{4}, tenon.Float32)
		for range 3 {
			must(t, r.Do(c.x, func(x *tenon.Exec) error { x.AddInto(a, a, a); return nil }))
			f.Call(c.x, a)
		}
		c.close()
		for name, err := range map[string]error{
			"Region.Do": r.Do(c.x, nothing), "Func": tenon.Try(func() { f.Call(c.x, a) }), "Reset": compile.Reset(c.x),
			"Break": compile.Break(c.x), "MarkStep": compile.MarkStep(c.x),
			"Frozen": compile.Frozen(c.x, nothing), "Disable": compile.Disable(c.x, nothing),
		} {
			if fault.KindOf(err) != fault.Closed || !strings.HasPrefix(err.Error(), name+": ") ||
				!strings.Contains(err.Error(), "compile_test.go") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err := tenon.Try(func() { compile.Func[func(*tenon.Exec)](nil) }); err == nil || !strings.Contains(err.Error(), "is nil") {
		t.Errorf("a nil function: %v", err)
	}
}

// Two goroutines that use one Exec at once get an error that says so, wherever in a region or a callable they meet.
func TestGoroutinesOfOneExec(t *testing.T) {
	x := open(t)
	const text = "two goroutines use"
	met := 0
	for i := range 60 {
		fork, err := x.Fork()
		must(t, err)
		a := fork.Zeros([]int{2}, tenon.Float32)
		region, add := compile.New(), func(x *tenon.Exec) { x.AddSInto(a, a, 1) }
		f := compile.Func(add)
		run := func() error { return region.Do(fork, func(x *tenon.Exec) error { add(x); return nil }) }
		if i%2 == 1 {
			run = func() error { return tenon.Try(func() { f.Call(fork) }) }
		}
		var wg sync.WaitGroup
		var errs [2]error
		for g := range errs {
			wg.Go(func() {
				defer func() {
					if r := recover(); r != nil {
						errs[g] = fmt.Errorf("%v", r)
					}
				}()
				for range 50 {
					errs[g] = cmp.Or(errs[g], run())
				}
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("session %d: %v", i, err)
			}
			if err != nil {
				met++
			}
		}
		_ = fork.Close() // it may be refused as well
	}
	t.Log("errors:", met)
}

// It does not matter which part of a tensor a run uses.
func TestPartsOfATensor(t *testing.T) {
	x := open(t)
	const rows, width = 16, 4
	values := make([]float32, rows*width)
	for i := range values {
		values[i] = float32(i)
	}
	data := tenon.From(x, values, rows, width)
	sum := x.Zeros([]int{width}, tenon.Float32)
	r := compile.New()
	for i := range rows / 2 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			part := x.Narrow(data, 0, 2*i, 2)
			x.AddInto(sum, sum, x.Sum(x.Mul(part, part), []int{0}))
			return nil
		}))
	}
	want := make([]float32, width)
	for i, v := range values {
		want[i%width] += v * v
	}
	if got := read(t, x, sum); got != fmt.Sprint(want) {
		t.Errorf("%s, want %v", got, want)
	}
	if s := r.Stats(x); s.Recordings != 1 || s.Replays != rows/2-2 {
		t.Errorf("%+v", s)
	}
}

// The copy of an input that begins in the middle of a tensor has room for all of it: it does not reach into the copy of the next input.
func TestCopiesAreApart(t *testing.T) {
	x := open(t)
	const n = 128 // a whole number of blocks of memory
	r := compile.New()
	for i := range 5 {
		a := x.Narrow(x.Full([]int{n + 2}, float64(i), tenon.Float32), 0, 1, n) // stays open, so that the next one is elsewhere
		b := x.Full([]int{n}, float64(10*i), tenon.Float32)
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(x.Add(a, b))
			return nil
		}))
		if got, want := read(t, x, y), read(t, x, x.Full([]int{n}, float64(11*i), tenon.Float32)); got != want {
			t.Errorf("run %d: %s", i, got)
		}
		y.Close()
	}
	if g := r.Explain(x).Segments[0].Graphs; len(g) == 0 || g[len(g)-1].Copied != 2 {
		t.Errorf("the recordings are %+v", g)
	}
}

// A tensor whose address the program has keeps the address and its elements.
func TestAddressStays(t *testing.T) {
	x := open(t)
	a := tenon.From(x, []float32{1, 2, 3}, 3)
	r := compile.New()
	var kept []*tenon.Tensor
	var at []uint64
	for i := range 6 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y := x.Keep(x.Mul(a, a))
			x.Sin(y)
			kept = append(kept, y)
			return nil
		}))
		if i%2 == 1 {
			at = append(at, kept[i].DataPtr())
		}
	}
	for i, k := range kept {
		if got := read(t, x, k); got != "[1 4 9]" {
			t.Errorf("output %d is %s", i, got)
		}
		if i%2 == 1 && k.DataPtr() != at[i/2] {
			t.Errorf("output %d has moved", i)
		}
		k.Close()
	}
}
