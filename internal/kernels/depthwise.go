package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Depthwise convolutions, in which each channel of the output comes from one channel of the input. As products of matrices they have one
// row or column, so most of a tile would be lost. Here channels are last and a thread has a few adjacent ones. For the output and for the
// input's gradient it computes a strip of adjacent pixels of a row, and keeps each input that it loads for all of them. For the weight's
// gradient it adds up all taps over many strips; the sums of the threads of a block are added in shared memory, and those of the blocks by
// a reduction.

// depthwiseSpec is what these kernels are specialised on.
type depthwiseSpec struct {
	// KH and KW are the size of the kernel, Stride and Dilation those along rows.
	KH, KW, Stride, Dilation uint8
	// Phase, for the input's gradient, is the remainder of the padding along rows by Stride.
	Phase uint8
	// Pixels is the length of a strip, and Lanes the number of threads for the channels of a block.
	Pixels, Lanes uint8
}

// depthwiseBias reports whether there is a bias, as a second input. It is added before the result is rounded, as PyTorch does in depthwise
// convolutions.
func (s *Spec) depthwiseBias() bool { return s.Ins > 1 }

const (
	depthwiseThreads = 256
	// mostTaps is the maximum size of a kernel: a thread has a sum for each tap and channel.
	mostTaps = 49
	// mostReach is the maximum distance between the first and the last column of the input that a strip needs.
	mostReach = 64
)

// depthwiseArgs are the arguments of these kernels. out is the array over which threads go, [batch, oh, ow, channels]: the output or the
// input's gradient or, for the weight's gradient, that of the output; in is the other one, [batch, ih, iw, channels].
type depthwiseArgs struct {
	out, in, w, bias              bufferArg
	channels, oh, ow, ih, iw      intArg
	sh, ph, dh                    intArg
	shift, strips, perRow, worker intArg
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
	p.divider(&a.rowDiv, "magic0", "shift0")
	p.divider(&a.imageDiv, "magic1", "shift1")
}

// depthwise reports whether the kernels for depthwise convolutions take the product.
func (c *Conv) depthwise() bool {
	const most = 1 << 31
	return c.Turn == TurnWhereGood && c.Groups > 1 && c.In == c.Groups && c.Out == c.In && c.KH*c.KW <= mostTaps && c.StrideW <= 4 &&
		(c.KW-1)*c.DilationW+8*c.StrideW <= mostReach && c.Batch*c.In*c.H*c.W < most && c.Batch*c.Out*c.OH*c.OW < most
}

