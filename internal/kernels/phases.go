package kernels

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// The gradient of an input with strides falls into phases: the pixels whose column and row leave the same remainders after division by the
// strides. They receive from the same taps of the kernel and from none of the others, so a phase is the gradient of an input with unit
// strides and part of the taps. One launch computes all phases, each in blocks of its own. They take the same walk; what differs is the
// pixels of its windows that their taps meet. Phases without taps are zeros. A sum has the order that it has over all taps, without the
// zeros of those that the pixel does not meet.

// maxPhases is the maximum number of phases: their arguments are in every launch.
const maxPhases = 16

// phases are the parts of a gradient of an input with strides.
type phases struct {
	// list begins with the phase of most taps: the last blocks to run are then short. It lies in room.
	list []phase
	room [maxPhases]phase
	// width and height are those of the gradient, whose pixels in one phase are step apart.
	width, height int
	step          [2]int
	// tap is the distance of the numbers of a phase's neighbouring taps in a row of the kernel, and from row to row.
	tap [2]int
	// mean is the mean number of taps as a part of the largest.
	mean float64
}

// phase is one of phases.
type phase struct {
	// at is the column and row of its first pixel, and from how far those that its first tap meets are from the walk's.
	at, from [2]int
	// tap is the number of its first tap, and taps how many of them a row has and how many rows.
	tap  int
	taps [2]int
}

// count returns the number of taps.
func (p *phase) count() int { return p.taps[0] * p.taps[1] }

// phaseAxis is a phase along one axis: the remainder, the first tap, the place of the pixel that it meets, and the number of taps.
type phaseAxis struct{ at, first, place, taps int }

// phaseAxes appends the phases along an axis of size pixels to axes. It also returns the period of their taps, how far apart the pixels are
// that neighbouring taps meet, and the first place that any of them meets.
func phaseAxes(axes []phaseAxis, size, taps, stride, pad, dilation int) (_ []phaseAxis, period, apart, least int) {
	shared := stride
	for rest := dilation; rest > 0; { // the greatest common divisor
		shared, rest = rest, shared%rest
	}
	period, apart = stride/shared, dilation/shared
	met := false
	for at := range min(stride, size) {
		x := phaseAxis{at: at}
		for first := range min(period, taps) {
			if far := at + pad - first*dilation; far%stride == 0 {
				x.first, x.place, x.taps = first, far/stride, ceilDiv(taps-first, period)
				if end := x.place - (x.taps-1)*apart; !met || end < least {
					met, least = true, end
				}
			}
		}
		axes = append(axes, x)
	}
	return axes, period, apart, least
}

// phased returns the walk of a gradient of the input with strides, or nil if it has too many phases or pixels.
func (c *Conv) phased() *walk {
	down, across := ceilDiv(c.H, c.StrideH), ceilDiv(c.W, c.StrideW)
	if count := min(c.StrideW, c.W) * min(c.StrideH, c.H); count > maxPhases || c.Batch*down*across*count >= 1<<31 {
		return nil
	}
	w := &walk{images: c.Batch, height: c.OH, width: c.OW, channels: c.Out, down: down, across: across, step: [2]int{1, 1},
		window: [2]int{c.KW, c.KH}, turned: true, kind: mapPhases}
	f := &phases{width: c.W, height: c.H, step: [2]int{c.StrideW, c.StrideH}}
	f.list = f.room[:0]
	var room [2][maxPhases]phaseAxis
	var axes [2][]phaseAxis
	axes[0], f.tap[0], w.apart[0], w.first[0] = phaseAxes(room[0][:0], c.W, c.KW, c.StrideW, c.PadW, c.DilationW)
	axes[1], f.tap[1], w.apart[1], w.first[1] = phaseAxes(room[1][:0], c.H, c.KH, c.StrideH, c.PadH, c.DilationH)
	f.tap[1] *= c.KW
	all := 0
	for _, y := range axes[1] {
		for _, x := range axes[0] {
			p := phase{at: [2]int{x.at, y.at}}
			if x.taps > 0 && y.taps > 0 {
				p.from, p.taps = [2]int{x.place - w.first[0], y.place - w.first[1]}, [2]int{x.taps, y.taps}
				p.tap = y.first*c.KW + x.first
			}
			f.list, all = append(f.list, p), all+p.count()
		}
	}
	slices.SortStableFunc(f.list, func(p, q phase) int { return q.count() - p.count() })
	f.mean = float64(all) / float64(max(1, f.list[0].count())*len(f.list))
	w.phases = f
	return w.dense()
}

// fits reports whether walks can have the phases' distances, and some phase has taps.
func (f *phases) fits() bool {
	for i := range f.list {
		if from := f.list[i].from; max(from[0], from[1]) > kir.MapFarthest {
			return false
		}
	}
	return f.list[0].count() > 0
}

// phaseWords is the number of words that describe a phase in a launch.
const phaseWords = 9

