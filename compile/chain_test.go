package compile_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
)

// chains is a program of element-wise calls, drawn from a seed: on tensors of several types and shapes that broadcast, with views, changes
// in place, conversions, comparisons and selections.
type chains struct {
	seed       uint64
	rows, cols int
	// inputs are read, state is changed in place, and kept outlives a step.
	inputs, state, kept []*tenon.Tensor
	// side is a stream on which some programs run part of the calls, or nil.
	side *cuda.Stream
}

var chainTypes = []tenon.DType{tenon.Float32, tenon.BFloat16, tenon.Float16, tenon.Int32, tenon.Uint8, tenon.Bool,
	tenon.Float64, tenon.Int64}

func newChains(x *tenon.Exec, seed uint64) *chains {
	rng := rand.New(rand.NewPCG(seed, 21))
	p := &chains{seed: seed, rows: 2 + rng.IntN(7), cols: 8 + rng.IntN(90)}
	make1 := func(dt tenon.DType, shape ...int) *tenon.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.IntN(257)-128) / 16
		}
		if dt == tenon.Uint8 {
			for i := range v {
				v[i] = float32(rng.IntN(200))
			}
		}
		return x.ToDType(tenon.From(x, v, shape...), dt)
	}
	for _, dt := range chainTypes {
		p.inputs = append(p.inputs, make1(dt, p.rows, p.cols))
		shape := [][]int{{p.cols}, {p.rows, 1}, {}, {1, p.cols}}[rng.IntN(4)]
		p.inputs = append(p.inputs, make1(dt, shape...))
	}
	p.inputs = append(p.inputs, x.Transpose(make1(tenon.Float32, p.cols, p.rows), 0, 1))
	for _, dt := range chainTypes[:4] {
		p.state = append(p.state, make1(dt, p.rows, p.cols))
	}
	return p
}

func (p *chains) step(main *tenon.Exec, n int) {
	x, side := main, main
	if p.side != nil {
		side = main.On(p.side)
	}
	// what stays open differs from step to step
	rng, open := rand.New(rand.NewPCG(p.seed, 22)), rand.New(rand.NewPCG(p.seed, uint64(23+n/2)))
	live := slices.Clone(p.inputs)
	live = append(live, p.state...)
	var own []*tenon.Tensor // made in the step, of the full shape
	pick := func() *tenon.Tensor {
		if len(own) > 0 && rng.IntN(4) > 0 {
			return own[len(own)-1-rng.IntN(min(3, len(own)))]
		}
		return live[rng.IntN(len(live))]
	}
	float := func() *tenon.Tensor {
		if t := pick(); t.DType() != tenon.Bool && t.DType() != tenon.Uint8 && t.DType() != tenon.Int32 && t.DType() != tenon.Int64 {
			return t
		}
		return p.inputs[0]
	}
	number := func() *tenon.Tensor {
		for {
			if t := pick(); t.DType() != tenon.Bool {
				return t
			}
		}
	}
	value := float64(n+1) / 4
	for range 8 + rng.IntN(24) {
		if x = main; rng.IntN(4) == 0 {
			x = side
		}
		var y *tenon.Tensor
		switch rng.IntN(17) {
		case 0:
			y = x.Add(pick(), pick())
		case 1:
			y = x.Mul(number(), number())
		case 2:
			y = x.Sub(number(), number())
		case 3:
			y = x.MulS(number(), value)
		case 4:
			y = x.AddS(number(), float64(n))
		case 5:
			y = x.Tanh(float())
		case 6:
			y = x.Where(x.Gt(number(), number()), number(), number())
		case 7:
			y = x.ToDType(pick(), chainTypes[rng.IntN(len(chainTypes))])
		case 8:
			y = x.ClampMin(number(), x.Full(nil, -3, tenon.Float32))
		case 9:
			s := p.state[rng.IntN(len(p.state))]
			x.CopyInto(s, pick()) // of any type
			x.MulSInto(s, s, 2)
			y = s
		case 10:
			s := p.state[rng.IntN(2)]
			x.AddInto(s, s, x.Sigmoid(float()))
			y = x.Square(s)
		case 11:
			s := p.state[rng.IntN(len(p.state))]
			row := x.Narrow(s, 0, rng.IntN(p.rows), 1)
			x.MulSInto(row, row, 3)
			y = x.Add(s, row)
		case 12:
			y = x.Clone(number())
			x.AddSInto(y, y, 1)
		case 13:
			y = x.Add(x.Full([]int{p.rows, p.cols}, value, tenon.Float32), pick())
		case 14:
			y = x.LogicalAnd(pick(), x.NeS(pick(), 1))
		case 15: // not element-wise
			y = x.Add(x.Sum(float(), []int{-1}, tenon.SumOpt{KeepDim: true}), pick())
		case 16:
			y = x.Contiguous(x.Transpose(x.Add(pick(), p.inputs[0]), 0, 1))
			y = x.Transpose(y, 0, 1)
		}
		if y.Dim() == 2 && y.Size(0) == p.rows && y.Size(1) == p.cols {
			own = append(own, y)
		} else {
			own = append(own, x.Add(y, p.inputs[0]))
		}
		if rng.IntN(10) == 0 {
			p.kept = append(p.kept, x.Keep(x.Clone(own[len(own)-1])))
		}
		last := own[len(own)-1]
		if open.IntN(12) == 0 && !slices.Contains(live, last) && !slices.Contains(p.kept, last) {
			p.kept = append(p.kept, x.Keep(last))
		}
		if rng.IntN(10) == 0 && !slices.Contains(live, y) && !slices.Contains(p.kept, y) {
			y.Close()
			own = slices.DeleteFunc(own, func(t *tenon.Tensor) bool { return t == y })
		}
	}
	p.kept = append(p.kept, main.Keep(main.Clone(own[len(own)-1])))
}

