package conformance

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/testdevice"
)

// traceTests are the behaviours of PyTorch's test_cuda_trace.py.
var traceTests = []cudaTest{
	{name: "TRACE-001_test_event_creation_callback", run: testTraceEventCreation},
	{name: "TRACE-002_test_event_deletion_callback", run: testTraceEventDeletion},
	{name: "TRACE-003_test_event_record_callback", run: testTraceEventRecord},
	{name: "TRACE-004_test_event_wait_callback", run: testTraceEventWait},
	{name: "TRACE-005_test_memory_allocation_callback", run: testTraceAllocation},
	{name: "TRACE-006_test_memory_deallocation_callback", run: testTraceDeallocation},
	{name: "TRACE-007_test_stream_creation_callback", run: testTraceStreamCreation},
	{name: "TRACE-008_test_device_synchronization_callback", run: testTraceDeviceSynchronization},
	{name: "TRACE-009_test_stream_synchronization_callback", run: testTraceStreamSynchronization},
	{name: "TRACE-010_test_event_synchronization_callback", run: testTraceEventSynchronization},
	{name: "TRACE-011_test_memcpy_synchronization", run: testTraceMemcpySynchronization},
	{name: "TRACE-012_test_all_trace_callbacks_called", run: testTraceAllCallbacks},
}

// TestTRACE checks the behaviour that test_cuda_trace.py pins: the callbacks of a device's actions.
func TestTRACE(t *testing.T) {
	for _, c := range traceTests {
		c.in(t)
	}
}

// calls are the callbacks of a device, in order.
type calls struct {
	mu   sync.Mutex
	list []string
}

func (c *calls) add(what string, handles ...uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, call(what, handles...))
}

// call is one call as text.
func call(what string, handles ...uint64) string { return fmt.Sprint(what, " ", handles) }

// told returns the calls so far and clears them.
func (c *calls) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// want fails the test unless exactly these calls came since the last time.
func (c *calls) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := c.told(); !slices.Equal(got, want) {
		t.Errorf("%s: the device told %q; want %q", when, got, want)
	}
}

// traced records all callbacks until the test ends, except the kinds in leaveOut.
func traced(t *testing.T, d *cuda.Device, leaveOut ...string) *calls {
	c := &calls{}
	none := func(what string) func(...uint64) {
		if slices.Contains(leaveOut, what) {
			return func(...uint64) {}
		}
		return func(handles ...uint64) { c.add(what, handles...) }
	}
	one := func(what string) func(uint64) { f := none(what); return func(a uint64) { f(a) } }
	two := func(what string) func(a, b uint64) { f := none(what); return func(a, b uint64) { f(a, b) } }
	sync := none("device sync")
	t.Cleanup(d.Trace(cuda.TraceCallbacks{
		EventCreated: one("event creation"), EventDeleted: one("event deletion"), EventRecorded: two("event record"),
		EventWaited:     two("event wait"),
		MemoryAllocated: one("allocation"), MemoryFreed: one("deallocation"), StreamCreated: one("stream creation"),
		DeviceSynchronized: func() { sync() }, StreamSynchronized: one("stream sync"), EventSynchronized: one("event sync"),
	}))
	return c
}

func testTraceEventCreation(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "event record", "event deletion")
	e := x.Device().NewEvent()
	defer e.Close()
	c.want(t, "an event that was never recorded")
	must(t, e.Record(x.Stream()))
	c.want(t, "the first record", call("event creation", e.Handle()))
	must(t, e.Record(x.Stream()))
	c.want(t, "the second record")
}

func testTraceEventDeletion(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "event record", "event creation")
	e := x.Device().NewEvent()
	must(t, e.Record(x.Stream()))
	h := e.Handle()
	c.want(t, "before")
	e.Close()
	c.want(t, "an event is closed", call("event deletion", h))
	e.Close()
	x.Device().NewEvent().Close()
	c.want(t, "one is closed again, and one that was never recorded")
	// The garbage collector deletes dropped objects.
	h = func() uint64 {
		e := x.Device().NewEvent()
		must(t, e.Record(x.Stream()))
		return e.Handle()
	}()
	var got []string
	for range 1000 {
		runtime.GC()
		runtime.Gosched() // lets the cleanup run, on a goroutine of the runtime
		if got = c.told(); got != nil {
			break
		}
	}
	check(t, "what is told of a dropped event", strings.Join(got, ", "), call("event deletion", h))
}

