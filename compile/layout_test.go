package compile_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/record"
	"tenon.dev/nn"
)

// bottlenecks is a small residual network: a stem, a pool, and blocks of three convolutions.
type bottlenecks struct {
	Stem   []nn.Module
	Blocks []*bottleneck
	Last   *nn.Linear
}

// bottleneck adds to its input, or to its Down, the output of Deep.
type bottleneck struct{ Deep, Down nn.Sequential }

func conv2d(x *tenon.Exec, in, out, taps, stride int) *nn.Conv2d {
	return nn.NewConv2d(x, in, out, [2]int{taps, taps},
		nn.Conv2dOpt{Stride: [2]int{stride, stride}, Padding: [2]int{taps / 2, taps / 2}, NoBias: true})
}

func newBottlenecks(x *tenon.Exec) *bottlenecks {
	n := &bottlenecks{Stem: nn.Sequential{conv2d(x, 3, 64, 7, 2), nn.NewBatchNorm2d(x, 64)}, Last: nn.NewLinear(x, 512, 10)}
	block := func(in, width, stride int) {
		b := &bottleneck{Deep: nn.Sequential{conv2d(x, in, width, 1, 1), nn.NewBatchNorm2d(x, width), nn.ReLU{},
			conv2d(x, width, width, 3, stride), nn.NewBatchNorm2d(x, width), nn.ReLU{},
			conv2d(x, width, 4*width, 1, 1), nn.NewBatchNorm2d(x, 4*width)}}
		if in != 4*width {
			b.Down = nn.Sequential{conv2d(x, in, 4*width, 1, stride), nn.NewBatchNorm2d(x, 4*width)}
		}
		n.Blocks = append(n.Blocks, b)
	}
	block(64, 64, 1)
	block(256, 64, 1)
	block(256, 128, 2)
	return n
}

func (n *bottlenecks) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := in
		for _, m := range n.Stem {
			h = m.Forward(x, h)
		}
		h = x.MaxPool2d(x.ReLU(h), [2]int{3, 3}, tenon.MaxPoolOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}})
		for _, b := range n.Blocks {
			same := h
			if b.Down != nil {
				same = b.Down.Forward(x, h)
			}
			h = x.ReLU(x.Add(b.Deep.Forward(x, h), same))
		}
		return n.Last.Forward(x, x.Flatten(x.AdaptiveAvgPool2d(h, [2]int{1, 1}), 1, -1))
	})
}

// laidOut runs what prepare returns several times, eagerly and in regions. All results must have equal bits and strides. check gets the
// explanation after each run without graphs, and the kernels that it launched.
func laidOut(t *testing.T, prepare func(x *tenon.Exec) func(x *tenon.Exec) []*tenon.Tensor, check func(e *compile.Explanation,
	kernels []string)) {
	t.Helper()
	run := func(opt *compile.Opt) (out []string) {
		var rec *record.Device
		x := openWrapped(t, func(d driver.Device) driver.Device {
			rec = record.New(fourProcessors{d})
			return rec
		})
		defer func() { must(t, x.Close()) }()
		must(t, x.Generator().SetSeed(5))
		f := prepare(x)
		var r *compile.Region
		if opt != nil {
			r = compile.New(*opt)
		}
		for range 4 {
			var results []*tenon.Tensor
			step := func(x *tenon.Exec) error {
				results = nil
				for _, y := range f(x) {
					results = append(results, x.Keep(y))
				}
				return nil
			}
			rec.Reset()
			if r == nil {
				x.Scope(func(x *tenon.Exec) { must(t, step(x)) })
			} else {
				must(t, r.Do(x, step))
			}
			var text strings.Builder
			for _, y := range results {
				b, err := x.Bytes(y)
				must(t, err)
				fmt.Fprintf(&text, "%v %v %x\n", y.Shape(), y.Stride(), sha256.Sum256(b))
			}
			closeAll(results)
			if out = append(out, text.String()); opt != nil && opt.NoGraphs && check != nil {
				var kernels []string
				for _, c := range rec.Calls() {
					if c.Method == "Launch" {
						kernels = append(kernels, c.Args)
					}
				}
				check(r.Explain(x), kernels)
			}
		}
		if r != nil && !opt.NoGraphs {
			if s := r.Stats(x); s.Recordings != 1 || s.Replays < 2 {
				t.Errorf("the region does not replay: %+v", s)
			}
		}
		return out
	}
	want := run(nil)
	for _, opt := range []compile.Opt{{NoGraphs: true}, {}, {NoFusion: true}} {
		if got := run(&opt); !slices.Equal(got, want) {
			t.Errorf("with %+v:\n%s\nwant\n%s", opt, got, want)
		}
	}
}

