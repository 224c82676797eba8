package conformance

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
)

// mathTests are the behaviours of operations at the limits of their types, sizes and operands.
var mathTests = []cudaTest{
	{name: "CUDA-024_test_type_conversions", run: testTypeConversions},
	{name: "CUDA-026_test_gather_bool", run: testGatherBool},
	{name: "CUDA-041_test_reduction_gpu_memory_accessing", run: testReductionAccess},
	{name: "CUDA-042_test_sum_fp16", run: testSumHalf},
	{name: "CUDA-043_test_mean_fp16", run: testMeanHalf},
	{name: "CUDA-044_test_prod_large", run: testProdLarge},
	{name: "CUDA-048_test_huge_index", run: testHugeIndex},
	{name: "CUDA-049_test_min_max_inits", run: testMinMaxInits},
	{name: "CUDA-051_test_bincount_ext", run: testBinCount},
	{name: "CUDA-052_test_tiny_half_norm_", run: testTinyHalfNorm},
	{name: "CUDA-053_test_norm_type_conversion", run: testNormConversion},
	{name: "CUDA-055_test_cuda_kernel_loop_overflow", run: testLoopOverflow},
	{name: "CUDA-056_test_cuda_kernel_loop_overflow_large", run: testLoopOverflowLarge},
	{name: "CUDA-088_test_max_large_axis", run: testMaxLargeAxis},
	{name: "CUDA-089_test_to_numpy", run: testToArray},
	{name: "CUDA-115_test_batch_norm_gather_stats", run: testGatherStats},
	{name: "CUDA-118_test_matmul_device_mismatch", run: testDeviceMismatch},
}

// item returns a tensor's only element.
func item(t *testing.T, x *tenon.Exec, a *tenon.Tensor) float64 {
	t.Helper()
	v, err := x.Item(a)
	must(t, err)
	return v
}

// lowIndex32 makes the simulator's kernels use 64-bit indexes beyond n elements, so that tests that need billions of elements on a GPU
// need few here. It returns a function that restores the limit.
func lowIndex32(x *tenon.Exec, n int) (restore func()) {
	if onGPU() {
		return func() {}
	}
	dev := (*core.Exec)(x).Device()
	was := dev.Index32()
	dev.SetIndex32(n)
	return func() { dev.SetIndex32(was) }
}

func testTypeConversions(t *testing.T, x *tenon.Exec) {
	host := x.Host()
	a := host.RandN([]int{5, 5}, tenon.Float32)
	b := x.To(a)
	for _, c := range []struct {
		what string
		t    *tenon.Tensor
		x    *tenon.Exec
		dt   tenon.DType
	}{
		{"float", host.ToDType(a, tenon.Float32), host, tenon.Float32},
		{"cuda, double", x.ToDType(b, tenon.Float64), x, tenon.Float64},
		{"cuda, float", x.ToDType(b, tenon.Float32), x, tenon.Float32},
		{"cuda, float, cpu", host.To(x.ToDType(b, tenon.Float32)), host, tenon.Float32},
		{"cuda, float, cpu, int", host.ToDType(host.To(x.ToDType(b, tenon.Float32)), tenon.Int32), host, tenon.Int32},
	} {
		check(t, c.what+": type", c.t.DType(), c.dt)
		check(t, c.what+": device", c.t.Device() == c.x.Device(), true)
		for i, v := range testdevice.Read[float32](t, host, host.ToDType(host.To(c.t), tenon.Float32)) {
			want := testdevice.Read[float32](t, host, a)[i]
			if c.dt == tenon.Int32 {
				want = float32(int32(want))
			}
			check(t, fmt.Sprintf("%s: element %d", c.what, i), v, want)
		}
	}
}

