package kernel_test

import (
	"fmt"
	"log"
	"strings"

	"tenon.dev"
	"tenon.dev/kernel"
)

// A kernel is built once and runs on every device.
var saxpy = kernel.Build("saxpy", func(k *kernel.Builder) {
	a, n := k.Scalar("a", tenon.Float32), k.Scalar("n", tenon.Int64)
	x, y := k.Buffer("x", tenon.Float32), k.Buffer("y", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i, a.Mul(x.Load(i)).Add(y.Load(i))) })
})

func ExampleBuild() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	p, q := tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []float32{10, 10, 10})
	n := p.Numel()
	x.Launch(saxpy, tenon.Over(n), tenon.Number(2), tenon.Integer(n), tenon.In(p), tenon.Out(q))
	fmt.Println(tenon.Read[float32](x, q))
	// Output: [12 14 16] <nil>
}

// product is c[rows,columns] = a[rows,inner] x b[inner,columns], with a block for each 64 x 64 of c. On a GPU the tiles are in shared
// memory and registers, and the loop loads two iterations ahead.
var product = kernel.Build("product", func(k *kernel.Builder) {
	const size, depth = 64, 16
	k.FixedThreads(128)
	a, b, c := k.BufferRO("a", tenon.Float32), k.BufferRO("b", tenon.Float32), k.Buffer("c", tenon.Float32)
	rows, columns, inner := k.Scalar("rows", tenon.Int32), k.Scalar("columns", tenon.Int32), k.Scalar("inner", tenon.Int32)
	left, right, sum := k.Tile("left", tenon.Float32, size, depth), k.Tile("right", tenon.Float32, depth, size),
		k.Tile("sum", tenon.Float32, size, size)
	row0, column0 := k.BlockIdx(kernel.Y).Mul(k.I32(size)), k.BlockIdx(kernel.X).Mul(k.I32(size))
	at := func(row, column, width kernel.Value) kernel.Value {
		return row.MulWide(width).Add(column.Convert(tenon.Int64))
	}
	sum.Zero()
	k.Pipelined(3, k.I32(0), inner, k.I32(depth), func(i kernel.Value) {
		left.Load(kernel.AlongCols, 1, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			row, column := row0.Add(r), i.Add(c)
			return a, at(row, column, inner), row.Lt(rows).And(column.Lt(inner))
		})
		right.Load(kernel.AlongCols, 1, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			row, column := i.Add(r), column0.Add(c)
			return b, at(row, column, columns), row.Lt(inner).And(column.Lt(columns))
		})
		sum.Dot(left, right, false)
	})
	sum.Each(1, func(r, col kernel.Value, v []kernel.Value) {
		row, column := row0.Add(r), column0.Add(col)
		k.If(row.Lt(rows).And(column.Lt(columns)), func() { c.Store(at(row, column, columns), v[0]) })
	})
})

// A matrix product of tiles.
func ExampleBuilder_Tile() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	const rows, columns, inner = 100, 70, 33
	a, b := x.RandN([]int{rows, inner}, tenon.Float32), x.RandN([]int{inner, columns}, tenon.Float32)
	c := x.Empty([]int{rows, columns}, tenon.Float32)
	blocks := tenon.LaunchShape{Grid: [3]int{(columns + 63) / 64, (rows + 63) / 64, 1}}
	x.Launch(product, blocks, tenon.In(a), tenon.In(b), tenon.Out(c), tenon.Integer(rows), tenon.Integer(columns), tenon.Integer(inner))
	difference, err := x.Item(x.Max(x.Abs(x.Sub(c, x.MatMul(a, b)))))
	fmt.Println(difference < 1e-4, err)
	// Output: true <nil>
}

// PTX shows how a GPU multiplies tiles: those of Float32 without tf32 by ordinary instructions, and those of BFloat16 on the Tensor Cores.
func ExampleTile_Dot() {
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	text, err := x.Device().PTX(product)
	fmt.Println(strings.Contains(text, "wgmma.mma_async"), strings.Contains(text, "mma.sync"), err) // false false <nil>
	text, err = x.Device().PTX(mapped)
	fmt.Println(strings.Contains(text, "wgmma.mma_async"), err)
	// Output:
	// false false <nil>
	// true <nil>
}

// mapped is the product of bfloat16 matrices whose tiles are loaded through tensor maps. An H200's copy engine fetches them; every other
// device runs the functions.
var mapped = kernel.Build("mapped", func(k *kernel.Builder) {
	const size, depth = 64, 64
	k.FixedThreads(128)
	am, bm := k.TensorMap("am"), k.TensorMap("bm")
	a, b, c := k.BufferRO("a", tenon.BFloat16), k.BufferRO("b", tenon.BFloat16), k.Buffer("c", tenon.Float32)
	rows, columns, inner := k.Scalar("rows", tenon.Int32), k.Scalar("columns", tenon.Int32), k.Scalar("inner", tenon.Int32)
	left, right, sum := k.Tile("left", tenon.BFloat16, size, depth), k.Tile("right", tenon.BFloat16, depth, size),
		k.Tile("sum", tenon.Float32, size, size)
	row0, column0 := k.BlockIdx(kernel.Y).Mul(k.I32(size)), k.BlockIdx(kernel.X).Mul(k.I32(size))
	at := func(row, column, width kernel.Value) kernel.Value {
		return row.MulWide(width).Add(column.Convert(tenon.Int64))
	}
	sum.Zero()
	k.Pipelined(3, k.I32(0), inner, k.I32(depth), func(i kernel.Value) {
		left.LoadMapped(am, i, row0, k.I32(0), kernel.AlongCols, 8, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			row, column := row0.Add(r), i.Add(c)
			return a, at(row, column, inner), row.Lt(rows).And(column.Lt(inner))
		})
		right.LoadMapped(bm, column0, i, k.I32(0), kernel.AlongCols, 8,
			func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, column := i.Add(r), column0.Add(c)
				return b, at(row, column, columns), row.Lt(inner).And(column.Lt(columns))
			})
		sum.Dot(left, right, false)
	})
	sum.Each(1, func(r, col kernel.Value, v []kernel.Value) {
		row, column := row0.Add(r), column0.Add(col)
		k.If(row.Lt(rows).And(column.Lt(columns)), func() { c.Store(at(row, column, columns), v[0]) })
	})
})

// A matrix product whose tiles are loaded through tensor maps: each operand is given both as a map and as a buffer.
func ExampleTile_LoadMapped() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	const rows, columns, inner = 100, 72, 40
	a, b := x.Full([]int{rows, inner}, 2, tenon.BFloat16), x.Full([]int{inner, columns}, 3, tenon.BFloat16)
	c := x.Empty([]int{rows, columns}, tenon.Float32)
	blocks := tenon.LaunchShape{Grid: [3]int{(columns + 63) / 64, (rows + 63) / 64, 1}}
	x.Launch(mapped, blocks, tenon.Mapped(a), tenon.Mapped(b), tenon.In(a), tenon.In(b), tenon.Out(c), tenon.Integer(rows),
		tenon.Integer(columns), tenon.Integer(inner))
	fmt.Println(x.Item(x.Sum(c, nil)))
	// Output: 1.728e+06 <nil>
}
