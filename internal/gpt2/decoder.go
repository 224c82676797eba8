package gpt2

import (
	"tenon.dev"
)

// Decoder generates one token after the other. The keys and values of earlier tokens are caches that a step changes in place, at a
// position held in a tensor, so that all steps have the same shapes.
type Decoder struct {
	// Model holds the weights.
	Model *Model
	// Token [1, 1] is the last token, Position [1] its position, Logits [1, 1, V] the logits of the last step.
	Token, Position, Logits *tenon.Tensor

	keys, values []*tenon.Tensor // [1, H, context, D] for each block
	all          *tenon.Tensor   // the numbers of all positions
}

// NewDecoder returns a decoder that begins with a token. Caches have the type of the model's weights.
func NewDecoder(x *tenon.Exec, m *Model, token int64) *Decoder {
	c := m.config
	d := &Decoder{Model: m, Token: x.Full([]int{1, 1}, float64(token), tenon.Int64), Position: x.Zeros([]int{1}, tenon.Int64)}
	d.all = x.Arange(float64(c.Context), tenon.Int64)
	cache := func() *tenon.Tensor {
		return x.Zeros([]int{1, c.Heads, c.Context, c.Width / c.Heads}, m.Tokens.Weight.Tensor().DType())
	}
	for range c.Layers {
		d.keys, d.values = append(d.keys, cache()), append(d.values, cache())
	}
	return d
}

// Step puts the most likely next token into Token and moves to its position. It reads nothing from the device. Beyond the context it
// fails as the device does for an index out of range.
func (d *Decoder) Step(x *tenon.Exec) error {
	x = x.NoGrad()
	opt := tenon.AttentionOpt{Mask: x.Le(d.all, d.Position)}
	logits := d.Model.forward(x, d.Token, d.Position, func(x *tenon.Exec, block int, q, k, v *tenon.Tensor) *tenon.Tensor {
		keys, values := d.keys[block], d.values[block]
		x.IndexCopyInto(keys, keys, 2, d.Position, k)
		x.IndexCopyInto(values, values, 2, d.Position, v)
		return x.ScaledDotProductAttention(q, keys, values, opt)
	})
	x.CopyInto(d.Token, x.ArgMax(logits, []int{-1}))
	x.AddSInto(d.Position, d.Position, 1)
	d.Logits.Close()
	d.Logits = x.Keep(logits)
	return nil
}

// Caches returns the keys and values of all blocks.
func (d *Decoder) Caches() []*tenon.Tensor {
	return append(append([]*tenon.Tensor(nil), d.keys...), d.values...)
}

// Close closes the tensors, except the model's.
func (d *Decoder) Close() {
	for _, a := range append(d.Caches(), d.Token, d.Position, d.Logits, d.all) {
		a.Close()
	}
}