func testTraceEventRecord(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "event creation", "event deletion")
	e := x.Device().NewEvent()
	defer e.Close()
	must(t, e.Record(x.Stream()))
	c.want(t, "a record", call("event record", e.Handle(), x.Stream().Handle()))
	s := newStream(t, x)
	c.told()
	must(t, e.Record(s))
	c.want(t, "a record on another stream", call("event record", e.Handle(), s.Handle()))
}

func testTraceEventWait(t *testing.T, x *tenon.Exec) {
	s := newStream(t, x)
	c := traced(t, x.Device(), "event creation", "event deletion", "allocation", "deallocation")
	e := x.Device().NewEvent()
	defer e.Close()
	must(t, x.Stream().Wait(e))
	c.want(t, "a wait for what was never recorded")
	must(t, e.Record(x.Stream()))
	c.told()
	must(t, x.Stream().Wait(e))
	c.want(t, "a wait of the event's own stream", call("event wait", e.Handle(), x.Stream().Handle()))
	must(t, s.Wait(e))
	c.want(t, "a wait of another stream", call("event wait", e.Handle(), s.Handle()))
	// The library's own waits order streams too: one event each.
	a := x.Ones([]int{4}, tenon.Float32)
	c.told()
	x.On(s).Neg(a)
	got := c.told()
	var event uint64
	if len(got) == 2 {
		if _, err := fmt.Sscanf(got[1], "event wait [%d", &event); err != nil {
			t.Error(err)
		}
	}
	check(t, "a tensor of another stream is used", strings.Join(got, ", "), call("event record", event, x.Stream().Handle())+", "+
		call("event wait", event, s.Handle()))
	x.On(s).Neg(a)
	c.want(t, "it is used again")
}

func testTraceAllocation(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "deallocation")
	a := x.Empty([]int{10, 4}, tenon.Float32)
	c.want(t, "a tensor", call("allocation", a.DataPtr()))
	second := x.Empty([]int{10, 4}, tenon.Float32)
	c.want(t, "a tensor in the same segment", call("allocation", second.DataPtr()))
	x.View(a, 40)
	x.Empty([]int{0}, tenon.Float32)
	c.want(t, "a view and a tensor without elements")
	x.Device().SetCaching(false)
	b := x.Empty([]int{10, 4}, tenon.Float32)
	x.Device().SetCaching(true)
	c.want(t, "a tensor without the cache", call("allocation", b.DataPtr()))
	p, err := x.Device().RawAlloc(100, x.Stream())
	must(t, err)
	c.want(t, "an allocation by address", call("allocation", p))
	must(t, x.Device().RawFree(p))
}

func testTraceDeallocation(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "allocation")
	a := x.Empty([]int{3, 8}, tenon.Float32)
	ptr := a.DataPtr()
	v := x.View(a, 24)
	a.Close()
	c.want(t, "a tensor is closed that has a view")
	v.Close()
	c.want(t, "the view is closed", call("deallocation", ptr))
	p, err := x.Device().RawAlloc(100, x.Stream())
	must(t, err)
	must(t, x.Device().RawFree(p))
	c.want(t, "a free by address", call("deallocation", p))
	if x.Device().RawFree(p) == nil {
		t.Error("memory was freed twice")
	}
	c.want(t, "a free of what is not there")
	must(t, x.Device().EmptyCache())
	c.want(t, "memory goes back to the driver")
}

func testTraceStreamCreation(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device())
	s := newStream(t, x)
	c.want(t, "a stream", call("stream creation", s.Handle()))
	for range 40 {
		newStream(t, x)
	}
	check(t, "streams made, of 40 that were asked for", len(c.told()), 31)
	// Captures have their own streams, which they reuse.
	captured := func() uint64 {
		var h uint64
		g, err := x.Capture(func(x *tenon.Exec) { h = x.Stream().Handle(); x.Ones([]int{1}, tenon.Float32) })
		must(t, err)
		must(t, g.Close())
		return h
	}
	h := captured()
	check(t, "a capture's stream is told", slices.Contains(c.told(), call("stream creation", h)), true)
	check(t, "the next capture's stream", captured(), h)
	check(t, "it is told again", slices.Contains(c.told(), call("stream creation", h)), false)
}

