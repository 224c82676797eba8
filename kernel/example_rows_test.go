package kernel_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/kernel"
)

// scaleRows multiplies row r of a matrix by scale[r], with a thread for each element in two dimensions.
var scaleRows = kernel.Build("scale_rows", func(k *kernel.Builder) {
	in, scale, out := k.BufferRO("in", tenon.Float32), k.BufferRO("scale", tenon.Float32), k.Buffer("out", tenon.Float32)
	rows, columns := k.Scalar("rows", tenon.Int32), k.Scalar("columns", tenon.Int32)
	column := k.BlockIdx(kernel.X).Mul(k.BlockDim(kernel.X)).Add(k.ThreadIdx(kernel.X))
	row := k.BlockIdx(kernel.Y)
	k.If(row.Lt(rows).And(column.Lt(columns)), func() {
		i := row.MulWide(columns).Add(column.Convert(tenon.Int64))
		out.Store(i, in.Load(i).Mul(scale.Load(row.Convert(tenon.Int64))))
	})
})

// rowSums sums each row of a matrix, with a block for each row. The threads of a block sum parts of the row, and the block adds the sums.
var rowSums = kernel.Build("row_sums", func(k *kernel.Builder) {
	const threads = 128
	k.FixedThreads(threads)
	in, out, columns := k.BufferRO("in", tenon.Float32), k.Buffer("out", tenon.Float32), k.Scalar("columns", tenon.Int32)
	row, thread := k.BlockIdx(kernel.X), k.ThreadIdx(kernel.X)

	part := k.Var(k.F32(0))
	k.For(thread, columns, k.I32(threads), func(column kernel.Value) {
		part.Set(part.Get().Add(in.Load(row.MulWide(columns).Add(column.Convert(tenon.Int64)))))
	})
	sum := k.BlockSum(part.Get())
	k.If(thread.Eq(k.I32(0)), func() { out.Store(row, sum) })
})

// One kernel scales rows with a thread for each element; another sums them with a block for each row.
func ExampleBuilder_BlockSum() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	const rows, columns = 3, 1000
	in, scale := x.Ones([]int{rows, columns}, tenon.Float32), tenon.From(x, []float32{1, 2, 3})
	scaled, sums := x.EmptyLike(in), x.Empty([]int{rows}, tenon.Float32)

	grid := tenon.LaunchShape{Grid: [3]int{(columns + 255) / 256, rows, 1}, Block: [3]int{256}}
	x.Launch(scaleRows, grid, tenon.In(in), tenon.In(scale), tenon.Out(scaled), tenon.Integer(rows), tenon.Integer(columns))
	x.Launch(rowSums, tenon.LaunchShape{Grid: [3]int{rows, 1, 1}}, tenon.In(scaled), tenon.Out(sums), tenon.Integer(columns))
	fmt.Println(tenon.Read[float32](x, sums))
	// Output: [1000 2000 3000] <nil>
}

// histogram counts how often each byte occurs. The threads of a block count together, in shared memory, and add their counts to out.
var histogram = kernel.Build("histogram", func(k *kernel.Builder) {
	k.FixedThreads(256)
	in, out, n := k.BufferRO("in", tenon.Uint8), k.Buffer("out", tenon.Int32), k.Scalar("n", tenon.Int64)
	counts, thread := k.Shared("counts", tenon.Int32, 256), k.ThreadIdx(kernel.X)

	counts.Store(thread, k.I32(0))
	k.Barrier()
	k.ForEach(n, func(i kernel.Value) { counts.Atomic(kernel.AtomicAdd, in.Load(i).Convert(tenon.Int32), k.I32(1)) })
	k.Barrier()
	out.Atomic(kernel.AtomicAdd, thread, counts.Load(thread))
})

// Counting in shared memory.
func ExampleBuilder_Shared() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	text := []byte("the quick brown fox jumps over the lazy dog")
	in, out := tenon.From(x, text), x.Zeros([]int{256}, tenon.Int32)
	x.Launch(histogram, tenon.Over(len(text)), tenon.In(in), tenon.Out(out), tenon.Integer(len(text)))
	counts, err := tenon.Read[int32](x, out)
	fmt.Println(counts['e'], counts['o'], counts[' '], err)
	// Output: 3 4 8 <nil>
}
