package compile_test

import (
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// One goroutine runs forward passes, and another one their backward passes, which free what the first one's graphs lie beside, at any time.
func TestBackwardLagsInAnotherSession(t *testing.T) {
	compared := 0
	for try := range 20 {
		compared += pipeline(t, try)
	}
	if t.Logf("%d gradients were compared", compared); compared < 20 {
		t.Error("hardly any backward pass ran")
	}
}

// pipeline returns how many gradients it compared: a pass fails while the other session's graphs change what it needs.
func pipeline(t *testing.T, try int) (compared int) {
	const steps = 14
	x, closed := openUntil(t, machine())
	defer closed()
	w := x.RandN([]int{16, 16}, tenon.Float32).SetRequiresGrad(true)
	in := x.RandN([]int{16, 16}, tenon.Float32)
	body := func(x *tenon.Exec, v float64) *tenon.Tensor {
		y := w
		for range 4 {
			y = x.Tanh(x.MatMul(x.MulS(in, v), y))
		}
		return x.Sum(x.Softmax(x.Sin(y), 1), nil)
	}
	f := compile.Func(body, compile.Opt{NoRecompute: true, NoFusion: try%2 == 0, NoWarmup: try%4 < 2})
	gradient := func(x *tenon.Exec, loss *tenon.Tensor) (text string) {
		err := x.Do(func(x *tenon.Exec) error {
			g, err := x.Grad([]*tenon.Tensor{loss}, []*tenon.Tensor{w})
			if err == nil {
				text = read(t, x, g[0])
			}
			return err
		})
		if err != nil && !strings.Contains(err.Error(), "is used in a compiled region of another Exec") {
			t.Error(err)
		}
		return text
	}
	var want []string
	for n := range steps {
		x.Scope(func(x *tenon.Exec) { want = append(want, gradient(x, body(x, 1+float64(n)/8))) })
	}
	a, err := x.Fork()
	must(t, err)
	b, err := x.Fork()
	must(t, err)
	losses := make(chan *tenon.Tensor, try%3)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(losses)
		for n := range steps {
			losses <- f.Call(a, 1+float64(n)/8)
		}
	})
	wg.Go(func() {
		n := 0
		for loss := range losses {
			if got := gradient(b, loss); got != "" {
				if compared++; got != want[n] && !t.Failed() {
					t.Errorf("try %d, step %d: the gradient is %.60s, want %.60s", try, n, got, want[n])
				}
			}
			loss.Close()
			n++
		}
	})
	wg.Wait()
	for _, y := range []*tenon.Exec{a, b} {
		must(t, compile.Reset(y))
		must(t, y.Close())
	}
	return compared
}
