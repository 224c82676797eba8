package core

import (
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// rowTo copies its input, which lies on another device, without gaps, in its memory order; i[0] is 1 for a copy that nobody waits for.
var rowTo *row

func init() {
	rowTo = define(row{Name: "To", Torch: "to", flags: flagForeign, run: runTo, meta: func(f *frame) {
		t := f.in[0]
		f.newOut(0, t.dt, t.shape, t.stride)
		f.opt = t.st.dev
	}})
}

func init() {
	rowTo.back = func(b *back) {
		home := b.x.On(b.n.opt.(*rt.Device).DefaultStream())
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
	from := t.st.dev.DefaultStream()
	seq := from.Next()
	from.Began(opRead, seq)
	if !f.x.m.manual {
		if err := t.st.read(from, seq); err != nil {
			return err
		}
	}
	a, err := rt.Transfer(f.x.m.stream, driver.Ptr(out.ptr()), from, driver.Ptr(t.ptr()), n, f.i[0] == 1)
	from.Issued(seq)
	if a != nil {
		out.st.arrival.Store(a)
	}
	return err
}

// ToOpt are the options of To.
type ToOpt struct {
	// NonBlocking does not wait for a copy between the processor and a GPU: work that uses the result waits for it, by itself.
	NonBlocking bool
}

// To returns t if it is on x's device, else a copy there, in t's memory order where that has no gaps. Copies between two GPUs go through host
// memory and are waited for. It cannot be captured.
func (x *Exec) To(t *Tensor, opt ToOpt) *Tensor {
	switch {
	case t.closed.Load():
		x.fail("To", fault.Closed, nil, "the tensor %s was closed", describe(t))
	case t.st.dev == x.m.stream.Device:
		return t
	}
	return x.composite("To", func(x *Exec) *Tensor {
		if !dense(t.shape, t.stride) {
			t = x.On(t.st.dev.DefaultStream()).copyAs(t, t.dt, true)
		}
		f := x.op(rowTo, t)
		if opt.NonBlocking {
			f.i[0] = 1
		}
		return f.call1()
	})
}
