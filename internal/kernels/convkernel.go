package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// convKernel builds one of the three kernels.
type convKernel struct {
	*gemm
	convArgs
	s     *Spec
	kind  convKind
	last  bool
	group kernel.Value
	// own0 is the first column of the block's tile in terms of the gathered operand, and owns the total number of these columns; they are
	// rows if rows are pixels. For each of them, colBase is the offset in the gathered operand to which the distances of depths are added,
	// and colY and colX are the row and column to which theirs are added.
	own0, owns          kernel.Value
	colBase, colY, colX kernel.Array
}

func buildConv(s *Spec) *kernel.Kernel {
	kind := convKind(s.Op)
	if s.Product.Results > 0 { // Op is the epilogue's
		kind = convForward
	}
	return kernel.Build(s.name([]string{"conv_fwd", "conv_data", "conv_weight"}[kind]+epilogueName(s)), func(k *kernel.Builder) {
		c := &convKernel{gemm: newGemm(k, s), s: s, kind: kind, last: s.Conv.Last != lastNone}
		c.layout(declaring(k, s))
		tiles := func(n kernel.Value, t int) kernel.Value { return n.Add(k.I32(t - 1)).Div(k.I32(t)) }
		c.blocks(k.BlockIdx(kernel.X), tiles(c.m.Value, c.tile.rows), tiles(c.n.Value, c.tile.cols))
		c.group = k.BlockIdx(kernel.Y)
		begin, end := k.I32(0), c.depthAll.Value
		if s.Product.Split() {
			begin = k.BlockIdx(kernel.Z).Mul(c.step.Value)
			end = begin.Add(c.step.Value).Min(c.depthAll.Value)
		}
		if c.own0, c.owns = c.n0, c.n.Value; s.Conv.Last == lastAll {
			c.own0, c.owns = c.m0, c.m.Value
			c.columns(c.tile.rows)
			c.run(begin, end, c.gathered(end, kernel.AlongCols), c.other(end, c.n0, c.n.Value, kernel.AlongRows), nil, int(s.Vec), c.store)
			return
		}
		c.columns(c.tile.cols)
		c.run(begin, end, c.other(end, c.m0, c.m.Value, kernel.AlongCols), c.gathered(end, kernel.AlongRows), nil, int(s.Vec), c.store)
	})
}

// columns computes, once per block, what the gathered operand needs to know about each of the tile's count columns (or rows). Those beyond
// the result are not stored; they repeat the last one at which a load may begin.
func (c *convKernel) columns(count int) {
	k := c.k
	c.colBase = k.Shared("col_base", dtype.Int32, count)
	c.colY, c.colX = k.Shared("col_y", dtype.Int32, count), k.Shared("col_x", dtype.Int32, count)
	last := 1
	if c.last && c.kind == convWeight {
		last = int(c.s.Product.Left.Width)
	}
	k.For(k.ThreadIdx(kernel.X), k.I32(count), k.I32(c.tile.threads), func(j kernel.Value) {
		col := c.own0.Add(j).Min(c.owns.Sub(k.I32(last)))
		var base, y, x kernel.Value
		switch c.kind {
		case convForward:
			img, pix := c.pixDiv.divide(col, c.oh.Mul(c.ow.Value))
			oy, ox := c.rowDiv.divide(pix, c.ow.Value)
			y, x = oy.Mul(c.sh.Value).Sub(c.ph.Value), ox.Mul(c.sw.Value).Sub(c.pw.Value)
			base = c.image(img, c.ins.Value, c.h.Mul(c.w.Value)).Add(c.distance(y, x))
		case convData:
			img, pix := c.pixDiv.divide(col, c.h.Mul(c.w.Value))
			iy, ix := c.rowDiv.divide(pix, c.w.Value)
			y, x = iy.Add(c.ph.Value), ix.Add(c.pw.Value)
			base = c.image(img, c.outs.Value, c.oh.Mul(c.ow.Value))
			if c.unit() {
				base = base.Add(c.distance(y, x))
			}
		case convWeight:
			ch, tap := c.channelAndTap(col)
			ky, kx := c.kwDiv.divide(tap, c.kw.Value)
			y, x = ky.Mul(c.dh.Value).Sub(c.ph.Value), kx.Mul(c.dw.Value).Sub(c.pw.Value)
			base = c.group.Mul(c.ins.Value).Add(ch)
			if !c.last {
				base = base.Mul(c.h.Value).Mul(c.w.Value)
			}
			base = base.Add(c.distance(y, x))
		}
		c.colBase.Store(j, base)
		c.colY.Store(j, y)
		c.colX.Store(j, x)
	})
	k.Barrier()
}

