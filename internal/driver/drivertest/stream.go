package drivertest

import (
	"time"

	"tenon.dev/internal/driver"
)

var streamTests = []test{
	{"Idle", false, testStreamIdle},
	{"Query", true, testStreamQuery},
	{"Priority", false, testStreamPriority},
	{"Wait", true, testStreamWait},
	{"DestroyPending", true, testStreamDestroyPending},
	{"LegacyWaitsForBlocking", true, testLegacyWaits},
	{"LegacyIgnoresNonBlocking", true, testLegacyIgnores},
	{"BlockingWaitsForLegacy", true, testBlockingWaits},
	{"Poll", true, testPoll},
}

var eventTests = []test{
	{"NeverRecorded", false, testEventNever},
	{"Query", true, testEventQuery},
	{"Rerecord", true, testEventRerecord},
	{"WaitCapturesRecord", true, testWaitCapturesRecord},
	{"DestroyPending", true, testEventDestroyPending},
	{"Elapsed", true, testElapsed},
	{"ElapsedErrors", false, testElapsedErrors},
	{"ElapsedNotReady", true, testElapsedNotReady},
	{"SynchronizeFromThread", true, testEventSyncThread},
}

// query checks the result of StreamQuery.
func (f *fixture) query(s driver.Stream, want bool) {
	f.Helper()
	done, err := f.d.StreamQuery(f.th, s)
	f.ok(err)
	if done != want {
		f.Errorf("stream query: done = %v, want %v", done, want)
	}
}

// queryEvent checks the result of EventQuery.
func (f *fixture) queryEvent(e driver.Event, want bool) {
	f.Helper()
	done, err := f.d.EventQuery(f.th, e)
	f.ok(err)
	if done != want {
		f.Errorf("event query: done = %v, want %v", done, want)
	}
}

func testStreamIdle(f *fixture) {
	for _, nonBlocking := range []bool{false, true} {
		s := f.streamOf(nonBlocking)
		if s == driver.StreamLegacy {
			f.Error("a created stream has the legacy stream's handle")
		}
		f.query(s, true)
		f.sync(s)
	}
	f.query(driver.StreamLegacy, true)
	f.sync(driver.StreamLegacy)
	if a, b := f.stream(), f.stream(); a == b {
		f.Error("two streams have one handle")
	}
}

func testStreamQuery(f *fixture) {
	s, other := f.stream(), f.stream()
	f.spin(s, 50)
	f.query(s, false)
	f.query(other, true)
	f.sync(s)
	f.query(s, true)
}

func testStreamPriority(f *fixture) {
	for _, p := range []int{-1, 0, 1, -100} {
		s, err := f.d.StreamCreate(f.th, true, p) // out of range is clamped
		f.ok(err)
		f.ok(f.d.StreamDestroy(f.th, s))
	}
}

func testStreamWait(f *fixture) {
	a, b, e := f.stream(), f.stream(), f.event(false)
	f.spin(a, 50)
	f.ok(f.d.EventRecord(e, a))
	f.ok(f.d.StreamWait(b, e))
	f.query(b, false)
	f.sync(b)
	f.query(a, true)
}

func testStreamDestroyPending(f *fixture) {
	s, err := f.d.StreamCreate(f.th, true, 0)
	f.ok(err)
	e, p := f.event(false), f.alloc(4096)
	f.fill(p, 1, 1024)
	f.spin(s, 20)
	f.ok(f.d.Memset(p, 0, 1, 4096, s))
	f.ok(f.d.EventRecord(e, s))
	f.ok(f.d.StreamDestroy(f.th, s))
	f.ok(f.d.EventSynchronize(f.th, e))
	f.want(f.stream(), p, 0, 1024)
}

func testLegacyWaits(f *fixture) {
	s, e := f.streamOf(false), f.event(false)
	p := f.alloc(4)
	f.spin(s, 50)
	f.ok(f.d.EventRecord(e, s))
	f.ok(f.d.Memset(p, 0, 1, 4, driver.StreamLegacy))
	f.queryEvent(e, false)
	f.query(driver.StreamLegacy, false)
	f.sync(driver.StreamLegacy)
	f.queryEvent(e, true)
}

func testLegacyIgnores(f *fixture) {
	s, p := f.stream(), f.alloc(4)
	f.spin(s, 200)
	f.ok(f.d.Memset(p, 0, 1, 4, driver.StreamLegacy))
	f.sync(driver.StreamLegacy)
	f.query(s, false)
	f.sync(s)
}

func testBlockingWaits(f *fixture) {
	blocking, free := f.streamOf(false), f.stream()
	p := f.alloc(8)
	f.spin(driver.StreamLegacy, 100)
	f.ok(f.d.Memset(p, 0, 1, 4, blocking))
	f.ok(f.d.Memset(p+4, 0, 1, 4, free))
	f.sync(free)
	f.query(blocking, false)
	f.query(driver.StreamLegacy, false)
	f.sync(blocking)
	f.query(driver.StreamLegacy, true)
}

