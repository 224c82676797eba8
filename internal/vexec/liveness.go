package vexec

import "tenon.dev/internal/kir"

// liveness finds the last use of every value. Positions count instructions in program order; a value from outside that a loop uses lives
// until the loop's end.
type liveness struct {
	a     *analysis
	pos   int
	loops []openLoop
	// end gives the last position inside an instruction's regions.
	end map[*kir.Instr]int
	// at gives the position of every instruction.
	at map[*kir.Instr]int
}

type openLoop struct {
	start int
	uses  []kir.Value
}

func (a *analysis) liveness() *liveness {
	l := &liveness{a: a, end: map[*kir.Instr]int{}, at: map[*kir.Instr]int{}}
	l.block(a.p.Body)
	return l
}

func (l *liveness) use(v kir.Value) {
	x := &l.a.values[v]
	x.last = max(x.last, l.pos)
	for i := range l.loops {
		if x.pos < l.loops[i].start {
			l.loops[i].uses = append(l.loops[i].uses, v)
			return
		}
	}
}

func (l *liveness) define(v kir.Value) {
	x := &l.a.values[v]
	x.pos, x.last = l.pos, l.pos
}

func (l *liveness) block(b *kir.Block) {
	for _, v := range b.Params {
		l.define(v)
	}
	for _, in := range b.Instrs {
		l.pos++
		l.at[in] = l.pos
		if !l.a.live(in) {
			continue
		}
		for _, v := range in.Args {
			l.use(v)
		}
		for _, v := range in.Res {
			l.define(v)
		}
		if in.Op == kir.OpSet || in.Op == opSetElement {
			l.a.vars[in.Sym].sets = append(l.a.vars[in.Sym].sets, l.pos)
		}
		if len(in.Blocks) == 0 {
			continue
		}
		repeats := in.Op != kir.OpIf
		if repeats {
			l.pos++
			l.loops = append(l.loops, openLoop{start: l.pos})
			for _, v := range in.Args { // bounds are read in every iteration
				l.use(v)
			}
		}
		for _, c := range in.Blocks {
			l.block(c)
		}
		l.pos++
		l.end[in] = l.pos
		if repeats {
			for _, v := range l.loops[len(l.loops)-1].uses {
				l.a.values[v].last = l.pos
			}
			for _, v := range in.Blocks[0].Params { // the counter is incremented at the end of every iteration
				l.a.values[v].last = l.pos
			}
			l.loops = l.loops[:len(l.loops)-1]
		}
	}
}

// readsVar reports whether the value of get may be read from the variable's own register, because nothing sets the variable while the value
// is live.
func (l *liveness) readsVar(get *kir.Instr) bool {
	v := &l.a.values[get.Res[0]]
	for _, s := range l.a.vars[get.Sym].sets {
		if s > v.pos && s < v.last {
			return false
		}
	}
	return true
}
