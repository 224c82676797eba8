package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Convolutions with few channels in each group, such as depthwise ones, in which each channel of the output comes from one channel of the
// input. As products of matrices they have a few rows or columns, so most of a tile would be lost. Here channels are last and a thread has
// a few adjacent ones of a group. For the output and for the input's gradient it computes a strip of adjacent pixels of a row, and keeps
// each input that it loads for all of them. For the weight's gradient it adds up all taps of one channel of the input over many strips; the
// sums of the threads of a block are added in shared memory, and those of the blocks by a reduction.

// depthwiseSpec is what these kernels are specialised on.
type depthwiseSpec struct {
	// KH and KW are the size of the kernel, Stride and Dilation those along rows.
	KH, KW, Stride, Dilation uint8
	// Phase, for the input's gradient, is the remainder of the padding along rows by Stride.
	Phase uint8
	// Pixels is the length of a strip, and Lanes the number of threads for the channels of a block.
	Pixels, Lanes uint8
	// Inner is the number of channels of the other array in a group, and At how many of them are loaded at once.
	Inner, At uint8
}

// depthwiseBias reports whether there is a bias, as a second input, that is added before the result is rounded.
func (s *Spec) depthwiseBias() bool { return s.Ins > 1 }

const (
	depthwiseThreads = 256
	// A block has leastChunk to mostChunk channels.
	leastChunk, mostChunk = 16, 64
	// mostTaps is the maximum size of a kernel: a thread has a sum for each tap and channel.
	mostTaps = 49
	// mostReach is the maximum distance between the first and the last column of the input that a strip needs.
	mostReach = 64
	// mostInner is the maximum number of channels in a group, and mostWeights that of bytes of weights in a block.
	mostInner, mostWeights = 32, 40 << 10
	// tapsAtOnce is the maximum number of taps whose sums are added up together.
	tapsAtOnce = 8
)

// depthwiseArgs are the arguments of these kernels. out is the array over which threads go, [batch, oh, ow, channels]: the output or the
// input's gradient or, for the weight's gradient, that of the output; in is the other one, [batch, ih, iw, others]. each is the number of
// channels in a group. wOut, wIn and wTap are the strides of the weight along the channels of out and in a group, and taps.
type depthwiseArgs struct {
	out, in, w, bias              bufferArg
	channels, oh, ow, ih, iw      intArg
	sh, ph, dh                    intArg
	shift, strips, perRow, worker intArg
	others, each, wOut, wIn, wTap intArg
	// Strips are numbered by row and place in it, and for the weight's gradient by image, place and row.
	rowDiv, imageDiv dividerArg
}

func (a *depthwiseArgs) layout(p params) {
	s := p.s
	if convKind(s.Op) == convWeight {
		p.bufferRO(&a.out, "dy", s.Compute)
		p.buffer(&a.w, "sums", accumulator(s.Compute))
	} else {
		p.buffer(&a.out, "out", s.Compute)
		p.bufferRO(&a.w, "w", s.Compute)
	}
	p.bufferRO(&a.in, "in", s.Compute)
	if s.depthwiseBias() {
		p.bufferRO(&a.bias, "bias", s.Compute)
	}
	p.i32s("channels oh ow ih iw sh ph dh", &a.channels, &a.oh, &a.ow, &a.ih, &a.iw, &a.sh, &a.ph, &a.dh)
	p.i32s("shift strips per_row worker", &a.shift, &a.strips, &a.perRow, &a.worker)
	p.i32s("others each w_out w_in w_tap", &a.others, &a.each, &a.wOut, &a.wIn, &a.wTap)
	p.divider(&a.rowDiv, "magic0", "shift0")
	p.divider(&a.imageDiv, "magic1", "shift1")
}

// depthwise reports whether the kernels for few channels in each group take the product.
func (c *Conv) depthwise(t dtype.DType) bool {
	const most = 1 << 31
	inner, taps := max(c.In, c.Out)/c.Groups, c.KH*c.KW
	return c.Turn == TurnWhereGood && c.Groups > 1 && inner <= mostInner && taps <= mostTaps && c.StrideW <= 4 &&
		taps*inner*leastChunk*accumulator(t).Size() <= mostWeights && (c.KW-1)*c.DilationW+8*c.StrideW <= mostReach &&
		c.Batch*c.In*c.H*c.W < most && c.Batch*c.Out*c.OH*c.OW < most
}

