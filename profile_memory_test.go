package tenon_test

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
)

// mostUsed checks that no two blocks overlap at any time, and returns the most memory of each category.
func mostUsed(t *testing.T, p *profile.Profile) map[profile.Category]int64 {
	t.Helper()
	live := map[uint64]int64{}
	var starts []uint64
	i := 0
	most := map[profile.Category]int64{}
	for u := range p.Usages() {
		e := p.Memory[i]
		i++
		k, there := slices.BinarySearch(starts, e.Addr)
		if e.Bytes < 0 {
			if live[e.Addr] != -e.Bytes {
				t.Errorf("at %v %d bytes at %#x end, where %d are in use", e.At, -e.Bytes, e.Addr, live[e.Addr])
			}
			delete(live, e.Addr)
			if there {
				starts = slices.Delete(starts, k, k+1)
			}
		} else {
			if there || k > 0 && starts[k-1]+uint64(live[starts[k-1]]) > e.Addr || k < len(starts) && e.Addr+uint64(e.Bytes) > starts[k] {
				t.Errorf("at %v %d bytes of %s at %#x begin, where others are in use", e.At, e.Bytes, e.Category, e.Addr)
			}
			live[e.Addr] = e.Bytes
			if !there {
				starts = slices.Insert(starts, k, e.Addr)
			}
		}
		//tenon:unordered a maximum
		for c, n := range u.By {
			most[c] = max(most[c], n)
		}
	}
	return most
}

// A step has the same memory in a region as without one, with and without graphs: the same parameters, gradients, state and inputs, and
// fewer activations, since the product's kernel makes the result of ReLU. Replays use it again and again.
func TestProfileRegionMemory(t *testing.T) {
	const steps = 3
	var eager map[profile.Category]int64
	for _, way := range []string{"eager", "no graphs", "graphs"} {
		x := testdevice.Open(t, tenon.Sim(0))
		net := nn.Sequential{nn.NewLinear(x, 8, 16), nn.ReLU{}, nn.NewLinear(x, 16, 4)}
		opt, err := optim.NewAdamW(nn.Params(net))
		if err != nil {
			t.Fatal(err)
		}
		in := tenon.From(x, make([]float32, 256*8), 256, 8)
		region := compile.New(compile.Opt{NoGraphs: way == "no graphs"})
		run := func() {
			step := func(x *tenon.Exec) error {
				opt.ZeroGrad()
				y := net.Forward(x, in)
				if err := x.Backward(x.Mean(x.Mul(y, y), nil)); err != nil {
					return err
				}
				return opt.Step(x)
			}
			if way == "eager" {
				err = x.Do(step)
			} else {
				err = region.Do(x, step)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			run()
		}
		p := profiled(t, x, func() {
			for range steps {
				run()
			}
			opt.ZeroGrad()
		})
		if replays, _ := replays(p); (len(replays) > 0) != (way == "graphs") {
			t.Fatalf("%s: %d replays", way, len(replays))
		}
		most := mostUsed(t, p)
		if way == "eager" {
			eager = most
		}
		for _, c := range []profile.Category{profile.Parameters, profile.Gradients, profile.OptimizerState, profile.Activations,
			profile.Inputs} {
			want := eager[c]
			if c == profile.Activations && way != "eager" {
				want -= 12 << 10
			}
			if most[c] == 0 || most[c] != want {
				t.Errorf("%s: at most %d bytes of %s, want %d", way, most[c], c, want)
			}
		}
		if n := most[profile.Temporaries]; n == 0 || n > 2*eager[profile.Temporaries] {
			t.Errorf("%s: at most %d bytes of temporaries, eager %d", way, n, eager[profile.Temporaries])
		}
		began := map[profile.Category]int{}
		for _, e := range p.Memory {
			if e.Bytes > 0 && e.At > 0 {
				began[e.Category]++
			}
		}
		if began[profile.Gradients] != steps*4 || began[profile.Activations] == 0 || began[profile.Activations]%steps != 0 {
			t.Errorf("%s: in %d steps %v blocks begin", way, steps, began)
		}
		var last profile.Usage
		for u := range p.Usages() {
			last = u
		}
		if n := last.By[profile.Gradients] + last.By[profile.Activations] + last.By[profile.Temporaries]; n != 0 {
			t.Errorf("%s: at the end there are %v", way, last.By)
		}
	}
}

// The workspaces of a replay's kernels are temporaries, as without a graph.
func TestProfileRegionWorkspaces(t *testing.T) {
	var most [2]int64
	for graphs := range most {
		x := testdevice.Open(t, tenon.Sim(0))
		in, out := x.Ones([]int{1 << 18}, tenon.Float32), x.Zeros(nil, tenon.Float32)
		region := compile.New(compile.Opt{NoGraphs: graphs == 0})
		run := func() {
			if err := region.Do(x, func(x *tenon.Exec) error { x.CopyInto(out, x.Sum(in, nil)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			run()
		}
		most[graphs] = mostUsed(t, profiled(t, x, run))[profile.Temporaries]
	}
	if most[0] == 0 || most[0] != most[1] {
		t.Errorf("at most %d bytes of temporaries in a graph, %d without one", most[1], most[0])
	}
}

// A frozen parameter is a parameter, eagerly and in a region, whether it was frozen in its box or its box was given a tensor that requires
// no gradient.
func TestProfileFrozenParameters(t *testing.T) {
	for _, way := range []string{"eager", "no graphs", "graphs"} {
		x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
		first, second := nn.NewLinear(x, 256, 256), nn.NewLinear(x, 256, 64)
		nn.SetRequiresGrad(first, false)
		nn.SetRequiresGrad(second, false)
		second.Weight.Set(x.RandN([]int{64, 256}, tenon.Float32))
		in := tenon.From(x, make([]float32, 512), 2, 256)
		region := compile.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return second.Forward(x, first.Forward(x, in)) },
			compile.Opt{NoGraphs: way == "no graphs"})
		run := func() {
			if way == "eager" {
				second.Forward(x, first.Forward(x, in)).Close()
			} else {
				region.Call(x, in).Close()
			}
		}
		for range 4 {
			x.Scope(func(*tenon.Exec) { run() })
		}
		most := mostUsed(t, profiled(t, x, func() { x.Scope(func(*tenon.Exec) { run() }) }))
		if n := int64(4 * (256*256 + 256 + 256*64 + 64)); most[profile.Parameters] < n || most[profile.Inputs] >= 4*256*64 {
			t.Errorf("%s: %v, want %d bytes of parameters", way, most, n)
		}
	}
}

// The outputs of a graph's run count until they are closed, and what is made of them in the next one begins again.
func TestProfileRegionOutputs(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
	a := tenon.From(x, make([]float32, 1024), 32, 32)
	region := compile.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.MatMul(x.Exp(in), in) })
	for range 4 {
		region.Call(x, a).Close()
	}
	p := profiled(t, x, func() {
		for range 2 {
			y := region.Call(x, a)
			x.Exp(y).Close()
			y.Close()
		}
	})
	var ends, begins []int
	for i, e := range p.Memory {
		switch {
		case e.Op < 0 || p.Ops[e.Op].Name != "MatMul":
		case e.Bytes > 0:
			begins = append(begins, i)
		default:
			ends = append(ends, i)
		}
	}
	if len(begins) != 2 || len(ends) != 2 || begins[1] < ends[0] || p.Memory[ends[0]].Bytes != -4096 {
		t.Fatalf("the results begin at %v and end at %v of %+v", begins, ends, p.Memory)
	}
	for k := range begins {
		if ends[k]-begins[k] < 3 { // Exp's result begins and ends meanwhile
			t.Errorf("result %d ends at once: %+v", k, p.Memory[begins[k]:ends[k]+1])
		}
	}
	mostUsed(t, p)
}

