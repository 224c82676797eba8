// Package mersenne is the random generator of PyTorch's CPU tensors: Mersenne Twister, and the draws that PyTorch makes from it, bit for
// bit. It must not depend on tensors or devices: it fills slices.
package mersenne

import "math"

const (
	words = 624 // N of MT19937
	shift = 397 // M of MT19937
)

// Generator is MT19937 (M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8, 1998) with its state. It serves one goroutine.
type Generator struct {
	state [words]uint32
	next  int
	// spare is the second normal number of a pair that NormalFloat64 drew.
	spare    float64
	hasSpare bool
}

// New returns a generator in the state of torch.manual_seed(seed): its low 32 bits count.
func New(seed uint64) *Generator {
	g := &Generator{next: words}
	g.state[0] = uint32(seed)
	for i := uint32(1); i < words; i++ {
		p := g.state[i-1]
		g.state[i] = 1812433253*(p^p>>30) + i
	}
	return g
}

// Uint32 returns the next 32 bits.
func (g *Generator) Uint32() uint32 {
	if g.next == words {
		g.twist()
	}
	y := g.state[g.next]
	g.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (g *Generator) twist() {
	for i := range words {
		y := g.state[i]&0x80000000 | g.state[(i+1)%words]&0x7fffffff
		v := g.state[(i+shift)%words] ^ y>>1
		if y&1 != 0 {
			v ^= 0x9908b0df
		}
		g.state[i] = v
	}
	g.next = 0
}

// Uint64 returns the next 64 bits; the first draw gives the high half.
func (g *Generator) Uint64() uint64 {
	hi := uint64(g.Uint32())
	return hi<<32 | uint64(g.Uint32())
}

// Float32 returns a multiple of 2^-24 in [0, 1).
func (g *Generator) Float32() float32 { return float32(g.Uint32()&(1<<24-1)) * (1.0 / (1 << 24)) }

// Float64 returns a multiple of 2^-53 in [0, 1).
func (g *Generator) Float64() float64 { return float64(g.Uint64()&(1<<53-1)) * (1.0 / (1 << 53)) }

// Uniform32 fills dst with numbers between low and high, as uniform_ does with a float32 tensor.
func (g *Generator) Uniform32(dst []float32, low, high float64) {
	lo := float32(low)
	span := float64(float32(high) - lo)
	for i := range dst {
		// PyTorch's build contracts this to a fused multiply-add. Here the product is exact and the sum rounds twice, which gives another
		// result only for an inexact sum that rounds to a tie: about once in 2^29 draws.
		dst[i] = float32(float64(g.Float32())*span + float64(lo))
	}
}

// Uniform64 fills dst with numbers between low and high, as uniform_ does with a float64 tensor.
func (g *Generator) Uniform64(dst []float64, low, high float64) {
	for i := range dst {
		dst[i] = math.FMA(g.Float64(), high-low, low)
	}
}

// normalBlock is the number of elements that normal_ draws together.
const normalBlock = 16

// Normal32 fills dst with normal numbers, as normal_ does with a contiguous float32 tensor: from 16 elements on by blocks of Box-Muller
// pairs in float32, below one by one in float64. PyTorch computes the blocks with vector code of its own, so the last bits may differ.
func (g *Generator) Normal32(dst []float32, mean, std float64) {
	if len(dst) < normalBlock {
		for i := range dst {
			dst[i] = float32(g.NormalFloat64()*std + mean)
		}
		return
	}
	for i := range dst {
		dst[i] = g.Float32()
	}
	for i := 0; i+normalBlock <= len(dst); i += normalBlock {
		boxMuller(dst[i:i+normalBlock], mean, std)
	}
	if len(dst)%normalBlock != 0 {
		tail := dst[len(dst)-normalBlock:]
		for i := range tail {
			tail[i] = g.Float32()
		}
		boxMuller(tail, mean, std)
	}
}

// boxMuller turns 16 uniform numbers into normal ones; element i goes with element i+8.
func boxMuller(b []float32, mean, std float64) {
	for i := range normalBlock / 2 {
		r := math.Sqrt(-2 * math.Log(float64(1-b[i])))
		sin, cos := math.Sincos(2 * math.Pi * float64(b[i+normalBlock/2]))
		b[i], b[i+normalBlock/2] = float32(r*cos*std+mean), float32(r*sin*std+mean)
	}
}

// NormalFloat64 returns a number of the standard normal distribution. It draws pairs and keeps the second for the next call.
func (g *Generator) NormalFloat64() float64 {
	if g.hasSpare {
		g.hasSpare = false
		return g.spare
	}
	angle := 2 * math.Pi * g.Float64()
	r := math.Sqrt(-2 * math.Log1p(-g.Float64()))
	sin, cos := math.Sincos(angle)
	g.spare, g.hasSpare = r*sin, true
	return r * cos
}

// Perm returns a permutation of 0 … n-1, as torch.randperm does for n below 2^32/20.
func (g *Generator) Perm(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := range n - 1 {
		j := i + int(g.Uint32()%uint32(n-i))
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// SkipPerm draws what Perm draws.
func (g *Generator) SkipPerm(n int) {
	for range n - 1 {
		g.Uint32()
	}
}
