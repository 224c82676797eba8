package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/testdevice"
)

// streamTests are the behaviours of streams and events, and of backward passes whose forward calls were on several streams.
var streamTests = []cudaTest{
	{name: "CUDA-032_test_streams", run: testStreams},
	{name: "CUDA-033_test_stream_event_repr", run: testStreamEventText},
	{name: "CUDA-034_test_events", run: testEvents},
	{name: "CUDA-035_test_generic_stream_event", run: testGenericStreamEvent},
	{name: "CUDA-057_test_streaming_backwards_sync", run: orders(testBackwardSync)},
	{name: "CUDA-058_test_streaming_backwards_multiple_streams", run: orders(testBackwardStreams)},
	{name: "CUDA-059_test_streaming_backwards_sync_graph_root", run: orders(testBackwardRoot)},
	{name: "CUDA-060_test_streaming_backwards_callback", run: orders(testBackwardCallback)},
	{name: "CUDA-062_test_cublas_multiple_threads_same_device", run: testProductsOfGoroutines},
	{name: "CUDA-063_test_cudnn_multiple_threads_same_device", run: testConvolutionsOfGoroutines},
	{name: "CUDA-117_test_rocm_backward_pass_guard", run: testBackwardGuard},
}

func testStreams(t *testing.T, x *tenon.Exec) {
	first := x.Stream()
	check(t, "the first stream is the default one", first, x.Device().DefaultStream())
	user := newStream(t, x)
	if user == first || user.ID() == first.ID() || user.Handle() == first.Handle() || user.Handle() == 0 {
		t.Errorf("a new stream is %v, the default one %v", user, first)
	}
	check(t, "the default stream's ID", first.ID(), 0)
	check(t, "the user's stream's device", user.Device(), x.Device())
	check(t, "the stream after another was made", x.Stream(), first)
	check(t, "the other's stream", x.On(user).Stream(), user)
	check(t, "the stream after the other's use", x.Stream(), first)
	check(t, "back on it", x.On(user).On(first).Stream(), first)
	check(t, "the new stream is idle", busy(t, user), false)
	pinned := x.PinMemory(tenon.From(x.Host(), []uint8{1, 2, 3, 4, 5}))
	x.AddS(x.To(pinned), 1) // loads the kernel, which would wait for the device
	spin(x, 50*time.Millisecond)
	b := x.AddS(x.To(pinned, tenon.ToOpt{NonBlocking: true}), 1)
	check(t, "the default stream is busy", busy(t, first), true)
	must(t, first.Synchronize())
	check(t, "the default stream is busy after the wait", busy(t, first), false)
	if got := testdevice.Read[uint8](t, x, b); !slices.Equal(got, []uint8{2, 3, 4, 5, 6}) {
		t.Errorf("the sum is %v", got)
	}
}

func testStreamEventText(t *testing.T, x *tenon.Exec) {
	for _, s := range []*cuda.Stream{x.Stream(), newStream(t, x)} {
		check(t, "a stream", fmt.Sprint(s), fmt.Sprintf("cuda.Stream(%s, %d)", x.Device().Name(), s.ID()))
		e := x.Device().NewEvent()
		check(t, "an event", fmt.Sprint(e), fmt.Sprintf("cuda.Event(%s, not recorded)", x.Device().Name()))
		must(t, e.Record(s))
		check(t, "an event that was recorded", fmt.Sprint(e), fmt.Sprintf("cuda.Event(%s, %#x)", x.Device().Name(), e.Handle()))
		e.Close()
	}
}

func testEvents(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	start, end := dev.NewEvent(cuda.EventOpt{Timing: true}), dev.NewEvent(cuda.EventOpt{Timing: true})
	defer start.Close()
	defer end.Close()
	query := func(when string, want bool) {
		t.Helper()
		done, err := end.Query()
		must(t, err)
		check(t, "the event is done "+when, done, want)
	}
	query("before it was recorded", true)
	_, err := start.Elapsed(end)
	wantError(t, err, "Both events must be recorded before calculating elapsed time")
	must(t, start.Record(x.Stream()))
	spin(x, 50*time.Millisecond)
	must(t, end.Record(x.Stream()))
	query("while the stream is busy", false)
	_, err = start.Elapsed(end)
	wantError(t, err, "Both events must be completed before calculating elapsed time")
	must(t, end.Synchronize())
	query("after the wait", true)
	took, err := start.Elapsed(end)
	must(t, err)
	if took < 49*time.Millisecond { // the clock's rate is the peak; the spin may take longer
		t.Errorf("50 ms took %v", took)
	}
	plain := dev.NewEvent()
	defer plain.Close()
	must(t, plain.Record(x.Stream()))
	_, err = start.Elapsed(plain)
	wantError(t, err, "Both events must be made with timing before calculating elapsed time; give NewEvent the option "+
		"cuda.EventOpt{Timing: true}")
}

