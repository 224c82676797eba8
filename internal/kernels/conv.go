package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Conv is a two-dimensional convolution over contiguous arrays: x [Batch, In, H, W], w [Out, In/Groups, KH, KW] and y [Batch, Out, OH, OW].
type Conv struct {
	Batch, In, H, W              int
	Out, KH, KW, OH, OW          int
	StrideH, StrideW, PadH, PadW int
	DilationH, DilationW, Groups int
	// LastX, LastW and LastY say that the array, or its gradient, has the channels last: [Batch, H, W, In], [Out, KH, KW, In/Groups] and
	// [Batch, OH, OW, Out].
	LastX, LastW, LastY bool
	TF32                bool
	// Turn says whether operands are copied to make channels adjacent; the zero value decides by size.
	Turn ConvTurn
	// Tile, for tests, is MatmulOpt.Tile of a product whose operand the copy engine gathers, if the tile suits it.
	Tile int
}

// ConvTurn says when a convolution copies its operands.
type ConvTurn int8

const (
	// TurnWhereGood copies if the product is large enough.
	TurnWhereGood ConvTurn = iota
	// TurnWherePossible copies whenever the numbers of channels allow it; it is for tests.
	TurnWherePossible
	// TurnNever never copies; it is for tests.
	TurnNever
)

// convKind says which of the three products of a convolution a kernel computes: the output from input and weight, the input's gradient, or
// the weight's gradient. Each is a product of matrices that are gathered as they are loaded.
type convKind uint16

const (
	convForward convKind = iota
	convData
	convWeight
)

// convSpec is what convolutions are specialised on in addition to productSpec.
type convSpec struct {
	// BiasApart: the sum is rounded to the result's type before the bias is added, as PyTorch does except in depthwise convolutions.
	BiasApart bool
	// Last says which arrays have their channels last.
	Last convLast
	// Unit, for the input's gradient: both strides are 1, so that every position inside the output is one that the input's element
	// contributed to.
	Unit bool
}

// convLast says which arrays of a convolution's product have their channels last.
type convLast uint8

const (
	// lastNone: adjacent elements of the gathered operand are pixels or taps, and are loaded one by one.
	lastNone convLast = iota
	// lastOperands: a thread loads several channels at a time. The gradient of a weight then also has its channels last.
	lastOperands
	// lastAll: the result, which is not a weight's gradient, also has its channels last. The rows of the product are then pixels and its
	// columns channels; otherwise it is the other way round.
	lastAll
)

// convArgs are the arguments of a convolution's product with m rows, n columns and depth depthAll; the depth of a part is step. Sizes are
// those of the input, the output and the kernel in one group of channels.
type convArgs struct {
	out, a, b, bias         bufferArg
	m, n, depthAll, step    intArg
	ins, h, w, outs, kh, kw intArg
	oh, ow                  intArg
	sh, sw, ph, pw, dh, dw  intArg
	groups                  intArg
	// innerDiv divides by the number of taps or, if channels are last, of channels. pixDiv and rowDiv divide by the number of pixels and
	// the width of the images whose elements are columns of the product or, for the weight's gradient, its depth.
	innerDiv, kwDiv, pixDiv, rowDiv, shDiv, swDiv dividerArg
	epilogue                                      epilogueArgs
}

