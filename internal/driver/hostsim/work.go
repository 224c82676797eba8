package hostsim

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/vexec"
)

// opKind says what an operation does.
type opKind uint8

const (
	opKernel opKind = iota
	opCopyDtoD
	opCopyPeer
	opCopyHtoD
	opCopyDtoH
	opMemset
	opCallback
	opRecord
	opWait
	opGraph
	opMemAlloc
	opMemFree
)

var opNames = [...]string{"kernel", "CopyDtoD", "CopyPeer", "CopyHtoD", "CopyDtoH", "Memset", "Callback", "EventRecord",
	"StreamWait", "GraphLaunch",
	"MemAllocAsync", "MemFreeAsync"}

// op is one operation of a stream or of a graph node.
type op struct {
	kind        opKind
	width       uint8  // of a memset
	value       uint32 // of a memset
	shared      uint32
	grid, block [3]uint32
	fn          *function
	args        []byte
	origin      any // of a kernel's launch
	dst, src    driver.Ptr
	peer        *device // of a CopyPeer: the device that src is on
	n           uint64  // bytes of a copy, elements of a memset
	host        []byte  // the host's side of a copy
	callback    driver.CallbackID
	rec         *record
	event       *event // the event that a graph's node records
	exec        *graphExec
	freed       *pendingFree // what a MemFreeAsync frees; nil in a graph
	site        *check.Site  // of a captured operation, for a checker
	ticket      uint64       // the number of this launch of exec
	task        *check.Task  // for a checker; nil without one, and in nodes of graphs
	seq         uint64       // its number on the machine
	issued      int64        // when it was queued, on the device clock
}

// Durations of operations on the virtual device clock, in nanoseconds, with the orders of magnitude of an H200.
const (
	launchCost   = 2000
	copyCost     = 1500
	callbackCost = 5000
	poolCost     = 1000
	hostRate     = 50   // bytes per nanosecond between host and device
	peerRate     = 400  // bytes per nanosecond between devices
	deviceRate   = 4000 // bytes per nanosecond on the device
)

// admit is lock for a call that queues work on s: it looks up the stream and applies the rules of captures. mu is held on success.
func (d *device) admit(call string, s driver.Stream) (*stream, error) {
	if err := d.lock(call); err != nil {
		return nil, err
	}
	st := d.stream(s)
	code := driver.Success
	switch {
	case st == nil:
		code = driver.InvalidHandle
	case st.legacy && !d.entered():
		code = driver.InvalidContext
	case st.cap != nil:
		if st.cap.invalid {
			code = driver.StreamCaptureInvalidated
		}
	case st.legacy && d.m.implicit(d, true):
		code = driver.StreamCaptureImplicit
	}
	if code != driver.Success {
		d.m.mu.Unlock()
		return nil, fail(call, code, "")
	}
	return st, nil
}

// refuse unlocks mu and returns an error.
func (d *device) refuse(call string, code driver.Code, detail string) error {
	d.m.mu.Unlock()
	return fail(call, code, detail)
}

// submit captures, runs or queues o on s, and unlocks mu.
func (d *device) submit(call string, s *stream, o *op) error {
	m := d.m
	switch {
	case s.cap != nil:
		o.site = m.site()
		s.cap.add(s, o)
	case m.inline:
		s.note(o)
		m.mu.Unlock()
		s.inline.Lock()
		defer s.inline.Unlock()
		if _, f := s.perform(o, 0); f != nil {
			f.Call = call
			return f
		}
		return nil
	default:
		s.note(o)
		s.push(o)
	}
	m.mu.Unlock()
	return nil
}

// Launch queues a kernel.
func (d *device) Launch(l *driver.Launch) error {
	const call = "Launch"
	s, err := d.admit(call, l.Stream)
	if err != nil {
		return err
	}
	o, err := d.kernel(call, l)
	if err != nil {
		return err
	}
	return d.submit(call, s, &o)
}

