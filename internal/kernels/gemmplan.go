package kernels

import (
	"math"
	"slices"

	"tenon.dev/dtype"
)

// gemmCost says how long the blocks of a tile take on an H200, in nanoseconds. block is the time of a block besides its steps, alone a step
// of a block that has a multiprocessor to itself, and shared each block's share of a step if as many blocks as fit (resident) run together.
// They were fitted to products of 256³ to 8192³ and to flat and long ones, for which they find the fastest tile or one that takes a few per
// cent longer.
type gemmCost struct {
	tile                 gemmTile
	resident             int
	block, alone, shared float64
}

var (
	costsHalf = []gemmCost{
		{gemmTile{128, 256, 64, 256, 4, 1}, 1, 2900, 620, 640},
		{gemmTile{128, 192, 64, 256, 5, 1}, 1, 2500, 460, 490},
		{gemmTile{128, 192, 64, 256, 4, 1}, 1, 2500, 460, 500}, // for blocks that last
		{gemmTile{128, 128, 64, 256, 3, 1}, 2, 1800, 400, 345},
		{gemmTile{128, 128, 64, 256, 6, 1}, 1, 2400, 335, 335}, // alone, three stages would wait for their loads
		{gemmTile{64, 128, 64, 128, 4, 1}, 2, 1200, 195, 230},
		{gemmTile{64, 64, 64, 128, 4, 1}, 3, 1000, 165, 138},
		{gemmTile{64, 64, 64, 128, 8, 1}, 1, 1000, 155, 155},
	}
	// costsNarrow are for narrow products of halves.
	costsNarrow = []gemmCost{
		{gemmTile{128, 32, 64, 128, 8, 1}, 1, 2300, 380, 380},
		{gemmTile{128, 64, 64, 256, 8, 1}, 1, 2300, 600, 600},
		{gemmTile{128, 64, 64, 128, 2, 1}, 4, 2300, 700, 380},
	}
	// costsWalk are for operands that are gathered from images. Tiles of 32 columns are for results with as many channels, and those of a
	// depth of 32 for operands with a number of channels that 64 does not divide.
	costsWalk = []gemmCost{
		{gemmTile{128, 64, 64, 128, 4, 1}, 2, 3000, 280, 260},
		{gemmTile{128, 32, 64, 128, 4, 1}, 2, 2300, 240, 235},
		{gemmTile{64, 32, 64, 128, 6, 1}, 3, 1300, 140, 126},
		{gemmTile{128, 128, 32, 256, 6, 1}, 2, 2400, 230, 222},
		{gemmTile{128, 64, 32, 128, 6, 1}, 3, 2500, 210, 205},
		{gemmTile{128, 32, 32, 128, 6, 1}, 3, 2700, 150, 132},
		{gemmTile{64, 32, 32, 128, 8, 1}, 4, 3200, 90, 74},
		{gemmTile{128, 256, 64, 256, 4, 1}, 1, 2900, 640, 680},
		{gemmTile{128, 192, 64, 256, 5, 1}, 1, 2500, 490, 500},
		{gemmTile{128, 192, 64, 256, 4, 1}, 1, 2500, 490, 510},
		{gemmTile{128, 128, 64, 256, 3, 1}, 2, 2300, 400, 375},
		{gemmTile{128, 128, 64, 256, 6, 1}, 1, 2400, 365, 375},
		{gemmTile{64, 128, 64, 128, 4, 1}, 2, 1800, 230, 255},
		{gemmTile{64, 64, 64, 128, 4, 1}, 3, 1700, 190, 170},
		{gemmTile{64, 64, 64, 128, 8, 1}, 1, 1700, 190, 190},
	}
	// A step of tf32 is half as deep as one of halves, and takes as long.
	costsTF32 = []gemmCost{
		{gemmTile{128, 256, 32, 256, 4, 1}, 1, 2900, 620, 640},
		{gemmTile{128, 192, 32, 256, 5, 1}, 1, 2500, 460, 490},
		{gemmTile{128, 128, 32, 256, 3, 1}, 2, 1800, 300, 345},
		{gemmTile{64, 128, 32, 128, 4, 1}, 2, 1200, 195, 230},
		{gemmTile{64, 64, 32, 128, 6, 1}, 3, 1000, 165, 138},
	}
	// costsAcross are for tf32 with a right operand that lies along its own axis.
	costsAcross = []gemmCost{
		{gemmTile{256, 128, 32, 256, 4, 1}, 1, 3300, 635, 655},
		{gemmTile{192, 128, 32, 256, 5, 1}, 1, 2900, 475, 505},
		{gemmTile{128, 128, 32, 256, 3, 1}, 2, 2000, 400, 370},
		{gemmTile{64, 64, 32, 128, 6, 1}, 3, 1200, 280, 170},
	}
	costsSingle = []gemmCost{
		{gemmTile{128, 64, 32, 128, 3, 1}, 3, 3000, 1590, 1290},
		{gemmTile{128, 256, 32, 256, 3, 1}, 1, 4000, 5350, 5350},
		{gemmTile{128, 192, 16, 256, 3, 1}, 1, 3000, 2150, 2150},
		{gemmTile{128, 128, 32, 128, 3, 1}, 2, 3500, 4100, 2730},
		{gemmTile{64, 64, 16, 128, 4, 1}, 4, 1500, 430, 345},
		{gemmTile{64, 128, 16, 128, 4, 1}, 3, 2000, 1020, 670},
	}
	costsShared = []gemmCost{{tileShared, 4, 1600, 600, 500}}
	// costsPlain are for float32 with operands that threads copy. Computing 8 x 16 sums per thread reads less shared memory per sum than 8
	// x 8, which gave 45 instead of 40 TFLOP/s for 8192³ on an H200. Convolutions compute addresses with more arithmetic and have no
	// registers left for it.
	costsPlain = []gemmCost{
		{gemmTile{128, 256, 16, 256, 3, 1}, 1, 7500, 2850, 2850},
		{gemmTile{128, 192, 16, 256, 3, 1}, 1, 6000, 2250, 2250},
		{gemmTile{64, 128, 16, 128, 4, 1}, 3, 5500, 1030, 820},
		{gemmTile{64, 64, 16, 128, 2, 1}, 6, 4500, 1250, 550},
	}
)

