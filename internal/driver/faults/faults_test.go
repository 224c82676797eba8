package faults

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
	"tenon.dev/internal/driver/hostsim"
)

// open returns a simulated device.
func open(t *testing.T) driver.Device {
	d, err := hostsim.New(hostsim.Options{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

const image = `kernel "nothing" threads 64
{
}
`

// program calls each method and releases everything on every path.
func program(d driver.Device) (err error) {
	t := d.Enter()
	defer t.Leave()
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	m, err := d.LoadModule(t, []byte(image))
	if err != nil {
		return err
	}
	undo = append(undo, func() error { return d.UnloadModule(t, m) })
	fn, err := d.Function(t, m, "nothing")
	if err != nil {
		return err
	}
	if err := d.SetMaxShared(t, fn, 1024); err != nil {
		return err
	}
	if _, err := d.FuncInfo(t, fn); err != nil {
		return err
	}
	p, err := d.MemAlloc(t, 4096)
	if err != nil {
		return err
	}
	undo = append(undo, func() error { return d.MemFree(t, p) })
	h, err := d.HostAlloc(t, 512)
	if err != nil {
		return err
	}
	undo = append(undo, func() error { return d.HostFree(t, h) })
	own := make([]byte, 512)
	if err := d.HostRegister(t, own); err != nil {
		return err
	}
	undo = append(undo, func() error { return d.HostUnregister(t, own) })
	s, err := d.StreamCreate(t, true, 0)
	if err != nil {
		return err
	}
	undo = append(undo, func() error { return d.StreamDestroy(t, s) })
	var events [2]driver.Event
	for i := range events {
		if events[i], err = d.EventCreate(t, true); err != nil {
			return err
		}
		undo = append(undo, func() error { return d.EventDestroy(t, events[i]) })
	}
	if err := memoryProgram(d, t, s); err != nil {
		return err
	}
	id := d.RegisterCallback(func() {})
	undo = append(undo, func() error { d.UnregisterCallback(id); return nil })
	l := &driver.Launch{Func: fn, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}
	for _, call := range []func() error{
		func() error { _, _, err := d.MemInfo(t); return err },
		func() error { return d.EventRecord(events[0], s) },
		func() error { return d.StreamWait(s, events[0]) },
		func() error { return d.CopyHtoD(p, h, s) },
		func() error { return d.CopyDtoD(p, p+1024, 512, s) },
		func() error { return d.CopyPeer(p, 0, p+1024, 512, s) },
		func() error { return d.CopyDtoH(h, p, s) },
		func() error { return d.Memset(p, 0, 1, 16, s) },
		func() error { return d.Callback(s, id) },
		func() error { return d.Launch(l) },
		func() error { return d.EventRecord(events[1], s) },
		func() error { _, err := d.StreamQuery(t, s); return err },
		func() error { return d.StreamSynchronize(t, s) },
		func() error { _, err := d.EventQuery(t, events[1]); return err },
		func() error { return d.EventSynchronize(t, events[1]) },
		func() error { _, err := d.EventElapsed(t, events[0], events[1]); return err },
		func() error { return graphProgram(d, t, s, l, p) },
		func() error { return d.Synchronize(t) },
	} {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// memoryProgram uses virtual memory and pool memory.
func memoryProgram(d driver.Device, t driver.Thread, s driver.Stream) (err error) {
	const n = 2 << 20
	r, err := d.MemReserve(t, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.MemUnreserve(t, r, n)) }()
	if err := d.MemMap(t, r, n); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.MemUnmap(t, r, n)) }()
	p, err := d.MemAllocAsync(t, 512, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.MemFreeAsync(t, p, s)) }()
	if err := d.PoolKeep(t, n); err != nil {
		return err
	}
	if err := d.PoolResetPeaks(t); err != nil {
		return err
	}
	if _, err := d.PoolUsage(t); err != nil {
		return err
	}
	return d.PoolTrim(t, 0)
}

// graphProgram captures, changes and runs a graph.
func graphProgram(d driver.Device, t driver.Thread, s driver.Stream, l *driver.Launch, p driver.Ptr) error {
	old, err := d.CaptureExchangeMode(t, driver.CaptureThreadLocal)
	if err != nil {
		return err
	}
	defer d.CaptureExchangeMode(t, old)
	if err := d.CaptureBegin(t, s, driver.CaptureThreadLocal); err != nil {
		return err
	}
	launched := d.Launch(l)
	kernel, named := d.CaptureNode(s)
	copied := d.CopyDtoD(p, p+1024, 512, s)
	move, namedToo := d.CaptureNode(s)
	filled := d.Memset(p, 0, 1, 16, s)
	fill, namedLast := d.CaptureNode(s)
	_, _, asked := d.CaptureInfo(s)
	g, err := d.CaptureEnd(t, s)
	if err := errors.Join(launched, named, copied, namedToo, filled, namedLast, asked, err); err != nil {
		if g != 0 {
			d.GraphDestroy(t, g)
		}
		return err
	}
	defer d.GraphDestroy(t, g)
	if _, err := d.GraphNodes(g); err != nil {
		return err
	}
	if err := d.GraphDot(t, g, "/dev/null"); err != nil {
		return err
	}
	x, err := d.GraphInstantiate(t, g)
	if err != nil {
		return err
	}
	defer d.GraphExecDestroy(t, x)
	if err := d.GraphSetLaunch(t, x, kernel, l); err != nil {
		return err
	}
	if err := d.GraphSetCopy(t, x, move, p+1024, p, 512); err != nil {
		return err
	}
	if err := d.GraphSetMemset(t, x, fill, p, 1, 4, 2); err != nil {
		return err
	}
	if err := d.GraphLaunch(x, s); err != nil {
		return err
	}
	return chainProgram(d, t, s, l)
}

// chainProgram makes and runs a graph without a capture.
func chainProgram(d driver.Device, t driver.Thread, s driver.Stream, l *driver.Launch) (err error) {
	e, err := d.EventCreate(t, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.EventDestroy(t, e)) }()
	g, nodes, err := d.GraphChain(t, []driver.ChainWork{{Launch: l}, {Event: e}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.GraphDestroy(t, g)) }()
	x, err := d.GraphInstantiate(t, g)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.GraphExecDestroy(t, x)) }()
	return errors.Join(d.GraphSetEvent(t, x, nodes[1], e), d.GraphLaunch(x, s))
}