func (a *convArgs) layout(p params) {
	s := p.s
	res, bias := s.DTypes[0], s.DTypes[1]
	if s.Product.Split() {
		res = accumulator(s.Compute)
	}
	if bias == dtype.Invalid {
		bias = s.Compute
	}
	p.buffer(&a.out, "out", res)
	p.bufferRO(&a.a, "a", s.Compute)
	p.bufferRO(&a.b, "b", s.Compute)
	p.bufferRO(&a.bias, "bias", bias)
	p.i32s("m n k step", &a.m, &a.n, &a.depthAll, &a.step)
	p.i32s("in h w outs kh kw oh ow", &a.ins, &a.h, &a.w, &a.outs, &a.kh, &a.kw, &a.oh, &a.ow)
	p.i32s("sh sw ph pw dh dw groups", &a.sh, &a.sw, &a.ph, &a.pw, &a.dh, &a.dw, &a.groups)
	p.divider(&a.innerDiv, "magic0", "shift0")
	p.divider(&a.kwDiv, "magic1", "shift1")
	p.divider(&a.pixDiv, "magic2", "shift2")
	p.divider(&a.rowDiv, "magic3", "shift3")
	p.divider(&a.shDiv, "magic4", "shift4")
	p.divider(&a.swDiv, "magic5", "shift5")
	a.epilogue.layout(p)
}

// convTurnFrom is the number of multiplications from which on operands are copied, an estimate: the product then takes about as long as ten
// launches. Results of at most fewPixels pixels leave most of a GPU idle unless their depth is split, which needs copies; for them the
// limit is fewTurnFrom. On an H200, 2^27 multiplications took 185 µs with the original operands, and two copies take 6 µs.
const convTurnFrom, fewTurnFrom, fewPixels = 1 << 29, 1 << 24, 4096

// ConvForward sets y to x convolved with w, plus bias [Out] if it is present.
func ConvForward(is Issuer, c *Conv, y, x, w, bias Operand) error {
	return c.issue(is, convForward, y, w, x, bias, nil)
}

// ConvForwardWith runs e on x convolved with w, whose type and shape are those of y. It is stored only if it is among the outputs of e. If
// there is a bias, e begins with its [BiasStep].
func ConvForwardWith(is Issuer, c *Conv, y, x, w Operand, e *Epilogue) error {
	if !c.FitsEpilogue(x.DType) {
		return fmt.Errorf("an epilogue needs a convolution without groups whose one product makes the result with its channels last")
	}
	if err := e.check(c.Batch*c.OH*c.OW, c.Out); err != nil {
		return err
	}
	return c.issue(is, convForward, y, w, x, Operand{}, e)
}

// FitsEpilogue reports whether the convolution of arrays of type t can have an epilogue: one product makes the result as it lies in memory,
// with its channels last.
func (c *Conv) FitsEpilogue(t dtype.DType) bool {
	return c.Groups == 1 && c.Out > 1 && c.LastY && c.Batch*c.OH*c.OW > 0 && (c.plain(convForward, t) || c.gathers(convForward, t))
}

// ConvData sets dx, the gradient of the input, from w and the gradient dy of the output.
func ConvData(is Issuer, c *Conv, dx, w, dy Operand) error {
	return c.issue(is, convData, dx, w, dy, Operand{}, nil)
}

// ConvWeight sets dw, the gradient of the weight, from the gradient dy of the output and x.
func ConvWeight(is Issuer, c *Conv, dw, dy, x Operand) error {
	return c.issue(is, convWeight, dw, dy, x, Operand{}, nil)
}

// sizes returns the rows, columns and depth of a kind's product within one group.
func (c *Conv) sizes(kind convKind) (m, n, k int) {
	in, out, taps := c.In/c.Groups, c.Out/c.Groups, c.KH*c.KW
	switch kind {
	case convForward:
		return out, c.Batch * c.OH * c.OW, in * taps
	case convData:
		return in, c.Batch * c.H * c.W, out * taps
	}
	return out, in * taps, c.Batch * c.OH * c.OW
}

// channels returns the number of channels per group of the gathered operand.
func (c *Conv) channels(kind convKind) int {
	if kind == convData {
		return c.Out / c.Groups
	}
	return c.In / c.Groups
}

