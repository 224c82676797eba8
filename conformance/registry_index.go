package conformance

import "tenon.dev"

// Operations that take indexes.

func init() {
	offer("index_select", func(x *tenon.Exec, a *args) any {
		return x.IndexSelect(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"))
	})
	offer("index_copy", func(x *tenon.Exec, a *args) any {
		return x.IndexCopy(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"), a.tensor(3, "source"))
	})
	offer("index_fill", func(x *tenon.Exec, a *args) any {
		t, dim, index := a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index")
		switch {
		case a.isTensor(3, "value"):
			return x.IndexFill(t, dim, index, a.tensor(3, "value"))
		case a.isComplex(3, "value"):
			return x.Within(func(x *tenon.Exec) *tenon.Tensor {
				return x.IndexFill(t, dim, index, a.scalar(x, 3, "value", t.DType()))
			})
		}
		return x.IndexFillS(t, dim, index, a.float(3, "value", 0))
	})
	offer("index_add", func(x *tenon.Exec, a *args) any {
		opt := tenon.IndexAddOpt{Alpha: a.option(-1, "alpha")}
		return x.IndexAdd(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"), a.tensor(3, "source"), opt)
	})
	offer("topk", func(x *tenon.Exec, a *args) any {
		a.bool(4, "sorted", true) // the result is always sorted
		values, indices := x.TopK(a.tensor(0, "input"), a.int(1, "k", 0),
			tenon.TopKOpt{Dim: new(a.int(2, "dim", -1)), Smallest: !a.bool(3, "largest", true)})
		return []*tenon.Tensor{values, indices}
	})
	offer("gather", func(x *tenon.Exec, a *args) any {
		return x.Gather(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"))
	})
	offer("scatter", func(x *tenon.Exec, a *args) any {
		t, dim, index, opt := a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"),
			tenon.ScatterOpt{Reduce: choice[tenon.ScatterMode](a, 4, "reduce")}
		if a.isTensor(3, "src") {
			return x.Scatter(t, dim, index, a.tensor(3, "src"), opt)
		}
		return x.ScatterS(t, dim, index, a.float(3, "value", 0), opt)
	})
	offer("scatter_add", func(x *tenon.Exec, a *args) any {
		return x.ScatterAdd(a.tensor(0, "input"), a.int(1, "dim", 0), a.tensor(2, "index"), a.tensor(3, "src"))
	})
	offer("take_along_dim", func(x *tenon.Exec, a *args) any {
		t, index := a.tensor(0, "input"), a.tensor(1, "indices")
		if a.has(2, "dim") {
			return x.TakeAlongDim(t, index, a.int(2, "dim", 0))
		}
		return x.TakeAlongDim(t, index)
	})
	offer("nn.functional.embedding", func(x *tenon.Exec, a *args) any {
		opt := tenon.EmbeddingOpt{Padding: a.has(2, "padding_idx"), PaddingIdx: a.int(2, "padding_idx", 0),
			MaxNorm: a.option(3, "max_norm"), NormType: a.option(4, "norm_type"),
			ScaleGradByFreq: a.bool(5, "scale_grad_by_freq", false)}
		// A gradient in sparse form has the same values.
		a.bool(6, "sparse", false)
		return x.Embedding(a.tensor(1, "weight"), a.tensor(0, "input"), opt)
	})
	offer("nn.functional.one_hot", func(x *tenon.Exec, a *args) any {
		t, n := a.tensor(0, "input"), a.int(1, "num_classes", -1)
		if n < 0 {
			most := x.AMax(t, nil)
			defer most.Close()
			last, err := x.Item(most)
			if err != nil {
				panic(err)
			}
			n = int(last) + 1
		}
		return x.OneHot(t, n)
	})
}