// testGenericStreamEvent: one type of streams and one of events serve every kind of device, so code written for one also runs on the
// processor. Streams are reused and compare with ==, as PyTorch's streams of one id do.
func testGenericStreamEvent(t *testing.T, x *tenon.Exec) {
	for _, x := range []*tenon.Exec{x, x.Host()} {
		dev := x.Device()
		stream := newStream(t, x)
		check(t, "the stream's device", stream.Device(), dev)
		if stream.ID() == x.Stream().ID() {
			t.Error("the new stream is the current one")
		}
		same := stream
		for n := 1; ; n++ {
			if same = newStream(t, x); same.ID() == stream.ID() {
				check(t, "streams that are handed out in turn", n, 32)
				break
			}
		}
		check(t, "streams with one number are one", same, stream)
		start, end := dev.NewEvent(cuda.EventOpt{Timing: true}), dev.NewEvent(cuda.EventOpt{Timing: true})
		check(t, "the handle of an event that was never recorded", start.Handle(), 0)
		host := x.Host()
		a, b := host.RandN([]int{1000}, tenon.Float32), host.RandN([]int{1000}, tenon.Float32)
		side := x.On(stream)
		da, db := side.To(a, tenon.ToOpt{NonBlocking: true}), side.To(b, tenon.ToOpt{NonBlocking: true})
		done := func(e *cuda.Event) {
			t.Helper()
			must(t, e.Synchronize())
			ok, err := e.Query()
			must(t, err)
			check(t, "the event is done", ok, true)
		}
		must(t, start.Record(stream))
		done(start)
		sum := x.Add(da, db)
		must(t, end.Record(x.Stream()))
		done(end)
		if start.Handle() == end.Handle() || start.Handle() == 0 || end.Handle() == 0 {
			t.Errorf("the events are %v and %v", start, end)
		}
		check(t, "the sum is the processor's", equal(t, host, host.To(sum), host.Add(a, b)), true)
		took, err := start.Elapsed(end)
		must(t, err)
		if took <= 0 {
			t.Errorf("%v passed between the events", took)
		}
		start.Close()
		end.Close()
	}
}

// order makes a's later work wait for b's if the program orders streams by hand, and does nothing if Tenon orders them.
type order func(a, b *tenon.Exec)

// orders runs f twice: with waits by hand where PyTorch's tests have them, and without any.
func orders(f func(t *testing.T, x *tenon.Exec, wait order)) func(t *testing.T, x *tenon.Exec) {
	return func(t *testing.T, x *tenon.Exec) {
		run := func(name string, x *tenon.Exec, wait order) {
			t.Run(name, func(t *testing.T) {
				must(t, tenon.Try(func() {
					x.Scope(func(x *tenon.Exec) {
						f(t, x, wait)
						must(t, x.Device().Synchronize()) // before the scope frees tensors that several streams used
					})
				}))
			})
		}
		run("by hand", x.ManualStreams(), func(a, b *tenon.Exec) { must(t, a.WaitStream(b.Stream())) })
		run("automatic", x, func(_, _ *tenon.Exec) {})
	}
}

// multiply multiplies by a number. Its derivative is slow, and must run where the forward call did.
type multiply struct {
	t  *testing.T
	by float64
}

func (m multiply) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	c.Value = x.Stream()
	return []*tenon.Tensor{x.MulS(in[0], m.by)}
}

func (m multiply) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	check(m.t, "the stream of a derivative", x.Stream(), c.Value.(*cuda.Stream))
	spin(x, 3*time.Millisecond)
	return []*tenon.Tensor{x.MulS(grads[0], m.by)}, nil
}

// holds fails the test unless every element of a, read by x with no wait but x's own, is v.
func holds(t *testing.T, x *tenon.Exec, what string, a *tenon.Tensor, v float32) {
	t.Helper()
	for _, got := range testdevice.Read[float32](t, x, a) {
		if got != v {
			t.Errorf("%s: got %v, want %v", what, got, v)
			return
		}
	}
}

// leaf returns a leaf of random numbers that requires a gradient.
func leaf(x *tenon.Exec) *tenon.Tensor {
	return x.RandN([]int{5, 5}, tenon.Float32).SetRequiresGrad(true)
}

// sideOf returns x on a new stream.
func sideOf(t *testing.T, x *tenon.Exec) *tenon.Exec { return x.On(newStream(t, x)) }

