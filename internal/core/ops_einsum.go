package core

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"tenon.dev/fault"
)

// labelled is a tensor whose dimensions have labels: letters or, for those of an ellipsis, negative numbers, the last of which is -1.
type labelled struct {
	t      *Tensor
	labels []rune
}

// Einsum returns the sums of products that the equation describes, in PyTorch's form: "ij,jk->ik" is the product of matrices. The terms
// between commas have one letter for each dimension of an operand; dimensions with the same letter have equal sizes or size 1. The result
// has the letters after the arrow, and all others are summed over. A letter that occurs twice in a term selects the diagonal. "..." stands
// for the dimensions without letters, which are broadcast. Without an arrow the result has the ellipsis and the letters that occur once,
// sorted. Operands are multiplied from the left, each pair as one product of matrices.
func (x *Exec) Einsum(equation string, ts ...*Tensor) *Tensor {
	text := strings.ReplaceAll(equation, " ", "")
	in, out, arrow := strings.Cut(text, "->")
	terms := strings.Split(in, ",")
	if len(terms) != len(ts) {
		x.fail("Einsum", fault.Invalid, ts, "Number of einsum subscripts, %d, must be equal to the number of operands, %d",
			len(terms), len(ts))
	}
	for i, t := range ts {
		Given("Einsum", i, t)
	}
	return x.composite("Einsum", func(x *Exec) *Tensor {
		m := slices.Clone(ts)
		at := make([]**Tensor, len(m))
		for i := range m {
			at[i] = &m[i]
		}
		x = x.casting("Einsum", castLow, at...)
		all, sizes := make([]labelled, len(m)), map[rune]int{}
		count, more := map[rune]int{}, 0
		for i, term := range terms {
			labels, extra := x.einsumLabels(equation, term, m[i])
			more = max(more, extra)
			for _, l := range labels {
				count[l]++
			}
			all[i] = x.diagonals(labelled{m[i], labels})
			for d, l := range all[i].labels {
				n := all[i].t.shape[d]
				if old, ok := sizes[l]; ok && old != 1 && n != 1 && old != n {
					x.fail("Einsum", fault.Invalid, ts, "operands do not broadcast: a dimension of %q has sizes %d and %d",
						equation, old, n)
				} else if !ok || old == 1 {
					sizes[l] = n
				}
			}
		}
		var want []rune
		if arrow {
			want = x.einsumResult(equation, out, more)
			for i, l := range want {
				if _, ok := sizes[l]; !ok || slices.Contains(want[:i], l) {
					x.fail("Einsum", fault.Invalid, ts, "the result of %q has a letter that no operand has, or has one twice",
						equation)
				}
			}
		} else {
			for _, l := range slices.Sorted(maps.Keys(count)) {
				if l < 0 || count[l] == 1 {
					want = append(want, l)
				}
			}
		}
		y := x.without(all[0], func(l rune) bool { return slices.Contains(want, l) || hasLabel(all[1:], l) })
		for i := 1; i < len(all); i++ {
			later := func(l rune) bool { return slices.Contains(want, l) || hasLabel(all[i+1:], l) }
			b := x.without(all[i], func(l rune) bool { return later(l) || slices.Contains(y.labels, l) })
			y = x.contract(y, b, sizes, later)
		}
		order, shape := make([]int, len(want)), make([]int, len(want))
		for i, l := range want {
			order[i], shape[i] = slices.Index(y.labels, l), sizes[l]
		}
		return x.Expand(x.Permute(y.t, order...), shape...)
	})
}

func hasLabel(all []labelled, l rune) bool {
	return slices.ContainsFunc(all, func(o labelled) bool { return slices.Contains(o.labels, l) })
}

