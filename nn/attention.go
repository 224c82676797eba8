package nn

import (
	"math"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// MultiheadAttention projects queries, keys and values, lets every query attend to the keys in each of several heads, and projects the
// heads' results together (A. Vaswani et al., "Attention is all you need", 2017). Create one with NewMultiheadAttention. It has neither
// PyTorch's add_bias_kv nor its add_zero_attn.
type MultiheadAttention struct {
	Mode
	// InProjWeight is [3·Embed, Embed]: the rows for queries, those for keys and those for values. If keys or values have a size of their
	// own, it is nil, and QProjWeight [Embed, Embed], KProjWeight [Embed, KeySize] and VProjWeight [Embed, ValueSize] take its place.
	InProjWeight *Param `torch:"in_proj_weight"`
	QProjWeight  *Param `torch:"q_proj_weight"`
	KProjWeight  *Param `torch:"k_proj_weight"`
	VProjWeight  *Param `torch:"v_proj_weight"`
	// InProjBias is [3·Embed], or nil for none.
	InProjBias *Param `torch:"in_proj_bias"`
	// OutProj maps the heads' results, one after another, to the output.
	OutProj *Linear `torch:"out_proj"`

	embed, heads int
	opt          MultiheadAttentionOpt
}

// MultiheadAttentionOpt are the options of NewMultiheadAttention. The zero value is PyTorch's default.
type MultiheadAttentionOpt struct {
	// Dropout is the probability with which training sets a weight of the attention to 0; the others are multiplied by 1/(1-Dropout).
	Dropout float64
	// NoBias leaves the biases out.
	NoBias bool
	// KeySize and ValueSize are the numbers of features of keys and values; 0 is that of the queries.
	KeySize, ValueSize int
	// BatchFirst swaps the first two dimensions of inputs and output, which are then [Batch, Time, …].
	BatchFirst bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// NewMultiheadAttention returns an attention of embed features in the given number of heads, which must divide embed. The initial values
// are PyTorch's: the weights before the attention have Xavier's uniform bound, that after it is uniform within ±1/√embed, and the biases
// are 0.
func NewMultiheadAttention(x *tenon.Exec, embed, heads int, opts ...MultiheadAttentionOpt) *MultiheadAttention {
	const op = "NewMultiheadAttention"
	opt := core.One(op, opts)
	switch {
	case embed < 1 || heads < 1 || embed > math.MaxInt/3:
		fail(op, "an attention of %d features in %d heads cannot be; give positive numbers", embed, heads)
	case embed%heads != 0:
		fail(op, "embed_dim must be divisible by num_heads, but %d features are not divisible by %d heads", embed, heads)
	case !(0 <= opt.Dropout && opt.Dropout <= 1):
		fail(op, "dropout probability has to be between 0 and 1, but got %v", opt.Dropout)
	case opt.KeySize < 0 || opt.ValueSize < 0:
		fail(op, "keys of %d and values of %d features cannot be; give positive numbers, or 0 for as many as the queries have",
			opt.KeySize, opt.ValueSize)
	}
	if opt.KeySize == 0 {
		opt.KeySize = embed
	}
	if opt.ValueSize == 0 {
		opt.ValueSize = embed
	}
	m := &MultiheadAttention{embed: embed, heads: heads, opt: opt}
	dt := orFloat32(opt.DType)
	m.OutProj = NewLinear(x, embed, embed, LinearOpt{NoBias: opt.NoBias, DType: opt.DType, Generator: opt.Generator})
	xavier := func(rows, columns int) *Param {
		bound := math.Sqrt(3) * math.Sqrt(2/float64(rows+columns))
		return layer{dt, opt.Generator}.param(x, bound, rows, columns)
	}
	if opt.KeySize == embed && opt.ValueSize == embed {
		m.InProjWeight = xavier(3*embed, embed)
	} else {
		m.QProjWeight, m.KProjWeight, m.VProjWeight = xavier(embed, embed), xavier(embed, opt.KeySize), xavier(embed, opt.ValueSize)
	}
	if !opt.NoBias {
		m.InProjBias = NewParam(x.Zeros([]int{3 * embed}, dt))
		InitConstant(x, m.OutProj.Bias.Tensor(), 0)
	}
	return m
}

// MultiheadAttentionForwardOpt are the options of MultiheadAttention.Forward. The masks mean what PyTorch's mean: true hides a key. This is
// the opposite of tenon.AttentionOpt.Mask. A mask of floating-point numbers is added to the scores.
type MultiheadAttentionForwardOpt struct {
	// KeyPadding [Batch, S] hides keys from all queries of a batch; without a batch it is [S].
	KeyPadding *tenon.Tensor
	// Mask [T, S], or [Batch·Heads, T, S], hides keys from single queries.
	Mask *tenon.Tensor
	// Causal hides from query i all keys after key i.
	Causal bool
	// PerHead makes ForwardWeights return the weights of each head instead of their mean.
	PerHead bool
}

// Training reports whether the module is in training mode.
func (m *MultiheadAttention) Training() bool { return made(m, "MultiheadAttention").Mode.Training() }

// Forward returns what the queries [T, Batch, Embed] gather from the values [S, Batch, ValueSize] with the keys [S, Batch, KeySize], as
// [T, Batch, Embed]; inputs without Batch give a result without it. The weights [T, S] are not returned. A query that sees no key gets the
// bias of OutProj. Self-attention, in which the three inputs are the same tensor, is projected by one product.
func (m *MultiheadAttention) Forward(x *tenon.Exec, query, key, value *tenon.Tensor, opts ...MultiheadAttentionForwardOpt) *tenon.Tensor {
	opt := core.One("MultiheadAttention", opts)
	single := m.check(query, key, value, opt)
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		q, k, v := m.project(x, single, query, key, value)
		a := tenon.AttentionOpt{Causal: opt.Causal}
		if m.Training() {
			a.Dropout = m.opt.Dropout
		}
		if opt.KeyPadding != nil || opt.Mask != nil {
			a.Causal = false
			if hidden, added := m.masks(x, q, k, opt); added != nil {
				a.Mask = added
			} else {
				a.Mask = x.LogicalNot(hidden)
			}
		}
		return m.join(x, single, x.ScaledDotProductAttention(q, k, v, a))
	})
}

