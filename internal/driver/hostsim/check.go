package hostsim

import (
	"errors"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
)

// The hooks of the memory checker. Without a checker each does nothing.

// ordering returns s's place in the order of streams. The inline device has a single order, in which its calls run.
func (s *stream) ordering() *check.Stream {
	if s.dev.m.inline {
		s = s.dev.legacy
	}
	if s.order == nil {
		s.order = s.dev.m.check.Stream()
		s.dev.ordered = append(s.dev.ordered, s)
	}
	return s.order
}

// align orders the next work on s after the work that the rules of the legacy stream require; mu is held.
func (s *stream) align() *check.Stream {
	o := s.ordering()
	switch d := s.dev; {
	case d.m.inline:
	case s.legacy:
		for _, b := range d.ordered {
			if b.blocking {
				o.Wait(b.order.Mark())
			}
		}
	case s.blocking && d.legacy.order != nil:
		o.Wait(d.legacy.order.Mark())
	}
	return o
}

// note makes o a task of s; mu is held.
func (s *stream) note(o *op) {
	if s.dev.m.check == nil {
		return
	}
	name := opNames[o.kind]
	if o.kind == opKernel {
		name = o.fn.name
	}
	order := s.align()
	if o.exec != nil { // the launches of one executable run one after the other
		order.Wait(o.exec.point)
	}
	o.task = order.Enqueue(name)
	if o.exec != nil {
		o.exec.point = order.Mark()
	}
}

// mark returns the point after all earlier work on s; mu is held.
func (s *stream) mark() *check.Point {
	if s.dev.m.check == nil {
		return nil
	}
	return s.align().Mark()
}

// follow orders later work of s after p; mu is held.
func (s *stream) follow(p *check.Point) {
	if s.dev.m.check != nil {
		s.ordering().Wait(p)
	}
}

// learn records that the host knows that w is complete; mu is held.
func (m *machine) learn(w target) {
	switch {
	case m.check == nil:
	case w.rec != nil:
		m.check.Sync(w.rec.point)
	case w.s != nil:
		m.check.Sync(w.s.mark())
	default:
		for _, s := range w.dev.ordered {
			m.check.Sync(s.order.Mark())
		}
	}
}

// watch reports the memory accesses of o, except those of a kernel, which reports its own.
func (s *stream) watch(o *op) {
	if o.task != nil { // otherwise it is a graph's node, and the task is the graph's
		s.task = o.task
	} else if o.site != nil {
		s.task = s.task.At(o.site)
	}
	c, dst, src := s.dev.m.check, uint64(o.dst), uint64(o.src)
	switch o.kind {
	case opCopyDtoD, opCopyPeer:
		c.Copy(s.task, dst, src, o.n)
	case opCopyHtoD:
		c.Fill(s.task, dst, o.n)
	case opCopyDtoH:
		c.Read(s.task, src, o.n)
	case opMemset:
		c.Fill(s.task, dst, o.n*uint64(o.width))
	case opMemAlloc:
		c.AllocAsync(s.task, dst, o.n, o.site)
	case opMemFree:
		c.FreeAsync(s.task, dst)
	}
}

// holds reports whether n bytes at addr lie in one allocation or in page-locked memory.
func (m *memory) holds(addr, n uint64) bool { return m.bytes(driver.Ptr(addr), n) != nil }

// watched makes log's checker watch the machine. It is not told about page-locked memory.
func (m *machine) watched(log *check.Log) {
	m.check = check.New(log, func(addr, n uint64) bool {
		b, base, ok := m.host.resolve(addr)
		return ok && n <= uint64(len(b))-(addr-base)
	})
}

// born reports memory that is allocated now, in the order of s; mu is held.
func (s *stream) born(addr, n uint64) {
	if c := s.dev.m.check; c != nil {
		c.AllocAsync(s.align().Enqueue(opNames[opMemAlloc]), addr, n, nil)
	}
}

// site returns the source location of a captured call, for a checker.
func (m *machine) site() *check.Site {
	if m.check == nil {
		return nil
	}
	return check.Here()
}

// poolFresh returns n bytes at addresses that no other allocation had, since a checker identifies memory by its address; mu is held.
func (d *device) poolFresh(n uint64) (uint64, driver.Code) {
	d.trim(0)
	code := d.hold(n)
	if code == driver.OutOfMemory {
		d.m.await(target{dev: d, seq: d.m.seq})
		d.trim(0)
		code = d.hold(n)
	}
	if code != driver.Success {
		return 0, code
	}
	c := d.pool.chunks[len(d.pool.chunks)-1]
	c.free = nil
	return c.base, code
}

// stray refuses a call on n bytes at p that do not lie in one allocation, and unlocks mu.
func (d *device) stray(call string, write bool, p driver.Ptr, n uint64) error {
	if d.m.check != nil {
		d.m.check.Refused(call, write, uint64(p), n)
	}
	return d.refuse(call, driver.InvalidValue, "not within one allocation")
}

// forget reports that the device's memory is gone, because the device was closed or lost to a fault.
func (d *device) forget(lost bool) {
	if d.m.check != nil {
		d.m.check.Close(func(addr uint64) bool { return d.mem.holds(addr, 1) }, lost)
	}
}

// refuseModule reports a barrier that not all threads reach, which the verifier found.
func (d *device) refuseModule(err error) {
	f, ok := errors.AsType[*fault.Error](err)
	if d.m.check == nil || !ok || !strings.Contains(f.Msg, "divergent flow") && !strings.Contains(f.Msg, "only some threads take") {
		return
	}
	if name, why, ok := strings.Cut(strings.TrimPrefix(f.Msg, "kernel "), ": "); ok {
		d.m.check.Divergent(name, f.File, f.Line, why)
	}
}
