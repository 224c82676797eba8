package compile_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/dtype"
	"tenon.dev/internal/core"
	"tenon.dev/internal/kernels"
	"tenon.dev/kernel"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// firstHalf copies the first n elements.
var firstHalf = kernel.Build("first_half", func(k *kernel.Builder) {
	from, to, n := k.BufferRO("from", tenon.Float32), k.Buffer("to", tenon.Float32), k.Scalar("n", tenon.Int64)
	k.ForEach(n, func(i kernel.Value) { to.Store(i, from.Load(i)) })
})

// With TENON_COMPILE=compare, a fused kernel that makes other bits than its calls is an error in its first run, which names it.
func TestCompare(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("TENON_COMPILE", "compare")
	t.Setenv("TENON_COMPILE_LOG", log)
	for name, c := range map[string]struct { //tenon:unordered each has a device of its own
		f func(x *tenon.Exec, a *tenon.Tensor)
		// kernel begins the name of the kernel; it is "" if nothing is wrong. what is what differs.
		kernel, what string
	}{
		"a chain": {func(x *tenon.Exec, a *tenon.Tensor) { x.Keep(x.Neg(x.Exp(a))) }, "exp_neg", "output 0 of Neg"},
		"a chain whose operand is needed": {func(x *tenon.Exec, a *tenon.Tensor) {
			e := x.Keep(x.Exp(a))
			x.Keep(x.Neg(e))
		}, "exp_neg", "of Neg"},
		"a reduction": {func(x *tenon.Exec, a *tenon.Tensor) { x.Keep(x.Sum(x.Exp(a), nil)) }, "red_exp", "output 0 of Sum"},
		"a norm":      {func(x *tenon.Exec, a *tenon.Tensor) { x.Keep(x.Softmax(x.Exp(a), 1)) }, "row_exp", "output 0 of Softmax"},
		"in place":    {func(x *tenon.Exec, a *tenon.Tensor) { x.MulInto(a, a, x.Exp(x.AddS(a, 1))) }, "add_exp_mul", "output 0 of Mul"},
		"a repeated call": {func(x *tenon.Exec, a *tenon.Tensor) {
			x.Keep(x.MatMul(x.Neg(x.Exp(a)), x.T(a)))
			x.Keep(x.Neg(x.Exp(a)))
		}, "exp_neg", "output 0 of Neg"},
		"a result of which a hash is kept": {func(x *tenon.Exec, a *tenon.Tensor) {
			x.Keep(x.Neg(x.Exp(x.Full([]int{5 << 20}, 0.5, tenon.Float32))))
		}, "fill_exp_neg", "output 0 of Neg"},
		"halves and columns": {func(x *tenon.Exec, a *tenon.Tensor) {
			x.Keep(x.ToDType(x.Exp(x.Transpose(x.AddS(a, 1), 0, 1)), tenon.BFloat16))
		}, "exp_copy", "output 0 of Copy"},
		"a chain that reads memory without contents": {func(x *tenon.Exec, a *tenon.Tensor) {
			b := x.Empty([]int{4, 8}, tenon.Float32)
			x.FillInto(x.Narrow(b, 0, 0, 2), 1)
			x.Keep(x.AddS(x.Narrow(x.Neg(x.MulS(b, 2)), 0, 0, 2), 1))
			c := x.Empty([]int{4, 8}, tenon.Float32)
			x.FillInto(c, 2)
			x.Keep(x.Neg(x.Exp(c))) // which is defined
		}, "fill_exp_neg", "output 0 of Neg"},
		"what a kernel of the program writes": {func(x *tenon.Exec, a *tenon.Tensor) {
			b := x.Empty([]int{32}, tenon.Float32)
			x.Launch(firstHalf, tenon.Over(16), tenon.In(a), tenon.Out(b), tenon.Integer(16))
			x.Keep(x.AddS(x.MulS(x.Narrow(b, 0, 0, 16), 2), 1))
		}, "", ""},
		"nothing": {func(x *tenon.Exec, a *tenon.Tensor) {
			x.Keep(x.Sqrt(x.Neg(a))) // NaN
			b := x.Empty([]int{4, 8}, tenon.Float32)
			x.FillInto(x.Narrow(b, 0, 1, 2), 3)
			x.Keep(x.Dropout(x.AddS(x.MulS(a, 2), 1), 0.5))
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.RemoveAll(log))
			x := openOn(t, tenon.Sim(0))
			for _, n := range []int{32, 5 << 20} { // these kernels are loaded from now on, so that only fused ones get the planted error
				x.Exp(x.Ones([]int{n}, tenon.Float32)).Close()
			}
			build := kernels.Exp.Build
			kernels.Exp.Build = func(k *kernel.Builder, c dtype.DType, in, s []kernels.Num) []kernels.Num {
				return build(k, c, build(k, c, in, s), s)
			}
			defer func() { kernels.Exp.Build = build }()
			live := core.LiveStorages()
			r := compile.New()
			var err error
			x.Scope(func(x *tenon.Exec) { // free memory is not the same everywhere
				for i := range 16 {
					x.Full([]int{4, 8}, float64(i), tenon.Float32)
				}
			})
			x.Scope(func(x *tenon.Exec) {
				a := x.RandN([]int{4, 8}, tenon.Float32)
				for range 3 {
					err = r.Do(x, func(x *tenon.Exec) error {
						c.f(x, a)
						return nil
					})
					if err != nil {
						break
					}
				}
			})
			if n := core.LiveStorages() - live; n > 0 {
				t.Errorf("%d storages are left", n)
			}
			if c.kernel == "" {
				must(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), "kernel "+c.kernel) || !strings.Contains(err.Error(), c.what) ||
				!strings.Contains(err.Error(), "compare_test.go:") {
				t.Fatalf("%v: want kernel %s, and what differs", err, c.kernel)
			}
			text, err := os.ReadFile(log)
			must(t, err)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			var last struct{ Kind, Kernel, What string }
			must(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
			if last.Kind != "difference" || !strings.HasPrefix(last.Kernel, c.kernel) || !strings.Contains(last.What, c.what) {
				t.Errorf("the log ends with %+v", last)
			}
		})
	}
}

