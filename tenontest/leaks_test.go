package tenontest_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/kernel"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// Runs at the same time do not count each other's memory: one ends while seven others hold theirs.
func TestRunsAreParallel(t *testing.T) {
	for range 20 {
		var holding, all sync.WaitGroup
		holding.Add(8)
		first := make(chan struct{})
		for i := range 8 {
			all.Go(func() {
				text := told(t, func(t testing.TB) {
					tenontest.Run(t, func(x *tenon.Exec) {
						x.Exp(x.Zeros([]int{1000 * (i + 1)}, tenon.Float32))
						holding.Done()
						if holding.Wait(); i > 0 {
							<-first
						}
					})
				})
				if i == 0 {
					close(first)
				}
				if text != "" {
					t.Errorf("run %d was told %q", i, text)
				}
			})
		}
		all.Wait()
	}
}

// A leak is found although memory that an earlier test left is collected meanwhile.
func TestRunsLeakInTurn(t *testing.T) {
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		var kept *nn.Linear
		for i := range 3 {
			kept = nil
			text := told(t, func(t testing.TB) {
				tenontest.Run(t, func(x *tenon.Exec) { kept = nn.NewLinear(x, 2, 3) }, s)
			})
			if !strings.HasPrefix(text, "the test left 1024 bytes of ") {
				t.Errorf("run %d was told %q", i, text)
			}
		}
		runtime.KeepAlive(kept)
	}
}

// A module that a variable outside of the function still refers to is a leak; one that nothing refers to is not.
func TestRunFindsWhatIsReferredTo(t *testing.T) {
	text := told(t, func(t testing.TB) {
		var layer *nn.Linear
		tenontest.Run(t, func(x *tenon.Exec) {
			layer = nn.NewLinear(x, 2, 1)
		})
		nn.Close(layer)
	})
	if !strings.HasPrefix(text, "the test left 1024 bytes of CPU open: close modules with nn.Close") {
		t.Errorf("it was told %q", text)
	}
	if text := told(t, func(t testing.TB) {
		tenontest.Run(t, func(x *tenon.Exec) { nn.NewLinear(x, 2, 1) })
	}); text != "" {
		t.Errorf("of a module that nothing refers to it was told %q", text)
	}
}

// What a compiled region recorded is no leak: it belongs to the Exec. What the test keeps is one.
func TestRunForgetsRegions(t *testing.T) {
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		var kept *tenon.Tensor
		for _, keep := range []bool{false, true} {
			text := told(t, func(t testing.TB) {
				tenontest.Run(t, func(x *tenon.Exec) {
					w, region := x.Ones([]int{8, 16}, tenon.Float32).SetRequiresGrad(true), compile.New()
					for range 8 {
						err := region.Do(x, func(x *tenon.Exec) error {
							w.SetGrad(nil)
							return x.Backward(x.Sum(x.Square(x.Mul(w, x.RandN([]int{8, 16}, tenon.Float32))), nil))
						})
						if err != nil {
							t.Fatal(err)
						}
					}
					if keep {
						kept = x.Keep(x.Clone(w.Grad()))
					}
				}, s)
			})
			if keep != strings.HasPrefix(text, "the test left ") {
				t.Errorf("keeping its result is %v; it was told %q", keep, text)
			}
		}
		runtime.KeepAlive(kept)
	}
}

// What f leaves on the processor beside its device is found too.
func TestRunFindsLeaksOfTheHost(t *testing.T) {
	var kept *nn.Linear
	text := told(t, func(t testing.TB) {
		tenontest.Run(t, func(x *tenon.Exec) { kept = nn.NewLinear(x.Host(), 2, 3) }, tenon.Sim(0))
	})
	if !strings.HasPrefix(text, "the test left 1024 bytes of CPU open") {
		t.Errorf("it was told %q", text)
	}
	runtime.KeepAlive(kept)
}

// Random numbers of a test do not depend on the tests before it.
func TestRunsBeginAlike(t *testing.T) {
	var first []float32
	for range 2 {
		tenontest.Run(t, func(x *tenon.Exec) {
			got, err := tenon.Read[float32](x, x.Rand([]int{4}, tenon.Float32))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = got
			}
			tenontest.AssertEqual(t, x, tenon.From(x, got), tenon.From(x, first))
		})
	}
}