func TestWalk(t *testing.T) { Walk(t, open(t), program) }

func TestWalkWithoutFaults(t *testing.T) { Walk(t, open(t), program, WithoutFaults()) }

// TestCodesAreMethods checks that every listed name is a method of the contract, and that the walk reaches all of them.
func TestCodesAreMethods(t *testing.T) {
	typ := reflect.TypeFor[driver.Device]()
	for name := range codes {
		if _, ok := typ.MethodByName(name); !ok {
			t.Errorf("%s is not a method of the contract", name)
		}
	}
	reached := map[string]bool{}
	d := New(open(t))
	for n := 1; ; n++ {
		d.Arm(n, 0)
		program(d)
		method, _ := d.Fired()
		if method == "" {
			break
		}
		reached[method] = true
	}
	for name := range codes {
		if !reached[name] {
			t.Errorf("the walk's program never calls %s", name)
		}
	}
}

func TestStickyFault(t *testing.T) {
	d := New(open(t))
	th := d.Enter()
	defer th.Leave()
	p, err := d.MemAlloc(th, 64)
	if err != nil {
		t.Fatal(err)
	}
	d.Arm(1, 0)
	if err := d.Synchronize(th); !errors.Is(err, driver.IllegalAddress) {
		t.Errorf("Synchronize: %v", err)
	}
	if _, err := d.MemAlloc(th, 64); !errors.Is(err, driver.IllegalAddress) {
		t.Errorf("MemAlloc after a device fault: %v", err)
	}
	if _, err := d.GraphNodes(0); !errors.Is(err, driver.IllegalAddress) {
		t.Errorf("GraphNodes after a device fault: %v", err)
	}
	if err := d.MemFree(th, p); err != nil {
		t.Errorf("MemFree after a device fault: %v", err)
	}
	if live := d.Live(); live != (Live{}) {
		t.Errorf("live: %+v", live)
	}
	d.Arm(0, 0)
	if err := d.Synchronize(th); err != nil {
		t.Errorf("Synchronize after Arm(0, 0): %v", err)
	}
}

