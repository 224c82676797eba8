package kernels

import (
	"testing"

	"tenon.dev/dtype"
)

// planner is an Issuer that only keeps the launches.
type planner struct {
	l       Launch
	limits  Limits
	index32 int
	count   int
}

func newPlanner() *planner {
	return &planner{limits: Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 48 << 10, Major: 9}, index32: 1<<31 - 1}
}

func (p *planner) NewLaunch() *Launch {
	p.l = Launch{Args: p.l.Args[:0]}
	return &p.l
}
func (p *planner) Issue(*Launch) error            { p.count++; return nil }
func (p *planner) Workspace(int) (uint64, error)  { return 1 << 20, nil }
func (p *planner) Limits() *Limits                { return &p.limits }
func (p *planner) Index32() int                   { return p.index32 }
func (p *planner) Memset(uint64, byte, int) error { return nil }

func at(ptr uint64, t dtype.DType, shape ...int) Operand {
	o := Operand{Ptr: ptr, DType: t, Shape: shape, Stride: make([]int, len(shape))}
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		o.Stride[d] = n
		n *= max(1, shape[d])
	}
	return o
}

func TestPointwiseAllocatesNothing(t *testing.T) {
	p := newPlanner()
	outs := []Operand{at(4096, dtype.Float32, 64, 100)}
	ins := []Operand{at(8192, dtype.Float32, 64, 100), at(16384, dtype.Float32, 64, 100)}
	bias := []Operand{ins[0], {Ptr: 16384, DType: dtype.Float32, Shape: []int{64, 100}, Stride: []int{0, 1}}}
	for name, in := range map[string][]Operand{"contiguous": ins, "broadcast": bias} {
		run := func() {
			if err := Pointwise(p, Add, dtype.Float32, nil, outs, in); err != nil {
				t.Fatal(err)
			}
		}
		run()
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
	if _, err := Build(&p.l.Spec).Program(); err != nil {
		t.Error(err)
	}
}

func BenchmarkPointwisePlan(b *testing.B) {
	p := newPlanner()
	outs := []Operand{at(4096, dtype.Float32, 64, 100)}
	ins := []Operand{at(8192, dtype.Float32, 64, 100), at(16384, dtype.Float32, 64, 100)}
	bias := []Operand{ins[0], {Ptr: 16384, DType: dtype.Float32, Shape: []int{64, 100}, Stride: []int{0, 1}}}
	b.Run("contiguous", func(b *testing.B) {
		for range b.N {
			Pointwise(p, Add, dtype.Float32, nil, outs, ins)
		}
	})
	b.Run("broadcast", func(b *testing.B) {
		for range b.N {
			Pointwise(p, Add, dtype.Float32, nil, outs, bias)
		}
	})
}
