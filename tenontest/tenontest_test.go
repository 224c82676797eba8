package tenontest_test

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/tenontest"
)

// recorder is a testing.TB that records its messages.
type recorder struct {
	testing.TB
	text     []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(v ...any)   { r.text = append(r.text, fmt.Sprint(v...)) }
func (r *recorder) Fatal(v ...any) {
	r.text = append(r.text, "fatal: "+fmt.Sprint(v...))
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, v ...any) { r.Fatal(fmt.Sprintf(format, v...)) }

// told runs f as a test and returns the test's messages.
func told(t *testing.T, f func(t testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan bool)
	go func() {
		defer close(done)
		defer func() {
			for _, f := range r.cleanups {
				f()
			}
		}()
		f(r)
	}()
	<-done
	return strings.Join(r.text, "\n")
}

// here names the line of this file that is below lines below the call.
func here(below int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line+below)
}

// An operation that fails ends the test, and the message names its line.
func TestRunFails(t *testing.T) {
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		var line string
		after := false
		text := told(t, func(t testing.TB) {
			tenontest.Run(t, func(x *tenon.Exec) {
				line = here(1)
				x.Add(x.Ones([]int{2}, tenon.Float32), x.Ones([]int{3}, tenon.Float32))
				after = true
			}, s)
		})
		if !strings.Contains(text, "fatal: Add(float32[2], float32[3]): The size of tensor a (2)") || !strings.Contains(text, line) ||
			after {
			t.Errorf("it was told %q, the line is %s", text, line)
		}
	}
}

// An object left open is an error that names its line; a closed or unreachable one is no error.
// The report of a leak names the graphs that are open, since they hold what they use.
func TestRunNamesOpenGraphs(t *testing.T) {
	var line string
	var graph, closed *tenon.Graph
	text := told(t, func(t testing.TB) {
		tenontest.Run(t, func(x *tenon.Exec) {
			in := x.Ones([]int{100}, tenon.Float32)
			capture := func() *tenon.Graph {
				line = here(1)
				g, err := x.Capture(func(x *tenon.Exec) { x.AddSInto(in, in, 1) })
				if err != nil {
					t.Fatal(err)
				}
				return g
			}
			graph, closed = capture(), capture()
			if err := closed.Close(); err != nil {
				t.Fatal(err)
			}
		}, tenon.Sim(0))
	})
	if _, graphs, _ := strings.Cut(text, "; graphs are open that hold what they use, captured at\n\t"); !strings.HasSuffix(graphs, line) {
		t.Errorf("it was told %q, which lacks the graph of %s", text, line)
	}
	runtime.KeepAlive(graph)
}

func TestRunFindsLeaks(t *testing.T) {
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		var line string
		var kept *nn.Linear
		text := told(t, func(t testing.TB) {
			tenontest.Run(t, func(x *tenon.Exec) {
				line = here(1)
				kept = nn.NewLinear(x, 2, 3)
				x.Ones([]int{100}, tenon.Float32)
			}, s)
		})
		if !regexp.MustCompile(`^the test left \d+ bytes of .* open`).MatchString(text) || strings.Count(text, "_test.go") != 1 ||
			!strings.Contains(text, line) {
			t.Errorf("it was told %q, the line is %s", text, line)
		}
		runtime.KeepAlive(kept)
		if text := told(t, func(t testing.TB) { tenontest.Run(t, train(t), s) }); text != "" {
			t.Errorf("it was told %q", text)
		}
	}
}

// train takes a step and closes what it made.
func train(t testing.TB) func(x *tenon.Exec) {
	return func(x *tenon.Exec) {
		model := nn.NewLinear(x, 2, 3)
		defer nn.Close(model)
		sgd, err := optim.NewSGD(nn.Params(model), optim.SGDOpt{LR: .1, Momentum: .9})
		if err != nil {
			t.Fatal(err)
		}
		defer sgd.Close()
		if err := x.Backward(x.Sum(model.Forward(x, x.Ones([]int{4, 2}, tenon.Float32)), nil)); err != nil {
			t.Fatal(err)
		}
		if err := sgd.Step(x); err != nil {
			t.Fatal(err)
		}
	}
}

