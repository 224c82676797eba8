// Llama decodes tokens greedily with a cache of keys and values, and each step is one graph. The model has Llama's parts under Llama's
// names: RMSNorm, rotary embeddings, grouped-query attention and a gated MLP. Its weights are random; nn.LoadFile would load others.
//
//	go run ./examples/llama
//	go run ./examples/llama -bf16 -n 60
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"slices"
	"time"

	"tenon.dev"
	"tenon.dev/nn"
)

// config is the size of a model.
type config struct {
	vocab, width, heads, keyHeads, layers, hidden, context int
	dtype                                                  tenon.DType
}

// place is the positions of a call's tokens: their rotations and, for a decoding step, their position and the keys that they see.
type place struct {
	cos, sin *tenon.Tensor // [time, width of a head / 2]
	position *tenon.Tensor // [1]; nil is all positions from 0 on
	visible  *tenon.Tensor // [context], of bool
}

// layer is a layer of the model. A tag with a dot stands for a module in a module.
type layer struct {
	Norm1        *nn.RMSNorm `torch:"input_layernorm"`
	Q            *nn.Linear  `torch:"self_attn.q_proj"`
	K            *nn.Linear  `torch:"self_attn.k_proj"`
	V            *nn.Linear  `torch:"self_attn.v_proj"`
	O            *nn.Linear  `torch:"self_attn.o_proj"`
	Norm2        *nn.RMSNorm `torch:"post_attention_layernorm"`
	Gate         *nn.Linear  `torch:"mlp.gate_proj"`
	Up           *nn.Linear  `torch:"mlp.up_proj"`
	Down         *nn.Linear  `torch:"mlp.down_proj"`
	Keys, Values *nn.Buffer  // the cache [1, key heads, context, width of a head]
}

func (l *layer) forward(x *tenon.Exec, in *tenon.Tensor, p place) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h, keys, values := l.Norm1.Forward(x, in), l.Keys.Tensor(), l.Values.Tensor()
		heads := func(m *nn.Linear) *tenon.Tensor { // [batch, heads, time, width of a head]
			return x.Transpose(x.Unflatten(m.Forward(x, h), -1, -1, keys.Size(-1)), 1, 2)
		}
		q, k, v := rotate(x, heads(l.Q), p), rotate(x, heads(l.K), p), heads(l.V)
		opt := tenon.AttentionOpt{Causal: true, GroupedHeads: true}
		if p.position != nil {
			x.IndexCopyInto(keys, keys, 2, p.position, k)
			x.IndexCopyInto(values, values, 2, p.position, v)
			k, v, opt = keys, values, tenon.AttentionOpt{Mask: p.visible, GroupedHeads: true}
		}
		out := x.ScaledDotProductAttention(q, k, v, opt)
		out = x.Add(in, l.O.Forward(x, x.Flatten(x.Transpose(out, 1, 2), 2, 3)))
		h = l.Norm2.Forward(x, out)
		return x.Add(out, l.Down.Forward(x, x.Mul(x.SiLU(l.Gate.Forward(x, h)), l.Up.Forward(x, h))))
	})
}

// rotate rotates the pairs of t [batch, heads, time, width of a head] by the angles of their positions.
func rotate(x *tenon.Exec, t *tenon.Tensor, p place) *tenon.Tensor {
	half := x.Chunk(t, 2, -1)
	re := x.Sub(x.Mul(half[0], p.cos), x.Mul(half[1], p.sin))
	im := x.Add(x.Mul(half[1], p.cos), x.Mul(half[0], p.sin))
	return x.Cat([]*tenon.Tensor{re, im}, -1)
}

type llama struct {
	Embed    *nn.Embedding `torch:"embed_tokens"`
	Layers   []*layer      `torch:"layers"`
	Norm     *nn.RMSNorm   `torch:"norm"`
	Head     *nn.Linear    `torch:"lm_head"`
	Cos, Sin *nn.Buffer    // of the rotations at all positions [context, width of a head / 2]
}

func newLlama(x *tenon.Exec, c config) *llama {
	headWidth := c.width / c.heads
	linear := func(in, out int) *nn.Linear {
		return nn.NewLinear(x, in, out, nn.LinearOpt{NoBias: true, DType: c.dtype})
	}
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(x, []int{c.width}, nn.NormOpt{Eps: 1e-5, DType: c.dtype}) }
	buffer := func(t *tenon.Tensor) *nn.Buffer { return nn.NewBuffer(t, nn.BufferOpt{NonPersistent: true}) }
	cache := func() *nn.Buffer { return buffer(x.Zeros([]int{1, c.keyHeads, c.context, headWidth}, c.dtype)) }

	m := &llama{Embed: nn.NewEmbedding(x, c.vocab, c.width, nn.EmbeddingOpt{DType: c.dtype}), Norm: norm(), Head: linear(c.width, c.vocab)}
	for range c.layers {
		m.Layers = append(m.Layers, &layer{
			Norm1: norm(), Q: linear(c.width, c.width), K: linear(c.width, c.keyHeads*headWidth), V: linear(c.width, c.keyHeads*headWidth),
			O: linear(c.width, c.width), Norm2: norm(), Gate: linear(c.width, c.hidden), Up: linear(c.width, c.hidden),
			Down: linear(c.hidden, c.width), Keys: cache(), Values: cache(),
		})
	}
	x.Scope(func(x *tenon.Exec) {
		pairs := x.Arange(float64(headWidth/2), tenon.Float32)
		speeds := x.Exp(x.MulS(pairs, -2*math.Log(10000)/float64(headWidth)))
		angles := x.Outer(x.Arange(float64(c.context), tenon.Float32), speeds)
		m.Cos, m.Sin = buffer(x.Keep(x.ToDType(x.Cos(angles), c.dtype))), buffer(x.Keep(x.ToDType(x.Sin(angles), c.dtype)))
	})
	return m
}

