package core

import (
	"errors"
	"time"

	"tenon.dev/fault"
)

// errExecClosed is the error of operations on a fork that was closed.
var errExecClosed = fault.New(fault.Closed, "the Exec was closed; use one that is open, or Fork another one")

// Close ends x's session. On a fork it waits for the work of x's stream; later operations on the fork fail with an error of kind Closed,
// while the Exec that it was forked from, its other forks and all tensors stay usable. On an Exec that Open returned, it closes the device:
// it waits for all work and releases it, and the device's tensors are lost. Other goroutines may be using the device meanwhile: their
// operations under way finish, but later ones, and captures under way, fail with an error of kind Closed. The processor stays open,
// and Close returns what its memory checks found and no other call has returned yet. Closing twice does nothing.
func (x *Exec) Close() error {
	if !x.s.fork {
		d := x.Device()
		return errors.Join(d.RunDeferred("Close", false), d.Close())
	}
	if x.s.closed.Swap(true) {
		return nil
	}
	err := x.m.stream.Synchronize()
	if ended := x.s.detachAlone(); err == nil {
		err = ended
	}
	if fault.KindOf(err) == fault.Closed {
		return nil // the device went before
	}
	return err
}

// detachAlone runs detach inside the session's gate, because other sessions run the calls that this one deferred. After patience it no
// longer waits for a call that stays inside, such as one whose observer closes the Exec.
func (s *session) detachAlone() error {
	g, began := &s.gate, time.Now()
	for i := 0; g.torn.Load() == nil; i++ {
		if g.free() {
			defer g.open()
			break
		}
		if !g.lent.Load() && time.Since(began) > patience {
			break
		}
		pause(i)
	}
	return s.detach()
}

// usable refuses op on an Exec that was closed, or whose device was.
func (x *Exec) usable(op string) {
	err, d := x.s.open(), x.m.stream.Device()
	if err == nil && d.Closing() {
		err = d.Lost()
	}
	x.check(op, err)
}

// open returns the error of a session that was closed.
func (s *session) open() error {
	if s.closed.Load() {
		return errExecClosed
	}
	return nil
}
