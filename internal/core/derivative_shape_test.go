package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
)

// list wraps a function with several results, and joins them so that each counts.
func list(f func(x *Exec, t *Tensor) []*Tensor) func(x *Exec, in []*Tensor) *Tensor {
	return func(x *Exec, in []*Tensor) *Tensor {
		var flat []*Tensor
		for i, t := range f(x, in[0]) {
			if i != 1 { // one result has no gradient
				flat = append(flat, x.Reshape(t, -1))
			}
		}
		return x.Cat(flat, 0)
	}
}

// rearrangements lists functions that move elements.
func rearrangements() []differentiable {
	cube := []int{2, 3, 4}
	of := func(name string, f func(x *Exec, t *Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: -1, hi: 1, shape: cube, complex: true, f: of1(f)}
	}
	return []differentiable{
		of("view", func(x *Exec, t *Tensor) *Tensor { return x.View(t, 6, 4) }),
		of("reshape", func(x *Exec, t *Tensor) *Tensor { return x.Reshape(x.Permute(t, 2, 0, 1), 8, 3) }),
		of("ravel", func(x *Exec, t *Tensor) *Tensor { return x.Ravel(x.Transpose(t, 0, 2)) }),
		of("flatten", func(x *Exec, t *Tensor) *Tensor { return x.Flatten(t, 0, 1) }),
		of("unflatten", func(x *Exec, t *Tensor) *Tensor { return x.Unflatten(t, 2, 2, -1) }),
		of("expand", func(x *Exec, t *Tensor) *Tensor { return x.Expand(x.Slice(t, 1, 1, 2, 1), 2, 5, 4) }),
		of("repeat", func(x *Exec, t *Tensor) *Tensor { return x.Repeat(t, 2, 1, 3, 1) }),
		of("tile", func(x *Exec, t *Tensor) *Tensor { return x.Tile(t, 2, 2) }),
		of("movedim", func(x *Exec, t *Tensor) *Tensor { return x.MoveDim(t, []int{0}, []int{-1}) }),
		of("narrow", func(x *Exec, t *Tensor) *Tensor { return x.Narrow(t, 2, 1, 2) }),
		of("select", func(x *Exec, t *Tensor) *Tensor { return x.Select(t, 1, -1) }),
		of("slice", func(x *Exec, t *Tensor) *Tensor { return x.Slice(t, 2, 0, 4, 2) }),
		of("diagonal", func(x *Exec, t *Tensor) *Tensor { return x.Diagonal(t, DiagonalOpt{Offset: 1, Dims: [2]int{1, 2}}) }),
		of("squeeze", func(x *Exec, t *Tensor) *Tensor { return x.Squeeze(x.Unsqueeze(t, 1)) }),
		of("strided", func(x *Exec, t *Tensor) *Tensor { return x.AsStrided(t, []int{3, 2}, []int{4, 2}, 3) }),
		of("strided over itself", func(x *Exec, t *Tensor) *Tensor { return x.AsStrided(t, []int{3, 3}, []int{1, 2}, 1) }),
		of("strided of a view", func(x *Exec, t *Tensor) *Tensor { return x.AsStrided(x.Select(t, 0, 1), []int{5}, []int{2}, 13) }),
		of("flip", func(x *Exec, t *Tensor) *Tensor { return x.Flip(t, 0, -1) }),
		of("roll", func(x *Exec, t *Tensor) *Tensor { return x.Roll(t, []int{1, -2}, 1, 2) }),
		of("roll all", func(x *Exec, t *Tensor) *Tensor { return x.Roll(t, []int{5}) }),
		of("tril", func(x *Exec, t *Tensor) *Tensor { return x.Tril(t, 1) }),
		of("triu", func(x *Exec, t *Tensor) *Tensor { return x.Triu(t, -1) }),
		of("to float32 and back", func(x *Exec, t *Tensor) *Tensor { return x.ToDType(t, t.dt) }),
		of("channels last", func(x *Exec, t *Tensor) *Tensor { return x.ChannelsLast(x.Unsqueeze(t, 0)) }),
		of("pad", func(x *Exec, t *Tensor) *Tensor { return x.Pad(t, []int{1, -1, -2, 3}, PadOpt{Value: 2}) }),
		of("pad reflect", func(x *Exec, t *Tensor) *Tensor { return x.Pad(t, []int{3, 2}, PadOpt{Mode: PadReflect}) }),
		of("pad replicate", func(x *Exec, t *Tensor) *Tensor { return x.Pad(t, []int{3, -2, 1, 0}, PadOpt{Mode: PadReplicate}) }),
		of("pad circular", func(x *Exec, t *Tensor) *Tensor { return x.Pad(t, []int{2, -1}, PadOpt{Mode: PadCircular}) }),
		{name: "split", lo: -1, hi: 1, shape: cube, complex: true, f: list(func(x *Exec, t *Tensor) []*Tensor {
			return x.SplitSizes(t, []int{1, 2, 1}, 2)
		})},
		{name: "chunk", lo: -1, hi: 1, shape: cube, complex: true, f: list(func(x *Exec, t *Tensor) []*Tensor { return x.Chunk(t, 2, 1) })},
		{name: "unbind", lo: -1, hi: 1, shape: cube, complex: true, f: list(func(x *Exec, t *Tensor) []*Tensor { return x.Unbind(t, 1) })},
		{name: "cat", lo: -1, hi: 1, shape: cube, ins: 3, complex: true, f: func(x *Exec, in []*Tensor) *Tensor { return x.Cat(in, -1) }},
		{name: "stack", lo: -1, hi: 1, shape: cube, ins: 2, complex: true, f: func(x *Exec, in []*Tensor) *Tensor {
			return x.Stack(in, 1)
		}},
	}
}