// ForwardWeights is Forward, and also returns the weights with which each query sees the keys, after the dropout: their mean over the
// heads, [Batch, T, S], or [Batch, Heads, T, S] with PerHead. It takes more time and memory than Forward. As in PyTorch, a query that sees
// no key gets NaN.
func (m *MultiheadAttention) ForwardWeights(x *tenon.Exec, query, key, value *tenon.Tensor,
	opts ...MultiheadAttentionForwardOpt) (out, weights *tenon.Tensor) {
	opt := core.One("MultiheadAttention", opts)
	single := m.check(query, key, value, opt)
	r := x.WithinMany(func(x *tenon.Exec) []*tenon.Tensor {
		q, k, v := m.project(x, single, query, key, value)
		scores := x.MatMul(x.MulS(q, 1/math.Sqrt(float64(q.Size(-1)))), x.Transpose(k, -2, -1))
		if opt.KeyPadding != nil || opt.Mask != nil || opt.Causal {
			hidden, added := m.masks(x, q, k, opt)
			if added != nil {
				scores = x.Add(scores, added)
			} else {
				scores = x.MaskedFillS(scores, hidden, math.Inf(-1))
			}
		}
		w := x.Softmax(scores, -1)
		if m.Training() {
			w = x.Dropout(w, m.opt.Dropout)
		}
		out := m.join(x, single, x.MatMul(w, v))
		if !opt.PerHead {
			w = x.Mean(w, []int{1})
		}
		if single {
			w = x.Squeeze(w, 0)
		}
		return []*tenon.Tensor{out, w}
	})
	return r[0], r[1]
}

// check refuses inputs of wrong shapes, and reports whether they have no batch.
func (m *MultiheadAttention) check(query, key, value *tenon.Tensor, opt MultiheadAttentionForwardOpt) (single bool) {
	const op = "MultiheadAttention"
	if made(m, op).heads == 0 {
		fail(op, "the module is a zero value; use one that NewMultiheadAttention returned")
	}
	single = query.Dim() == 2
	if !single && query.Dim() != 3 || key.Dim() != query.Dim() || value.Dim() != query.Dim() {
		fail(op, "For batched (3-D) `query`, expected `key` and `value` to be 3-D, and for unbatched (2-D) ones 2-D, but found %d-D, %d-D "+
			"and %d-D tensors", query.Dim(), key.Dim(), value.Dim())
	}
	time, batch := 0, 1
	if m.opt.BatchFirst && !single {
		time, batch = 1, 0
	}
	for i, t := range []*tenon.Tensor{query, key, value} {
		name, want := [...]string{"queries", "keys", "values"}[i], [...]int{m.embed, m.opt.KeySize, m.opt.ValueSize}[i]
		if t.Size(-1) != want {
			fail(op, "the %s have %d features, but the module takes %d: their shape is %v", name, t.Size(-1), want, t.Shape())
		}
		if !single && t.Size(batch) != query.Size(batch) {
			fail(op, "the queries are a batch of %d, the %s one of %d; give both the same", query.Size(batch), name, t.Size(batch))
		}
	}
	if key.Size(time) != value.Size(time) {
		fail(op, "key's sequence and value's must have the same length, but there are %d keys and %d values",
			key.Size(time), value.Size(time))
	}
	n, queries, keys := 1, query.Size(time), key.Size(time)
	if !single {
		n = query.Size(batch)
	}
	if p := opt.KeyPadding; p != nil && !(same(p, n, keys) || single && same(p, keys)) {
		fail(op, "KeyPadding has shape %v, but [%d, %d] is needed: one element for each key of a batch", p.Shape(), n, keys)
	}
	if a := opt.Mask; a != nil && !same(a, queries, keys) && !same(a, n*m.heads, queries, keys) {
		fail(op, "Mask has shape %v, but [%d, %d] or [%d, %[2]d, %[3]d] is needed", a.Shape(), queries, keys, n*m.heads)
	}
	return single
}

