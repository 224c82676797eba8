package core

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// Place is one index of Index: for one dimension, for none (a new axis), or for several (an ellipsis, a mask).
type Place struct {
	kind           placeKind
	from, to, step int
	t              *Tensor
	list           []int64
	shape          []int // of list
	mask           []bool
}

type placeKind uint8

const (
	placeAt placeKind = iota + 1
	placeSpan
	placeNew
	placeRest
	placeTensor
	placeList
	placeMask
	placeFlag
)

// PlaceAt selects element i of a dimension, which is removed.
func PlaceAt(i int) Place { return Place{kind: placeAt, from: i} }

// PlaceSpan selects the elements from, from+step, … before to.
func PlaceSpan(from, to, step int) Place {
	return Place{kind: placeSpan, from: from, to: to, step: step}
}

// PlaceNew adds a dimension of size 1, and PlaceRest stands for all dimensions that the other places leave.
var PlaceNew, PlaceRest = Place{kind: placeNew}, Place{kind: placeRest}

// PlaceTensor selects the elements that an integer tensor names, or those at which a bool tensor is true.
func PlaceTensor(t *Tensor) Place { return Place{kind: placeTensor, t: t} }

// PlaceList is PlaceTensor with those numbers, in a tensor of the given shape.
func PlaceList(at []int64, shape ...int) Place { return Place{kind: placeList, list: at, shape: shape} }

// PlaceMask is PlaceTensor with a vector of those values.
func PlaceMask(at []bool) Place { return Place{kind: placeMask, mask: at} }

// PlaceFlag adds a dimension of size 1 and selects its element if on is true, else none.
func PlaceFlag(on bool) Place {
	p := Place{kind: placeFlag}
	if on {
		p.to = 1
	}
	return p
}

// indexing is the result of applying a call's places.
type indexing struct {
	// view is the tensor with all places applied except tensors, dims are its dimensions that tensors index, and at holds these tensors,
	// broadcast and flat. of are the dimensions before any place was applied, and given the operands for errors.
	view     *Tensor
	dims, of []int
	at       []*Tensor
	given    []*Tensor
	// shape is the broadcast shape of the index tensors.
	shape []int
}

// index applies the places to t.
func (x *Exec) index(op string, t *Tensor, places []Place) indexing {
	bad := func(format string, args ...any) { x.fail(op, fault.Invalid, []*Tensor{t}, format, args...) }
	used, rest := 0, -1
	places = slices.Clone(places)
	for i, p := range places {
		switch p.kind {
		case placeList:
			p = PlaceTensor(From(x, p.list, p.shape...))
		case placeMask:
			p = PlaceTensor(From(x, p.mask))
		}
		places[i] = p
		switch p.kind {
		case 0:
			bad("index %d is a zero value; use tenon.Span, tenon.All, tenon.NewAxis or tenon.Ellipsis", i)
		case placeAt, placeSpan:
			used++
		case placeRest:
			if rest >= 0 {
				bad("there are two ellipses; give one")
			}
			rest = i
		case placeTensor:
			used += x.indexes(op, t, p.t)
		}
	}
	if used > len(t.shape) {
		bad("there are indexes for %d dimensions, and the tensor %v has %d", used, t.shape, len(t.shape))
	}
	in, d := indexing{view: t, given: []*Tensor{t}}, 0
	gone := 0 // how much less d is than the dimension of t
	var tensors []*Tensor
	for _, p := range places {
		switch v := in.view; p.kind {
		case placeAt:
			switch n := v.shape[d]; {
			case n == 0:
				bad("index %d is out of range for dimension %d, which has no elements", p.from, d+gone)
			case p.from < -n || p.from >= n:
				bad("index %d is out of range for dimension %d of size %d; give a number from -%d to %d", p.from, d+gone, n, n, n-1)
			}
			in.view = x.Select(v, d, p.from)
			gone++
		case placeSpan:
			if p.step <= 0 {
				bad("a span has the step %d, or several steps; give one that is positive, and use x.Flip for the other order", p.step)
			}
			if p.from != 0 || p.to < v.shape[d] || p.step != 1 {
				in.view = x.Slice(v, d, p.from, p.to, p.step)
			}
			d++
		case placeNew:
			in.view = x.Unsqueeze(v, d)
			d, gone = d+1, gone-1
		case placeFlag:
			in.view = x.Unsqueeze(v, d)
			tensors, in.dims, in.of = append(tensors, x.Zeros([]int{p.to}, dtype.Int64)), append(in.dims, d), append(in.of, d+gone)
			d, gone = d+1, gone-1
		case placeRest:
			d += len(t.shape) - used
		case placeTensor:
			in.given = append(in.given, p.t)
			if p.t.dt != dtype.Bool {
				tensors, in.dims, in.of = append(tensors, p.t), append(in.dims, d), append(in.of, d+gone)
				d++
				break
			}
			for i, n := range p.t.shape {
				if v.shape[d+i] != n {
					bad("the mask has shape %v, and the dimensions that it is for have sizes %v", p.t.shape, v.shape[d:d+len(p.t.shape)])
				}
			}
			places := x.Nonzero(p.t)
			for i := range p.t.shape {
				tensors, in.dims, in.of = append(tensors, x.Select(places, 1, i)), append(in.dims, d), append(in.of, d+gone)
				d++
			}
		}
	}
	x.broadcastIndexes(op, t, &in, tensors)
	return in
}