// issueDepthwise computes one of the products of a depthwise convolution.
func (c *Conv) issueDepthwise(is Issuer, kind convKind, res, a, b, bias Operand) (err error) {
	x := func(o Operand) (Operand, error) { return lay(is, o, c.Batch, c.In, c.H*c.W, c.LastX, true, c.In) }
	y := func(o Operand) (Operand, error) { return lay(is, o, c.Batch, c.Out, c.OH*c.OW, c.LastY, true, c.Out) }
	switch kind {
	case convForward:
		if b, err = x(b); err != nil {
			return err
		}
		return c.laid(is, res, c.OH*c.OW, c.LastY, func(res Operand) error { return c.strips(is, kind, res, b, a, bias) })
	case convData:
		if b, err = y(b); err != nil {
			return err
		}
		return c.laid(is, res, c.H*c.W, c.LastX, func(res Operand) error { return c.strips(is, kind, res, b, a, Operand{}) })
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
func (c *Conv) laid(is Issuer, res Operand, inner int, last bool, f func(res Operand) error) (err error) {
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
	return Pointwise(is, Copy, res.DType, nil, []Operand{seenAs(res, c.Batch, c.In, inner, false)},
		[]Operand{seenAs(to, c.Batch, c.In, inner, true)})
}

// depthwiseLaunch prepares the launch of a product over arrays over and in, and returns the number of channels of a block.
func (c *Conv) depthwiseLaunch(l *Launch, a *depthwiseArgs, kind convKind, over, in Operand, vec int) (chunk int) {
	s := &l.Spec
	s.Family, s.Op, s.Compute, s.Outs, s.Ins = FamilyDepthwise, uint16(kind), over.DType, 1, 1
	s.DTypes[0], s.DTypes[1] = over.DType, over.DType
	for vec > 1 && (c.In%vec != 0 || (over.Ptr|in.Ptr)%uint64(vec*over.DType.Size()) != 0) {
		vec /= 2
	}
	s.Vec = uint8(vec)
	chunk = 64
	for chunk > 16 && ceilDiv(c.In, chunk)*chunk*8 > c.In*9 {
		chunk /= 2
	}
	a.channels.host, a.oh.host, a.ow.host, a.ih.host, a.iw.host = c.In, c.OH, c.OW, c.H, c.W
	if kind == convData {
		a.oh.host, a.ow.host, a.ih.host, a.iw.host = c.H, c.W, c.OH, c.OW
	}
	a.sh.host, a.ph.host, a.dh.host = c.StrideH, c.PadH, c.DilationH
	d := &s.Depthwise
	*d = depthwiseSpec{KH: uint8(c.KH), KW: uint8(c.KW), Stride: uint8(c.StrideW), Dilation: uint8(c.DilationW), Pixels: 8,
		Lanes: uint8(chunk / vec)}
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
	l.Grid = [3]uint32{uint32(ceilDiv(a.strips.host, workers)), uint32(ceilDiv(c.In, chunk)), 1}
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
	workers, chunks := depthwiseThreads/int(l.Spec.Depthwise.Lanes), ceilDiv(c.In, chunk)
	parts := max(1, min(depthwiseBlocks/chunks, ceilDiv(a.strips.host, workers*leastStrips)))
	a.worker.host = ceilDiv(a.strips.host, parts*workers)
	if a.w.host, err = is.Workspace(parts * dw.Numel() * acc.Size()); err != nil {
		return err
	}
	a.rowDiv.host, a.imageDiv.host = a.oh.host, a.perRow.host
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(parts), uint32(chunks), 1}, [3]uint32{depthwiseThreads, 1, 1}
	if err := is.Issue(l); err != nil {
		return err
	}
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
	// lane and worker are the thread's numbers; channel is its first channel, and inside says that it exists.
	lane, number, channel, inside kernel.Value
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

// values returns the channels of a thread at a place of u, or zeros unless inside holds. The place must exist in any case.
func (d *depthwiseKernel) values(u kernel.Buffer, place, inside kernel.Value) []kernel.Value {
	vs := u.LoadVec(place, d.vec)
	for i, v := range vs {
		v = v.Convert(d.acc)
		vs[i] = inside.Select(v, v.Like(0))
	}
	return vs
}

// columns calls f with each column that is used of a row of the other array, and with its uses. first is the place of the thread's channels
// in the row's first column, and at the number of the column from which distances count.
func (d *depthwiseKernel) columns(first, at kernel.Value, f func(vs []kernel.Value, uses []use)) {
	k, all := d.k, d.uses()
	last := d.iw.Sub(k.I32(1))
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].column == all[0].column {
			n++
		}
		col := at.Add(k.I32(all[0].column))
		near := col.Max(k.I32(0)).Min(last)
		f(d.values(d.in.Buffer, first.Add(near.Mul(d.channels.Value)), near.Eq(col)), all[:n])
		all = all[n:]
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

// place returns the place of the thread's channels in a row of an array whose images have height rows of width columns.
func (d *depthwiseKernel) place(image, height, row, width kernel.Value) kernel.Value {
	return image.Mul(height).Add(row).Mul(width).Mul(d.channels.Value).Add(d.channel)
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
			k.If(exists, func() {
				ws := make([][]kernel.Value, s.KW)
				for t := range ws {
					at := tap.Mul(k.I32(int(s.KW))).Add(k.I32(t)).Mul(k.I32(d.chunk())).Add(d.lane)
					ws[t] = weights.LoadVec(at, d.vec)
				}
				d.columns(d.place(image, d.ih.Value, other, d.iw.Value), d.start(column), func(xs []kernel.Value, uses []use) {
					for _, u := range uses {
						for v, x := range xs {
							sum := sums[u.pixel][v]
							sum.Set(x.FMA(ws[u.tap][v], sum.Get()))
						}
					}
				})
			})
		})
		first := d.place(image, d.oh.Value, row, d.ow.Value)
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

// loadWeights returns the weights of the block's channels, by tap and channel.
func (d *depthwiseKernel) loadWeights() kernel.Array {
	k, taps, chunk := d.k, int(d.s.Depthwise.KH)*int(d.s.Depthwise.KW), d.chunk()
	weights := k.Shared("weights", d.acc, taps*chunk)
	first := k.BlockIdx(kernel.Y).Mul(k.I32(chunk))
	k.For(k.ThreadIdx(kernel.X), k.I32(taps*chunk), k.I32(depthwiseThreads), func(i kernel.Value) {
		channel := i.Div(k.I32(taps))
		tap := i.Sub(channel.Mul(k.I32(taps)))
		at := first.Add(channel).Min(d.channels.Sub(k.I32(1))).Mul(k.I32(taps)).Add(tap)
		weights.Store(tap.Mul(k.I32(chunk)).Add(channel), d.w.Load(at).Convert(d.acc))
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
	// A thread adds up the sums of one tap of a row of taps.
	shared := k.Shared("sums", d.acc, workers*int(s.KW)*d.chunk())
	taps := int(s.KH) * int(s.KW)
	for row := range int(s.KH) {
		for tap := range int(s.KW) {
			vs := make([]kernel.Value, d.vec)
			for v := range vs {
				vs[v] = sums[row*int(s.KW)+tap][v].Get()
			}
			shared.StoreVec(d.number.Mul(k.I32(int(s.KW))).Add(k.I32(tap)).Mul(k.I32(d.chunk())).Add(d.lane), vs...)
		}
		k.Barrier()
		k.For(d.number, k.I32(int(s.KW)), k.I32(workers), func(tap kernel.Value) {
			k.If(d.inside, func() {
				all := make([]kernel.Value, d.vec)
				for w := range workers {
					at := k.I32(w * int(s.KW)).Add(tap).Mul(k.I32(d.chunk())).Add(d.lane)
					for v, x := range shared.LoadVec(at, d.vec) {
						if w > 0 {
							x = all[v].Add(x)
						}
						all[v] = x
					}
				}
				part := k.BlockIdx(kernel.X).MulWide(d.channels.Mul(k.I32(taps)))
				for v, x := range all {
					at := d.channel.Add(k.I32(v)).Mul(k.I32(taps)).Add(k.I32(row * int(s.KW))).Add(tap)
					d.w.Store(part.Add(at.Convert(dtype.Int64)), x)
				}
			})
		})
		if row+1 < int(s.KH) {
			k.Barrier()
		}
	}
}

// addStrip adds the products of a strip's gradients and the inputs of each tap to sums.
func (d *depthwiseKernel) addStrip(strip kernel.Value, sums [][]kernel.Var) {
	k, s := d.k, &d.s.Depthwise
	columns, row := d.rowDiv.divide(strip, d.oh.Value)
	image, place := d.imageDiv.divide(columns, d.perRow.Value)
	column := place.Mul(k.I32(int(s.Pixels)))
	first := d.place(image, d.oh.Value, row, d.ow.Value)
	gs := make([][]kernel.Value, s.Pixels)
	for p := range gs {
		at := column.Add(k.I32(p))
		near := at.Min(d.ow.Sub(k.I32(1)))
		gs[p] = d.values(d.out.Buffer, first.Add(near.Mul(d.channels.Value)), near.Eq(at))
	}
	for tap := range int(s.KH) {
		other, exists := d.row(row, k.I32(tap))
		k.If(exists, func() {
			d.columns(d.place(image, d.ih.Value, other, d.iw.Value), d.start(column), func(xs []kernel.Value, uses []use) {
				for _, u := range uses {
					for v, x := range xs {
						sum := sums[tap*int(s.KW)+u.tap][v]
						sum.Set(x.FMA(gs[u.pixel][v], sum.Get()))
					}
				}
			})
		})
	}
}