// issueDepthwise computes one of the products of a depthwise convolution.
func (c *Conv) issueDepthwise(is Issuer, kind convKind, res, a, b, bias Operand) (err error) {
	if a.Numel() == 0 || b.Numel() == 0 {
		return c.empty(is, res, bias)
	}
	x := func(o Operand) (Operand, error) { return lay(is, o, c.Batch, c.In, c.H*c.W, c.LastX, true, c.In) }
	y := func(o Operand) (Operand, error) { return lay(is, o, c.Batch, c.Out, c.OH*c.OW, c.LastY, true, c.Out) }
	switch kind {
	case convForward:
		if b, err = x(b); err != nil {
			return err
		}
		var after Operand // only in depthwise convolutions is the bias added before the result is rounded
		if c.Groups < c.In {
			bias, after = after, bias
		}
		err = c.laid(is, res, c.Out, c.OH*c.OW, c.LastY, func(res Operand) error { return c.strips(is, kind, res, b, a, bias) })
		if err == nil && after.Ptr != 0 {
			err = c.addBias(is, res, after, c.LastY)
		}
		return err
	case convData:
		if b, err = y(b); err != nil {
			return err
		}
		return c.laid(is, res, c.In, c.H*c.W, c.LastX, func(res Operand) error { return c.strips(is, kind, res, b, a, Operand{}) })
	}
	if a, err = y(a); err != nil {
		return err
	}
	if b, err = x(b); err != nil {
		return err
	}
	return c.depthwiseWeight(is, res, a, b)
}

// laid calls f for res, viewed as [Batch, channels, inner], with its channels last. If res does not lie so, f gets workspace, which is then
// copied.
func (c *Conv) laid(is Issuer, res Operand, channels, inner int, last bool, f func(res Operand) error) (err error) {
	if last || inner == 1 {
		return f(res)
	}
	n := res.Numel()
	to := Operand{DType: res.DType, Shape: []int{n}, Stride: []int{1}}
	if to.Ptr, err = is.Workspace(n * res.DType.Size()); err != nil {
		return err
	}
	if err := f(to); err != nil {
		return err
	}
	return Pointwise(is, Copy, res.DType, nil, []Operand{seenAs(res, c.Batch, channels, inner, false)},
		[]Operand{seenAs(to, c.Batch, channels, inner, true)})
}

