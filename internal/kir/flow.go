package kir

import "slices"

// tileRegion checks the body of a tile operation.
func (v *verifier) tileRegion(in *Instr, vars varSet, c context) {
	if c.tile != nil {
		v.fail(in, "a tile operation stands in the function of another; move it out")
		return
	}
	v.block(in.Blocks[0], vars, context{tile: in})
}

// inRegion checks an instruction of a tile region. The back end chooses which thread runs it, so nothing may depend on that.
func (v *verifier) inRegion(in *Instr, c context) {
	effect := false
	switch in.Op {
	case OpBarrier, OpShuffle, OpVote, OpReturn, OpClock:
		v.fail(in, "%s may not stand in the function of a tile operation; move it out", in.word())
	case OpTileZero, OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
		v.fail(in, "a tile operation stands in the function of another; move it out")
	case OpSpecial:
		switch in.Sub {
		case TidX, TidY, TidZ, LaneID:
			v.fail(in, "a thread's index means nothing in the function of a tile operation; use the row and column that it is given")
		}
	case OpStore, OpAtomic, OpFence, OpAssert:
		effect = true
	}
	if (in.Op == OpLoad || in.Op == OpStore) && in.Space == Local {
		v.fail(in, "local memory may not be used in the function of a tile operation; use a variable, k.Var")
	}
	if effect && c.tile.Op != OpTileEach {
		v.fail(in, "the function of a %s may not store or assert; that of Tile.Each may", c.tile.word())
	}
}

// flowVerifier checks the rules that need the uniformity analysis.
type flowVerifier struct {
	v *verifier
	a *Analysis
	// exited: some threads may have returned while others continue.
	exited bool
}

func (f *flowVerifier) block(b *Block) {
	for _, in := range b.Instrs {
		divergent := f.a.Divergent(b)
		switch in.Op {
		case OpBarrier, OpShuffle, OpVote, OpTileZero, OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
			if divergent {
				f.v.fail(in, "%s stands in divergent flow, where not all threads of the block take part; move it out of the If, "+
					"ForEach or loop", in.word())
			} else if f.exited {
				f.v.fail(in, "%s stands after a return that only some threads take; put what the others do into an If instead", in.word())
			}
		case OpReturn:
			f.exited = f.exited || divergent
		case OpFor, OpLoop:
			// A return in one iteration comes before the operations of the next.
			f.exited = f.exited || f.returns(in.Blocks[0])
		}
		if in.Op == OpTileLoad || in.Op == OpTileMap || in.Op == OpTileEach {
			f.outer(in)
			for _, x := range in.Args {
				if f.a.Values[x].Kind != Uniform {
					f.v.fail(in, "the place in a tensor map differs between threads; make it of what is the same in the whole block")
				}
			}
		}
		for _, sub := range in.Blocks {
			f.block(sub)
		}
	}
}

// returns reports whether b holds a return that only some threads take.
func (f *flowVerifier) returns(b *Block) bool {
	for _, in := range b.Instrs {
		if in.Op == OpReturn && f.a.Divergent(b) {
			return true
		}
		if slices.ContainsFunc(in.Blocks, f.returns) {
			return true
		}
	}
	return false
}

// outer checks that the values and variables that a tile region uses from outside are uniform.
func (f *flowVerifier) outer(tile *Instr) {
	inside := map[Value]bool{}
	var visit func(b *Block)
	visit = func(b *Block) {
		for _, x := range b.Params {
			inside[x] = true
		}
		for _, in := range b.Instrs {
			for _, x := range in.Args {
				if !inside[x] && f.a.Values[x].Kind != Uniform {
					f.v.fail(in, "the function of a tile operation uses a value from outside that differs between threads; make it there")
				}
			}
			for _, x := range in.Res {
				inside[x] = true
			}
			if in.Op == OpGet && f.v.outside[in.Sym] && f.a.Vars[in.Sym].Kind != Uniform {
				f.v.fail(in, "the function of a tile operation reads a variable from outside that differs between threads; set it inside")
			}
			for _, sub := range in.Blocks {
				visit(sub)
			}
		}
	}
	visit(tile.Blocks[0])
}
