package kernels

import "tenon.dev/dtype"

// Images of a few colours have too few channels to be gathered well: an access holds those of several pixels. So the windows are laid out
// first, as the rows of a matrix, and the convolution is a product of it. On an H200 the first layer of MobileNetV2 took 0.46 ms, of which
// 0.02 are the floor. Where the copy engine can gather them as runs, it does.

const (
	// unfoldChannels is the number of channels to which those of an image are filled up, so that windows are copied several elements at a
	// time.
	unfoldChannels = 4
	// unfoldShort is the maximum number of columns for outputs: with more, the matrix takes longer than gathering.
	unfoldShort = 64
	// unfoldMost is the maximum size of the matrix in bytes.
	unfoldMost = 512 << 20
)

// colours reports whether a product of halves reads images of a few colours, and is large enough to lay them out anew.
func (c *Conv) colours(lim *Limits, kind convKind, t dtype.DType) bool {
	switch {
	case kind == convData || c.Groups > 1 || c.In > unfoldChannels || c.KH*c.KW == 1 || t.Size() != 2 || c.Out%8 > 0,
		c.Turn == TurnNever:
		return false
	case c.Turn == TurnWherePossible:
		return true
	}
	m, n, k := c.sizes(kind)
	return lim.Multiprocessors >= fewMultiprocessors && m*n*k >= convTurnFrom
}

// unfolds reports whether a product of images of a few colours that is no convolution over runs lays out their windows.
func (c *Conv) unfolds(kind convKind, t dtype.DType) bool {
	_, _, depth := c.unfolded()
	return depth*c.Batch*c.OH*c.OW*t.Size() <= unfoldMost &&
		(kind != convForward || c.LastY && (depth <= unfoldShort || c.Turn == TurnWherePossible))
}

// unfolded returns the size of the filled-up images, and the number of columns of the matrix of windows.
func (c *Conv) unfolded() (height, width, depth int) {
	height, width = (c.OH-1)*c.StrideH+(c.KH-1)*c.DilationH+1, (c.OW-1)*c.StrideW+(c.KW-1)*c.DilationW+1
	return height, width, ceilDiv(c.KH*c.KW*unfoldChannels, 8) * 8
}

// zeros returns count zeros of type t in workspace.
func zeros(is Issuer, t dtype.DType, count int) (o Operand, err error) {
	o = Operand{DType: t, Shape: []int{count}, Stride: []int{1}}
	if o.Ptr, err = is.Workspace(count * t.Size()); err != nil {
		return o, err
	}
	return o, Pointwise(is, Fill, t, []Scalar{{}}, []Operand{o}, nil)
}

// fillUp returns the images of x with channels last, each with height x width pixels of so many channels; what x does not have is 0. The
// pixels of each column of fold rows are adjacent.
func (c *Conv) fillUp(is Issuer, x Operand, height, width, channels, fold int) (Operand, error) {
	images, err := zeros(is, x.DType, c.Batch*height*width*channels)
	if err != nil {
		return x, err
	}
	// What lies below some window: images may have columns and rows beyond it, and the other way round.
	h, w := min(c.H, height-c.PadH), min(c.W, width-c.PadW)
	if h <= 0 || w <= 0 {
		return images, nil
	}
	from, to := x, images
	row, column, channel := c.W, 1, c.H*c.W
	if c.LastX {
		row, column, channel = c.W*c.In, c.In, 1
	}
	line, pixel := width*channels, fold*channels
	to.Ptr += uint64((c.PadH*line + c.PadW*pixel) * x.DType.Size())
	from.Shape, from.Stride = []int{c.Batch, h / fold, fold, w, c.In}, []int{c.In * c.H * c.W, fold * row, row, column, channel}
	to.Shape, to.Stride = from.Shape, []int{height * line, fold * line, channels, pixel, 1}
	return images, Pointwise(is, Copy, x.DType, nil, []Operand{to}, []Operand{from})
}