// Tensors of other devices, also those of another processor, come to a test's device by To, and are compared.
func TestRunTakesForeignTensors(t *testing.T) {
	cpu, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	want := tenon.From(cpu, []float32{1, 2, 3})
	defer want.Close()
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		tenontest.Run(t, func(x *tenon.Exec) {
			tenontest.AssertClose(t, x, tenon.From(x, []float32{1, 2, 3}), want)
			tenontest.AssertClose(t, x, x.AddS(x.To(want), 0), want)
			tenontest.AssertClose(t, x, x.Host().AddS(x.Host().To(want), 0), want)
		}, s)
	}
}

// Leaks are found where the statistics see no memory: with caching off, under a checker, and under the driver's own pool.
func TestRunFindsUncachedLeaks(t *testing.T) {
	for _, c := range []struct {
		name, value string
		uncached    bool
	}{
		{uncached: true},
		{name: "PYTORCH_NO_CUDA_MEMORY_CACHING", value: "1"},
		{name: "TENON_CHECK", value: "-"},
		{name: "PYTORCH_CUDA_ALLOC_CONF", value: "backend:cudaMallocAsync"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "" {
				t.Setenv(c.name, c.value)
			}
			for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
				findsLeaks(t, s, c.uncached, c.name != "PYTORCH_CUDA_ALLOC_CONF")
			}
		})
	}
}

// findsLeaks leaves a module and memory that was taken by address, and then nothing.
func findsLeaks(t *testing.T, s tenon.Selector, uncached, history bool) {
	var kept *nn.Linear
	for name, leak := range map[string]func(x *tenon.Exec) error{
		"36 bytes, rounded": func(x *tenon.Exec) error { kept = nn.NewLinear(x, 2, 3); return nil },
		"1000 bytes":        func(x *tenon.Exec) error { _, err := x.Device().RawAlloc(1000, x.Stream()); return err },
	} {
		text := told(t, func(t testing.TB) {
			tenontest.Run(t, func(x *tenon.Exec) {
				if uncached {
					x.Device().SetCaching(false)
				}
				if err := leak(x); err != nil {
					t.Fatal(err)
				}
			}, s)
		})
		if !strings.HasPrefix(text, "the test left ") || history && !strings.Contains(text, "leaks_test.go") {
			t.Errorf("%s: it was told %q", name, text)
		}
	}
	if text := told(t, func(t testing.TB) { tenontest.Run(t, train(t), s) }); text != "" {
		t.Errorf("it was told %q", text)
	}
	runtime.KeepAlive(kept)
}

var past = kernel.Build("past_the_end", func(k *kernel.Builder) {
	n, a := k.Scalar("n", tenon.Int64), k.Buffer("a", tenon.Float32)
	k.ForEach(n, func(i kernel.Value) { a.Store(i.Add(k.I64(1)), k.F32(7)) })
})

// What the guards find fails the test that wrote past the end, and no other.
func TestRunFindsDefects(t *testing.T) {
	t.Setenv("TENON_GUARD", "1")
	for _, s := range []tenon.Selector{tenon.CPU(), tenon.Sim(0)} {
		var line string
		var kept *tenon.Tensor
		for _, keep := range []bool{false, true} {
			text := told(t, func(t testing.TB) {
				tenontest.Run(t, func(x *tenon.Exec) {
					line = here(1)
					a := x.Zeros([]int{128}, tenon.Float32)
					x.Launch(past, tenon.Over(128), tenon.Integer(128), tenon.Out(a))
					if keep {
						kept = x.Keep(a)
					}
				}, s)
			})
			if !strings.Contains(text, "memory was written past its end: behind the 512 bytes") || !strings.Contains(text, line) {
				t.Errorf("it was told %q, the line is %s", text, line)
			}
			if text := told(t, func(t testing.TB) { tenontest.Run(t, train(t), s) }); text != "" {
				t.Errorf("the next test was told %q", text)
			}
		}
		runtime.KeepAlive(kept)
	}
}
