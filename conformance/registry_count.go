package conformance

import "tenon.dev"

// Operations that count and draw by numbers in tensors.

func init() {
	offer("bincount", func(x *tenon.Exec, a *args) any {
		return x.BinCount(a.tensor(0, "input"), a.tensor(1, "weights"), tenon.BinCountOpt{MinLength: a.int(2, "minlength", 0)})
	})
	offer("multinomial", func(x *tenon.Exec, a *args) any {
		return x.Multinomial(a.tensor(0, "input"), a.int(1, "num_samples", 0), tenon.MultinomialOpt{Replacement: a.bool(2, "replacement", false)})
	})
}
