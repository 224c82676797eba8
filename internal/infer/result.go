package infer

import "tenon.dev/fault"

// Product appends to buf the shape of the products of the matrices in the last two dimensions of a and b, whose other dimensions are equal.
func Product(buf, a, b []int) ([]int, error) {
	n := len(a)
	if n < 2 || len(b) != n || a[n-1] != b[n-2] {
		return nil, Refusal(fault.Invalid, "mat1 and mat2 shapes cannot be multiplied (%v and %v)", a, b)
	}
	if !Same(a[:n-2], b[:n-2]) {
		return nil, Refusal(fault.Invalid, "batch dimensions of mat1 and mat2 differ (%v and %v)", a, b)
	}
	return append(append(buf, a[:n-1]...), b[n-1]), nil
}

// Lengthen adds the shape next, of array i of a list, to the shape of the arrays before it, joined along dimension d.
func Lengthen(shape, next []int, d, i int) error {
	if len(next) != len(shape) {
		return Refusal(fault.Invalid, "Tensors must have same number of dimensions: got %d and %d", len(shape), len(next))
	}
	for j, n := range next {
		if j != d && n != shape[j] {
			return Refusal(fault.Invalid,
				"Sizes of tensors must match except in dimension %d. Expected size %d but got size %d for tensor number %d in the list",
				d, shape[j], n, i)
		}
	}
	shape[d] += next[d]
	return nil
}

// Windows returns how many windows, step apart and each covering reach elements, fit into a row of n elements with pad more at both ends.
// With ceil the last window may extend beyond the end, if it begins before it.
func Windows(n, reach, step, pad int, ceil bool) int {
	span := n + 2*pad - reach
	if span < 0 && !ceil || span < -step+1 {
		return 0
	}
	if ceil {
		span += step - 1
	}
	count := span/step + 1
	if ceil && (count-1)*step >= n+pad {
		count--
	}
	return count
}
