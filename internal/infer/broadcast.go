package infer

import "tenon.dev/fault"

// Broadcast appends to buf the shape to which the given shapes broadcast.
func Broadcast(buf []int, shapes ...[]int) ([]int, error) {
	n := 0
	for _, s := range shapes {
		n = max(n, len(s))
	}
	dst := Ones(buf, n)
	for _, s := range shapes {
		if err := Join(dst[len(buf):], s); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// Ones appends to buf the shape with n dimensions of size 1, to start with for Join.
func Ones(buf []int, n int) []int {
	for range n {
		buf = append(buf, 1)
	}
	return buf
}

// Join changes dst, which has at least as many dimensions as shape, to the shape to which the two broadcast.
func Join(dst, shape []int) error {
	lead := len(dst) - len(shape)
	for j, d := range shape {
		switch have := dst[lead+j]; {
		case d == have || d == 1:
		case have == 1:
			dst[lead+j] = d
		default:
			return Mismatch(have, d, lead+j)
		}
	}
	return nil
}

// Mismatch returns the error for sizes a and b of dimension dim, which do not broadcast.
func Mismatch(a, b, dim int) error {
	return Refusal(fault.Invalid, "The size of tensor a (%d) must match the size of tensor b (%d) at non-singleton dimension %d", a, b, dim)
}

// FitsInto returns an error unless shape broadcasts to the shape to; name says in the error what has the shape.
func FitsInto(name string, shape, to []int) error {
	lead := len(to) - len(shape)
	for i, d := range shape {
		if lead < 0 || d != 1 && d != to[lead+i] {
			return Refusal(fault.Invalid, "%s of shape %v does not broadcast to %v", name, shape, to)
		}
	}
	return nil
}

// ExpandsTo returns an error unless an input of the given shape can be expanded to the shape to.
func ExpandsTo(shape, to []int) error {
	lead := len(to) - len(shape)
	if lead < 0 {
		return Refusal(fault.Invalid, "the input has %d dimensions and cannot be expanded to %v", len(shape), to)
	}
	for i, d := range shape {
		if d != 1 && d != to[lead+i] {
			return Refusal(fault.Invalid,
				"The expanded size of the tensor (%d) must match the existing size (%d) at non-singleton dimension %d",
				to[lead+i], d, lead+i)
		}
	}
	return nil
}

// BroadcastStrides fills st with the strides that read an array of the given shape as one of shape to.
func BroadcastStrides(st, shape, stride, to []int) {
	lead := len(to) - len(shape)
	for i := range to {
		switch {
		case i < lead || shape[i-lead] == 1 && to[i] != 1:
			st[i] = 0
		default:
			st[i] = stride[i-lead]
		}
	}
}

// Expand replaces the -1 in to, the shape to which an array is expanded, by its sizes, and returns its strides in that shape.
func Expand(to, shape, stride []int) ([]int, error) {
	lead := len(to) - len(shape)
	if lead < 0 {
		return nil, Refusal(fault.Invalid,
			"the number of sizes provided (%d) must be greater or equal to the number of dimensions in the tensor (%d)",
			len(to), len(shape))
	}
	out := make([]int, len(to))
	for i := len(to) - 1; i >= 0; i-- {
		switch {
		case len(shape) == 0 && to[i] >= 0: // all strides 0
		case i < lead:
			if to[i] < 0 {
				return nil,
					Refusal(fault.Invalid, "the expanded size of the tensor (%d) isn't allowed in a leading, non-existing dimension %d",
						to[i], i)
			}
			if i+1 < len(to) {
				out[i] = out[i+1] * to[i+1]
			} else {
				out[i] = 1
			}
			if to[i] != 1 {
				out[i] = 0
			}
		case to[i] == -1 || to[i] == shape[i-lead]:
			to[i], out[i] = shape[i-lead], stride[i-lead]
		case shape[i-lead] != 1:
			return nil, Refusal(fault.Invalid,
				"The expanded size of the tensor (%d) must match the existing size (%d) at non-singleton dimension %d.  Target sizes: "+
					"%v.  Tensor sizes: %v",
				to[i], shape[i-lead], i, to, shape)
		}
	}
	return out, nil
}