// kernel returns a launch as an operation. mu is held, and unlocked on error.
func (d *device) kernel(call string, l *driver.Launch) (op, error) {
	fn := d.funcs.get(uintptr(l.Func))
	if fn == nil {
		return op{}, d.refuse(call, driver.InvalidHandle, "no such function")
	}
	if why := d.checkLaunch(fn, l); why != "" {
		return op{}, d.refuse(call, driver.InvalidValue, why)
	}
	if threads := int(l.Block[0] * l.Block[1] * l.Block[2]); threads > fn.info.MaxThreads {
		return op{}, d.refuse(call, driver.LaunchOutOfResources, "the block has more threads than the kernel's registers allow")
	}
	return op{kind: opKernel, fn: fn, grid: l.Grid, block: l.Block, shared: l.Shared, args: l.Args, origin: l.Origin}, nil
}

// checkLaunch returns what is wrong with a launch's shape, or "".
func (d *device) checkLaunch(fn *function, l *driver.Launch) string {
	g, b := &l.Grid, &l.Block
	switch {
	case g[0] == 0 || g[1] == 0 || g[2] == 0 || g[0] > 1<<31-1 || g[1] > 65535 || g[2] > 65535:
		return "the grid must have 1 to 2147483647, 65535 and 65535 blocks"
	case b[0] == 0 || b[1] == 0 || b[2] == 0 || b[0] > 1024 || b[1] > 1024 || b[2] > 64 ||
		uint64(b[0])*uint64(b[1])*uint64(b[2]) > uint64(d.info.MaxThreadsPerBlock):
		return "the block must have 1 to 1024, 1024 and 64 threads, and no more than 1024 in all"
	case int(l.Shared)+fn.info.SharedBytes > max(d.info.SharedPerBlock, fn.maxShared+fn.info.SharedBytes):
		return "more shared memory than a block may use; SetMaxShared allows more"
	}
	return ""
}

// CopyDtoD copies n bytes on the device.
func (d *device) CopyDtoD(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	const call = "CopyDtoD"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	if n == 0 {
		d.m.mu.Unlock()
		return nil
	}
	o, err := d.moving(call, dst, src, n)
	if err != nil {
		return err
	}
	return d.submit(call, st, &o)
}

// moving returns a copy of n > 0 bytes on the device as an operation. mu is held, and unlocked on error.
func (d *device) moving(call string, dst, src driver.Ptr, n uint64) (op, error) {
	switch {
	case d.mem.bytes(dst, n) == nil:
		return op{}, d.stray(call, true, dst, n)
	case d.mem.bytes(src, n) == nil:
		return op{}, d.stray(call, false, src, n)
	}
	return op{kind: opCopyDtoD, dst: dst, src: src, n: n}, nil
}

// CopyPeer copies n bytes of another device of the machine, whose memory must live until s gets there.
func (d *device) CopyPeer(dst driver.Ptr, from int, src driver.Ptr, n uint64, s driver.Stream) error {
	const call = "CopyPeer"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	peer := d.m.device(from)
	switch {
	case peer == nil:
		return d.refuse(call, driver.InvalidDevice, fmt.Sprintf("device %d is not open", from))
	case peer.fault != nil:
		return d.refuse(call, driver.InvalidContext, fmt.Sprintf("device %d was lost to a fault", from))
	case st.cap != nil:
		st.cap.invalid = true
		return d.refuse(call, driver.StreamCaptureUnsupported, "a copy from another device cannot be captured")
	case n == 0:
		d.m.mu.Unlock()
		return nil
	case d.mem.bytes(dst, n) == nil:
		return d.stray(call, true, dst, n)
	case peer.mem.bytes(src, n) == nil:
		return d.stray(call, false, src, n)
	}
	return d.submit(call, st, &op{kind: opCopyPeer, dst: dst, src: src, peer: peer, n: n})
}

// CopyHtoD copies src to the device. It reads page-locked memory when the stream gets there, other memory before the call returns.
func (d *device) CopyHtoD(dst driver.Ptr, src []byte, s driver.Stream) error {
	const call = "CopyHtoD"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	if len(src) == 0 {
		d.m.mu.Unlock()
		return nil
	}
	if d.mem.bytes(dst, uint64(len(src))) == nil {
		return d.stray(call, true, dst, uint64(len(src)))
	}
	if st.cap == nil && !d.m.inline && !d.m.pinned(src) {
		src = append([]byte(nil), src...)
	}
	return d.submit(call, st, &op{kind: opCopyHtoD, dst: dst, host: src, n: uint64(len(src))})
}

