package tenon_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/nn"
)

// What fmt prints of handles is a short text, which takes no lock and reads no device.
func TestTexts(t *testing.T) {
	x, err := tenon.Open(tenon.SimMachine(2, 1<<30).At(1))
	must(t, err)
	defer x.Close()
	d := x.Device()
	for _, c := range []struct {
		v    any
		want string
	}{
		{x, "Exec on " + d.String()},
		{x.NoGrad().Autocast(tenon.BFloat16).TF32(true), "Exec on " + d.String() + ", no grad, autocast bfloat16, TF32"},
		{x.WithGenerator(cuda.NewGenerator(1)), "Exec on " + d.String() + ", with a generator of its own"},
		{x.Host(), "Exec on CPU"},
		{(*tenon.Exec)(nil), "nil Exec"},
		{new(tenon.Exec), "nil Exec"},
		{d, "device 1 (" + d.Name() + ")"},
		{x.Host().Device(), "CPU"},
		{new(cuda.Device), "cuda.Device(the device is nil or a zero value; use one that an Exec's Device returned)"},
		{tenon.Best(), "best"}, {tenon.Best().At(1), "best, device 1"}, {tenon.CPU(), "cpu"}, {tenon.Selector{}, "best"},
		{tenon.CUDA(0), "cuda"}, {tenon.CUDA(1), "cuda:1"}, {tenon.Sim(0), "sim"}, {tenon.Sim(2 << 30), "sim:2GiB"},
		{tenon.Sim(1025), "sim:1025 bytes"}, {tenon.Sim(3 << 19).At(2), "sim:1536KiB, device 2"},
		{tenon.SimMachine(2, 0).At(1), "sim machine of 2, device 1"},
	} {
		if got := fmt.Sprint(c.v); got != c.want {
			t.Errorf("%.200q, want %q", got, c.want)
		}
	}
	for _, text := range []string{"best", "cpu", "cuda", "cuda:1", "sim", "sim:2GiB", "sim:1536KiB"} {
		if s, err := tenon.ParseSelector(text); err != nil || s.String() != text {
			t.Errorf("%s is parsed and printed as %v (%v)", text, s, err)
		}
	}
	s, err := d.Stream()
	must(t, err)
	if got := fmt.Sprint(x.On(s)); !strings.HasSuffix(got, fmt.Sprint(", stream ", s.ID())) {
		t.Errorf("on a stream: %q", got)
	}
	fork, err := x.Fork()
	must(t, err)
	must(t, fork.Close())
	if got := fmt.Sprint(fork); !strings.HasSuffix(got, " (closed)") {
		t.Errorf("closed: %q", got)
	}
}

// What fmt prints of the things that programs make with a device is a short text, also while others use them.
func TestTextsOfParts(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(1 << 28))
	must(t, err)
	defer x.Close()
	name := x.Device().Name()
	pool, err := cuda.NewMemPool(x.Device())
	must(t, err)
	a := x.Ones([]int{2}, tenon.Float32)
	graph, err := x.Capture(func(x *tenon.Exec) { x.AddInto(a, a, a) })
	must(t, err)
	table, err := data.NewTable(data.NewColumn(make([]uint8, 12), 2, 2), data.NewColumn(make([]int64, 3)))
	must(t, err)
	loader, err := data.NewLoader(table, data.LoaderOpt{BatchSize: 2})
	must(t, err)
	p := nn.NewParam(x.Ones([]int{3, 4}, tenon.Float32))
	defer p.Close()
	r := compile.New(compile.Opt{NoFusion: true, Branches: 4, Static: []int{0, 2}})
	for range 3 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.AddInto(a, a, a)
			return nil
		}))
	}
	for _, c := range []struct {
		v    any
		want string
	}{
		{cuda.NewGenerator(42), "cuda.Generator(seed 42, offset 0)"},
		{(*cuda.Generator)(nil), "cuda.Generator(the generator is nil; use one that NewGenerator or a device's Generator returned)"},
		{pool, fmt.Sprintf("cuda.MemPool(%s, %d)", name, pool.ID()[1])},
		{new(cuda.MemPool), "cuda.MemPool(the pool is nil or a zero value; use one that NewMemPool returned)"},
		{graph, "tenon.Graph(nodes 1)"},
		{(*tenon.Graph)(nil), "tenon.Graph(nodes 0)"},
		{table, "data.Table(3 samples of uint8[2 2], int64[])"},
		{(*data.Table)(nil), "nil table"},
		{new(data.Table), "data.Table(0 samples)"},
		{loader, "data.Loader(2 batches of up to 2 samples)"},
		{(*data.Loader)(nil), "nil loader"},
		{p, "Param float32[3 4] on " + name + " requires grad"},
		{(*nn.Param)(nil), "Param nil tensor"},
		{r, "compile.Region(Branches 4, Static [0 2], NoFusion)"},
		{compile.New(), "compile.Region()"},
		{(*compile.Region)(nil), "nil region"},
		{r.Stats(x), "Runs 3, New 1, Deferred 3, WarmUps 1, Recordings 1, Replays 1, Kernels 3"},
		{compile.Stats{}, "nothing ran"},
	} {
		got := ""
		if s, ok := c.v.(fmt.Stringer); ok {
			got = s.String()
		}
		if got != c.want {
			t.Errorf("%T: %.200q, want %q", c.v, got, c.want)
		}
	}
}
