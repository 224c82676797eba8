package kernel_test

import (
	"runtime"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// TestBlockIsUniform: a result of BlockSum, BlockMax or BlockMin is the same in all threads, so that it may decide whether they all go on,
// also by another of them.
func TestBlockIsUniform(t *testing.T) {
	for _, fixed := range []int{0, 16, 32, 64, 1024} {
		_, err := kernel.Build("k", func(k *kernel.Builder) {
			if fixed > 0 {
				k.FixedThreads(fixed)
			}
			v := k.Buffer("b", dtype.Int32).Load(k.ThreadIdx(kernel.X))
			k.For(k.BlockMin(v), k.BlockMax(v), k.I32(1), func(kernel.Value) {
				k.If(k.BlockSum(v).Gt(k.I32(0)), k.Return)
			})
			k.Barrier()
		}).Program()
		if err != nil {
			t.Errorf("%d threads: %v", fixed, err)
		}
	}
}

// TestBlockLines: all instructions of BlockSum have the line of the program that calls it, and those of one type share an array.
func TestBlockLines(t *testing.T) {
	_, _, line, _ := runtime.Caller(0)
	for _, fixed := range []int{0, 48} {
		p, err := kernel.Build("k", func(k *kernel.Builder) {
			if fixed > 0 {
				k.FixedThreads(fixed)
			}
			v, w := k.Scalar("v", dtype.Float32), k.Scalar("w", dtype.Float64)
			k.BlockSum(v)
			k.BlockMin(w)
			k.BlockMax(v)
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		if want := []kir.Loc{{}, {File: "kernel/block_test.go", Line: line + 6}, {File: "kernel/block_test.go", Line: line + 7},
			{File: "kernel/block_test.go", Line: line + 8}, {File: "kernel/block_test.go", Line: line + 9}}; !slices.Equal(p.Locs, want) {
			t.Errorf("%d threads: lines %v, want %v", fixed, p.Locs, want)
		}
		located(t, p.Body)
		if len(p.Shared) != 2 {
			t.Errorf("%d threads: %d arrays, want one for each type", fixed, len(p.Shared))
		}
	}
}

// TestBlockInTile: the function of a tile operation does not run in each thread.
func TestBlockInTile(t *testing.T) {
	_, file, line, _ := runtime.Caller(0)
	_, err := kernel.Build("k", func(k *kernel.Builder) {
		k.Tile("t", dtype.Float32, 16, 16).Each(1, func(row, col kernel.Value, v []kernel.Value) {
			k.BlockSum(v[0])
		})
	}).Program()
	wantMistake(t, err, "BlockSum may not stand in the function of a tile operation; move it out", file, line+3)
}

// located checks that all instructions have a line.
func located(t *testing.T, b *kir.Block) {
	t.Helper()
	for _, in := range b.Instrs {
		if in.Loc == 0 {
			t.Errorf("%v has no line", in.Op)
		}
		for _, r := range in.Blocks {
			located(t, r)
		}
	}
}