const (
	// launchCost and sumLaunchCost are the times of launching a product and the sum of its parts, in nanoseconds; turnLaunchCost is that of
	// a copy.
	launchCost, sumLaunchCost, turnLaunchCost = 1000, 1700, 1500
	// sumCost is the time of storing and adding a partial sum, turnCost that of copying an element of float32.
	sumCost, turnCost = 1.0 / 400, 8.0 / 4500
	// notional is the number of multiprocessors, and notionalShared the shared memory per block, for which the depth of products is
	// divided, whatever the device has: the order of sums, and so the bits of the result, then depend only on the product.
	notional, notionalShared = 132, 227 << 10
	// leastPart is the minimum depth of a part. mostRounds is the maximum number of rounds of blocks at which the depth is divided further.
	leastPart, mostRounds = 128, 3
	// sharedFrom is the depth from which on the threads of a block share it, and sharedGain the time of the pass that adds up partial sums,
	// in steps of tileShared. Between sharedFew and sharedMany steps, few small tiles in more parts are faster. Determined on an H200.
	sharedFrom, sharedGain, sharedFew, sharedMany = 128, 8, 6, 16
	// leastSide is the minimum number of rows and columns of exact products that have costs.
	leastSide = 64
	// planFrom is the number of multiplications from which on 32-bit operands are copied to a better layout, and exact products have costs.
	planFrom = 1 << 26
)

// gemmSplits are the numbers of parts that depths are divided into.
var gemmSplits = [...]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}

// large reports whether the product has at least planFrom multiplications.
func (p *product) large() bool { return float64(p.m)*float64(p.n)*float64(p.k) >= planFrom }

// shares reports whether tileShared suits a large exact product best, whatever the layout of its operands.
func (p *product) shares(lim *Limits, tf32 bool) bool {
	if p.a.DType != dtype.Float32 || tf32 || lim.Major < 8 || p.opt.Tile > 0 || !p.large() || min(p.m, p.n) < leastSide {
		return false
	}
	_, parts, cost := p.choose(costsShared, notionalShared, notional, 1)
	_, _, other := p.choose(costsSingle, notionalShared, notional, 0)
	return parts == 1 && cost < other
}