// places returns an int64 tensor of indexes.
func places(x *Exec, shape []int, v ...int64) *Tensor { return From(x, v, shape...) }

// indexings lists functions that take indexes.
func indexings() []differentiable {
	of := func(name string, ins int, f func(x *Exec, in []*Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: 0.5, hi: 1.5, shape: []int{3, 4}, ins: ins, complex: true, f: f}
	}
	return []differentiable{
		of("gather", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Gather(in[0], 1, places(x, []int{2, 3}, 0, 0, 3, 1, 2, 1))
		}),
		of("index_select", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.IndexSelect(in[0], 0, places(x, []int{4}, 2, 0, 2, 1))
		}),
		of("index_copy", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.IndexCopy(in[0], 1, places(x, []int{2}, 3, 1), x.Narrow(in[1], 1, 0, 2))
		}),
		of("index_fill", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.IndexFill(in[0], -1, places(x, []int{3}, -1, 0, 3), x.Select(x.Select(in[1], 0, 1), 0, 2))
		}),
		of("index_fill value", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.IndexFillS(in[0], 0, places(x, []int{2}, -1, 0), 3)
		}),
		of("index_add", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.IndexAdd(in[0], 0, places(x, []int{3}, 2, 0, 2), in[1], IndexAddOpt{Alpha: -0.5})
		}),
		{name: "topk", lo: 0.5, hi: 1.5, shape: []int{3, 4}, f: func(x *Exec, in []*Tensor) *Tensor {
			values, _ := x.TopK(in[0], 2, TopKOpt{Dim: new(0)})
			return values
		}},
		of("take_along_dim", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.TakeAlongDim(in[0], places(x, []int{1, 3}, -1, 0, 0), 1)
		}),
		of("scatter", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.Scatter(in[0], 1, places(x, []int{3, 2}, 0, 1, 3, 2, 1, 0), in[1], ScatterOpt{})
		}),
		of("scatter value", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.ScatterS(in[0], 0, places(x, []int{1, 2}, 2, 1), 3, ScatterOpt{})
		}),
		of("scatter_add", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.ScatterAdd(in[0], 0, places(x, []int{3, 4}, 0, 1, 2, 2, 0, 1, 1, 2, 0, 0, 0, 0), in[1])
		}),
		of("embedding", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Embedding(places(x, []int{2, 2}, 2, 0, 2, 2), in[0], EmbeddingOpt{})
		}),
	}
}