// testPoll checks that polling long enough is a way to wait.
func testPoll(f *fixture) {
	s := f.stream()
	f.spin(s, 2)
	for start := time.Now(); time.Since(start) < 20*time.Second; {
		done, err := f.d.StreamQuery(f.th, s)
		f.ok(err)
		if done {
			return
		}
	}
	f.Error("a 2 ms spin is not done after 20 s of polling")
}

func testEventNever(f *fixture) {
	e, s := f.event(false), f.stream()
	f.queryEvent(e, true)
	f.ok(f.d.EventSynchronize(f.th, e))
	f.ok(f.d.StreamWait(s, e))
	f.sync(s)
}

func testEventQuery(f *fixture) {
	for _, timing := range []bool{false, true} {
		s, e := f.stream(), f.event(timing)
		f.ok(f.d.EventRecord(e, s))
		f.ok(f.d.EventSynchronize(f.th, e))
		f.queryEvent(e, true)
		f.spin(s, 50)
		f.queryEvent(e, true) // it marks the earlier work
		f.ok(f.d.EventRecord(e, s))
		f.queryEvent(e, false)
		f.ok(f.d.EventSynchronize(f.th, e))
		f.queryEvent(e, true)
		f.query(s, true)
	}
}

func testEventRerecord(f *fixture) {
	a, b, e := f.stream(), f.stream(), f.event(false)
	f.spin(a, 100)
	f.ok(f.d.EventRecord(e, a))
	f.ok(f.d.EventRecord(e, b)) // replaces the record on a
	f.ok(f.d.EventSynchronize(f.th, e))
	f.query(a, false)
	f.sync(a)
}

func testWaitCapturesRecord(f *fixture) {
	a, b, c, e := f.stream(), f.stream(), f.stream(), f.event(false)
	f.ok(f.d.EventRecord(e, a))
	f.ok(f.d.StreamWait(b, e))
	f.spin(c, 100)
	f.ok(f.d.EventRecord(e, c)) // does not change what b waits for
	f.sync(b)
	f.query(c, false)
	f.ok(f.d.StreamWait(b, e))
	f.query(b, false)
	f.sync(b)
	f.query(c, true)
}

func testEventDestroyPending(f *fixture) {
	a, b := f.stream(), f.stream()
	e, err := f.d.EventCreate(f.th, false)
	f.ok(err)
	f.spin(a, 50)
	f.ok(f.d.EventRecord(e, a))
	f.ok(f.d.StreamWait(b, e))
	f.ok(f.d.EventDestroy(f.th, e))
	f.query(b, false)
	f.sync(b)
	f.query(a, true)
}

func testElapsed(f *fixture) {
	s, a, b, c := f.stream(), f.event(true), f.event(true), f.event(true)
	f.spin(s, 1) // the first launch of a kernel may include loading it
	f.ok(f.d.EventRecord(a, s))
	f.spin(s, 20)
	f.ok(f.d.EventRecord(b, s))
	f.spin(s, 1)
	f.ok(f.d.EventRecord(c, s))
	f.sync(s)
	ab, err := f.d.EventElapsed(f.th, a, b)
	f.ok(err)
	// A GPU below its peak clock takes longer for the same cycles.
	if ab < 15 || ab > 400 {
		f.Errorf("a spin of 20 ms took %v ms by its events", ab)
	}
	bc, err := f.d.EventElapsed(f.th, b, c)
	f.ok(err)
	if bc <= 0 || bc >= ab {
		f.Errorf("a spin of 1 ms took %v ms, one of 20 ms %v ms", bc, ab)
	}
	ba, err := f.d.EventElapsed(f.th, b, a)
	f.ok(err)
	if ba > -15 {
		f.Errorf("elapsed time backwards is %v ms, want a negative time", ba)
	}
}

func testElapsedErrors(f *fixture) {
	s, timed, plain, never := f.stream(), f.event(true), f.event(false), f.event(true)
	f.ok(f.d.EventRecord(timed, s))
	f.ok(f.d.EventRecord(plain, s))
	f.sync(s)
	_, err := f.d.EventElapsed(f.th, timed, plain)
	f.code(err, "EventElapsed", driver.InvalidHandle)
	_, err = f.d.EventElapsed(f.th, timed, never)
	f.code(err, "EventElapsed", driver.InvalidHandle)
	_, err = f.d.EventElapsed(f.th, never, timed)
	f.code(err, "EventElapsed", driver.InvalidHandle)
}

func testElapsedNotReady(f *fixture) {
	s, a, b := f.stream(), f.event(true), f.event(true)
	f.ok(f.d.EventRecord(a, s))
	f.spin(s, 50)
	f.ok(f.d.EventRecord(b, s))
	_, err := f.d.EventElapsed(f.th, a, b)
	f.code(err, "EventElapsed", driver.NotReady)
	f.sync(s)
	_, err = f.d.EventElapsed(f.th, a, b)
	f.ok(err)
}

func testEventSyncThread(f *fixture) {
	s, e := f.stream(), f.event(false)
	f.spin(s, 20)
	f.ok(f.d.EventRecord(e, s))
	f.onThread(func(t driver.Thread) {
		if err := f.d.EventSynchronize(t, e); err != nil {
			f.Error(err)
		}
	})
	f.queryEvent(e, true)
}