// gathers reports whether the product takes operands with adjacent channels, which are copied if theirs are not adjacent.
func (c *Conv) gathers(kind convKind, t dtype.DType) bool {
	width, channels := 16/t.Size(), c.channels(kind)
	if kind == convWeight && c.Out/c.Groups%width != 0 {
		return false
	}
	if channels%width != 0 && c.padded(kind, t) == channels {
		return false
	}
	m, n, k := c.sizes(kind)
	switch c.Turn {
	case TurnNever:
		return false
	case TurnWherePossible:
		return true
	}
	if x, y := c.LastX, c.LastY; kind == convForward && x || kind == convData && y || kind == convWeight && x && y {
		return true
	}
	from := convTurnFrom
	if kind != convWeight && n <= fewPixels {
		from = fewTurnFrom
	}
	return m >= 32 && (channels >= 16 || channels%width != 0) && m*n*k*c.Groups >= from
}

// padded returns the number of channels in copies of the gathered operand. Zero channels are added if that makes the number a multiple of
// an access and the matrix units compute the product, as for images with three colours.
func (c *Conv) padded(kind convKind, t dtype.DType) int {
	channels, width := c.channels(kind), 16/t.Size()
	if up := ceilDiv(channels, width) * width; kind != convData && c.Groups == 1 && (t.Size() == 2 || c.TF32 && t == dtype.Float32) &&
		up <= 3*channels {
		return up
	}
	return channels
}

// lay returns o, viewed as [batch, channels, inner], with its channels last if want is set and not last otherwise, padded with zeros to
// padded channels. last says how o is stored. If o does not have this layout, the result is a copy in workspace.
func lay(is Issuer, o Operand, batch, channels, inner int, last, want bool, padded int) (Operand, error) {
	if channels == padded && (last == want || inner == 1 || channels == 1) {
		return o, nil
	}
	n := batch * inner * padded
	ws, err := is.Workspace(n * o.DType.Size())
	if err != nil {
		return o, err
	}
	to := Operand{Ptr: ws, DType: o.DType, Shape: []int{n}, Stride: []int{1}}
	if channels < padded {
		if err := Pointwise(is, Fill, o.DType, []Scalar{{}}, []Operand{to}, nil); err != nil {
			return o, err
		}
	}
	to, from := seenAs(to, batch, padded, inner, want), seenAs(o, batch, channels, inner, last)
	to.Shape = from.Shape
	return to, Pointwise(is, Copy, o.DType, nil, []Operand{to}, []Operand{from})
}

// seenAs returns o, whose channels are last or not, viewed as [batch, channels, inner].
func seenAs(o Operand, batch, channels, inner int, last bool) Operand {
	o.Shape, o.Stride = []int{batch, channels, inner}, []int{channels * inner, inner, 1}
	if last {
		o.Stride[1], o.Stride[2] = 1, channels
	}
	return o
}

// layWeight returns the weight for a gradient of the input with channels last: [Groups, In/Groups, KH, KW, Out/Groups].
func (c *Conv) layWeight(is Issuer, w Operand) (Operand, error) {
	in, out, taps := c.In/c.Groups, c.Out/c.Groups, c.KH*c.KW
	w.Shape, w.Stride = []int{c.Groups, out, in, taps}, []int{out * in * taps, in * taps, taps, 1}
	if c.LastW {
		w.Stride[2], w.Stride[3] = 1, in
	}
	return layOut(is, w, []int{out * in * taps, 1, out * taps, out}, w.Numel())
}

// operands converts the operands of a product to the layout that it takes. If last is set, images are [Batch, H, W, Channels] and weights
// are [Out, KH, KW, In/Groups] or as in layWeight; otherwise channels are not last. Without groups, the input may get more channels:
// padded.
func (c *Conv) operands(is Issuer, kind convKind, a, b Operand, last bool, padded int) (_, _ Operand, err error) {
	in, taps := c.In/c.Groups, c.KH*c.KW
	all := c.In - in + padded
	x := func(o Operand) (Operand, error) {
		return lay(is, o, c.Batch, c.In, c.H*c.W, c.LastX, last, all)
	}
	y := func(o Operand) (Operand, error) {
		return lay(is, o, c.Batch, c.Out, c.OH*c.OW, c.LastY, last, c.Out)
	}
	switch {
	case kind == convWeight:
		if a, err = y(a); err == nil {
			b, err = x(b)
		}
	case kind == convData && last:
		if a, err = c.layWeight(is, a); err == nil {
			b, err = y(b)
		}
	default:
		if a, err = lay(is, a, c.Out, in, taps, c.LastW, last, padded); err != nil {
			return a, b, err
		}
		if kind == convForward {
			b, err = x(b)
		} else {
			b, err = y(b)
		}
	}
	return a, b, err
}