// products lists products of matrices and convolutions.
func products() []differentiable {
	of := func(name string, ins int, f func(x *Exec, in []*Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: -1, hi: 1, shape: []int{2, 3, 4}, ins: ins, complex: true, f: f}
	}
	return []differentiable{
		of("matmul", 2, func(x *Exec, in []*Tensor) *Tensor { return x.MatMul(in[0], x.Transpose(in[1], 1, 2)) }),
		of("matmul broadcast", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.MatMul(in[0], x.View(in[1], 2, 1, 4, 3))
		}),
		of("mv", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.MV(x.View(in[0], 6, 4), x.Select(x.Select(in[1], 0, 0), 0, 0))
		}),
		of("dot", 2, func(x *Exec, in []*Tensor) *Tensor { return x.Dot(x.Ravel(in[0]), x.Ravel(in[1])) }),
		of("outer", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.Outer(x.Select(x.Select(in[0], 0, 0), 0, 0), x.Ravel(in[1]))
		}),
		of("addmm", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.AddMM(x.Select(x.Select(in[0], 2, 0), 0, 1), x.View(in[1], 8, 3), x.Slice(x.View(in[2], 3, 8), 1, 0, 3, 1),
				AddMMOpt{Beta: 0.5, Alpha: -2})
		}),
		of("baddbmm", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.BAddBMM(x.Slice(in[0], 2, 0, 3, 1), in[1], x.View(in[2], 2, 4, 3), AddMMOpt{Beta: 2, Alpha: 0.5})
		}),
		of("addmm complex factors", 3, func(x *Exec, in []*Tensor) *Tensor {
			if !in[0].dt.IsComplex() {
				return x.MulS(x.Add(x.Add(in[0], in[1]), in[2]), 2)
			}
			return x.AddMMC(x.View(in[0], 24, 1), x.View(in[1], 24, 1), x.View(x.Select(x.Select(in[2], 0, 0), 0, 0), 1, 4),
				AddMMCOpt{Beta: 1 + 2i, Alpha: -1i})
		}),
		of("linear", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.Linear(in[0], x.View(in[1], 6, 4), x.Slice(x.Ravel(in[2]), 0, 0, 6, 1))
		}),
		of("conv1d", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.Conv1d(in[0], x.View(in[1], 4, 3, 2), x.Slice(x.Ravel(in[2]), 0, 0, 4, 1),
				Conv1dOpt{Stride: 2, Padding: 1})
		}),
		of("conv2d", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.Conv2d(x.View(in[0], 1, 2, 3, 4), x.View(in[1], 6, 1, 2, 2), x.Slice(x.Ravel(in[2]), 0, 0, 6, 1),
				Conv2dOpt{Groups: 2, Padding: [2]int{1, 0}, Dilation: [2]int{2, 1}})
		}),
		of("conv_transpose2d", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.ConvTranspose2d(x.View(in[0], 1, 6, 2, 2), x.View(in[1], 6, 1, 2, 2), x.Slice(x.Ravel(in[2]), 0, 0, 2, 1),
				ConvTranspose2dOpt{Groups: 2, Stride: [2]int{2, 1}, Padding: [2]int{1, 0}, OutputPadding: [2]int{1, 1},
					Dilation: [2]int{1, 2}})
		}),
		of("conv_transpose2d of one image", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.ConvTranspose2d(x.View(in[0], 2, 3, 4), x.View(in[1], 2, 3, 2, 2), nil, ConvTranspose2dOpt{Stride: [2]int{3, 2}})
		}),
		of("conv2d same", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.Conv2d(x.View(in[0], 2, 3, 4), x.View(in[1], 4, 2, 1, 3), nil, Conv2dOpt{Same: true, Dilation: [2]int{1, 2}})
		}),
	}
}

