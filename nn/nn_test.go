package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// onDevices runs f in a scope on the processor, on a simulated device and on a GPU if there is one, and checks that f, which closes its
// modules, left nothing behind.
func onDevices(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	t.Helper()
	devices := []struct {
		name string
		sel  tenon.Selector
	}{{"cpu", tenon.CPU()}, {"sim", tenon.Sim(0)}}
	if tenon.GPUs() > 0 {
		devices = append(devices, devices[0])
		devices[2].name, devices[2].sel = "cuda", tenon.CUDA(0)
	}
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			x, err := tenon.Open(d.sel)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}()
			before := core.LiveStorages()
			x.Scope(func(x *tenon.Exec) { f(t, x) })
			if n := core.LiveStorages() - before; n > 0 && !t.Failed() {
				t.Errorf("%d storages are left", n)
			}
		})
	}
}

func floats(t *testing.T, x *tenon.Exec, a *tenon.Tensor) []float32 {
	t.Helper()
	v, err := tenon.Read[float32](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantFloats(t *testing.T, x *tenon.Exec, a *tenon.Tensor, want ...float32) {
	t.Helper()
	got := floats(t, x, a)
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > 1e-5*max(1, math.Abs(float64(want[i]))) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// wantError checks that f stops with an error of kind Invalid that contains the parts and names this test's file.
func wantError(t *testing.T, f func(), parts ...string) {
	t.Helper()
	err := tenon.Try(f)
	if fault.KindOf(err) != fault.Invalid {
		t.Fatalf("got error %v", err)
	}
	for _, p := range append(parts, "_test.go") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q: %v", p, err)
		}
	}
}

func digitsNet(x *tenon.Exec, g *nn.HostGenerator) nn.Sequential {
	pad := nn.Conv2dOpt{Padding: [2]int{1, 1}, Generator: g}
	return nn.Sequential{
		nn.NewConv2d(x, 1, 16, [2]int{3, 3}, pad), nn.Identity{},
		nn.NewConv2d(x, 16, 32, [2]int{3, 3}, pad), nn.Identity{},
		nn.Identity{}, nn.Flatten{},
		nn.NewLinear(x, 512, 64, nn.LinearOpt{Generator: g}), nn.Identity{},
		nn.NewLinear(x, 64, 10, nn.LinearOpt{Generator: g}),
	}
}

// With the generator of seed 0 the network starts with the weights that PyTorch recorded for that seed, under its keys.
func TestRecordedInit(t *testing.T) {
	run, err := recorded.OpenDigitsRun("../conformance/testdata/digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		net := digitsNet(x, nn.NewHostGenerator(0))
		defer nn.Close(net)
		var names []string
		for name, p := range nn.Params(net) {
			names = append(names, name)
			want := run.Init[name]
			if want == nil || !slices.Equal(p.Tensor().Shape(), want.Shape) {
				t.Fatalf("parameter %s is %v, recorded is %v", name, p.Tensor(), want)
			}
			for i, v := range floats(t, x, p.Tensor()) {
				if float64(v) != want.Real(i) {
					t.Fatalf("%s: element %d is %v, want %v", name, i, v, want.Real(i))
				}
			}
		}
		if got := strings.Join(names, " "); got != "0.weight 0.bias 2.weight 2.bias 6.weight 6.bias 8.weight 8.bias" {
			t.Errorf("names %s", got)
		}
		if n := nn.NumParams(net); n != 38282 {
			t.Errorf("%d parameters", n)
		}
	})
}

