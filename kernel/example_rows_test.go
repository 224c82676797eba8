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

// rowSums sums each row of a matrix, with a block for each row. The threads of a block sum parts of the row, then each other's sums.
var rowSums = kernel.Build("row_sums", func(k *kernel.Builder) {
	const threads = 128
	k.FixedThreads(threads)
	in, out, columns := k.BufferRO("in", tenon.Float32), k.Buffer("out", tenon.Float32), k.Scalar("columns", tenon.Int32)
	part := k.Shared("part", tenon.Float32, threads)
	row, thread := k.BlockIdx(kernel.X), k.ThreadIdx(kernel.X)

	sum := k.Var(k.F32(0))
	k.For(thread, columns, k.I32(threads), func(column kernel.Value) {
		sum.Set(sum.Get().Add(in.Load(row.MulWide(columns).Add(column.Convert(tenon.Int64)))))
	})
	part.Store(thread, sum.Get())
	for half := threads / 2; half > 0; half /= 2 {
		k.Barrier()
		k.If(thread.Lt(k.I32(half)), func() {
			part.Store(thread, part.Load(thread).Add(part.Load(thread.Add(k.I32(half)))))
		})
	}
	k.If(thread.Eq(k.I32(0)), func() { out.Store(row.Convert(tenon.Int64), part.Load(thread)) })
})

// One kernel scales rows with a thread for each element; another sums them with a block for each row.
func ExampleBuilder_Shared() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	const rows, columns = 3, 1000
	in, scale := x.Ones([]int{rows, columns}, tenon.Float32), tenon.From(x, []float32{1, 2, 3})
	scaled, sums := x.EmptyLike(in), x.Empty([]int{rows}, tenon.Float32)

	grid := tenon.LaunchShape{Grid: [3]int{(columns + 255) / 256, rows}, Block: [3]int{256}}
	x.Launch(scaleRows, grid, tenon.In(in), tenon.In(scale), tenon.Out(scaled), tenon.Integer(rows), tenon.Integer(columns))
	x.Launch(rowSums, tenon.LaunchShape{Grid: [3]int{rows}, Block: [3]int{128}}, tenon.In(scaled), tenon.Out(sums), tenon.Integer(columns))
	fmt.Println(tenon.Read[float32](x, sums))
	// Output: [1000 2000 3000] <nil>
}
