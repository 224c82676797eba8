// Package sparse has sparse tensors in coordinate format: the elements or slices of a large tensor that may be nonzero, and their indexes.
// It must not depend on modules.
package sparse

import (
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// COO is a sparse tensor: indexes [sparse dimensions, n] and n values, each of which is a number or a tensor of the dense dimensions, which
// come last in the shape. Several values with the same index stand for their sum. It holds two handles that belong to the scope in which it
// was made, like the results of operations.
type COO struct {
	indices, values *core.Tensor
	shape           []int
	coalesced       bool
}

// NewCOO returns the sparse tensor of a shape with the given indexes, int64 [sparse dimensions, n], and values [n, dense dimensions…]. It
// shares the memory of both, and records gradients of the values. An index outside the shape fails as in Exec.AssertAsync; NewCOO does not
// wait.
func NewCOO(x *tenon.Exec, indices, values *tenon.Tensor, shape []int) *COO {
	const op = "NewCOO"
	c := core.Made((*core.Exec)(x), op)
	i, v := (*core.Tensor)(indices), (*core.Tensor)(values)
	core.Given(op, 0, i)
	core.Given(op, 1, v)
	core.Enter(c, op)
	defer core.Leave(c)
	shape = slices.Clone(shape)
	core.Refuse(c, op, fits(i, v, shape), i, v)
	out := core.CompositeMany(c, op, func(c *core.Exec) []*core.Tensor {
		f := core.Begin(c, rowCheck, i)
		f.SetList(shape[:i.Size(0)]...)
		f.Do()
		return []*core.Tensor{c.View(i, i.Shape()...), c.View(v, v.Shape()...)}
	})
	return &COO{indices: out[0], values: out[1], shape: shape}
}

// fits returns an error if the parts of a sparse tensor do not fit together.
func fits(indices, values *core.Tensor, shape []int) error {
	refuse := func(text string, args ...any) error { return fault.New(fault.Invalid, text, args...) }
	if indices.DType() != tenon.Int64 || indices.Dim() != 2 {
		return refuse("indices must be int64 of shape [sparse dimensions, n], but are %v %v", indices.DType(), indices.Shape())
	}
	rank, n := indices.Size(0), indices.Size(1)
	if values.Dim() == 0 || values.Size(0) != n {
		return refuse("values must be of shape [%d, dense dimensions…] for as many indexes, but have shape %v", n, values.Shape())
	}
	if dense := values.Shape()[1:]; rank > maxRank || len(shape) != rank+len(dense) || !slices.Equal(shape[rank:], dense) {
		return refuse("the shape %v must be %d sparse dimensions, of at most %d, and the dense dimensions %v of the values", shape,
			rank, maxRank, dense)
	}
	places := 1
	for _, size := range shape[:rank] {
		if size < 0 || size == 0 && n > 0 {
			return refuse("the shape %v has no room for %d indexes; give sizes of at least 1", shape, n)
		}
		if size > 0 && places > mostPlaces/size {
			return refuse("the sparse dimensions %v have more places than can be counted", shape[:rank])
		}
		places *= max(size, 1)
	}
	return nil
}

// Indices returns the indexes, int64 [sparse dimensions, NNZ]. The sparse tensor owns them: do not close them.
func (s *COO) Indices() *tenon.Tensor { return (*tenon.Tensor)(s.made("COO.Indices").indices) }

// Values returns the values, [NNZ, dense dimensions…]. The sparse tensor owns them: do not close them.
func (s *COO) Values() *tenon.Tensor { return (*tenon.Tensor)(s.made("COO.Values").values) }

// NNZ returns how many values there are.
func (s *COO) NNZ() int { return s.made("COO.NNZ").values.Size(0) }

// Shape returns the shape: the sparse dimensions, then the dense ones.
func (s *COO) Shape() []int { return slices.Clone(s.made("COO.Shape").shape) }

// Coalesced reports whether the indexes are known to be different and in row-major order.
func (s *COO) Coalesced() bool { return s.made("COO.Coalesced").coalesced }

// Close closes the sparse tensor's handles. The tensors that it was made from stay open.
func (s *COO) Close() {
	if s != nil {
		s.indices.Close()
		s.values.Close()
	}
}

// Keep moves the sparse tensor from the innermost scope to the one around it, as Exec.Keep does, and returns it.
func (s *COO) Keep(x *tenon.Exec) *COO {
	c, leave := s.enter(x, "COO.Keep")
	defer leave()
	c.Keep(s.indices)
	c.Keep(s.values)
	return s
}

// ToDense returns the whole tensor. Values with the same index are added in order, so that results repeat. The gradient of a value is that
// of the element at its index.
func (s *COO) ToDense(x *tenon.Exec) *tenon.Tensor {
	c, leave := s.enter(x, "COO.ToDense")
	defer leave()
	return (*tenon.Tensor)(core.Composite(c, "COO.ToDense", func(c *core.Exec) *core.Tensor {
		return c.View(s.sums(c, s.flat(c), places(s.sparse())), s.shape...)
	}))
}

// Coalesce returns the sparse tensor with each index once, in row-major order, and the sums of its values, added in order, so that results
// repeat. A tensor that is coalesced already is returned itself. How many indexes remain depends on the indexes, so the call waits for them
// and cannot be captured.
func (s *COO) Coalesce(x *tenon.Exec) *COO {
	c, leave := s.enter(x, "COO.Coalesce")
	defer leave()
	if s.coalesced {
		return s
	}
	out := core.CompositeMany(c, "COO.Coalesce", func(c *core.Exec) []*core.Tensor {
		to, n := core.Different(c, "COO.Coalesce", s.flat(c), places(s.sparse()))
		rank := len(s.sparse())
		indices := c.Empty([]int{rank, n}, tenon.Int64)
		c.ScatterInto(indices, indices, 1, c.Expand(to, rank, to.Size(0)), s.indices, core.ScatterOpt{}) // equal indexes go to one column
		return []*core.Tensor{indices, s.sums(c, to, n)}
	})
	return &COO{indices: out[0], values: out[1], shape: s.shape, coalesced: true}
}

// sums returns the sums [n, dense dimensions…] of the values that go to each of n positions.
func (s *COO) sums(c *core.Exec, to *core.Tensor, n int) *core.Tensor {
	shape := slices.Clone(s.values.Shape())
	line := make([]int, len(shape))
	for i := range line {
		line[i] = 1
	}
	line[0] = shape[0]
	index := c.Expand(c.View(to, line...), shape...)
	shape[0] = n
	sum := c.Zeros(shape, s.values.DType())
	c.ScatterAddInto(sum, sum, 0, index, s.values)
	return sum
}

// flat returns each index as one number.
func (s *COO) flat(c *core.Exec) *core.Tensor {
	f := core.Begin(c, rowFlat, s.indices)
	f.SetList(s.sparse()...)
	return f.Do()
}

// sparse returns the sizes of the sparse dimensions.
func (s *COO) sparse() []int { return s.shape[:s.indices.Size(0)] }

// places returns how many positions the sparse dimensions have.
func places(sizes []int) int {
	n := 1
	for _, size := range sizes {
		n *= size
	}
	return n
}

func (s *COO) made(op string) *COO {
	if s == nil || s.values == nil {
		core.Fail(op, fault.Invalid, "the sparse tensor is nil or a zero value; use one that NewCOO returned")
	}
	return s
}

// enter refuses an Exec or sparse tensor that is nil, a zero value or closed, and enters the session.
func (s *COO) enter(x *tenon.Exec, op string) (c *core.Exec, leave func()) {
	c = core.Made((*core.Exec)(x), op)
	s.made(op)
	core.Given(op, 0, s.indices)
	core.Given(op, 0, s.values)
	core.Enter(c, op)
	return c, func() { core.Leave(c) }
}