func TestLinear(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLinear(x, 2, 3, nn.LinearOpt{Generator: nn.NewHostGenerator(0)})
		defer nn.Close(l)
		state := map[string]*tenon.Tensor{
			"weight": tenon.From(x, []float32{1, 2, 3, 4, 5, 6}, 3, 2), "bias": tenon.From(x, []float32{.5, 0, -.5}),
		}
		if err := nn.Load(x, l, state); err != nil {
			t.Fatal(err)
		}
		in := tenon.From(x, []float32{1, -1, 2, 0}, 2, 2)
		out := l.Forward(x, in)
		wantFloats(t, x, out, -.5, -1, -1.5, 2.5, 6, 9.5)
		if err := x.Backward(x.Sum(out, nil)); err != nil {
			t.Fatal(err)
		}
		wantFloats(t, x, l.Weight.Grad(), 3, -1, 3, -1, 3, -1)
		wantFloats(t, x, l.Bias.Grad(), 2, 2, 2)
		bare := nn.NewLinear(x, 2, 3, nn.LinearOpt{NoBias: true, DType: tenon.Float64, Generator: nn.NewHostGenerator(0)})
		defer nn.Close(bare)
		if bare.Bias.Tensor() != nil || bare.Weight.Tensor().DType() != tenon.Float64 {
			t.Errorf("got %v and %v", bare.Weight.Tensor(), bare.Bias.Tensor())
		}
		wantError(t, func() { nn.NewLinear(x, -1, 2) }, "from -1 to 2 features")
		wantError(t, func() { l.Forward(x, x.Zeros([]int{4, 3}, tenon.Float32)) }, "shapes cannot be multiplied")
	})
}

func TestConv2d(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		c := nn.NewConv2d(x, 2, 4, [2]int{3, 2}, nn.Conv2dOpt{Stride: [2]int{2, 1}, Padding: [2]int{1, 0}, Groups: 2,
			Generator: nn.NewHostGenerator(0)})
		defer nn.Close(c)
		nn.InitConstant(x, c.Weight.Tensor(), 1)
		nn.InitConstant(x, c.Bias.Tensor(), 0.5)
		if got := c.Weight.Tensor().Shape(); !slices.Equal(got, []int{4, 1, 3, 2}) {
			t.Fatalf("weight %v", got)
		}
		in := tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60}, 1, 2, 2, 3)
		wantFloats(t, x, c.Forward(x, in), 12.5, 16.5, 12.5, 16.5, 120.5, 160.5, 120.5, 160.5)
		same := nn.NewConv2d(x, 2, 4, [2]int{4, 3}, nn.Conv2dOpt{Same: true})
		defer nn.Close(same)
		if shape := same.Forward(x, x.Ones([]int{1, 2, 5, 7}, tenon.Float32)).Shape(); !slices.Equal(shape, []int{1, 4, 5, 7}) {
			t.Errorf("with Same an input of [1 2 5 7] becomes %v", shape)
		}
		wantError(t, func() { nn.NewConv2d(x, 3, 4, [2]int{1, 1}, nn.Conv2dOpt{Groups: 2}) }, "in_channels must be divisible by groups")
		wantError(t, func() { nn.NewConv2d(x, 2, 3, [2]int{1, 1}, nn.Conv2dOpt{Groups: 2}) }, "out_channels must be divisible by groups")
		wantError(t, func() { nn.NewConv2d(x, 2, 3, [2]int{1, 0}) }, "kernel of size [1 0]")
		wantError(t, func() { nn.NewConv2d(x, 2, 2, [2]int{1, 1}, nn.Conv2dOpt{Stride: [2]int{2}}) }, "Stride is [2 0]; give both numbers")
		wantError(t, func() { nn.NewConv2d(x, 2, 2, [2]int{1, 1}, nn.Conv2dOpt{Dilation: [2]int{0, 2}}) }, "Dilation is [0 2]; give both")
		wantError(t, func() { nn.NewConv1d(x, 2, 3, 1, nn.Conv1dOpt{Groups: -1}) }, "positive integer")
	})
}

func TestConv1d(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		c := nn.NewConv1d(x, 1, 1, 2, nn.Conv1dOpt{Padding: 1, NoBias: true, Generator: nn.NewHostGenerator(0)})
		defer nn.Close(c)
		nn.InitConstant(x, c.Weight.Tensor(), 2)
		wantFloats(t, x, c.Forward(x, tenon.From(x, []float32{1, 2, 3}, 1, 1, 3)), 2, 6, 10, 6)
	})
}