// sharesSmall reports whether tileShared is better than tileSmall.
func (p *product) sharesSmall(lim *Limits, batch int) bool {
	t := &tileShared
	steps, blocks := ceilDiv(p.k, t.depth), ceilDiv(p.m, t.rows)*ceilDiv(p.n, t.cols)*batch
	return p.k >= sharedFrom && (steps <= sharedFew || steps >= sharedMany || 3*blocks >= lim.Multiprocessors) &&
		t.shared(p.a.DType.Size()) <= lim.SharedPerBlock
}

// costs returns the tiles that suit the product and the layout of its operands, nil if there are none; mapped says that tensor maps fetch
// them.
func (p *product) costs(lim *Limits, tf32, mapped bool) []gemmCost {
	switch {
	case p.walk != nil:
		return costsWalk
	case mapped && p.a.DType != dtype.Float32 && p.opt.Tile > 0:
		return slices.Concat(costsHalf, costsNarrow)
	case mapped && p.a.DType != dtype.Float32 && p.narrow():
		return costsNarrow
	case mapped && p.a.DType != dtype.Float32:
		return costsHalf
	case mapped && tf32 && p.s[2][1] != 1:
		return costsAcross
	case mapped && tf32:
		return costsTF32
	case p.a.DType != dtype.Float32 || tf32 || !p.large() || min(p.m, p.n) < leastSide || lim.Major < 8:
		return nil
	case mapped:
		return costsSingle
	}
	return costsPlain
}

// narrowCols is the maximum number of columns of narrow products; they have more than narrowRows rows.
const narrowCols, narrowRows = 64, 128 * notional

// narrow reports whether the product streams a long left operand past a narrow right one, as in convolutions of one tap. The time is then
// that of memory, which the usual costs do not contain: what counts is that loads are always in flight. On an H200, 200704 x 144 times 144
// x 24 took 25 instead of 43 µs, and 802816 x 40 times 40 x 32 63 instead of 98 µs.
func (p *product) narrow() bool {
	return p.n <= narrowCols && p.m > narrowRows && p.batch.numel() == 1
}

// plan chooses the tile and the number of parts of the depth, and returns their depth. It marks s if tensor maps are to fetch the operands.
func (p *product) plan(lim *Limits, s *Spec, tf32 bool) (tile gemmTile, splits, depth int) {
	tile, splits, depth = p.planHigh(lim, s, tf32)
	if lim.Multiprocessors < fewMultiprocessors && p.opt.Tile == 0 && p.walk == nil {
		if flat := flatTile(p.m, tile.parts); p.m <= flat.rows && flat.shared(p.a.DType.Size()) <= lim.SharedPerBlock {
			tile, s.Product.Mapped = flat, mapNone
		}
	}
	return tile, splits, depth
}

// planHigh is plan without the tiles for few rows.
func (p *product) planHigh(lim *Limits, s *Spec, tf32 bool) (tile gemmTile, splits, depth int) {
	if p.shares(lim, tf32) {
		return tileShared, 1, p.k
	}
	mapped := p.mappable(lim, s)
	batch := p.matrices()
	costs := p.costs(lim, tf32, mapped)
	if n := p.opt.Tile; n > 0 && n <= len(costs) {
		costs = costs[n-1 : n]
	}
	parting := costs
	if p.a.DType == dtype.Float32 && !tf32 && costs != nil { // the parts must not depend on the layout of operands
		parting = costsSingle
	}
	tile, splits, _ = p.choose(parting, notionalShared, notional, 0)
	p.loads = p.opt.Epilogue != nil && len(p.opt.Epilogue.Ins) > 0
	if lim.Multiprocessors != notional || lim.SharedPerBlock < notionalShared || len(costs) != len(parting) || len(costs) > 0 &&
		&costs[0] != &parting[0] || p.loads {
		tile, splits, _ = p.choose(costs, lim.SharedPerBlock, lim.Multiprocessors, splits)
	}
	if splits == 0 {
		tile = pickTile(lim, p.a.DType, tf32, p.m, p.n, p.k, batch)
		if p.a.DType == dtype.Float32 && !tf32 && tile == tileSmall && p.sharesSmall(lim, batch) {
			tile = tileShared
		}
		splits = p.splits(lim, tile, batch)
		return tile, splits, ceilDiv(ceilDiv(p.k, tile.depth), splits) * tile.depth
	}
	if mapped {
		s.Product.Mapped = mapMatrices
		if p.walk != nil {
			s.Product.Mapped = p.walk.kind
		}
	}
	k, _ := p.deepest()
	depth = partDepth(k, splits)
	return tile, ceilDiv(k, depth), depth
}