// The memory of a training step of GPT-2 as graphs never overlaps, with a profile from the first step or later.
func TestProfileRegionGPT2Memory(t *testing.T) {
	for _, before := range []int{0, 4} {
		x := testdevice.Open(t, tenon.Sim(0))
		training, err := gpt2.NewTraining(x, gpt2.Small(), 2)
		if err != nil {
			t.Fatal(err)
		}
		defer training.Close()
		region := compile.New()
		run := func() {
			if err := region.Do(x, training.Step); err != nil {
				t.Fatal(err)
			}
		}
		for range before {
			run()
		}
		p := profiled(t, x, func() {
			for range 7 - before {
				run()
			}
		})
		most := mostUsed(t, p)
		for _, c := range []profile.Category{profile.Parameters, profile.Gradients, profile.OptimizerState, profile.Activations,
			profile.Temporaries} {
			if most[c] == 0 {
				t.Errorf("a profile after %d steps has no %s: %v", before, c, most)
			}
		}
		if r := x.Device().MemoryReserved(); p.Peak().Total > r {
			t.Errorf("the peak is %d bytes of %d", p.Peak().Total, r)
		}
		t.Log(most, p.Peak())
	}
}

// A result that takes over the memory of an operand is a block of its own, made by the kernel that wrote it.
func TestProfileTakenMemory(t *testing.T) {
	for _, opt := range []compile.Opt{{NoGraphs: true}, {}, {NoWarmup: true}} {
		x := testdevice.Open(t, tenon.Sim(0)).NoGrad()
		a := tenon.From(x, make([]float32, 1024), 1, 32, 32) // a batched product is a kernel of its own
		p := profiled(t, x, func() {
			err := compile.New(opt).Do(x, func(x *tenon.Exec) error {
				x.Keep(x.MulS(x.AddS(x.MatMul(a, a), 1), 2))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
		mostUsed(t, p)
		var held int64 // the memory of results in use
		var after []string
		for _, e := range p.Memory {
			if e.Op < 0 {
				continue
			}
			if e.Bytes < 0 {
				held -= 4096
				continue
			}
			held += 4096
			after = append(after, p.Ops[e.Op].Name)
		}
		want := []string{"MatMul", "Fused"}
		if opt.NoWarmup { // the recording takes the memory, and the run uses it
			want = append(want, want...)
		}
		if held != 4096 || !slices.Equal(after, want) {
			t.Errorf("with %v %v begin and %d bytes stay: %+v", compile.New(opt), after, held, p.Memory)
		}
	}
}