// issue computes one of the products.
func (c *Conv) issue(is Issuer, kind convKind, res, a, b, bias Operand, e *Epilogue) error {
	if res.Numel() == 0 {
		return nil
	}
	if _, _, k := c.sizes(kind); k == 0 && e == nil {
		return c.empty(is, res, bias)
	}
	if c.depthwise(a.DType) {
		return c.issueDepthwise(is, kind, res, a, b, bias)
	}
	large := c.Out*c.In*c.Batch*c.OH*c.OW >= fewTurnFrom // enough for an additional launch
	if c.plain(kind, a.DType) && !(kind == convWeight && large && c.narrow(a.DType)) {
		if bias.Ptr != 0 && c.FitsEpilogue(a.DType) {
			e = withBias(res, bias)
		}
		if bias.Ptr == 0 || e != nil || large {
			err := c.matmul(is, kind, res, a, b, e)
			if err == nil && bias.Ptr != 0 && e == nil {
				err = c.addBias(is, res, bias, c.LastY)
			}
			return err
		}
	}
	if c.colours(is.Limits(), kind, a.DType) {
		if s := c.runs(is.Limits(), kind, a); s != nil {
			return c.gatherRuns(is, s, kind, res, a, b, bias, e)
		}
		if c.unfolds(kind, a.DType) {
			return c.unfold(is, kind, res, a, b, bias, e)
		}
	}
	if kind == convWeight && c.pointwise() && c.Turn == TurnWhereGood && large {
		return c.pointwiseWeight(is, res, a, b)
	}
	last := c.gathers(kind, a.DType)
	wide, padded := *c, c.channels(kind)
	if last && kind != convData {
		padded = c.padded(kind, a.DType)
		wide.In += padded - c.channels(kind)
	}
	if kind == convData {
		padded = c.In / c.Groups
	}
	a, b, err := c.operands(is, kind, a, b, last, padded)
	if err != nil {
		return err
	}
	// The view of the result, and whether its channels are last: as requested (want), and as the product makes it (made).
	batch, channels, inner, want := c.Batch, c.Out, c.OH*c.OW, c.LastY
	switch kind {
	case convData:
		channels, inner, want = c.In, c.H*c.W, c.LastX
	case convWeight:
		batch, channels, inner, want = c.Out, c.In/c.Groups, c.KH*c.KW, c.LastW
	}
	var w *walk
	if last && wide.In == c.In && (a.Ptr|b.Ptr)%16 == 0 {
		w = c.walks(is.Limits(), kind, a.DType)
	}
	made := last && (want || kind == convWeight || w != nil && channels <= walkNarrow)
	product := func(res Operand, e *Epilogue) error {
		if w != nil && made {
			return c.walkProduct(is, w, kind, res, a, b, bias, e)
		}
		return wide.product(is, kind, last, made, res, a, b, bias, e)
	}
	if made == want && (kind != convWeight || padded == channels) || inner == 1 && (kind != convWeight || padded == channels) {
		return product(res, e)
	}
	size := channels
	if kind == convWeight {
		size = padded
	}
	to := Operand{DType: res.DType, Shape: []int{batch * size * inner}, Stride: []int{1}}
	if to.Ptr, err = is.Workspace(batch * size * inner * res.DType.Size()); err != nil {
		return err
	}
	if err := product(to, nil); err != nil {
		return err
	}
	from := seenAs(to, batch, size, inner, made)
	res = seenAs(res, batch, channels, inner, want)
	from.Shape = res.Shape
	return Pointwise(is, Copy, res.DType, nil, []Operand{res}, []Operand{from})
}