// countOf counts the kernels whose names begin with one of these.
func countOf(kernels []string, names ...string) (n int) {
	for _, k := range kernels {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(k, name) }) {
			n++
		}
	}
	return n
}

// In the inference of a residual network on images with their channels first, only the images and the weights of more than one tap are
// turned: all else lies with its channels last, and batch norms, residuals and activations are part of the convolutions. The bits and the
// strides of the results are those of eager execution.
func TestActivationsLieWithTheirChannelsLast(t *testing.T) {
	for _, half := range []bool{true, false} {
		prepare := func(x *tenon.Exec) func(x *tenon.Exec) []*tenon.Tensor {
			n := newBottlenecks(x)
			nn.Eval(n)
			in := x.RandN([]int{2, 3, 64, 64}, tenon.Float32)
			return func(x *tenon.Exec) []*tenon.Tensor {
				if x = x.NoGrad(); half {
					x = x.Autocast(tenon.BFloat16)
				}
				return []*tenon.Tensor{n.Forward(x, in)}
			}
		}
		laidOut(t, prepare, func(e *compile.Explanation, kernels []string) {
			// Each 3 x 3 weight is turned; the weight of the stem and the images are filled up and copied. There are twelve convolutions,
			// two pools, a product, and the casts of the weights. In float32 the first convolution takes no channels that lie last.
			const turns, others = 3 + 2*2, 12 + 2 + 1 + 1
			if got := countOf(kernels, "turn", "pw_"); half && (got != turns || len(kernels) != turns+others) {
				t.Errorf("%d of %d kernels are copies\n%s", got, len(kernels), strings.Join(kernels, "\n"))
			}
			if e.Segments[0].LaidOut == 0 || !strings.Contains(e.String(), "values moved to channels last") {
				t.Errorf("nothing is laid out\n%s", e)
			}
		})
	}
}

// What the program keeps or reads lies as in eager execution, and so does what must be added up in one order.
func TestValuesThatKeepTheirLayout(t *testing.T) {
	type net struct{ first, second, third *nn.Conv2d }
	relu := func(x *tenon.Exec, c *nn.Conv2d, in *tenon.Tensor) *tenon.Tensor { return x.ReLU(c.Forward(x, in)) }
	for _, c := range []struct {
		name string
		f    func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor
		laid int
	}{
		{"nothing is kept", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, relu(x, n.first, in)))}
		}, 4},
		{"a value is kept", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := relu(x, n.first, in)
			return []*tenon.Tensor{h, n.third.Forward(x, relu(x, n.second, h))}
		}, 2},
		{"a view is kept", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := relu(x, n.first, in)
			return []*tenon.Tensor{x.Narrow(h, 1, 3, 2), n.third.Forward(x, relu(x, n.second, h))}
		}, 2},
		{"statistics", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := relu(x, n.first, in)
			return []*tenon.Tensor{x.Mean(h, []int{0, 2, 3}), n.third.Forward(x, relu(x, n.second, h))}
		}, 2},
		{"a softmax over the channels", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := x.Softmax(relu(x, n.first, in), 1)
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, h))}
		}, 2},
		{"another shape", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := x.ReLU(x.View(n.first.Forward(x, in), 2, 64, 256))
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, x.View(h, 2, 64, 16, 16)))}
		}, 2},
		{"a residual that lies as it does", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, x.Add(n.first.Forward(x, in), in)))}
		}, 2},
		{"a change in place", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := n.first.Forward(x, in)
			x.ReLUInto(h, h)
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, h))}
		}, 3},
		{"a copy in this layout", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := x.Clone(relu(x, n.first, in))
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, x.Contiguous(h)))}
		}, 5},
		{"dropout", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := x.Dropout(relu(x, n.first, in), 0.5)
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, h))}
		}, 2},
		{"a transposed convolution", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := x.ConvTranspose2d(relu(x, n.first, in), n.second.Weight.Tensor(), nil,
				tenon.ConvTranspose2dOpt{Padding: [2]int{1, 1}})
			return []*tenon.Tensor{n.third.Forward(x, x.ReLU(h))}
		}, 4},
		{"gates and pools", func(x *tenon.Exec, n net, in *tenon.Tensor) []*tenon.Tensor {
			h := relu(x, n.first, in)
			h = x.Mul(h, x.Sigmoid(x.AdaptiveAvgPool2d(h, [2]int{1, 1})))
			h = x.AvgPool2d(h, [2]int{3, 3}, tenon.AvgPoolOpt{Stride: [2]int{1, 1}, Padding: [2]int{1, 1}})
			h = x.MaxPool2d(h, [2]int{5, 5}, tenon.MaxPoolOpt{Stride: [2]int{1, 1}, Padding: [2]int{2, 2}})
			return []*tenon.Tensor{n.third.Forward(x, relu(x, n.second, h))}
		}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			laidOut(t, func(x *tenon.Exec) func(x *tenon.Exec) []*tenon.Tensor {
				n := net{conv2d(x, 64, 64, 3, 1), conv2d(x, 64, 64, 3, 1), conv2d(x, 64, 64, 3, 1)}
				in := x.RandN([]int{2, 64, 16, 16}, tenon.Float32)
				return func(x *tenon.Exec) []*tenon.Tensor { return c.f(x.NoGrad(), n, in) }
			}, func(e *compile.Explanation, _ []string) {
				if got := e.Segments[0].LaidOut; got != c.laid {
					t.Errorf("%d values are laid out anew, want %d\n%s", got, c.laid, e)
				}
			})
		})
	}
}

