package agree

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// exceptions names what the numerics law exempts from bitwise equality, with the reason. It is compared with sums in float64 instead:
// exactly if the operands are small integers, otherwise within the rounding of its sums.
var exceptions = map[string]string{
	"matmul": "tile.dot: the matrix units add in an order and with a rounding of their own",
	"conv":   "tile.dot, likewise",
}

// numbersAt reads an operand's elements from memory, in row-major order.
func numbersAt(a *array, mem []byte) []float64 {
	n := 1
	for _, d := range a.shape {
		n *= d
	}
	vs := make([]float64, n)
	ix := make([]int, len(a.shape))
	data := mem[a.at:]
	for i := range vs {
		at := a.first
		for d, x := range ix {
			at += x * a.stride[d]
		}
		vs[i] = dtype.Float64At(a.t, data, at)
		for d := len(ix) - 1; d >= 0; d-- {
			if ix[d]++; ix[d] < a.shape[d] {
				break
			}
			ix[d] = 0
		}
	}
	return vs
}

// unit is the largest relative error of one rounding to t.
func unit(t dtype.DType) float64 {
	switch t {
	case dtype.BFloat16:
		return 0x1p-8
	case dtype.Float16:
		return 0x1p-11
	case dtype.Float32:
		return 0x1p-24
	}
	return 0x1p-53
}

// rounding is the bound of a sum's error.
type rounding struct {
	// exact is set if only the result is rounded.
	exact bool
	out   dtype.DType
	// sum is the relative error of adding two numbers (in the matrix units twice that of rounding), operand that of an operand.
	sum, operand float64
}

func roundingOf(exact bool, in, out dtype.DType, tf32 bool) rounding {
	r := rounding{exact: exact, out: out, sum: 0x1p-23}
	if in == dtype.Float64 {
		r.sum = 0x1p-52
	}
	if tf32 {
		r.operand = 0x1p-10 // wgmma reads its operands from shared memory and drops the low bits
	}
	return r
}

// rounded returns v rounded to the result's type.
func (r rounding) rounded(v float64) float64 {
	return dtype.Float64At(r.out, put(nil, r.out, realBits(r.out, v)), 0)
}

// wrong reports whether got is too far from want, the sum of depth products whose magnitudes add up to size; slack is a further allowed
// error.
func (r rounding) wrong(got, want, size, slack float64, depth int) bool {
	if r.exact {
		return got != r.rounded(want)
	}
	// The smallest float16 numbers are further apart than the relative error allows.
	least := 0.0
	if r.out == dtype.Float16 {
		least = 0x1p-25
	}
	bound := size*(float64(depth+8)*r.sum+2.1*r.operand) + math.Abs(want)*unit(r.out)*1.01 + least + slack
	return !(math.Abs(got-want) <= bound)
}