// windows lists poolings, normalisations and losses.
func windows() []differentiable {
	of := func(name string, ins int, f func(x *Exec, in []*Tensor) *Tensor) differentiable {
		return differentiable{name: name, lo: -1, hi: 1, shape: []int{2, 4, 3}, ins: ins, f: f}
	}
	vector := func(x *Exec, t *Tensor, n int) *Tensor { return x.Slice(x.Ravel(t), 0, 0, n, 1) }
	target := func(x *Exec) *Tensor { return places(x, []int{2, 3}, 0, 3, -100, 1, 2, 2) }
	out := []differentiable{
		of("interpolate nearest", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Interpolate(in[0], InterpolateOpt{Size: []int{7}})
		}),
		of("interpolate doubled", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Interpolate(x.Unsqueeze(in[0], 1), InterpolateOpt{Scale: []float64{2, 3}})
		}),
		of("interpolate bilinear", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Interpolate(x.Unsqueeze(in[0], 1), InterpolateOpt{Size: []int{3, 5}, Mode: InterpolateBilinear})
		}),
		of("interpolate trilinear", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.Interpolate(x.View(in[0], 1, 2, 2, 2, 3), InterpolateOpt{Size: []int{3, 1, 4}, Mode: InterpolateTrilinear,
				AlignCorners: true})
		}),
		of("max_pool2d", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.MaxPool2d(in[0], [2]int{3, 2}, MaxPoolOpt{Stride: [2]int{1, 1}, Padding: [2]int{1, 1}, CeilMode: true})
		}),
		of("avg_pool2d", 1, func(x *Exec, in []*Tensor) *Tensor {
			return x.AvgPool2d(in[0], [2]int{3, 2}, AvgPoolOpt{Stride: [2]int{2, 1}, Padding: [2]int{1, 1}, ExcludePadding: true})
		}),
		of("adaptive_avg_pool2d", 1, func(x *Exec, in []*Tensor) *Tensor { return x.AdaptiveAvgPool2d(in[0], [2]int{3, 2}) }),
		of("layer_norm", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.LayerNorm(in[0], x.Select(in[1], 0, 0), x.Select(in[2], 0, 0), []int{4, 3}, NormOpt{Eps: 0.1})
		}),
		of("layer_norm plain", 1, func(x *Exec, in []*Tensor) *Tensor { return x.LayerNorm(in[0], nil, nil, []int{3}, NormOpt{Eps: 0.1}) }),
		of("rms_norm", 2, func(x *Exec, in []*Tensor) *Tensor {
			return x.RMSNorm(in[0], vector(x, in[1], 3), []int{3}, NormOpt{Eps: 0.1})
		}),
		of("group_norm", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.GroupNorm(in[0], vector(x, in[1], 4), vector(x, in[2], 4), 2, NormOpt{Eps: 0.1})
		}),
		of("batch_norm", 3, func(x *Exec, in []*Tensor) *Tensor {
			return x.BatchNorm(in[0], vector(x, in[1], 4), vector(x, in[2], 4), nil, nil,
				BatchNormOpt{Momentum: 0, Eps: 0.1, Training: true})
		}),
		of("batch_norm eval", 3, func(x *Exec, in []*Tensor) *Tensor {
			mean, variance := x.Full([]int{4}, 0.5, dtype.Float64), x.Full([]int{4}, 2, dtype.Float64)
			return x.BatchNorm(in[0], vector(x, in[1], 4), vector(x, in[2], 4), mean, variance, BatchNormOpt{Momentum: 0, Eps: 0.1})
		}),
	}
	for _, r := range []Reduction{ReduceMean, ReduceSum, ReduceNone} {
		out = append(out,
			of("cross_entropy "+r.String(), 1, func(x *Exec, in []*Tensor) *Tensor {
				return x.CrossEntropy(in[0], target(x), CrossEntropyOpt{Weight: From(x, []float64{1, 2, .5, 1}), Reduction: r})
			}),
			of("cross_entropy smoothed "+r.String(), 1, func(x *Exec, in []*Tensor) *Tensor {
				return x.CrossEntropy(in[0], target(x), CrossEntropyOpt{Weight: From(x, []float64{1, 2, .5, 1}), Reduction: r,
					LabelSmoothing: 0.2})
			}),
			of("cross_entropy probabilities "+r.String(), 2, func(x *Exec, in []*Tensor) *Tensor {
				return x.CrossEntropy(in[0], in[1], CrossEntropyOpt{Reduction: r})
			}),
			of("nll_loss "+r.String(), 1, func(x *Exec, in []*Tensor) *Tensor {
				return x.NLLLoss(in[0], target(x), NLLLossOpt{Reduction: r})
			}),
			of("mse_loss "+r.String(), 2, func(x *Exec, in []*Tensor) *Tensor { return x.MSELoss(in[0], in[1], LossOpt{Reduction: r}) }),
			of("l1_loss "+r.String(), 2, func(x *Exec, in []*Tensor) *Tensor { return x.L1Loss(in[0], in[1], LossOpt{Reduction: r}) }),
			of("bce_with_logits "+r.String(), 2, func(x *Exec, in []*Tensor) *Tensor {
				return x.BCEWithLogits(in[0], in[1], BCEWithLogitsOpt{PositiveWeight: From(x, []float64{1, 2, .5}), Reduction: r})
			}),
			of("bce_with_logits weighted "+r.String(), 3, func(x *Exec, in []*Tensor) *Tensor {
				return x.BCEWithLogits(in[0], in[1], BCEWithLogitsOpt{Weight: in[2], Reduction: r})
			}))
	}
	return out
}

// TestShapeDerivatives is TestDerivatives for operations that are not element-wise.
func TestShapeDerivatives(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := New(host, host)
	for _, fs := range [][]differentiable{rearrangements(), indexings(), products(), windows()} {
		for _, d := range fs {
			d.ins = max(d.ins, 1)
			t.Run(d.name, func(t *testing.T) { d.check(t, x, dtype.Float64) })
			if d.complex {
				t.Run(d.name+" complex", func(t *testing.T) { d.check(t, x, dtype.Complex128) })
			}
		}
	}
}
