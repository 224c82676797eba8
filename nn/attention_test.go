package nn_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
)

// attentionCase is a module with masks. Sizes are those of queries, keys, the batch, the module and its heads.
type attentionCase struct {
	name                              string
	opt                               nn.MultiheadAttentionOpt
	self, single, causal              bool
	padding, mask                     string // "bool", "numbers", or "" for none
	maskPerHead                       bool
	queries, keys, batch, embed, head int
}

// hostAttention is what a reference computes from, all of it on the host: inputs [Batch, Time, Features], masks as what they add.
type hostAttention struct {
	q, k, v                []float64
	wq, wk, wv, wo, bi, bo []float64
	add                    func(batch, head, query, key int) float64
}

// expected returns the output [Batch, T, Embed] and the weights [Batch, Heads, T, S], one number at a time.
func (c *attentionCase) expected(h *hostAttention) (out, weights []float64) {
	e, d := c.embed, c.embed/c.head
	linear := func(in []float64, width int, w, b []float64) []float64 {
		var y []float64
		for row := range len(in) / width {
			for i := range e {
				sum := 0.0
				if b != nil {
					sum = b[i]
				}
				for j := range width {
					sum += in[row*width+j] * w[i*width+j]
				}
				y = append(y, sum)
			}
		}
		return y
	}
	bias := func(i int) []float64 {
		if h.bi == nil {
			return nil
		}
		return h.bi[i*e : (i+1)*e]
	}
	q, k, v := linear(h.q, e, h.wq, bias(0)), linear(h.k, c.opt.KeySize, h.wk, bias(1)), linear(h.v, c.opt.ValueSize, h.wv, bias(2))
	joined := make([]float64, c.batch*c.queries*e)
	for b := range c.batch {
		for head := range c.head {
			for i := range c.queries {
				row, all := make([]float64, c.keys), 0.0
				for j := range row {
					for f := range d {
						row[j] += q[(b*c.queries+i)*e+head*d+f] * k[(b*c.keys+j)*e+head*d+f]
					}
					row[j] = math.Exp(row[j]/math.Sqrt(float64(d)) + h.add(b, head, i, j))
					all += row[j]
				}
				for j := range row {
					row[j] /= all
					for f := range d {
						joined[(b*c.queries+i)*e+head*d+f] += row[j] * v[(b*c.keys+j)*e+head*d+f]
					}
				}
				weights = append(weights, row...)
			}
		}
	}
	return linear(joined, e, h.wo, h.bo), weights
}

func f64(t *testing.T, x *tenon.Exec, a *tenon.Tensor) []float64 {
	t.Helper()
	v, err := tenon.Read[float64](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return math.Abs(a-b) <= 1e-12*max(1, math.Abs(b)) })
}

// weightsOf reads the parameters of m.
func weightsOf(t *testing.T, x *tenon.Exec, m *nn.MultiheadAttention) *hostAttention {
	h := &hostAttention{wo: f64(t, x, m.OutProj.Weight.Tensor())}
	if m.InProjBias != nil {
		h.bi, h.bo = f64(t, x, m.InProjBias.Tensor()), f64(t, x, m.OutProj.Bias.Tensor())
	}
	if m.InProjWeight != nil {
		w := f64(t, x, m.InProjWeight.Tensor())
		n := len(w) / 3
		h.wq, h.wk, h.wv = w[:n], w[n:2*n], w[2*n:]
	} else {
		h.wq, h.wk, h.wv = f64(t, x, m.QProjWeight.Tensor()), f64(t, x, m.KProjWeight.Tensor()), f64(t, x, m.VProjWeight.Tensor())
	}
	return h
}

// attentionMask makes a mask from numbers, and what it adds to scores. Every query sees the first key.
func attentionMask(t *testing.T, x *tenon.Exec, kind string, numbers *tenon.Tensor) (*tenon.Tensor, []float64) {
	switch kind {
	case "bool":
		hide := x.GtS(numbers, 0.5)
		x.FillInto(x.Select(hide, -1, 0), 0)
		v, err := tenon.Read[bool](x, hide)
		if err != nil {
			t.Fatal(err)
		}
		var add []float64
		for _, hidden := range v {
			add = append(add, map[bool]float64{true: math.Inf(-1)}[hidden])
		}
		return hide, add
	case "numbers":
		return numbers, f64(t, x, numbers)
	}
	return nil, nil
}