// inParallel calls f for ranges that together cover 0 … n-1.
func inParallel(n int, f func(from, to int)) {
	procs := min(n, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range procs {
		wg.Go(func() { f(n*i/procs, n*(i+1)/procs) })
	}
	wg.Wait()
}

// matmulCase is a product of matrices.
type matmulCase struct {
	m, n, k, batch int
	t, out         dtype.DType
	tf32           bool
	// a, b and c are the layouts of the operands and the result.
	a, b, c view
	// bias is the layout of the bias; held: there is none.
	bias        view
	alpha, beta float64
	exact       bool
	// tile is the tile of kernels.MatmulOpt.
	tile int
}

// planes returns a batch of matrices in memory with view v.
func planes(isOut bool, t dtype.DType, v view, fill filling, batch, rows, cols int) *array {
	if batch == 0 {
		return newArray(isOut, t, v, fill, rows, cols)
	}
	if v != turned {
		return newArray(isOut, t, v, fill, batch, rows, cols)
	}
	// Each matrix is turned, not the batch.
	a := newArray(isOut, t, dense, fill, batch, cols, rows)
	a.shape, a.stride = []int{batch, rows, cols}, []int{a.stride[0], a.stride[2], a.stride[1]}
	return a
}

func (c matmulCase) trial() trial {
	fill := mild
	if c.exact {
		fill = whole
	}
	y := planes(true, c.out, c.c, anything, c.batch, c.m, c.n)
	a, b := planes(false, c.t, c.a, fill, c.batch, c.m, c.k), planes(false, c.t, c.b, fill, c.batch, c.k, c.n)
	bias := planes(false, c.out, c.bias, fill, c.batch, c.m, c.n)
	return trial{
		name: fmt.Sprintf("matmul %v %v tf32=%v %dx%dx%d batch=%d %v%v%v bias=%v exact=%v tile=%d", c.t, c.out, c.tf32, c.m, c.n, c.k,
			c.batch, c.a, c.b, c.c, c.bias, c.exact, c.tile),
		arrays: []*array{y, a, b, bias},
		run: func(is kernels.Issuer, o []kernels.Operand) error {
			return kernels.Matmul(is, o[0], o[1], o[2], kernels.MatmulOpt{Alpha: c.alpha, Beta: c.beta, Bias: o[3],
				TF32: c.tf32, Tile: c.tile})
		},
		judge: func(o []*array, image, mem []byte) string {
			var bs []float64
			if o[3] != absent {
				bs = numbersAt(o[3], image)
			}
			return c.compare(numbersAt(o[1], image), numbersAt(o[2], image), bs, numbersAt(o[0], mem))
		},
	}
}

// compare compares with the product computed in float64.
func (c matmulCase) compare(a, b, bias, got []float64) string {
	r := roundingOf(c.exact, c.t, c.out, c.tf32)
	var mu sync.Mutex
	bad, text := 0, ""
	inParallel(max(1, c.batch)*c.m, func(from, to int) {
		sums, sizes := make([]float64, c.n), make([]float64, c.n)
		for row := from; row < to; row++ {
			clear(sums)
			clear(sizes)
			xs, ys := a[row*c.k:][:c.k], b[row/c.m*c.k*c.n:][:c.k*c.n]
			for ; len(xs) >= 4; xs, ys = xs[4:], ys[4*c.n:] { // four rows per pass, since access to the sums is the bottleneck
				y0, y1, y2, y3 := ys[:c.n], ys[c.n:][:c.n], ys[2*c.n:][:c.n], ys[3*c.n:][:c.n]
				for j, y := range y0 {
					p0, p1, p2, p3 := xs[0]*y, xs[1]*y1[j], xs[2]*y2[j], xs[3]*y3[j]
					sums[j] += p0 + p1 + p2 + p3
					sizes[j] += math.Abs(p0) + math.Abs(p1) + math.Abs(p2) + math.Abs(p3)
				}
			}
			for k, x := range xs {
				for j, y := range ys[k*c.n:][:c.n] {
					sums[j] += x * y
					sizes[j] += math.Abs(x * y)
				}
			}
			for j, want := range sums {
				want, size := c.alpha*want, math.Abs(c.alpha)*sizes[j]
				if bias != nil {
					add := c.beta * bias[row*c.n+j]
					want, size = want+add, size+math.Abs(add)
				}
				if g := got[row*c.n+j]; r.wrong(g, want, size, 0, c.k) {
					mu.Lock()
					if bad++; bad <= 3 {
						text += fmt.Sprintf(" [%d, %d] is %v, want %v;", row, j, g, want)
					}
					mu.Unlock()
				}
			}
		}
	})
	if bad == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d are wrong:%s", bad, len(got), text)
}

// operandKind is an operand type of products.
type operandKind struct {
	t    dtype.DType
	tf32 bool
}

var operandKinds = []operandKind{{dtype.BFloat16, false}, {dtype.Float16, false}, {dtype.Float32, true}, {dtype.Float32, false},
	{dtype.Float64, false}}

// productSizes reach every tile on two multiprocessors, with widths for vectors and without, edges, and depths that are split.
var productSizes = [][3]int{{200, 304, 72}, {256, 512, 256}, {200, 136, 72}, {200, 56, 72}, {56, 96, 72}, {24, 24, 72},
	{24, 200, 72}, {40, 24, 40},
	{201, 301, 67}, {131, 129, 33}, {61, 67, 45}, {7, 5, 3}, {1, 300, 70}, {300, 1, 70}, {17, 129, 50}, {60, 60, 4096}, {64, 64, 1000},
	{12, 70, 50}, {12, 100, 300}, {5, 70, 200},
	{20, 30, 0}, {33, 20, 1}, {136, 200, 72}, {136, 2052, 40}}

// tryProducts tries products of every type and size, planned for two multiprocessors or, if the depth is at least 1000, for 48, with the
// layouts of the operands in turn; with all layouts for the large sizes if thorough.
func tryProducts(p *pair, thorough bool) {
	sides := []view{dense, turned, stepped, padded}
	next := 0
	for _, kind := range operandKinds {
		for i, size := range productSizes {
			for j := range 16 {
				if next++; !thorough && (j+i)%4 != 0 || i >= 8 && (j+i)%4 != 0 {
					continue
				}
				c := matmulCase{m: size[0], n: size[1], k: size[2], t: kind.t, out: kind.t, tf32: kind.tf32, a: sides[j/4], b: sides[j%4],
					c: dense, bias: held, alpha: 1, exact: j%2 == i%2}
				switch next % 7 {
				case 1:
					c.c = turned
				case 2:
					c.bias, c.alpha, c.beta = outerRepeated, 2, -1
				case 3:
					c.batch = 3
				case 4:
					c.bias, c.alpha, c.beta, c.c = dense, -2, 3, padded
				case 5:
					c.c = stepped
				case 6:
					c.alpha = -0.5
				}
				if p.limits.Multiprocessors = 2; size[2] >= 1000 { // the depth is split if there are few blocks
					p.limits.Multiprocessors = 48
				}
				p.try(c.trial())
			}
		}
	}
}

// tryTiles tries every tile whose operands are fetched by tensor maps, with the layouts of the operands in turn, and with split depths.
func tryTiles(p *pair) {
	p.limits = hopper
	sides := []view{dense, turned}
	for _, kind := range operandKinds {
		for tile := 1; tile <= mostTiles && kind.t != dtype.Float64; tile++ {
			for j := range 4 {
				c := matmulCase{m: 520, n: 648, k: 200, t: kind.t, out: kind.t, tf32: kind.tf32, a: sides[j/2], b: sides[j%2], c: dense,
					bias: held, alpha: 1, exact: tile%2 == j%2, tile: tile}
				switch (tile + j) % 4 {
				case 0:
					if c.m, c.n, c.k = 88, 776, 1400; tile%2 == 1 {
						c.n, c.k = 4000, 200
					}
				case 1:
					c.batch, c.m, c.n = 3, 136, 600
					c.k = 1000
				case 2:
					c.bias, c.alpha, c.beta, c.n = outerRepeated, 2, -1, 1000
				}
				p.try(c.trial())
			}
		}
	}
	tryLasting(p)
	tryVectors(p)
	tryEpilogues(p)
	tryPrologues(p)
	tryConvEpilogues(p)
}

// tryVectors tries products of few rows, with the matrix along either axis, and those of few columns.
func tryVectors(p *pair) {
	p.limits = hopper
	for _, kind := range operandKinds {
		if kind.t == dtype.Float64 {
			continue
		}
		for i, size := range [][3]int{{1, 264, 768}, {2, 40, 3080}, {3, 1000, 64}, {4, 136, 1040}, {2, 72, 104}, {1, 2056, 8},
			{3, 5000, 264}, {1, 17000, 264}, {4, 8, 2400}, {1, 1, 1600}, {3, 24, 24}, {1, 130, 6000}} {
			for j := range 4 {
				c := matmulCase{m: size[0], n: size[1], k: size[2], t: kind.t, out: kind.t, tf32: kind.tf32, a: dense,
					b: []view{turned, dense}[j%2], c: dense, bias: held, alpha: 1, exact: i%2 == j/2}
				switch (i + j) % 5 {
				case 1:
					c.bias, c.alpha, c.beta = outerRepeated, 2, -1
				case 2:
					c.batch = 3
				case 3:
					c.bias, c.alpha, c.beta, c.c = dense, 1, 1, padded
				case 4: // few columns, so that the product is turned
					c.m, c.n, c.a, c.b, c.c = c.n, c.m, []view{turned, dense}[j%2], turned, turned
				}
				p.try(c.trial())
			}
		}
	}
}

// epilogueOf returns an operation on a product of type t, a float32 for each of its columns, and a half for each element. It makes the
// product, a sum and a comparison.
func epilogueOf(t dtype.DType) *kernels.PointOp {
	f, half := dtype.Float32, dtype.BFloat16
	return kernels.Fuse([]dtype.DType{t, f, half}, []kernels.FusedStep{
		{Op: kernels.Add, Compute: f, Ins: []kernels.FusedIn{{Value: 0}, {Value: 1}}, Outs: []kernels.FusedOut{{DType: half}}},
		{Op: kernels.GELUTanh, Compute: half, Ins: []kernels.FusedIn{{Value: 3}}, Outs: []kernels.FusedOut{{DType: half}}},
		{Op: kernels.Mul, Compute: f, Ins: []kernels.FusedIn{{Value: 4}, {Value: 2}}, Outs: []kernels.FusedOut{{DType: f}}},
		{Op: kernels.Lt, Compute: f, Ins: []kernels.FusedIn{{Value: 5}, {Value: kernels.ScalarIn}},
			Outs: []kernels.FusedOut{{DType: dtype.Bool}}},
	}, []int{0, 3, 6})
}

// tryEpilogues runs element-wise work in the kernels of products and of sums of partial products.
func tryEpilogues(p *pair) {
	p.limits = hopper
	f, half := dtype.Float32, dtype.BFloat16
	for i, c := range []struct {
		m, n, k, tile, multiprocessors int
		t                              dtype.DType
	}{
		{40, 24, 16, 0, 132, f}, {7, 13, 40, 0, 132, half}, {64, 64, 4096, 0, 132, half}, {256, 256, 128, 0, 132, half},
		{520, 1096, 64, 1, 3, half}, {520, 1096, 328, 3, 3, half}, {520, 1096, 200, 2, 132, half}, {130, 260, 2048, 0, 132, f},
		{1, 104, 200, 0, 132, half}, {3, 72, 50, 0, 132, f}, {-1, 104, 200, 0, 132, half}, {-3, 72, 48, 0, 132, f},
	} {
		p.limits.Multiprocessors = c.multiprocessors
		op, columns := epilogueOf(c.t), dense
		if c.m < 0 { // the right operand lies along the depth
			c.m, columns = -c.m, turned
		}
		p.try(trial{name: fmt.Sprintf("matmul with epilogue %d", i), arrays: []*array{out(c.t, dense, c.m, c.n), out(half, dense, c.m, c.n),
			out(dtype.Bool, dense, c.m, c.n), in(c.t, dense, whole, c.m, c.k), in(c.t, columns, whole, c.k, c.n), in(f, dense, mild, c.n),
			in(half, dense, mild, c.m, c.n)},
			run: func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.Matmul(is, kernels.Operand{DType: c.t, Shape: o[0].Shape, Stride: o[0].Stride}, o[3], o[4],
					kernels.MatmulOpt{Alpha: 1, Tile: c.tile, Epilogue: &kernels.Epilogue{Op: op, Outs: o[:3], Ins: o[5:],
						Scalars: []kernels.Scalar{kernels.FloatScalar(0.25)}}})
			}})
	}
}

