package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
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
		t.Run(c.name, func(t *testing.T) {
			x := open(t).NoGrad()
			in := x.Cos(x.View(x.Arange(n*n, tenon.Float32), n, n))
			want := c.f(x, in)
			r := compile.New(compile.Opt{Must: true})
			for range 6 {
				peak := 0
				x.Scope(func(x *tenon.Exec) {
					s := r.Stats(x)
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
					if r.Stats(x).Recordings > s.Recordings {
						peak = int(x.Device().MaxMemoryAllocated() - before)
					}
					for i := range got {
						if a, b := read(t, x, got[i]), read(t, x, want[i]); a != b {
							t.Fatalf("result %d is %.60s; want %.60s", i, a, b)
						}
						got[i].Close()
					}
				})
				if most := c.want * n * n * 4; peak > most+most/8 {
					t.Errorf("recording takes %d bytes; want at most %d", peak, most)
				}
			}
			if r.Stats(x).Replays == 0 {
				t.Error("nothing was replayed")
			}
		})
	}
}
