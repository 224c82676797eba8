package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/rt"
)

// settled waits for the copies that fill and read the storage. Afterwards the host may write to it.
func (s *storage) settled() error {
	if s.locked() == nil {
		return nil
	}
	if err := s.arrived(); err != nil {
		return err
	}
	return s.locked().left()
}

// filledBefore orders later work of st, whose turn the caller has, after the copy that fills the storage, if one is under way. The host
// waits only if that copy is on another device.
func (s *storage) filledBefore(st *rt.Stream) error {
	if !s.arriving() {
		return nil
	}
	a := s.locked().arrival.Load()
	if a == nil {
		return nil
	}
	if a.Device() == st.Device() {
		if err := a.Spoilt(); err != nil {
			return err
		}
		return st.WaitInTurn(a)
	}
	return s.arrived()
}

// usedBefore is filledBefore for work that writes the storage, which must also come after copies that read it.
func (s *storage) usedBefore(st *rt.Stream) error {
	if err := s.filledBefore(st); err != nil {
		return err
	}
	s.locked().mu.Lock()
	for _, e := range s.locked().leaving {
		if e.Device() == st.Device() {
			if err := st.WaitInTurn(e); err != nil {
				s.locked().mu.Unlock()
				return err
			}
		}
	}
	s.locked().mu.Unlock()
	return nil
}

// hostBytes returns the n bytes at t's first element if they are in page-locked memory of the host, else nil.
func (t *Tensor) hostBytes(n int) []byte {
	if !t.st.dev.Host || n == 0 {
		return nil
	}
	if l := t.st.locked(); l != nil {
		at := int(t.ptr() - t.st.ptr)
		return l.memory.Bytes()[at : at+n]
	}
	if t.st.block == nil { // which has no memory yet
		return nil
	}
	b := t.st.dev.Driver().HostView(driver.Ptr(t.ptr()), uint64(n))
	if !rt.HostRegistered(b) {
		return nil
	}
	return b
}

// upload copies host bytes of t to address dst in to's order. It waits for the copy, unless async is true and something else keeps the
// memory until then.
func (t *Tensor) upload(to *rt.Stream, dst driver.Ptr, b []byte, async bool) error {
	if err := t.st.filledBefore(to); err != nil {
		return err
	}
	e, err := to.Upload(dst, b)
	if err != nil {
		return err
	}
	if l := t.st.locked(); l != nil && l.memory.Device() == to.Device() {
		if err := l.memory.Record(to); err != nil {
			return err
		}
		l.leaves(e)
		if !async {
			return e.Synchronize()
		}
		return nil
	}
	defer e.Close()
	return e.Synchronize()
}

// download copies from address src, in from's order, to b, the page-locked memory of t.
func (t *Tensor) download(from *rt.Stream, src driver.Ptr, b []byte) error {
	l := t.st.locked()
	if err := t.st.usedBefore(from); err != nil {
		return err
	}
	e, err := from.Download(b, src)
	if err != nil {
		return err
	}
	if l.memory.Device() != from.Device() {
		defer e.Close()
		return e.Synchronize()
	}
	if err := l.memory.Record(from); err != nil {
		return err
	}
	if old := l.arrival.Swap(e); old != nil {
		old.Close()
	}
	return nil
}

// lockedOut says that output i, of the processor, is in page-locked memory for the device of the attribute.
func (f *frame) lockedOut(i int, dt dtype.DType, shape, stride []int) {
	*f.spec(i) = spec{form: f.form(shape, stride), dt: dt, kind: outLocked}
}

func (f *frame) placeLocked(i int, sp *spec) {
	dev := f.opt.(ofDevice)
	n := &fresh{}
	t, s := &n.Tensor, &n.own
	t.dt, t.st, t.form = sp.dt, s, sp.form
	s.dev = f.x.m.stream.Device()
	s.bytes = t.extent * sp.dt.Size()
	if s.bytes > 0 {
		p, err := dev.AllocPinned(s.bytes)
		f.check(err)
		s.ptr = p.Addr()
		s.uncommon().locked = &lockedMemory{memory: p}
		live.Add(1)
	}
	f.setOut(i, t)
}