// tryConvEpilogues runs element-wise work in the kernels of convolutions, of the products that some of them are, and of sums of their
// parts.
func tryConvEpilogues(p *pair) {
	p.limits = hopper
	for i, c := range []struct {
		in, out, taps, step, side, multiprocessors int
		t                                          dtype.DType
		turn                                       kernels.ConvTurn
	}{
		{64, 96, 1, 1, 14, 132, dtype.BFloat16, kernels.TurnWhereGood}, {24, 40, 1, 1, 7, 132, dtype.Float32, kernels.TurnWhereGood},
		{2048, 24, 1, 1, 4, 132, dtype.BFloat16, kernels.TurnWhereGood}, {7, 13, 1, 1, 5, 132, dtype.Float16, kernels.TurnWhereGood},
		{32, 72, 3, 1, 14, 2, dtype.BFloat16, kernels.TurnWherePossible}, {16, 264, 3, 2, 15, 2, dtype.Float16, kernels.TurnWherePossible},
		{3, 64, 7, 2, 32, 2, dtype.BFloat16, kernels.TurnWherePossible}, {8, 33, 3, 1, 6, 2, dtype.Float32, kernels.TurnWherePossible},
		{256, 48, 3, 1, 4, 132, dtype.BFloat16, kernels.TurnWherePossible},
		{64, 40, 3, 1, 4, 132, dtype.Float32, kernels.TurnWherePossible},
	} {
		v := kernels.Conv{Batch: 3, In: c.in, H: c.side, W: c.side, Out: c.out, KH: c.taps, KW: c.taps, StrideH: c.step, StrideW: c.step,
			PadH: c.taps / 2, PadW: c.taps / 2, DilationH: 1, DilationW: 1, Groups: 1, LastX: true, LastY: true, LastW: true, Turn: c.turn}
		v.OH = (c.side+2*v.PadH-c.taps)/c.step + 1
		v.OW = v.OH
		p.limits.Multiprocessors = c.multiprocessors
		op, pixels := epilogueOf(c.t), v.Batch*v.OH*v.OW
		p.try(trial{name: fmt.Sprintf("convolution with epilogue %d", i), arrays: []*array{out(c.t, dense, pixels, c.out),
			out(dtype.BFloat16, dense, pixels, c.out), out(dtype.Bool, dense, pixels, c.out),
			in(c.t, dense, whole, v.Batch, c.side, c.side, c.in), in(c.t, dense, whole, c.out, c.taps, c.taps, c.in),
			in(dtype.Float32, dense, mild, c.out), in(dtype.BFloat16, dense, mild, pixels, c.out)},
			run: func(is kernels.Issuer, o []kernels.Operand) error {
				y := kernels.Operand{DType: c.t, Shape: o[0].Shape, Stride: o[0].Stride}
				return kernels.ConvForwardWith(is, &v, y, o[3], o[4], &kernels.Epilogue{Op: op, Outs: o[:3], Ins: o[5:],
					Scalars: []kernels.Scalar{kernels.FloatScalar(0.25)}})
			}})
	}
}

