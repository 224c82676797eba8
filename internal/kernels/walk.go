package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// Convolutions whose channels are last are products of matrices, one of which has a row for each position of the kernel's window and an
// element for each channel of each pixel below it. The copy engine of sm_90 gathers the tiles of this matrix from the images: it walks over
// the windows, and each tile has channels of one pixel of each. So these are products like others, of which only the place of one operand's
// tiles differs (PTX ISA, "im2col mode"). The gradient of an input with strides is several such products: see phases.

// mapKind says whether tensor maps describe the operands of a product, and which operand is gathered from images, if one is.
type mapKind uint8

const (
	mapNone mapKind = iota
	mapMatrices
	// mapLeft: rows are windows, and the depth is a pixel's place in the window and its channel.
	mapLeft
	// mapRight: the depth is the windows, and columns are what the depth of mapLeft is.
	mapRight
	// mapPhases: as mapLeft, in each of several phases.
	mapPhases
)

// walk describes the windows of a product's gathered operand, [images, height, width, channels]: down times across of them in each image.
// The first one has its first pixel at first {column, row}, and the next ones are step apart. In a window, pixels have the distance apart.
// turned says that places in a window are counted from its end. If there are phases, each has part of the places. Columns are column
// elements apart in memory, and rows line; of a pixel's channels the first ones, present, are there, and the others are zeros.
type walk struct {
	images, height, width, channels int
	column, line, present           int
	down, across                    int
	first, step, apart, window      [2]int
	turned                          bool
	kind                            mapKind
	phases                          *phases
}

// walk returns how a kind of product walks over its gathered operand, or nil if one walk cannot do.
func (c *Conv) walk(kind convKind) *walk {
	if kind == convData && c.StrideH*c.StrideW > 1 {
		return c.phased()
	}
	w := &walk{images: c.Batch, height: c.H, width: c.W, channels: c.In, down: c.OH, across: c.OW, first: [2]int{-c.PadW, -c.PadH},
		step: [2]int{c.StrideW, c.StrideH}, apart: [2]int{c.DilationW, c.DilationH}, window: [2]int{c.KW, c.KH}, kind: mapLeft}
	switch kind {
	case convWeight:
		w.kind = mapRight
	case convData:
		w.height, w.width, w.channels, w.down, w.across, w.turned = c.OH, c.OW, c.Out, c.H, c.W, true
		w.first = [2]int{c.PadW - (c.KW-1)*c.DilationW, c.PadH - (c.KH-1)*c.DilationH}
	}
	return w.dense()
}

// dense says that the images have no gaps, and returns w.
func (w *walk) dense() *walk {
	w.column, w.line, w.present = w.channels, w.width*w.channels, w.channels
	return w
}

// accessWidth returns how many channels can be read together: all are present or none is.
func (w *walk) accessWidth(t dtype.DType) uint8 {
	width := 16 / t.Size()
	for w.present%width != 0 {
		width /= 2
	}
	return uint8(width)
}

// last returns where the walk ends, relative to the last column and row.
func (w *walk) last() [2]int {
	return [2]int{w.first[0] + (w.across-1)*w.step[0] - (w.width - 1), w.first[1] + (w.down-1)*w.step[1] - (w.height - 1)}
}

// fits reports whether a tensor map can describe the walk.
func (w *walk) fits() bool {
	last := w.last()
	for i := range 2 {
		if min(w.first[i], last[i]) < -128 || max(w.first[i], last[i]) > 127 || w.step[i] > 8 ||
			w.phases == nil && (w.window[i]-1)*w.apart[i] > kir.MapFarthest {
			return false
		}
	}
	return w.channels%walkGrain == 0 && (w.phases == nil || w.phases.fits())
}

// walkGrain is the number of channels of which those of a gathered operand are a multiple: those of the least deep tiles.
const walkGrain = 32

// suits reports whether each part of a tile's lines lies in one pixel.
func (w *walk) suits(t *gemmTile, dt dtype.DType) bool {
	line := t.depth
	if w.kind == mapRight {
		line = t.cols
	}
	return w.channels%(line/kir.MapParts(dt, line)) == 0
}

