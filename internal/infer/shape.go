// Package infer is the toolkit for authors of operations: dimensions, broadcasting, the shapes and memory orders of results, and type
// promotion, as pure functions of shapes, strides and types. It does not import tensors, Execs or devices.
package infer

import "tenon.dev/fault"

// Numel returns how many elements an array of that shape has.
func Numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Same reports whether two lists of sizes or strides are equal.
func Same(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) > 0 && &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Extent returns how many elements of storage there are from the first element to the last one, both included.
func Extent(shape, stride []int) int {
	n := 1
	for i, d := range shape {
		if d == 0 {
			return 0
		}
		n += (d - 1) * stride[i]
	}
	return n
}

// Contiguous reports whether the elements are in row-major order without gaps.
func Contiguous(shape, stride []int) bool {
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 0 {
			return true
		}
		if shape[i] != 1 {
			if stride[i] != step {
				return false
			}
			step *= shape[i]
		}
	}
	return true
}

// Dense reports whether the elements fill their extent without gaps or overlap, in any order of dimensions.
func Dense(shape, stride []int) bool {
	left := Numel(shape)
	if left == 0 {
		return true
	}
	step := 1
	for step < left {
		found := false
		for i, d := range shape {
			if d != 1 && stride[i] == step {
				step *= d
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	return Extent(shape, stride) == left
}

// RowMajor appends to buf the strides of a contiguous array.
func RowMajor(buf, shape []int) []int {
	at := len(buf)
	buf = append(buf, shape...) // for the length
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		buf[at+i] = step
		step *= max(shape[i], 1)
	}
	return buf
}

// ChannelsLast reports whether [N, C, H, W] has the channels innermost, by PyTorch's test: the strides of C, W, H and N ascend in this
// order, and a tensor that could also be row-major counts as row-major.
func ChannelsLast(shape, stride []int) bool {
	if len(shape) != 4 || stride[1] == 0 {
		return false
	}
	least := 0
	for _, d := range []int{1, 3, 2, 0} {
		if shape[d] == 0 || stride[d] < least {
			return false
		}
		if d == 0 && least == stride[1] {
			return false
		}
		least = stride[d]
		if shape[d] > 1 {
			least *= shape[d]
		}
	}
	return true
}

// SamePlaces reports whether the elements of an array of that shape have the same places with either strides. Those of dimensions of size 1
// do not matter.
func SamePlaces(shape, a, b []int) bool {
	for d, n := range shape {
		if n != 1 && a[d] != b[d] {
			return false
		}
	}
	return true
}

// ChannelsLastStrides returns the strides of an array of shape [N, C, H, W] whose channels are innermost.
func ChannelsLastStrides(shape []int) []int {
	n, c, h, w := 0, 1, 2, 3
	out := make([]int, 4)
	out[c] = 1
	out[w] = max(shape[c], 1)
	out[h] = out[w] * max(shape[w], 1)
	out[n] = out[h] * max(shape[h], 1)
	return out
}

// View appends to buf the shape to. If to has a -1, it is replaced so that the shape has n elements.
func View(buf, to []int, n int) ([]int, error) {
	known, hole := 1, -1
	shape := append(buf, to...)
	for i, d := range to {
		switch {
		case d == -1 && hole < 0:
			hole = i
		case d == -1:
			return nil, Refusal(fault.Invalid, "only one dimension can be inferred")
		case d < 0:
			return nil, Refusal(fault.Invalid, "invalid shape dimension %d", d)
		default:
			known *= d
		}
	}
	if hole >= 0 && known != 0 && n%known == 0 {
		shape[len(buf)+hole] = n / known
		return shape, nil
	}
	if hole >= 0 || known != n {
		return nil, Refusal(fault.Invalid, "shape '%v' is invalid for input of size %d", to, n)
	}
	return shape, nil
}

// ViewStrides returns strides with which the same elements have shape to, in buf's memory if they fit there. Runs of evenly spaced
// dimensions can be divided differently; other dimensions cannot be joined.
func ViewStrides(buf, shape, stride, to []int) ([]int, bool) {
	out := append(buf[:0], to...) // for the length
	if Numel(shape) == 0 || len(shape) == 0 {
		step := 1
		for i := len(to) - 1; i >= 0; i-- {
			out[i] = step
			step *= max(to[i], 1)
		}
		if len(shape) == len(to) && Same(shape, to) {
			copy(out, stride)
		}
		return out, true
	}
	j := len(to) - 1
	run, base := 1, stride[len(stride)-1]
	for i := len(shape) - 1; i >= 0; i-- {
		run *= shape[i]
		if i > 0 && (shape[i-1] == 1 || stride[i-1] == run*base) {
			continue
		}
		n := 1
		for j >= 0 && (n < run || to[j] == 1) {
			out[j] = n * base
			n *= to[j]
			j--
		}
		if n != run {
			return nil, false
		}
		if i > 0 {
			run, base = 1, stride[i-1]
		}
	}
	return out, j == -1
}