// tryLasting tries tiles whose blocks last, on few multiprocessors, so that each block computes several: also ones whose depth is less than
// the stages hold, and blocks of which some have one tile more than others.
func tryLasting(p *pair) {
	p.limits = hopper
	for n, t := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for tile := 1; tile <= mostTiles; tile++ {
			for j := range 8 {
				p.limits.Multiprocessors = 1 + 2*(j%3)
				c := matmulCase{m: 520, n: 1096, k: []int{8, 64, 200, 328, 1000}[(j+tile)%5], t: t, out: t, a: []view{dense, turned}[j/2%2],
					b: []view{dense, turned}[j%2], c: dense, bias: held, alpha: 1, exact: (j+n)%2 == 0, tile: tile}
				switch j {
				case 1:
					c.bias, c.alpha, c.beta = outerRepeated, 2, -1
				case 2:
					c.bias, c.alpha, c.beta = outerRepeated, 1, 1
				case 3:
					c.c, c.m = turned, 1000
				case 4:
					c.alpha = 2
				case 5:
					c.bias, c.alpha, c.beta = outerRepeated, 1, -2
				case 6:
					c.bias, c.alpha, c.beta = repeated, 1, 1
				case 7:
					c.bias, c.alpha, c.beta, c.c, c.m = repeated, 2, 1, turned, 1000
				}
				p.try(c.trial())
			}
		}
	}
}

