package kernels

// With channels last, a row of a window is a run of adjacent elements. So a convolution of images of a few colours is one whose pixels are
// runs, with as many channels as these have elements, and whose windows are one run wide. Neighbouring runs overlap, which does not matter
// to the copy engine: it takes all distances that are multiples of 16 bytes. If windows have a multiple of as many rows as they are apart,
// so many rows are folded: their pixels are interleaved, and a run has all of them. Each run then takes as long as one of a single row.

// runs describes a convolution over runs.
type runs struct {
	// conv is that convolution, and walk its windows.
	conv Conv
	walk *walk
	// colours is the number of channels to which those of a pixel are filled up, height and width are the size of the images then, and fold
	// rows are folded.
	colours, height, width, fold int
}

// runs returns the convolution over runs that c is, or nil if the copy engine cannot gather them, or cannot copy y, the gradient of the
// output, as it is.
func (c *Conv) runs(lim *Limits, kind convKind, y Operand) *runs {
	const apart = 16 // bytes
	t := y.DType
	if kind == convWeight && c.LastY && y.Ptr%apart > 0 {
		return nil
	}
	s := &runs{conv: *c, colours: c.In, fold: 1, height: (c.OH-1)*c.StrideH + (c.KH-1)*c.DilationH + 1}
	if n := c.StrideH; c.DilationH == 1 && c.KH%n+c.PadH%n+min(c.H, s.height-c.PadH)%n == 0 {
		s.fold = n
	}
	for s.fold*s.colours*c.StrideW*t.Size()%apart > 0 {
		s.colours++
	}
	pixel := s.fold * s.colours
	v, elements := &s.conv, c.KW*pixel
	v.In = ceilDiv(elements, walkGrain) * walkGrain
	for s.width = (c.OW-1)*c.StrideW + ceilDiv(v.In, pixel); s.width%c.StrideW > 0 || s.width*pixel*t.Size()%apart > 0; {
		s.width++
	}
	v.H, v.W, v.KH, v.StrideH = s.height/s.fold, c.OW, c.KH/s.fold, c.StrideH/s.fold
	v.KW, v.StrideW, v.DilationW, v.PadH, v.PadW = 1, 1, 1, 0, 0
	v.LastX, v.LastW, v.LastY = true, true, true
	if c.DilationW > 1 || c.Batch*s.height*s.width*s.colours >= 1<<31 {
		return nil
	}
	if s.walk = v.walks(lim, kind, t); s.walk == nil {
		return nil
	}
	s.walk.column, s.walk.line, s.walk.present = c.StrideW*pixel, s.width*pixel, elements
	return s
}

// gatherRuns computes the output, or the gradient of the weight, as a convolution over runs.
func (c *Conv) gatherRuns(is Issuer, s *runs, kind convKind, res, a, b, bias Operand, e *Epilogue) error {
	v := &s.conv
	images, err := c.fillUp(is, b, s.height, s.width, s.colours, s.fold)
	if err != nil {
		return err
	}
	count, all := c.Out*v.KH*v.In, c.In*c.KH*c.KW
	shape := []int{c.Out, v.KH, s.fold, c.KW, c.In}
	within := func(o Operand) Operand { // the weight's elements in those of the runs' weight
		o.Shape, o.Stride = shape, []int{v.KH * v.In, v.In, s.colours, s.fold * s.colours, 1}
		return o
	}
	weight := func(o Operand) Operand {
		o.Shape, o.Stride = shape, []int{all, s.fold * c.KW, c.KW, 1, c.KH * c.KW}
		if c.LastW {
			o.Stride = []int{all, s.fold * c.KW * c.In, c.KW * c.In, c.In, 1}
		}
		return o
	}
	if kind == convWeight {
		if a, err = lay(is, a, c.Batch, c.Out, c.OH*c.OW, c.LastY, true, c.Out); err != nil {
			return err
		}
		filled := Operand{DType: res.DType, Shape: []int{count}, Stride: []int{1}}
		if filled.Ptr, err = is.Workspace(count * res.DType.Size()); err != nil {
			return err
		}
		if err := v.walkProduct(is, s.walk, kind, filled, a, images, bias, nil); err != nil {
			return err
		}
		return Pointwise(is, Copy, res.DType, nil, []Operand{weight(res)}, []Operand{within(filled)})
	}
	filled, err := zeros(is, a.DType, count)
	if err != nil {
		return err
	}
	if err := Pointwise(is, Copy, a.DType, nil, []Operand{within(filled)}, []Operand{weight(a)}); err != nil {
		return err
	}
	if c.LastY {
		return v.walkProduct(is, s.walk, kind, res, filled, images, bias, e)
	}
	to := Operand{DType: res.DType, Shape: []int{res.Numel()}, Stride: []int{1}}
	if to.Ptr, err = is.Workspace(res.Numel() * res.DType.Size()); err != nil {
		return err
	}
	if err := v.walkProduct(is, s.walk, kind, to, filled, images, bias, nil); err != nil {
		return err
	}
	res = seenAs(res, c.Batch, c.Out, c.OH*c.OW, false)
	return Pointwise(is, Copy, res.DType, nil, []Operand{res}, []Operand{seenAs(to, c.Batch, c.Out, c.OH*c.OW, true)})
}