func testGatherBool(t *testing.T, x *tenon.Exec) {
	a := tenon.From(x, []bool{false, true, true, true}, 2, 2)
	got := x.Gather(a, 1, tenon.From(x, []int64{0, 0, 1, 0}, 2, 2))
	check(t, "type", got.DType(), tenon.Bool)
	check(t, "equal", equal(t, x, got, tenon.From(x, []bool{false, false, true, true}, 2, 2)), true)
	a = tenon.From(x, []bool{false, true, false, false, false, true}, 2, 3)
	got = x.Gather(a, 1, tenon.From(x, []int32{1, 2, 2, 1}, 2, 2))
	check(t, "equal, of three columns", equal(t, x, got, tenon.From(x, []bool{true, false, true, false}, 2, 2)), true)
}

func testReductionAccess(t *testing.T, x *tenon.Exec) {
	allAre(t, x, "sums of columns", x.Sum(x.Ones([]int{512, 8}, tenon.Float32), []int{0}), 512)
	must(t, x.Synchronize())
}

// sparseOnes returns a float16 tensor in which about one element in 2000 is 1 and all others are 0.
func sparseOnes(t *testing.T, x *tenon.Exec, shape ...int) *tenon.Tensor {
	a := x.Empty(shape, tenon.Float32)
	x.BernoulliSInto(a, 0.0005)
	return x.ToDType(a, tenon.Float16)
}

func testSumHalf(t *testing.T, x *tenon.Exec) {
	wide := tenon.SumOpt{DType: tenon.Float32}
	check(t, "sum of zeros", item(t, x, x.Sum(x.Zeros([]int{10}, tenon.Float16), nil)), 0)
	most := x.Ones([]int{65504}, tenon.Float16)
	check(t, "sum of 65504 ones", item(t, x, x.Sum(most, nil)), 65504)
	check(t, "sum of 65504 ones in float32", item(t, x, x.Sum(most, nil, wide)), 65504)
	check(t, "sum of 65536 ones in float32", item(t, x, x.Sum(x.Ones([]int{65536}, tenon.Float16), nil, wide)), 65536)

	count := func(bits []uint16) (n float64) {
		for _, b := range bits {
			if b != 0 {
				n++
			}
		}
		return n
	}
	a := sparseOnes(t, x, sized(1203611, 120361))
	check(t, "sum of sparse ones", item(t, x, x.Sum(a, nil)), count(halves(t, x, a)))
	b := sparseOnes(t, x, 100, 121, sized(80, 16))
	rows := testdevice.Read[float32](t, x, x.ToDType(x.Sum(b, []int{0, 2}), tenon.Float32))
	for i, v := range rows {
		check(t, fmt.Sprintf("sum of row %d", i), float64(v), count(halves(t, x, x.Select(b, 1, i))))
	}
}

// halves returns the bits of a float16 tensor's elements.
func halves(t *testing.T, x *tenon.Exec, a *tenon.Tensor) []uint16 {
	t.Helper()
	b, err := x.Bytes(a)
	must(t, err)
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = uint16(b[2*i]) | uint16(b[2*i+1])<<8
	}
	return out
}

func testMeanHalf(t *testing.T, x *tenon.Exec) {
	a := x.Ones([]int{65536}, tenon.Float16)
	check(t, "mean", item(t, x, x.Mean(a, nil)), 1)
	m := x.Mean(a, nil, tenon.SumOpt{DType: tenon.Float32})
	check(t, "mean in float32", item(t, x, m), 1)
	check(t, "type of the mean", m.DType(), tenon.Float32)
}

func testProdLarge(t *testing.T, x *tenon.Exec) {
	const n = 240000 // a multiple of 4
	check(t, "product of ones", item(t, x, x.Prod(x.Ones([]int{n}, tenon.Float32), nil)), 1)
	for _, dt := range []tenon.DType{tenon.Complex64, tenon.Complex128} {
		p := x.Prod(x.FullC([]int{n}, 1i, dt), nil)
		check(t, fmt.Sprintf("product of i, %v", dt), equal(t, x, p, x.FullC(nil, 1, dt)), true)
	}
}