func (c *attentionCase) run(t *testing.T, x *tenon.Exec) {
	r := rand.New(rand.NewPCG(1, uint64(len(c.name))))
	draw := func(shape ...int) *tenon.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float64, n)
		for i := range v {
			v[i] = r.NormFloat64()
		}
		return tenon.From(x, v, shape...)
	}
	c.opt.DType = tenon.Float64
	m := nn.Scoped(x, nn.NewMultiheadAttention(x, c.embed, c.head, c.opt))
	c.opt.KeySize, c.opt.ValueSize = cmp.Or(c.opt.KeySize, c.embed), cmp.Or(c.opt.ValueSize, c.embed)
	for _, p := range nn.Params(m) {
		x.NoGrad().CopyInto(p.Tensor(), draw(p.Tensor().Shape()...))
	}
	h := weightsOf(t, x, m)
	q := draw(c.batch, c.queries, c.embed)
	k, v := q, q
	if !c.self {
		k, v = draw(c.batch, c.keys, c.opt.KeySize), draw(c.batch, c.keys, c.opt.ValueSize)
	}
	h.q, h.k, h.v = f64(t, x, q), f64(t, x, k), f64(t, x, v)
	var opt nn.MultiheadAttentionForwardOpt
	opt.Causal = c.causal
	padded, masked := []float64(nil), []float64(nil)
	opt.KeyPadding, padded = attentionMask(t, x, c.padding, draw(c.batch, c.keys))
	maskShape := []int{c.queries, c.keys}
	if c.maskPerHead {
		maskShape = []int{c.batch * c.head, c.queries, c.keys}
	}
	opt.Mask, masked = attentionMask(t, x, c.mask, draw(maskShape...))
	h.add = func(b, head, i, j int) (v float64) {
		if padded != nil {
			v += padded[b*c.keys+j]
		}
		switch {
		case masked == nil:
		case c.maskPerHead:
			v += masked[((b*c.head+head)*c.queries+i)*c.keys+j]
		default:
			v += masked[i*c.keys+j]
		}
		if c.causal && j > i {
			v = math.Inf(-1)
		}
		return v
	}
	want, weights := c.expected(h)
	lay := func(a *tenon.Tensor) *tenon.Tensor { // between [Batch, Time, ...] and the module's order
		switch {
		case c.single:
			return x.Squeeze(a, 0)
		case c.opt.BatchFirst:
			return a
		}
		return x.Transpose(a, 0, 1)
	}
	lq := lay(q)
	lk, lv := lq, lq
	if !c.self {
		lk, lv = lay(k), lay(v)
	}
	gradients := func(f func() *tenon.Tensor) (all [][]float64, out *tenon.Tensor) {
		for _, p := range nn.Params(m) {
			p.Tensor().SetGrad(nil)
		}
		out = f()
		w := x.Reshape(seq(x, out.Numel()), out.Shape()...)
		x.Backward(x.Sum(x.Mul(out, x.ToDType(w, tenon.Float64)), nil))
		for _, p := range nn.Params(m) {
			all = append(all, f64(t, x, p.Tensor().Grad()))
		}
		return all, out
	}
	g1, y := gradients(func() *tenon.Tensor { return m.Forward(x, lq, lk, lv, opt) })
	order := y
	if c.single {
		order = x.Unsqueeze(y, 0)
	} else if !c.opt.BatchFirst {
		order = x.Transpose(y, 0, 1)
	}
	if got := f64(t, x, order); !near(got, want) {
		t.Errorf("%s: Forward gives %v, want %v", c.name, got[:min(6, len(got))], want[:min(6, len(want))])
	}
	var w *tenon.Tensor
	opt.PerHead = true
	g2, again := gradients(func() (out *tenon.Tensor) { out, w = m.ForwardWeights(x, lq, lk, lv, opt); return out })
	if !near(f64(t, x, again), f64(t, x, y)) || !near(f64(t, x, w), weights) {
		t.Errorf("%s: ForwardWeights gives other results", c.name)
	}
	opt.PerHead = false
	_, mean := m.ForwardWeights(x.NoGrad(), lq, lk, lv, opt)
	heads := 0
	if !c.single {
		heads = 1
	}
	if !near(f64(t, x, mean), f64(t, x, x.Mean(w, []int{heads}))) {
		t.Errorf("%s: the weights are not the mean of the heads'", c.name)
	}
	for i := range g1 {
		if !slices.EqualFunc(g1[i], g2[i], func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a)) }) {
			t.Errorf("%s: gradient %d of Forward and of ForwardWeights differ", c.name, i)
		}
	}
}

