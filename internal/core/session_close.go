package core

import (
	"time"

	"tenon.dev/fault"
)

// errExecClosed is the error of what is done on a fork after its Close.
var errExecClosed = fault.New(fault.Closed, "the Exec was closed; use one that is open, or Fork another one")

// Close ends x's session. On a fork it waits for the work of x's stream: what is done on the fork from then on is an error of kind Closed,
// and the Exec that it came from, its other forks and all tensors go on. On an Exec that Open returned it closes the device: it waits for
// all work and releases it, and tensors of it are lost. Others may be using the device meanwhile, in other goroutines: work under way ends,
// what they do later is an error of kind Closed, with which captures under way fail too. The processor is never closed. Closing twice does
// nothing.
func (x *Exec) Close() error {
	d := x.Device()
	if !x.s.fork {
		if d.Host {
			return nil
		}
		return d.Close()
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

// detachAlone is detach in the session's gate, since other sessions run what this one put off. A call that stays inside for long, such as
// one whose observer closes the Exec, is not waited for.
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

// open returns the error of a session that was closed.
func (s *session) open() error {
	if s.closed.Load() {
		return errExecClosed
	}
	return nil
}
