package compile_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Many recordings of the same operations cause one warning: about sizes if these differ, otherwise about the option that changed, with its
// line.
func TestManyRecordingsWarnOfWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(x *tenon.Exec, n int) *tenon.Tensor
		want []string
	}{
		{"sizes", func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp(x.Ones([]int{n + 1, 3}, tenon.Float32)) },
			[]string{"We have observed 3 distinct sizes", "differ first at ", "variants_test.go:"}},
		{"operands", func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp(x.Arange(float64(n+1), tenon.Float32)) },
			[]string{"We have observed 3 distinct sizes"}},
		{"option", func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.Exp(x.Sum(x.Ones([]int{3, 3, 3, 3}, tenon.Float32), []int{n}))
		},
			[]string{"3 graphs of the same operations on the same sizes", "list=[0]", "list=[2]", "variants_test.go:", "the same number"}},
		{"position", func(x *tenon.Exec, n int) *tenon.Tensor {
			cache := x.Zeros([]int{2, 8, 3}, tenon.Float32)
			x.CopyInto(x.Narrow(cache, 1, n, 1), x.Ones([]int{2, 1, 3}, tenon.Float32))
			return x.Exp(cache)
		}, []string{"place or alignment of operand", "keep the position in a tensor", "IndexCopyInto"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			old := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
			defer slog.SetDefault(old)
			x := open(t)
			r := compile.New(compile.Opt{DynamicLimit: 2})
			for n := range 4 {
				for range 2 {
					var y *tenon.Tensor
					must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(c.run(x, n)); return nil }))
					y.Close()
				}
				if n == 1 && out.Len() > 0 {
					t.Errorf("two recordings are within the limit: %s", &out)
				}
			}
			got := out.String()
			if strings.Count(got, "level=WARN") != 1 {
				t.Errorf("not one warning: %s", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in %s", want, got)
				}
			}
		})
	}
}

// Whatever makes a region's runs differ causes one warning, which names its line and what helps, however often the limits are exceeded.
func TestOneCauseWarnsOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		step func(x *tenon.Exec) func(x *tenon.Exec, run int)
		want []string
	}{
		{"sizes of runs", func(x *tenon.Exec) func(*tenon.Exec, int) {
			r := compile.New()
			return func(x *tenon.Exec, run int) {
				doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
					keep(x.Exp(x.Ones([]int{run + 1, 3}, tenon.Float32))) // sizes of runs
				})
			}
		}, []string{"distinct sizes", "padding inputs"}},
		{"sizes of inputs", func(x *tenon.Exec) func(*tenon.Exec, int) {
			r := compile.New()
			return func(x *tenon.Exec, run int) {
				in := x.Ones([]int{run + 1, 3}, tenon.Float32)
				doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
					keep(x.Exp(in)) // sizes of inputs
				})
				in.Close()
			}
		}, []string{"distinct sizes", "padding inputs"}},
		{"sizes of pairs", func(x *tenon.Exec) func(*tenon.Exec, int) {
			r := compile.New()
			return func(x *tenon.Exec, run int) {
				doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
					a := x.Exp(x.Ones([]int{run/2 + 1, 3}, tenon.Float32)) // sizes of pairs
					keep(a)
					must(t, compile.Break(x))
					keep(x.Sin(a))
				})
			}
		}, []string{"distinct sizes", "padding inputs"}},
		{"sizes of a callable", func(x *tenon.Exec) func(*tenon.Exec, int) {
			w := x.Ones([]int{3}, tenon.Float32).SetRequiresGrad(true)
			net := compile.Func(func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
				return x.Exp(x.Mul(a, w)) // sizes of a callable
			})
			return func(x *tenon.Exec, run int) {
				x.Scope(func(x *tenon.Exec) {
					must(t, x.Backward(x.Sum(net.Call(x, x.Ones([]int{run/2 + 1, 3}, tenon.Float32)), nil)))
				})
			}
		}, []string{"distinct sizes", "padding inputs"}},
		{"a position", func(x *tenon.Exec) func(*tenon.Exec, int) {
			cache, k, r := x.Zeros([]int{2, 160, 3}, tenon.Float32), x.Ones([]int{2, 1, 3}, tenon.Float32), compile.New()
			return func(x *tenon.Exec, run int) {
				doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) {
					x.CopyInto(x.Narrow(cache, 1, run, 1), k) // a position
					keep(x.Exp(cache))
				})
			}
		}, []string{"place or alignment", "IndexCopyInto"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := open(t)
			step := c.step(x)
			got := warnings(func() {
				for run := range 150 {
					step(x, run)
				}
			})
			if strings.Count(got, "level=WARN") != 1 {
				t.Errorf("not one warning: %s", got)
			}
			for _, want := range append(c.want, lineOf(t, c.name)) {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in %s", want, got)
				}
			}
		})
	}
}

// With SkipDynamic, one warning names the call whose sizes differ, however many sizes there are.
func TestSkippedSizesWarnOnce(t *testing.T) {
	x := open(t)
	r := compile.New(compile.Opt{DynamicLimit: 2, SkipDynamic: true})
	call := ""
	got := warnings(func() {
		for n := range 6 {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error {
				_, _, above, _ := runtime.Caller(0)
				a := x.Ones([]int{n + 1, 3}, tenon.Float32)
				call = fmt.Sprintf("variants_test.go:%d", above+1)
				y = x.Keep(x.Sum(x.Exp(a), nil))
				return nil
			}))
			y.Close()
		}
	})
	if strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "symbolic shapes") || !strings.Contains(got, call) {
		t.Errorf("not one warning of the call: %s", got)
	}
	skipped := 0
	for _, s := range r.Explain(x).Segments {
		skipped += len(s.Skips)
	}
	if skipped != 5 {
		t.Errorf("Explain has %d skips, want one for each size but the first", skipped)
	}
}

