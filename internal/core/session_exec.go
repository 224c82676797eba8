package core

import (
	"fmt"
	"sync/atomic"
	"weak"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// Exec is where an operation runs: a device and stream, whether gradients are recorded, and other modes. There is no global current device,
// stream or mode: callees get an Exec as an argument, and On, NoGrad, Autocast and Host derive others of the same session.
//
// A session belongs to one goroutine; Fork gives another goroutine its own. An Exec is never kept in a struct.
type Exec struct {
	s *session
	m mode
	// id is unique in the process.
	id uint64
	// kin holds the session's Execs with the same owned values as x, by mode.
	kin map[mode]*Exec
	on  atomic.Pointer[Exec] // the Exec that On returned last
	// near is the one of kin that with returned last: a program goes back and forth, and looking up a mode takes long.
	near *Exec
	// off is x without autocast.
	off *Exec
}

// execs is the number of the latest Exec.
var execs atomic.Uint64

// mode is what distinguishes the Execs of a session. It is comparable.
type mode struct {
	stream   *rt.Stream
	noGrad   bool
	autocast dtype.DType
	// casts is the scope that keeps the parameters that autocast converted, while it is open; noCasts says that none are kept.
	casts   *scope
	noCasts bool
	// tf32 lets float32 products round their operands to 10 fraction bits on devices where that is faster.
	tf32 bool
	// manual switches off the automatic ordering between streams.
	manual bool
	owned
}

// owned is the part of a mode that the program provided and may drop, so the session must not keep it alive.
type owned struct {
	// away is the stream's device if that is neither the session's nor the processor.
	away *rt.Device
	// saved are the hooks through which tensors are saved for backward, or nil.
	saved *savedHooks
	// generator is where random numbers come from; nil is the device's own.
	generator *rt.Generator
	// pool is where memory comes from on its device; nil is the default pool.
	pool *rt.MemPool
}

// session is the state of one goroutine: the innermost scope, the call frames, and the Execs derived so far that own nothing.
type session struct {
	gate    gate
	dev     *rt.Device
	derived map[mode]*Exec
	// known lists the Execs of derived, for goroutines that may not enter the session.
	known  atomic.Pointer[known]
	scope  *scope
	spare  []*scope
	frames []*frame
	// lists holds the operands of the last operation over lists, for reuse.
	lists foreachOperands
	// which, ints and floats are buffers for reuse.
	which  []int32
	ints   []int
	floats [32]float64
	depth  int
	// funcs caches the kernels that the session used last, since the device's map is slower.
	funcs [64]usedFunc
	// repeated are the last launches of pointwise operations.
	repeated [repeatSlots]repeated
	// launches counts the uses of built-in kernels.
	launches int64
	// made caches the forms and lists that the session used last.
	made internCache
	// doing names the composites under way: errors name the outermost.
	doing []string
	// landing is where the results of the Into under way go; n is 0 if there is none.
	landing landing
	host    *rt.Device
	// capture is the graph that is being recorded, or nil.
	capture *capture
	// fork says that Fork made the session, and closed that it was closed.
	fork   bool
	closed atomic.Bool
	// tap sees the session's calls, or is nil. path is that of a Pather, and slow says that calls must ask it.
	tap  Tap
	path *Path
	slow bool
	// putOff holds the calls that a tap deferred; it is nil until there was one.
	putOff *deferral
	// lent is where a running segment takes its memory from, or nil.
	lent *lending
	// atOnce says that no call may be deferred, because its result is needed right away.
	atOnce bool
	// span is the Span that recorded nodes belong to, or nil. attached is what packages above keep with the session.
	span     *Span
	attached map[any]Attached
	// omissions are the values that runs of callables did not save, and recomputed is for reuse.
	omissions  []weak.Pointer[omission]
	recomputed recomputeState
	// accumulates says that the session holds accumulateMu.
	accumulates bool
	// run is the innermost backward pass under way.
	run *run
	// key is what SessionOf returns.
	key any
	// spareRuns are for reuse.
	spareRuns []*run
	// change is the Together under way, or nil; it then points to together. alone is the change of an operation outside a Together.
	change          *change
	together, alone change
}

// known is an Exec of a session, before the next.
type known struct {
	x    *Exec
	next *known
}

// String describes the Exec, such as "Exec on NVIDIA H200, stream 3, no grad, autocast bfloat16". It reads nothing that other calls change.
func (x *Exec) String() string {
	if x == nil || x.s == nil {
		return "nil Exec"
	}
	m := &x.m
	s := "Exec on " + placeOf(m.stream.Device())
	for _, part := range []struct {
		on   bool
		text string
	}{
		{m.stream.ID() != 0, fmt.Sprint(", stream ", m.stream.ID())},
		{m.noGrad, ", no grad"},
		{m.autocast != 0, fmt.Sprint(", autocast ", m.autocast)},
		{m.tf32, ", TF32"},
		{m.manual, ", manual streams"},
		{m.generator != nil, ", with a generator of its own"},
		{m.pool != nil, ", with a memory pool"},
		{x.s.closed.Load(), " (closed)"},
	} {
		if part.on {
			s += part.text
		}
	}
	return s
}

// New returns the first Exec of a new session on dev's default stream; host is the processor's device.
func New(dev, host *rt.Device) *Exec {
	s := &session{dev: dev, derived: map[mode]*Exec{}, host: host}
	s.gate.door, s.key = newDoor(s), weak.Make(s)
	return (&Exec{s: s, kin: s.derived}).with(mode{stream: dev.DefaultStream()})
}

// with returns the session's Exec of mode m. It makes each one once: for the whole session if m owns nothing, else for as long as somebody
// holds x.
func (x *Exec) with(m mode) *Exec {
	d := m.stream.Device()
	if m.away = nil; d != x.s.dev && d != x.s.host {
		m.away = d
	}
	if g := m.generator; g != nil && g.Device() != nil && g.Device() != d { // x worked on that device
		m.generator = nil
	}
	if y := x.near; y != nil && y.m == m {
		return y
	}
	kin := x.kin
	if m.owned != x.m.owned {
		kin = x.s.derived
		if m.owned != (owned{}) {
			kin = map[mode]*Exec{}
		}
	}
	y := kin[m]
	if y == nil {
		y = &Exec{s: x.s, m: m, id: execs.Add(1), kin: kin}
		kin[m] = y
		if m.owned == (owned{}) { // any other may be dropped
			x.s.known.Store(&known{y, x.s.known.Load()})
		}
	}
	if m.owned == x.m.owned {
		x.near = y
	}
	return y
}

// Fork returns the first Exec of a new session for another goroutine, on a fresh stream of the same device. Its Close ends the fork alone.
func (x *Exec) Fork() (*Exec, error) {
	if x.s.torn() {
		return nil, x.s.refused("Fork")
	}
	if err := x.s.open(); err != nil {
		return nil, err
	}
	st, err := x.m.stream.Device().Stream()
	if err != nil {
		return nil, err
	}
	y := New(st.Device(), x.s.host)
	y.s.fork = true
	m := x.m
	m.stream, m.casts = st, nil
	return y.with(m), nil
}

// Device returns the device.
func (x *Exec) Device() *rt.Device { return x.m.stream.Device() }

// Stream returns the stream.
func (x *Exec) Stream() *rt.Stream { return x.m.stream }

// On returns the Exec with x's modes on stream st, which may be another device's.
func (x *Exec) On(st *rt.Stream) *Exec {
	y := x.Last(st)
	if y == nil {
		x.check("On", x.s.open())
		x.check("On", st.Usable())
		m := x.m
		m.stream = st
		y = x.with(m)
		x.on.Store(y)
	}
	return y
}

// Last returns the Exec that On returned last, if that was for st and x is not closed, or nil. It needs no gate: switching back and forth
// costs three loads.
func (x *Exec) Last(st *rt.Stream) *Exec {
	if y := x.on.Load(); y != nil && y.m.stream == st && !x.s.closed.Load() {
		return y
	}
	return nil
}

// Host returns the Exec with x's modes on the processor.
func (x *Exec) Host() *Exec { return x.On(x.s.host.DefaultStream()) }

// NoGrad returns the Exec whose operations record no gradients.
func (x *Exec) NoGrad() *Exec {
	x.usable("NoGrad")
	return x.noGrad()
}

// noGrad is NoGrad for operations, which refuse a closed Exec by their own names.
func (x *Exec) noGrad() *Exec {
	m := x.m
	m.noGrad = true
	return x.with(m)
}

// EnableGrad returns the Exec whose operations record gradients, for use inside a NoGrad.
func (x *Exec) EnableGrad() *Exec {
	x.usable("EnableGrad")
	m := x.m
	m.noGrad = false
	return x.with(m)
}

// GradEnabled reports whether operations record gradients.
func (x *Exec) GradEnabled() bool { return !x.m.noGrad }

// TF32 returns the Exec whose float32 products and convolutions may round their operands to tf32, which has 10 fraction bits. The default
// is exact. Sums are float32 either way, also for half-precision operands.
func (x *Exec) TF32(on bool) *Exec {
	x.usable("TF32")
	m := x.m
	m.tf32 = on
	return x.with(m)
}

// TF32Enabled reports whether float32 products and convolutions may round their operands to tf32.
func (x *Exec) TF32Enabled() bool { return x.m.tf32 }

// UsePool returns the Exec whose operations take the memory of their results and their workspace from p, a pool of x's device; nil is the
// default pool. Memory goes back to the pool that it came from. Operations that a capture records still use the graph's memory, and work on
// another device uses that device's.
func (x *Exec) UsePool(p *rt.MemPool) *Exec {
	x.usable("UsePool")
	if p != nil {
		x.check("UsePool", p.Open())
	}
	if p != nil && p.Device() != x.Device() {
		here, there := rt.Apart(x.Device(), p.Device())
		x.fail("UsePool", fault.Invalid, nil,
			"the pool is memory of %s, and this Exec works on %s; make one with NewMemPool for that device", there, here)
	}
	m := x.m
	m.pool = p
	return x.with(m)
}

// alloc takes n > 0 bytes for work on x's stream.
func (x *Exec) alloc(n int) (*alloc.Block, error) {
	b, err := x.allocOnce(n)
	if err != nil && x.s.relieve(err) {
		return x.allocOnce(n)
	}
	return b, err
}

func (x *Exec) allocOnce(n int) (*alloc.Block, error) {
	st := x.m.stream
	if l := x.s.lent; l != nil {
		return l.pool.Alloc(uint64(n), alloc.Stream(l.of.Handle()))
	}
	if p := x.m.pool; p != nil && p.Device() == st.Device() {
		return p.Alloc(uint64(n), alloc.Stream(st.Handle()))
	}
	return st.Device().Alloc(uint64(n), alloc.Stream(st.Handle()))
}

// learning reports whether calls only learn which kernels they need: no work is done.
func (s *session) learning() bool { return s.lent != nil && s.lent.learns }

// ManualStreams returns the Exec that does not order its work after that of other streams: the caller does, with WaitStream and
// RecordStream.
func (x *Exec) ManualStreams() *Exec {
	x.usable("ManualStreams")
	m := x.m
	m.manual = true
	return x.with(m)
}

// Synchronize waits for the stream's work and returns its fault, if any.
func (x *Exec) Synchronize() error {
	if err := x.s.open(); err != nil {
		return err
	}
	if err := x.s.capture.refuse("Synchronize"); err != nil {
		return err
	}
	if err := x.s.force("Synchronize"); err != nil {
		return err
	}
	x.s.gate.rest()
	defer x.s.gate.resume()
	return x.m.stream.Synchronize()
}

// WaitStream makes later work of x wait for the work that st, which may be another device's, has now.
func (x *Exec) WaitStream(st *rt.Stream) error {
	if err := x.s.open(); err != nil {
		return err
	}
	if err := x.s.apart("a stream cannot be made to wait"); err != nil {
		return err
	}
	if err := x.s.force("WaitStream"); err != nil {
		return err
	}
	return x.m.stream.WaitIn(st, x.recording().rt())
}

// RecordStream tells the allocator that st uses t, so that t's memory is not reused before st's current work is done.
func (x *Exec) RecordStream(t *Tensor, st *rt.Stream) error {
	if t.closed.Load() {
		return fault.New(fault.Closed, "the tensor %s", t.whyClosed())
	}
	if err := st.Usable(); err != nil {
		return err
	}
	if err := x.s.force("RecordStream"); err != nil {
		return err
	}
	return t.st.recordStream(st)
}