// tryShared tries products whose depth the threads of a block share, with operands of every layout, and with parts of the depth for several
// blocks.
func tryShared(p *pair) {
	p.limits = hopper
	for i, a := range []view{dense, turned, stepped, padded} {
		for j, b := range []view{dense, turned, stepped, padded} {
			c := matmulCase{m: 40, n: 100, k: 300, t: dtype.Float32, out: dtype.Float32, a: a, b: b, c: dense, bias: held, alpha: 1,
				exact: (i+j)%2 == 0}
			switch (i + 3*j) % 4 {
			case 0:
				c.m, c.n, c.batch = 96, 33, 3
			case 1:
				c.n, c.k = 32, 2100
			case 2:
				c.bias, c.alpha, c.beta, c.c = outerRepeated, 2, -1, turned
			case 3:
				c.m, c.n, c.k, c.bias, c.beta = 256, 512, 784, dense, 1
			}
			p.try(c.trial())
		}
	}
}

// mostTiles is the largest number of tiles with costs for any type of product.
const mostTiles = 11

// convCase is a convolution.
type convCase struct {
	conv  kernels.Conv
	t     dtype.DType
	exact bool
	bias  bool
	holes bool // some pixels are NaN
}

var convShapes = []kernels.Conv{
	{Batch: 2, In: 8, H: 14, W: 16, Out: 140, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1,
		DilationW: 1, Groups: 1},
	{Batch: 3, In: 130, H: 12, W: 12, Out: 24, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 2, In: 70, H: 9, W: 11, Out: 66, KH: 3, KW: 2, StrideH: 2, StrideW: 1, PadH: 1, PadW: 0, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 2, In: 12, H: 15, W: 13, Out: 8, KH: 3, KW: 3, StrideH: 2, StrideW: 3, PadH: 2, PadW: 1, DilationH: 2, DilationW: 1, Groups: 4},
	{Batch: 1, In: 3, H: 20, W: 21, Out: 10, KH: 5, KW: 4, StrideH: 1, StrideW: 2, PadH: 2, PadW: 2, DilationH: 1, DilationW: 2, Groups: 1},
	{Batch: 40, In: 9, H: 16, W: 16, Out: 15, KH: 2, KW: 2, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 3},
	{Batch: 2, In: 40, H: 8, W: 12, Out: 40, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 2, In: 6, H: 9, W: 10, Out: 12, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 6},
	{Batch: 3, In: 32, H: 11, W: 13, Out: 48, KH: 3, KW: 4, StrideH: 2, StrideW: 1, PadH: 2, PadW: 1, DilationH: 1,
		DilationW: 2, Groups: 2},
	{Batch: 2, In: 32, H: 9, W: 7, Out: 48, KH: 2, KW: 3, StrideH: 1, StrideW: 1, PadH: 3, PadW: 5, DilationH: 2, DilationW: 2, Groups: 2},
	{Batch: 2, In: 3, H: 7, W: 9, Out: 16, KH: 4, KW: 3, StrideH: 2, StrideW: 1, PadH: 2, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 1, In: 32, H: 6, W: 6, Out: 40, KH: 3, KW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 2, In: 24, H: 4, W: 6, Out: 40, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1},
	{Batch: 1, In: 40, H: 8, W: 6, Out: 24, KH: 1, KW: 1, StrideH: 1, StrideW: 1, DilationH: 1, DilationW: 1, Groups: 1},
}