// depthwiseLaunch prepares the launch of a product over arrays over and in, and returns the number of channels of a block.
func (c *Conv) depthwiseLaunch(l *Launch, a *depthwiseArgs, kind convKind, over, in Operand, vec int) (chunk int) {
	s := &l.Spec
	s.Family, s.Op, s.Compute, s.Outs, s.Ins = FamilyDepthwise, uint16(kind), over.DType, 1, 1
	s.DTypes[0], s.DTypes[1] = over.DType, over.DType
	channels, others, taps := c.Out, c.In, c.KH*c.KW
	each, inner := c.Out/c.Groups, c.In/c.Groups
	a.oh.host, a.ow.host, a.ih.host, a.iw.host = c.OH, c.OW, c.H, c.W
	a.wOut.host, a.wIn.host, a.wTap.host = inner*taps, taps, 1
	if c.LastW {
		a.wIn.host, a.wTap.host = 1, inner
	}
	if kind == convData {
		channels, others, each, inner = c.In, c.Out, inner, each
		a.oh.host, a.ow.host, a.ih.host, a.iw.host = c.H, c.W, c.OH, c.OW
		a.wOut.host, a.wIn.host = a.wIn.host, a.wOut.host
	}
	a.channels.host, a.others.host, a.each.host = channels, others, each
	grouped := inner > 1 || each > 1
	for vec > 1 && (channels%vec != 0 || grouped && each%vec != 0 || over.Ptr%uint64(vec*over.DType.Size()) != 0) {
		vec /= 2
	}
	at := vec // the channels of a depthwise convolution are those of the other array
	if grouped {
		at = min(4, 16/in.DType.Size())
		for at > 1 && (inner%at != 0 || in.Ptr%uint64(at*in.DType.Size()) != 0) {
			at /= 2
		}
	} else {
		for vec > 1 && in.Ptr%uint64(vec*in.DType.Size()) != 0 {
			vec /= 2
		}
		at = vec
	}
	s.Vec = uint8(vec)
	size := taps * inner * accumulator(over.DType).Size()
	for chunk = mostChunk; chunk > leastChunk && (ceilDiv(channels, chunk)*chunk*8 > channels*9 || kind != convWeight &&
		size*chunk > mostWeights); {
		chunk /= 2
	}
	a.sh.host, a.ph.host, a.dh.host = c.StrideH, c.PadH, c.DilationH
	d := &s.Depthwise
	*d = depthwiseSpec{KH: uint8(c.KH), KW: uint8(c.KW), Stride: uint8(c.StrideW), Dilation: uint8(c.DilationW), Pixels: 8,
		Lanes: uint8(chunk / vec), Inner: uint8(inner), At: uint8(at)}
	if !grouped {
		d.Inner = 0
	}
	a.shift.host = -c.PadW
	if kind == convData { // strips begin at multiples of the stride
		d.Pixels = uint8(8 / c.StrideW * c.StrideW)
		d.Phase = uint8(c.PadW % c.StrideW)
		a.shift.host = c.PadW / c.StrideW
	}
	if a.ow.host%7 == 0 && (kind != convData || c.StrideW == 1) {
		d.Pixels = 7 // the sizes of images are often divisible by it
	}
	a.perRow.host = ceilDiv(a.ow.host, int(d.Pixels))
	a.strips.host = c.Batch * a.oh.host * a.perRow.host
	a.out.host, a.in.host = over.Ptr, in.Ptr
	return chunk
}

// strips computes the output or the input's gradient, res, from in and the weight; all channels are last.
func (c *Conv) strips(is Issuer, kind convKind, res, in, w, bias Operand) error {
	l := is.NewLaunch()
	var a depthwiseArgs
	chunk := c.depthwiseLaunch(l, &a, kind, res, in, min(4, 16/res.DType.Size()))
	d := &l.Spec.Depthwise
	a.w.host = w.Ptr
	if bias.Ptr != 0 {
		l.Spec.Ins, l.Spec.DTypes[2], a.bias.host = 2, bias.DType, bias.Ptr
	}
	a.rowDiv.host, a.imageDiv.host = a.perRow.host, a.oh.host
	a.layout(packing(l))
	workers := depthwiseThreads / int(d.Lanes)
	l.Grid = [3]uint32{uint32(ceilDiv(a.strips.host, workers)), uint32(ceilDiv(a.channels.host, chunk)), 1}
	l.Block = [3]uint32{depthwiseThreads, 1, 1}
	return is.Issue(l)
}

// The weight's gradient has depthwiseBlocks blocks at most, as long as each thread has leastStrips strips.
const depthwiseBlocks, leastStrips = 3 * notional, 4

// depthwiseWeight computes the weight's gradient from the gradient dy of the output and x; both have their channels last.
func (c *Conv) depthwiseWeight(is Issuer, dw, dy, x Operand) (err error) {
	l := is.NewLaunch()
	var a depthwiseArgs
	taps, vec, acc := c.KH*c.KW, 4, accumulator(dw.DType)
	for vec > 1 && vec*taps > 100 || vec*dw.DType.Size() > 16 {
		vec /= 2
	}
	chunk := c.depthwiseLaunch(l, &a, convWeight, dy, x, vec)
	workers, chunks, inner := depthwiseThreads/int(l.Spec.Depthwise.Lanes), ceilDiv(c.Out, chunk), c.In/c.Groups
	parts := max(1, min(depthwiseBlocks/(chunks*inner), ceilDiv(a.strips.host, workers*leastStrips)))
	a.worker.host = ceilDiv(a.strips.host, parts*workers)
	if a.w.host, err = is.Workspace(parts * dw.Numel() * acc.Size()); err != nil {
		return err
	}
	a.rowDiv.host, a.imageDiv.host = a.oh.host, a.perRow.host
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(parts), uint32(chunks), uint32(inner)}, [3]uint32{depthwiseThreads, 1, 1}
	if err := is.Issue(l); err != nil {
		return err
	}
	// The blocks' sums lie as the weight does.
	n := dw.Numel()
	sums := Operand{Ptr: a.w.host, DType: acc, Shape: []int{parts, n}, Stride: []int{n, 1}}
	dw.Shape, dw.Stride = []int{1, n}, []int{n, 1}
	return Reduce(is, Sum, acc, nil, []Operand{dw}, []Operand{sums}, []bool{true, false})
}

