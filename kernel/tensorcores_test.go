package kernel_test

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// productOf is a product of tiles in a loop, with blocks of the given number of threads.
type productOf struct {
	t                    tenon.DType
	rows, depth, columns int
	threads              int
	axes                 [2]kernel.Groups // along which the operands are loaded
	tf32, transposed     bool
	parts                int
}

func (c productOf) kernel() *kernel.Kernel {
	return kernel.Build("product", func(k *kernel.Builder) {
		k.FixedThreads(c.threads)
		a, b := k.BufferRO("a", c.t), k.BufferRO("b", c.t)
		sums := map[tenon.DType]tenon.DType{tenon.Float64: tenon.Float64, tenon.Int8: tenon.Int32}[c.t]
		if sums == dtype.Invalid {
			sums = tenon.Float32
		}
		out := k.Buffer("out", sums)
		left, sum := k.Tile("left", c.t, c.rows, c.depth), k.TileInParts("sum", sums, c.rows, c.columns, max(c.parts, 1))
		rightRows, rightColumns := c.depth, c.columns
		if c.transposed {
			rightRows, rightColumns = rightColumns, rightRows
		}
		right := k.Tile("right", c.t, rightRows, rightColumns)
		load := func(t kernel.Tile, g kernel.Groups, from kernel.Buffer) {
			t.Load(g, 1, func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				return from, row.MulWide(k.I32(64)).Add(col.Convert(tenon.Int64)), k.Bool(true)
			})
		}
		sum.Zero()
		k.Pipelined(3, k.I32(0), k.I32(4), k.I32(1), func(kernel.Value) {
			load(left, c.axes[0], a)
			load(right, c.axes[1], b)
			if c.transposed {
				sum.DotTransposed(left, right)
			} else {
				sum.Dot(left, right, c.tf32)
			}
		})
		sum.Each(1, func(row, col kernel.Value, v []kernel.Value) {
			out.Store(row.MulWide(k.I32(c.columns)).Add(col.Convert(tenon.Int64)), v[0])
		})
	})
}

// unit returns the instruction with which the text of a kernel multiplies tiles.
func unit(text string) string {
	for _, name := range []string{"wgmma.mma_async", "mma.sync", "fma.rn.f32", "fma.rn.f64", "mad.lo.s32"} {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(strings.TrimSpace(line), name) {
				return name
			}
		}
	}
	return ""
}

// TestTensorCores checks the table of kernels.md: which products run on the Tensor Cores of GPUs of compute capability 8.0 and 9.0.
func TestTensorCores(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(1 << 26))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	const wg, mma, f32, f64, whole = "wgmma.mma_async", "mma.sync", "fma.rn.f32", "fma.rn.f64", "mad.lo.s32"
	axes := func(left, right kernel.Groups) [2]kernel.Groups { return [2]kernel.Groups{left, right} }
	cols, rows := kernel.AlongCols, kernel.AlongRows
	along := axes(cols, cols)
	halves := func(rows, depth, columns, threads int) productOf {
		return productOf{t: tenon.BFloat16, rows: rows, depth: depth, columns: columns, threads: threads, axes: along}
	}
	square := func(t tenon.DType, depth int, right kernel.Groups) productOf {
		return productOf{t: t, rows: 64, depth: depth, columns: 64, threads: 128, axes: axes(cols, right)}
	}
	single := func(depth int, right kernel.Groups, tf32 bool) productOf {
		p := square(tenon.Float32, depth, right)
		p.tf32 = tf32
		return p
	}
	other, transposed, parts := square(tenon.Float16, 16, rows), square(tenon.Float16, 16, cols), halves(64, 64, 64, 128)
	other.axes, transposed.transposed, parts.parts = axes(rows, rows), true, 2
	for name, c := range map[string]struct {
		p          productOf
		sm80, sm90 string
	}{
		"halves":               {halves(64, 16, 64, 128), mma, wg},
		"halves of every axis": {other, mma, wg},
		"halves transposed":    {transposed, mma, wg},
		"few threads":          {halves(64, 16, 64, 64), mma, mma},
		"few rows":             {halves(32, 16, 64, 128), mma, mma},
		"smallest":             {halves(16, 16, 8, 32), mma, mma},
		"columns of wgmma":     {halves(64, 16, 16, 128), mma, wg},
		"fewer columns":        {halves(64, 16, 8, 128), mma, mma},
		"192 columns":          {halves(64, 16, 192, 128), f32, wg},
		"many columns":         {halves(64, 16, 512, 128), mma, mma},
		"too few rows":         {halves(8, 16, 64, 128), f32, f32},
		"too few columns":      {halves(64, 16, 4, 128), f32, f32},
		"too shallow":          {halves(64, 8, 64, 128), f32, f32},
		"odd depth":            {halves(64, 48, 64, 128), f32, f32},
		"odd rows":             {halves(48, 16, 64, 128), f32, f32},
		"odd columns":          {halves(64, 16, 60, 128), f32, f32},
		"in parts":             {parts, f32, f32},
		"exact":                {single(16, rows, false), f32, f32},
		"tf32":                 {single(8, rows, true), mma, wg},
		"tf32 across":          {single(8, cols, true), mma, mma},
		"tf32, too shallow":    {single(4, rows, true), f32, f32},
		"bytes":                {square(tenon.Int8, 32, rows), mma, wg},
		"bytes across":         {square(tenon.Int8, 32, cols), whole, whole},
		"bytes too shallow":    {square(tenon.Int8, 16, rows), whole, whole},
		"doubles":              {square(tenon.Float64, 16, cols), f64, f64},
	} {
		k := c.p.kernel()
		text, err := x.Device().PTX(k)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := unit(text); got != c.sm90 || !strings.Contains(text, ".entry product(") {
			t.Errorf("%s: on 9.0 by %q, want %q", name, got, c.sm90)
		}
		p, err := k.Program()
		if err != nil {
			t.Fatal(err)
		}
		old, err := ptx.Compile([]*kir.Program{p}, ptx.Target{Major: 8})
		if got := unit(string(old)); got != c.sm80 || err != nil {
			t.Errorf("%s: on 8.0 by %q, want %q: %v", name, got, c.sm80, err)
		}
	}
}

// TestPTXOfMistakes: a kernel with a mistake has no text, and the error is that of a launch.
func TestPTXOfMistakes(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	wrong := kernel.Build("wrong", func(k *kernel.Builder) { k.I32(1).Add(k.I64(1)) })
	for _, k := range []*kernel.Kernel{nil, {}, wrong} {
		if text, err := x.Device().PTX(k); fault.KindOf(err) != fault.Invalid || text != "" {
			t.Errorf("got %q, %v", text, err)
		}
	}
	if _, err := (*cuda.Device)(nil).PTX(wrong); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a nil device: %v", err)
	}
}