// A test that ends itself gets no further messages.
func TestRunEnds(t *testing.T) {
	text := told(t, func(t testing.TB) {
		tenontest.Run(t, func(x *tenon.Exec) { t.Fatal("enough") })
	})
	if text != "fatal: enough" {
		t.Errorf("it was told %q", text)
	}
	text = told(t, func(t testing.TB) { tenontest.Run(t, func(*tenon.Exec) {}, tenon.CPU(), tenon.CPU()) })
	if !strings.Contains(text, "given 2 times") {
		t.Errorf("it was told %q", text)
	}
}

func TestAssertClose(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tenontest.Run(t, func(x *tenon.Exec) {
		f32 := func(v ...float32) *tenon.Tensor { return tenon.From(x, v) }
		i64 := func(v ...int64) *tenon.Tensor { return tenon.From(x, v) }
		half := func(v ...float32) *tenon.Tensor { return x.ToDType(f32(v...), tenon.Float16) }
		for _, c := range []struct {
			got, want *tenon.Tensor
			tol       []tenontest.Tolerance
			text      string
		}{
			{f32(1, 2), f32(1, 2.000001), nil, ""},
			{f32(1, 2), f32(1, 2.0001), nil, "1 of 2 numbers are not close; the furthest is at [1]: got 2, want 2.000"},
			{f32(1, 2), f32(1, 2.0001), []tenontest.Tolerance{{Absolute: 1e-3}}, ""},
			{f32(1, 2), f32(1, 2.000001), []tenontest.Tolerance{{Absolute: 0}}, "1 of 2"},
			{half(1), half(1.0009765625), nil, ""},
			{x.Reshape(f32(1, 2, 3, 4), 2, 2), x.Reshape(f32(1, 3, 5, 4), 2, 2), nil,
				"2 of 4 numbers are not close; the furthest is at [1 0]: got 3, want 5"},
			{f32(1), f32(1, 2), nil, "got float32[1], want float32[2]"},
			{f32(1), half(1), nil, "got float32[1], want float16[1]"},
			{f32(nan), f32(nan), nil, "1 of 1"},
			{f32(nan), f32(nan), []tenontest.Tolerance{{EqualNaN: true}}, ""},
			{f32(inf), f32(inf), nil, ""},
			{f32(inf), f32(1), []tenontest.Tolerance{{Absolute: 9}}, "1 of 1"},
			{i64(1<<60 + 1), i64(1 << 60), nil, "1 of 1"},
			{i64(5), i64(6), []tenontest.Tolerance{{Absolute: 1}}, ""},
			{tenon.From(x, []complex64{1 + 2i}), tenon.From(x, []complex64{1 + 3i}), nil, "got (1+2i), want (1+3i)"},
			{f32(1), x.Host().Ones([]int{1}, tenon.Float32), nil, ""},
		} {
			text := told(t, func(t testing.TB) { tenontest.AssertClose(t, x, c.got, c.want, c.tol...) })
			if (text == "") != (c.text == "") || !strings.Contains(text, c.text) {
				t.Errorf("%v and %v: got %q, want %q", c.got, c.want, text, c.text)
			}
		}
		tenontest.AssertEqual(t, x, f32(nan, 1), f32(nan, 1))
		if text := told(t, func(t testing.TB) { tenontest.AssertEqual(t, x, f32(1), f32(1.0000001)) }); text == "" {
			t.Error("two numbers are equal")
		}
		for _, tol := range []tenontest.Tolerance{{Absolute: -1}, {Relative: math.Inf(1)}, {Absolute: math.NaN()}} {
			text := told(t, func(t testing.TB) { tenontest.AssertClose(t, x, f32(1), f32(2), tol) })
			if !strings.Contains(text, "fatal: ") || !strings.Contains(text, "give a finite number that is not negative") {
				t.Errorf("%+v: it was told %q", tol, text)
			}
		}
		if text := told(t, func(t testing.TB) { tenontest.AssertClose(t, x, nil, f32(1)) }); !strings.Contains(text, "fatal: ") {
			t.Errorf("it was told %q", text)
		}
	})
}