func testTraceDeviceSynchronization(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device())
	must(t, x.Device().Synchronize())
	c.want(t, "the device is waited for", call("device sync"))
}

func testTraceStreamSynchronization(t *testing.T, x *tenon.Exec) {
	s := newStream(t, x)
	c := traced(t, x.Device())
	must(t, s.Synchronize())
	c.want(t, "a stream is waited for", call("stream sync", s.Handle()))
	_, err := s.Query()
	must(t, err)
	c.want(t, "a stream is asked")
}

func testTraceEventSynchronization(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "event creation", "event record", "event deletion")
	e := x.Device().NewEvent()
	defer e.Close()
	must(t, e.Synchronize())
	c.want(t, "an event that was never recorded is waited for")
	must(t, e.Record(x.Stream()))
	must(t, e.Synchronize())
	c.want(t, "an event is waited for", call("event sync", e.Handle()))
}

// testTraceMemcpySynchronization: an operation whose result's length depends on elements waits once.
func testTraceMemcpySynchronization(t *testing.T, x *tenon.Exec) {
	c := traced(t, x.Device(), "allocation", "deallocation")
	a := x.Rand([]int{5}, tenon.Float32)
	c.want(t, "work")
	x.Nonzero(a)
	c.want(t, "a count is read", call("stream sync", x.Device().DefaultStream().Handle()))
	testdevice.Read[float32](t, x, a)
	c.want(t, "elements are read", call("stream sync", x.Device().DefaultStream().Handle()))
	s := newStream(t, x)
	c.told()
	testdevice.Read[float32](t, x.On(s).ManualStreams(), a)
	c.want(t, "elements are read on another stream", call("stream sync", s.Handle()))
}

func testTraceAllCallbacks(t *testing.T, x *tenon.Exec) {
	c := &calls{}
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	register := func(who string, then func()) (remove func()) {
		return x.Device().Trace(cuda.TraceCallbacks{MemoryAllocated: func(p uint64) { c.add(who, p); then() }})
	}
	first := register("first", func() { panic("lost its way") })
	defer register("second", func() {})()
	a := x.Empty([]int{10, 4}, tenon.Float32)
	c.want(t, "both", call("first", a.DataPtr()), call("second", a.DataPtr()))
	for _, part := range []string{"level=ERROR", "Exception in callback for CUDA memory allocation registered with gpu trace",
		"lost its way", "testTraceAllCallbacks"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log is %q; want one that says %q", &log, part)
		}
	}
	first()
	first()
	b := x.Empty([]int{10, 4}, tenon.Float32)
	c.want(t, "the first is removed", call("second", b.DataPtr()))
	// Every message names its action.
	log.Reset()
	fail, fail1, fail2 := func() { panic(0) }, func(uint64) { panic(0) }, func(_, _ uint64) { panic(0) }
	remove := x.Device().Trace(cuda.TraceCallbacks{
		EventCreated: fail1, EventDeleted: fail1, EventRecorded: fail2, EventWaited: fail2, MemoryAllocated: fail1, MemoryFreed: fail1,
		StreamCreated: fail1, DeviceSynchronized: fail, StreamSynchronized: fail1, EventSynchronized: fail1,
	})
	e := x.Device().NewEvent()
	s := newStream(t, x)
	must(t, e.Record(s))
	must(t, s.Wait(e))
	must(t, e.Synchronize())
	must(t, s.Synchronize())
	must(t, x.Device().Synchronize())
	e.Close()
	b.Close()
	x.Empty([]int{1}, tenon.Float32)
	remove()
	for _, name := range []string{"event creation", "event deletion", "event record", "event wait", "memory allocation",
		"memory deallocation", "stream creation",
		"device synchronization", "stream synchronization", "event synchronization"} {
		check(t, "failures of "+name+" in the log", strings.Count(log.String(), "Exception in callback for CUDA "+name+" registered"), 1)
	}
}