// BiasStep adds the bias, value bias, to the result of a convolution of type t, value 0, which was rounded before.
func BiasStep(t dtype.DType, bias int) FusedStep {
	return FusedStep{Op: Add, Compute: t, Ins: []FusedIn{{Value: 0}, {Value: bias}}, Outs: []FusedOut{{DType: t}}}
}

// withBias is an epilogue that stores the rounded result plus the bias in res, or nil if there are too many fused operations.
func withBias(res, bias Operand) *Epilogue {
	t := res.DType
	if op := Fuse([]dtype.DType{t, t}, []FusedStep{BiasStep(t, 1)}, []int{2}); op != nil {
		return &Epilogue{Op: op, Outs: []Operand{res}, Ins: []Operand{bias}}
	}
	return nil
}

// empty sets the result of a product without depth: zeros, or the bias of an output.
func (c *Conv) empty(is Issuer, res, bias Operand) error {
	res.Shape, res.Stride = []int{res.Numel()}, []int{1}
	if err := Pointwise(is, Fill, res.DType, []Scalar{{}}, []Operand{res}, nil); err != nil || bias.Ptr == 0 {
		return err
	}
	return c.addBias(is, res, bias, c.LastY)
}

// addBias adds the bias to an output whose channels are last or not.
func (c *Conv) addBias(is Issuer, res, bias Operand, last bool) error {
	res = seenAs(res, c.Batch, c.Out, c.OH*c.OW, last)
	bias.Shape, bias.Stride = res.Shape, []int{0, 1, 0}
	return Pointwise(is, Add, res.DType, nil, []Operand{res}, []Operand{res, bias})
}

// pointwise reports whether the convolution has one tap, at every pixel.
func (c *Conv) pointwise() bool {
	return c.KH*c.KW*c.Groups == 1 && c.StrideH*c.StrideW == 1 && c.PadH+c.PadW == 0
}

// narrow reports whether matrix units would load the channels of a weight's gradient one by one, as accesses hold more, and they can be
// filled up to at most three times as many.
func (c *Conv) narrow(t dtype.DType) bool {
	wide := func(n int) int { return ceilDiv(n, 8) * 8 }
	return t.Size() == 2 && (wide(c.In) > c.In || wide(c.Out) > c.Out) && wide(c.In) <= 3*c.In && wide(c.Out) <= 3*c.Out
}

// pointwiseWeight computes the weight's gradient of a pointwise convolution as one product over the pixels of all images, with channels
// last. On an H200 the gradient of 3 x 32 weights for 64 images of 128 x 128 pixels took 1.2 ms before channels were filled up.
func (c *Conv) pointwiseWeight(is Issuer, dw, dy, x Operand) (err error) {
	last := *c
	last.LastX, last.LastY = true, true
	if c.narrow(dw.DType) {
		last.In, last.Out = ceilDiv(c.In, 8)*8, ceilDiv(c.Out, 8)*8
	}
	if dy, err = lay(is, dy, c.Batch, c.Out, c.OH*c.OW, c.LastY, true, last.Out); err != nil {
		return err
	}
	if x, err = lay(is, x, c.Batch, c.In, c.H*c.W, c.LastX, true, last.In); err != nil {
		return err
	}
	if last.In == c.In && last.Out == c.Out {
		return last.matmul(is, convWeight, dw, dy, x, nil)
	}
	res := Operand{DType: dw.DType, Shape: []int{last.Out * last.In}, Stride: []int{1}}
	if res.Ptr, err = is.Workspace(res.Numel() * res.DType.Size()); err != nil {
		return err
	}
	if err := last.matmul(is, convWeight, res, dy, x, nil); err != nil {
		return err
	}
	dw.Shape, dw.Stride = []int{c.Out, c.In}, []int{c.In, 1}
	res.Shape, res.Stride = dw.Shape, []int{last.In, 1}
	return Pointwise(is, Copy, dw.DType, nil, []Operand{dw}, []Operand{res})
}