// channelAndTap splits a depth, or a column of the weight's gradient.
func (c *convKernel) channelAndTap(v kernel.Value) (channel, tap kernel.Value) {
	if c.last {
		tap, channel = c.innerDiv.divide(v, c.channels())
		return channel, tap
	}
	return c.innerDiv.divide(v, c.kh.Mul(c.kw.Value))
}

// channels is the number of channels per group of the gathered operand.
func (c *convKernel) channels() kernel.Value {
	if c.kind == convData {
		return c.outs.Value
	}
	return c.ins.Value
}

// image returns the offset of the group's first channel in an image; channels is the number of channels per group, pixels that of pixels
// per image.
func (c *convKernel) image(img, channels, pixels kernel.Value) kernel.Value {
	if c.last {
		return img.Mul(pixels).Mul(c.groups.Value).Add(c.group).Mul(channels)
	}
	return img.Mul(c.groups.Value).Add(c.group).Mul(channels).Mul(pixels)
}

// distance returns the distance of y rows and x columns in an image of the gathered operand.
func (c *convKernel) distance(y, x kernel.Value) kernel.Value {
	w := c.w.Value
	if c.kind == convData {
		w = c.ow.Value
	}
	d := y.Mul(w).Add(x)
	if c.last {
		d = d.Mul(c.groups.Mul(c.channels()))
	}
	return d
}

// channelDistance returns the distance of ch channels.
func (c *convKernel) channelDistance(ch kernel.Value) kernel.Value {
	switch {
	case c.last:
		return ch
	case c.kind == convData:
		return ch.Mul(c.oh.Value).Mul(c.ow.Value)
	}
	return ch.Mul(c.h.Value).Mul(c.w.Value)
}

// unit reports whether this is the input's gradient of a convolution with unit strides.
func (c *convKernel) unit() bool { return c.s.Conv.Unit }

// other is the operand that is not gathered: the weight or, for the weight's gradient, that of the output. The result has count rows or
// columns of it, of which the tile takes those from first on; those beyond count repeat the last. along is the axis of the tile along which
// depths lie.
func (c *convKernel) other(end, first, count kernel.Value, along kernel.Groups) side {
	width := int(c.s.Product.Left.Width)
	s := side{groups: along, width: width}
	last := 1
	if c.last && c.kind == convWeight {
		s.groups, last = kernel.AlongRows, width
	}
	size := c.oh.Mul(c.ow.Value)
	s.at = func(k0, p, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		row, depth := first.Add(p).Min(count.Sub(c.k.I32(last))), k0.Add(d)
		var at, far kernel.Value // of the row and of the depth
		switch {
		case c.last && c.kind == convWeight:
			at, far = c.group.Mul(c.outs.Value).Add(row), depth.Mul(c.groups.Mul(c.outs.Value))
		case c.kind == convForward:
			at, far = c.group.Mul(c.outs.Value).Add(row).Mul(c.depthAll.Value), depth
		case c.last:
			at, far = c.group.Mul(c.ins.Value).Add(row).Mul(c.depthAll.Value), depth
		case c.kind == convData:
			co, tap := c.channelAndTap(depth)
			taps := c.kh.Mul(c.kw.Value)
			at, far = row.Mul(taps), c.group.Mul(c.outs.Value).Add(co).Mul(c.ins.Value).Mul(taps).Add(tap)
		default:
			img, pix := c.pixDiv.divide(depth, size)
			at, far = c.group.Mul(c.outs.Value).Add(row).Mul(size), img.Mul(c.groups.Mul(c.outs.Value)).Mul(size).Add(pix)
		}
		return c.a.Buffer, at.Convert(dtype.Int64).Add(far.Convert(dtype.Int64)), depth.Lt(end)
	}
	return s
}