// walks returns the walk by which the copy engine gathers an operand of a product whose channels are last, or nil if threads are to gather
// it. Devices of few multiprocessors take longer for a walk: they compare the tiles with those that a kernel's instructions gather.
func (c *Conv) walks(lim *Limits, kind convKind, t dtype.DType) *walk {
	m, n, k := c.sizes(kind)
	switch {
	case lim.Major != 9 || lim.Minor != 0 || lim.SharedPerBlock < notionalShared || t.Size() != 2 || c.Groups > 1,
		lim.Multiprocessors < fewMultiprocessors && c.Turn != TurnWherePossible,
		min(m, n) < walkLeast || k%8 != 0 || m%8 != 0 && kind == convWeight:
		return nil
	}
	w := c.walk(kind)
	if w == nil || !w.fits() || w.phases != nil && c.Turn != TurnWherePossible && !c.phasesPay(w, t) {
		return nil
	}
	return w
}

// walkLeast is the minimum number of channels of the result. Up to walkNarrow of them, gathering and then copying the result to another
// layout takes less time than computing it in that layout.
const walkLeast, walkNarrow = 16, 32

// walkProduct computes a kind of product of a and b whose channels are last, as are the result's.
func (c *Conv) walkProduct(is Issuer, w *walk, kind convKind, res, a, b, bias Operand, e *Epilogue) error {
	m, n, k := c.sizes(kind)
	if kind != convWeight {
		a, b, m, n = b, a, n, m
	}
	if w.phases != nil {
		m = w.images * w.down * w.across
	}
	matrix := func(o Operand, rows, cols int, turned bool) Operand {
		o.Shape, o.Stride = []int{rows, cols}, []int{cols, 1}
		if turned {
			o.Stride = []int{1, rows}
		}
		return o
	}
	res = matrix(res, m, n, false)
	// The strides of the gathered operand are those of the matrix, which does not exist.
	a, b = matrix(a, m, k, kind == convWeight), matrix(b, k, n, kind != convWeight)
	if bias.Ptr != 0 {
		e = withBias(res, bias)
	}
	p, opt := product{walk: w}, MatmulOpt{Alpha: 1, Epilogue: e}
	if c.Tile > 0 && w.suits(&costsWalk[c.Tile-1].tile, a.DType) {
		opt.Tile = c.Tile
	}
	if err := p.begin(res, a, b, opt); err != nil {
		return err
	}
	if err := p.issue(is); err != nil || bias.Ptr == 0 || e != nil {
		return err
	}
	return c.addBias(is, res, bias, true)
}

// pixelMap returns the tensor map of the gathered operand, for tiles of places x depth.
func (w *walk) pixelMap(o *Operand, places, depth int) kir.TensorMap {
	size := o.DType.Size()
	line, lines := depth, places
	if w.kind == mapRight {
		line, lines = lines, line
	}
	return kir.TensorMap{Addr: o.Ptr, Dims: [4]int{w.present, w.width, w.height, w.images},
		Strides: [3]int{size * w.column, size * w.line, size * w.line * w.height},
		Tile:    kir.MapTile{Type: o.DType, Line: line, Lines: lines, Pixels: true},
		Pixels:  kir.MapPixels{First: w.first, Last: w.last(), Step: w.step}}
}

// walkArgs are the arguments of a product with a gathered operand. From and by say how far from the walk's pixels those of a place in the
// window are: from + by*place.
type walkArgs struct {
	images, height, width, channels, across, perImage, kw, count intArg
	column, line, present                                        intArg
	stepX, stepY, firstX, firstY, fromX, fromY, byX, byY         intArg
	pixelsDiv, acrossDiv, channelsDiv, kwDiv                     dividerArg
	phase                                                        phaseArgs
}

// set sets the arguments on the host.
func (a *walkArgs) set(w *walk) {
	a.images.host, a.height.host, a.width.host, a.channels.host = w.images, w.height, w.width, w.channels
	a.across.host, a.perImage.host, a.kw.host = w.across, w.across*w.down, w.window[0]
	a.count.host = w.window[0] * w.window[1] * w.channels
	a.column.host, a.line.host, a.present.host = w.column, w.line, w.present
	a.stepX.host, a.stepY.host, a.firstX.host, a.firstY.host = w.step[0], w.step[1], w.first[0], w.first[1]
	a.byX.host, a.byY.host = w.apart[0], w.apart[1]
	if w.turned {
		a.fromX.host, a.byX.host = (w.window[0]-1)*w.apart[0], -w.apart[0]
		a.fromY.host, a.byY.host = (w.window[1]-1)*w.apart[1], -w.apart[1]
	}
	a.pixelsDiv.host, a.acrossDiv.host, a.channelsDiv.host, a.kwDiv.host = a.perImage.host, w.across, w.channels, w.window[0]
	if w.phases != nil {
		a.phase.set(w.phases, w.channels)
	}
}