func TestConvTranspose2d(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		c := nn.NewConvTranspose2d(x, 4, 2, [2]int{2, 3}, nn.ConvTranspose2dOpt{Stride: [2]int{2, 1}, OutputPadding: [2]int{1, 0},
			Groups: 2, Generator: nn.NewHostGenerator(0)})
		defer nn.Close(c)
		bound := float32(1 / math.Sqrt(1*2*3)) // by the output channels of a group, as PyTorch has it
		for name, p := range nn.Params(c) {
			v := floats(t, x, p.Tensor())
			if slices.Max(v) > bound || slices.Min(v) < -bound || name == "weight" && slices.Max(v)-slices.Min(v) < bound {
				t.Errorf("%s is not within ±%g: %v", name, bound, v)
			}
		}
		var keys []string
		for key, s := range nn.StateDict(c) {
			keys = append(keys, fmt.Sprint(key, s.Shape()))
		}
		if !slices.Equal(keys, []string{"weight[4 1 2 3]", "bias[2]"}) {
			t.Errorf("the state dict has %v", keys)
		}
		nn.InitConstant(x, c.Weight.Tensor(), 1)
		nn.InitConstant(x, c.Bias.Tensor(), 0.5)
		in := tenon.From(x, []float32{1, 2, 10, 20, 3, 4, 30, 40}, 1, 4, 1, 2) // a row of two pixels in each channel
		wantFloats(t, x, c.Forward(x, in), 11.5, 33.5, 33.5, 22.5, 11.5, 33.5, 33.5, 22.5, .5, .5, .5, .5,
			33.5, 77.5, 77.5, 44.5, 33.5, 77.5, 77.5, 44.5, .5, .5, .5, .5)
		wantError(t, func() { nn.NewConvTranspose2d(x, 3, 4, [2]int{1, 1}, nn.ConvTranspose2dOpt{Groups: 2}) }, "in_channels must be")
		wantError(t, func() { nn.NewConvTranspose2d(x, 2, 2, [2]int{0, 1}) }, "kernel of size [0 1]")
		wantError(t, func() { nn.NewConvTranspose2d(x, 2, 2, [2]int{1, 1}, nn.ConvTranspose2dOpt{Stride: [2]int{2}}) }, "give both numbers")
	})
}

// stateful is a user's module: names by tag and by field, an embedded struct, lists and maps, a parameter in two places, and a cycle.
type stateful struct {
	common
	Sub    *nn.Linear `torch:"sub"`
	Later  *nn.Param
	Mean   *nn.Buffer `torch:"running_mean"`
	Heads  []*nn.Linear
	ByName map[string]nn.Module `torch:"by_name"`
	Tied   *nn.Param
	Hidden *nn.Param `torch:"-"`
	Loop   *stateful
	None   *nn.Linear
	hidden *nn.Param `torch:"-"`
	Sizes  []int
}

// common is an embedded struct; its name is not part of any path.
type common struct{ Scale *nn.Param }

func TestNewParamRefusals(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		wantError(t, func() { nn.NewParam(x.Zeros([]int{2}, tenon.Int64)) }, "NewParam: ", "can require gradients, not int64")
		wantError(t, func() { nn.NewParam(nil) }, "NewParam: ", "is nil")
	})
}

func TestNames(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		param := func(n int) *nn.Param { return nn.NewParam(x.Zeros([]int{n}, tenon.Float32)) }
		linear := func() *nn.Linear {
			return nn.NewLinear(x, 1, 1, nn.LinearOpt{NoBias: true, Generator: nn.NewHostGenerator(1)})
		}
		m := &stateful{common: common{param(1)}, Sub: linear(), Later: param(2), Mean: nn.NewBuffer(x.Zeros([]int{3}, tenon.Float32)),
			Heads: []*nn.Linear{linear(), linear()}, ByName: map[string]nn.Module{"b": linear(), "a": nn.Identity{}},
			Hidden: param(4), hidden: param(5)}
		m.Tied, m.Loop = m.Sub.Weight, m
		defer func() {
			nn.Close(m)
			m.Hidden.Close()
			m.hidden.Close()
		}()
		var params, keys, buffers []string
		for name := range nn.Params(m) {
			params = append(params, name)
		}
		for name := range nn.StateDict(m) {
			keys = append(keys, name)
		}
		for name := range nn.Buffers(m) {
			buffers = append(buffers, name)
		}
		for _, c := range []struct {
			got  []string
			want string
		}{
			{params, "Later Tied Scale Heads.0.weight Heads.1.weight by_name.b.weight"},
			{keys, "Later Tied running_mean Scale sub.weight Heads.0.weight Heads.1.weight by_name.b.weight"},
			{buffers, "running_mean"},
		} {
			if got := strings.Join(c.got, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		}
		for range nn.Params(m) {
			break // stops the walk
		}
	})
}