// plain reports whether the convolution is a product of its matrices as they are stored: one tap, at every pixel. Rows of pixels that do
// not suit wide accesses are better gathered. The weight's gradient sums over images, so there must be a single image, or channels must be
// last.
func (c *Conv) plain(kind convKind, t dtype.DType) bool {
	return c.Turn == TurnWhereGood && c.pointwise() && c.LastX == c.LastY &&
		(c.LastX || c.H*c.W*t.Size()%16 == 0 && (kind != convWeight || c.Batch == 1))
}

// matmul computes a plain convolution: for each image the output as weight times input, or one of the gradients. If channels are last, all
// images are one matrix.
func (c *Conv) matmul(is Issuer, kind convKind, res, a, b Operand, e *Epilogue) error {
	batch, pixels := c.Batch, c.H*c.W
	if e != nil { // the same product, as one of matrices
		pixels *= batch
		res.Shape, res.Stride = []int{pixels, c.Out}, []int{c.Out, 1}
		b.Shape, b.Stride = []int{pixels, c.In}, []int{c.In, 1}
		a.Shape, a.Stride = []int{c.In, c.Out}, []int{1, c.In}
		return Matmul(is, res, b, a, MatmulOpt{Alpha: 1, TF32: c.TF32, Epilogue: e})
	}
	if c.LastX {
		batch, pixels = 1, batch*pixels
	}
	weight := func(o Operand) Operand {
		o.Shape, o.Stride = []int{batch, c.Out, c.In}, []int{0, c.In, 1}
		return o
	}
	image := func(o Operand, channels int) Operand { return seenAs(o, batch, channels, pixels, c.LastX) }
	across := func(o Operand) Operand {
		o.Shape, o.Stride = []int{o.Shape[0], o.Shape[2], o.Shape[1]}, []int{o.Stride[0], o.Stride[2], o.Stride[1]}
		return o
	}
	switch kind {
	case convForward:
		res, a, b = image(res, c.Out), weight(a), image(b, c.In)
	case convData:
		res, a, b = image(res, c.In), across(weight(a)), image(b, c.Out)
	case convWeight:
		res, a, b = weight(res), image(a, c.Out), across(image(b, c.In))
	}
	return Matmul(is, res, a, b, MatmulOpt{Alpha: 1, TF32: c.TF32})
}