// windows returns the windows of x as the rows of a matrix.
func (c *Conv) windows(is Issuer, x Operand) (Operand, error) {
	height, width, depth := c.unfolded()
	t, size := x.DType, x.DType.Size()
	images, err := c.fillUp(is, x, height, width, unfoldChannels, 1)
	if err != nil {
		return x, err
	}
	line := width * unfoldChannels
	rows, places := c.Batch*c.OH*c.OW, c.KH*c.KW
	res := Operand{DType: t}
	if res.Ptr, err = is.Workspace(rows * depth * size); err != nil {
		return x, err
	}
	if rest := depth - places*unfoldChannels; rest > 0 {
		tail := Operand{Ptr: res.Ptr + uint64(places*unfoldChannels*size), DType: t, Shape: []int{rows, rest}, Stride: []int{depth, 1}}
		if depth <= unfoldShort { // whole lines are written faster
			tail.Ptr, tail.Shape, tail.Stride = res.Ptr, []int{rows * depth}, []int{1}
		}
		if err := Pointwise(is, Fill, t, []Scalar{{}}, []Operand{tail}, nil); err != nil {
			return x, err
		}
	}
	shape := []int{c.Batch, c.OH, c.OW, c.KH, c.KW, unfoldChannels}
	to, from := res, images
	to.Shape, to.Stride = shape, []int{c.OH * c.OW * depth, c.OW * depth, depth, c.KW * unfoldChannels, unfoldChannels, 1}
	from.Shape, from.Stride = shape, []int{height * line, c.StrideH * line, c.StrideW * unfoldChannels, c.DilationH * line,
		c.DilationW * unfoldChannels, 1}
	res.Shape, res.Stride = []int{rows, depth}, []int{depth, 1}
	return res, Pointwise(is, Copy, t, nil, []Operand{to}, []Operand{from})
}

// weightRows returns the weight [Out, In, KH, KW], or what is at o in its layout, viewed as [Out, KH·KW, In].
func (c *Conv) weightRows(o Operand) Operand {
	places := c.KH * c.KW
	o.Shape, o.Stride = []int{c.Out, places, c.In}, []int{c.In * places, 1, places}
	if c.LastW {
		o.Stride[1], o.Stride[2] = c.In, 1
	}
	return o
}

// unfold computes the output, or the gradient of the weight, from the matrix of windows.
func (c *Conv) unfold(is Issuer, kind convKind, res, a, b, bias Operand, e *Epilogue) error {
	t := a.DType
	_, _, depth := c.unfolded()
	rows, err := c.windows(is, b)
	if err != nil {
		return err
	}
	filled, err := zeros(is, t, c.Out*depth) // the weight or its gradient
	if err != nil {
		return err
	}
	within := filled
	within.Shape, within.Stride = []int{c.Out, c.KH * c.KW, c.In}, []int{depth, unfoldChannels, 1}
	pixels := rows.Shape[0]
	if kind == convWeight {
		if a, err = lay(is, a, c.Batch, c.Out, c.OH*c.OW, c.LastY, true, c.Out); err != nil {
			return err
		}
		a.Shape, a.Stride = []int{c.Out, pixels}, []int{1, c.Out}
		filled.Shape, filled.Stride = []int{c.Out, depth}, []int{depth, 1}
		if err := Matmul(is, filled, a, rows, MatmulOpt{Alpha: 1}); err != nil {
			return err
		}
		return Pointwise(is, Copy, t, nil, []Operand{c.weightRows(res)}, []Operand{within})
	}
	if err := Pointwise(is, Copy, t, nil, []Operand{within}, []Operand{c.weightRows(a)}); err != nil {
		return err
	}
	res.Shape, res.Stride = []int{pixels, c.Out}, []int{c.Out, 1}
	filled.Shape, filled.Stride = []int{depth, c.Out}, []int{1, depth}
	if bias.Ptr != 0 {
		e = withBias(res, bias)
	}
	if err := Matmul(is, res, rows, filled, MatmulOpt{Alpha: 1, Epilogue: e}); err != nil || bias.Ptr == 0 || e != nil {
		return err
	}
	return c.addBias(is, res, bias, true)
}
