package rt

import (
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
)

// acts does one of each frequent action.
func acts(t testing.TB, d *Device, e *Event) {
	t.Helper()
	s := d.DefaultStream()
	b, err := d.Alloc(512, alloc.Stream(s.handle))
	if err == nil {
		err = d.Free(b)
	}
	if err == nil {
		err = e.Record(s)
	}
	if err == nil {
		err = s.Wait(e)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTraceAllocatesNothing(t *testing.T) {
	d := openSim(t, func(d driver.Device) driver.Device { return null.New(d.Info().Image) })
	e := d.NewEvent(false)
	defer e.Close()
	untraced := testing.AllocsPerRun(200, func() { acts(t, d, e) })
	told := 0
	one, two := func(uint64) { told++ }, func(_, _ uint64) { told++ }
	remove := d.AddTrace(Trace{MemoryAllocated: one, MemoryFreed: one, EventRecorded: two, EventWaited: two})
	traced := testing.AllocsPerRun(200, func() { acts(t, d, e) })
	if told != 4*201 {
		t.Errorf("%d actions were told", told)
	}
	remove()
	told = 0
	if acts(t, d, e); told != 0 {
		t.Errorf("%d actions were told after the end", told)
	}
	if untraced+traced != 0 {
		t.Errorf("%v allocations, and %v where actions are told", untraced, traced)
	}
}

// Callbacks are added and removed while others act, and each sees every action between its registration and its removal.
func TestTraceAtAnyTime(t *testing.T) {
	d := openSim(t, nil)
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			e := d.NewEvent(false)
			defer e.Close()
			for {
				select {
				case <-stop:
					return
				default:
					acts(t, d, e)
				}
			}
		})
	}
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for range 100 {
				var made atomic.Int64
				own := d.NewEvent(false)
				remove := d.AddTrace(Trace{EventCreated: func(h uint64) {
					if h != 0 {
						made.Add(1)
					}
				}})
				if err := own.Record(d.DefaultStream()); err != nil {
					t.Error(err)
				}
				remove()
				if made.Load() == 0 {
					t.Error("an event was made and not told")
				}
				own.Close()
			}
		})
	}
	users.Wait()
	close(stop)
	others.Wait()
	if d.traces.Load() != nil {
		t.Error("callbacks are left")
	}
}