var _ = register(FamilyDepthwise, buildDepthwise)

// depthwiseKernel builds one of the kernels.
type depthwiseKernel struct {
	depthwiseArgs
	k    *kernel.Builder
	s    *Spec
	kind convKind
	acc  dtype.DType
	vec  int
	// lane and number are the thread's numbers; channel is its first channel, and inside says that it exists. other is the first channel of
	// the other array that it needs.
	lane, number, channel, other, inside kernel.Value
}

func buildDepthwise(s *Spec) *kernel.Kernel {
	kind := convKind(s.Op)
	return kernel.Build(s.name([]string{"depthwise_fwd", "depthwise_data", "depthwise_weight"}[kind]), func(k *kernel.Builder) {
		k.FixedThreads(depthwiseThreads)
		d := &depthwiseKernel{k: k, s: s, kind: kind, acc: accumulator(s.Compute), vec: int(s.Vec)}
		d.layout(declaring(k, s))
		lanes := k.I32(int(s.Depthwise.Lanes))
		d.number = k.ThreadIdx(kernel.X).Div(lanes)
		d.lane = k.ThreadIdx(kernel.X).Sub(d.number.Mul(lanes)).Mul(k.I32(d.vec))
		d.channel = k.BlockIdx(kernel.Y).Mul(k.I32(d.chunk())).Add(d.lane)
		d.inside = d.channel.Lt(d.channels.Value)
		d.other = d.channel
		if inner := int(s.Depthwise.Inner); inner > 0 {
			d.other = d.channel.Div(d.each.Value).Mul(k.I32(inner))
		}
		if kind == convWeight {
			d.weight()
		} else {
			d.pixels()
		}
	})
}

func (d *depthwiseKernel) chunk() int { return int(d.s.Depthwise.Lanes) * d.vec }

// use is what a column of the other array, at a distance from the strip's first one, is needed for: a pixel of the strip and a tap.
type use struct{ column, pixel, tap int }

// uses returns the uses of columns, in order of columns and taps.
func (d *depthwiseKernel) uses() (all []use) {
	s := &d.s.Depthwise
	stride, dilation := int(s.Stride), int(s.Dilation)
	for pixel := range int(s.Pixels) {
		for tap := range int(s.KW) {
			at := pixel*stride + tap*dilation
			if d.kind == convData {
				at = pixel + int(s.Phase) - tap*dilation
				if at%stride != 0 {
					continue
				}
				at /= stride
			}
			all = append(all, use{at, pixel, tap})
		}
	}
	slices.SortStableFunc(all, func(a, b use) int { return a.column - b.column })
	return all
}

// inner returns the number of channels of the other array that a channel needs.
func (d *depthwiseKernel) inner() int { return max(1, int(d.s.Depthwise.Inner)) }

// values returns n channels at a place of u, or zeros unless inside holds. The place must exist in any case.
func (d *depthwiseKernel) values(u kernel.Buffer, place kernel.Value, n int, inside kernel.Value) []kernel.Value {
	vs := u.LoadVec(place, n)
	for i, v := range vs {
		v = v.Convert(d.acc)
		vs[i] = inside.Select(v, v.Like(0))
	}
	return vs
}

