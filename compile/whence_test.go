package compile_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/nn"
)

// TestDeferredFailures checks that a failed assertion in deferred work, in a region or a callable, one by one, fused or in a graph, names
// the operation that the program called, its operands and its line.
func TestDeferredFailures(t *testing.T) {
	for want, call := range map[string]func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor{
		"IndexSelect(float32[3], int64[1])": func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor { return x.IndexSelect(t, 0, at) },
		"Index(float32[3], int64[1])":       func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor { return x.Index(t, at) },
		"Gather(float32[3], int64[1])":      func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor { return x.Gather(t, 0, at) },
		"ScatterAdd(float32[3], int64[1], float32[1])": func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor {
			return x.ScatterAdd(t, 0, at, t)
		},
		"Embedding(float32[3 1], int64[1])": func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor {
			return x.Embedding(at, x.Unsqueeze(t, 1))
		},
		"CrossEntropy(float32[1 3], int64[1])": func(x *tenon.Exec, t, at *tenon.Tensor) *tenon.Tensor {
			return x.CrossEntropy(x.ToDType(x.Unsqueeze(t, 0), tenon.Float32), at)
		},
	} {
		for _, runs := range []int{0, 1, 5} {
			x := openOn(t, tenon.Sim(64<<20))
			at, src := tenon.From(x, []int64{1}), x.Ones([]int{3}, tenon.Float32)
			var line int
			body := func(x *tenon.Exec) {
				_, _, line, _ = runtime.Caller(0)
				y := call(x, x.MulS(src, 2), at)
				x.AddS(y, 1).Close()
			}
			region, f := compile.New(), compile.Func(func(x *tenon.Exec) { body(x) })
			for what, run := range map[string]func() error{
				"a region": func() error { return region.Do(x, func(x *tenon.Exec) error { body(x); return nil }) },
				"a callable": func() error {
					return tenon.Try(func() { f.Call(x) })
				},
			} {
				x.FillInto(at, 1)
				for range runs {
					must(t, errors.Join(run(), x.Synchronize()))
				}
				x.FillInto(at, 9)
				err := errors.Join(run(), x.Synchronize())
				var e *tenon.Error
				if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want+": ") || filepath.Base(e.File) != "whence_test.go" {
					t.Errorf("%s after %d runs: %v, want %s", what, runs, err, want)
				} else if e.Line >= line { // the call's own line is above
					t.Errorf("%s after %d runs: line %d, and the call is before %d", what, runs, e.Line, line)
				}
			}
		}
	}
}

// TestDeferredNames checks that an error of a deferred call has the name that the program called, and not that of the work below it.
func TestDeferredNames(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	one := x.Ones([]int{1, 1}, tenon.Float32)
	var y *tenon.Tensor
	err := compile.New().Do(x, func(x *tenon.Exec) error {
		y = x.Keep(x.AddS(x.Expand(one, 1<<13, 1<<13), 1))
		return nil
	})
	runtime.KeepAlive(y)
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != tenon.OutOfMemory || e.Op != "AddS" {
		t.Errorf("got %v, want an error of AddS", err)
	}
}

// TestDeferredOutOfMemory checks that deferred work that finds no memory names the module's operation at its line.
func TestDeferredOutOfMemory(t *testing.T) {
	x := openOn(t, tenon.Sim(64<<20))
	m := nn.NewLinear(x, 1, 1<<16)
	_, _, line, _ := runtime.Caller(0)
	var y *tenon.Tensor
	err := compile.New().Do(x, func(x *tenon.Exec) error {
		y = x.Keep(m.Forward(x, x.Ones([]int{1024, 1}, tenon.Float32)))
		return nil
	})
	runtime.KeepAlive(y)
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != tenon.OutOfMemory || e.Op != "Linear" || e.Line != line+3 {
		t.Errorf("got %v, want an error of Linear at line %d", err, line+3)
	}
}