// fourProcessors has few multiprocessors, so that the depth of small convolutions is not divided.
type fourProcessors struct{ driver.Device }

// Info is the device's but for their number.
func (d fourProcessors) Info() *driver.Info {
	i := *d.Device.Info()
	i.Multiprocessors = 4
	return &i
}

// Where kernels are compared with their calls, values that lie otherwise than the calls alone make them are compared element by element.
func TestLaidOutValuesAreCompared(t *testing.T) {
	t.Setenv("TENON_COMPILE", "compare")
	x := openWrapped(t, func(d driver.Device) driver.Device { return fourProcessors{d} })
	defer func() { must(t, x.Close()) }()
	n := newBottlenecks(x)
	nn.Eval(n)
	in := x.RandN([]int{2, 3, 64, 64}, tenon.Float32)
	r := compile.New()
	for range 2 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			y = x.Keep(n.Forward(x.NoGrad().Autocast(tenon.BFloat16), in))
			return nil
		}))
		y.Close()
	}
	e := r.Explain(x)
	if e.Stats.Compared != 1 || e.Segments[0].LaidOut == 0 {
		t.Errorf("%d plans were compared\n%.500s", e.Stats.Compared, e)
	}
}

// A callable lays values out anew too, those for its backward pass excepted.
func TestCallablesLayValuesOut(t *testing.T) {
	x := openWrapped(t, func(d driver.Device) driver.Device { return fourProcessors{d} })
	defer func() { must(t, x.Close()) }()
	n := newBottlenecks(x)
	nn.Eval(n)
	net := compile.Func(n.Forward)
	for i := range 4 {
		in := x.RandN([]int{2, 3, 64, 64}, tenon.Float32)
		for _, infer := range []bool{true, false} {
			run := func(f func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor) (b []byte) {
				c := x.Autocast(tenon.BFloat16)
				if infer {
					c = c.NoGrad()
				}
				c.Scope(func(x *tenon.Exec) {
					var err error
					b, err = x.Bytes(f(x, in))
					must(t, err)
				})
				return b
			}
			want := run(n.Forward)
			if got := run(net.Call); !bytes.Equal(got, want) {
				t.Errorf("run %d, inference %v: the bits differ", i, infer)
			}
		}
	}
	e := net.Explain(x)
	if laid := e.Segments[0].LaidOut + e.Segments[1].LaidOut; laid == 0 || e.Stats.Replays == 0 {
		t.Errorf("%d values are laid out\n%.500s", laid, e)
	}
}