// convLies gives the layouts of the arrays of a convolution: bits of last are set for x, w and y if their channels are last.
var convLies = []struct {
	turn kernels.ConvTurn
	last int
}{
	{kernels.TurnNever, 0}, {kernels.TurnNever, 3}, {kernels.TurnWherePossible, 0}, {kernels.TurnWherePossible, 7},
	{kernels.TurnWherePossible, 6},
	{kernels.TurnWhereGood, 0}, {kernels.TurnWhereGood, 7}, {kernels.TurnWhereGood, 4},
}

// tryConvolutions tries the three products of convolutions of every type.
func tryConvolutions(p *pair) {
	for i, c := range convShapes {
		c.OH = (c.H+2*c.PadH-c.DilationH*(c.KH-1)-1)/c.StrideH + 1
		c.OW = (c.W+2*c.PadW-c.DilationW*(c.KW-1)-1)/c.StrideW + 1
		for j, kind := range operandKinds {
			for _, exact := range []bool{false, true} {
				for _, lie := range convLies {
					matrices := lie.turn == kernels.TurnWhereGood
					if lie.last != 0 && (!exact || (i+j)%3 != 0) || matrices && c.KH*c.KW > 1 {
						continue // every third type has channels last
					}
					c.TF32, c.Turn = kind.tf32, lie.turn
					c.LastX, c.LastW, c.LastY = lie.last&1 != 0, lie.last&2 != 0, lie.last&4 != 0
					cc := convCase{conv: c, t: kind.t, exact: exact, bias: (i+j)%2 == 0}
					p.limits.Multiprocessors = 2
					for product := range 3 {
						p.try(cc.trial(product))
					}
					p.limits.Multiprocessors = 48 // more than the results fill, so that depths are split
					for product := range 3 {
						if exact && (product == 2 && lie.last == 0 || lie.turn == kernels.TurnWherePossible) && !matrices {
							p.try(cc.trial(product))
						}
					}
				}
			}
		}
	}
}

// trial returns a trial of the result of a convolution (product 0), or of the gradient of its input (1) or weight (2).
func (c convCase) trial(product int) trial {
	fill := mild
	if c.exact {
		fill = whole
	}
	v := c.conv
	shapes := [3][]int{{v.Batch, v.Out, v.OH, v.OW}, {v.Batch, v.In, v.H, v.W}, {v.Out, v.In / v.Groups, v.KH, v.KW}} // y, x, w
	var ops [3]*array
	for i, s := range shapes {
		if i == product {
			ops[i] = out(c.t, dense, s...)
		} else {
			ops[i] = in(c.t, dense, fill, s...)
			if c.holes && i == 1 {
				ops[i] = in(c.t, dense, holed, s...)
			}
		}
	}
	bias := optionally(c.bias && product == 0, in(c.t, dense, fill, v.Out))
	return trial{
		name:   fmt.Sprintf("conv %d %v %+v bias=%v exact=%v holes=%v", product, c.t, v, bias != absent, c.exact, c.holes),
		arrays: append(ops[:], bias),
		run: func(is kernels.Issuer, o []kernels.Operand) error {
			switch product {
			case 0:
				return kernels.ConvForward(is, &v, o[0], o[1], o[2], o[3])
			case 1:
				return kernels.ConvData(is, &v, o[1], o[2], o[0])
			}
			return kernels.ConvWeight(is, &v, o[2], o[0], o[1])
		},
		judge: func(o []*array, image, mem []byte) string {
			var known [3][]float64
			for i, a := range o[:3] {
				if i != product {
					known[i] = numbersAt(a, image)
				}
			}
			var bs []float64
			if o[3] != absent {
				bs = numbersAt(o[3], image)
			}
			return c.compare(product, known, bs, numbersAt(o[product], mem))
		},
	}
}

