package vexec

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// group is the size of a warp, within which threads shuffle and vote.
const group = 32

// exchange emits a shuffle or a vote.
func (e *emitter) exchange(in *kir.Instr) {
	v := e.ref(in.Args[0])
	d := e.a.values[in.Res[0]]
	if d.class == uniform { // all lanes already have the same value
		t := in.Type
		if in.Op == kir.OpVote {
			t = dtype.Bool
		}
		e.add(inst{exec: execScalar, k: plainOps[kir.OpGet][t][0], d: e.define(in.Res[0]).p, a: v.p})
		return
	}
	var temp int32
	if v.class == uniform {
		temp = e.fill(in.Args[0], 1)
		v.p, v.class = temp, varying
	}
	e.spell(in.Args...)
	c := &access{sub: in.Sub, vals: []ref{v}}
	if in.Op == kir.OpShuffle {
		c.idx = e.ref(in.Args[1])
	}
	c.dst = e.define(in.Res[0])
	if temp != 0 {
		e.release(temp)
	}
	i := inst{exec: execVote, acc: c}
	if in.Op == kir.OpShuffle {
		switch v.size {
		case 2:
			i.exec = execShuffle[uint16]
		case 4:
			i.exec = execShuffle[uint32]
		default:
			i.exec = execShuffle[uint64]
		}
	}
	e.add(i)
}

func execShuffle[T raw](w *worker, in *inst) {
	c := in.acc
	n := w.lanes
	ds, as := lanes[T](w.p[c.dst.p], n), lanes[T](w.p[c.vals[0].p], n)
	lo, hi := w.m.lo, w.m.hi
	if c.idx.class == uniform {
		delta := int(int32(readInt(w.p[c.idx.p], c.idx.t)))
		for g := lo &^ (group - 1); g < hi; g += group {
			shuffleGroup(ds, as, c.sub, delta, g, max(lo, g), min(hi, g+group), n)
		}
		return
	}
	at := lanes[int32](w.p[c.idx.p], n)
	for i := lo; i < hi; i++ {
		ds[i] = as[source(c.sub, i, int(at[i]), n)]
	}
}

// source returns the lane that lane i reads.
func source(sub kir.Sub, i, operand, n int) int {
	g := i &^ (group - 1)
	j := i - g
	switch sub {
	case kir.ShuffleIdx:
		j = operand
	case kir.ShuffleUp:
		j -= operand
	case kir.ShuffleDown:
		j += operand
	default:
		j ^= operand
	}
	if j < 0 || j >= group || g+j >= n {
		return i
	}
	return g + j
}

// shuffleGroup moves lanes [from, to) of the warp that begins at g.
func shuffleGroup[T raw](ds, as []T, sub kir.Sub, delta, g, from, to, n int) {
	if to-from == group && delta > 0 && delta < group {
		d, a := ds[g:g+group], as[g:g+group]
		switch sub {
		case kir.ShuffleXor:
			for j := range d {
				d[j] = a[(j^delta)&(group-1)]
			}
			return
		case kir.ShuffleDown:
			copy(d, a[delta:])
			copy(d[group-delta:], a[group-delta:])
			return
		}
	}
	for i := from; i < to; i++ {
		ds[i] = as[source(sub, i, delta, n)]
	}
}

func execVote(w *worker, in *inst) {
	c := in.acc
	lo, hi := w.m.lo, w.m.hi
	as := lanes[uint8](w.p[c.vals[0].p], hi)
	for g := lo &^ (group - 1); g < hi; g += group {
		from, to := max(lo, g), min(hi, g+group)
		var ballot, active uint32
		for i := from; i < to; i++ {
			if w.m.b == nil || w.m.b[i] != 0 {
				active |= 1 << (i - g)
				ballot |= uint32(as[i]) << (i - g)
			}
		}
		switch c.sub {
		case kir.VoteBallot:
			d := lanes[uint32](w.p[c.dst.p], hi)
			for i := from; i < to; i++ {
				d[i] = ballot
			}
		default:
			v := bit(ballot != 0)
			if c.sub == kir.VoteAll {
				v = bit(ballot == active)
			}
			d := lanes[uint8](w.p[c.dst.p], hi)
			for i := from; i < to; i++ {
				d[i] = v
			}
		}
	}
}

func execClock(w *worker, in *inst) { *(*int64)(w.p[in.d]) = w.env.Clock() }

// execSpecial reads a special register that is the same in all lanes.
func execSpecial(w *worker, in *inst) {
	var v uint32
	switch s := in.acc.sub; {
	case s >= kir.NTidX && s <= kir.NTidZ:
		v = uint32(w.ext[s-kir.NTidX])
	case s >= kir.CtaIDX && s <= kir.CtaIDZ:
		v = w.cta[s-kir.CtaIDX]
	default:
		v = w.grid[s-kir.NCtaIDX]
	}
	*(*uint32)(w.p[in.d]) = v
}

// execThreadIdx sets an affinity to a thread coordinate or to the block index.
func execThreadIdx(w *worker, in *inst) {
	var f formula
	switch in.acc.sub {
	case kir.TidX:
		f.x = 1
	case kir.TidY:
		f.y = 1
	case kir.TidZ:
		f.z = 1
	default:
		f.base, f.b = int64(w.cta[0]), 1
	}
	w.keep(in.aff.d.k, &f)
}

func execLaneID(w *worker, in *inst) {
	threads := int(w.ext[0] * w.ext[1] * w.ext[2])
	d := lanes[int32](w.p[in.d], w.m.hi)
	for i := w.m.lo; i < w.m.hi; i++ {
		d[i] = int32(i % threads % group)
	}
}