func (a *walkArgs) layout(p params) {
	p.i32s("images height width channels across pixels kw count", &a.images, &a.height, &a.width, &a.channels, &a.across, &a.perImage,
		&a.kw, &a.count)
	p.i32s("column line present", &a.column, &a.line, &a.present)
	p.i32s("step_x step_y first_x first_y from_x from_y by_x by_y", &a.stepX, &a.stepY, &a.firstX, &a.firstY, &a.fromX, &a.fromY,
		&a.byX, &a.byY)
	p.divider(&a.pixelsDiv, "magic0", "shift0")
	p.divider(&a.acrossDiv, "magic1", "shift1")
	p.divider(&a.channelsDiv, "magic2", "shift2")
	p.divider(&a.kwDiv, "magic3", "shift3")
	if p.s.Product.Mapped == mapPhases {
		a.phase.layout(p)
	}
}

// pixels returns where a window begins, without patches.
func (a *walkArgs) pixels(window kernel.Value) kernel.Pixels {
	image, in := a.pixelsDiv.divide(window, a.perImage.Value)
	y, x := a.acrossDiv.divide(in, a.across.Value)
	return kernel.Pixels{Col: x.Mul(a.stepX.Value).Add(a.firstX.Value), Row: y.Mul(a.stepY.Value).Add(a.firstY.Value), Image: image}
}

// patch returns the channel of an element of a window, and the distance of its pixel from the window's first one.
func (a *walkArgs) patch(element kernel.Value) kernel.Patch {
	place, channel := a.channelsDiv.divide(element, a.channels.Value)
	ky, kx := a.kwDiv.divide(place, a.kw.Value)
	return kernel.Patch{Channel: channel, Col: a.fromX.Add(kx.Mul(a.byX.Value)), Row: a.fromY.Add(ky.Mul(a.byY.Value))}
}

// gathered returns the operand that is gathered from the images in u, width elements at a time where the copy engine does not do it. Its
// tile begins at p0 along its own axis; places is the total number of positions there, and end that of depths.
func (a *walkArgs) gathered(g *gemm, kind mapKind, width uint8, m kernel.TensorMap, u kernel.Buffer, p0, places, end kernel.Value) side {
	k := g.k
	s := side{width: int(width), groups: kernel.AlongCols}
	s.at = func(k0, p, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		place, depth := p0.Add(p), k0.Add(d)
		inside := place.Lt(places).And(depth.Lt(end))
		if kind == mapRight {
			place, depth = depth, place
		}
		from, at := a.pixels(place), a.patch(depth)
		x, y := from.Col.Add(at.Col), from.Row.Add(at.Row)
		within := func(v, n kernel.Value) kernel.Value { return v.Bitcast(dtype.Uint32).Lt(n.Bitcast(dtype.Uint32)) }
		inside = inside.And(within(x, a.width.Value)).And(within(y, a.height.Value)).And(at.Channel.Lt(a.present.Value))
		row := from.Image.Mul(a.height.Value).Add(y)
		return u, row.MulWide(a.line.Value).Add(x.MulWide(a.column.Value)).Add(at.Channel.Convert(dtype.Int64)), inside
	}
	line, first := g.tile.depth, kernel.Pixels{}
	if kind == mapRight {
		line = g.tile.cols
	} else {
		first = a.pixels(p0)
	}
	parts := kir.MapParts(g.in, line)
	s.pixels = func(t kernel.Tile, k0 kernel.Value, at func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value)) {
		from, element := first, k0
		if kind == mapRight {
			from, element = a.pixels(k0), p0
		}
		for i := range parts {
			e := element.Add(k.I32(i * (line / parts)))
			patch := a.patch(e)
			if kind == mapRight { // beyond the last column there is nothing
				patch.Channel = e.Lt(a.count.Value).Select(patch.Channel, a.channels.Value)
			}
			from.Patches = append(from.Patches, patch)
		}
		t.LoadPixels(m, from, s.groups, s.width, at)
	}
	return s
}
