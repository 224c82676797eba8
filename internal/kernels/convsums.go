package kernels

import "tenon.dev/dtype"

// Laying says how a product of a convolution takes its images, the arrays besides the weight, if the channels of either may lie last.
type Laying uint8

const (
	// LaidAsTheyAre: a sum may have other bits if an image lies otherwise.
	LaidAsTheyAre Laying = iota
	// LaidAlike: sums have the same bits if both images have their channels last.
	LaidAlike
	// LaidLast: sums have the same bits however the images lie. If the channels of one are not last, the product takes longer: it copies
	// that image, or computes it in slower tiles and without an epilogue.
	LaidLast
	// LaidFirst: as LaidLast, but it takes longer for each image whose channels are last.
	LaidFirst
	// LaidEqual: as LaidLast, but it takes longer only if the images lie in different ways.
	LaidEqual
)

// LayForward returns how ConvForward takes the images x and y, whose channels are not last, on a device. Of the operands only the types,
// the alignment of the addresses, and whether there is a bias matter.
func (c *Conv) LayForward(lim *Limits, x, w, y, bias Operand) Laying {
	return c.laying(lim, convForward, x, w, y, bias)
}

// LayData is LayForward for ConvData.
func (c *Conv) LayData(lim *Limits, x, w, y, _ Operand) Laying {
	return c.laying(lim, convData, x, w, y, Operand{})
}

// LayWeight is LayForward for ConvWeight.
func (c *Conv) LayWeight(lim *Limits, x, w, y, _ Operand) Laying {
	return c.laying(lim, convWeight, x, w, y, Operand{})
}

func (c *Conv) laying(lim *Limits, kind convKind, x, w, y, bias Operand) Laying {
	t := x.DType
	if c.TF32 && t == dtype.Float32 { // how matrix units round it depends on the layout of operands
		return LaidAsTheyAre
	}
	first, ok := c.sums(lim, kind, x, w, y, bias)
	laid := func(lastX, lastY bool) *Conv {
		k := *c
		k.LastX, k.LastY = lastX, lastY
		return &k
	}
	same := func(lastX, lastY bool) bool {
		s, fine := laid(lastX, lastY).sums(lim, kind, x, w, y, bias)
		return fine && s == first
	}
	switch {
	case !ok || !same(true, true):
		return LaidAsTheyAre
	case !same(true, false) || !same(false, true):
		return LaidAlike
	}
	last := laid(true, true)
	fits := func(c *Conv) bool { return c.gathers(kind, t) || c.depthwise(t) }
	switch {
	case c.plain(kind, t) || !fits(c) && (last.plain(kind, t) || fits(last)):
		return LaidEqual
	case fits(c):
		return LaidLast
	}
	return LaidFirst
}

// sumOrder describes the order in which a product adds up, which decides its bits.
type sumOrder struct {
	// runs says that a step holds rows of windows, and unfolded that it holds windows that were laid out, each with more channels.
	depthwise, runs, unfolded bool
	// taps says that a window's taps are next to each other, and not the channels of one of them.
	taps bool
	// grouped says that on an H200 groups of four warps use the matrix units together, with other instructions.
	grouped bool
	vector  vecSpec
	// parts is the number of parts of each step. If there are several, or blocks share the depth, depth is that of a step.
	parts  uint8
	depth  uint8
	blocks uint32
	family Family
}

// sums returns the order of a product. It reports whether one launch computes the product.
func (c *Conv) sums(lim *Limits, kind convKind, x, w, y, bias Operand) (s sumOrder, ok bool) {
	x.Shape, w.Shape, y.Shape = []int{c.Batch, c.In, c.H, c.W}, []int{c.Out, c.In / c.Groups, c.KH, c.KW}, []int{c.Batch, c.Out, c.OH, c.OW}
	bias.Shape, bias.Stride = []int{c.Out}, []int{1}
	is, err := &dryRun{lim: lim}, error(nil)
	switch kind {
	case convForward:
		err = c.issue(is, kind, y, w, x, bias, nil)
	case convData:
		err = c.issue(is, kind, x, w, y, Operand{}, nil)
	default:
		err = c.issue(is, kind, w, y, x, Operand{}, nil)
	}
	if err != nil || len(is.products) != 1 {
		return s, false
	}
	l, t := &is.products[0], x.DType
	r := &l.Spec.Product
	if s.depthwise = l.Spec.Family == FamilyDepthwise; !s.depthwise && !c.plain(kind, t) && c.colours(lim, kind, t) {
		s.runs = c.runs(lim, kind, y) != nil
		s.unfolded = !s.runs && c.unfolds(kind, t)
	}
	s.taps = l.Spec.Family == FamilyConv && l.Spec.Conv.Last == lastNone && c.KH*c.KW > 1
	s.grouped = t.Size() == 2 && r.Tile.Rows >= 64
	s.vector, s.parts, s.blocks = r.Vector, r.Tile.Parts, 1
	if r.Split() {
		s.blocks = l.Grid[2]
	}
	if s.parts > 1 || s.blocks > 1 {
		s.depth = r.Tile.Depth
	}
	if s.blocks > 1 {
		s.family = l.Spec.Family
	}
	return s, true
}

// dryRun is an Issuer that launches nothing. It notes the products.
type dryRun struct {
	l        Launch
	lim      *Limits
	next     uint64
	products []Launch
}

// NewLaunch returns the launch.
func (p *dryRun) NewLaunch() *Launch {
	p.l.Reset()
	return &p.l
}

// Issue notes a product.
func (p *dryRun) Issue(l *Launch) error {
	switch l.Spec.Family {
	case FamilyMatvec, FamilyMatmul, FamilyConv, FamilyDepthwise:
		n := *l
		n.Args = nil
		p.products = append(p.products, n)
	}
	return nil
}

// Workspace returns an address of its own, where nothing is.
func (p *dryRun) Workspace(int) (uint64, error) {
	p.next += 1 << 40
	return p.next, nil
}

// Limits returns the device's.
func (p *dryRun) Limits() *Limits { return p.lim }

// Index32 returns the usual limit.
func (p *dryRun) Index32() int { return 1<<31 - 1 }

// Memset does nothing.
func (p *dryRun) Memset(uint64, byte, int) error { return nil }