func TestMultiheadAttention(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		o := nn.MultiheadAttentionOpt{}
		first, sizes := nn.MultiheadAttentionOpt{BatchFirst: true}, nn.MultiheadAttentionOpt{KeySize: 5, ValueSize: 3}
		for _, c := range []attentionCase{
			{"self", o, true, false, false, "", "", false, 5, 5, 3, 8, 2},
			{"self, batch first", first, true, false, true, "", "", false, 4, 4, 2, 6, 3},
			{"self, causal and padded", first, true, false, true, "bool", "", false, 4, 4, 2, 6, 3},
			{"cross", o, false, false, false, "", "", false, 2, 7, 3, 8, 4},
			{"cross of other sizes", sizes, false, false, false, "bool", "bool", false, 3, 4, 2, 8, 2},
			{"cross of other sizes, without biases", nn.MultiheadAttentionOpt{ValueSize: 3, NoBias: true, BatchFirst: true}, false, false,
				false, "numbers", "bool", true, 3, 4, 2, 8, 2},
			{"without a batch", o, true, true, false, "bool", "numbers", false, 4, 4, 1, 4, 1},
			{"without a batch, batch first", first, false, true, false, "", "numbers", true, 3, 2, 1, 4, 2},
			{"masks per head", o, false, false, false, "bool", "bool", true, 3, 5, 2, 4, 2},
			{"numbers and causal", o, false, false, true, "numbers", "", false, 5, 5, 2, 4, 2},
			{"numbers twice", first, true, false, false, "numbers", "numbers", false, 5, 5, 2, 4, 2},
		} {
			x.Scope(func(x *tenon.Exec) { c.run(t, x) })
		}
	})
}

// Initial values, drawn in PyTorch's order, and the keys of the state dict.
func TestMultiheadAttentionStart(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		m := nn.Scoped(x, nn.NewMultiheadAttention(x, 4, 2, nn.MultiheadAttentionOpt{Generator: nn.NewHostGenerator(5)}))
		g := nn.NewHostGenerator(5)
		out := nn.Scoped(x, nn.NewLinear(x, 4, 4, nn.LinearOpt{Generator: g}))
		in := x.Empty([]int{12, 4}, tenon.Float32)
		nn.InitXavierUniform(x, in, nn.XavierOpt{Generator: g})
		if !slices.Equal(floats(t, x, m.OutProj.Weight.Tensor()), floats(t, x, out.Weight.Tensor())) ||
			!slices.Equal(floats(t, x, m.InProjWeight.Tensor()), floats(t, x, in)) {
			t.Error("the initial weights are not PyTorch's")
		}
		for _, b := range []*nn.Param{m.InProjBias, m.OutProj.Bias} {
			if v := floats(t, x, b.Tensor()); slices.Max(v) != 0 || slices.Min(v) != 0 {
				t.Errorf("a bias begins as %v", v)
			}
		}
		keys := func(m any) string {
			var all []string
			for name, p := range nn.StateDict(m) {
				all = append(all, fmt.Sprint(name, p.Shape()))
			}
			return strings.Join(all, " ")
		}
		if got := keys(m); got != "in_proj_weight[12 4] in_proj_bias[12] out_proj.weight[4 4] out_proj.bias[4]" {
			t.Error(got)
		}
		other := nn.Scoped(x, nn.NewMultiheadAttention(x, 4, 1, nn.MultiheadAttentionOpt{KeySize: 3, NoBias: true}))
		if got := keys(other); got != "q_proj_weight[4 4] k_proj_weight[4 3] v_proj_weight[4 4] out_proj.weight[4 4]" {
			t.Error(got)
		}
		if got := fmt.Sprint(m); got != "MultiheadAttention(\n  (out_proj): Linear(in_features=4, out_features=4, bias=True)\n)" {
			t.Error(got)
		}
	})
}