// runChains runs a program's steps and returns the bits of what it left, and the bytes that it holds at the end.
func runChains(x *tenon.Exec, seed uint64, r *compile.Region) (out string, held int64, err error) {
	start := x.Device().MemoryAllocated()
	x.Scope(func(x *tenon.Exec) {
		p := newChains(x, seed)
		if seed%3 == 0 {
			if p.side, err = x.Device().Stream(); err != nil {
				return
			}
		}
		for n := range 7 {
			step := func(x *tenon.Exec) error { p.step(x, n); return nil }
			if r == nil {
				err = tenon.Try(func() { x.Scope(func(x *tenon.Exec) { err = step(x) }) })
			} else {
				err = r.Do(x, step)
			}
			if err != nil {
				return
			}
		}
		if r != nil {
			if err = compile.Reset(x); err != nil {
				return
			}
		}
		held = x.Device().MemoryAllocated() - start
		for i, t := range slices.Concat(p.inputs, p.state, p.kept) {
			b, e := x.Bytes(x.Contiguous(t))
			if err = e; err != nil {
				return
			}
			out += fmt.Sprintf("%d %v %v %s\n", i, t.DType(), t.Shape(), digest(b))
		}
	})
	return out, held, err
}

// Chains of element-wise calls leave the same bits in a region, fused or not, and hold the same memory.
func TestRandomChains(t *testing.T) {
	x := openAlone(t).NoGrad()
	total := compile.Stats{}
	for seed := range uint64(programs / 6) {
		live := core.LiveStorages()
		want, memory, err := runChains(x, seed, nil)
		if err != nil {
			t.Fatalf("program %d, eager: %v", seed, err)
		}
		for _, opt := range []compile.Opt{{}, {NoGraphs: true}, {NoFusion: true}} {
			r := compile.New(opt)
			got, held, err := runChains(x, seed, r)
			if err != nil {
				t.Fatalf("program %d: %v", seed, err)
			}
			if got != want {
				t.Fatalf("program %d gives other results in a region of %+v:\n%.3000s\nwant\n%.3000s", seed, opt, got, want)
			}
			if held != memory {
				t.Fatalf("program %d holds %d bytes in a region of %+v, and %d without", seed, held, opt, memory)
			}
			if n := core.LiveStorages(); n > live {
				t.Fatalf("program %d leaves %d storages", seed, n-live)
			}
			s := r.Stats(x)
			if opt.NoFusion != (s.Fused == 0) && s.Dropped == 0 {
				t.Errorf("program %d: %+v with %+v", seed, s, opt)
			}
			if !opt.NoFusion {
				total.Recordings += s.Recordings
				total.Replays += s.Replays
				total.Deferred += s.Deferred
				total.Kernels += s.Kernels
				total.Fused += s.Fused
				total.Dropped += s.Dropped
			}
		}
	}
	t.Logf("%+v", total)
	if total.Fused < total.Deferred/3 || total.Kernels > total.Deferred*2/3 {
		t.Error("too little was fused")
	}
}