// phaseArgs are the arguments of a product whose rows are the pixels of phases.
type phaseArgs struct {
	width, height, stepX, stepY, tapX, tapY intArg
	list                                    listArg[int32]
	// What the block's phase has: its first pixel and first tap, and the depth of its product.
	atX, atY, tap, depth kernel.Value
}

func (a *phaseArgs) set(f *phases, channels int) {
	a.width.host, a.height.host, a.stepX.host, a.stepY.host = f.width, f.height, f.step[0], f.step[1]
	a.tapX.host, a.tapY.host = f.tap[0], f.tap[1]
	words := make([]int32, 0, phaseWords*maxPhases)
	for i := range f.list {
		p := &f.list[i]
		d := newDivider(max(1, p.taps[0]))
		words = append(words, int32(p.at[0]), int32(p.at[1]), int32(p.from[0]), int32(p.from[1]), int32(p.tap),
			int32(p.count()*channels), int32(p.taps[0]), int32(d.magic), int32(d.shift))
	}
	a.list.host = words
}

func (a *phaseArgs) layout(p params) {
	p.i32s("out_width out_height out_step_x out_step_y tap_x tap_y", &a.width, &a.height, &a.stepX, &a.stepY, &a.tapX, &a.tapY)
	list(p, &a.list, "phases", phaseWords*maxPhases)
}

// enter makes phase i (Int32) the one that the other methods speak of.
func (a *walkArgs) enter(i kernel.Value) {
	p := &a.phase
	word := func(n int) kernel.Value { return p.list.Load(i.Mul(i.Like(phaseWords)).Add(i.Like(float64(n)))) }
	p.atX, p.atY, a.fromX.Value, a.fromY.Value, p.tap, p.depth = word(0), word(1), word(2), word(3), word(4), word(5)
	a.kw.Value, a.kwDiv.magic, a.kwDiv.shift = word(6), word(7).Bitcast(dtype.Uint32), word(8).Bitcast(dtype.Uint32)
}

// pixel returns the pixel that is row r of the phase, and whether there is one: phases of fewer pixels than others have rows for as many.
func (a *walkArgs) pixel(r kernel.Value) (pixel, inside kernel.Value) {
	p := &a.phase
	image, in := a.pixelsDiv.divide(r, a.perImage.Value)
	y, x := a.acrossDiv.divide(in, a.across.Value)
	y, x = y.Mul(p.stepY.Value).Add(p.atY), x.Mul(p.stepX.Value).Add(p.atX)
	return image.Mul(p.height.Value).Add(y).Mul(p.width.Value).Add(x), y.Lt(p.height.Value).And(x.Lt(p.width.Value))
}

// tapDepth returns the depth among all taps of a depth of the phase.
func (a *walkArgs) tapDepth(depth kernel.Value) kernel.Value {
	place, channel := a.channelsDiv.divide(depth, a.channels.Value)
	ky, kx := a.kwDiv.divide(place, a.kw.Value)
	tap := a.phase.tap.Add(ky.Mul(a.phase.tapY.Value)).Add(kx.Mul(a.phase.tapX.Value))
	return tap.Mul(a.channels.Value).Add(channel)
}

// ofPhase makes s, the weight, which has all taps, the operand that has those of the phase, up to the depth end.
func (a *walkArgs) ofPhase(s side, end kernel.Value) side {
	at, place := s.at, s.place
	zero := end.Like(0)
	s.at = func(k0, p, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
		depth := k0.Add(d)
		u, index, inside := at(a.tapDepth(depth), p, zero)
		return u, index, inside.And(depth.Lt(end))
	}
	s.place = func(k0 kernel.Value) (along, across kernel.Value) { return place(a.tapDepth(k0)) }
	return s
}

// phases returns the phases whose pixels are the product's rows, or nil.
func (p *product) phases() *phases {
	if p.walk == nil {
		return nil
	}
	return p.walk.phases
}

// matrices returns the number of matrices that the product makes, those of its batch or of its phases.
func (p *product) matrices() int {
	if f := p.phases(); f != nil {
		return len(f.list)
	}
	return p.batch.numel()
}

// deepest returns the depth of the product or of the deepest of its phases, and the phases' mean depth as a part of it.
func (p *product) deepest() (depth int, mean float64) {
	f := p.phases()
	if f == nil {
		return p.k, 1
	}
	return f.list[0].count() * p.walk.channels, f.mean
}

// phasesPay reports whether phases are estimated to take less time than the product of all pixels and taps would if it could be loaded as
// well; gathering it takes longer.
func (c *Conv) phasesPay(w *walk, t dtype.DType) bool {
	estimate := func(p product) float64 {
		p.a.DType, p.b.DType, p.out.DType = t, t, t
		_, _, cost := p.choose(costsWalk, notionalShared, notional, 0)
		return cost
	}
	whole := *w
	whole.phases, whole.kind = nil, mapLeft
	k := c.KH * c.KW * c.Out
	return estimate(product{m: w.images * w.down * w.across, n: c.In, k: k, walk: w}) <=
		estimate(product{m: c.Batch * c.H * c.W, n: c.In, k: k, walk: &whole})
}