// failing collects what a walk reports, in place of a test.
type failing struct {
	testing.TB
	failed bool
	text   strings.Builder
}

func (f *failing) Helper()                   {}
func (f *failing) Logf(s string, a ...any)   { fmt.Fprintf(&f.text, s+"\n", a...) }
func (f *failing) Errorf(s string, a ...any) { f.failed = true; f.Logf(s, a...) }
func (f *failing) Fatalf(s string, a ...any) { f.Errorf(s, a...); panic(f) }
func (f *failing) Failed() bool              { return f.failed }
func (f *failing) Name() string              { return "failing" }

// walkText walks a faulty program and returns what the walk reports.
func walkText(t *testing.T, program func(d driver.Device) error, opts ...Option) string {
	f := &failing{}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(f) {
				panic(r)
			}
		}()
		Walk(f, open(t), program, opts...)
	}()
	return f.text.String()
}

func TestWalkFindsWrongPrograms(t *testing.T) {
	alloc := func(d driver.Device, leak, swallow, rename bool) error {
		th := d.Enter()
		defer th.Leave()
		p, err := d.MemAlloc(th, 64)
		if err != nil {
			return err
		}
		s, err := d.StreamCreate(th, true, 0)
		switch {
		case err != nil && leak:
			return err
		case err != nil && swallow:
			return d.MemFree(th, p)
		case err != nil && rename:
			d.MemFree(th, p)
			return errors.New("something went wrong")
		case err != nil:
			return errors.Join(err, d.MemFree(th, p))
		}
		return errors.Join(d.StreamDestroy(th, s), d.MemFree(th, p))
	}
	broken := false
	for _, c := range []struct {
		name, want string
		program    func(d driver.Device) error
		opts       []Option
	}{
		{"right", "walk failing: 2", func(d driver.Device) error { return alloc(d, false, false, false) }, nil},
		{"leak", "these are live", func(d driver.Device) error { return alloc(d, true, false, false) }, nil},
		{"swallow", "reports no error", func(d driver.Device) error { return alloc(d, false, true, false) }, nil},
		{"recovers", "walk failing: 2", func(d driver.Device) error {
			return alloc(d, false, true, false)
		}, []Option{Recovered("StreamCreate")}},
		{"rename", "does not name it", func(d driver.Device) error { return alloc(d, false, false, true) }, nil},
		{"wrong by itself", "fails by itself", func(d driver.Device) error { return errors.New("no") }, nil},
		{"stays broken", "fails without a failure", func(d driver.Device) error {
			if broken {
				return errors.New("broken")
			}
			err := alloc(d, false, false, false)
			broken = err != nil
			return err
		}, nil},
		{"goroutine", "goroutines, want", func(d driver.Device) error {
			err := alloc(d, false, false, false)
			if err != nil {
				go func() { select {} }()
			}
			return err
		}, nil},
	} {
		if text := walkText(t, c.program, c.opts...); !strings.Contains(text, c.want) {
			t.Errorf("%s: the walk says\n%s\nwant %q", c.name, text, c.want)
		}
	}
}

// TestTransparent runs the conformance suite on a device without injected failures.
func TestTransparent(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) driver.Device { return New(open(t)) }, drivertest.KIR(), drivertest.Decorated(),
		drivertest.Pair(func(t *testing.T) (a, b driver.Device) {
			a, b = drivertest.OpenPair(t, hostsim.New(hostsim.Options{Devices: 2}))
			return New(a), New(b)
		}))
}
