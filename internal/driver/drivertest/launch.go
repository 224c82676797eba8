package drivertest

import (
	"testing"

	"tenon.dev/internal/driver"
)

var moduleTests = []test{
	{"BadImage", false, testBadImage},
	{"NotFound", false, testFunctionNotFound},
	{"FuncInfo", false, testFuncInfo},
	{"SetMaxShared", false, testSetMaxShared},
}

var launchTests = []test{
	{"Saxpy", false, testSaxpy},
	{"ArgsCopied", true, testArgsCopied},
	{"Many", false, testManyLaunches},
	{"Errors", false, testLaunchErrors},
	{"Goroutines", false, testLaunchGoroutines},
}

var allocsTests = []test{
	{"LaunchRecordWait", false, testHotAllocs},
	{"CopyMemset", false, testCopyAllocs},
	{"GraphLaunch", false, testGraphAllocs},
	{"GraphSet", false, testSetAllocs},
}

func testBadImage(f *fixture) {
	_, err := f.d.LoadModule(f.th, []byte("this is no kernel image\n"))
	f.code(err, "LoadModule", driver.InvalidPTX)
	_, err = f.d.LoadModule(f.th, nil)
	f.code(err, "LoadModule", driver.InvalidValue)
}

func testFunctionNotFound(f *fixture) {
	m, err := f.d.LoadModule(f.th, f.s.k.Saxpy)
	f.ok(err)
	_, err = f.d.Function(f.th, m, "no_such_kernel")
	f.code(err, "Function", driver.NotFound)
	f.ok(f.d.UnloadModule(f.th, m))
}

func testFuncInfo(f *fixture) {
	i, err := f.d.FuncInfo(f.th, f.fn("saxpy"))
	f.ok(err)
	if i.MaxThreads < 128 || i.MaxThreads > f.d.Info().MaxThreadsPerBlock || i.SharedBytes != 0 {
		f.Errorf("%+v", i)
	}
}

func testSetMaxShared(f *fixture) {
	fn, optin := f.fn("saxpy"), f.d.Info().SharedPerBlockOptin
	f.ok(f.d.SetMaxShared(f.th, fn, optin))
	f.code(f.d.SetMaxShared(f.th, fn, optin+1024), "SetMaxShared", driver.InvalidValue)
	x := f.alloc(512)
	s := f.stream()
	l := f.saxpyLaunch(s, x, x, 0, 1)
	l.Shared = uint32(optin)
	f.ok(f.d.Launch(l))
	f.sync(s)
}

func testSaxpy(f *fixture) {
	for _, n := range []int{1, 127, 128, 1000, 100000} {
		s, x, y := f.stream(), f.alloc(uint64(4*n)), f.alloc(uint64(4*n+512))
		f.fill(x, 3, n)
		f.fill(y, 5, n+128)
		f.saxpy(s, x, y, 2, n)
		f.want(s, y, 11, n)
		f.want(s, y+driver.Ptr(4*n), 5, 128)
	}
}

func testArgsCopied(f *fixture) {
	const n = 256
	s, x, y, z := f.stream(), f.alloc(4*n), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	f.fill(z, 0, n)
	f.spin(s, 20)
	l := f.saxpyLaunch(s, x, y, 1, n)
	f.ok(f.d.Launch(l))
	copy(l.Args, f.saxpyLaunch(s, x, z, 7, n).Args)
	f.ok(f.d.Launch(l))
	clear(l.Args)
	f.want(s, y, 1, n)
	f.want(s, z, 7, n)
}

func testManyLaunches(f *fixture) {
	const n, rounds = 64, 3000 // more than a GPU's launch queue holds
	s, x, y := f.stream(), f.alloc(4*n), f.alloc(4*n)
	f.fill(x, 1, n)
	f.fill(y, 0, n)
	l := f.saxpyLaunch(s, x, y, 1, n)
	for range rounds {
		f.ok(f.d.Launch(l))
	}
	f.want(s, y, rounds, n)
}