var rowPin, rowCopyAcross *row

func init() {
	// rowPin copies its input, of the processor, to page-locked memory for the device in opt, in the input's memory order if that has no
	// gaps.
	rowPin = define(row{Name: "PinMemory", takes: "t;; options", Torch: "pin_memory", run: runCopy, back: func(b *back) {
		b.set(0, b.grad(0))
	}, infer: func(f *frame) {
		f.lockedOut(0, f.in[0].dt, f.in[0].shape, f.layout(f.in[0].shape))
	}})
	// rowCopyAcross copies its input to the destination, of the same type, shape and strides and without gaps. One of them is in
	// page-locked memory of the processor; opt is the stream of the other's device.
	rowCopyAcross = define(row{Name: "CopyAsyncInto", takes: "src;; options", Torch: "copy_", flags: flagForeign | flagWaits | flagInto,
		run:   runCopyAcross,
		infer: func(f *frame) { f.newOut(0, f.dst[0].dt, f.dst[0].shape, nil) }})
}

// PinMemory returns t, a tensor of the processor, if it is in page-locked memory, else a copy that is, in t's memory order if that has no
// gaps. x's device, a GPU, copies from and to it while the host goes on. The device caches the memory, and must outlive it.
func (x *Exec) PinMemory(t *Tensor) *Tensor {
	dev := x.m.stream.Device()
	switch {
	case t.closed.Load():
		x.fail("PinMemory", fault.Closed, nil, "the tensor %s", t.whyClosed())
	case !t.st.dev.Host:
		x.fail("PinMemory", fault.Invalid, nil,
			"cannot pin %s of %s: only tensors of the processor can be pinned; copy it with x.Host().To", describe(t), t.st.dev)
	case dev.Host:
		x.fail("PinMemory", fault.Invalid, nil, "memory is pinned for a GPU; call PinMemory on an Exec of the GPU, not on the processor's")
	case t.IsPinned():
		return t
	}
	f := x.On(t.st.dev.DefaultStream()).op(rowPin, t)
	f.opt = ofDevice{dev}
	return f.call1()
}

// IsPinned reports whether the elements are in page-locked host memory.
func (t *Tensor) IsPinned() bool {
	return !t.closed.Load() && t.hostBytes(infer.Extent(t.shape, t.stride)*t.dt.Size()) != nil
}

// RegisterHost page-locks the memory of t, a tensor of the processor, in place, for x's device. The storage lives at least until
// UnregisterHost.
func (x *Exec) RegisterHost(t *Tensor) error {
	b, err := x.registrable(t)
	if err != nil {
		return err
	}
	if err := x.m.stream.Device().HostRegister(b); err != nil {
		return err
	}
	t.st.retain()
	return nil
}

// UnregisterHost undoes RegisterHost of t, or of another view of its storage. It waits for the device.
func (x *Exec) UnregisterHost(t *Tensor) error {
	b, err := x.registrable(t)
	if err != nil {
		return err
	}
	if err := x.m.stream.Device().HostUnregister(b); err != nil {
		return err
	}
	return t.st.release()
}

// registrable returns the bytes of t's storage.
func (x *Exec) registrable(t *Tensor) ([]byte, error) {
	switch {
	case t.closed.Load():
		return nil, fault.New(fault.Closed, "the tensor %s", t.whyClosed())
	case !t.st.dev.Host || x.m.stream.Device().Host:
		return nil, fault.New(fault.Invalid, "memory of the processor is registered for a GPU; the tensor is on %s and the Exec on %s",
			t.st.dev, x.m.stream.Device())
	case t.st.bytes == 0:
		return nil, fault.New(fault.Invalid, "the tensor %s has no memory to register", describe(t))
	}
	if err := x.s.force("RegisterHost"); err != nil {
		return nil, err
	}
	if err := x.s.barred(t, true); err != nil {
		return nil, err
	}
	return t.st.dev.Driver().HostView(driver.Ptr(t.st.ptr), uint64(t.st.bytes)), nil
}