// columns calls f with n channels of each column that is used of a row of the other array, and with its uses. first is the place of the
// channels in the row's first column, and at the number of the column from which distances count.
func (d *depthwiseKernel) columns(all []use, first, at kernel.Value, n int, f func(vs []kernel.Value, uses []use)) {
	k := d.k
	last := d.iw.Sub(k.I32(1))
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].column == all[0].column {
			same++
		}
		col := at.Add(k.I32(all[0].column))
		near := col.Max(k.I32(0)).Min(last)
		f(d.values(d.in.Buffer, first.Add(near.Mul(d.others.Value)), n, near.Eq(col)), all[:same])
		all = all[same:]
	}
}

// row returns the row of the other array that tap (Int32) of a row needs, and whether it exists.
func (d *depthwiseKernel) row(row, tap kernel.Value) (other, exists kernel.Value) {
	k := d.k
	if d.kind != convData {
		other = row.Mul(d.sh.Value).Sub(d.ph.Value).Add(tap.Mul(d.dh.Value))
		return other, other.Ge(k.I32(0)).And(other.Lt(d.ih.Value))
	}
	at := row.Add(d.ph.Value).Sub(tap.Mul(d.dh.Value))
	other = at.Div(d.sh.Value)
	return other, at.Ge(k.I32(0)).And(other.Mul(d.sh.Value).Eq(at)).And(other.Lt(d.ih.Value))
}

// start returns the column of the other array from which distances count, for a strip that begins at column.
func (d *depthwiseKernel) start(column kernel.Value) kernel.Value {
	stride := d.k.I32(int(d.s.Depthwise.Stride))
	if d.kind == convData {
		return column.Div(stride).Add(d.shift.Value)
	}
	return column.Mul(stride).Add(d.shift.Value)
}

// place returns the place of the thread's channels in a row of the array over which threads go, and otherPlace that in the other one.
func (d *depthwiseKernel) place(image, row kernel.Value) kernel.Value {
	return image.Mul(d.oh.Value).Add(row).Mul(d.ow.Value).Mul(d.channels.Value).Add(d.channel)
}

func (d *depthwiseKernel) otherPlace(image, row kernel.Value) kernel.Value {
	return image.Mul(d.ih.Value).Add(row).Mul(d.iw.Value).Mul(d.others.Value).Add(d.other)
}

// pixels computes a strip of the output or of the input's gradient.
func (d *depthwiseKernel) pixels() {
	k, s := d.k, &d.s.Depthwise
	weights := d.loadWeights()
	k.Barrier()
	strip := k.BlockIdx(kernel.X).Mul(k.I32(depthwiseThreads / int(s.Lanes))).Add(d.number)
	k.If(strip.Lt(d.strips.Value).And(d.inside), func() {
		rows, place := d.rowDiv.divide(strip, d.perRow.Value)
		image, row := d.imageDiv.divide(rows, d.oh.Value)
		column := place.Mul(k.I32(int(s.Pixels)))
		sums := make([][]kernel.Var, s.Pixels)
		for v := range d.vec {
			first := k.Const(d.acc, 0)
			if d.s.depthwiseBias() {
				first = d.bias.Load(d.channel.Add(k.I32(v))).Convert(d.acc)
			}
			for p := range sums {
				sums[p] = append(sums[p], k.Var(first))
			}
		}
		k.For(k.I32(0), k.I32(int(s.KH)), k.I32(1), func(tap kernel.Value) {
			other, exists := d.row(row, tap)
			k.If(exists, func() { d.addRow(weights, tap, d.otherPlace(image, other), d.start(column), sums) })
		})
		first := d.place(image, row)
		for p, sum := range sums {
			at := column.Add(k.I32(p))
			k.If(at.Lt(d.ow.Value), func() {
				out := make([]kernel.Value, d.vec)
				for v := range out {
					out[v] = sum[v].Get().Convert(d.s.Compute)
				}
				d.out.StoreVec(first.Add(at.Mul(d.channels.Value)), out...)
			})
		}
	})
}