// choose returns the tile of least cost among those that fit in shared bytes, and the number of parts of the depth, which is splits unless
// that is 0. The number is 0 if no tile fits.
func (p *product) choose(costs []gemmCost, shared, multiprocessors, splits int) (tile gemmTile, parts int, least float64) {
	batch := p.matrices()
	k, mean := p.deepest()
	sum := float64(batch) * float64(p.m) * float64(p.n) * sumCost
	least = math.MaxFloat64
	for i := range costs {
		c := &costs[i]
		t := &c.tile
		if t.shared(p.a.DType.Size()) > shared || p.walk != nil && !p.walk.suits(t, p.a.DType) {
			continue
		}
		blocks := ceilDiv(p.m, t.rows) * ceilDiv(p.n, t.cols) * batch
		if splits > 0 {
			if cost := p.cost(c, t, blocks, multiprocessors, splits, sum); cost < least {
				tile, parts, least = c.tile, splits, cost
			}
			continue
		}
		// No division is faster than a device that is busy all the time, and summing takes longer with more parts.
		filled := launchCost + c.block + float64(blocks*(k/t.depth))*mean*c.shared/float64(multiprocessors)
		for j, s := range gemmSplits {
			if s > 1 && (k < s*leastPart || blocks*gemmSplits[j-1] >= mostRounds*multiprocessors*c.resident || filled+sumLaunchCost+
				float64(s)*sum >= least) {
				break
			}
			if cost := p.cost(c, t, blocks, multiprocessors, s, sum); cost < least {
				tile, parts, least = c.tile, s, cost
			}
		}
	}
	return tile, parts, least
}

// cost estimates the time of the product in nanoseconds, with the given number of blocks of tile t for each of s parts of the depth. sum is
// the time of adding one part. The blocks of phases count as if they all had the mean depth.
func (p *product) cost(c *gemmCost, t *gemmTile, blocks, multiprocessors, s int, sum float64) float64 {
	blocks *= s
	k, mean := p.deepest()
	most := float64(ceilDiv(partDepth(k, s), t.depth))
	steps := most * mean
	slots := multiprocessors * c.resident
	block := c.block
	if p.lasts(t, s, multiprocessors) {
		block = t.lasting(p.loads)
	}
	full := c.round(block, steps, c.resident)
	rounds := blocks / slots
	cost := launchCost + float64(rounds)*full
	if rest := blocks - rounds*slots; rest > 0 {
		last := c.round(block, steps, ceilDiv(rest, multiprocessors))
		// The multiprocessors that finish first take more than their share of the rest; after more rounds they are more out of step.
		if rounds > 0 {
			last += (full - last) / float64(rounds+1)
		}
		cost += last
	}
	if mean < 1 { // the deepest phase alone
		cost = max(cost, launchCost+c.round(block, most, min(c.resident, ceilDiv(blocks, multiprocessors))))
	}
	if s > 1 {
		cost += sumLaunchCost + float64(s)*sum
	}
	return cost
}

// round returns the time of blocks that run together on a multiprocessor.
func (c *gemmCost) round(block, steps float64, together int) float64 {
	return block + steps*max(c.alone, float64(together)*c.shared)
}

// lasting returns the time of a block besides its steps, in nanoseconds, if it computes one tile after the other, and stores one while it
// computes the next. It is 0 for tiles whose blocks do not. A whole tile of sums, rounded to halves, is then in shared memory: that leaves
// three stages to the larger tile and four to the other. If an epilogue loads operands, a tile is stored before the next one's products.
func (g *gemmTile) lasting(loads bool) float64 {
	switch *g {
	case gemmTile{128, 256, 64, 256, 4, 1}:
		if loads {
			return 2100
		}
		return 1400
	case gemmTile{128, 192, 64, 256, 4, 1}:
		return 1350
	case gemmTile{128, 64, 64, 256, 8, 1}:
		return 900
	case gemmTile{128, 32, 64, 128, 8, 1}:
		return 500
	}
	return 0
}

