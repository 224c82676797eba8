package hostsim

import (
	"math/rand/v2"
	"sync"
	"time"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
)

// machine is what the devices of one driver share: the clock, the schedule, events, captures and callbacks.
//
// One goroutine at a time runs queued work (running is the number of the operation) and unlocks mu meanwhile, so that others can queue
// more. Waiters sleep on changed, which every completed operation signals. In virtual time the waiters themselves run the work; in real
// time the drain goroutine does.
type machine struct {
	opts     Options
	inline   bool
	began    time.Time
	host     regions
	check    *check.Checker // nil unless the environment asks for it; setting it up may fail
	checkErr error
	// mapped is held for reading by work that accesses memory and for writing while memory is unmapped. So a program that frees memory in
	// use gets a fault of the device, not of the process.
	mapped sync.RWMutex

	mu        sync.Mutex
	devices   []*device // the open devices, by number; to change it, hold the driver's mu too
	changed   sync.Cond
	running   uint64 // the number of the running operation, or 0
	now       int64  // virtual time in nanoseconds
	seq       uint64 // the number of the last queued operation
	policy    Policy
	rng       *rand.Rand
	turn      uint64    // counts served operations, for the interleaving policy
	active    []*stream // streams with queued work
	events    table[event]
	records   []*record // unused ones
	captures  []*capture
	captureID uint64
	callbacks map[driver.CallbackID]func()
	lastID    driver.CallbackID

	wake      chan struct{} // tells the drain goroutine of new work
	draining  bool          // whether the drain goroutine runs
	drainer   func()        // drain, made once so that starting it allocates nothing
	timer     *time.Timer   // the drain goroutine's
	unheard   int           // queued callbacks
	assistant *time.Timer   // calls assist while callbacks are queued, in virtual time
	served    uint64        // operations completed
	silent    uint64        // the value of served when assist last looked
}

// put makes dev the device with that number; nil removes it.
func (m *machine) put(ordinal int, dev *device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices[ordinal] = dev
}

// device returns the open device with that number, or nil; mu is held.
func (m *machine) device(ordinal int) *device {
	if ordinal < 0 || ordinal >= len(m.devices) {
		return nil
	}
	return m.devices[ordinal]
}

// clock returns the device time in nanoseconds; mu is held.
func (m *machine) clock() int64 {
	if m.opts.RealTime {
		return int64(time.Since(m.began))
	}
	return m.now
}

// cost returns ns in virtual time and 0 in real time, where work takes as long as it takes.
func (m *machine) cost(ns int64) int64 {
	if m.opts.RealTime {
		return 0
	}
	return ns
}

// cycles converts device time to cycles of the kernels' clock.
func (m *machine) cycles(ns int64) int64 {
	return int64(float64(ns) * (float64(m.opts.ClockKHz) / 1e6))
}

// target is what a host call waits for: all work queued up to seq on a stream or a device, or a record.
type target struct {
	dev *device
	s   *stream
	rec *record
	seq uint64
}

// done reports whether the work has run, and the device time at which it is complete; mu is held.
func (w *target) done(m *machine) (bool, int64) {
	switch {
	case w.rec != nil:
		return w.rec.done, w.rec.at
	case w.s != nil:
		return w.s.idleTo(w.seq), w.s.ready
	}
	for _, s := range m.active {
		if s.dev == w.dev && !s.idleTo(w.seq) {
			return false, 0
		}
	}
	return true, w.dev.latest
}

// await blocks until w is complete and records that the host knows it. mu is held before and after, and unlocked in between.
func (m *machine) await(w target) {
	m.settle(w)
	m.learn(w)
}

// settle is await for waits that a program must not rely on for order. mu is held before and after, and unlocked in between.
func (m *machine) settle(w target) {
	for {
		done, at := w.done(m)
		switch {
		case done && !m.opts.RealTime:
			m.now = max(m.now, at)
			return
		case done:
			if wait := at - m.clock(); wait > 0 {
				m.mu.Unlock()
				time.Sleep(time.Duration(wait))
				m.mu.Lock()
			}
			return
		case m.opts.RealTime || m.running != 0 || !m.run(farFuture):
			m.changed.Wait()
		}
	}
}

// queryStep is how far a query that finds work pending advances virtual time. It is less than any operation takes, so that the first query
// after an operation is queued never finds it done.
const queryStep = 500

// poll reports whether w is complete. In virtual time each poll advances the clock a little, so that polling long enough is a way to wait.
func (m *machine) poll(w target) bool {
	done := m.query(w)
	if done {
		m.learn(w)
	}
	return done
}

func (m *machine) query(w target) bool {
	if done, at := w.done(m); done && at <= m.clock() {
		return true
	}
	if m.opts.RealTime {
		return false
	}
	m.now += queryStep
	m.runDue()
	done, at := w.done(m)
	return done && at <= m.now
}

// runDue runs the work that begins before the current time; mu is held.
func (m *machine) runDue() {
	for m.running == 0 && m.run(m.now) {
	}
}

// poke tells whoever runs work that there may be more; mu is held.
func (m *machine) poke() {
	m.changed.Broadcast()
	if !m.opts.RealTime || m.inline {
		return
	}
	if !m.draining {
		m.draining = true
		go m.drainer()
		return
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// drain runs work in real time until the queues are empty.
func (m *machine) drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.active) > 0 {
		if m.run(m.clock() + 1) {
			continue
		}
		// The rest begins later, is held, or waits for a callback.
		pause := time.Hour
		if _, at, ok := m.choose(farFuture); ok {
			pause = time.Duration(max(at-m.clock(), 0))
		}
		m.mu.Unlock()
		m.timer.Reset(pause)
		select {
		case <-m.timer.C:
		case <-m.wake:
		}
		m.timer.Stop()
		m.mu.Lock()
	}
	m.draining = false
}

// patience is how long the host may be inactive before the device proceeds to a queued callback by itself in virtual time.
const patience = 10 * time.Millisecond

// expect records that n callbacks were queued; mu is held.
func (m *machine) expect(n int) {
	if m.unheard == 0 && n > 0 && !m.opts.RealTime {
		m.silent = m.served
		m.assistant.Reset(patience)
	}
	m.unheard += n
}

// heard records that n callbacks ran or were dropped; mu is held.
func (m *machine) heard(n int) {
	if m.unheard -= n; m.unheard == 0 {
		m.assistant.Stop()
	}
}

// assist runs queued work up to the next callback if the host was inactive for the duration of patience.
func (m *machine) assist() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unheard == 0 {
		return
	}
	if m.served == m.silent {
		for n := m.unheard; m.unheard == n && m.running == 0 && m.run(farFuture); {
		}
	}
	m.silent = m.served
	m.assistant.Reset(patience)
}
