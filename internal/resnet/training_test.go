package resnet_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/resnet"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// way is a way to run a step repeatedly.
type way struct {
	name string
	// of returns a function that runs step once more; step has run warm times before.
	of func(t *testing.T, x *tenon.Exec, step func(x *tenon.Exec) error) (again func(), check func())
}

const warm = 2

var ways = []way{
	{"eager", func(t *testing.T, x *tenon.Exec, step func(x *tenon.Exec) error) (again, check func()) {
		return func() { eager(t, x, step) }, func() {}
	}},
	{"graph", func(t *testing.T, x *tenon.Exec, step func(x *tenon.Exec) error) (again, check func()) {
		g, err := x.Capture(func(x *tenon.Exec) { eager(t, x, step) })
		must(t, err)
		t.Cleanup(func() { g.Close() })
		return func() { must(t, x.Replay(g)) }, func() {}
	}},
	{"compiled", func(t *testing.T, x *tenon.Exec, step func(x *tenon.Exec) error) (again, check func()) {
		r := compile.New()
		return func() { must(t, r.Do(x, step)) }, func() {
			if s := r.Stats(x); s.Recordings != 1 || s.Replays == 0 || s.Plain+s.Eager+s.Forced+s.Unknown > 0 {
				t.Errorf("the step is not one graph that replays: %+v", s)
			}
		}
	}},
}

func eager(t *testing.T, x *tenon.Exec, step func(x *tenon.Exec) error) {
	x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
}

// read adds the bits of a to out.
func read(t *testing.T, x *tenon.Exec, out map[string][]byte, name string, a *tenon.Tensor) {
	b, err := x.Bytes(a)
	must(t, err)
	out[name] = b
}

// Eager, captured and compiled training steps give the same bits, and so does inference.
func TestWaysAgree(t *testing.T) {
	const steps = 3
	train := func(t *testing.T, w way, c resnet.Config) map[string][]byte {
		x := testdevice.Open(t, tenon.Best())
		must(t, x.Generator().SetSeed(7))
		m, err := resnet.NewTraining(x, c, 4)
		must(t, err)
		defer m.Close()
		for range warm {
			eager(t, x, m.Step)
		}
		again, check := w.of(t, x, m.Step)
		out := map[string][]byte{}
		for i := range steps {
			again()
			read(t, x, out, fmt.Sprint("loss ", i), m.Loss)
		}
		for name, a := range nn.StateDict(m.Model) {
			read(t, x, out, name, a)
		}
		for name, p := range nn.Params(m.Model) {
			read(t, x, out, "gradient of "+name, p.Grad())
		}
		check()
		return out
	}
	use := func(t *testing.T, w way, c resnet.Config) map[string][]byte {
		x := testdevice.Open(t, tenon.Best())
		must(t, x.Generator().SetSeed(7))
		m := resnet.NewInference(x, c, 2)
		defer m.Close()
		for range warm {
			eager(t, x, m.Step)
		}
		again, check := w.of(t, x, m.Step)
		out := map[string][]byte{}
		for i := range steps {
			again()
			read(t, x, out, fmt.Sprint("logits ", i), m.Logits)
		}
		check()
		return out
	}
	for what, run := range map[string]func(*testing.T, way, resnet.Config) map[string][]byte{"train": train, "use": use} {
		for _, last := range []bool{false, true} {
			c := resnet.Small()
			c.ChannelsLast = last
			var want map[string][]byte
			for _, w := range ways {
				t.Run(fmt.Sprintf("%s/last=%v/%s", what, last, w.name), func(t *testing.T) {
					got := run(t, w, c)
					if want == nil {
						want = got
					}
					if !maps.EqualFunc(got, want, bytes.Equal) {
						for name := range want {
							if !bytes.Equal(got[name], want[name]) {
								t.Errorf("%s has other bits than eager", name)
							}
						}
					}
				})
			}
		}
	}
}

// Every parameter gets a gradient, and the network learns its batch.
func TestLearns(t *testing.T) {
	x := testdevice.Open(t, tenon.Best())
	must(t, x.Generator().SetSeed(3))
	m, err := resnet.NewTraining(x, resnet.Small(), 8)
	must(t, err)
	defer m.Close()
	r := compile.New()
	var losses []float64
	for i := range 12 {
		must(t, r.Do(x, m.Step))
		loss, err := x.Item(m.Loss)
		must(t, err)
		losses = append(losses, loss)
		if i > 0 {
			continue
		}
		for name, p := range nn.Params(m.Model) {
			var size float64
			x.Scope(func(x *tenon.Exec) {
				size, err = x.Item(x.Sum(x.Abs(p.Grad()), nil))
			})
			must(t, err)
			if !(size > 0) {
				t.Errorf("the gradient of %s has the size %v", name, size)
			}
		}
	}
	if first, last := losses[0], losses[len(losses)-1]; !(last < 0.7*first) {
		t.Errorf("the losses are %v", losses)
	}
	for name, b := range nn.Buffers(m.Model) {
		if name == "bn1.num_batches_tracked" {
			n, err := x.Item(b.Tensor())
			must(t, err)
			if n != 12 {
				t.Errorf("the normalisation has counted %v batches", n)
			}
		}
	}
}
