package kernels

import (
	gomath "math"
	"sort"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math"
	"tenon.dev/kernel"
)

// Philox is the state of a random number generator from which a launch draws: counter-based Philox4x32-10 (J. Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). The subsequence is the thread's number; each step yields four 32-bit words.
type Philox struct {
	// Seed and Offset are those of the generator; Offset counts words and is a multiple of 4.
	Seed, Offset uint64
	// SeedPtr and OffsetPtr, if not 0, are device addresses of Int64s that the kernel reads instead, for captured graphs; Offset is then
	// added to the value at OffsetPtr.
	SeedPtr, OffsetPtr uint64
}

// captured reports whether the kernel reads the seed and the offset.
func (p *Philox) captured() bool { return p.SeedPtr != 0 }

// philoxArg are the generator's arguments: seed and offset or, if captured, the addresses of both, and then the offset.
type philoxArg struct{ seed, at, offset intArg }

func (a *philoxArg) give(p *Philox) {
	a.seed.host, a.offset.host = int(p.Seed), int(p.Offset)
	if p.captured() {
		a.seed.host, a.at.host = int(p.SeedPtr), int(p.OffsetPtr)
	}
}

func (p params) philox(a *philoxArg, captured bool) {
	if captured {
		p.u64(&a.seed, "seed_ptr")
		p.u64(&a.at, "offset_ptr")
	} else {
		p.u64(&a.seed, "seed")
	}
	p.u64(&a.offset, "offset")
}

// philoxState is a thread's position in its sequence, in a kernel.
type philoxState struct {
	k *kernel.Builder
	// key holds the two halves of the seed, mul the multipliers of a round.
	key, mul [2]kernel.Value
	// first is the product with the subsequence in the first round, low and high half, which is the same for all blocks.
	first [2]kernel.Value
	// block (Uint64) counts groups of four words.
	block kernel.Value
}

// state returns the state of a subsequence, an Int32.
func (a *philoxArg) state(captured bool, subsequence kernel.Value) philoxState {
	k, seed, offset := subsequence.Builder(), a.seed.Value, a.offset.Value
	if captured {
		seed = k.At(seed, dtype.Uint64).Load(k.I32(0))
		offset = k.At(a.at.Value, dtype.Uint64).Load(k.I32(0)).Add(offset)
	}
	low, high := halves(seed)
	p := philoxState{k: k, key: [2]kernel.Value{low, high}, mul: [2]kernel.Value{k.U32(0xD2511F53), k.U32(0xCD9E8D57)},
		block: offset.Shr(k.I32(2))}
	return p.of(subsequence)
}

// of returns the state of another subsequence, an Int32, at the same block.
func (p philoxState) of(subsequence kernel.Value) philoxState {
	third := subsequence.Bitcast(dtype.Uint32)
	p.first = [2]kernel.Value{p.mul[1].Mul(third), p.mul[1].MulHi(third)}
	return p
}

// halves returns the low and high 32 bits of a Uint64.
func halves(v kernel.Value) (low, high kernel.Value) {
	return v.Convert(dtype.Uint32), v.Shr(v.Builder().I32(32)).Convert(dtype.Uint32)
}

// philoxKeys holds the keys of the rounds.
type philoxKeys [10][2]kernel.Value

// keys computes the keys of the rounds. Doing so before a loop takes registers; inside it, instructions.
func (p *philoxState) keys() (keys philoxKeys) {
	k := p.k
	low, high := p.key[0], p.key[1]
	for i := range keys {
		keys[i] = [2]kernel.Value{low, high}
		low, high = low.Add(k.U32(0x9E3779B9)), high.Add(k.U32(0xBB67AE85))
	}
	return keys
}

// words returns the four Uint32s of a block (Uint64) of the sequence.
func (p *philoxState) words(block kernel.Value, keys philoxKeys) [4]kernel.Value {
	low, high := halves(block)
	c := [4]kernel.Value{low, high, {}, p.k.U32(0)}
	for round, key := range keys {
		l0, h0 := p.mul[0].Mul(c[0]), p.mul[0].MulHi(c[0])
		l1, h1 := p.first[0], p.first[1]
		if round > 0 {
			l1, h1 = p.mul[1].Mul(c[2]), p.mul[1].MulHi(c[2])
		}
		c = [4]kernel.Value{h1.Xor(key[0]).Xor(c[1]), l1, h0.Xor(c[3]).Xor(key[1]), l0}
	}
	return c
}

// uniform32 maps a Uint32 to (0, 1] as cuRAND does: x·2⁻³² + 2⁻³³ in float32.
func uniform32(w kernel.Value) kernel.Value {
	return w.Convert(dtype.Float32).FMA(w.Builder().F32(0x1p-32), w.Builder().F32(0x1p-33))
}

// wordsBelow returns how many words uniform32 maps to numbers below p ≤ 1. These are the lowest ones, so a word can be compared with their
// number instead of being mapped.
func wordsBelow(p float64) uint32 {
	return uint32(sort.Search(gomath.MaxUint32, func(w int) bool {
		return float64(float32(float64(float32(uint32(w)))*0x1p-32+0x1p-33)) >= p
	}))
}

// uniform64 maps two Uint32s to (0, 1] as cuRAND does: their low 53 bits, mixed, times 2⁻⁵³, plus 2⁻⁵⁴.
func uniform64(x, y kernel.Value) kernel.Value {
	k := x.Builder()
	z := x.Convert(dtype.Uint64).Xor(y.Convert(dtype.Uint64).Shl(k.I32(21)))
	return z.Convert(dtype.Float64).FMA(k.F64(0x1p-53), k.F64(0x1p-54))
}

// turn32 returns the sine and cosine of 2π(y + ½)/2³² for a Uint32 y, both without the sign from the half turn, which is the top bit of
// half. The nearest quarter turn is in the top two bits of y + 2²⁹. The rest, between -π/4 and π/4, is in the other bits, which are a
// signed number after these two are shifted out.
func turn32(y kernel.Value) (sin, cos, half kernel.Value) {
	k := y.Builder()
	rest := y.Shl(k.I32(2)).Bitcast(dtype.Int32).Convert(dtype.Float32)
	s, c := math.SinCosSmall(k, rest.FMA(k.F32(2*pi/(1<<34)), k.F32(pi/(1<<32))))
	quarter := y.Add(k.U32(1 << 29))
	odd := quarter.And(k.U32(1 << 30)).Ne(k.U32(0))
	return odd.Select(c, s), odd.Select(s.Neg(), c), quarter.And(k.U32(1 << 31))
}