// place returns the position of element at of y, x or w.
func (c convCase) place(array, at int) int {
	v := &c.conv
	channels, inner, last := v.Out, v.OH*v.OW, v.LastY
	switch array {
	case 1:
		channels, inner, last = v.In, v.H*v.W, v.LastX
	case 2:
		channels, inner, last = v.In/v.Groups, v.KH*v.KW, v.LastW
	}
	if !last {
		return at
	}
	block, ch, pix := at/(channels*inner), at/inner%channels, at%inner
	return (block*inner+pix)*channels + ch
}

// compare adds every product of the convolution, in float64, to its result, and compares.
func (c convCase) compare(product int, known [3][]float64, bias, got []float64) string {
	v := c.conv
	for i, k := range known {
		if i != product {
			known[i] = make([]float64, len(k)) // channels first
			for at := range k {
				known[i][at] = k[c.place(i, at)]
			}
		}
	}
	terms := termSums{make([]float64, len(got)), make([]float64, len(got)), make([]int, len(got))}
	perIn, perOut := v.In/v.Groups, v.Out/v.Groups
	// plane adds the products of one image of the result, one of the input, and their taps.
	plane := func(b, o, i int) {
		image := b*v.In + o/perOut*perIn + i
		for oy := range v.OH {
			for ky := range v.KH {
				iy := oy*v.StrideH - v.PadH + ky*v.DilationH
				if iy < 0 || iy >= v.H {
					continue
				}
				y, x, w := ((b*v.Out+o)*v.OH+oy)*v.OW, (image*v.H+iy)*v.W, ((o*perIn+i)*v.KH+ky)*v.KW
				for kx := range v.KW {
					c.row(product, known, [3]int{y, x, w + kx}, kx*v.DilationW-v.PadW, terms)
				}
			}
		}
	}
	inParallel([3]int{v.Out, v.In, v.Out}[product], func(from, to int) { // each range adds to different elements
		for ch := from; ch < to; ch++ {
			for b := range v.Batch {
				if product == 1 {
					for o := range perOut {
						plane(b, ch/perIn*perOut+o, ch%perIn)
					}
					continue
				}
				for i := range perIn {
					plane(b, ch, i)
				}
			}
		}
	})
	r := roundingOf(c.exact, c.t, c.t, v.TF32)
	for i, want := range terms.sum {
		size, slack := terms.size[i], 0.0
		if bias != nil {
			b := bias[i/(v.OH*v.OW)%v.Out]
			if v.Groups < v.In || v.Groups == 1 { // the sum is rounded first, as in PyTorch
				if r.exact {
					want = r.rounded(want)
				}
				slack = math.Abs(want) * unit(c.t)
			}
			want, size = want+b, size+math.Abs(b)
		}
		at := c.place(product, i)
		if c.holes && math.IsNaN(want) && math.IsNaN(got[at]) {
			continue
		}
		if r.wrong(got[at], want, size, slack, terms.count[i]) {
			return fmt.Sprintf("[%d] is %v, want %v", at, got[at], want)
		}
	}
	return ""
}

// termSums are sums, those of the terms' magnitudes, and the numbers of terms.
type termSums struct {
	sum, size []float64
	count     []int
}

