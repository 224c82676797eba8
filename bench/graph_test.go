package bench

import (
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/driver"
)

// addHundred adds 1 to a 100 times, in as many launches.
func addHundred(x *tenon.Exec, a *tenon.Tensor) {
	for range 100 {
		x.AddSInto(a, a, 1)
	}
}

// TestGraphs measures the replay of a graph of 100 small additions and, for comparison, of the same graph captured and launched through the
// driver contract.
func TestGraphs(t *testing.T) {
	x := onGPU(t).NoGrad()
	dev := coreExec(x).Device()
	d := dev.Driver()
	a := x.Zeros([]int{1024}, tenon.Float32)
	addHundred(x, a) // loads the kernel
	if err := x.Synchronize(); err != nil {
		t.Fatal(err)
	}
	st, err := dev.Stream()
	if err != nil {
		t.Fatal(err)
	}
	th := d.Enter()
	defer th.Leave()
	if err := d.CaptureBegin(th, st.Handle(), driver.CaptureThreadLocal); err != nil {
		t.Fatal(err)
	}
	addHundred(x.ManualStreams().On((*cuda.Stream)(st)), a)
	recorded, err := d.CaptureEnd(th, st.Handle())
	if err != nil {
		t.Fatal(err)
	}
	bare, err := d.GraphInstantiate(th, recorded)
	if err != nil {
		t.Fatal(err)
	}
	defer d.GraphExecDestroy(th, bare)
	if err := d.GraphDestroy(th, recorded); err != nil {
		t.Fatal(err)
	}
	graph, err := x.Capture(func(x *tenon.Exec) { addHundred(x, a) })
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Close()
	if n := graph.Nodes(); n != 100 {
		t.Errorf("the graph has %d nodes", n)
	}
	main := dev.DefaultStream().Handle()
	launch := func() {
		if err := d.GraphLaunch(bare, main); err != nil {
			t.Fatal(err)
		}
	}
	replay := func() {
		if err := x.Replay(graph); err != nil {
			t.Fatal(err)
		}
	}
	// Only a few launches at a time, so that the queue does not fill and issuing does not wait.
	perCall(t, "graph.launch", 5, true, x.Synchronize, launch)
	perCall(t, "graph.issue", 5, true, x.Synchronize, replay)
	recordFigure("graph.allocs", "allocs/op", []float64{testing.AllocsPerRun(20, replay)})
	waited := func(f func()) func() {
		return func() {
			f()
			if err := x.Synchronize(); err != nil {
				t.Fatal(err)
			}
		}
	}
	perCall(t, "graph.bare", 100, false, x.Synchronize, waited(launch))
	perCall(t, "graph.replay", 100, false, x.Synchronize, waited(replay))
}