func TestLoad(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		g := nn.NewHostGenerator(3)
		m := nn.Sequential{nn.NewLinear(x, 1, 2, nn.LinearOpt{Generator: g}), nn.NewLinear(x, 2, 1, nn.LinearOpt{Generator: g})}
		defer nn.Close(m)
		w := m[0].(*nn.Linear).Weight
		before := floats(t, x, w.Tensor())
		state := map[string]*tenon.Tensor{
			"0.weight": tenon.From(x, []float32{7, 8}, 2, 1), "0.bias": tenon.From(x, []float32{1, 2, 3}),
			"1.bias": x.Zeros([]int{1}, tenon.Float32),
			"2.bias": x.Zeros([]int{1}, tenon.Float32),
		}
		err := nn.Load(x, m, state)
		for _, part := range []string{`Missing key(s) in state_dict: "1.weight"`, `Unexpected key(s) in state_dict: "2.bias"`,
			"size mismatch for 0.bias: copying a param with shape [3] from checkpoint, the shape in current model is [2]"} {
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, without %q", err, part)
			}
		}
		wantFloats(t, x, w.Tensor(), before...)
		// State on the processor, of another type, of which only a part fits.
		h := x.Host()
		state = map[string]*tenon.Tensor{"0.weight": tenon.From(h, []float64{7, 8}, 2, 1), "2.bias": state["2.bias"]}
		if err := nn.Load(x, m, state, nn.LoadOpt{Partial: true}); err != nil {
			t.Fatal(err)
		}
		wantFloats(t, x, w.Tensor(), 7, 8)
		if !w.Tensor().RequiresGrad() || w.Tensor().DType() != tenon.Float32 {
			t.Errorf("after Load: %v", w.Tensor())
		}
	})
}

func TestToDevice(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		h := x.Host()
		l := nn.NewLinear(h, 2, 1, nn.LinearOpt{Generator: nn.NewHostGenerator(0)})
		defer nn.Close(l)
		want := floats(t, h, l.Weight.Tensor())
		l.Bias.SetRequiresGrad(false)
		l.Weight.SetGrad(tenon.From(h, []float32{3, 4}, 1, 2))
		if err := nn.To(x, l); err != nil {
			t.Fatal(err)
		}
		w := l.Weight.Tensor()
		if w.Device() != x.Device() || !w.RequiresGrad() || l.Bias.Tensor().RequiresGrad() {
			t.Fatalf("after To: %v and %v", w, l.Bias.Tensor())
		}
		wantFloats(t, x, w, want...)
		wantFloats(t, x, l.Weight.Grad(), 3, 4)
		if err := nn.ToDType(x, l, tenon.Float64); err != nil {
			t.Fatal(err)
		}
		if w := l.Weight.Tensor(); w.DType() != tenon.Float64 || l.Weight.Grad().DType() != tenon.Float64 || !w.RequiresGrad() {
			t.Errorf("after ToDType: %v with gradient %v", w, l.Weight.Grad())
		}
		if err := nn.ToDType(x, l, tenon.Int64); fault.KindOf(err) != fault.Invalid {
			t.Errorf("to int64: %v", err)
		}
	})
}

// A parameter made within a scope outlives it, and a container closes what lies between its modules before the next one runs.
func TestScopes(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var l *nn.Linear
		x.Scope(func(x *tenon.Exec) { l = nn.NewLinear(x, 2, 2, nn.LinearOpt{Generator: nn.NewHostGenerator(0)}) })
		defer nn.Close(l)
		in := x.Ones([]int{1, 2}, tenon.Float32)
		before := testdevice.Storages()
		most := 0
		count := nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
			most = max(most, core.LiveStorages()-before)
			return in
		})
		nn.Sequential{l, count, l, count, l, count, l, count}.Forward(x.NoGrad(), in).Close()
		if most != 1 {
			t.Errorf("%d activations were live at once, want 1", most)
		}
		if n := core.LiveStorages() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
		if got := (nn.Sequential{}).Forward(x, in); got != in {
			t.Errorf("an empty container returned %v", got)
		}
	})
}

