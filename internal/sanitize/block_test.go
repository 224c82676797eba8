//go:build planted

package sanitize

import (
	"fmt"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// blockSums sums a variable over blocks of n threads three times, in a loop. Fixed says that the program promises n.
func blockSums(t *testing.T, name string, n int, fixed bool) (p *kir.Program, line int) {
	p, err := kernel.Build(name, func(k *kernel.Builder) {
		if k.Threads(n); fixed {
			k.FixedThreads(n)
		}
		out, in, thread := k.Buffer("out", dtype.Float32), k.Buffer("in", dtype.Float32), k.ThreadIdx(kernel.X)
		at := thread.And(k.I32(lanes - 1))
		sum := k.Var(in.Load(at))
		k.For(k.I32(0), k.I32(3), k.I32(1), func(kernel.Value) {
			line = here() + 1
			sum.Set(k.BlockSum(sum.Get()))
		})
		k.If(thread.Eq(at), func() { out.Store(at, sum.Get()) })
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	return p, line
}

// hasty runs blockSums without one of the two barriers of BlockSum, counted from 0.
func hasty(t *testing.T, barrier int) {
	r := newRig(t)
	p, line := blockSums(t, fmt.Sprintf("hasty_sums_%d", barrier), 3*lanes, true)
	loop := p.Body.Instrs[slices.IndexFunc(p.Body.Instrs, func(in *kir.Instr) bool { return in.Op == kir.OpFor })]
	n := -1
	loop.Blocks[0].Instrs = slices.DeleteFunc(loop.Blocks[0].Instrs, func(in *kir.Instr) bool {
		if in.Op == kir.OpBarrier {
			n++
		}
		return in.Op == kir.OpBarrier && n == barrier
	})
	plantsIn("block_test.go", "race", p.Name, line)
	r.run(p, r.zeroed(), r.zeroed())
}

func TestBlockTooEarly(t *testing.T) { hasty(t, 0) }
func TestBlockTooLate(t *testing.T)  { hasty(t, 1) }

// TestRepairedBlock runs the same with both barriers, in blocks of several sizes.
func TestRepairedBlock(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 96, 256, 1024} {
		for _, fixed := range []bool{false, true} {
			t.Run(fmt.Sprint(n, fixed), func(t *testing.T) { // so that the device is closed before the next one is opened
				r := newRig(t)
				p, _ := blockSums(t, "block_sums", n, fixed)
				r.run(p, r.zeroed(), r.zeroed())
			})
		}
	}
}
