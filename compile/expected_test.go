package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A call that is the one that the region expects is deferred without further questions. It must be refused, and told apart from a similar
// one, like any other.

// errorOf returns the error of f.
func errorOf(f func()) string {
	if err := tenon.Try(f); err != nil {
		return err.Error()
	}
	return "no error"
}

func TestExpectedCallIsRefused(t *testing.T) {
	x := open(t)
	ng := x.NoGrad()
	a, b := x.Ones([]int{16}, tenon.Float32), x.Ones([]int{16}, tenon.Float32)
	host := x.Host().Ones([]int{16}, tenon.Float32)
	for _, c := range []struct {
		name string
		call func(x *tenon.Exec, bad bool)
	}{
		{"a closed operand", func(x *tenon.Exec, bad bool) {
			v := x.Exp(a)
			if bad {
				v.Close()
			}
			x.Add(v, b)
		}},
		{"a nil operand", func(x *tenon.Exec, bad bool) {
			v := x.Exp(a)
			if bad {
				v = nil
			}
			x.Add(v, b)
		}},
		{"a closed destination", func(x *tenon.Exec, bad bool) {
			v := x.Exp(a)
			if bad {
				v.Close()
			}
			x.AddInto(v, a, b)
		}},
		{"a destination that overlaps an operand", func(x *tenon.Exec, bad bool) {
			v := x.Ones([]int{17}, tenon.Float32)
			from := 0
			if bad {
				from = 1
			}
			x.AddInto(x.Narrow(v, 0, 0, 16), x.Narrow(v, 0, from, 16), b)
		}},
		{"other shapes", func(x *tenon.Exec, bad bool) {
			n := 16
			if bad {
				n = 15
			}
			x.Add(x.Ones([]int{n}, tenon.Float32), b)
		}},
		{"a leaf that is changed", func(x *tenon.Exec, bad bool) {
			v := x.Ones([]int{16}, tenon.Float32)
			if bad {
				v.SetRequiresGrad(true)
			}
			x.AddInto(v, v, b)
		}},
		{"an operand of another device", func(x *tenon.Exec, bad bool) {
			v := a
			if bad {
				v = host
			}
			x.Add(v, b)
		}},
	} {
		var want, got string
		for _, on := range []*tenon.Exec{x, ng} {
			on.Scope(func(x *tenon.Exec) { want = errorOf(func() { c.call(on, true) }) })
			r := compile.New()
			for i := range 6 {
				must(t, r.Do(on, func(x *tenon.Exec) error {
					got = errorOf(func() { c.call(on, i == 4) })
					return nil
				}))
				if i != 4 && got != "no error" {
					t.Errorf("%s: run %d: %s", c.name, i, got)
				}
				if i == 4 && got != want {
					t.Errorf("%s: %s\nwithout a region: %s", c.name, got, want)
				}
			}
		}
	}
}

func TestSimilarCallIsNotTheExpectedOne(t *testing.T) {
	x := open(t)
	a, b, g := x.Ones([]int{4, 17}, tenon.Float32), x.Ones([]int{4, 17}, tenon.Float32), x.Ones([]int{4, 17}, tenon.Float32)
	c := x.FullLike(a, 5)
	x.MulSInto(b, b, 2)
	x.CopyInto(a, x.Reshape(x.Arange(68, tenon.Float32), 4, 17))
	g.SetRequiresGrad(true)
	half := x.Ones([]int{4, 17}, tenon.Float16)
	row := func(x *tenon.Exec, t *tenon.Tensor, i int) *tenon.Tensor {
		return x.Narrow(x.Narrow(t, 0, i, 1), 1, 0, 16)
	}
	later := func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor { return x.Narrow(x.Narrow(t, 0, 0, 1), 1, 1, 16) }
	column := func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
		return row(x, x.Transpose(x.Reshape(t, 17, 4), 0, 1), 0)
	}
	sum := func(x *tenon.Exec, a, b, c *tenon.Tensor) *tenon.Tensor { return x.Add(x.Add(a, b), c) }
	usual := func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, b, 0), row(x, a, 0)) }
	for name, other := range map[string]func(x *tenon.Exec) *tenon.Tensor{
		"one storage for two":   func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, a, 0), row(x, a, 0)) },
		"two storages for one":  func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, b, 0), row(x, c, 0)) },
		"the other storage":     func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, b, 0), row(x, b, 0)) },
		"another place":         func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, b, 0), row(x, a, 2)) },
		"another alignment":     func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), later(x, b), row(x, a, 0)) },
		"other strides":         func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, b, 0), column(x, a)) },
		"another type":          func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, a, 0), row(x, half, 0), row(x, a, 0)) },
		"a gradient":            func(x *tenon.Exec) *tenon.Tensor { return sum(x, row(x, g, 0), row(x, b, 0), row(x, g, 0)) },
		"an Exec of NoGrad":     func(x *tenon.Exec) *tenon.Tensor { return usual(x.NoGrad()) },
		"a call more":           func(x *tenon.Exec) *tenon.Tensor { x.Exp(a); return usual(x) },
		"into a tensor":         func(x *tenon.Exec) *tenon.Tensor { d := x.Exp(row(x, a, 0)); x.AddInto(d, d, row(x, b, 0)); return d },
		"a number for a tensor": func(x *tenon.Exec) *tenon.Tensor { return x.Add(x.AddS(row(x, a, 0), 2), row(x, a, 0)) },
	} {
		out := x.Zeros([]int{1, 16}, tenon.Float32)
		r := compile.New()
		for i := range 12 {
			f := usual
			if i == 5 || i >= 8 {
				f = other
			}
			must(t, r.Do(x, func(x *tenon.Exec) error {
				x.NoGrad().CopyInto(out, f(x))
				return nil
			}))
			var want string
			x.Scope(func(x *tenon.Exec) { want = read(t, x, f(x)) })
			if got := read(t, x, out); got != want {
				t.Errorf("%s: run %d: %s, want %s", name, i, got, want)
			}
		}
		different := name != "a gradient" // that is the same call
		if s := r.Stats(x); s.New > 3 != different || s.Recordings != 2 || s.Replays < 5 {
			t.Errorf("%s: %+v", name, s)
		}
		out.Close()
	}
}
