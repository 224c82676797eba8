package tenon

import (
	"fmt"

	"tenon.dev/internal/core"
)

// Place is one index of [Exec.Index]: [All], [NewAxis], [Ellipsis] or the result of [Span].
type Place struct{ p core.Place }

// All is the index that PyTorch writes as ":", the whole dimension.
var All = Place{core.PlaceSpan(0, End, 1)}

// NewAxis is the index that PyTorch writes as None: a new dimension of size 1.
var NewAxis = Place{core.PlaceNew}

// Ellipsis is the index that PyTorch writes as "...": all dimensions that the other indexes leave.
var Ellipsis = Place{core.PlaceRest}

// End is the end of a dimension, for [Span].
const End = core.PlaceEnd

// Span is the index that PyTorch writes as from:to:step: elements from, from+step, … before to. A negative from or to counts from the
// end, and both are clamped to the dimension. The step must be positive; the default is 1.
func Span(from, to int, step ...int) Place {
	by := 1
	if len(step) > 0 {
		by = step[0]
	}
	if len(step) > 1 {
		by = 0
	}
	return Place{core.PlaceSpan(from, to, by)}
}

// String returns the index as PyTorch writes it.
func (p Place) String() string { return p.p.String() }

// Index returns the elements of t that the indexes name, one for each dimension from the first on, as t[…] does in PyTorch. An index is:
//
//   - an int: that element, and the dimension is dropped; a negative one counts from the end;
//   - a [Span] of elements, or [All];
//   - [NewAxis], for a new dimension of size 1, or [Ellipsis], for all dimensions that the others leave;
//   - a *Tensor of int64 or int32: the elements that it names, negative ones from the end. Several are broadcast together. Their dimensions
//     take the place of those that they are for where these lie side by side, and else come first;
//   - a *Tensor of bool, of the shape of the dimensions that it is for: the elements where it is true;
//   - an []int, [][]int or []bool, for a tensor of those values;
//   - a bool, for a new dimension of size 1, or of size 0 if it is false, like a tensor of an index there.
//
// Dimensions without an index stay whole. If no index is a tensor the result is a view of t, else a copy. A number out of range in a
// tensor fails as [Exec.AssertAsync] does. The host waits for a mask and reads it, so a capture cannot record it. Index can be
// differentiated.
func (x *Exec) Index(t *Tensor, at ...any) *Tensor {
	c := x.enter("Index", t)
	defer core.Leave(c)
	return (*Tensor)(c.Index((*core.Tensor)(t), places("Index", at)))
}

// IndexPutInto sets the elements of dst that the indexes name to src's, broadcast and converted, as dst[…] = src does in PyTorch. The
// indexes are those of [Exec.Index]. Where they name an element more than once, it gets one of the values.
func (x *Exec) IndexPutInto(dst, src *Tensor, at ...any) {
	c := x.enter("IndexPutInto", dst, src)
	defer core.Leave(c)
	c.IndexPutInto((*core.Tensor)(dst), (*core.Tensor)(src), places("IndexPutInto", at), false)
}

// IndexPutAddInto adds src's elements to those of dst that the indexes name, once for each time it is named, as PyTorch's index_put_ does
// with accumulate. The indexes are those of [Exec.Index].
func (x *Exec) IndexPutAddInto(dst, src *Tensor, at ...any) {
	c := x.enter("IndexPutAddInto", dst, src)
	defer core.Leave(c)
	c.IndexPutInto((*core.Tensor)(dst), (*core.Tensor)(src), places("IndexPutAddInto", at), true)
}

// IndexPutSInto sets the elements of dst that the indexes name to v. The indexes are those of [Exec.Index].
func (x *Exec) IndexPutSInto(dst *Tensor, v float64, at ...any) {
	c := x.enter("IndexPutSInto", dst)
	defer core.Leave(c)
	c.IndexPutSInto((*core.Tensor)(dst), v, places("IndexPutSInto", at), false)
}

// IndexPutAddSInto adds v to the elements of dst that the indexes name, once for each time one is named. The indexes are those of
// [Exec.Index].
func (x *Exec) IndexPutAddSInto(dst *Tensor, v float64, at ...any) {
	c := x.enter("IndexPutAddSInto", dst)
	defer core.Leave(c)
	c.IndexPutSInto((*core.Tensor)(dst), v, places("IndexPutAddSInto", at), true)
}

// places returns the indexes of a call of op.
func places(op string, at []any) []core.Place {
	ps := make([]core.Place, len(at))
	for i, a := range at {
		switch a := a.(type) {
		case int:
			ps[i] = core.PlaceAt(a)
		case Place:
			ps[i] = a.p
		case []int:
			list := make([]int64, len(a))
			for k, v := range a {
				list[k] = int64(v)
			}
			ps[i] = core.PlaceList(list, len(list))
		case [][]int:
			ps[i] = matrix(op, i, a)
		case bool:
			ps[i] = core.PlaceFlag(a)
		case []bool:
			ps[i] = core.PlaceMask(a)
		case *Tensor:
			core.Given(op, i, (*core.Tensor)(a))
			ps[i] = core.PlaceTensor((*core.Tensor)(a))
		default:
			core.Fail(op, Invalid, "index %d is %s; give an int, []int, [][]int, bool, []bool or *tenon.Tensor, what tenon.Span returns, "+
				"tenon.All, tenon.NewAxis or tenon.Ellipsis", i, kindOf(a))
		}
	}
	return ps
}

// matrix returns index i of a call of op, a list of rows of the same length.
func matrix(op string, i int, rows [][]int) core.Place {
	if len(rows) == 0 {
		return core.PlaceList(nil, 0)
	}
	columns := len(rows[0])
	var list []int64
	for _, row := range rows {
		if len(row) != columns {
			core.Fail(op, Invalid, "index %d has rows of %d and %d numbers; give rows of the same length", i, columns, len(row))
		}
		for _, v := range row {
			list = append(list, int64(v))
		}
	}
	return core.PlaceList(list, len(rows), columns)
}

// kindOf names the type of a value for errors.
func kindOf(a any) string {
	if a == nil {
		return "nil"
	}
	return fmt.Sprintf("of type %T", a)
}
