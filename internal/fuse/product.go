package fuse

import (
	"slices"

	"tenon.dev/internal/infer"
)

// joinProduct merges call i, a product, with the first group that reads it and can include it.
func (a *grouping) joinProduct(i int) {
	for _, q := range a.by.users[a.g.Calls[i].Outs[0].Storage] {
		if q == i || a.of[q] == nil {
			continue
		}
		if s := a.set(sorted([]int{i}, a.of[q].Calls)); s != nil {
			for _, k := range s.Calls {
				a.of[k] = s
			}
			return
		}
	}
}

// joinMatrix makes a group of call i, a product, its group and the calls that only make the matrix which it reads once.
func (a *grouping) joinMatrix(i int) {
	calls := []int{i}
	if s := a.of[i]; s != nil {
		calls = s.Calls
	}
	a.withMaker(calls, i, 1)
}

// Product returns the member of s that is a product, or -1.
func (g *Graph) Product(s *Set) int {
	return slices.IndexFunc(s.Calls, func(i int) bool { return g.Calls[i].Product })
}

// Before returns which members of s make a matrix that its product, if it has one, reads once.
func (g *Graph) Before(s *Set) []bool {
	before := make([]bool, len(s.Calls))
	if product := g.Product(s); product >= 0 && g.Calls[s.Calls[product]].Once {
		last := s.From[product][1].Member
		makes := s.Makers(func(k int) bool { return k == last }, func(int) bool { return true })
		for k := range before {
			before[k] = makes(k)
		}
	}
	return before
}

// complex reports whether the call has a complex operand.
func (c *Call) complex() bool {
	for j := range len(c.Ins) + len(c.Outs) {
		if c.at(j).DType.IsComplex() {
			return true
		}
	}
	return false
}

// byProduct reports whether the group can run in the kernel of a product if it has one. Then all others are element-wise. Those that use
// the product have one shape with its columns, and their operands, none of which is complex, have an element for each of the product's, or
// one for each column. The others make its matrix. No memory may be modified, because the product reads its operands in another order.
func (a *grouping) byProduct(s *Set) bool {
	product := a.g.Product(s)
	if product < 0 {
		return true
	}
	made := &a.g.Calls[s.Calls[product]].Outs[0]
	lane, shape, before, after := a.g.Calls[s.Calls[product]].Lane, []int(nil), a.g.Before(s), false
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		if k != product && (!c.Point || c.complex()) || c.Into != 0 || c.Lane != lane {
			return false
		}
		if k == product || before[k] {
			continue
		}
		after = true
		if shape == nil {
			shape = c.Outs[0].Shape
		}
		if !slices.Equal(c.Outs[0].Shape, shape) {
			return false
		}
		for j := range c.Outs {
			if !made.beside(&c.Outs[j].Place) {
				return false
			}
		}
		for j, f := range s.From[k] {
			switch in := &c.Ins[j]; {
			case f.Member >= 0 && before[f.Member]:
				return false
			case f.Index < 0 || f.Member >= 0 && f.Member != product:
			case made.beside(&in.Place) && slices.Equal(in.Shape, shape):
			case f.Member >= 0 || !made.perColumn(&in.Place, shape):
				return false
			}
		}
	}
	for j, f := range s.From[product] {
		if f.Member >= 0 && !(j == 1 && before[f.Member]) {
			return false
		}
	}
	if !after {
		return true
	}
	column := made.column()
	if column < 0 || made.Shape[column] < 2 || made.numel() != a.g.Calls[s.At].Outs[0].numel() {
		return false
	}
	if column < len(made.Shape)-1 {
		return slices.Equal(shape, made.Shape)
	}
	return len(shape) > 0 && shape[len(shape)-1] == made.Shape[column]
}

// byMatrix reports whether the kernel of a product can make its matrix if members of the group do. They have the matrix's shape, and nobody
// else needs their results. They have operands, whose elements along the last dimension are adjacent or the same one, and are not complex.
func (a *grouping) byMatrix(s *Set) bool {
	before, matrix, reads := a.g.Before(s), (*Place)(nil), false
	if product := a.g.Product(s); slices.Contains(before, true) {
		f := s.From[product][1]
		matrix = &a.g.Calls[s.Calls[f.Member]].Outs[f.Index].Place
		if v := &a.g.Calls[s.Calls[product]].Ins[1]; !matrix.turned(&v.Place) {
			return false
		}
	}
	for k, i := range s.Calls {
		c := &a.g.Calls[i]
		if !before[k] {
			continue
		}
		if !slices.Equal(c.Outs[0].Shape, matrix.Shape) || slices.ContainsFunc(s.Outs, func(r Ref) bool { return r.Call == i }) {
			return false
		}
		for j, f := range s.From[k] {
			if f.Member >= 0 || f.Index < 0 {
				continue
			}
			reads = true
			if st := a.g.MatrixStrides(s, Ref{i, j}); st[1] > 1 || c.Ins[j].DType.IsComplex() {
				return false
			}
		}
	}
	return reads || matrix == nil
}

// MatrixStrides returns the strides of r, which a member of s that makes a matrix reads, in the shape of the matrix as it was made.
func (g *Graph) MatrixStrides(s *Set, r Ref) []int {
	c := &g.Calls[r.Call]
	stride := make([]int, len(c.Outs[0].Shape))
	infer.BroadcastStrides(stride, c.Ins[r.Index].Shape, c.Ins[r.Index].Stride, c.Outs[0].Shape)
	return stride
}

// column returns the dimension that has the columns of a product with result p: the last one of a matrix, or the second one of an array
// with its channels last. It is -1 if p is neither.
func (p *Place) column() int {
	switch {
	case len(p.Shape) == 2 && p.flat():
		return 1
	case len(p.Shape) == 4 && !p.flat() && p.channelsLast().flat():
		return 1
	}
	return -1
}

// channelsLast returns p with its second dimension last.
func (p *Place) channelsLast() *Place {
	turn := func(v []int) []int { return slices.Concat(v[:1], v[2:], v[1:2]) }
	return &Place{Shape: turn(p.Shape), Stride: turn(p.Stride)}
}

// beside reports whether the elements of q lie one after the other, in the order of those of the product with result p.
func (p *Place) beside(q *Place) bool {
	if len(p.Shape) == 2 {
		return q.flat()
	}
	return len(q.Shape) == 4 && slices.Equal(p.Shape, q.Shape) && q.channelsLast().flat()
}

// perColumn reports whether q, broadcast to shape, has an element for each column of the product with result p, one after the other.
func (p *Place) perColumn(q *Place, shape []int) bool {
	d := len(q.Shape) - 1 // where q has the columns
	if len(p.Shape) == 4 {
		d = len(q.Shape) - 3
	}
	at := len(shape) - len(q.Shape) + d
	return d >= 0 && at >= 0 && q.numel() == q.Shape[d] && q.Shape[d] == shape[at] && q.flat()
}
