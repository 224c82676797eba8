package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Input 0 of both is a contiguous matrix with a row of probabilities, or of numbers to compare, for each row of the result, which has i[0]
// columns.
var rowMultinomial, rowGreatest *row

func init() {
	of := func(f *frame) (kernels.Multinomial, bool) {
		p, out := f.in[0], f.out[0]
		return kernels.Multinomial{Rows: p.shape[0], N: p.shape[1], Samples: f.i[0], P: operand(p), Out: operand(out)}, out.Numel() > 0
	}
	infer := func(f *frame) { f.newOut(0, dtype.Int64, []int{f.in[0].shape[0], f.i[0]}, nil) }
	rowMultinomial = define(row{Name: "Multinomial", takes: "p;; samples", Torch: "multinomial", flags: flagAsserts, infer: infer,
		run: func(f *frame) error {
			m, some := of(f)
			if !some {
				return nil
			}
			return m.Draw(f, f.philox())
		}, draws: func(f *frame) uint64 {
			m, some := of(f)
			if !some {
				return 0
			}
			return m.Advance()
		}})
	rowGreatest = define(row{Name: "MultinomialGreatest", takes: "t;; samples", infer: infer, run: func(f *frame) error {
		m, some := of(f)
		if !some {
			return nil
		}
		return m.Greatest(f)
	}})
}

// maxCategories is how many categories Multinomial can draw from: its uniform numbers have that many values.
const maxCategories = 1 << 24

// MultinomialOpt are the options of Multinomial.
type MultinomialOpt struct {
	// Replacement lets a category be drawn more than once.
	Replacement bool
}

// Multinomial draws categories by their probabilities: p is a vector of probabilities, in any scale, or a matrix with one row per row of
// the result; there are at most 2²⁴ categories. It returns samples categories for each row, as int64; for a vector, the result is a vector.
// A category of probability 0 is never drawn. The numbers are PyTorch's, except where a uniform number is so close to the cumulative sum at
// a category that the two round differently: the sums are float64 here.
//
// It does not wait: a probability that is negative, infinite or NaN, a row of zeros and, without replacement, a row with fewer nonzero
// probabilities than samples fail as in AssertAsync.
//
//tenon:into
func (x *Exec) Multinomial(p *Tensor, samples int, opt MultinomialOpt) *Tensor {
	const op = "Multinomial"
	refuse := func(msg string, args ...any) { x.fail(op, fault.Invalid, []*Tensor{p}, msg, args...) }
	if !p.dt.IsFloat() {
		refuse("multinomial only supports floating-point dtypes for input, got: %v; convert it with x.ToDType", p.dt)
	}
	if len(p.shape) != 1 && len(p.shape) != 2 {
		refuse("prob_dist must be 1 or 2 dim, but has %d", len(p.shape))
	}
	n := p.shape[len(p.shape)-1]
	switch {
	case samples <= 0:
		refuse("cannot sample n_sample <= 0 samples, but got %d", samples)
	case !opt.Replacement && samples > n:
		refuse("cannot sample n_sample > prob_dist.size(-1) samples without replacement: %d of %d", samples, n)
	case n == 0:
		refuse("there are no categories in %v", p.shape)
	case n > maxCategories:
		refuse("number of categories cannot exceed 2^24, but is %d", n)
	case samples > 1<<31/max(p.Numel()/n, 1):
		refuse("at most 2^31 categories are drawn at a time, but %d of each row are more", samples)
	}
	return x.noGrad().composite(op, func(x *Exec) *Tensor {
		b := blaming("", p)
		rows := x.Contiguous(x.View(p, append([]int{p.Numel() / n}, n)...))
		var out *Tensor
		if opt.Replacement && samples > 1 {
			out = x.columns(rowMultinomial, rows, samples, b)
		} else {
			out = x.drawDistinct(rows, samples, b)
		}
		return x.View(out, append(p.shape[:len(p.shape)-1:len(p.shape)-1], samples)...)
	})
}

// columns runs one of the rows above with n columns.
func (x *Exec) columns(r *row, t *Tensor, n int, b *blame) *Tensor {
	f := x.op(r, t)
	f.i[0], f.blame = n, b
	return f.call1()
}

// drawDistinct draws the categories whose probabilities, divided by exponentially distributed numbers, are the greatest: the chance of
// being first is the category's share of the sum, and so on for the others. Errors are about b.
func (x *Exec) drawDistinct(p *Tensor, samples int, b *blame) *Tensor {
	p = x.widened(p)
	x.claim(x.All(x.LogicalAnd(x.GeS(p, 0), x.IsFinite(p)), nil, DimOpt{}), kernels.ClaimProbabilities, b)
	x.claim(x.All(x.GeS(x.CountNonzero(p, []int{1}), float64(samples)), nil, DimOpt{}), kernels.ClaimEnough, b)
	var out *Tensor
	x.together("Multinomial", func(x *Exec) {
		q := x.EmptyLike(p, LikeOpt{})
		x.ExponentialInto(q, 1)
		x.DivInto(q, p, q)
		if samples == 1 {
			out = x.ArgMax(q, []int{1}, DimOpt{KeepDim: true})
		} else {
			out = x.columns(rowGreatest, q, samples, b)
		}
	})
	return out
}