func testLaunchErrors(f *fixture) {
	i, x := f.d.Info(), f.alloc(512)
	s := f.stream()
	f.fill(x, 1, 128)
	for _, c := range []struct {
		name   string
		change func(l *driver.Launch)
	}{
		{"grid x 0", func(l *driver.Launch) { l.Grid[0] = 0 }},
		{"grid y 0", func(l *driver.Launch) { l.Grid[1] = 0 }},
		{"grid y 65536", func(l *driver.Launch) { l.Grid[1] = 65536 }},
		{"block x 0", func(l *driver.Launch) { l.Block[0] = 0 }},
		{"block z 65", func(l *driver.Launch) { l.Block[2] = 65 }},
		{"block too large", func(l *driver.Launch) { l.Block[0] = uint32(i.MaxThreadsPerBlock) + 1 }},
		{"block product too large", func(l *driver.Launch) { l.Block = [3]uint32{uint32(i.MaxThreadsPerBlock), 2, 1} }},
		{"shared too large", func(l *driver.Launch) { l.Shared = uint32(i.SharedPerBlockOptin) + 1 }},
		{"shared beyond the default", func(l *driver.Launch) { l.Shared = uint32(i.SharedPerBlock) + 1 }},
	} {
		l := f.saxpyLaunch(s, x, x, 0, 128)
		c.change(l)
		err := f.d.Launch(l)
		if codeOf(err) != driver.InvalidValue {
			f.Errorf("%s: %v, want invalid argument", c.name, err)
		}
	}
	f.want(s, x, 1, 128)
}

func testLaunchGoroutines(f *fixture) {
	const n, rounds = 128, 200
	x := f.alloc(4 * n)
	f.fill(x, 1, n)
	errs := make(chan error)
	type job struct {
		s driver.Stream
		y driver.Ptr
		l *driver.Launch
	}
	var jobs []job
	for range 4 {
		j := job{s: f.stream(), y: f.alloc(4 * n)}
		f.fill(j.y, 0, n)
		j.l = f.saxpyLaunch(j.s, x, j.y, 1, n)
		jobs = append(jobs, j)
	}
	for _, j := range jobs {
		go func() { // holds no token
			for range rounds {
				if err := f.d.Launch(j.l); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range jobs {
		f.ok(<-errs)
	}
	for _, j := range jobs {
		f.want(j.s, j.y, rounds, n)
	}
}

// allocs checks that fn, run many times with waits for s in between, allocates nothing.
func (f *fixture) allocs(s driver.Stream, fn func() error) {
	f.Helper()
	var err error
	i := 0
	n := testing.AllocsPerRun(2000, func() {
		if e := fn(); e != nil {
			err = e
		}
		if i++; i%50 == 0 {
			if e := f.d.StreamSynchronize(f.th, s); e != nil {
				err = e
			}
		}
	})
	f.ok(err)
	if n != 0 {
		f.Errorf("%v allocations a call, want 0", n)
	}
}

func testHotAllocs(f *fixture) {
	s, x := f.stream(), f.alloc(512)
	f.fill(x, 1, 128)
	l := f.saxpyLaunch(s, x, x, 0, 128)
	plain, timed := f.event(false), f.event(true)
	f.allocs(s, func() error { return f.d.Launch(l) })
	for _, e := range []driver.Event{plain, timed} {
		f.allocs(s, func() error { return f.d.EventRecord(e, s) })
		f.allocs(s, func() error { return f.d.StreamWait(s, e) })
	}
	f.allocs(s, func() error { _, err := f.d.EventQuery(f.th, plain); return err })
	f.allocs(s, func() error { _, _, err := f.d.CaptureInfo(s); return err })
	f.allocs(s, func() error { f.d.Enter().Leave(); return nil })
}

func testCopyAllocs(f *fixture) {
	s, x, b := f.stream(), f.alloc(1024), f.host(512)
	f.fill(x, 1, 256)
	f.allocs(s, func() error { return f.d.Memset(x, 1, 4, 128, s) })
	f.allocs(s, func() error { return f.d.CopyDtoD(x, x+512, 512, s) })
	f.allocs(s, func() error { return f.d.CopyHtoD(x, b, s) })
	f.allocs(s, func() error { return f.d.CopyDtoH(b, x, s) })
}

func testGraphAllocs(f *fixture) {
	s, x := f.stream(), f.alloc(512)
	f.fill(x, 1, 128)
	l := f.saxpyLaunch(s, x, x, 0, 128)
	e := f.instantiate(f.capture(s, driver.CaptureThreadLocal, func() {
		for range 10 {
			f.ok(f.d.Launch(l))
		}
	}))
	f.allocs(s, func() error { return f.d.GraphLaunch(e, s) })
}
