package kernels

import (
	"math"

	"tenon.dev/dtype"
)

// gemmCost says how long the blocks of a tile take on an H200, in nanoseconds: block is what a block takes beside its steps, alone a step
// of a block that has a multiprocessor to itself, shared each block's part of a step where as many run together as fit, resident. They were
// fitted to products of 256³ to 8192³ and to flat and long ones, of which they find the fastest tile or one that takes a few per cent more.
type gemmCost struct {
	tile                 gemmTile
	resident             int
	block, alone, shared float64
}

var (
	costsHalf = []gemmCost{
		{gemmTile{128, 256, 64, 256, 4}, 1, 2900, 620, 640},
		{gemmTile{128, 192, 64, 256, 5}, 1, 2500, 460, 490},
		{gemmTile{128, 128, 64, 256, 3}, 2, 1800, 400, 345},
		{gemmTile{128, 128, 64, 256, 6}, 1, 2400, 335, 335}, // alone, three stages wait for their loads
		{gemmTile{64, 128, 64, 128, 4}, 2, 1200, 195, 230},
		{gemmTile{64, 64, 64, 128, 4}, 3, 1000, 165, 138},
		{gemmTile{64, 64, 64, 128, 8}, 1, 1000, 155, 155},
	}
	// A step of tf32 is half as deep as one of halves, and takes as long.
	costsTF32 = []gemmCost{
		{gemmTile{128, 256, 32, 256, 4}, 1, 2900, 620, 640},
		{gemmTile{128, 192, 32, 256, 5}, 1, 2500, 460, 490},
		{gemmTile{128, 128, 32, 256, 3}, 2, 1800, 300, 345},
		{gemmTile{64, 128, 32, 128, 4}, 2, 1200, 195, 230},
		{gemmTile{64, 64, 32, 128, 6}, 3, 1000, 165, 138},
	}
	// costsAcross are those of tf32 with a right operand that lies along its own axis.
	costsAcross = []gemmCost{
		{gemmTile{256, 128, 32, 256, 4}, 1, 3300, 635, 655},
		{gemmTile{192, 128, 32, 256, 5}, 1, 2900, 475, 505},
		{gemmTile{128, 128, 32, 256, 3}, 2, 2000, 400, 370},
		{gemmTile{64, 64, 32, 128, 6}, 3, 1200, 280, 170},
	}
	costsSingle = []gemmCost{
		{gemmTile{128, 64, 32, 128, 3}, 3, 3000, 1590, 1290},
		{gemmTile{128, 256, 32, 256, 3}, 1, 4000, 5350, 5350},
		{gemmTile{128, 192, 16, 256, 3}, 1, 3000, 2150, 2150},
		{gemmTile{128, 128, 32, 128, 3}, 2, 3500, 4100, 2730},
		{gemmTile{64, 64, 16, 128, 4}, 4, 1500, 430, 345},
		{gemmTile{64, 128, 16, 128, 4}, 3, 2000, 1020, 670},
	}
	// costsPlain are those of float32 with operands that threads copy: 8 x 16 sums a thread read less shared memory for each than 8 x 8,
	// which gave 45 instead of 40 TFLOP/s for 8192³ on an H200. Convolutions find their addresses by more arithmetic and have no registers
	// left for it.
	costsPlain = []gemmCost{
		{gemmTile{128, 256, 16, 256, 3}, 1, 7500, 2850, 2850},
		{gemmTile{128, 192, 16, 256, 3}, 1, 6000, 2250, 2250},
		{gemmTile{64, 128, 16, 128, 4}, 3, 5500, 1030, 820},
		{gemmTile{64, 64, 16, 128, 2}, 6, 4500, 1250, 550},
	}
)

const (
	// launchCost and sumLaunchCost are what the launches of a product and of the sum of its parts take, in nanoseconds, turnLaunchCost that
	// of a copy.
	launchCost, sumLaunchCost, turnLaunchCost = 1000, 1700, 1500
	// sumCost is what a partial sum takes that is stored and added up, turnCost an element of float32 that is copied.
	sumCost, turnCost = 1.0 / 400, 8.0 / 4500
	// notional is the number of multiprocessors for which the depth of products is divided, and notionalShared a block's shared memory,
	// whatever the device has: the order of sums, and so the bits of the result, then depend on the product alone.
	notional, notionalShared = 132, 227 << 10
	// leastPart is the least depth of a part, mostRounds how many rounds of blocks are most that are divided further.
	leastPart, mostRounds = 128, 3
	// leastSide is the least number of rows and columns of exact products that have costs.
	leastSide = 64
	// planFrom is from how many multiplications on operands of 32 bits are copied to where they lie well, and exact ones have costs.
	planFrom = 1 << 26
)

// gemmSplits are the numbers of parts that depths are divided into.
var gemmSplits = [...]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}

// large reports whether the product has at least planFrom multiplications.
func (p *product) large() bool { return float64(p.m)*float64(p.n)*float64(p.k) >= planFrom }