// indexes returns how many dimensions the tensor i indexes.
func (x *Exec) indexes(op string, t, i *Tensor) int {
	switch {
	case i.dt == dtype.Int64 || i.dt == dtype.Int32:
		return 1
	case i.dt != dtype.Bool:
		x.fail(op, fault.Invalid, []*Tensor{t, i}, "an index has type %v; give int64, int32 or bool", i.dt)
	case len(i.shape) == 0:
		x.fail(op, fault.Invalid, []*Tensor{t, i}, "a mask has no dimensions; give one of the shape of the dimensions that it is for")
	}
	return len(i.shape)
}

// broadcastIndexes broadcasts the index tensors to one shape, and flattens them.
func (x *Exec) broadcastIndexes(op string, t *Tensor, in *indexing, tensors []*Tensor) {
	for _, i := range tensors {
		for len(in.shape) < len(i.shape) {
			in.shape = slices.Insert(in.shape, 0, 1)
		}
		off := len(in.shape) - len(i.shape)
		for d, n := range i.shape {
			switch m := in.shape[off+d]; {
			case m == 1:
				in.shape[off+d] = n
			case n != 1 && n != m:
				x.fail(op, fault.Invalid, append([]*Tensor{t}, tensors...), "the index tensors have shapes that do not broadcast "+
					"together: %v is not like %v",
					i.shape, in.shape)
			}
		}
	}
	n := 1
	for _, m := range in.shape {
		n *= m
	}
	for _, i := range tensors {
		in.at = append(in.at, x.Reshape(x.Expand(i, in.shape...), n))
	}
}

// result returns the shape of the elements that the places select, and where in it the dimensions of the index tensors begin: at the first
// dimension that they index if those dimensions are adjacent, else at the front, as in PyTorch.
func (in *indexing) result() (shape []int, front int) {
	if n := len(in.dims); n > 0 && in.dims[n-1]-in.dims[0] == n-1 {
		front = in.dims[0]
	}
	for d, n := range in.view.shape {
		if !slices.Contains(in.dims, d) {
			shape = append(shape, n)
		}
	}
	return slices.Insert(shape, front, in.shape...), front
}

// inFront returns the view with its indexed dimensions first.
func (x *Exec) inFront(in *indexing) *Tensor {
	order := slices.Clone(in.dims)
	for d := range in.view.shape {
		if !slices.Contains(in.dims, d) {
			order = append(order, d)
		}
	}
	return x.Permute(in.view, order...)
}

// blame is what errors say of a call that reads index i.
func (in *indexing) blame(i int) *blame {
	n := in.view.shape[in.dims[i]]
	if n == 0 {
		return blaming(fmt.Sprintf("in the index of dimension %d, which has no elements", in.of[i]), in.given...)
	}
	return blaming(fmt.Sprintf(ofPlace, in.of[i], n, n-1), in.given...)
}

// rows returns the view with its indexed dimensions first and joined to one, and the row that each element of the index tensors selects;
// wrap is 1 if negative numbers count from the end. The rows are a copy if the memory has no such view.
func (x *Exec) rows(in *indexing) (rows, index *Tensor, wrap int) {
	v := x.inFront(in)
	if len(in.dims) == 1 {
		return v, in.at[0], 1
	}
	k, all := len(in.dims), 1
	for i, at := range in.at {
		n := v.shape[i]
		all *= n
		// The gather counts negative numbers from the end, and asserts the range.
		f := x.op(rowGather, x.Arange(float64(n), dtype.Int64, ArangeOpt{}), at)
		f.i, f.blame = [8]int{0, 0, 1}, in.blame(i)
		at = f.call1()
		if i > 0 {
			at = x.Add(x.MulS(index, float64(n)), at)
		}
		index = at
	}
	return x.Reshape(v, append([]int{all}, v.shape[k:]...)...), index, 0
}

