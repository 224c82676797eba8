package ptx

import (
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// A reuse records the results of the regions of a pipelined loop's loads, so that the groups of a line share them, and what does not change
// between iterations is computed before the loop. The assembler does part of this itself, but not for values in shared memory, which it
// must assume every barrier changes.
type reuse struct {
	// moving holds the values that may change between iterations.
	moving map[kir.Value]bool
	// kept and fresh are the registers of results from before the loop and from this iteration.
	kept, fresh map[reuseKey][]string
	// starts are the addresses to which only the changing part must be added.
	starts   map[reuseKey]string
	fillings map[*kir.Instr]*filling
}

// reuseKey is an instruction and the registers of its operands.
type reuseKey struct {
	in   *kir.Instr
	args string
}

// reuseMost is the maximum number of groups that a thread may load per iteration if their data is to be held in registers.
const reuseMost = 16

// newReuse distributes the loads of a pipeline and computes what they need in every iteration. It returns nil if that takes too many
// registers, as it does with the fragments of mma, or if some threads load less than others, because these then jump.
func (f *function) newReuse(loop *kir.Instr, q *pipeline) *reuse {
	if q.groups == 0 {
		return nil
	}
	r := &reuse{moving: map[kir.Value]bool{loop.Blocks[0].Params[0]: true}, kept: map[reuseKey][]string{}, starts: map[reuseKey]string{},
		fillings: map[*kir.Instr]*filling{}}
	count := 0
	for _, load := range q.loads {
		groups := f.tiles.groupsOf(load)
		if groups < f.tiles.threads { // such as rows, which share nothing
			continue
		}
		count += groups / f.tiles.threads
		if groups%f.tiles.threads != 0 || count > reuseMost {
			return nil
		}
	}
	if count == 0 {
		return nil
	}
	q.guarded = false // a jump costs less than an additional predicate for each load
	for _, in := range q.slice {
		r.move(in)
	}
	for _, load := range q.loads {
		for _, in := range load.Blocks[0].Instrs {
			if !r.still(in) {
				r.move(in)
			}
		}
	}
	for _, load := range q.loads {
		if f.tiles.groupsOf(load) < f.tiles.threads {
			continue
		}
		s := f.share(load)
		r.fillings[load] = s
		b := load.Blocks[0]
		for i := range s.groups {
			line, element := s.groups[i].place()
			s.groups[i].place = func() (string, string) { return line, element }
			f.begin(load, line, element)
			for _, in := range b.Instrs {
				if r.still(in) {
					f.once(in, r.kept)
				}
			}
			y := b.Instrs[len(b.Instrs)-1]
			if add, still, _ := r.split(b, y.Args[0], y.Args[1]); add != nil {
				r.starts[reuseKey{add, f.names[y.Args[0]] + " " + f.names[still]}] = f.scaled(b, f.names[y.Args[0]],
					still, load.Type.Size())
			}
		}
	}
	return r
}

// groupsOf returns the number of groups of a tile load.
func (plan *tilePlan) groupsOf(load *kir.Instr) int {
	t := plan.tiles[load.Sym]
	return t.Rows * t.Cols / load.Width
}

// split returns the addition at the end of region b that makes the index, if one of its operands changes and the other does not.
func (r *reuse) split(b *kir.Block, base, index kir.Value) (add *kir.Instr, still, moving kir.Value) {
	for _, in := range b.Instrs {
		if in.Op == kir.OpAdd && in.Res[0] == index && !r.moving[base] {
			switch x, y := in.Args[0], in.Args[1]; {
			case r.moving[x] && !r.moving[y]:
				return in, y, x
			case r.moving[y] && !r.moving[x]:
				return in, x, y
			}
		}
	}
	return nil, 0, 0
}

// filling returns how a load was distributed, or nil without reuse.
func (r *reuse) filling(load *kir.Instr) *filling {
	if r == nil {
		return nil
	}
	return r.fillings[load]
}

func (r *reuse) move(in *kir.Instr) {
	for _, v := range in.Res {
		r.moving[v] = true
	}
}

// still reports whether an instruction of a region computes the same in every iteration. Pipelined loops do not store.
func (r *reuse) still(in *kir.Instr) bool {
	for _, v := range in.Args {
		if r.moving[v] {
			return false
		}
	}
	return reusable(in)
}

// reusable reports whether the instruction has no effects, and equal operands give equal results.
func reusable(in *kir.Instr) bool {
	return len(in.Blocks) == 0 && len(in.Res) > 0 && (in.Op != kir.OpLoad || in.Space == kir.Shared)
}

// once emits an instruction unless one of the memories has its results. New results are added to the first one.
func (f *function) once(in *kir.Instr, memories ...map[reuseKey][]string) {
	var args strings.Builder
	for _, v := range in.Args {
		args.WriteString(f.names[v] + " ")
	}
	key := reuseKey{in, args.String()}
	for _, m := range memories {
		if regs, ok := m[key]; ok {
			for i, v := range in.Res {
				f.names[v] = regs[i]
			}
			return
		}
	}
	f.at(in)
	f.instr(in)
	var regs []string
	for _, v := range in.Res {
		regs = append(regs, f.names[v])
	}
	memories[0][key] = regs
}

// reused emits the region of a load, except for results that are already there. There are too few predicates to keep any across an
// iteration.
func (f *function) reused(b *kir.Block, r *reuse) {
	for _, in := range b.Instrs {
		switch {
		case !reusable(in):
			f.at(in)
			f.instr(in)
		case f.p.Values[in.Res[0]] == dtype.Bool:
			f.once(in, r.fresh)
		default:
			f.once(in, r.fresh, r.kept)
		}
	}
}
