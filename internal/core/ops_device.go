package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// rowTo copies its input, which is on another device and has no gaps, in its memory order; i[0] is 1 for a copy that nobody waits for, and
// i[1] is 1 if it goes to page-locked memory of the processor.
var rowTo *row

func init() {
	rowTo = define(row{Name: "To", takes: "t;; async pinned options", Torch: "to", flags: flagForeign | flagWaits, run: runTo,
		infer: func(f *frame) {
			t := f.in[0]
			if f.i[1] == 1 {
				f.lockedOut(0, t.dt, t.shape, t.stride)
				return
			}
			f.newOut(0, t.dt, t.shape, t.stride)
		}})
}

func init() {
	rowTo.back = func(b *back) {
		home := b.x.On(b.n.opt.(ofDevice).DefaultStream())
		b.set(0, home.To(b.grad(0), ToOpt{}))
	}
}

func runTo(f *frame) error {
	t, out := f.in[0], f.out[0]
	if err := f.x.s.capture.refuse("To"); err != nil {
		return err
	}
	n := out.st.bytes
	if n == 0 {
		return nil
	}
	to, from, dst, src := f.x.m.stream, t.st.dev.DefaultStream(), driver.Ptr(out.ptr()), driver.Ptr(t.ptr())
	if out.st.locked() != nil {
		return f.reading(t, from, func() error { return out.download(from, src, out.hostBytes(n)) })
	}
	if b := t.hostBytes(n); b != nil && !to.Device().Host {
		return t.upload(to, dst, b, f.i[0] == 1)
	}
	if err := t.st.arrived(); err != nil {
		return err
	}
	if to.Device().Peer(from.Device()) {
		return f.readPeer(t, from, func() error { return rt.CopyPeer(to, dst, from, src, n) })
	}
	return f.reading(t, from, func() error { return rt.Transfer(to, dst, from, src, n) })
}

// readPeer does a copy on the frame's stream that reads t, a tensor of a peer, in order with the work of stream from. It holds the turns of
// both streams, so that neither device is closed before it knows of the copy, and nobody sees the result's stream without it.
func (f *frame) readPeer(t *Tensor, from *rt.Stream, do func() error) error {
	if err := f.x.s.apart("a tensor cannot be copied to another device"); err != nil {
		return err
	}
	f.release()
	to := f.x.m.stream
	seqs, err := beginBoth(f.row.id, to, from)
	if err != nil {
		return err
	}
	defer to.Issued(seqs[0])
	defer from.Issued(seqs[1])
	if f.x.m.manual {
		return do()
	}
	if err := t.st.beforeRead(from); err != nil {
		return err
	}
	f.out[0].st.writer.Store(pack(to.ID(), seqs[0]))
	t.st.didRead(from, seqs[1])
	return do()
}

// beginBoth takes the turns of two streams, outside of captures, and returns the operation's number on each.
func beginBoth(op rt.OpID, streams ...*rt.Stream) (seqs [2]uint64, err error) {
	turnsMu.Lock()
	defer turnsMu.Unlock()
	for i, st := range streams {
		if seqs[i], err = st.Begin(op, nil); err != nil {
			for j := range i {
				streams[j].Issued(seqs[j])
			}
			return seqs, err
		}
	}
	return seqs, nil
}

// ToOpt are the options of To.
type ToOpt struct {
	// NonBlocking does not wait for a copy from a GPU to the processor, whose result is then pinned, nor for a copy to a GPU from a pinned
	// tensor: work that uses the result, or overwrites a pinned source, waits for the copy.
	NonBlocking bool
}

// To returns t if it is on x's device, else a copy there, in t's memory order if that has no gaps. A copy between two GPUs, or two devices
// of one simulated machine, is work of x's stream that nobody waits for; between other pairs of devices the bytes go through host memory,
// and To waits for them. It cannot be captured.
func (x *Exec) To(t *Tensor, opt ToOpt) *Tensor {
	switch {
	case t.closed.Load():
		x.fail("To", fault.Closed, nil, "the tensor %s", t.whyClosed())
	case t.st.dev == x.m.stream.Device():
		return t
	}
	return x.composite("To", func(x *Exec) *Tensor {
		if !infer.Dense(t.shape, t.stride) {
			t = x.On(t.st.dev.DefaultStream()).copyAs(t, t.dt, true)
		}
		f := x.op(rowTo, t)
		f.opt = ofDevice{t.st.dev}
		if opt.NonBlocking {
			f.i[0] = 1
			if x.m.stream.Device().Host {
				f.i[1] = 1
			}
		}
		return f.call1()
	})
}

type ofDevice struct{ *rt.Device }

func (ofDevice) param() {}
