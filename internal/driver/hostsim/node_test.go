package hostsim

import (
	"encoding/binary"
	"math"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// adding is a graph of an optional callback and y += x over 64 elements.
type adding struct {
	*Device
	t    *testing.T
	th   driver.Thread
	l    *driver.Launch
	y    driver.Ptr
	node driver.Node
	g    driver.Graph
	e    driver.GraphExec
}

func newAdding(t *testing.T, d *Device, th driver.Thread, first func()) *adding {
	t.Helper()
	m, err := d.LoadModule(th, drivertest.KIR().Saxpy)
	must(t, err)
	fn, err := d.Function(th, m, "saxpy")
	must(t, err)
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	x := alloc(t, d, th, 256)
	a := &adding{Device: d, t: t, th: th, y: alloc(t, d, th, 256)}
	must(t, d.Memset(x, math.Float32bits(1), 4, 64, s))
	must(t, d.Memset(a.y, 0, 4, 64, s))
	args := binary.LittleEndian.AppendUint64(nil, uint64(x))
	args = binary.LittleEndian.AppendUint64(args, uint64(a.y))
	args = binary.LittleEndian.AppendUint32(args, math.Float32bits(1))
	args = binary.LittleEndian.AppendUint32(args, 64)
	a.l = &driver.Launch{Func: fn, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}, Args: args}
	must(t, d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	if first != nil {
		must(t, d.Callback(s, d.RegisterCallback(first)))
	}
	must(t, d.Launch(a.l))
	a.node, err = d.CaptureNode(s)
	must(t, err)
	a.g, err = d.CaptureEnd(th, s)
	must(t, err)
	a.e, err = d.GraphInstantiate(th, a.g)
	must(t, err)
	return a
}

// set makes later runs add v.
func (a *adding) set(th driver.Thread, v float32) error {
	binary.LittleEndian.PutUint32(a.l.Args[16:], math.Float32bits(v))
	return a.GraphSetLaunch(th, a.e, a.node, a.l)
}

func (a *adding) want(v float32) {
	a.t.Helper()
	b := make([]byte, 4)
	must(a.t, a.CopyDtoH(b, a.y, a.l.Stream))
	must(a.t, a.StreamSynchronize(a.th, a.l.Stream))
	if got := math.Float32frombits(binary.LittleEndian.Uint32(b)); got != v {
		a.t.Errorf("the runs add up to %v, want %v", got, v)
	}
}

// A node's handle is valid while its graph lives, only for executables of the graph, and only if the node exists.
func TestNodesGoWithTheirGraph(t *testing.T) {
	d, th := open(t, Options{})
	a := newAdding(t, d, th, nil)
	for _, bad := range []driver.Node{a.node - 1, a.node + 1, a.node + 1<<32, a.node - 1<<32, 1, math.MaxUint64} {
		want(t, a.GraphSetLaunch(th, a.e, bad, a.l), "GraphSetLaunch", driver.InvalidValue)
		want(t, a.GraphSetCopy(th, a.e, bad, a.y, a.y, 4), "GraphSetCopy", driver.InvalidValue)
	}
	must(t, a.set(th, 3))
	must(t, a.GraphDestroy(th, a.g))
	want(t, a.set(th, 4), "GraphSetLaunch", driver.InvalidValue)
	must(t, a.GraphLaunch(a.e, a.l.Stream))
	a.want(3)
	must(t, a.GraphExecDestroy(th, a.e))
	want(t, a.set(th, 4), "GraphSetLaunch", driver.InvalidHandle)
}

// What is invalid in a launch is invalid in a change.
func TestChangesAreChecked(t *testing.T) {
	d, th := open(t, Options{})
	a := newAdding(t, d, th, nil)
	l := *a.l
	l.Func = 0
	want(t, a.GraphSetLaunch(th, a.e, a.node, &l), "GraphSetLaunch", driver.InvalidHandle)
	s := a.l.Stream
	must(t, d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	must(t, d.CopyDtoD(a.y, a.y+128, 64, s))
	n, err := d.CaptureNode(s)
	must(t, err)
	g, err := d.CaptureEnd(th, s)
	must(t, err)
	e, err := d.GraphInstantiate(th, g)
	must(t, err)
	for _, c := range [][3]uint64{{uint64(a.y), 4, 4}, {4, uint64(a.y), 4}, {uint64(a.y), uint64(a.y), 1 << 40}} {
		want(t, d.GraphSetCopy(th, e, n, driver.Ptr(c[0]), driver.Ptr(c[1]), c[2]), "GraphSetCopy", driver.InvalidValue)
	}
	must(t, d.GraphSetCopy(th, e, n, a.y+128, a.y, 64))
}

// A change is potentially unsafe while its thread captures.
func TestChangeInACapture(t *testing.T) {
	d, th := open(t, Options{})
	a := newAdding(t, d, th, nil)
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	must(t, d.CaptureBegin(th, s, driver.CaptureThreadLocal))
	want(t, a.set(th, 4), "GraphSetLaunch", driver.StreamCaptureUnsupported)
	_, err = d.CaptureEnd(th, s)
	want(t, err, "CaptureEnd", driver.StreamCaptureInvalidated)
	must(t, d.CaptureBegin(th, s, driver.CaptureRelaxed))
	must(t, a.set(th, 5))
	_, err = d.CaptureEnd(th, s)
	must(t, err)
	must(t, a.GraphLaunch(a.e, a.l.Stream))
	a.want(5)
}

// On an inline device, others change the graph while a run is in progress, without affecting it.
func TestChangeOfAnInlineRun(t *testing.T) {
	d, th := enter(t, CPU(), 0)
	entered, leave := make(chan bool, 2), make(chan bool)
	a := newAdding(t, d, th, func() { entered <- true; <-leave })
	done := make(chan error)
	go func() { done <- d.GraphLaunch(a.e, a.l.Stream) }()
	<-entered
	must(t, a.set(th, 10))
	must(t, a.set(th, 100))
	close(leave)
	must(t, <-done)
	a.want(1)
	must(t, d.GraphLaunch(a.e, a.l.Stream))
	a.want(101)
	must(t, a.set(th, 1000))
	must(t, d.GraphLaunch(a.e, a.l.Stream))
	a.want(1101)
}

// BenchmarkGraphSet measures a change of one node in a graph of a hundred.
func BenchmarkGraphSet(b *testing.B) {
	dev, t, l := bench(b, New(Options{}), 256)
	if err := dev.CaptureBegin(t, l.Stream, driver.CaptureRelaxed); err != nil {
		b.Fatal(err)
	}
	for range 100 {
		if err := dev.Launch(l); err != nil {
			b.Fatal(err)
		}
	}
	n, err := dev.CaptureNode(l.Stream)
	if err != nil {
		b.Fatal(err)
	}
	g, err := dev.CaptureEnd(t, l.Stream)
	if err != nil {
		b.Fatal(err)
	}
	e, err := dev.GraphInstantiate(t, g)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := dev.GraphSetLaunch(t, e, n, l); err != nil {
			b.Fatal(err)
		}
	}
}
