package nn

import (
	"tenon.dev"
	"tenon.dev/internal/core"
)

// Embedding is a table of vectors, selected by integer indexes.
type Embedding struct {
	// Weight is [V, D].
	Weight *Param `torch:"weight"`
	// Opt are the padding row, which gets no gradient, the bound on norms, and the scaling of gradients.
	Opt tenon.EmbeddingOpt `torch:"-"`
}

// EmbeddingOpt are the options of NewEmbedding. The zero value is PyTorch's default.
type EmbeddingOpt struct {
	// Lookup are the options of the lookup; the padding row is initialised with zeros.
	Lookup tenon.EmbeddingOpt
	// DType is the weight's type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// NewEmbedding returns a table of count vectors of size elements, drawn from the standard normal distribution.
func NewEmbedding(x *tenon.Exec, count, size int, opts ...EmbeddingOpt) *Embedding {
	opt := core.One("NewEmbedding", opts)
	pad := opt.Lookup.PaddingIdx
	if opt.Lookup.Padding && (pad < -count || pad >= count) {
		fail("NewEmbedding", "Padding_idx must be within num_embeddings: %d of %d", pad, count)
	}
	w := opt.Generator.normal(x, []int{count, size}, orFloat32(opt.DType), 0, 1)
	if opt.Lookup.Padding {
		x.NoGrad().Scope(func(x *tenon.Exec) {
			row := x.Select(w, 0, pad)
			x.CopyInto(row, x.Zeros(row.Shape(), row.DType()))
		})
	}
	return &Embedding{Weight: NewParam(w), Opt: opt.Lookup}
}

// Forward maps index, integers in 0 … V-1 of any shape, to [index's shape, D].
func (e *Embedding) Forward(x *tenon.Exec, index *tenon.Tensor) *tenon.Tensor {
	made(e, "Embedding")
	return x.Embedding(index, e.Weight.Tensor(), e.Opt)
}