// einsumLabels returns the labels of t's dimensions, and how many dimensions an ellipsis stands for.
func (x *Exec) einsumLabels(equation, term string, t *Tensor) (labels []rune, extra int) {
	before, after, dots := strings.Cut(term, "...")
	extra = len(t.shape) - len(before) - len(after)
	if extra < 0 || extra > 0 && !dots {
		x.fail("Einsum", fault.Invalid, []*Tensor{t}, "the subscripts %q of %q do not fit an operand of %d dimensions", term,
			equation, len(t.shape))
	}
	labels = x.letters(equation, before)
	for i := range extra {
		labels = append(labels, rune(i-extra))
	}
	return append(labels, x.letters(equation, after)...), extra
}

// einsumResult returns the labels of the result, whose ellipsis stands for more dimensions.
func (x *Exec) einsumResult(equation, out string, more int) []rune {
	before, after, dots := strings.Cut(out, "...")
	labels := x.letters(equation, before)
	if dots {
		for i := range more {
			labels = append(labels, rune(i-more))
		}
	}
	return append(labels, x.letters(equation, after)...)
}

func (x *Exec) letters(equation, s string) []rune {
	for _, l := range s {
		if l > unicode.MaxASCII || !unicode.IsLetter(l) {
			x.fail("Einsum", fault.Invalid, nil, "%q has %q, where letters, commas, an arrow and ellipses may be", equation, l)
		}
	}
	return []rune(s)
}

// diagonals returns o with one dimension in place of those that share a label.
func (x *Exec) diagonals(o labelled) labelled {
	for j := 0; j < len(o.labels); j++ {
		i := slices.Index(o.labels, o.labels[j])
		if i == j {
			continue
		}
		if a, b := o.t.shape[i], o.t.shape[j]; a != b {
			x.fail("Einsum", fault.Invalid, []*Tensor{o.t}, "a letter is repeated for dimensions of sizes %d and %d", a, b)
		}
		l := o.labels[j]
		labels := slices.Delete(slices.Clone(o.labels), j, j+1)
		o = labelled{x.Diagonal(o.t, DiagonalOpt{Dims: [2]int{i, j}}), append(slices.Delete(labels, i, i+1), l)}
		j = -1
	}
	return o
}

// without returns o summed over the labels that are not needed.
func (x *Exec) without(o labelled, needed func(l rune) bool) labelled {
	var dims []int
	var labels []rune
	for d, l := range o.labels {
		if needed(l) {
			labels = append(labels, l)
		} else {
			dims = append(dims, d)
		}
	}
	if dims == nil {
		return o
	}
	return labelled{x.Sum(o.t, dims, SumOpt{DType: o.t.dt}), labels}
}

// contract returns the product of a and b, summed over the labels that both have and that are not needed later.
func (x *Exec) contract(a, b labelled, sizes map[rune]int, later func(l rune) bool) labelled {
	var batch, sum, left, right []rune
	for _, l := range a.labels {
		switch {
		case !slices.Contains(b.labels, l):
			left = append(left, l)
		case later(l):
			batch = append(batch, l)
		default:
			sum = append(sum, l)
		}
	}
	for _, l := range b.labels {
		if !slices.Contains(a.labels, l) {
			right = append(right, l)
		}
	}
	count := func(ls []rune) (n int) {
		n = 1
		for _, l := range ls {
			n *= sizes[l]
		}
		return n
	}
	n := count(batch)
	arrange := func(o labelled, middle, last []rune) *Tensor {
		order := slices.Concat(batch, middle, last)
		dims, shape := make([]int, len(order)), make([]int, len(order))
		for i, l := range order {
			dims[i], shape[i] = slices.Index(o.labels, l), sizes[l]
		}
		t := x.Expand(x.Permute(o.t, dims...), shape...)
		if len(batch) == 0 {
			return x.Reshape(t, count(middle), count(last))
		}
		return x.Reshape(t, n, count(middle), count(last))
	}
	y := x.product(arrange(a, left, sum), arrange(b, sum, right), nil, 1, 0)
	labels := slices.Concat(batch, left, right)
	shape := make([]int, len(labels))
	for i, l := range labels {
		shape[i] = sizes[l]
	}
	return labelled{x.View(y, shape...), labels}
}