func testBackwardSync(t *testing.T, x *tenon.Exec, wait order) {
	side, ambient := sideOf(t, x), sideOf(t, x)
	backward := func(x *tenon.Exec, out *tenon.Tensor) {
		t.Helper()
		must(t, x.Backward(x.Sum(out, nil)))
	}
	// The gradient is used on another stream than the pass's.
	a := leaf(x)
	wait(side, x)
	backward(side, side.Apply(multiply{t, 2}, a)[0])
	wait(x, side)
	holds(t, x, "the gradient on the default stream", a.Grad(), 2)
	check(t, "the stream after the pass", x.Stream(), x.Device().DefaultStream())

	// It is used on the pass's stream, which is not one of those where it was made.
	a = leaf(x)
	wait(side, x)
	out := side.Apply(multiply{t, 3}, a)[0]
	wait(ambient, side)
	stream := ambient.Stream()
	backward(ambient, out)
	holds(t, ambient, "the gradient on the pass's stream", a.Grad(), 3)

	// So is the gradient of a result, which Grad returns.
	wait(side, x)
	mid := side.Apply(multiply{t, 3}, leaf(side))[0]
	out = side.Apply(multiply{t, 4}, mid)[0]
	wait(ambient, side)
	gs, err := ambient.Grad([]*tenon.Tensor{ambient.Sum(out, nil)}, []*tenon.Tensor{mid})
	must(t, err)
	holds(t, ambient, "the gradient of a result on the pass's stream", gs[0], 4)
	check(t, "the pass's stream after it", ambient.Stream(), stream)
}

// twoStreams multiplies by 2 on one stream and by 3 on another, and adds both on that.
type twoStreams struct {
	t      *testing.T
	first  *cuda.Stream
	second *cuda.Stream
	wait   order
}

func (m *twoStreams) forward(x *tenon.Exec, a *tenon.Tensor, firstOnAmbient bool) *tenon.Tensor {
	x0, x1 := x.On(m.first), x.On(m.second)
	var c *tenon.Tensor
	if firstOnAmbient {
		c = x.Clone(a)
	}
	m.wait(x0, x)
	m.wait(x1, x)
	if !firstOnAmbient {
		c = x0.Clone(a)
	}
	y0 := x0.Apply(multiply{m.t, 2}, c)[0]
	y1 := x1.Apply(multiply{m.t, 3}, a)[0]
	m.wait(x1, x0)
	return x1.Add(y0, y1)
}

func testBackwardStreams(t *testing.T, x *tenon.Exec, wait order) {
	ambient := sideOf(t, x)
	for _, firstOnAmbient := range []bool{true, false} {
		for _, c := range []struct {
			outOfPlace bool
			times      int
		}{{true, 1}, {false, 1}, {false, 5}} {
			what := fmt.Sprintf("first use on the ambient stream %v, out of place %v, %d times", firstOnAmbient, c.outOfPlace, c.times)
			m := &twoStreams{t, newStream(t, x), newStream(t, x), wait}
			a := leaf(ambient)
			hooked := 0
			a.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor {
				want := m.first
				if firstOnAmbient {
					want = ambient.Stream()
				}
				check(t, what+": the hook's stream", x.Stream(), want)
				hooked++
				return nil
			})
			var g *tenon.Tensor
			for range c.times {
				out := m.forward(ambient, a, firstOnAmbient)
				wait(ambient, ambient.On(m.second))
				loss := ambient.Sum(out, nil)
				if !c.outOfPlace {
					must(t, ambient.Backward(loss))
					g = a.Grad()
					continue
				}
				gs, err := ambient.Grad([]*tenon.Tensor{loss}, []*tenon.Tensor{a})
				must(t, err)
				g = gs[0]
			}
			check(t, what+": calls of the hook", hooked, c.times)
			wait(x, ambient)
			holds(t, x, what, g, float32(5*c.times))
		}
	}
}

func testBackwardRoot(t *testing.T, x *tenon.Exec, _ order) {
	forward, ambient := sideOf(t, x), sideOf(t, x)
	const size = 1000
	a, b := x.Full([]int{size}, 2, tenon.Float32).SetRequiresGrad(true), x.Full([]int{size}, 3, tenon.Float32).SetRequiresGrad(true)
	for trial := range 5 {
		must(t, x.Device().Synchronize())
		a.SetGrad(nil)
		b.SetGrad(nil)
		c := forward.Mul(a, b)
		must(t, x.Device().Synchronize())
		grad := ambient.Zeros([]int{size}, tenon.Float32) // filled late
		spin(ambient, 50*time.Millisecond)
		ambient.CopyInto(grad, ambient.Full([]int{size}, float64(trial+1), tenon.Float32))
		must(t, ambient.Backward(c, tenon.BackwardOpt{Gradient: grad}))
		if trial > 0 { // before, kernels are loaded
			check(t, "the stream is busy after the pass", busy(t, ambient.Stream()), true)
		}
		holds(t, ambient, "the first gradient", a.Grad(), float32(trial+1)*3)
		holds(t, ambient, "the second gradient", b.Grad(), float32(trial+1)*2)
	}
}