// CopyAsyncInto is CopyInto between the processor and a GPU without waiting: it returns at once if the processor's tensor is pinned, and
// later work that uses or overwrites either tensor waits for the copy. The copy runs on x's stream or, if x is the processor's, on the
// GPU's default stream. It waits like CopyInto if the processor's tensor is not pinned or has gaps between its elements, or if the
// processor must convert it. It cannot be captured.
func (x *Exec) CopyAsyncInto(dst, src *Tensor) {
	if dst.st.dev == src.st.dev || !dst.st.dev.Host && !src.st.dev.Host {
		x.On(x.streamOf(dst)).CopyInto(dst, src)
		return
	}
	x.check("CopyAsyncInto", src.fits(dst))
	x.composite("CopyAsyncInto", func(x *Exec) *Tensor {
		to, from := x.On(x.streamOf(dst)), x.On(x.streamOf(src))
		if src.st.dev.Host {
			if to.direct(dst, src) {
				to.copyAcross(dst, src, to.m.stream)
			} else {
				to.CopyInto(dst, to.To(src, ToOpt{NonBlocking: true}))
			}
			return nil
		}
		s := src
		if dst.dt != s.dt || !infer.Same(dst.shape, s.shape) || !infer.Same(dst.stride, s.stride) {
			s = from.copyAs(from.Expand(s, dst.shape...), dst.dt, true)
		}
		if to.direct(dst, s) {
			to.copyAcross(dst, s, from.m.stream)
		} else {
			to.CopyInto(dst, to.To(s, ToOpt{}))
		}
		return nil
	})
}

// streamOf returns x's stream if it belongs to t's device, else that device's default stream.
func (x *Exec) streamOf(t *Tensor) *rt.Stream {
	if x.m.stream.Device() == t.st.dev {
		return x.m.stream
	}
	return t.st.dev.DefaultStream()
}

// direct reports whether one copy of bytes is enough, without conversion and without a gradient.
func (x *Exec) direct(dst, src *Tensor) bool {
	host := dst
	if src.st.dev.Host {
		host = src
	}
	return host.st.locked() != nil && x.sameBytes(dst, src)
}

// sameBytes reports whether copying src's bytes to dst copies its elements, of which there are some, and needs no derivative.
func (x *Exec) sameBytes(dst, src *Tensor) bool {
	return dst.dt == src.dt && infer.Same(dst.shape, src.shape) && infer.Same(dst.stride, src.stride) &&
		infer.Dense(dst.shape, dst.stride) &&
		dst.Numel() > 0 && (x.m.noGrad || !dst.RequiresGrad() && !src.RequiresGrad())
}

func (x *Exec) copyAcross(dst, src *Tensor, gpu *rt.Stream) {
	f := x.op(rowCopyAcross, src)
	f.opt = onStream{gpu}
	f.call1Into(dst)
}

func runCopyAcross(f *frame) error {
	src, dst, gpu := f.in[0], f.out[0], f.opt.(onStream).Stream
	if err := f.x.s.capture.refuse("CopyAsyncInto"); err != nil {
		return err
	}
	n := dst.Numel() * dst.dt.Size()
	if src.st.dev.Host {
		return src.upload(gpu, driver.Ptr(dst.ptr()), src.hostBytes(n), true)
	}
	return f.reading(src, gpu, func() error { return dst.download(gpu, driver.Ptr(src.ptr()), dst.hostBytes(n)) })
}

// reading does a copy that reads t on stream from of its device, in order with other work on t.
func (f *frame) reading(t *Tensor, from *rt.Stream, do func() error) error {
	if err := f.x.s.apart("a tensor cannot be copied from the device"); err != nil {
		return err
	}
	// a call has one stream's turn at a time; the copy to its own stream is waited for, or goes to memory that nobody knows yet
	f.release()
	seq, err := from.Begin(opRead, nil)
	if err != nil {
		return err
	}
	defer from.Issued(seq)
	if !f.x.m.manual {
		if err := t.spoilt(); err != nil {
			return err
		}
		if err := t.st.beforeRead(from); err != nil {
			return err
		}
		defer t.st.didRead(from, seq)
	}
	return do()
}

type onStream struct{ *rt.Stream }

func (onStream) param() {}