func TestFlatten(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		in := x.Zeros([]int{2, 3, 4, 5}, tenon.Float32)
		for _, c := range []struct {
			f    nn.Flatten
			want []int
		}{{nn.Flatten{}, []int{2, 60}}, {nn.Flatten{From: 0, To: -1}, []int{120}}, {nn.Flatten{From: -3, To: 2}, []int{2, 12, 5}}} {
			if got := c.f.Forward(x, in).Shape(); !slices.Equal(got, c.want) {
				t.Errorf("%+v gave %v, want %v", c.f, got, c.want)
			}
		}
		wantError(t, func() { nn.Flatten{From: 3, To: 1}.Forward(x, in) }, "dimensions 3 to 1")
	})
}

func TestInit(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		g := nn.NewHostGenerator(5)
		w := x.Empty([]int{40, 30, 2}, tenon.Float32)
		std := func(f func()) float64 {
			f()
			var sum, squares float64
			for _, v := range floats(t, x, w) {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
			n := float64(w.Numel())
			return math.Sqrt(squares/n - sum/n*sum/n)
		}
		for _, c := range []struct {
			name string
			want float64
			f    func()
		}{
			{"uniform", 4 / math.Sqrt(12), func() { nn.InitUniform(x, w, -1, 3, nn.InitOpt{Generator: g}) }},
			{"normal", 2, func() { nn.InitNormal(x, w, 1, 2, nn.InitOpt{Generator: g}) }},
			{"constant", 0, func() { nn.InitConstant(x, w, 3) }},
			{"xavier uniform", math.Sqrt(2.0 / 140), func() { nn.InitXavierUniform(x, w, nn.XavierOpt{Generator: g}) }},
			{"xavier normal", 2 * math.Sqrt(2.0/140), func() { nn.InitXavierNormal(x, w, nn.XavierOpt{Gain: 2, Generator: g}) }},
			{"kaiming uniform", math.Sqrt(2.0 / 60), func() { nn.InitKaimingUniform(x, w, nn.KaimingOpt{Generator: g}) }},
			{"kaiming normal", 5.0 / 3 / math.Sqrt(80), func() {
				nn.InitKaimingNormal(x, w, nn.KaimingOpt{Generator: g, FanOut: true, Nonlinearity: nn.GainTanh})
			}},
		} {
			if got := std(c.f); math.Abs(got-c.want) > 0.04*c.want {
				t.Errorf("%s: standard deviation %v, want %v", c.name, got, c.want)
			}
		}
		m := x.Empty([]int{2, 3}, tenon.Float32)
		nn.InitEye(x, m)
		wantFloats(t, x, m, 1, 0, 0, 0, 1, 0)
		wantError(t, func() { nn.InitEye(x, w) }, "2 dimensions")
		wantError(t, func() { nn.InitXavierUniform(x, x.Empty([]int{3}, tenon.Float32), nn.XavierOpt{Generator: g}) },
			"fewer than 2 dimensions")
		wantError(t, func() { nn.Gain(99, nn.GainOpt{A: 0}) }, "Unsupported nonlinearity 99")
		empty := x.Empty([]int{0, 3}, tenon.Float32)
		nn.InitKaimingUniform(x, empty, nn.KaimingOpt{Generator: g})
		nn.InitKaimingNormal(x, empty, nn.KaimingOpt{Generator: g})
	})
}

// Freezing a module drops its gradients, and a backward pass then leaves it alone.
func TestSetRequiresGrad(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		m := nn.Scoped(x, nn.Sequential{nn.NewLinear(x, 2, 1), nn.NewLinear(x, 1, 1)})
		backward := func() error { return x.Backward(x.Sum(m.Forward(x, x.Ones([]int{1, 2}, tenon.Float32)), nil)) }
		if err := backward(); err != nil {
			t.Fatal(err)
		}
		for _, on := range []bool{false, true} {
			nn.SetRequiresGrad(m, on)
			err := backward()
			for name, p := range nn.Params(m) {
				if (err == nil) != on || p.Tensor().RequiresGrad() != on || (p.Grad() != nil) != on {
					t.Errorf("%v: %s requires %v and has gradient %v after %v", on, name, p.Tensor().RequiresGrad(), p.Grad(), err)
				}
			}
		}
	})
}