// row adds the products of a row of the result, one of the input and a tap, which begin at the given places; the row of the input is
// shifted by off.
func (c convCase) row(product int, known [3][]float64, begin [3]int, off int, to termSums) {
	s, from, end := c.conv.StrideW, 0, 0
	if off < 0 {
		from = (s - 1 - off) / s
	}
	if last := c.conv.W - 1 - off; last >= 0 {
		end = min(c.conv.OW, last/s+1)
	}
	y, x, w := begin[0], begin[1]+off, begin[2]
	switch product {
	case 0:
		in, tap := known[1], known[2][w]
		for ox := from; ox < end; ox++ {
			term := in[x+ox*s] * tap
			to.sum[y+ox] += term
			to.size[y+ox] += math.Abs(term)
			to.count[y+ox]++
		}
	case 1:
		out, tap := known[0], known[2][w]
		for ox := from; ox < end; ox++ {
			at, term := x+ox*s, out[y+ox]*tap
			to.sum[at] += term
			to.size[at] += math.Abs(term)
			to.count[at]++
		}
	case 2:
		in, out, sum, size := known[1], known[0], to.sum[w], to.size[w]
		for ox := from; ox < end; ox++ {
			term := out[y+ox] * in[x+ox*s]
			sum += term
			size += math.Abs(term)
		}
		to.sum[w], to.size[w] = sum, size
		to.count[w] += max(0, end-from)
	}
}

// TestProducts compares matrix products and convolutions on two devices with sums in float64. They are planned for devices so small that
// matrices of moderate size use every tile, and on a GPU also for its own size.
func TestProducts(t *testing.T) {
	spread(t, func(p *pair) {
		tryProducts(p, p.onGPU())
		tryTiles(p)
		tryShared(p)
		tryConvolutions(p)
		if p.onGPU() {
			p.limits = hopper
			for _, kind := range operandKinds {
				for i, size := range [][3]int{{2048, 4352, 320}, {1000, 1001, 515}, {512, 512, 8192}} {
					if kind.t == dtype.Float64 {
						size[1] /= 2
					}
					p.try(matmulCase{m: size[0], n: size[1], k: size[2], t: kind.t, out: kind.t, tf32: kind.tf32,
						b: []view{dense, turned}[i%2], bias: held, alpha: 1}.trial())
				}
			}
		}
		checkReached(p)
	})
}

// checkReached checks that every tile of every type, every way of splitting the depth, and operands fetched by tensor maps were run.
func checkReached(p *pair) {
	type use struct {
		kind operandKind
		what any
	}
	seen, lasting, vectors := map[use]bool{}, 0, map[any]int{}
	const splitProduct, splitConvolution, mappedProduct = "a split depth", "a split depth of a convolution", "tensor maps"
	const lastConvolution, unitConvolution = "convolution %d with channels last, split %v, result too %v", "a convolution of unit stride"
	for s := range p.lib.programs {
		r := &s.Product
		kind := operandKind{s.Compute, r.TF32}
		if r.Mapped != 0 {
			seen[use{kind, mappedProduct}] = true
		}
		if r.Lasting() {
			lasting++
		}
		if last := s.Conv.Last; last > 0 {
			seen[use{kind, fmt.Sprintf(lastConvolution, s.Op, r.Split(), last > 1)}] = true
			if s.Conv.Unit {
				seen[use{kind, unitConvolution}] = true
			}
		}
		switch {
		case s.Family == kernels.FamilyMatmul && r.Split():
			seen[use{kind, splitProduct}] = true
		case s.Family == kernels.FamilyConv && r.Split():
			seen[use{kind, splitConvolution}] = true
		case s.Family == kernels.FamilyMatmul:
			seen[use{kind, r.Tile}] = true
		case s.Family == kernels.FamilyMatvec:
			vectors[r.Vector]++
		}
	}
	if lasting < 8 { // two tiles and types, layouts, with a bias and without
		p.t.Errorf("there are %d kernels whose blocks last, want at least 8", lasting)
	}
	if len(vectors) < 25 { // one to four rows, both layouts, and all ways to share columns
		p.t.Errorf("there are %d kinds of kernels for few rows: %v", len(vectors), vectors)
	}
	for _, kind := range operandKinds {
		wanted := []any{splitProduct, splitConvolution, unitConvolution}
		for _, split := range []bool{false, true} {
			for i := range 2 {
				wanted = append(wanted, fmt.Sprintf(lastConvolution, i, split, false))
			}
			wanted = append(wanted, fmt.Sprintf(lastConvolution, 0, split, true), fmt.Sprintf(lastConvolution, 2, split, false))
		}
		if kind.t != dtype.Float64 {
			wanted = append(wanted, mappedProduct)
		}
		for _, tile := range kernels.ProductTiles(kind.t, kind.tf32) {
			wanted = append(wanted, tile)
		}
		for _, what := range wanted {
			if !seen[use{kind, what}] {
				p.t.Errorf("products of %v, tf32 %v, never use %+v", kind.t, kind.tf32, what)
			}
		}
	}
}