// costs returns the tiles that serve the product as its operands lie, nil if there are none; mapped says that tensor maps fetch them.
func (p *product) costs(lim *Limits, tf32, mapped bool) []gemmCost {
	switch {
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

// plan chooses the tile and the number of parts of the depth, and returns how deep they are. It marks s where tensor maps are to fetch the
// operands.
func (p *product) plan(lim *Limits, s *Spec, tf32 bool) (tile gemmTile, splits, depth int) {
	mapped := p.mappable(lim, s)
	batch := p.batch.numel()
	costs := p.costs(lim, tf32, mapped)
	if n := p.opt.Tile; n > 0 && n <= len(costs) {
		costs = costs[n-1 : n]
	}
	parting := costs
	if p.a.DType == dtype.Float32 && !tf32 && costs != nil { // the parts do not depend on where operands lie
		parting = costsSingle
	}
	tile, splits, _ = p.choose(parting, notionalShared, notional, 0)
	if lim.Multiprocessors != notional || lim.SharedPerBlock < notionalShared || len(costs) != len(parting) || len(costs) > 0 &&
		&costs[0] != &parting[0] {
		tile, splits, _ = p.choose(costs, lim.SharedPerBlock, lim.Multiprocessors, splits)
	}
	if splits == 0 {
		tile = pickTile(lim, p.a.DType, tf32, p.m, p.n, p.k, batch)
		splits = p.splits(lim, tile, batch)
		return tile, splits, ceilDiv(ceilDiv(p.k, tile.depth), splits) * tile.depth
	}
	if mapped {
		s.Product.Mapped = true
	}
	depth = partDepth(p.k, splits)
	return tile, ceilDiv(p.k, depth), depth
}

// choose returns the tile of least cost among those that fit in shared bytes, and the number of parts of the depth, which is the given one
// unless that is 0; no parts if none fits.
func (p *product) choose(costs []gemmCost, shared, multiprocessors, splits int) (tile gemmTile, parts int, least float64) {
	batch := p.batch.numel()
	sum := float64(batch) * float64(p.m) * float64(p.n) * sumCost
	least = math.MaxFloat64
	for i := range costs {
		c := &costs[i]
		t := &c.tile
		if t.shared(p.a.DType.Size()) > shared {
			continue
		}
		blocks := ceilDiv(p.m, t.rows) * ceilDiv(p.n, t.cols) * batch
		if splits > 0 {
			if cost := p.cost(c, t, blocks, multiprocessors, splits, sum); cost < least {
				tile, parts, least = c.tile, splits, cost
			}
			continue
		}
		// No division makes it faster than a device that is filled all the time, and sums take longer the more parts there are.
		filled := launchCost + c.block + float64(blocks*(p.k/t.depth))*c.shared/float64(multiprocessors)
		for j, s := range gemmSplits {
			if s > 1 && (p.k < s*leastPart || blocks*gemmSplits[j-1] >= mostRounds*multiprocessors*c.resident || filled+sumLaunchCost+
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

// cost estimates the nanoseconds of the product in so many blocks of tile t for each of s parts of the depth; sum is what it takes to add
// up one.
func (p *product) cost(c *gemmCost, t *gemmTile, blocks, multiprocessors, s int, sum float64) float64 {
	blocks *= s
	steps := float64(ceilDiv(partDepth(p.k, s), t.depth))
	slots := multiprocessors * c.resident
	full := c.round(steps, c.resident)
	rounds := blocks / slots
	cost := launchCost + float64(rounds)*full
	if rest := blocks - rounds*slots; rest > 0 {
		last := c.round(steps, ceilDiv(rest, multiprocessors))
		// The first multiprocessors that are free take more than their share of the rest; after more rounds they are less alike in time.
		if rounds > 0 {
			last += (full - last) / float64(rounds+1)
		}
		cost += last
	}
	if s > 1 {
		cost += sumLaunchCost + float64(s)*sum
	}
	return cost
}

// round returns the time of so many blocks together on a multiprocessor.
func (c *gemmCost) round(steps float64, together int) float64 {
	return c.block + steps*max(c.alone, float64(together)*c.shared)
}

// partDepth returns the depth of each of s parts of k, a multiple of every tile's.
func partDepth(k, s int) int {
	const grain = 64
	return ceilDiv(ceilDiv(k, grain), s) * grain
}

const (
	// turnGain is the least size of one side of products in tf32 for which it pays to copy the other to where it lies well.
	turnGain = 512
	// turnGainFew is that on devices of fewer than fewMultiprocessors: the processor takes as long for a copied element as for some hundred
	// products. It is also where exact products take more than mostCopied elements of memory for copies.
	turnGainFew, fewMultiprocessors, mostCopied = 2048, 32, 19 << 18
)

// layOperands copies operands of large products of 32 bits to where the product wants them: exact ones along their own axis, as threads
// read neighbours of that, and those that the matrix units take along the depth.
func (p *product) layOperands(is Issuer, lim *Limits, tf32 bool) error {
	if p.a.DType != dtype.Float32 || !p.large() || tf32 && (lim.Major != 9 || lim.Minor != 0) {
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

// copiesPay reports whether an exact product is faster with its operands along their own axes, copies included.
func (p *product) copiesPay() bool {
	if least := min(p.m, p.n); least < leastSide || p.opt.Tile > 0 { // tests try tiles on copies and without
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

// acrossOwn returns how many elements the operands have that do not lie along their own axis.
func (p *product) acrossOwn() (n int) {
	for i, places := range []int{p.m, p.n} {
		if p.s[i+1][0] != 1 {
			n += places * p.k * p.batch.numel()
		}
	}
	return n
}

// turnsLate reports whether the right operand of a product in tf32 is better turned on its way to the matrix units than by a copy.
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