// testHugeIndex takes rows by a permutation. Elements and permutation are functions of their positions, so that the result can be
// computed without indexing.
func testHugeIndex(t *testing.T, x *tenon.Exec) {
	defer lowIndex32(x, 1000)()
	rows, stride := sized(15_000_000, 1500), 6_700_417 // a prime
	const columns = 45
	line := func(rows, n, m int) *tenon.Tensor { // row·n mod m, of each row
		return x.RemainderS(x.MulS(x.Arange(float64(rows), tenon.Int64), float64(n)), float64(m))
	}
	column := x.Arange(columns, tenon.Int64)
	element := func(row *tenon.Tensor) *tenon.Tensor { return x.Add(x.Unsqueeze(x.MulS(row, columns), 1), column) }
	index := line(rows, stride, rows)
	got := x.IndexSelect(element(x.Arange(float64(rows), tenon.Int64)), 0, index)
	allAre(t, x, "rows by a permutation", x.ToDType(x.Ne(got, element(index)), tenon.Uint8), 0)
}

func testMinMaxInits(t *testing.T, x *tenon.Exec) {
	for what, pick := range map[string]func() (v, i *tenon.Tensor){
		"max of 0":   func() (v, i *tenon.Tensor) { return x.MaxDim(tenon.From(x, []uint8{0}, 1), 0) },
		"min of 255": func() (v, i *tenon.Tensor) { return x.MinDim(tenon.From(x, []uint8{255}, 1), 0) },
	} {
		v, i := pick()
		check(t, what+": place", item(t, x, i), 0)
		check(t, what+": shape", len(v.Shape())+len(i.Shape()), 0)
	}
}

// testBinCount counts few and many numbers, with and without weights, and compares with the processor and with Go.
func testBinCount(t *testing.T, x *tenon.Exec) {
	host, n := x.Host(), sized(100_000, 20_000)
	w := x.RandN([]int{n}, tenon.Float64)
	weights := testdevice.Read[float64](t, x, w)
	hw := host.To(w)
	for _, c := range []struct {
		high int64
		dt   tenon.DType
	}{{50, tenon.Int8}, {50_000, tenon.Int64}, {50, tenon.Uint8}, {300, tenon.Int16}, {1000, tenon.Int32}} {
		a := x.RandInt(c.high, []int{n}, c.dt)
		ha := host.To(a)
		counts, sums := x.BinCount(a), x.BinCount(a, tenon.BinCountOpt{Weight: w})
		what := fmt.Sprintf("%v below %d", c.dt, c.high)
		check(t, what+": as on the processor", equal(t, x, counts, host.BinCount(ha)), true)
		check(t, what+": weights, as on the processor", equal(t, x, sums, host.BinCount(ha, tenon.BinCountOpt{Weight: hw})), true)
		check(t, what+": weights, again", equal(t, x, sums, x.BinCount(a, tenon.BinCountOpt{Weight: w})), true)
		bins, want := make([]int64, counts.Numel()), make([]float64, sums.Numel())
		for i, v := range testdevice.Read[int64](t, x, x.ToDType(a, tenon.Int64)) {
			bins[v]++
			want[v] += weights[i]
		}
		check(t, what+": counts", slices.Equal(testdevice.Read[int64](t, x, counts), bins), true)
		for i, v := range testdevice.Read[float64](t, x, sums) {
			if math.Abs(v-want[i]) > 1e-11 {
				t.Errorf("%s: the weights of %d add up to %v, want %v", what, i, v, want[i])
			}
		}
		if len(bins) != len(want) || bins[len(bins)-1] == 0 {
			t.Errorf("%s: there are %d bins of counts and %d of weights", what, len(bins), len(want))
		}
	}
	// 35488 · 65536 does not fit in an int32.
	a := x.Zeros([]int{10}, tenon.Int32)
	x.CopyInto(x.Narrow(a, 0, 0, 1), x.Full([]int{1}, 35488, tenon.Int32))
	counts := x.BinCount(a, tenon.BinCountOpt{MinLength: 65536})
	check(t, "bins", counts.Numel(), 65536)
	check(t, "counted", item(t, x, x.Sum(counts, nil)), 10)
	check(t, "the far bin", item(t, x, x.Select(counts, 0, 35488)), 1)
}

