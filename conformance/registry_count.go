package conformance

import "tenon.dev"

// Operations that count, that draw by probabilities in tensors, and whose result's length is the number of nonzero or distinct elements.

func init() {
	offer("bincount", func(x *tenon.Exec, a *args) any {
		return x.BinCount(a.tensor(0, "input"), tenon.BinCountOpt{Weight: a.tensor(1, "weights"), MinLength: a.int(2, "minlength", 0)})
	})
	nonzero := func(x *tenon.Exec, a *args) any {
		t, columns := a.tensor(0, "input"), a.bool(1, "as_tuple", false)
		if !columns {
			return x.Nonzero(t)
		}
		if len(t.Shape()) == 0 {
			t = x.View(t, 1)
		}
		return x.Unbind(x.Nonzero(t), 1)
	}
	offer("nonzero", nonzero)
	offer("argwhere", nonzero)
	offer("masked_select", func(x *tenon.Exec, a *args) any { return x.MaskedSelect(a.tensor(0, "input"), a.tensor(1, "mask")) })
	offer("masked_scatter", func(x *tenon.Exec, a *args) any {
		return x.MaskedScatter(a.tensor(0, "input"), a.tensor(1, "mask"), a.tensor(2, "source"))
	})
	offer("repeat_interleave", func(x *tenon.Exec, a *args) any {
		opt := tenon.RepeatInterleaveOpt{OutputSize: a.int(-1, "output_size", 0)}
		if a.has(2, "dim") {
			dim := a.int(2, "dim", 0)
			opt.Dim = &dim
		}
		if a.isTensor(1, "repeats") {
			return x.RepeatInterleave(a.tensor(0, "input"), a.tensor(1, "repeats"), opt)
		}
		return x.RepeatInterleaveS(a.tensor(0, "input"), a.int(1, "repeats", 1), opt)
	})
	offer("unique", func(x *tenon.Exec, a *args) any {
		a.bool(1, "sorted", true)
		values, inverse, counts := x.UniqueWithInverse(a.tensor(0, "input"))
		out := []*tenon.Tensor{values}
		if a.bool(2, "return_inverse", false) {
			out = append(out, inverse)
		} else {
			inverse.Close()
		}
		if a.bool(3, "return_counts", false) {
			out = append(out, counts)
		} else {
			counts.Close()
		}
		if a.has(4, "dim"); len(out) == 1 {
			return values
		}
		return out
	})
	offer("multinomial", func(x *tenon.Exec, a *args) any {
		return x.Multinomial(a.tensor(0, "input"), a.int(1, "num_samples", 0),
			tenon.MultinomialOpt{Replacement: a.bool(2, "replacement", false)})
	})
}