// product launches the product of a and b. last says that their channels are adjacent, made that the result's are.
func (c *Conv) product(is Issuer, kind convKind, last, made bool, res, a, b, bias Operand, e *Epilogue) error {
	m, n, k := c.sizes(kind)
	pixels := made && kind != convWeight
	if pixels {
		m, n = n, m
	}
	for _, v := range []int{c.Batch * c.In * c.H * c.W, c.Batch * c.Out * c.OH * c.OW, c.Out * c.In * c.KH * c.KW} {
		if v >= 1<<31 {
			return fmt.Errorf("a convolution over %d elements; each array must have fewer than 2^31", v)
		}
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Op, s.Outs, s.Ins = FamilyConv, a.DType, uint16(kind), 1, 1
	s.DTypes[0], s.DTypes[1] = res.DType, bias.DType
	lim := is.Limits()
	tf32 := c.TF32 && a.DType == dtype.Float32
	r := &s.Product
	apart := bias.Ptr != 0 && (c.Groups == 1 || c.Groups < c.In)
	t, splits := c.tile(lim, kind, m, n, k, last && (bias.Ptr == 0 || apart), a.DType, tf32)
	r.Tile, r.TF32 = t.spec(), tf32
	if bias.Ptr != 0 && splits == 1 {
		r.Bias = 1
	}
	r.Left.Width = uint8(c.widthA(kind, &a))
	s.Conv = convSpec{BiasApart: r.Bias > 0 && apart, Unit: kind == convData && c.StrideH == 1 && c.StrideW == 1}
	switch {
	case pixels:
		s.Conv.Last = lastAll
	case last:
		s.Conv.Last = lastOperands
	}
	inner := c.KH * c.KW // the faster-changing of the two parts of a depth or column
	if last {
		r.Left.Width = uint8(16 / a.DType.Size())
		inner = c.channels(kind)
	}
	s.Vec = uint8(c.widthOut(kind, pixels, &res))
	var partial uint64
	if splits > 1 {
		r.Blocks = blocksSplit
		s.Vec = 1
		var err error
		if partial, err = is.Workspace(splits * res.Numel() * accumulator(a.DType).Size()); err != nil {
			return err
		}
	}
	depth := ceilDiv(ceilDiv(k, t.depth), splits) * t.depth
	out := res.Ptr
	if splits > 1 {
		out = partial
	}
	height, width := c.OH, c.OW
	if kind == convData {
		height, width = c.H, c.W
	}
	var args convArgs
	args.out.host, args.a.host, args.b.host, args.bias.host = out, a.Ptr, b.Ptr, bias.Ptr
	args.m.host, args.n.host, args.depthAll.host, args.step.host = m, n, k, depth
	args.ins.host, args.h.host, args.w.host, args.outs.host = c.In/c.Groups, c.H, c.W, c.Out/c.Groups
	args.kh.host, args.kw.host, args.oh.host, args.ow.host = c.KH, c.KW, c.OH, c.OW
	args.sh.host, args.sw.host, args.ph.host, args.pw.host = c.StrideH, c.StrideW, c.PadH, c.PadW
	args.dh.host, args.dw.host, args.groups.host = c.DilationH, c.DilationW, c.Groups
	args.innerDiv.host, args.kwDiv.host, args.pixDiv.host = inner, c.KW, height*width
	args.rowDiv.host, args.shDiv.host, args.swDiv.host = width, c.StrideH, c.StrideW
	if splits == 1 {
		args.epilogue.add(e, s, m, n)
	}
	args.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(m, t.rows) * ceilDiv(n, t.cols)), uint32(c.Groups), uint32(splits)}
	l.Block = [3]uint32{uint32(t.threads), 1, 1}
	if err := is.Issue(l); err != nil || splits == 1 {
		return err
	}
	if e != nil {
		p := &product{m: m, n: n, out: res, a: a, opt: MatmulOpt{Alpha: 1, Epilogue: e}, sizes: [maxBatchDims]int32{1, 1, 1, 1}}
		p.s[0] = [2]int{n, 1}
		return p.finish(is, partial, splits, 1)
	}
	if err := sumPartials(is, res, partial, splits, accumulator(a.DType)); err != nil || bias.Ptr == 0 {
		return err
	}
	return c.addBias(is, res, bias, made)
}

// tile chooses the tile of a product and the number of parts of its depth. few allows parts for kinds other than the weight's gradient:
// their results are large, except for a few images, which would leave most of the device idle.
func (c *Conv) tile(lim *Limits, kind convKind, m, n, k int, few bool, t dtype.DType, tf32 bool) (gemmTile, int) {
	p := product{m: m, n: n, k: k}
	order := tileOrder(t, tf32, m)
	next := order[len(order)-2]
	if kind == convWeight {
		tile := pickTile(lim, t, tf32, m, n, k, c.Groups)
		if tile == tileSmall && c.halfFull(&next, lim, m, n, t, tf32) && k >= splitLong*lim.Multiprocessors/4 {
			tile = next
		}
		return tile, p.splits(lim, tile, c.Groups)
	}
	tile := pickTile(lim, t, tf32, m, n, 0, c.Groups)
	if tile == tileSmall && (t.Size() == 2 || tf32) {
		high := order[len(order)-3]
		if c.halfFull(&high, lim, m, n, t, tf32) && ceilDiv(m, high.rows)*ceilDiv(n, high.cols) >= 4*lim.Multiprocessors {
			return high, 1
		}
	}
	if !few || tile != tileSmall {
		return tile, 1
	}
	if m > next.rows/2 && n > next.cols/2 && next.shared(t.Size()) <= lim.SharedPerBlock {
		tile = next
	}
	return tile, p.splits(lim, tile, c.Groups)
}

