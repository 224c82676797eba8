package infer

// Strided is the shape and strides of an array.
type Strided struct{ Shape, Stride []int }

// Layout returns strides for a result of the given shape in the memory order of the inputs, or nil for row-major. It follows PyTorch's
// rule: the layout of the inputs if they agree and are dense; else dimensions sorted by the strides of the inputs, earlier inputs first.
// perm is a buffer for it.
func Layout(shape []int, ins []Strided, perm []int) []int {
	n := len(shape)
	if n < 2 || len(ins) == 0 {
		return nil
	}
	plain, agree := true, true
	first := &ins[0]
	for i := range ins {
		t := &ins[i]
		agree = agree && Same(t.Shape, shape) && Same(t.Stride, first.Stride)
		plain = plain && (Contiguous(t.Shape, t.Stride) || len(t.Shape) == 0)
	}
	switch {
	case plain && agree:
		return nil
	case agree && Dense(first.Shape, first.Stride):
		return first.Stride
	}
	if n > cap(perm) {
		perm = make([]int, n)
	}
	perm = perm[:n]
	for i := range perm {
		perm[i] = n - 1 - i
	}
	for i := 1; i < n; i++ {
		d1 := i
		for d0 := i - 1; d0 >= 0; d0-- {
			c := compareDims(ins, shape, perm[d0], perm[d1])
			if c > 0 {
				perm[d0], perm[d1] = perm[d1], perm[d0]
				d1 = d0
			} else if c < 0 {
				break
			}
		}
	}
	plain = true
	for i, d := range perm {
		plain = plain && d == n-1-i
	}
	if plain {
		return nil
	}
	out := make([]int, n)
	step := 1
	for _, d := range perm {
		out[d] = step
		step *= shape[d]
	}
	return out
}

// compareDims returns whether dimension a must be outside b (positive: a has the larger stride), by the first input that decides it.
func compareDims(ins []Strided, shape []int, a, b int) int {
	for i := range ins {
		if len(ins[i].Shape) == 0 {
			continue
		}
		sa, sb := ins[i].at(shape, a), ins[i].at(shape, b)
		switch {
		case sa == 0 || sb == 0:
			continue
		case sa < sb:
			return -1
		case sa > sb:
			return 1
		case shape[a] > shape[b]:
			return 1
		}
	}
	return 0
}

// at returns the stride of s along dimension d of the shape to which it is broadcast.
func (s *Strided) at(shape []int, d int) int {
	i := d - (len(shape) - len(s.Shape))
	if i < 0 || s.Shape[i] == 1 && shape[d] != 1 {
		return 0
	}
	return s.Stride[i]
}
