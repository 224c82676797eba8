package vexec

import (
	"math"
	"sync/atomic"
	"unsafe"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// atomicFunc applies an operation with operand v (bits) to the element at p and returns the old bits; old is the value that AtomCAS
// expects.
type atomicFunc func(p unsafe.Pointer, old, v uint64) uint64

// atomic emits an atomic operation. args are the index and the operands.
func (e *emitter) atomic(in *kir.Instr, c *access, args []kir.Value, pos int) {
	c.width, c.store = 1, true
	c.atomic = atomicOf(in.Sub, in.Type)
	if c.atomic == nil {
		e.fail("atomic %d of %v is not an operation", in.Sub, in.Type)
		return
	}
	if in.Space == kir.Global {
		e.spell(in.Args[0])
	}
	e.spell(args...)
	c.vals = e.refs(args[1:])
	if len(in.Res) > 0 && in.Res[0] != kir.NoValue && e.a.values[in.Res[0]].uses > 0 {
		c.dst = e.define(in.Res[0])
	}
	e.add(inst{exec: execAtomic, acc: c})
}

func execAtomic(w *worker, in *inst) {
	c := in.acc
	s := w.start(c)
	b := w.m.b
	bits := func(r *ref, lane int) uint64 {
		p := w.p[r.p]
		if r.class != uniform {
			p = unsafe.Add(p, lane*int(c.size))
		}
		if c.size == 4 {
			return uint64(*(*uint32)(p))
		}
		return *(*uint64)(p)
	}
	for i, hi := w.m.lo, w.m.hi; i < hi; i++ {
		if b != nil && b[i] == 0 {
			continue
		}
		p := w.place(c, s, i, w.laneAddr(c, i))
		if p == nil {
			return
		}
		old, v := uint64(0), bits(&c.vals[0], i)
		if len(c.vals) > 1 {
			old, v = v, bits(&c.vals[1], i)
		}
		got := c.atomic(p, old, v)
		if c.dst.class != unused {
			if c.size == 4 {
				*(*uint32)(unsafe.Add(w.p[c.dst.p], i*4)) = uint32(got)
			} else {
				*(*uint64)(unsafe.Add(w.p[c.dst.p], i*8)) = got
			}
		}
	}
}

// update32 applies f atomically to the 4 bytes at p.
func update32(p unsafe.Pointer, f func(old uint32) uint32) uint64 {
	a := (*uint32)(p)
	for {
		old := atomic.LoadUint32(a)
		if atomic.CompareAndSwapUint32(a, old, f(old)) {
			return uint64(old)
		}
	}
}

func update64(p unsafe.Pointer, f func(old uint64) uint64) uint64 {
	a := (*uint64)(p)
	for {
		old := atomic.LoadUint64(a)
		if atomic.CompareAndSwapUint64(a, old, f(old)) {
			return old
		}
	}
}

// cas32 stores v if the element equals old.
func cas32(p unsafe.Pointer, old, v uint64) uint64 {
	return update32(p, func(x uint32) uint32 {
		if x == uint32(old) {
			return uint32(v)
		}
		return x
	})
}

func cas64(p unsafe.Pointer, old, v uint64) uint64 {
	return update64(p, func(x uint64) uint64 {
		if x == old {
			return v
		}
		return x
	})
}

// atomicOf returns the function for an operation on a type, or nil if there is none.
func atomicOf(sub kir.Sub, t dtype.DType) atomicFunc {
	if t.IsFloat() && sub != kir.AtomAdd || t.Size() < 4 {
		return nil
	}
	if t.Size() == 4 {
		return atomic32(sub, t)
	}
	return atomic64(sub, t)
}

func atomic32(sub kir.Sub, t dtype.DType) atomicFunc {
	type P = unsafe.Pointer
	signed := t == dtype.Int32
	switch sub {
	case kir.AtomAdd:
		if t == dtype.Float32 {
			return func(p P, _, v uint64) uint64 {
				return update32(p, func(x uint32) uint32 {
					return math.Float32bits(math.Float32frombits(x) + math.Float32frombits(uint32(v)))
				})
			}
		}
		return func(p P, _, v uint64) uint64 { return uint64(atomic.AddUint32((*uint32)(p), uint32(v)) - uint32(v)) }
	case kir.AtomMin:
		if signed {
			return func(p P, _, v uint64) uint64 {
				return update32(p, func(x uint32) uint32 { return uint32(min(int32(x), int32(v))) })
			}
		}
		return func(p P, _, v uint64) uint64 {
			return update32(p, func(x uint32) uint32 { return min(x, uint32(v)) })
		}
	case kir.AtomMax:
		if signed {
			return func(p P, _, v uint64) uint64 {
				return update32(p, func(x uint32) uint32 { return uint32(max(int32(x), int32(v))) })
			}
		}
		return func(p P, _, v uint64) uint64 {
			return update32(p, func(x uint32) uint32 { return max(x, uint32(v)) })
		}
	case kir.AtomAnd:
		return func(p P, _, v uint64) uint64 { return uint64(atomic.AndUint32((*uint32)(p), uint32(v))) }
	case kir.AtomOr:
		return func(p P, _, v uint64) uint64 { return uint64(atomic.OrUint32((*uint32)(p), uint32(v))) }
	case kir.AtomXor:
		return func(p P, _, v uint64) uint64 {
			return update32(p, func(x uint32) uint32 { return x ^ uint32(v) })
		}
	case kir.AtomExch:
		return func(p P, _, v uint64) uint64 { return uint64(atomic.SwapUint32((*uint32)(p), uint32(v))) }
	case kir.AtomCAS:
		return cas32
	}
	return nil
}

func atomic64(sub kir.Sub, t dtype.DType) atomicFunc {
	type P = unsafe.Pointer
	signed := t == dtype.Int64
	switch sub {
	case kir.AtomAdd:
		if t == dtype.Float64 {
			return func(p P, _, v uint64) uint64 {
				return update64(p, func(x uint64) uint64 {
					return math.Float64bits(math.Float64frombits(x) + math.Float64frombits(v))
				})
			}
		}
		return func(p P, _, v uint64) uint64 { return atomic.AddUint64((*uint64)(p), v) - v }
	case kir.AtomMin:
		if signed {
			return func(p P, _, v uint64) uint64 {
				return update64(p, func(x uint64) uint64 { return uint64(min(int64(x), int64(v))) })
			}
		}
		return func(p P, _, v uint64) uint64 {
			return update64(p, func(x uint64) uint64 { return min(x, v) })
		}
	case kir.AtomMax:
		if signed {
			return func(p P, _, v uint64) uint64 {
				return update64(p, func(x uint64) uint64 { return uint64(max(int64(x), int64(v))) })
			}
		}
		return func(p P, _, v uint64) uint64 {
			return update64(p, func(x uint64) uint64 { return max(x, v) })
		}
	case kir.AtomAnd:
		return func(p P, _, v uint64) uint64 { return atomic.AndUint64((*uint64)(p), v) }
	case kir.AtomOr:
		return func(p P, _, v uint64) uint64 { return atomic.OrUint64((*uint64)(p), v) }
	case kir.AtomXor:
		return func(p P, _, v uint64) uint64 {
			return update64(p, func(x uint64) uint64 { return x ^ v })
		}
	case kir.AtomExch:
		return func(p P, _, v uint64) uint64 { return atomic.SwapUint64((*uint64)(p), v) }
	case kir.AtomCAS:
		return cas64
	}
	return nil
}
