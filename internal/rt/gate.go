package rt

import (
	"math"
	"sync/atomic"

	"tenon.dev/internal/driver"
)

// A device may be closed while others work. Close first refuses new work: it takes the turn of every stream, and so waits for the operation
// that has it, and ends the captures under way. Then it shuts the gate, which all other driver calls pass, and waits for those under way.
// So no driver call reaches a device that is gone, and later callers get the error that the device was closed.

// gate counts the driver calls under way that are made without a stream's turn.
type gate struct {
	of *Device
	// calls is the number under way, plus gateShut once the gate is shut.
	calls atomic.Int64
	empty chan struct{} // gets a value when the last of them leaves a gate that is shut
}

const gateShut = math.MinInt64 / 2

func newGate() gate { return gate{empty: make(chan struct{}, 1)} }

// enter lets a call in; leave lets it out. On error the device is gone.
func (g *gate) enter() error {
	if g.calls.Add(1) > 0 {
		return nil
	}
	g.leave()
	return g.of.errClosed()
}

func (g *gate) leave() {
	if g.calls.Add(-1) == gateShut {
		select {
		case g.empty <- struct{}{}:
		default:
		}
	}
}

// shut lets nobody in from now on, and waits until all are out.
func (g *gate) shut() {
	for n := g.calls.Add(gateShut); n != gateShut; n = g.calls.Load() {
		<-g.empty
	}
}

// enter returns the right to call the driver, until leave. On error the device is gone.
func (d *Device) enter() (driver.Thread, error) {
	if err := d.gate.enter(); err != nil {
		return nil, err
	}
	return d.dev.Enter(), nil
}

func (d *Device) leave(t driver.Thread) {
	t.Leave()
	d.gate.leave()
}

// refuseWork makes the streams refuse new work and lets no new stream be made. It waits for operations under way and ends captures under
// way.
func (d *Device) refuseWork() {
	d.mu.Lock()
	d.closing.Store(true)
	d.mu.Unlock()
	for s := range d.allStreams {
		s.close()
	}
	d.capturesMu.Lock()
	captures := append([]*Capture(nil), d.captures...)
	d.capturesMu.Unlock()
	t := d.dev.Enter()
	defer t.Leave()
	for _, c := range captures {
		c.drop(t)
	}
}