// gathered is the gathered operand. The depth determines the element's distance from the offset of its column. If channels are adjacent, so
// are depths, along the given axis of the tile.
func (c *convKernel) gathered(end kernel.Value, along kernel.Groups) side {
	k := c.k
	s := side{groups: kernel.AlongCols, width: 1}
	if c.last {
		s.width = int(c.s.Product.Left.Width)
		if c.kind != convWeight {
			s.groups = along
		}
	}
	s.at = func(k0, p, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		depth := k0.Add(d)
		inside := depth.Lt(end)
		base, y, x := c.colBase.Load(p), c.colY.Load(p), c.colX.Load(p)
		h, w := c.h.Value, c.w.Value
		var dy, dx, far kernel.Value
		if c.kind == convWeight {
			img, pix := c.pixDiv.divide(depth, c.oh.Mul(c.ow.Value))
			oy, ox := c.rowDiv.divide(pix, c.ow.Value)
			dy, dx = oy.Mul(c.sh.Value), ox.Mul(c.sw.Value)
			far = img.Mul(c.groups.Mul(c.ins.Value).Mul(h).Mul(w))
		} else {
			ch, tap := c.channelAndTap(depth)
			ky, kx := c.kwDiv.divide(tap, c.kw.Value)
			dy, dx = ky.Mul(c.dh.Value), kx.Mul(c.dw.Value)
			far = c.channelDistance(ch)
		}
		if c.kind == convData {
			h, w = c.oh.Value, c.ow.Value
			dy, dx = dy.Neg(), dx.Neg()
		}
		y, x = y.Add(dy), x.Add(dx)
		if c.kind == convData && !c.unit() {
			zero := k.I32(0)
			inside = inside.And(y.Ge(zero)).And(x.Ge(zero))
			var ry, rx kernel.Value
			y, ry = c.shDiv.divide(y, c.sh.Value)
			x, rx = c.swDiv.divide(x, c.sw.Value)
			inside = inside.And(ry.Or(rx).Eq(zero))
			dy, dx = y, x
		}
		inside = inside.And(c.within(y, h)).And(c.within(x, w))
		return c.b.Buffer, base.Convert(dtype.Int64).Add(far.Add(c.distance(dy, dx)).Convert(dtype.Int64)), inside
	}
	return s
}

// within reports 0 <= v < n with a single comparison.
func (c *convKernel) within(v, n kernel.Value) kernel.Value {
	return v.Bitcast(dtype.Uint32).Lt(n.Bitcast(dtype.Uint32))
}

// store writes adjacent results of one row.
func (c *convKernel) store(row, col kernel.Value, vs []kernel.Value) {
	k := c.k
	r, q := c.m0.Add(row), c.n0.Add(col)
	inside, row, col := within(r, q, c.m.Value, c.n.Value, len(vs))
	if c.s.Product.Results > 0 {
		for j, v := range vs {
			vs[j] = v.Convert(c.out.Type())
		}
		c.epilogue.run(k, c.s, inside, row, col, c.n.Value, vs)
		return
	}
	k.If(inside, func() { c.storeInside(r, q, vs) })
}

// storeInside writes adjacent results of row r from column q on, which are in the result.
func (c *convKernel) storeInside(r, q kernel.Value, vs []kernel.Value) {
	k := c.k
	size, chans := c.oh.Mul(c.ow.Value), c.outs.Value
	if c.kind == convData {
		size, chans = c.h.Mul(c.w.Value), c.ins.Value
	}
	var at kernel.Value
	switch {
	case c.s.Conv.Last == lastAll:
		at = r.Mul(c.groups.Value).Add(c.group).MulWide(chans).Add(q.Convert(dtype.Int64))
	case c.kind != convWeight:
		img, pix := c.pixDiv.divide(q, size)
		at = img.Mul(c.groups.Value).Add(c.group).Mul(chans).Add(r).Mul(size).Add(pix).Convert(dtype.Int64)
	default:
		at = c.group.Mul(c.m.Value).Add(r).Mul(c.n.Value).Add(q).Convert(dtype.Int64)
	}
	if c.s.Product.Split() {
		at = at.Add(k.BlockIdx(kernel.Z).Mul(c.groups.Value).MulWide(c.m.Mul(c.n.Value)))
	}
	res := make([]kernel.Value, len(vs))
	for j, v := range vs {
		if c.s.Product.Bias > 0 {
			if c.s.Conv.BiasApart {
				v = v.Convert(c.out.Type()).Convert(v.Type())
			}
			channel := r
			if c.s.Conv.Last == lastAll {
				channel = q.Add(k.I32(j))
			}
			v = v.Add(c.bias.Load(c.group.Mul(c.outs.Value).Add(channel)).Convert(v.Type()))
		}
		res[j] = v.Convert(c.out.Type())
	}
	c.out.StoreVec(at, res...)
}
