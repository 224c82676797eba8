package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// A group of element-wise calls, also around a row-wise one, writes its result over an input that nobody uses later, but never over one
// that somebody does, or that lies otherwise.
func TestGroupsOverwriteInputs(t *testing.T) {
	const n = 256
	for _, c := range []struct {
		name string
		// f makes tensors of n×n float32; want is how many of them are there at once, without the operands.
		f    func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor
		want int
	}{
		{"element-wise", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.AddS(x.MulS(x.ReLU(x.MatMul(in, in)), 2), 1)}
		}, 1},
		{"around a row", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.MulS(x.Softmax(x.MulS(x.MatMul(in, in), 0.1), -1), 2)}
		}, 1},
		{"two results", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			a := x.MulS(x.MatMul(in, in), 2)
			return []*tenon.Tensor{a, x.AddS(a, 1)}
		}, 2},
		{"used later", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			a := x.MatMul(in, in)
			return []*tenon.Tensor{x.AddS(x.MulS(a, 2), 1), a}
		}, 2},
		{"transposed", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			a := x.MatMul(in, in)
			return []*tenon.Tensor{x.Contiguous(x.AddS(x.MulS(x.Add(a, x.T(a)), 2), 1))}
		}, 2},
		{"an operand", func(x *tenon.Exec, in *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{x.AddS(x.MulS(in, 2), 1)}
		}, 1},
	} {
		for _, opt := range []compile.Opt{{Must: true}, {NoGraphs: true}} {
			t.Run(fmt.Sprintf("%s, %+v", c.name, compile.New(opt)), func(t *testing.T) {
				x := open(t).NoGrad()
				in := x.Cos(x.View(x.Arange(n*n, tenon.Float32), n, n))
				want := c.f(x, in)
				r := compile.New(opt)
				for i := range 6 {
					x.Scope(func(x *tenon.Exec) {
						before := x.Device().MemoryAllocated()
						x.Device().ResetPeakStats()
						var got []*tenon.Tensor
						must(t, r.Do(x, func(x *tenon.Exec) error {
							got = c.f(x, in)
							for _, g := range got {
								x.Keep(g)
							}
							return nil
						}))
						peak, most := int(x.Device().MaxMemoryAllocated()-before), c.want*n*n*4
						if peak > most+most/8 {
							t.Errorf("run %d takes %d bytes; want at most %d", i, peak, most)
						}
						for i := range got {
							if a, b := read(t, x, got[i]), read(t, x, want[i]); a != b {
								t.Fatalf("result %d is %.60s; want %.60s", i, a, b)
							}
							got[i].Close()
						}
					})
				}
				if s := r.Stats(x); s.Replays == 0 != opt.NoGraphs {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// refusing is a device that refuses the n-th launch for lack of memory.
type refusing struct {
	driver.Device
	n int
}

// Launch counts down to the launch that is refused.
func (d *refusing) Launch(l *driver.Launch) error {
	if d.n--; d.n == 0 {
		return &driver.Error{Call: "Launch", Code: driver.OutOfMemory}
	}
	return d.Device.Launch(l)
}

// A group that was to write over an input, or changes a tensor, of which the driver refuses a launch, runs again on what was there before.
func TestRefusedGroupKeepsInput(t *testing.T) {
	for name, f := range map[string]func(x *tenon.Exec, in, other, state *tenon.Tensor) *tenon.Tensor{
		"input": func(x *tenon.Exec, in, other, _ *tenon.Tensor) *tenon.Tensor {
			return x.AddS(x.Mul(x.AddS(x.MatMul(in, in), 0.5), x.T(other)), 1)
		},
		"change": func(x *tenon.Exec, in, other, state *tenon.Tensor) *tenon.Tensor {
			y := x.Mul(in, x.T(other))
			x.AddInto(state, state, x.Mul(y, x.T(other)))
			return y
		},
	} {
		for _, reach := range []int{1<<31 - 1, 16} { // with the second one, the group has several launches
			t.Run(fmt.Sprint(name, " with indexes to ", reach), func(t *testing.T) { refuseLaunches(t, reach, f) })
		}
	}
}

// refuseLaunches runs f in regions, on a device whose 32-bit indexes reach so far, and refuses each launch in turn.
func refuseLaunches(t *testing.T, reach int, f func(x *tenon.Exec, in, other, state *tenon.Tensor) *tenon.Tensor) {
	var d *refusing
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
		d = &refusing{Device: own}
		return d
	}})
	must(t, err)
	host, err := rt.Host()
	must(t, err)
	x := (*tenon.Exec)(core.New(dev, host)).NoGrad()
	t.Cleanup(func() { must(t, x.Close()) })
	x.Scope(func(x *tenon.Exec) {
		in, other := x.Cos(x.View(x.Arange(64, tenon.Float32), 8, 8)), x.Sin(x.View(x.Arange(64, tenon.Float32), 8, 8))
		dev.SetIndex32(reach)
		// run returns the result and the changed tensor.
		run := func(do func(f func(x *tenon.Exec) error) error) (out string) {
			x.Scope(func(x *tenon.Exec) {
				state := x.Ones([]int{8, 8}, tenon.Float32)
				var y *tenon.Tensor
				must(t, do(func(x *tenon.Exec) error { y = x.Keep(f(x, in, other, state)); return nil }))
				out = read(t, x, y) + read(t, x, state)
				y.Close()
			})
			return out
		}
		want := run(func(f func(x *tenon.Exec) error) error { return f(x) })
		live, refused := core.LiveStorages(), 0
		for last := false; !last; {
			got := run(func(f func(x *tenon.Exec) error) error {
				d.n = refused + 1
				err := compile.New().Do(x, f)
				if last = d.n > 0; !last {
					refused++
				}
				return err
			})
			if got != want {
				t.Errorf("launch %d is refused: %s", refused, apart(got, want))
			}
			must(t, compile.Reset(x))
		}
		if n := core.LiveStorages() - live; n > 0 {
			t.Errorf("%d storages are left", n)
		}
		if refused == 0 || reach == 16 && refused < 16 {
			t.Errorf("%d launches were refused", refused)
		}
	})
}

// A group does not write over an input that work of another stream may still read.
func TestGroupsSpareOtherStreams(t *testing.T) {
	const n = 64
	for seed := range uint64(8) {
		x := openRandom(t, seed, 0, nil).NoGrad()
		side := x.On(streamsOf(t, x)[0])
		in := x.Cos(x.View(x.Arange(n*n, tenon.Float32), n, n))
		run := func(do func(f func(x *tenon.Exec) error) error) string {
			var a, b *tenon.Tensor
			must(t, do(func(x *tenon.Exec) error {
				product := x.MatMul(in, in)
				b = x.Keep(side.MatMul(side.MatMul(in, in), product))
				a = x.Keep(x.AddS(x.MulS(product, 2), 1))
				product.Close()
				return nil
			}))
			defer a.Close()
			defer b.Close()
			return read(t, x, a) + read(t, x, b)
		}
		want, r := run(func(f func(x *tenon.Exec) error) error { return x.Do(f) }), compile.New(compile.Opt{NoGraphs: true})
		for range 4 {
			if got := run(func(f func(x *tenon.Exec) error) error { return r.Do(x, f) }); got != want {
				t.Fatalf("seed %d: %s", seed, apart(got, want))
			}
		}
	}
}