// In random programs no kernel makes other bits than its calls, and the comparison leaves the results as they are.
func TestCompareRandomPrograms(t *testing.T) {
	x := openAlone(t)
	for seed := range uint64(programs / 4) {
		if seed == programs/8 {
			(*core.Exec)(x).Device().SetBuildsAhead(true) // as on a GPU
		}
		want, err := runProgram(x, seed, nil)
		must(t, err)
		t.Setenv("TENON_COMPILE", "compare")
		r := compile.New()
		t.Setenv("TENON_COMPILE", "on")
		live := core.LiveStorages()
		got, err := runProgram(x, seed, r)
		if err != nil {
			t.Fatalf("program %d: %v", seed, err)
		}
		if got != want {
			t.Fatalf("program %d gives\n%s\nwant\n%s", seed, got, want)
		}
		if n := core.LiveStorages() - live; n > 0 {
			t.Fatalf("program %d leaves %d storages", seed, n)
		}
		if s := r.Stats(x); s.Recordings > 0 || s.Plain == 0 || s.Compared == 0 || s.Compared > s.Plain {
			t.Fatalf("program %d: %v", seed, s)
		}
	}
}

// If the driver refuses a call of the comparison, that is the region's error.
func TestComparisonFails(t *testing.T) {
	t.Setenv("TENON_COMPILE", "compare")
	x, d := openFailing(t)
	a := x.Ones([]int{4, 8}, tenon.Float32)
	for n := 1; ; n++ {
		r := compile.New()
		d.Arm(n, 0)
		err := r.Do(x, func(x *tenon.Exec) error {
			x.Keep(x.Neg(x.Exp(a))).Close()
			return nil
		})
		method, _ := d.Fired()
		d.Arm(0, 0)
		if method == "" {
			must(t, err)
			break
		}
		if err == nil {
			t.Errorf("call %d, %s: no error", n, method)
		}
	}
	a.Close()
}