// Keys that are the queries, or values that are one of them, are projected like others.
func TestMultiheadAttentionOfSharedInputs(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		m := nn.Scoped(x, nn.NewMultiheadAttention(x, 4, 2))
		a, b := x.RandN([]int{3, 2, 4}, tenon.Float32), x.RandN([]int{3, 2, 4}, tenon.Float32)
		for i, in := range [][3]*tenon.Tensor{{a, a, b}, {a, b, b}, {a, b, a}} {
			got := floats(t, x, m.Forward(x, in[0], in[1], in[2]))
			want := floats(t, x, m.Forward(x, in[0], x.Clone(in[1]), x.Clone(in[2])))
			if !slices.Equal(got, want) {
				t.Errorf("case %d: got %v, want %v", i, got, want)
			}
		}
	})
}

// Dropout acts on the weights in training alone; a query that sees no key gets the output's bias, and NaN where the weights are wanted.
func TestMultiheadAttentionDropsAndHides(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		m := nn.Scoped(x, nn.NewMultiheadAttention(x, 4, 2, nn.MultiheadAttentionOpt{Dropout: 1}))
		nn.InitConstant(x, m.OutProj.Bias.Tensor(), 3)
		in := seq(x, 2, 1, 4)
		all := func(y *tenon.Tensor, want float32) {
			t.Helper()
			for _, v := range floats(t, x, y) {
				if v != want && !(v != v && want != want) {
					t.Fatalf("got %v, want %v everywhere", v, want)
				}
			}
		}
		all(m.Forward(x, in, in, in), 3)
		y, w := m.ForwardWeights(x, in, in, in)
		all(y, 3)
		all(w, 0)
		nn.Eval(m)
		if y := floats(t, x, m.Forward(x, in, in, in)); slices.Max(y) == 3 && slices.Min(y) == 3 {
			t.Error("evaluation drops weights")
		}
		_, w = m.ForwardWeights(x, in, in, in)
		if v := floats(t, x, w); slices.Max(v) == 0 {
			t.Error("evaluation drops weights where they are wanted")
		}
		none := nn.MultiheadAttentionForwardOpt{KeyPadding: x.Full([]int{1, 2}, 1, tenon.Bool)}
		all(m.Forward(x, in, in, in, none), 3)
		_, w = m.ForwardWeights(x, in, in, in, none)
		all(w, float32(math.NaN()))
	})
}

func TestMultiheadAttentionErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		m := nn.Scoped(x, nn.NewMultiheadAttention(x, 4, 2))
		in := seq(x, 3, 2, 4)
		opt := nn.MultiheadAttentionForwardOpt{}
		for _, c := range []struct {
			want string
			f    func()
		}{
			{"not divisible by 3 heads", func() { nn.NewMultiheadAttention(x, 4, 3) }},
			{"cannot be; give positive numbers", func() { nn.NewMultiheadAttention(x, 0, 3) }},
			{"keys of -1", func() { nn.NewMultiheadAttention(x, 4, 2, nn.MultiheadAttentionOpt{KeySize: -1}) }},
			{"has to be between 0 and 1", func() { nn.NewMultiheadAttention(x, 4, 2, nn.MultiheadAttentionOpt{Dropout: 2}) }},
			{"is a zero value", func() { new(nn.MultiheadAttention).Forward(x, in, in, in) }},
			{"is nil", func() { (*nn.MultiheadAttention)(nil).Forward(x, in, in, in) }},
			{"found 3-D, 2-D and 3-D", func() { m.Forward(x, in, seq(x, 2, 4), in) }},
			{"the keys have 5 features, but the module takes 4", func() { m.Forward(x, in, seq(x, 3, 2, 5), in) }},
			{"a batch of 2, the values one of 1", func() { m.Forward(x, in, in, seq(x, 3, 1, 4)) }},
			{"3 keys and 1 values", func() { m.Forward(x, in, in, seq(x, 1, 2, 4)) }},
			{"KeyPadding has shape [3 2], but [2, 3] is needed", func() {
				opt.KeyPadding = seq(x, 3, 2)
				m.Forward(x, in, in, in, opt)
			}},
			{"Mask has shape [4 3 3], but [1, 3] or [4, 1, 3] is needed", func() {
				opt.KeyPadding, opt.Mask = nil, seq(x, 4, 3, 3)
				m.ForwardWeights(x, seq(x, 1, 2, 4), in, in, opt)
			}},
		} {
			if err := tenon.Try(c.f); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}
