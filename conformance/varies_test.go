package conformance

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
)

// results is a tap that keeps the operands and results of each call.
type results struct {
	t       *testing.T
	reading [][]byte // of the calls in progress, by depth
	all     []result
}

type result struct {
	op       string
	ins, out []byte
}

// bytesOf returns the elements of ts, one tensor after the other.
func (r *results) bytesOf(f *core.Frame, ts ...*core.Tensor) (all []byte) {
	f.Nested(func() {
		for _, t := range ts {
			if t == nil || t.Device() != f.Exec().Device() {
				continue
			}
			b, err := f.Exec().NoGrad().Bytes(t)
			if err != nil {
				r.t.Fatal(err)
			}
			all = append(all, b...)
		}
	})
	return all
}

func (r *results) Before(f *core.Frame) bool {
	r.reading = append(r.reading, r.bytesOf(f, f.Operands()...))
	return false
}

func (r *results) After(f *core.Frame) {
	last := len(r.reading) - 1
	got := result{op: f.Op(), ins: r.reading[last]}
	r.reading = r.reading[:last]
	var outs []*core.Tensor
	for i := range f.Outs() {
		outs = append(outs, f.Out(i))
	}
	got.out = r.bytesOf(f, outs...)
	r.all = append(r.all, got)
}

// colliding are calls, by name, in which many threads of many blocks update one element, in the call or its derivative.
var colliding = map[string]func(x *tenon.Exec, v, index *tenon.Tensor) *tenon.Tensor{
	"Scatter": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor {
		return x.Scatter(v, 0, i, v)
	},
	"ScatterAdd":  func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.ScatterAdd(v, 0, i, v) },
	"Gather":      func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.Gather(v, 0, i) },
	"IndexSelect": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.IndexSelect(v, 0, i) },
	"IndexCopy":   func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.IndexCopy(v, 0, i, v) },
	"IndexFill":   func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.IndexFill(v, 0, i, x.Sum(v, nil)) },
	"IndexAdd":    func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.IndexAdd(v, 0, i, v) },
	"Embedding": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor {
		return x.Embedding(i, x.View(v, -1, 1))
	},
	"Sum": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor { return x.Sum(v, nil) },
	"Prod": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		return x.Prod(x.View(v, -1, 8), []int{1})
	},
	"AMax": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor { return x.AMax(v, nil) },
	"Var":  func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor { return x.Var(v, nil) },
	"Softmax": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		return x.Softmax(x.View(v, 4, -1), 1)
	},
	"MM": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		m := x.View(v, 4, -1)
		return x.MM(m, x.Transpose(m, 0, 1))
	},
	"MaxPool2d": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		return x.MaxPool2d(x.View(v, 1, 4, 64, -1), [2]int{3, 3}, tenon.MaxPoolOpt{Stride: [2]int{1, 1}})
	},
	"Conv2d": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		image := x.View(v, 4, 4, 32, -1)
		return x.Conv2d(image, x.Slice(image, 3, 0, 32, 1), nil)
	},
	"LayerNorm": func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor {
		w := x.Slice(v, 0, 0, 64, 1)
		return x.LayerNorm(x.View(v, -1, 64), w, w, []int{64})
	},
	"TakeAlongDim": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor { return x.TakeAlongDim(v, i, 0) },
	"Dropout":      func(x *tenon.Exec, v, _ *tenon.Tensor) *tenon.Tensor { return x.Dropout(v, 0.5) },
	"CrossEntropy": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor {
		return x.CrossEntropy(x.View(v, -1, 8), x.Slice(i, 0, 0, v.Numel()/8, 1))
	},
	"BinCount": func(x *tenon.Exec, v, i *tenon.Tensor) *tenon.Tensor {
		return x.BinCount(i, tenon.BinCountOpt{Weight: x.Detach(v)})
	},
}

// collide runs one of them, and its derivative, on a simulated device that runs blocks in a random order from seed, or in their own order
// for 0.
func collide(t *testing.T, name string, seed uint64) []result {
	policy := hostsim.FIFO()
	if seed != 0 {
		policy = hostsim.Random(seed)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(driver.Device) driver.Device {
		d, err := hostsim.New(hostsim.Options{Policy: policy, Capacity: 1 << 30}).Open(0)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := (*tenon.Exec)(core.New(dev, host))
	r := &results{t: t}
	x.Scope(func(x *tenon.Exec) {
		const n = 1 << 14
		values, places := make([]float32, n), make([]int64, n)
		for i := range values {
			values[i], places[i] = float32(i%97)/7-5, int64(i%3)
		}
		v, index := tenon.From(x, values).SetRequiresGrad(true), tenon.From(x, places)
		core.SetTap((*core.Exec)(x), r)
		defer core.SetTap((*core.Exec)(x), nil)
		y := colliding[name](x, v, index)
		if !y.RequiresGrad() {
			return
		}
		if _, err := x.Grad([]*tenon.Tensor{y}, []*tenon.Tensor{v},
			tenon.GradOpt{Gradients: []*tenon.Tensor{x.Detach(x.MulS(y, 0.3))}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return r.all
}

// TestVaries checks that an operation gives the same bits from the same operands whatever the order of its kernels' blocks, unless its
// row says that it varies, and that the operations that say so do vary.
func TestVaries(t *testing.T) {
	says, seen, calls := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, o := range core.Ops() {
		says[o.Name] = o.Varies
	}
	for _, name := range slices.Sorted(maps.Keys(colliding)) {
		first := collide(t, name, 0)
		for seed := uint64(1); seed <= 4; seed++ {
			next := collide(t, name, seed)
			if len(next) != len(first) {
				t.Fatalf("%s makes %d calls, and then %d", name, len(first), len(next))
			}
			for i, a := range first {
				calls[a.op] = true
				b := next[i]
				if a.op != b.op || !bytes.Equal(a.ins, b.ins) || bytes.Equal(a.out, b.out) {
					continue
				}
				if seen[a.op] = true; !says[a.op] {
					t.Errorf("%s: %s gives other results when blocks run in another order; its row does not say that it varies", name, a.op)
				}
			}
		}
	}
	for name, varies := range says {
		if varies && !seen[name] {
			t.Errorf("%s: its row says that it varies, which was not seen", name)
		}
	}
	t.Logf("%d operations were called", len(calls))
}