func testTinyHalfNorm(t *testing.T, x *tenon.Exec) {
	a := x.ToDType(x.DivS(x.Arange(25, tenon.Float32), 100_000_000), tenon.Float16)
	if n := item(t, x, x.VectorNorm(a, nil)); !(n > 0) {
		t.Errorf("the norm of subnormal halves is %v", n)
	}
}

func testNormConversion(t *testing.T, x *tenon.Exec) {
	n := x.VectorNorm(x.Ones([]int{65536}, tenon.Float16), nil, tenon.VectorNormOpt{Ord: 0, DType: tenon.Float32})
	check(t, "elements that are not 0", item(t, x, n), 65536)
	check(t, "type", n.DType(), tenon.Float32)
}

// testLoopOverflow pools one row of more than 2^31 elements.
func testLoopOverflow(t *testing.T, x *tenon.Exec) {
	const low = 1 << 10
	defer lowIndex32(x, 2*low)()
	poolRow(t, x, sized(1<<30, low)+1)
}

// testLoopOverflowLarge goes to the last row that 32 bits count and beyond it.
func testLoopOverflowLarge(t *testing.T, x *tenon.Exec) {
	one := x.Ones([]int{1, 1, 1, 1}, tenon.Float16)
	pool := func(shape ...int) error {
		return tenon.Try(func() { x.AvgPool2d(x.Expand(one, shape...), [2]int{1, 1}) })
	}
	wantError(t, pool(1, 1, 1, 1<<31), "integer out of range")
	wantError(t, pool(1, 1, 1<<31, 1), "integer out of range")
	wantError(t, tenon.Try(func() { x.MaxPool2d(x.Expand(one, 1, 1, 1<<16, 1<<15), [2]int{2, 2}) }), "integer out of range")
	wantError(t, tenon.Try(func() { x.AdaptiveAvgPool2d(x.Expand(one, 1, 1, 1<<16, 1<<15), [2]int{1, 1}) }), "integer out of range")

	const low = 1 << 12
	defer lowIndex32(x, low/2)()
	poolRow(t, x, sized(1<<31, low)-1)
}

// poolRow pools a row of n elements with windows of one element, which leaves it as it is.
func poolRow(t *testing.T, x *tenon.Exec, n int) {
	x.Scope(func(x *tenon.Exec) {
		a := x.RandN([]int{1, 1, 1, n}, tenon.Float16)
		y := x.AvgPool2d(a, [2]int{1, 1})
		must(t, x.Synchronize())
		check(t, fmt.Sprintf("the last of %d elements", n), equal(t, x, x.Narrow(y, 3, n-1, 1), x.Narrow(a, 3, n-1, 1)), true)
		allAre(t, x, fmt.Sprintf("%d elements that differ", n), x.ToDType(x.Ne(y, a), tenon.Uint8), 0)
	})
}

func testMaxLargeAxis(t *testing.T, x *tenon.Exec) {
	defer lowIndex32(x, 1000)()
	n := sized(1<<32, 1<<16)
	a := x.Zeros([]int{n}, tenon.Int8)
	x.CopyInto(x.Narrow(a, 0, n-1, 1), x.Ones([]int{1}, tenon.Int8))
	v, i := x.MaxDim(a, 0)
	check(t, "greatest", item(t, x, v), 1)
	check(t, "place", item(t, x, i), float64(n-1))
}

