package compile_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var (
	convNets    = flag.Int("convnets", 16, "random convolutional networks to try")
	convNetSeed = flag.Uint64("convnetseed", 1, "seed of the first of them")
)

// convNet is a random convolutional network. Each layer maps the current value to the next one, and may add to the results.
type convNet struct {
	rng     *rand.Rand
	x       *tenon.Exec
	layers  []func(x *tenon.Exec, s *netState)
	weights []*tenon.Tensor
	train   bool
	// large says that there are enough channels and pixels for all convolutions to gather their operands.
	large bool
	// channels and side are those of the current value, and saved of earlier ones that may be added.
	channels, side int
	saved          [][2]int
}

// netState is a run of the network: the current value, earlier ones, and the results.
type netState struct {
	h     *tenon.Tensor
	saved []*tenon.Tensor
	out   []*tenon.Tensor
}

func (n *convNet) one(of ...int) int { return of[n.rng.IntN(len(of))] }

func (n *convNet) add(f func(x *tenon.Exec, s *netState)) { n.layers = append(n.layers, f) }

// each adds a layer that computes the next value from the current one.
func (n *convNet) each(f func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor) {
	n.add(func(x *tenon.Exec, s *netState) { s.h = f(x, s.h) })
}

func (n *convNet) weight(shape ...int) *tenon.Tensor {
	w := n.x.MulS(n.x.RandN(shape, tenon.Float32), 0.3)
	if len(shape) == 4 && n.rng.IntN(5) == 0 {
		w = n.x.ChannelsLast(w)
	}
	w.SetRequiresGrad(n.train)
	n.weights = append(n.weights, w)
	return w
}

func (n *convNet) convolution() {
	taps, out, groups := n.one(1, 1, 3, 3, 5), n.one(16, 32, 64), 1
	if n.large {
		out = 64
	}
	switch n.rng.IntN(4) {
	case 0:
		out, groups = n.channels, n.channels
	case 1:
		groups = 4
	}
	pad := [2]int{taps / 2, taps / 2}
	if n.rng.IntN(8) == 0 {
		w := n.weight(n.channels, out/groups, taps, taps)
		n.channels = out
		n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor {
			return x.ConvTranspose2d(h, w, nil, tenon.ConvTranspose2dOpt{Padding: pad, Groups: groups})
		})
		return
	}
	opt := tenon.Conv2dOpt{Padding: pad, Groups: groups}
	if n.side > 4 && n.rng.IntN(4) == 0 {
		opt.Stride = [2]int{2, 2}
		n.side = (n.side + 1) / 2
	}
	w := n.weight(out, n.channels/groups, taps, taps)
	var bias *tenon.Tensor
	if n.rng.IntN(2) == 0 {
		bias = n.weight(out)
	}
	n.channels = out
	n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.Conv2d(h, w, bias, opt) })
}

func (n *convNet) layer() {
	c, kind := n.channels, n.rng.IntN(16)
	if kind >= 8 && kind <= 10 && n.rng.IntN(4) > 0 { // what keeps others as they are comes rarely
		kind = 11
	}
	switch kind {
	default:
		n.convolution()
	case 0, 1:
		n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.ReLU(h) })
	case 2:
		mean, variance := n.x.RandN([]int{c}, tenon.Float32), n.x.Exp(n.x.RandN([]int{c}, tenon.Float32))
		weight, bias := n.weight(c), n.weight(c)
		training := n.train && n.rng.IntN(2) == 0
		n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor {
			if training {
				return x.BatchNorm(h, weight, bias, nil, nil, tenon.BatchNormOpt{Training: true})
			}
			return x.BatchNorm(h, weight, bias, mean, variance)
		})
	case 3:
		n.saved = append(n.saved, [2]int{c, n.side})
		n.add(func(_ *tenon.Exec, s *netState) { s.saved = append(s.saved, s.h) })
	case 4, 5:
		for i, v := range n.saved {
			if v == [2]int{c, n.side} {
				n.add(func(x *tenon.Exec, s *netState) { s.h = x.Add(s.h, s.saved[i]) })
				return
			}
		}
	case 6:
		max, size, stride := n.rng.IntN(2) == 0, n.one(2, 3, 5), n.one(1, 2)
		kernel, strides, pad := [2]int{size, size}, [2]int{stride, stride}, [2]int{size / 2, size / 2}
		n.side = (n.side+2*(size/2)-size)/stride + 1
		n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor {
			if max {
				return x.MaxPool2d(h, kernel, tenon.MaxPoolOpt{Stride: strides, Padding: pad})
			}
			return x.AvgPool2d(h, kernel, tenon.AvgPoolOpt{Stride: strides, Padding: pad})
		})
	case 7:
		n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor {
			return x.Mul(h, x.Sigmoid(x.AdaptiveAvgPool2d(h, [2]int{1, 1})))
		})
	case 8:
		n.add(func(_ *tenon.Exec, s *netState) { s.out = append(s.out, s.h) })
	case 9:
		n.add(func(x *tenon.Exec, s *netState) { s.out = append(s.out, x.Mean(s.h, []int{0, 2, 3})) })
	case 10:
		switch n.rng.IntN(4) {
		case 0:
			n.channels *= 2
			n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.Cat([]*tenon.Tensor{h, x.Neg(h)}, 1) })
		case 1:
			n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.ChannelsLast(h) })
		case 2:
			n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.Contiguous(h) })
		default:
			n.each(func(x *tenon.Exec, h *tenon.Tensor) *tenon.Tensor { return x.ReLU(x.Clone(h)) })
		}
	}
}

// Random convolutional networks have the bits and the strides of eager execution, in inference and with gradients.
func TestRandomConvolutionalNetworks(t *testing.T) {
	laid := 0
	for trial := range *convNets {
		seed := *convNetSeed + uint64(trial)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			laidOut(t, func(x *tenon.Exec) func(x *tenon.Exec) []*tenon.Tensor {
				n := &convNet{rng: rand.New(rand.NewPCG(seed, 9)), x: x, channels: 16, side: 12}
				if n.train, n.large = n.rng.IntN(3) == 0, n.rng.IntN(3) == 0; n.large {
					n.channels, n.side = 64, 16
				}
				half := n.rng.IntN(2) == 0
				in := x.RandN([]int{2, n.channels, n.side, n.side}, tenon.Float32)
				n.convolution()
				for range 6 + n.rng.IntN(14) {
					n.layer()
				}
				return func(x *tenon.Exec) []*tenon.Tensor {
					if half {
						x = x.Autocast(tenon.BFloat16)
					}
					if !n.train {
						x = x.NoGrad()
					}
					s := &netState{h: in}
					for _, f := range n.layers {
						f(x, s)
					}
					if s.out = append(s.out, x.Mean(s.h, nil)); n.train && len(n.weights) > 0 {
						grads, err := x.Grad([]*tenon.Tensor{s.out[len(s.out)-1]}, n.weights, tenon.GradOpt{AllowUnused: true})
						must(t, err)
						for _, g := range grads {
							if g != nil {
								s.out = append(s.out, g)
							}
						}
					}
					return s.out
				}
			}, func(e *compile.Explanation, _ []string) {
				for i := range e.Segments {
					laid += e.Segments[i].LaidOut
				}
			})
		})
	}
	if t.Logf("%d values were laid out anew", laid); laid == 0 && *convNets > 10 {
		t.Error("no value was laid out anew")
	}
}