// Forward returns the logits [batch, time, vocab] after each of the tokens [batch, time], without the cache.
func (m *llama) Forward(x *tenon.Exec, tokens *tenon.Tensor) *tenon.Tensor {
	first := tenon.Span(0, tokens.Size(1))
	return m.forward(x, tokens, place{cos: x.Index(m.Cos.Tensor(), first), sin: x.Index(m.Sin.Tensor(), first)})
}

func (m *llama) forward(x *tenon.Exec, tokens *tenon.Tensor, p place) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		h := m.Embed.Forward(x, tokens)
		for _, l := range m.Layers {
			h = l.forward(x, h, p)
		}
		return m.Head.Forward(x, m.Norm.Forward(x, h))
	})
}

// next returns the most likely token after tokens; it computes the keys and values of all of them.
func (m *llama) next(x *tenon.Exec, tokens []int64) (token float64, err error) {
	err = x.Do(func(x *tenon.Exec) error {
		logits := m.Forward(x, tenon.From(x, tokens, 1, len(tokens)))
		token, err = x.Item(x.ArgMax(x.Index(logits, 0, -1), nil))
		return err
	})
	return token, err
}

// decoder runs a model for one token at a time, as a graph that finds earlier keys and values in the cache.
type decoder struct {
	token, position *tenon.Tensor // [1, 1] and [1]: a step replaces the token by the next one
	graph           *tenon.Graph
	seen            int
}

func newDecoder(x *tenon.Exec, m *llama) (*decoder, error) {
	d := &decoder{token: x.Zeros([]int{1, 1}, tenon.Int64), position: x.Zeros([]int{1}, tenon.Int64)}
	graph, err := x.Capture(func(x *tenon.Exec) {
		positions := x.Arange(float64(m.Cos.Tensor().Size(0)), tenon.Int64)
		logits := m.forward(x, d.token, place{
			cos: x.Index(m.Cos.Tensor(), d.position), sin: x.Index(m.Sin.Tensor(), d.position),
			position: d.position, visible: x.Le(positions, d.position),
		})
		x.CopyInto(d.token, x.ArgMax(logits, []int{-1}))
		x.AddSInto(d.position, d.position, 1)
	})
	d.graph = graph
	return d, err
}

// next returns the most likely token after tokens; it computes only the tokens that it has not seen.
func (d *decoder) next(x *tenon.Exec, tokens []int64) (float64, error) {
	for ; d.seen < len(tokens); d.seen++ {
		x.FillInto(d.token, float64(tokens[d.seen]))
		if err := x.Replay(d.graph); err != nil {
			return 0, err
		}
	}
	return x.Item(d.token)
}

func (d *decoder) close() {
	d.graph.Close()
	d.token.Close()
	d.position.Close()
}

// write continues the prompt with n tokens.
func write(x *tenon.Exec, prompt []int64, n int, next func(x *tenon.Exec, tokens []int64) (float64, error)) ([]int64, error) {
	tokens := slices.Clone(prompt)
	for range n {
		token, err := next(x, tokens)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, int64(token))
	}
	return tokens, nil
}

func main() {
	device := flag.String("device", "best", "best, cuda:1, cpu, sim, …")
	bf16 := flag.Bool("bf16", false, "weights and computation in bfloat16")
	n := flag.Int("n", 40, "tokens to write")
	flag.Parse()
	c := config{vocab: 100, width: 64, heads: 8, keyHeads: 2, layers: 2, hidden: 172, context: 64, dtype: tenon.Float32}
	if *bf16 {
		c.dtype = tenon.BFloat16
	}
	if err := run(*device, c, *n, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(device string, c config, n int, out io.Writer) error {
	selector, err := tenon.ParseSelector(device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(selector)
	if err != nil {
		return err
	}
	defer x.Close()
	x = x.NoGrad()
	m := newLlama(x, c)
	defer nn.Close(m)
	d, err := newDecoder(x, m)
	if err != nil {
		return err
	}
	defer d.close()
	for _, next := range []func(x *tenon.Exec, tokens []int64) (float64, error){m.next, d.next} {
		start := time.Now()
		tokens, err := write(x, []int64{7, 3, 50}, n, next)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%v, %v a token\n", tokens, time.Since(start)/time.Duration(n))
	}
	return nil
}
