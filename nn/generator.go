package nn

import (
	"tenon.dev"
	"tenon.dev/internal/mersenne"
)

// HostGenerator draws random numbers on the host with the generator that PyTorch uses for CPU tensors. Modules that are constructed one
// after another with the generator of a seed start with the weights that PyTorch gives the same modules after torch.manual_seed(seed) on
// the CPU: uniform ones are equal in every bit, normal ones up to rounding. Only one goroutine may use it at a time.
//
// Where a function or option takes a *HostGenerator, nil stands for the Exec's own generator (its Generator method), which draws on the
// device: other numbers, from the device's seed, without a copy from the host.
type HostGenerator struct{ mt *mersenne.Generator }

// NewHostGenerator returns a generator seeded with seed.
func NewHostGenerator(seed uint64) *HostGenerator { return &HostGenerator{mersenne.New(seed)} }

// count returns how many numbers a tensor of the shape takes. It refuses more than maxDrawn, and a generator that was never seeded.
func (g *HostGenerator) count(shape []int) int {
	if g.mt == nil {
		fail("HostGenerator", "the generator is a zero value; use one that NewHostGenerator returned")
	}
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > maxDrawn/d {
			fail("HostGenerator", "the host cannot draw a tensor of shape %v; a nil Generator draws it on the device", shape)
		}
		n *= d
	}
	return n
}

// maxDrawn bounds the numbers of one tensor: 512 GiB of float64.
const maxDrawn = 1 << 36

// uniform returns a tensor of numbers between low and high; a nil g stands for x's generator.
func (g *HostGenerator) uniform(x *tenon.Exec, shape []int, dt tenon.DType, low, high float64) *tenon.Tensor {
	if g == nil {
		t := x.Empty(shape, dt)
		x.NoGrad().UniformInto(t, low, high)
		return t
	}
	if dt == tenon.Float64 {
		v := make([]float64, g.count(shape))
		g.mt.Uniform64(v, low, high)
		return tenon.From(x, v, shape...)
	}
	v := make([]float32, g.count(shape))
	g.mt.Uniform32(v, low, high)
	return as(x, v, shape, dt)
}

// normal returns a tensor of normal numbers; a nil g stands for x's generator.
func (g *HostGenerator) normal(x *tenon.Exec, shape []int, dt tenon.DType, mean, std float64) *tenon.Tensor {
	if g == nil {
		t := x.Empty(shape, dt)
		x.NoGrad().NormalInto(t, mean, std)
		return t
	}
	if dt == tenon.Float64 {
		v := make([]float64, g.count(shape))
		for i := range v {
			v[i] = g.mt.NormalFloat64()*std + mean
		}
		return tenon.From(x, v, shape...)
	}
	v := make([]float32, g.count(shape))
	g.mt.Normal32(v, mean, std)
	return as(x, v, shape, dt)
}

// as returns v as a tensor of type dt.
func as(x *tenon.Exec, v []float32, shape []int, dt tenon.DType) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return x.NoGrad().ToDType(tenon.From(x, v, shape...), dt)
	})
}

func numel(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