// same reports whether t has that shape.
func same(t *tenon.Tensor, shape ...int) bool {
	if t.Dim() != len(shape) {
		return false
	}
	for i, n := range shape {
		if t.Size(i) != n {
			return false
		}
	}
	return true
}

// project returns queries, keys and values as [Batch, Heads, Time, Features].
func (m *MultiheadAttention) project(x *tenon.Exec, single bool, query, key, value *tenon.Tensor) (q, k, v *tenon.Tensor) {
	batched := func(t *tenon.Tensor) *tenon.Tensor { // as [Batch, Time, ...] or [Time, Batch, ...]
		switch {
		case single && m.opt.BatchFirst:
			return x.Unsqueeze(t, 0)
		case single:
			return x.Unsqueeze(t, 1)
		}
		return t
	}
	heads := func(t *tenon.Tensor) *tenon.Tensor {
		t = x.Unflatten(t, -1, m.heads, m.embed/m.heads)
		if m.opt.BatchFirst {
			return x.Transpose(t, 1, 2)
		}
		return x.Permute(t, 1, 2, 0, 3)
	}
	if query == key && key == value && m.InProjWeight != nil {
		all := x.Linear(batched(query), m.InProjWeight.Tensor(), m.InProjBias.Tensor())
		parts := x.Chunk(all, 3, -1)
		return heads(parts[0]), heads(parts[1]), heads(parts[2])
	}
	part := func(t *tenon.Tensor, own *Param, i int) *tenon.Tensor {
		w := own.Tensor()
		if w == nil {
			w = x.Narrow(m.InProjWeight.Tensor(), 0, i*m.embed, m.embed)
		}
		b := m.InProjBias.Tensor()
		if b != nil {
			b = x.Narrow(b, 0, i*m.embed, m.embed)
		}
		return heads(x.Linear(batched(t), w, b))
	}
	return part(query, m.QProjWeight, 0), part(key, m.KProjWeight, 1), part(value, m.VProjWeight, 2)
}

// join merges the heads of y [Batch, Heads, Time, Features] and projects them.
func (m *MultiheadAttention) join(x *tenon.Exec, single bool, y *tenon.Tensor) *tenon.Tensor {
	batch := 1
	if m.opt.BatchFirst {
		y, batch = x.Transpose(y, 1, 2), 0
	} else {
		y = x.Permute(y, 2, 0, 1, 3)
	}
	y = m.OutProj.Forward(x, x.Flatten(y, 2, 3))
	if single {
		return x.Squeeze(y, batch)
	}
	return y
}

// masks returns the options' masks as one that broadcasts to the scores: true where a key is hidden, or numbers to add if one of them has
// numbers.
func (m *MultiheadAttention) masks(x *tenon.Exec, q, k *tenon.Tensor, opt MultiheadAttentionForwardOpt) (hidden, added *tenon.Tensor) {
	n, queries, keys := q.Size(0), q.Size(2), k.Size(2)
	include := func(t *tenon.Tensor) {
		switch {
		case t.DType() != tenon.Bool && added == nil:
			added = t
		case t.DType() != tenon.Bool:
			added = x.Add(added, t)
		case hidden == nil:
			hidden = t
		default:
			hidden = x.LogicalOr(hidden, t)
		}
	}
	if opt.KeyPadding != nil {
		include(x.Reshape(opt.KeyPadding, n, 1, 1, keys))
	}
	if opt.Mask != nil && opt.Mask.Dim() == 3 {
		include(x.Reshape(opt.Mask, n, m.heads, queries, keys))
	} else if opt.Mask != nil {
		include(opt.Mask)
	}
	if opt.Causal {
		include(x.Triu(x.Full([]int{queries, keys}, 1, tenon.Bool), 1))
	}
	if added != nil {
		if hidden != nil {
			added = x.Add(added, x.MaskedFillS(x.Zeros(hidden.Shape(), added.DType()), hidden, math.Inf(-1)))
		}
		if added.DType() != q.DType() {
			added = x.ToDType(added, q.DType())
		}
	}
	return hidden, added
}