// A region whose runs all differ warns once and names the call that does.
func TestRunsThatAllDifferWarn(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  compile.Opt
		run  func(n int) int
		want int
	}{
		{"each differs", compile.Opt{}, func(n int) int { return n }, 1},
		{"the last are equal", compile.Opt{}, func(n int) int { return min(n, 125) }, 0}, // the last of 128 runs is a replay
		{"silenced", compile.Opt{DynamicLimit: -1}, func(n int) int { return n }, 0},
		{"without graphs", compile.Opt{NoGraphs: true}, func(n int) int { return n }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := open(t)
			cache, k := x.Zeros([]int{2, 160, 3}, tenon.Float32), x.Ones([]int{2, 1, 3}, tenon.Float32)
			r := compile.New(c.opt)
			runs := func(from, to int) string {
				return warnings(func() {
					for n := from; n < to; n++ {
						must(t, r.Do(x, func(x *tenon.Exec) error {
							x.CopyInto(x.Narrow(cache, 1, c.run(n), 1), k)
							return nil
						}))
					}
				})
			}
			if early := runs(0, 127); early != "" {
				t.Errorf("too few runs warn: %s", early)
			}
			got := runs(127, 140)
			if strings.Count(got, "level=WARN") != c.want {
				t.Errorf("want %d warnings: %s", c.want, got)
			}
			for _, part := range []string{"run 128 times and has replayed no graph", "place or alignment of operand", "variants_test.go:",
				"IndexCopyInto"} {
				if c.want > 0 && !strings.Contains(got, part) {
					t.Errorf("%q is not in %s", part, got)
				}
			}
		})
	}
}

// A cache that is written at a number is another call at each position; at a position in a tensor it is the same one.
func TestPositionsInTensors(t *testing.T) {
	x := open(t)
	cache, at := x.Zeros([]int{2, 16, 3}, tenon.Float32), x.Zeros([]int{1}, tenon.Int64)
	k := x.Ones([]int{2, 1, 3}, tenon.Float32)
	byNumber, byTensor := compile.New(), compile.New()
	for pos := range 12 {
		must(t, byNumber.Do(x, func(x *tenon.Exec) error {
			x.CopyInto(x.Narrow(cache, 1, pos, 1), k)
			x.Exp(cache)
			return nil
		}))
		must(t, byTensor.Do(x, func(x *tenon.Exec) error {
			x.IndexCopyInto(cache, cache, 1, at, k)
			x.Exp(cache)
			x.AddSInto(at, at, 1)
			return nil
		}))
	}
	if s := byNumber.Stats(x); s.Replays != 0 || s.WarmUps != 12 {
		t.Errorf("by a number: %+v", s)
	}
	if s := byTensor.Stats(x); s.WarmUps != 1 || s.Recordings != 1 || s.Replays != 10 {
		t.Errorf("by a tensor: %+v", s)
	}
	if e := byNumber.Explain(x); len(e.Forks) != 11 || !strings.Contains(e.Forks[0].Remedy, "IndexCopyInto") {
		t.Errorf("%+v", e.Forks)
	}
}

// A region that forgets runs and meets them again, and so exceeds the limit again, warns once.
func TestForgottenRunsWarnOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(x *tenon.Exec, n int) *tenon.Tensor
		want string
	}{
		{"sizes", func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp(x.Ones([]int{n + 1, 3}, tenon.Float32)) }, "distinct sizes"},
		{"option", func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.Exp(x.Sum(x.Ones([]int{3, 3, 3, 3}, tenon.Float32), []int{n}))
		}, "graphs of the same operations on the same sizes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := open(t)
			r := compile.New(compile.Opt{DynamicLimit: 1, Branches: 2})
			out := warnings(func() {
				for n := range 12 {
					for range 2 {
						doKeeping(t, r, x, func(x *tenon.Exec, keep func(*tenon.Tensor)) { keep(c.run(x, n%4)) })
					}
				}
			})
			if r.Stats(x).Forgotten < 2 {
				t.Errorf("%+v: too few are forgotten", r.Stats(x))
			}
			if n := strings.Count(out, c.want); n != 1 {
				t.Errorf("%d warnings: %s", n, out)
			}
		})
	}
}

// A region that forgets each length before it comes again, and so replays nothing, says that more can be kept.
func TestForgettingIsNamed(t *testing.T) {
	x := open(t)
	data := x.Ones([]int{8}, tenon.Float32)
	r := compile.New(compile.Opt{Branches: 3})
	got := warnings(func() {
		for n := range 20 {
			must(t, r.Do(x, func(x *tenon.Exec) error {
				x.MulS(x.AddS(x.Narrow(data, 0, 0, 1+n%5), 1), 2)
				return nil
			}))
		}
	})
	const says = "raise compile.Opt.Branches: the region keeps 3 different calls after one"
	if strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, says) {
		t.Error(got)
	}
}