// along returns the vector index expanded along the first dimension of rows.
func (x *Exec) along(rows, index *Tensor) *Tensor {
	shape, line := slices.Clone(rows.shape), slices.Repeat([]int{1}, len(rows.shape))
	shape[0] = index.Numel()
	line[0] = shape[0]
	return x.Expand(x.Reshape(index, line...), shape...)
}

// Index returns the elements of t that the places select.
func (x *Exec) Index(t *Tensor, places []Place) *Tensor {
	return x.composite("Index", func(x *Exec) *Tensor {
		in := x.index("Index", t, places)
		if len(in.at) == 0 {
			if in.view == t {
				return x.View(t, t.shape...)
			}
			return in.view
		}
		shape, front := in.result()
		rows, index, wrap := x.rows(&in)
		f := x.op(rowGather, rows, x.along(rows, index))
		f.i, f.blame = [8]int{0, 0, wrap}, in.blame(0)
		out := x.Reshape(f.call1(), append(slices.Clone(in.shape), rows.shape[1:]...)...)
		if front == 0 {
			return out
		}
		order := make([]int, 0, len(shape))
		k := len(in.shape)
		for d := range front {
			order = append(order, k+d)
		}
		for d := range k {
			order = append(order, d)
		}
		for d := front + k; d < len(shape); d++ {
			order = append(order, d)
		}
		return x.Permute(out, order...)
	})
}

// IndexPutInto sets the elements of dst that the places select to src's, broadcast and converted. With add it adds src's to them.
func (x *Exec) IndexPutInto(dst, src *Tensor, places []Place, add bool) {
	const op = "IndexPutInto"
	x.composite(op, func(x *Exec) *Tensor {
		in := x.index(op, dst, places)
		shape, front := in.result()
		src := src
		for len(src.shape) > len(shape) && src.shape[0] == 1 { // PyTorch's assignment drops them too
			src = x.Select(src, 0, 0)
		}
		if len(in.at) == 0 {
			if add {
				x.AddInto(in.view, in.view, x.ToDType(src, dst.dt))
			} else {
				x.CopyInto(in.view, src)
			}
			return nil
		}
		if x.s.doing[0] == op { // else src is a number
			in.given = slices.Insert(in.given, 1, src)
		}
		src = x.Expand(x.ToDType(src, dst.dt), shape...)
		order, k := make([]int, 0, len(shape)), len(in.shape)
		for d := range k {
			order = append(order, front+d)
		}
		for d := range shape {
			if d < front || d >= front+k {
				order = append(order, d)
			}
		}
		rows, index, wrap := x.rows(&in)
		at, mode := x.along(rows, index), ScatterReplace
		if add {
			mode = ScatterAdd
		}
		f := x.scatter(rows, at, x.Reshape(x.Permute(src, order...), at.shape...), 0, mode)
		f.i[2], f.blame = wrap, in.blame(0)
		if rows.st == dst.st {
			f.scatterInto(rows)
			return nil
		}
		out := f.call1() // the dimensions cannot be joined in place
		v := x.inFront(&in)
		x.CopyInto(v, x.Reshape(out, v.shape...))
		return nil
	})
}

// IndexPutSInto sets the elements of dst that the places select to v. With add it adds v to them.
func (x *Exec) IndexPutSInto(dst *Tensor, v float64, places []Place, add bool) {
	x.composite("IndexPutSInto", func(x *Exec) *Tensor {
		x.IndexPutInto(dst, x.Full(nil, v, dst.dt), places, add)
		return nil
	})
}

// PlaceEnd is the end of a dimension in PlaceSpan.
const PlaceEnd = math.MaxInt

// String returns the index as PyTorch writes it.
func (p Place) String() string {
	switch p.kind {
	case 0:
		return "a zero index"
	case placeAt:
		return strconv.Itoa(p.from)
	case placeNew:
		//tenon:quoted PyTorch's way to write an index, which the comment above promises
		return "None"
	case placeRest:
		return "..."
	case placeTensor:
		return describe(p.t)
	case placeList:
		return fmt.Sprint(p.list)
	case placeMask:
		return fmt.Sprint(p.mask)
	case placeFlag:
		return strconv.FormatBool(p.to == 1)
	}
	var b strings.Builder
	if p.from != 0 {
		b.WriteString(strconv.Itoa(p.from))
	}
	b.WriteByte(':')
	if p.to != PlaceEnd {
		b.WriteString(strconv.Itoa(p.to))
	}
	if p.step != 1 {
		fmt.Fprintf(&b, ":%d", p.step)
	}
	return b.String()
}
