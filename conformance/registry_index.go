package conformance

import "tenon.dev"

// Operations that take indexes.

func init() {
	offer("index_select", func(a *args) any {
		return a.x.IndexSelect(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"))
	})
	offer("gather", func(a *args) any {
		return a.x.Gather(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"))
	})
	offer("scatter", func(a *args) any {
		t, dim, index, opt := a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"), tenon.ScatterOpt{Reduce: a.str(4, "reduce", "")}
		if a.isTensor(3, "src") {
			return a.x.Scatter(t, dim, index, a.tensor(3, "src"), opt)
		}
		return a.x.ScatterS(t, dim, index, a.float(3, "value", 0), opt)
	})
	offer("scatter_add", func(a *args) any {
		return a.x.ScatterAdd(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"), a.tensor(3, "src"))
	})
	offer("take_along_dim", func(a *args) any {
		t, index := a.tensor(0, "input"), a.tensor(1, "indices")
		if a.has(2, "dim") {
			return a.x.TakeAlongDim(t, index, a.int(2, "dim", 0))
		}
		return a.x.TakeAlongDim(t, index)
	})
	offer("nn.functional.embedding", func(a *args) any {
		opt := tenon.EmbeddingOpt{Padding: a.has(2, "padding_idx"), PaddingIdx: a.int(2, "padding_idx", 0), MaxNorm: a.float(3, "max_norm", 0),
			NormType: a.float(4, "norm_type", 2), ScaleGradByFreq: a.bool(5, "scale_grad_by_freq", false)}
		// A gradient in sparse form has the same values.
		a.bool(6, "sparse", false)
		return a.x.Embedding(a.tensor(1, "weight"), a.tensor(0, "input"), opt)
	})
	offer("nn.functional.one_hot", func(a *args) any {
		t, n := a.tensor(0, "input"), a.int(1, "num_classes", -1)
		if n < 0 {
			most := a.x.AMax(t, nil, false)
			defer most.Close()
			last, err := a.x.Item(most)
			if err != nil {
				panic(err)
			}
			n = int(last) + 1
		}
		return a.x.OneHot(t, n)
	})
}
