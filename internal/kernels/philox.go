package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// Philox is the state of a random number generator that a launch draws from: counter-based Philox4x32-10 (J. Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). The subsequence is the thread's number, and a call takes four 32-bit words a step.
type Philox struct {
	// Seed and Offset are the generator's; Offset counts words and is a multiple of 4.
	Seed, Offset uint64
	// SeedPtr and OffsetPtr, if not 0, are device addresses of Int64s that the kernel reads instead, for captured graphs; Offset is then
	// added to what OffsetPtr holds.
	SeedPtr, OffsetPtr uint64
}

// captured reports whether seed and offset are read by the kernel.
func (p *Philox) captured() bool { return p.SeedPtr != 0 }

// philox appends the parameters that philoxParams declares.
func (l *Launch) philox(p *Philox) {
	if p.captured() {
		l.u64(p.SeedPtr)
		l.u64(p.OffsetPtr)
	} else {
		l.u64(p.Seed)
	}
	l.u64(p.Offset)
}

// philoxState is a thread's place in its sequence, within a kernel.
type philoxState struct {
	k *kernel.Builder
	// key holds the seed's halves, subsequence is Uint32, block (Uint64) counts groups of four words.
	key         [2]kernel.Value
	subsequence kernel.Value
	block       kernel.Value
}

// philoxParams declares the generator's parameters; subsequence is an Int32.
func philoxParams(k *kernel.Builder, captured bool, subsequence kernel.Value) philoxState {
	var seed, offset kernel.Value
	if captured {
		s, o := k.Scalar("seed_ptr", dtype.Uint64), k.Scalar("offset_ptr", dtype.Uint64)
		seed = k.At(s, dtype.Uint64).Load(k.I32(0))
		offset = k.At(o, dtype.Uint64).Load(k.I32(0)).Add(k.Scalar("offset", dtype.Uint64))
	} else {
		seed, offset = k.Scalar("seed", dtype.Uint64), k.Scalar("offset", dtype.Uint64)
	}
	low, high := halves(seed)
	return philoxState{k: k, key: [2]kernel.Value{low, high}, subsequence: subsequence.Bitcast(dtype.Uint32), block: offset.Shr(k.I32(2))}
}

// halves returns the low and high 32 bits of a Uint64.
func halves(v kernel.Value) (low, high kernel.Value) {
	return v.Convert(dtype.Uint32), v.Shr(v.Builder().I32(32)).Convert(dtype.Uint32)
}

// words returns the four Uint32s of step i (Uint64) of the sequence.
func (p *philoxState) words(i kernel.Value) [4]kernel.Value {
	k := p.k
	low, high := halves(p.block.Add(i))
	c := [4]kernel.Value{low, high, p.subsequence, k.U32(0)}
	k0, k1 := p.key[0], p.key[1]
	m0, m1 := k.U32(0xD2511F53), k.U32(0xCD9E8D57)
	for round := range 10 {
		if round > 0 {
			k0, k1 = k0.Add(k.U32(0x9E3779B9)), k1.Add(k.U32(0xBB67AE85))
		}
		h0, h1 := m0.MulHi(c[0]), m1.MulHi(c[2])
		l0, l1 := m0.Mul(c[0]), m1.Mul(c[2])
		c = [4]kernel.Value{h1.Xor(c[1]).Xor(k0), l1, h0.Xor(c[3]).Xor(k1), l0}
	}
	return c
}

// uniform32 maps a Uint32 to (0, 1] as cuRAND does: x·2⁻³² + 2⁻³³ in float32.
func uniform32(w kernel.Value) kernel.Value {
	return w.Convert(dtype.Float32).FMA(w.Builder().F32(0x1p-32), w.Builder().F32(0x1p-33))
}

// uniform64 maps two Uint32s to (0, 1] as cuRAND does: their low 53 bits, mixed, times 2⁻⁵³, plus 2⁻⁵⁴.
func uniform64(x, y kernel.Value) kernel.Value {
	k := x.Builder()
	z := x.Convert(dtype.Uint64).Xor(y.Convert(dtype.Uint64).Shl(k.I32(21)))
	return z.Convert(dtype.Float64).FMA(k.F64(0x1p-53), k.F64(0x1p-54))
}

// turn32 returns sine and cosine of 2π(y + ½)/2³² for a Uint32 y: the nearest quarter turn comes from the top bits exactly, the rest, at
// most π/4, by the series of both functions, whose next terms are below 2e-9.
func turn32(y kernel.Value) (sin, cos kernel.Value) {
	k := y.Builder()
	shifted := y.Add(k.U32(1 << 29))
	quarter := shifted.Shr(k.I32(30))
	rest := shifted.And(k.U32(1<<30 - 1)).Bitcast(dtype.Int32).Sub(k.I32(1 << 29))
	x := rest.Convert(dtype.Float32).Add(k.F32(0.5)).Mul(k.F32(2 * pi / (1 << 32)))
	x2 := x.Mul(x)
	series := func(cs ...float32) kernel.Value {
		p := k.F32(cs[0])
		for _, c := range cs[1:] {
			p = p.FMA(x2, k.F32(c))
		}
		return p
	}
	s := series(1./362880, -1./5040, 1./120, -1./6).Mul(x2).FMA(x, x)
	c := series(-1./3628800, 1./40320, -1./720, 1./24, -1./2, 1)
	swap := quarter.And(k.U32(1)).Ne(k.U32(0))
	sin, cos = swap.Select(c, s), swap.Select(s, c)
	sin = quarter.And(k.U32(2)).Ne(k.U32(0)).Select(sin.Neg(), sin)
	cos = quarter.Add(k.U32(1)).And(k.U32(2)).Ne(k.U32(0)).Select(cos.Neg(), cos)
	return sin, cos
}