// CopyDtoH copies to dst. The call waits for the copy unless dst is page-locked.
func (d *device) CopyDtoH(dst []byte, src driver.Ptr, s driver.Stream) error {
	const call = "CopyDtoH"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	if len(dst) == 0 {
		d.m.mu.Unlock()
		return nil
	}
	if d.mem.bytes(src, uint64(len(dst))) == nil {
		return d.stray(call, false, src, uint64(len(dst)))
	}
	wait := st.cap == nil && !d.m.inline && !d.m.pinned(dst)
	err = d.submit(call, st, &op{kind: opCopyDtoH, host: dst, src: src, n: uint64(len(dst))})
	if err != nil || !wait {
		return err
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.await(st.target())
	return d.gone(call)
}

// Memset fills n elements of width bytes.
func (d *device) Memset(dst driver.Ptr, v uint32, width int, n uint64, s driver.Stream) error {
	const call = "Memset"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	o, err := d.filling(call, dst, v, width, n)
	switch {
	case err != nil:
		return err
	case n == 0:
		d.m.mu.Unlock()
		return nil
	}
	return d.submit(call, st, &o)
}

// filling returns a memset as an operation; with no elements, any address is allowed. mu is held, and unlocked on error.
func (d *device) filling(call string, dst driver.Ptr, v uint32, width int, n uint64) (op, error) {
	switch {
	case width != 1 && width != 2 && width != 4:
		return op{}, d.refuse(call, driver.InvalidValue, "the width must be 1, 2 or 4")
	case n == 0:
		return op{}, nil
	case uint64(dst)%uint64(width) != 0:
		return op{}, d.refuse(call, driver.InvalidValue, "the address must be a multiple of the width")
	case n > 1<<60 || d.mem.bytes(dst, n*uint64(width)) == nil:
		return op{}, d.stray(call, true, dst, n*uint64(width))
	}
	return op{kind: opMemset, dst: dst, value: v, width: uint8(width), n: n}, nil
}

// Callback runs a registered function when s gets there.
func (d *device) Callback(s driver.Stream, id driver.CallbackID) error {
	const call = "Callback"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	if d.m.callbacks[id] == nil {
		return d.refuse(call, driver.InvalidValue, "no function is registered under this id")
	}
	if st.cap == nil && !d.m.inline {
		d.m.expect(1)
	}
	return d.submit(call, st, &op{kind: opCallback, callback: id})
}

// RegisterCallback makes fn callable by Callback.
func (d *device) RegisterCallback(fn func()) driver.CallbackID {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	d.m.lastID++
	d.m.callbacks[d.m.lastID] = fn
	return d.m.lastID
}

// UnregisterCallback removes id; queued calls of it do nothing.
func (d *device) UnregisterCallback(id driver.CallbackID) {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	delete(d.m.callbacks, id)
}

// perform does the operation's work, which begins at device time at, and returns its duration or its fault. mu is not held; one goroutine
// at a time performs for a stream.
func (s *stream) perform(o *op, at int64) (ns int64, f *driver.Error) {
	mem, m := s.dev.mem, s.dev.m
	if m.check != nil {
		s.watch(o)
	}
	switch o.kind {
	case opCallback:
		return 0, s.performCallback(o)
	case opGraph:
		return 0, s.performGraph(o.exec)
	}
	m.mapped.RLock()
	defer m.mapped.RUnlock()
	switch o.kind {
	case opMemAlloc, opMemFree:
		if o.freed != nil {
			o.freed.ran.Store(true)
		}
		return m.cost(poolCost), nil
	case opKernel:
		return s.performKernel(o, at)
	case opCopyDtoD:
		dst, src := mem.bytes(o.dst, o.n), mem.bytes(o.src, o.n)
		if dst == nil || src == nil {
			return 0, o.stray()
		}
		copy(dst, src)
		return m.cost(copyCost + int64(o.n/deviceRate)), nil
	case opCopyPeer:
		dst, src := mem.bytes(o.dst, o.n), o.peer.mem.bytes(o.src, o.n)
		if dst == nil || src == nil {
			return 0, o.stray()
		}
		copy(dst, src)
		return m.cost(copyCost + int64(o.n/peerRate)), nil
	case opCopyHtoD:
		dst := mem.bytes(o.dst, o.n)
		if dst == nil {
			return 0, o.stray()
		}
		copy(dst, o.host)
		return m.cost(copyCost + int64(o.n/hostRate)), nil
	case opCopyDtoH:
		src := mem.bytes(o.src, o.n)
		if src == nil {
			return 0, o.stray()
		}
		copy(o.host, src)
		return m.cost(copyCost + int64(o.n/hostRate)), nil
	case opMemset:
		dst := mem.bytes(o.dst, o.n*uint64(o.width))
		if dst == nil {
			return 0, o.stray()
		}
		fill(dst, o.value, int(o.width))
		return m.cost(copyCost + int64(uint64(len(dst))/deviceRate)), nil
	}
	panic("hostsim: " + opNames[o.kind] + " is not work")
}

// stray is the fault of work whose memory was freed before it ran.
func (o *op) stray() *driver.Error {
	return &driver.Error{Call: opNames[o.kind], Code: driver.IllegalAddress, Detail: "the memory was freed before the copy ran"}
}

// fill sets dst to elements of width bytes with the low bytes of v.
func fill(dst []byte, v uint32, width int) {
	var e [4]byte
	binary.LittleEndian.PutUint32(e[:], v)
	for n := copy(dst, e[:width]); n < len(dst); n *= 2 {
		copy(dst[n:], dst[:n])
	}
}

// performKernel runs a kernel.
func (s *stream) performKernel(o *op, at int64) (int64, *driver.Error) {
	m := s.dev.m
	if o.fn.mod.unloaded {
		return 0, &driver.Error{Call: "Launch", Code: driver.LaunchFailed, Detail: "kernel " + o.fn.name + ": its module was unloaded"}
	}
	if s.env.Mem == nil {
		s.clk.m = m
		s.env = vexec.Env{Mem: s.dev.mem, Clock: s.clk.read, Workers: runtime.GOMAXPROCS(0)}
	}
	if m.check != nil {
		l := m.check.Launch(s.task, o.fn.k, o.block)
		defer l.End()
		s.env.Watch = l
	}
	if m.inline {
		return 0, runKernel(o.fn.k, &s.env, o)
	}
	s.clk.base = m.cycles(at)
	s.clk.passed.Store(0)
	s.env.Seed = 0
	if m.policy.kind == policyRandom {
		s.env.Seed = (m.policy.seed+o.seq)*0x9E3779B97F4A7C15 | 1
	}
	if f := runKernel(o.fn.k, &s.env, o); f != nil {
		if !f.Code.Sticky() {
			f.Code = driver.LaunchFailed // the back end refused something that would fault on a GPU
		}
		return 0, f
	}
	return m.cost(launchCost) + int64(float64(s.clk.passed.Load())/(float64(m.opts.ClockKHz)/1e6)), nil
}

// performCallback runs a host callback within the call, on an inline device.
func (s *stream) performCallback(o *op) *driver.Error {
	m := s.dev.m
	m.mu.Lock()
	fn := m.callbacks[o.callback]
	m.mu.Unlock()
	if fn != nil {
		fn()
	}
	return nil
}

// performGraph runs a graph's nodes within the call, on an inline device.
func (s *stream) performGraph(e *graphExec) *driver.Error {
	e.inline.Lock()
	defer e.inline.Unlock()
	s.dev.m.mu.Lock()
	e.changes.apply(e.nodes, e.issued)
	s.dev.m.mu.Unlock()
	for i := range e.nodes {
		o := &e.nodes[i].op
		if o.kind == opRecord {
			s.dev.m.mu.Lock()
			o.event.reached(s.dev.m, e, s.dev.m.clock())
			s.dev.m.mu.Unlock()
			continue
		}
		if _, f := s.perform(o, 0); f != nil {
			return f
		}
	}
	return nil
}