// testToArray reads a tensor as a Go slice, which must have the tensor's type.
func testToArray(t *testing.T, x *tenon.Exec) {
	a := x.Full([]int{1}, 3, tenon.Float32)
	_, err := tenon.Read[int32](x, a)
	wantError(t, err, "float32", "int32")
	check(t, "the element", testdevice.Read[float32](t, x, a)[0], 3)
}

func testDeviceMismatch(t *testing.T, x *tenon.Exec) {
	host := x.Host()
	const text = "Expected all tensors to be on the same device"
	of := func(on bool) *tenon.Tensor {
		if on {
			return x.Ones([]int{2, 2}, tenon.Float32)
		}
		return host.Ones([]int{2, 2}, tenon.Float32)
	}
	for mix := range 8 {
		a, b, c := of(mix&1 != 0), of(mix&2 != 0), of(mix&4 != 0)
		mm := tenon.Try(func() { x.MatMul(a, b) })
		addmm := tenon.Try(func() { x.AddMM(c, a, b) })
		if mix&3 == 3 {
			must(t, mm)
		} else {
			wantError(t, mm, text)
		}
		if mix == 7 {
			must(t, addmm)
		} else {
			wantError(t, addmm, text)
		}
	}
}

// testGatherStats combines statistics of ones, and those of the two halves of a batch, with which it updates running statistics.
func testGatherStats(t *testing.T, x *tenon.Exec) {
	ones, two := x.Ones([]int{2, 3}, tenon.Float32), x.Full(nil, 2, tenon.Float32)
	m, s := x.BatchNormGatherStats(ones, ones, two, nil, nil, 0.1, 1e-5)
	for what, v := range map[string]*tenon.Tensor{"mean": m, "reciprocal deviation": s} {
		check(t, "shape of the "+what, fmt.Sprint(v.Shape()), "[3]")
		for _, e := range testdevice.Read[float32](t, x, v) {
			if math.Abs(float64(e)-1) > 1.3e-6 {
				t.Errorf("the %s is %v, want 1", what, e)
			}
		}
	}

	const n, c, eps = 48, 3, 1e-5
	batch := x.RandN([]int{n, c}, tenon.Float32)
	stats := func(part *tenon.Tensor) (mean, invStd *tenon.Tensor) {
		v, mean := x.VarMean(part, []int{0})
		biased := x.MulS(v, float64(part.Shape()[0]-1)/float64(part.Shape()[0]))
		return x.Unsqueeze(mean, 0), x.Unsqueeze(x.Rsqrt(x.AddS(biased, eps)), 0)
	}
	m1, s1 := stats(x.Narrow(batch, 0, 0, 16))
	m2, s2 := stats(x.Narrow(batch, 0, 16, n-16))
	running := func() (mean, variance *tenon.Tensor) {
		return x.Zeros([]int{c}, tenon.Float32), x.Ones([]int{c}, tenon.Float32)
	}
	rm, rv := running()
	wm, wv := running()
	x.BatchNorm(batch, nil, nil, wm, wv, tenon.BatchNormOpt{Eps: eps, Training: true})
	m, s = x.BatchNormGatherStats(x.Cat([]*tenon.Tensor{m1, m2}, 0), x.Cat([]*tenon.Tensor{s1, s2}, 0),
		tenon.From(x, []int64{16, n - 16}, 2), rm, rv, 0.1, eps)
	wholeMean, wholeStd := stats(batch)
	for what, v := range map[string][2]*tenon.Tensor{"mean": {m, x.Select(wholeMean, 0, 0)},
		"reciprocal deviation": {s, x.Select(wholeStd, 0, 0)}, "running mean": {rm, wm}, "running variance": {rv, wv}} {
		got, want := testdevice.Read[float32](t, x, v[0]), testdevice.Read[float32](t, x, v[1])
		for i := range want {
			if math.Abs(float64(got[i]-want[i])) > 2e-6 {
				t.Errorf("%s: channel %d has %v, want %v", what, i, got[i], want[i])
			}
		}
	}
}