// A tensor that a call makes, and that a later call changes by elements whose sums vary, is not compared as the first call left it.
func TestCompareWhatVariesLater(t *testing.T) {
	x := open(t)
	t.Setenv("TENON_COMPILE", "compare")
	m := nn.NewEmbedding(x, 5, 16)
	defer nn.Close(m)
	o, err := optim.NewAdamW(nn.Params(m))
	must(t, err)
	defer o.Close()
	at := tenon.From(x, []int{1, 2, 4})
	r := compile.New()
	for range 3 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			o.ZeroGrad()
			return errors.Join(x.Backward(x.Sum(m.Forward(x, at), nil)), o.Step(x))
		}))
	}
	if s := r.Stats(x); s.Compared == 0 {
		t.Errorf("nothing was compared: %+v", s)
	}
}

// A result without elements in memory that has some is not reported as different.
func TestCompareEmptyResults(t *testing.T) {
	x := open(t)
	t.Setenv("TENON_COMPILE", "compare")
	a := x.Zeros([]int{0, 4}, tenon.Float32).SetRequiresGrad(true)
	b := x.Ones([]int{8, 4}, tenon.Float32)
	r := compile.New()
	for range 2 {
		must(t, r.Do(x, func(x *tenon.Exec) error { // the second pass adds to the gradient, which is a view of one element
			return x.Backward(x.Sum(x.Reshape(a, -1), nil))
		}))
	}
	for range 2 {
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.AddSInto(x.Narrow(b, 0, 3, 0), x.Narrow(b, 0, 3, 0), 1)
			x.SinInto(b, b)
			return nil
		}))
	}
	if s := r.Stats(x); s.Compared == 0 {
		t.Errorf("nothing was compared: %v", s)
	}
}

// A likelihood of each element sums up no weights, so it has no such result to compare.
func TestCompareEachLikelihood(t *testing.T) {
	x := open(t)
	t.Setenv("TENON_COMPILE", "compare")
	r := compile.New()
	p := x.RandN([]int{64, 6}, tenon.Float32).SetRequiresGrad(true)
	at := x.RandInt(6, []int{64}, tenon.Int64)
	for i := range 4 {
		x.Scope(func(x *tenon.Exec) { // free memory is not the same everywhere
			for j := range 16 {
				x.Full(nil, float64(16*i+j), tenon.Float32)
			}
		})
		must(t, r.Do(x, func(x *tenon.Exec) error {
			loss := x.CrossEntropy(p, at, tenon.CrossEntropyOpt{Reduction: tenon.ReduceNone})
			loss = x.Add(loss, x.NLLLoss(x.LogSoftmax(p, 1), at, tenon.NLLLossOpt{Reduction: tenon.ReduceNone}))
			for range i {
				loss = x.Tanh(x.Neg(loss))
			}
			must(t, compile.Break(x)) // the tape holds what the calls have made
			return x.Backward(x.Sum(loss, nil))
		}))
	}
	if s := r.Stats(x); s.Compared < 5 {
		t.Errorf("little was compared: %v", s)
	}
}

// Where several elements of a tensor that is changed in place have one place, what wins and what is computed from it are not compared: a
// fused kernel goes on with the elements that it has written.
func TestCompareOverlappingChange(t *testing.T) {
	t.Setenv("TENON_COMPILE", "compare")
	x := openSim(t)
	a, b := x.Zeros([]int{66}, tenon.Float32), x.RandN([]int{64, 3}, tenon.Float32)
	must(t, compile.New().Do(x, func(x *tenon.Exec) error {
		v := x.AsStrided(a, []int{64, 3}, []int{1, 1})
		x.CopyInto(v, x.Exp(b))
		x.Keep(x.Sigmoid(v))
		return nil
	}))
}
