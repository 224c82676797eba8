package rt

import (
	"errors"
	"math"
	"slices"
	"sort"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/driver"
)

// A device that recovers continues after a failed assertion, and later work may use elements that the failed kernel left undefined. So the
// call that learns of a failure records the operations after it, up to now, of its stream and of the streams that waited for it: what they
// wrote is spoilt. Work that is issued later detects this by its operands.

// spoilt is a range of a stream's operations: from a failure, or the first that waited for it, to the last before a call learned of the
// failure.
type spoilt struct {
	from, to uint64
	cause    *fault.Error
}

// run is a graph's run as an operation of a stream.
type run struct {
	stream int
	seq    uint64
}

// wait says that stream by, from its operation at on, comes after operation upTo of stream of.
type wait struct {
	by, of   int
	at, upTo uint64
}

// failures is what a device that recovers keeps to find the work after a failure.
type failures struct {
	mu sync.Mutex
	// sound is, for each stream, the operation up to which all failures have been reported.
	sound [MaxStreams]uint64
	waits []wait
}

// mostWaits is the number of waits at which the list is shortened.
const mostWaits = 256

// failed returns the error of a failed assertion that the device survived, which ask gets from the driver, and records what it spoils. If
// there is none, each stream is sound up to operation upTo, which the caller has waited for.
func (d *Device) failed(ask func() error, upTo func(s *Stream) uint64) error {
	if !d.info.Recovers {
		return nil
	}
	f := &d.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	err := ask()
	if err == nil {
		for s := range d.allStreams {
			f.sound[s.id] = max(f.sound[s.id], upTo(s))
		}
		return nil
	}
	cause := assertion(err)
	var e *driver.Error
	if errors.As(err, &e) {
		if o, ok := e.Origin.(Origin); ok {
			d.spoil(o, cause)
		}
	}
	return cause
}

// spoil records the operations after the failure of o; failures.mu is held.
func (d *Device) spoil(o Origin, cause *fault.Error) {
	f := &d.failures
	var from [MaxStreams]uint64 // by stream, 0 for none
	st, seq, c := o.Issued()
	if c == nil {
		from[st.id] = seq
	} else {
		for _, r := range c.runs {
			if r.seq > f.sound[r.stream] && (from[r.stream] == 0 || r.seq < from[r.stream]) {
				from[r.stream] = r.seq
			}
		}
	}
	for more := true; more; {
		more = false
		for _, w := range f.waits {
			if from[w.of] != 0 && w.upTo >= from[w.of] && (from[w.by] == 0 || w.at < from[w.by]) {
				from[w.by], more = w.at, true
			}
		}
	}
	all := [MaxStreams][]spoilt{}
	if old := d.spoils.Load(); old != nil {
		all = *old
	}
	for id, at := range from {
		if at == 0 {
			continue
		}
		if n := len(all[id]); n > 0 {
			at = max(at, all[id][n-1].to+1)
		}
		if to := d.StreamByID(id).latest(); at <= to {
			all[id] = append(slices.Clip(all[id]), spoilt{at, to, cause})
		}
	}
	d.spoils.Store(&all)
}

// latest returns the number of the latest operation, including one that is being issued.
func (s *Stream) latest() uint64 {
	v := s.turn.Load()
	if v&turnBusy != 0 {
		return v>>turnBits + 1
	}
	return v >> turnBits
}

// Spoils reports whether anything on the device is spoilt.
func (d *Device) Spoils() bool { return d.spoils.Load() != nil }

// Spoilt returns a failed assertion because of which the output of operation seq of the stream with number id may be wrong, or nil.
func (d *Device) Spoilt(id int, seq uint64) *fault.Error {
	all := d.spoils.Load()
	if all == nil {
		return nil
	}
	list := all[id]
	i := sort.Search(len(list), func(i int) bool { return list[i].to >= seq })
	if i == len(list) || list[i].from > seq {
		return nil
	}
	return list[i].cause
}

// SpoiltError says that what was written after the failed assertion cause, and may be wrong; it is nil if cause is nil.
func SpoiltError(cause *fault.Error, what string) error {
	if cause == nil {
		return nil
	}
	return fault.Wrap(fault.Invalid, cause, "%s was written after a failed assertion, and may be wrong; write all of it again, or make it "+
		"anew", what)
}

// Spoilt is Device.Spoilt, as an error, for the operation during which e was recorded.
func (e *Event) Spoilt() error {
	h, s, seq, err := e.point()
	if h == 0 || err != nil {
		return err
	}
	return SpoiltError(s.dev.Spoilt(s.id, seq+1), "a tensor")
}

// inherits notes that later work of s comes after operation upTo of the stream with number of.
func (s *Stream) inherits(of int, upTo uint64) {
	if raise(&s.waited[of], upTo); !s.dev.info.Recovers {
		return
	}
	f := &s.dev.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waits) >= mostWaits {
		f.waits = fewer(f.waits, &f.sound)
	}
	f.waits = append(f.waits, wait{by: s.id, of: of, at: s.Seq() + 1, upTo: upTo})
}

// fewer drops the waits for work that is known to be sound. If many remain, it merges those of each pair of streams into one, which covers
// more than they did.
func fewer(waits []wait, sound *[MaxStreams]uint64) []wait {
	waits = slices.DeleteFunc(waits, func(w wait) bool { return w.upTo <= sound[w.of] })
	if len(waits) < mostWaits/2 {
		return waits
	}
	var pairs [MaxStreams][MaxStreams]wait
	for _, w := range waits {
		p := &pairs[w.by][w.of]
		if p.upTo == 0 {
			*p = wait{by: w.by, of: w.of, at: math.MaxUint64}
		}
		p.at, p.upTo = min(p.at, w.at), max(p.upTo, w.upTo)
	}
	waits = waits[:0]
	for i := range pairs {
		for _, p := range pairs[i] {
			if p.upTo != 0 {
				waits = append(waits, p)
			}
		}
	}
	return waits
}

// ran notes a run of the graph as operation seq of s, on a device that recovers.
func (c *Capture) ran(s *Stream, seq uint64) {
	if !c.dev.info.Recovers {
		return
	}
	f := &c.dev.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	c.runs = append(slices.DeleteFunc(c.runs, func(r run) bool { return r.seq <= f.sound[r.stream] }), run{s.id, seq})
}