// addRow adds the products of a row of taps, and of the row of the other array that begins at first, to the sums of a strip.
func (d *depthwiseKernel) addRow(weights kernel.Array, tap, first, start kernel.Value, sums [][]kernel.Var) {
	k, s := d.k, &d.s.Depthwise
	weight := func(t int, inner kernel.Value) []kernel.Value {
		at := tap.Mul(k.I32(int(s.KW))).Add(k.I32(t)).Mul(k.I32(d.inner())).Add(inner)
		return weights.LoadVec(at.Mul(k.I32(d.chunk())).Add(d.lane), d.vec)
	}
	if s.Inner == 0 {
		ws := make([][]kernel.Value, s.KW)
		for t := range ws {
			ws[t] = weight(t, k.I32(0))
		}
		d.columns(d.uses(), first, start, d.vec, func(xs []kernel.Value, uses []use) {
			for _, u := range uses {
				for v, x := range xs {
					sum := sums[u.pixel][v]
					sum.Set(x.FMA(ws[u.tap][v], sum.Get()))
				}
			}
		})
		return
	}
	k.For(k.I32(0), k.I32(d.inner()), k.I32(int(s.At)), func(inner kernel.Value) {
		ws := make([][][]kernel.Value, s.KW)
		for t := range ws {
			for i := range int(s.At) {
				ws[t] = append(ws[t], weight(t, inner.Add(k.I32(i))))
			}
		}
		d.columns(d.uses(), first.Add(inner), start, int(s.At), func(xs []kernel.Value, uses []use) {
			for _, u := range uses {
				for i, x := range xs {
					for v, sum := range sums[u.pixel] {
						sum.Set(x.FMA(ws[u.tap][i][v], sum.Get()))
					}
				}
			}
		})
	})
}

// loadWeights returns the weights of the block's channels, by tap, channel of the other array in its group, and channel.
func (d *depthwiseKernel) loadWeights() kernel.Array {
	k, taps, chunk, inner := d.k, int(d.s.Depthwise.KH)*int(d.s.Depthwise.KW), d.chunk(), d.inner()
	n := taps * inner
	weights := k.Shared("weights", d.acc, n*chunk)
	first := k.BlockIdx(kernel.Y).Mul(k.I32(chunk))
	k.For(k.ThreadIdx(kernel.X), k.I32(n*chunk), k.I32(depthwiseThreads), func(i kernel.Value) {
		in := i.Div(k.I32(n))
		rest := i.Sub(in.Mul(k.I32(n)))
		other := rest.Div(k.I32(taps))
		tap := rest.Sub(other.Mul(k.I32(taps)))
		channel := first.Add(in).Min(d.channels.Sub(k.I32(1)))
		// The weight is [channels of the output, channels of the input in a group, taps].
		var at kernel.Value
		if d.kind == convData {
			group := channel.Div(d.each.Value)
			at = group.Mul(k.I32(inner)).Add(other).Mul(d.wIn.Value).Add(channel.Sub(group.Mul(d.each.Value)).Mul(d.wOut.Value))
		} else {
			at = channel.Mul(d.wOut.Value).Add(other.Mul(d.wIn.Value))
		}
		weights.Store(tap.Mul(k.I32(inner)).Add(other).Mul(k.I32(chunk)).Add(in), d.w.Load(at.Add(tap.Mul(d.wTap.Value))).Convert(d.acc))
	})
	return weights
}