// halfFull reports whether matrix units compute the product, and a tile is half outside the result at most in each direction. For results
// with 32 channels, that is faster than the smallest tile if there is enough to do: on an H200 the layers of a U-Net with 32 channels, 64
// images and 128 × 128 pixels took 0.8 ms forward and 3.5 ms for the gradient of a weight.
func (c *Conv) halfFull(g *gemmTile, lim *Limits, m, n int, t dtype.DType, tf32 bool) bool {
	return (t.Size() == 2 || tf32) && 2*m >= g.rows && 2*n >= g.cols && g.shared(t.Size()) <= lim.SharedPerBlock
}

// widthA is the access width of the left operand: the weight, whose taps are adjacent, or the output's gradient, whose pixels are.
func (c *Conv) widthA(kind convKind, a *Operand) int {
	run := c.In / c.Groups * c.KH * c.KW
	switch kind {
	case convData:
		return 1
	case convWeight:
		run = c.OH * c.OW
	}
	return fitWidth(run, a)
}

// widthOut is the width of the result's stores.
func (c *Conv) widthOut(kind convKind, pixels bool, res *Operand) int {
	run := c.OH * c.OW
	switch {
	case kind == convWeight:
		run = c.In / c.Groups * c.KH * c.KW
	case pixels && kind == convData:
		run = c.In / c.Groups
	case pixels:
		run = c.Out / c.Groups
	case kind == convData:
		run = c.H * c.W
	}
	return min(8, fitWidth(run, res))
}

func fitWidth(run int, o *Operand) int {
	size := o.DType.Size()
	w := 16 / size
	for w > 1 && (run%w != 0 || o.Ptr%uint64(w*size) != 0) {
		w /= 2
	}
	return w
}

// partialsArgs are the arguments of a sum of count arrays of n elements.
type partialsArgs struct {
	out, in  bufferArg
	n, count intArg
}

func (a *partialsArgs) layout(p params) {
	p.buffer(&a.out, "out", p.s.DTypes[0])
	p.bufferRO(&a.in, "in", p.s.Compute)
	p.i64(&a.n, "n")
	p.i32(&a.count, "count")
}

// sumPartials sets contiguous res to the sum of count arrays of its size in workspace, added from first to last.
func sumPartials(is Issuer, res Operand, partial uint64, count int, acc dtype.DType) error {
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Outs = FamilySumPartials, acc, 1
	s.DTypes[0] = res.DType
	n := res.Numel()
	var a partialsArgs
	a.out.host, a.in.host, a.n.host, a.count.host = res.Ptr, partial, n, count
	a.layout(packing(l))
	l.Grid = [3]uint32{uint32(ceilDiv(n, 256)), 1, 1}
	l.Block = [3]uint32{256, 1, 1}
	return is.Issue(l)
}

func buildSumPartials(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("sum_partials"), func(k *kernel.Builder) {
		k.FixedThreads(256)
		var a partialsArgs
		a.layout(declaring(k, s))
		n := a.n.Value
		k.ForEach(n, func(i kernel.Value) {
			sum := k.Var(k.Const(s.Compute, 0))
			k.For(k.I32(0), a.count.Value, k.I32(1), func(j kernel.Value) {
				sum.Set(sum.Get().Add(a.in.Load(i.Add(n.Mul(j.Convert(dtype.Int64))))))
			})
			a.out.Store(i, sum.Get().Convert(s.DTypes[0]))
		})
	})
}
