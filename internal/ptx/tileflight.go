package ptx

import (
	"slices"

	"tenon.dev/internal/kir"
)

// Products by wgmma run in the background, and end in the order in which they were started. What touches their registers waits for the
// newest product that uses these, and so for all older ones, while newer ones go on.

// flight lists products by wgmma that may be running, oldest first: for each the tiles whose registers it uses.
type flight [][2]*tile

// keep lets only the newest n products run on, and reports whether any other was running.
func (p *flight) keep(n int) bool {
	if len(*p) <= n {
		return false
	}
	*p = slices.Delete(*p, 0, len(*p)-n)
	return true
}

// free ends the products that use a tile of ts. It reports whether there were any, and the number of newer ones, which run on.
func (p *flight) free(ts ...*tile) (newer int, ok bool) {
	for i, used := range slices.Backward(*p) {
		if slices.Contains(ts, used[0]) || slices.Contains(ts, used[1]) {
			newer = len(*p) - 1 - i
			return newer, p.keep(newer)
		}
	}
	return 0, false
}

// await waits for products whose registers are those of ts.
func (f *function) await(ts ...*tile) {
	if newer, ok := f.tiles.flight.free(ts...); ok {
		f.op("wgmma.wait_group.sync.aligned", itoa(newer))
	}
}

// awaitAllBut waits for all products but the newest n.
func (f *function) awaitAllBut(n int) {
	if f.tiles.flight.keep(n) {
		f.op("wgmma.wait_group.sync.aligned", itoa(n))
	}
}

// drain waits for all products.
func (f *function) drain() { f.awaitAllBut(0) }

// touched returns the tiles whose registers in reads or writes; products do so in the background.
func (plan *tilePlan) touched(in *kir.Instr) (ts []*tile) {
	switch in.Op {
	case kir.OpTileZero, kir.OpTileEach:
		ts = append(ts, plan.tiles[in.Sym])
	case kir.OpTileMap:
		ts = append(ts, plan.tiles[in.Sym])
		for _, i := range in.MapOthers() {
			ts = append(ts, plan.tiles[i])
		}
	case kir.OpTileRows, kir.OpTileCopy:
		ts = append(ts, plan.tiles[in.Sym], plan.tiles[in.Imm])
	}
	for _, b := range in.Blocks {
		if b == nil {
			continue
		}
		for _, x := range b.Instrs {
			ts = append(ts, plan.touched(x)...)
		}
	}
	return ts
}

// carried returns the products that are running when an iteration of pipelined loop q begins, except for the first, which nothing is left
// running before. Waits count from the newest product, so a wait that is right after the longest list is right after the others.
func (plan *tilePlan) carried(q *pipeline) (p flight) {
	for {
		before := slices.Clone(p)
		first := true
		for _, in := range q.loop.Blocks[0].Instrs {
			p.free(plan.touched(in)...)
			if in.Op == kir.OpTileZero && !plan.tiles[in.Sym].acc {
				p.keep(0)
			}
			if in.Op != kir.OpTileDot {
				continue
			}
			a, _ := dotOperands(in)
			if acc := plan.tiles[in.Sym]; acc.arr.unit == wgmma {
				if acc.arr.turned {
					p.keep(0)
				}
				p = append(p, [2]*tile{acc, plan.tiles[a]})
			}
			if first && q.mapped {
				p.keep(1)
			}
			first = false
		}
		if !q.mapped {
			p.keep(q.groups)
		}
		if slices.Equal(p, before) {
			return p
		}
	}
}