func testBackwardCallback(t *testing.T, x *tenon.Exec, wait order) {
	x0, x1, ambient := sideOf(t, x), sideOf(t, x), sideOf(t, x)
	ones := func() *tenon.Tensor { return x.Full([]int{1000}, 1, tenon.Float32).SetRequiresGrad(true) }
	a, b := ones(), ones()
	var stash []*tenon.Tensor
	wait(x0, x)
	c := x0.Apply(multiply{t, 2}, a)[0]
	wait(x1, x)
	d := x1.Apply(multiply{t, 3}, b)[0]
	wait(x1, x0)
	e := x1.Mul(c, d)
	e.RegisterHook(func(x *tenon.Exec, g *tenon.Tensor) *tenon.Tensor {
		x.QueueCallback(func(x *tenon.Exec) {
			check(t, "the callback's stream", x.Stream(), ambient.Stream())
			stash = append(stash, x.Keep(x.Clone(a.Grad())), x.Keep(x.Clone(b.Grad())))
		})
		return nil
	})
	wait(ambient, x1)
	must(t, ambient.Backward(ambient.Sum(e, nil)))
	check(t, "gradients that the callback saw", len(stash), 2)
	for _, g := range stash {
		holds(t, ambient, "a gradient that the callback saw", g, 6)
	}
}

// goroutines runs f, which shares nothing, three times on two goroutines concurrently, each on its own stream.
func goroutines(t *testing.T, x *tenon.Exec, f func(x *tenon.Exec) (sum float64, err error), want float64) {
	for range 3 {
		var ready, done sync.WaitGroup
		ready.Add(2)
		for range 2 {
			y, err := x.Fork()
			must(t, err)
			done.Go(func() {
				ready.Done()
				ready.Wait()
				var sum float64
				err := tenon.Try(func() {
					y.Scope(func(y *tenon.Exec) {
						var err error
						if sum, err = f(y); err != nil {
							t.Error(err)
						}
					})
				})
				if err != nil {
					t.Error(err)
				}
				check(t, "the sum", sum, want)
			})
		}
		done.Wait()
	}
}

// stepped starts with a tensor of ones and replaces it by the result of step.
func stepped(x *tenon.Exec, shape []int, times int, step func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor) (float64, error) {
	a := x.Ones(shape, tenon.Float32)
	for range times {
		next := step(x, a)
		a.Close()
		a = next
	}
	return x.Item(x.Sum(a, nil))
}

func testProductsOfGoroutines(t *testing.T, x *tenon.Exec) {
	size, times := sized(1024, 64), sized(100, 20)
	weight := x.Ones([]int{size, size}, tenon.Float32)
	must(t, x.Device().Synchronize())
	goroutines(t, x, func(x *tenon.Exec) (float64, error) {
		return stepped(x, []int{size, size}, times, func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
			a = x.MatMul(a, weight)
			x.DivSInto(a, a, float64(size))
			return a
		})
	}, float64(size*size))
}

func testConvolutionsOfGoroutines(t *testing.T, x *tenon.Exec) {
	size, times := sized(2048, 64), sized(1000, 20)
	weight := x.Ones([]int{1, 1, 2, 2}, tenon.Float32)
	must(t, x.Device().Synchronize())
	goroutines(t, x, func(x *tenon.Exec) (float64, error) {
		return stepped(x, []int{1, 1, size, size}, times, func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor {
			a = x.Conv2d(a, weight, nil)
			x.DivSInto(a, a, 4)
			return a
		})
	}, float64((size-times)*(size-times)))
}

// guarded records whether a backward pass runs: QueueCallback is refused if none does.
type guarded struct{ forward, backward error }

func queued(x *tenon.Exec) error { return tenon.Try(func() { x.QueueCallback(func(*tenon.Exec) {}) }) }

func (g *guarded) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	g.forward = queued(x)
	c.Save(in[1])
	return []*tenon.Tensor{x.Mul(in[0], in[1])}
}

func (g *guarded) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	g.backward = queued(x)
	return []*tenon.Tensor{x.Mul(grads[0], c.Saved()[0]), nil}, nil
}

func testBackwardGuard(t *testing.T, x *tenon.Exec) {
	const outside = "Final callbacks can only be installed during backward pass"
	g := &guarded{backward: fmt.Errorf("no pass ran")}
	a, w := leaf(x), x.RandN(nil, tenon.Float32).SetRequiresGrad(true)
	out := x.Apply(g, a, w)[0]
	wantError(t, g.forward, outside)
	must(t, x.Backward(x.MSELoss(out, x.Detach(a), tenon.LossOpt{Reduction: tenon.ReduceSum})))
	must(t, g.backward)
	wantError(t, queued(x), outside)
	if a.Grad() == nil || w.Grad() != nil || strings.Contains(fmt.Sprint(out), "closed") {
		t.Errorf("the gradients are %v and %v", a.Grad(), w.Grad())
	}
}