// lasts reports whether blocks of tile t last if the depth is divided into s parts: if the product is one matrix of halves with more tiles
// than there are multiprocessors, and a bias, if there is one, is the same for all rows.
func (p *product) lasts(t *gemmTile, s, multiprocessors int) bool {
	halves, flat := p.a.DType.Size() == 2 && p.out.DType.Size() == 2, p.opt.Bias.Ptr == 0 || p.s[3][0] == 0
	return t.lasting(p.loads) > 0 && s == 1 && p.batch.numel() == 1 && p.phases() == nil && halves && flat &&
		ceilDiv(p.m, t.rows)*ceilDiv(p.n, t.cols) > multiprocessors
}

// partDepth returns the depth of each of s parts of k, a multiple of every tile's depth.
func partDepth(k, s int) int {
	const grain = 64
	return ceilDiv(ceilDiv(k, grain), s) * grain
}

const (
	// turnGain is the minimum size of one side of products in tf32 for which it pays to copy the other operand to a better layout.
	turnGain = 512
	// turnGainFew is turnGain for devices with fewer than fewMultiprocessors: the simulator on the processor takes as long for a copied
	// element as for some hundred products. It also applies if the copies of an exact product take more than mostCopied elements of memory.
	// These devices also have tiles for few rows.
	turnGainFew, fewMultiprocessors, mostCopied = 2048, 32, 19 << 18
)

// layOperands copies operands of large 32-bit products to the layout that the product prefers: along their own axis for exact products,
// where threads read neighbours along that axis, and along the depth for the matrix units.
func (p *product) layOperands(is Issuer, lim *Limits, tf32 bool) error {
	if p.a.DType != dtype.Float32 || !p.large() || tf32 && (lim.Major != 9 || lim.Minor != 0) || p.shares(lim, tf32) {
		return nil
	}
	least := turnGain
	if lim.Multiprocessors < fewMultiprocessors || !tf32 && p.acrossOwn() > mostCopied {
		least = turnGainFew
	}
	axis := 0
	switch {
	case tf32:
		axis = 1
	case least == turnGain:
		if !p.copiesPay() {
			return nil
		}
		least = 0
	case p.s[1][0] != 1 && p.n < least || p.s[2][0] != 1 && p.m < least:
		return nil // tensor maps need both
	}
	if err := p.layAlong(is, 1, axis, least); err != nil || tf32 && p.turnsLate() {
		return err
	}
	return p.layAlong(is, 2, axis, least)
}

// copiesPay reports whether an exact product is faster with operands along their own axes, including the copies.
func (p *product) copiesPay() bool {
	if least := min(p.m, p.n); least < leastSide || p.opt.Tile > 0 { // tests try tiles with and without copies
		return least >= turnGain
	}
	_, splits, mapped := p.choose(costsSingle, notionalShared, notional, 0)
	_, _, plain := p.choose(costsPlain, notionalShared, notional, splits)
	for i := range 2 {
		if p.s[i+1][0] != 1 {
			mapped += turnLaunchCost
		}
	}
	return mapped+float64(p.acrossOwn())*turnCost < plain
}

// acrossOwn returns the number of elements of the operands that do not lie along their own axis.
func (p *product) acrossOwn() (n int) {
	for i, places := range []int{p.m, p.n} {
		if p.s[i+1][0] != 1 {
			n += places * p.k * p.batch.numel()
		}
	}
	return n
}

// turnsLate reports whether transposing the right operand of a tf32 product on the way to the matrix units is faster than copying it.
func (p *product) turnsLate() bool {
	if p.s[1][1] != 1 || p.layoutOf(2, &p.b, p.n) != (sideSpec{layoutOwn, 4}) {
		return false
	}
	if p.opt.Tile > 0 {
		return true
	}
	_, _, late := p.choose(costsAcross, notionalShared, notional, 0)
	_, _, early := p.choose(costsTF32, notionalShared, notional, 0)
	return late < early+turnLaunchCost+float64(p.k)*float64(p.n)*turnCost
}
