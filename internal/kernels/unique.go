package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Unique sorts the vector X in ascending order, equal elements in their original order and NaN last. Order, of Int64, gets the original
// positions of the elements, and Heads, of Bool, whether an element differs from the preceding one; a NaN differs from everything. Both are
// dense and as long as X.
type Unique struct {
	X, Order, Heads Operand
	// Bits, if not 0, says that X holds integers from 0 to 1<<Bits - 1.
	Bits int
}

// uniqueStage is the operation of a kernel of FamilyUnique; it is Spec.Op.
type uniqueStage uint16

const (
	// uniqueKeys writes the keys to sort instead of X, integers with the same order, together with their positions.
	uniqueKeys uniqueStage = iota
	// uniqueHeads compares neighbours.
	uniqueHeads
)

var uniqueNames = []string{"unique_keys", "unique_heads"}

const uniqueThreads = 256

// uniqueSpec is what these kernels are specialised on.
type uniqueSpec struct {
	// Plain: the elements are the keys.
	Plain bool
}

// uniqueArgs are the arguments of these kernels: n elements, which are step apart in x.
type uniqueArgs struct {
	x                        arrayArg
	keys, with, order, heads bufferArg
	n, step                  intArg
}

func (a *uniqueArgs) layout(p params) {
	if uniqueStage(p.s.Op) == uniqueKeys {
		p.array(&a.x, "x", p.s.DTypes[0])
		p.buffer(&a.keys, "keys", p.s.Compute)
		p.buffer(&a.with, "with", p.s.Compute)
		p.i64(&a.step, "step")
	} else {
		p.bufferRO(&a.keys, "keys", p.s.Compute)
		p.bufferRO(&a.with, "with", p.s.Compute)
		p.buffer(&a.order, "order", dtype.Int64)
		p.buffer(&a.heads, "heads", dtype.Bool)
	}
	p.i64(&a.n, "n")
}

// Sort writes Order and Heads.
func (u *Unique) Sort(is Issuer) error {
	t := u.X.DType
	s := keySort{count: u.X.Numel(), bits: 8 * t.Size(), index: 64}
	switch {
	case u.Bits > 0:
		s.bits = u.Bits
	case t == dtype.Bool:
		s.bits = 1
	}
	if s.count == 0 {
		return nil
	}
	if (s.bits < 32 || s.bits == 32 && u.Bits == 0) && s.count <= min(is.Index32(), lane32) {
		s.index = 32
	}
	if err := s.prepare(is); err != nil {
		return err
	}
	var a uniqueArgs
	a.x.host, a.n.host, a.step.host = u.X.Ptr, s.count, u.X.Stride[0]
	a.order.host, a.heads.host = u.Order.Ptr, u.Heads.Ptr
	if err := u.launch(is, uniqueKeys, &s, &a); err != nil {
		return err
	}
	if err := s.sort(is); err != nil {
		return err
	}
	return u.launch(is, uniqueHeads, &s, &a)
}

func (u *Unique) launch(is Issuer, stage uniqueStage, s *keySort, a *uniqueArgs) error {
	l := is.NewLaunch()
	l.Spec = Spec{Family: FamilyUnique, Op: uint16(stage), Compute: indexType(s.index), Ins: 1, Unique: uniqueSpec{u.Bits > 0}}
	l.Spec.DTypes[0] = u.X.DType
	a.keys.host, a.with.host = s.keys[0], s.with[0]
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(ceilDiv(s.count, uniqueThreads)), 1, 1}, [3]uint32{uniqueThreads, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyUnique, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name(uniqueNames[s.Op]), func(k *kernel.Builder) {
		k.FixedThreads(uniqueThreads)
		var a uniqueArgs
		a.layout(declaring(k, s))
		i := k.BlockIdx(kernel.X).MulWide(k.I32(uniqueThreads)).Add(k.ThreadIdx(kernel.X).Convert(dtype.Int64))
		k.If(i.Lt(a.n.Value), func() {
			if uniqueStage(s.Op) == uniqueKeys {
				a.keys.Store(i, s.uniqueKey(a.x.load(i.Mul(a.step.Value), 1)[0]))
				a.with.Store(i, i.Convert(s.Compute))
				return
			}
			key := a.keys.Load(i)
			head := k.Var(k.Bool(true))
			k.If(i.Gt(k.I64(0)), func() { head.Set(key.Ne(a.keys.Load(i.Sub(k.I64(1))))) })
			is := head.Get()
			if t := s.DTypes[0]; t.IsFloat() {
				is = is.Or(key.Eq(k.Int(s.Compute, keyOfNaN(t, s.Compute))))
			}
			a.heads.Store(i, is)
			a.order.Store(i, a.with.Load(i).Convert(dtype.Int64))
		})
	})
})

// keyOfNaN returns the key of NaN of type t as an integer of type ix: the greatest key.
func keyOfNaN(t, ix dtype.DType) int64 {
	if t.Size() < ix.Size() {
		return 1<<(8*t.Size()) - 1
	}
	return -1
}

// uniqueKey returns an integer with as many low bits as the type, which is v's rank in its type. The two zeros of floats have the same
// rank, and so do all NaN.
func (s *Spec) uniqueKey(v Num) kernel.Value {
	k, t, ix := v.Re.Builder(), s.DTypes[0], s.Compute
	sign := k.Int(ix, -1<<(8*t.Size()-1))
	switch {
	case s.Unique.Plain || !t.IsFloat() && !t.IsSigned():
		return v.Re.Convert(ix)
	case !t.IsFloat():
		return v.Re.Convert(ix).Xor(sign)
	}
	all := k.Int(ix, keyOfNaN(t, ix))
	sign = sign.And(all)
	zero, wide := k.Int(ix, 0), v.Convert(opmath(t)).Re
	bits := wide.Eq(wide.Like(0)).Select(zero, v.Re.Bitcast(bitsType(t.Size())).Convert(ix))
	// The greater the bits of a negative number, the smaller it is.
	bits = bits.Xor(bits.And(sign).Ne(zero).Select(all, sign))
	return wide.IsNaN().Select(all, bits)
}