// weight adds up the products of all taps over the thread's strips, and then over the block's threads.
func (d *depthwiseKernel) weight() {
	k, s := d.k, &d.s.Depthwise
	sums := make([][]kernel.Var, int(s.KH)*int(s.KW))
	for t := range sums {
		for range d.vec {
			sums[t] = append(sums[t], k.Var(k.Const(d.acc, 0)))
		}
	}
	workers := depthwiseThreads / int(s.Lanes)
	begin := k.BlockIdx(kernel.X).Mul(k.I32(workers)).Add(d.number).Mul(d.worker.Value).Min(d.strips.Value)
	end := begin.Add(d.worker.Value).Min(d.strips.Value)
	k.If(d.inside, func() {
		k.For(begin, end, k.I32(1), func(strip kernel.Value) { d.addStrip(strip, sums) })
	})
	// A thread adds up the sums of some of the taps.
	all := min(tapsAtOnce, len(sums))
	shared := k.Shared("sums", d.acc, workers*all*d.chunk())
	at := func(worker, tap kernel.Value) kernel.Value {
		return worker.Mul(k.I32(all)).Add(tap).Mul(k.I32(d.chunk())).Add(d.lane)
	}
	for first := 0; first < len(sums); first += all {
		n := min(all, len(sums)-first)
		if first > 0 {
			k.Barrier()
		}
		for tap := range n {
			vs := make([]kernel.Value, d.vec)
			for v := range vs {
				vs[v] = sums[first+tap][v].Get()
			}
			shared.StoreVec(at(d.number, k.I32(tap)), vs...)
		}
		k.Barrier()
		k.For(d.number, k.I32(n), k.I32(workers), func(tap kernel.Value) {
			k.If(d.inside, func() {
				total := shared.LoadVec(at(k.I32(0), tap), d.vec)
				for w := 1; w < workers; w++ {
					for v, x := range shared.LoadVec(at(k.I32(w), tap), d.vec) {
						total[v] = total[v].Add(x)
					}
				}
				part := k.BlockIdx(kernel.X).MulWide(d.channels.Mul(d.wOut.Value))
				in := k.BlockIdx(kernel.Z).Mul(d.wIn.Value).Add(k.I32(first).Add(tap).Mul(d.wTap.Value))
				for v, x := range total {
					d.w.Store(part.Add(d.channel.Add(k.I32(v)).Mul(d.wOut.Value).Add(in).Convert(dtype.Int64)), x)
				}
			})
		})
	}
}

// addStrip adds the products of a strip's gradients and the inputs of each tap to sums. Pixels beyond the end of a row must not be
// multiplied even with zeros, since an input may be infinite: then the strip's pixels come one by one.
func (d *depthwiseKernel) addStrip(strip kernel.Value, sums [][]kernel.Var) {
	k, s := d.k, &d.s.Depthwise
	columns, row := d.rowDiv.divide(strip, d.oh.Value)
	image, place := d.imageDiv.divide(columns, d.perRow.Value)
	column := place.Mul(k.I32(int(s.Pixels)))
	first := d.place(image, row)
	gradient := func(column kernel.Value) []kernel.Value {
		vs := d.out.LoadVec(first.Add(column.Mul(d.channels.Value)), d.vec)
		for i, v := range vs {
			vs[i] = v.Convert(d.acc)
		}
		return vs
	}
	k.IfElse(column.Add(k.I32(int(s.Pixels))).Le(d.ow.Value), func() {
		gs := make([][]kernel.Value, s.Pixels)
		for p := range gs {
			gs[p] = gradient(column.Add(k.I32(p)))
		}
		d.addTaps(image, row, column, d.uses(), gs, sums)
	}, func() {
		var uses []use
		for _, u := range d.uses() {
			if u.pixel == 0 {
				uses = append(uses, u)
			}
		}
		k.For(column, d.ow.Value, k.I32(1), func(column kernel.Value) {
			d.addTaps(image, row, column, uses, [][]kernel.Value{gradient(column)}, sums)
		})
	})
}

// addTaps adds the products of gradients, from column on, and the inputs of each tap to sums.
func (d *depthwiseKernel) addTaps(image, row, column kernel.Value, uses []use, gs [][]kernel.Value, sums [][]kernel.Var) {
	k, s := d.k, &d.s.Depthwise
	for tap := range int(s.KH) {
		other, exists := d.row(row, k.I32(tap))
		k.If(exists, func() {
			place, n := d.otherPlace(image, other), d.vec
			if s.Inner > 0 { // one channel for all of the thread's
				place, n = place.Add(k.BlockIdx(kernel.Z)), 1
			}
			d.columns(uses, place, d.start(column), n, func(xs []kernel.Value, uses []use) {
				for _, u := range uses {
					for v := range d.vec {
						sum := sums[tap*int(s.KW)+u.tap][v]
						sum.Set(xs[min(v, n-1)].FMA(gs[u.pixel][v], sum.Get()))
					}
				}
			})
		})
	}
}
