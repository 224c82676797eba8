//go:build planted

package sanitize

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// Each test in this file runs kernels with one bug, or the repaired version, on an NVIDIA GPU or the simulator. The tests report what they
// plant, and pass: finding it is the checker's job. They need the build tag planted, and must run under a checker.

const planted = true

// here returns the caller's line.
func here() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// lanes is the number of threads of a block and of float32 elements of a buffer.
const lanes = 32

// rig is a device with what a planted test created on it.
type rig struct {
	t       *testing.T
	dev     driver.Device
	th      driver.Thread
	buffers []driver.Ptr
	// pooled maps a stream-ordered buffer to the stream on which it was allocated, and is freed.
	pooled map[driver.Ptr]driver.Stream
}

// newRig opens the first GPU, or a simulated one, and closes it after the test with everything that was not leaked.
func newRig(t *testing.T) *rig {
	dev, err := libcuda.New().Open(0)
	if err != nil {
		if dev, err = hostsim.New(hostsim.Options{}).Open(0); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{t: t, dev: dev, th: dev.Enter(), pooled: map[driver.Ptr]driver.Stream{}}
	t.Cleanup(r.close)
	return r
}

// close frees what was not leaked, and closes the device.
func (r *rig) close() {
	r.say("synchronise", r.dev.Synchronize(r.th))
	for _, p := range r.buffers {
		r.say("free", r.dev.MemFree(r.th, p))
	}
	for p, s := range r.pooled {
		r.say("free", r.dev.MemFreeAsync(r.th, p, s))
	}
	r.say("synchronise", r.dev.Synchronize(r.th))
	r.th.Leave()
	r.dev.Close()
}

// say logs an error: a device may refuse what is planted, and a checker must report it in any case.
func (r *rig) say(what string, err error) {
	if err != nil {
		fmt.Printf("%s: %v\n", what, err)
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// raw returns a buffer that was never written.
func (r *rig) raw() driver.Ptr {
	p, err := r.dev.MemAlloc(r.th, 4*lanes)
	r.must(err)
	r.buffers = append(r.buffers, p)
	return p
}

// zeroed returns a buffer of zeros.
func (r *rig) zeroed() driver.Ptr {
	p := r.raw()
	s := r.stream()
	r.must(r.dev.Memset(p, 0, 4, lanes, s))
	r.must(r.dev.StreamSynchronize(r.th, s))
	return p
}

// free frees p now.
func (r *rig) free(p driver.Ptr) {
	r.buffers = slices.DeleteFunc(r.buffers, func(q driver.Ptr) bool { return p == q })
	r.must(r.dev.MemFree(r.th, p))
}

func (r *rig) stream() driver.Stream {
	s, err := r.dev.StreamCreate(r.th, true, 0)
	r.must(err)
	return s
}

// launch queues one block of the program on s.
func (r *rig) launch(p *kir.Program, s driver.Stream, args ...driver.Ptr) {
	text := kir.Print(p)
	if i := r.dev.Info(); i.Image == driver.FormatPTX {
		var err error
		text, err = ptx.Compile([]*kir.Program{p}, ptx.Target{Major: i.Major, Minor: i.Minor})
		r.must(err)
	}
	m, err := r.dev.LoadModule(r.th, text)
	if err != nil {
		r.say("load", err)
		return
	}
	f, err := r.dev.Function(r.th, m, p.Name)
	r.must(err)
	var packed []byte
	for _, a := range args {
		packed = binary.LittleEndian.AppendUint64(packed, uint64(a))
	}
	r.say("launch", r.dev.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{uint32(p.Threads), 1, 1},
		Args: packed}))
}

// run is launch on a new stream, followed by a wait.
func (r *rig) run(p *kir.Program, args ...driver.Ptr) {
	s := r.stream()
	r.launch(p, s, args...)
	r.say("run", r.dev.StreamSynchronize(r.th, s))
}

// plants announces a planted bug.
func plants(class, kernel string, line int) { plantsIn("planted_test.go", class, kernel, line) }

func plantsIn(file, class, kernel string, line int) {
	fmt.Printf("planted %s in %s at %s:%d\n", class, kernel, file, line)
}

// build makes a program of blocks of 32 threads with the buffers out and in.
func build(t *testing.T, name string, f func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value)) *kir.Program {
	t.Helper()
	p, err := kernel.Build(name, func(k *kernel.Builder) {
		k.FixedThreads(lanes)
		out, in := k.Buffer("out", dtype.Float32), k.Buffer("in", dtype.Float32)
		f(k, out, in, k.ThreadIdx(kernel.X))
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// twin is a test with a bug and its repaired version; there are three of each class.
type twin struct {
	name string
	body func(t *testing.T, bug bool)
}

var twins = []twin{
	{"StorePast", storePast}, {"GatherBefore", gatherBefore}, {"LoopPast", loopPast},
	{"StoreFreed", storeFreed}, {"LoadFreed", loadFreed}, {"AddFreed", addFreed},
	{"LoadUnwritten", loadUnwritten}, {"HalfWritten", halfWritten}, {"SumUnwritten", sumUnwritten},
	{"ReadAfterWrite", readAfterWrite}, {"WriteAfterWrite", writeAfterWrite}, {"WriteAfterRead", writeAfterRead},
	{"StreamReadAfterWrite", streamReadAfterWrite}, {"StreamWriteAfterWrite", streamWriteAfterWrite},
	{"StreamWriteAfterRead", streamWriteAfterRead},
	{"BarrierInHalf", barrierInHalf}, {"BarrierInOdd", barrierInOdd}, {"BarrierInMiddle", barrierInMiddle},
	{"LeakOne", leakOne}, {"LeakLoop", leakLoop}, {"LeakUsed", leakUsed},
}

func TestPlantedStorePast(t *testing.T)             { storePast(t, true) }
func TestPlantedGatherBefore(t *testing.T)          { gatherBefore(t, true) }
func TestPlantedLoopPast(t *testing.T)              { loopPast(t, true) }
func TestPlantedStoreFreed(t *testing.T)            { storeFreed(t, true) }
func TestPlantedLoadFreed(t *testing.T)             { loadFreed(t, true) }
func TestPlantedAddFreed(t *testing.T)              { addFreed(t, true) }
func TestPlantedLoadUnwritten(t *testing.T)         { loadUnwritten(t, true) }
func TestPlantedHalfWritten(t *testing.T)           { halfWritten(t, true) }
func TestPlantedSumUnwritten(t *testing.T)          { sumUnwritten(t, true) }
func TestPlantedReadAfterWrite(t *testing.T)        { readAfterWrite(t, true) }
func TestPlantedWriteAfterWrite(t *testing.T)       { writeAfterWrite(t, true) }
func TestPlantedWriteAfterRead(t *testing.T)        { writeAfterRead(t, true) }
func TestPlantedStreamReadAfterWrite(t *testing.T)  { streamReadAfterWrite(t, true) }
func TestPlantedStreamWriteAfterWrite(t *testing.T) { streamWriteAfterWrite(t, true) }
func TestPlantedStreamWriteAfterRead(t *testing.T)  { streamWriteAfterRead(t, true) }
func TestPlantedBarrierInHalf(t *testing.T)         { barrierInHalf(t, true) }
func TestPlantedBarrierInOdd(t *testing.T)          { barrierInOdd(t, true) }
func TestPlantedBarrierInMiddle(t *testing.T)       { barrierInMiddle(t, true) }
func TestPlantedLeakOne(t *testing.T)               { leakOne(t, true) }
func TestPlantedLeakLoop(t *testing.T)              { leakLoop(t, true) }
func TestPlantedLeakUsed(t *testing.T)              { leakUsed(t, true) }

// The repaired versions, about which a checker must report nothing.

func TestRepairedBounds(t *testing.T)   { repaired(t, twins[0:3]) }
func TestRepairedFreed(t *testing.T)    { repaired(t, twins[3:6]) }
func TestRepairedWritten(t *testing.T)  { repaired(t, twins[6:9]) }
func TestRepairedShared(t *testing.T)   { repaired(t, twins[9:12]) }
func TestRepairedStreams(t *testing.T)  { repaired(t, twins[12:15]) }
func TestRepairedBarriers(t *testing.T) { repaired(t, twins[15:18]) }
func TestRepairedLeaks(t *testing.T)    { repaired(t, twins[18:]) }

func repaired(t *testing.T, twins []twin) {
	for _, x := range twins {
		t.Run(x.name, func(t *testing.T) { x.body(t, false) })
	}
}

// TestPlantedHang never ends, while the device is idle.
func TestPlantedHang(t *testing.T) {
	r := newRig(t)
	fmt.Println("planted a hang")
	_ = r
	select {}
}

// off returns n if there is a bug, else 0.
func off(bug bool, n int) int {
	if bug {
		return n
	}
	return 0
}

func storePast(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "store_past", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		out.Store(tid.Add(k.I32(off(bug, 1))), tid.Convert(dtype.Float32)) // the last thread's element is one past the last
	})
	plants("out-of-bounds", p.Name, line)
	r.run(p, r.zeroed(), r.zeroed())
}

func gatherBefore(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "gather_before", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		at := tid.Mul(tid).Rem(k.I32(lanes)).Sub(k.I32(off(bug, 1<<18)))
		line = here() + 1
		v := in.Load(at)
		out.Store(tid, v)
	})
	plants("out-of-bounds", p.Name, line)
	r.run(p, r.zeroed(), r.zeroed())
}

func loopPast(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "loop_past", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		sum := k.Var(k.F32(0))
		k.For(tid, k.I32(lanes+off(bug, lanes)), k.I32(lanes/2), func(i kernel.Value) {
			line = here() + 1
			sum.Set(sum.Get().Add(in.Load(i)))
		})
		out.Store(tid, sum.Get())
	})
	plants("out-of-bounds", p.Name, line)
	r.run(p, r.zeroed(), r.zeroed())
}

func storeFreed(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "store_freed", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		out.Store(tid, tid.Convert(dtype.Float32))
	})
	out, in := r.zeroed(), r.zeroed() // before the free, or it would get the freed address
	if bug {
		r.free(out)
	}
	plants("use-after-free", p.Name, line)
	r.run(p, out, in)
}

func loadFreed(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "load_freed", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		v := in.Load(k.I32(lanes - 1).Sub(tid))
		out.Store(tid, v)
	})
	out, in := r.zeroed(), r.zeroed()
	if bug {
		r.free(in)
	}
	plants("use-after-free", p.Name, line)
	r.run(p, out, in)
}

func addFreed(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "add_freed", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		v := in.Load(tid)
		line = here() + 1
		out.Atomic(kernel.AtomicAdd, k.I32(3), v)
	})
	out, in := r.zeroed(), r.zeroed()
	if bug {
		r.free(out)
	}
	plants("use-after-free", p.Name, line)
	r.run(p, out, in)
}

// unwritten returns a buffer that is written unless there is a bug.
func (r *rig) unwritten(bug bool) driver.Ptr {
	if bug {
		return r.raw()
	}
	return r.zeroed()
}

func loadUnwritten(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "load_unwritten", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		v := in.Load(tid)
		out.Store(tid, v)
	})
	plants("uninitialized", p.Name, line)
	r.run(p, r.zeroed(), r.unwritten(bug))
}

func halfWritten(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	fill := build(t, "fill_half", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		k.If(tid.Lt(k.I32(lanes-off(bug, lanes/2))), func() { out.Store(tid, k.F32(1)) })
	})
	p := build(t, "half_written", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		v := in.Load(tid)
		out.Store(tid, v.Mul(v))
	})
	in := r.raw()
	plants("uninitialized", p.Name, line)
	r.run(fill, in, in)
	r.run(p, r.zeroed(), in)
}

func sumUnwritten(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := build(t, "sum_unwritten", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		sum := k.Var(k.F32(0))
		k.For(k.I32(0), k.I32(lanes), k.I32(1), func(i kernel.Value) {
			line = here() + 1
			sum.Set(sum.Get().Add(in.Load(i)))
		})
		out.Store(tid, sum.Get())
	})
	plants("uninitialized", p.Name, line)
	r.run(p, r.zeroed(), r.unwritten(bug))
}

// buildShared makes a program of blocks of 64 threads, two warps, with a shared array of one element per thread. The barrier is where the
// bug may be: barrier emits it unless there is a bug.
func buildShared(t *testing.T, name string, bug bool, f func(k *kernel.Builder, out kernel.Buffer, s kernel.Array, tid kernel.Value,
	barrier func())) *kir.Program {
	t.Helper()
	p, err := kernel.Build(name, func(k *kernel.Builder) {
		k.FixedThreads(2 * lanes)
		out, s := k.Buffer("out", dtype.Float32), k.Shared("s", dtype.Float32, 2*lanes)
		tid := k.ThreadIdx(kernel.X)
		f(k, out, s, tid, func() {
			if !bug {
				k.Barrier()
			}
		})
	}).Program()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// mirror returns the index of the thread at the other end of the block.
func mirror(k *kernel.Builder, tid kernel.Value) kernel.Value { return k.I32(2*lanes - 1).Sub(tid) }

func readAfterWrite(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := buildShared(t, "read_after_write", bug, func(k *kernel.Builder, out kernel.Buffer, s kernel.Array,
		tid kernel.Value, barrier func()) {
		s.Store(tid, tid.Convert(dtype.Float32))
		barrier()
		line = here() + 1
		v := s.Load(mirror(k, tid))
		k.If(tid.Lt(k.I32(lanes)), func() { out.Store(tid, v) })
	})
	plants("race", p.Name, line)
	r.run(p, r.zeroed())
}

func writeAfterWrite(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := buildShared(t, "write_after_write", bug, func(k *kernel.Builder, out kernel.Buffer, s kernel.Array,
		tid kernel.Value, barrier func()) {
		s.Store(tid, tid.Convert(dtype.Float32))
		barrier()
		line = here() + 1
		s.Store(mirror(k, tid), tid.Convert(dtype.Float32).Neg())
		k.Barrier()
		v := s.Load(tid)
		k.If(tid.Lt(k.I32(lanes)), func() { out.Store(tid, v) })
	})
	plants("race", p.Name, line)
	r.run(p, r.zeroed())
}

func writeAfterRead(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	p := buildShared(t, "write_after_read", bug, func(k *kernel.Builder, out kernel.Buffer, s kernel.Array,
		tid kernel.Value, barrier func()) {
		s.Store(tid, tid.Convert(dtype.Float32))
		k.Barrier()
		v := s.Load(mirror(k, tid))
		barrier()
		line = here() + 1
		s.Store(tid, v)
		k.Barrier()
		w := s.Load(tid)
		k.If(tid.Lt(k.I32(lanes)), func() { out.Store(tid, w) })
	})
	plants("race", p.Name, line)
	r.run(p, r.zeroed())
}

// ordered returns a buffer of zeros for crossing. On a GPU it is allocated in the order of s, since compute-sanitizer checks the order of
// streams only for such memory.
func (r *rig) ordered(s driver.Stream) driver.Ptr {
	if r.dev.Info().Image != driver.FormatPTX {
		return r.zeroed()
	}
	p, err := r.dev.MemAllocAsync(r.th, 4*lanes, s)
	r.must(err)
	r.pooled[p] = s
	r.must(r.dev.Memset(p, 0, 4, lanes, s))
	return p
}

// crossing runs first and then second on different streams, unordered if there is a bug. Both use the buffer in, and each has its own
// buffer out.
func (r *rig) crossing(bug bool, first, second *kir.Program) {
	a, b := r.stream(), r.stream()
	own, other, in := r.zeroed(), r.zeroed(), r.ordered(a)
	r.launch(first, a, own, in)
	if !bug {
		r.follow(b, a)
	}
	r.launch(second, b, other, in)
	if !bug {
		r.follow(a, b) // the buffer is freed on a
	}
}

// follow makes later work on s wait for the work on t.
func (r *rig) follow(s, t driver.Stream) {
	e, err := r.dev.EventCreate(r.th, false)
	r.must(err)
	r.must(r.dev.EventRecord(e, t))
	r.must(r.dev.StreamWait(s, e))
}

func streamReadAfterWrite(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	first := build(t, "stream_writer", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { in.Store(tid, k.F32(1)) })
	second := build(t, "stream_reader", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		v := in.Load(tid)
		out.Store(tid, v)
	})
	plants("stream-race", second.Name, line)
	r.crossing(bug, first, second)
}

func streamWriteAfterWrite(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	first := build(t, "stream_writer", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { in.Store(tid, k.F32(1)) })
	second := build(t, "stream_rewriter", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		in.Store(k.I32(lanes-1).Sub(tid), k.F32(2))
	})
	plants("stream-race", second.Name, line)
	r.crossing(bug, first, second)
}

func streamWriteAfterRead(t *testing.T, bug bool) {
	r, line := newRig(t), 0
	first := build(t, "stream_reader", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(tid, in.Load(tid)) })
	second := build(t, "stream_overwriter", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		line = here() + 1
		in.Store(tid, k.F32(2))
	})
	plants("stream-race", second.Name, line)
	r.crossing(bug, first, second)
}

// diverge moves the barrier into the branch before it, which the verifier refuses.
func diverge(p *kir.Program) {
	body := p.Body
	at := slices.IndexFunc(body.Instrs, func(in *kir.Instr) bool { return in.Op == kir.OpBarrier })
	for i := at - 1; ; i-- {
		if in := body.Instrs[i]; in.Op == kir.OpIf {
			in.Blocks[0].Instrs = append(in.Blocks[0].Instrs, body.Instrs[at])
			body.Instrs = slices.Delete(body.Instrs, at, at+1)
			return
		}
	}
}

// barrierBehind makes a kernel with a barrier that, if there is a bug, only the threads for which cond is true reach.
func barrierBehind(t *testing.T, name string, bug bool, cond func(k *kernel.Builder, tid kernel.Value) kernel.Value) {
	r, line := newRig(t), 0
	p := build(t, name, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		k.If(cond(k, tid), func() { out.Store(tid, k.F32(1)) })
		line = here() + 1
		k.Barrier()
		out.Store(tid, k.F32(2))
	})
	if bug {
		diverge(p)
	}
	plants("barrier", p.Name, line)
	r.run(p, r.zeroed(), r.zeroed())
}

func barrierInHalf(t *testing.T, bug bool) {
	barrierBehind(t, "barrier_in_half", bug, func(k *kernel.Builder, tid kernel.Value) kernel.Value { return tid.Lt(k.I32(lanes / 2)) })
}

func barrierInOdd(t *testing.T, bug bool) {
	barrierBehind(t, "barrier_in_odd", bug, func(k *kernel.Builder, tid kernel.Value) kernel.Value {
		return tid.And(k.I32(1)).Eq(k.I32(1))
	})
}

func barrierInMiddle(t *testing.T, bug bool) {
	barrierBehind(t, "barrier_in_middle", bug, func(k *kernel.Builder, tid kernel.Value) kernel.Value {
		return tid.Gt(k.I32(lanes / 4)).And(tid.Lt(k.I32(lanes * 3 / 4)))
	})
}

// forget removes p from what is freed after the test, if there is a bug.
func (r *rig) forget(bug bool, p driver.Ptr) driver.Ptr {
	if bug {
		r.buffers = slices.DeleteFunc(r.buffers, func(q driver.Ptr) bool { return p == q })
	}
	return p
}

// take allocates what leaks: the line that calls it is the place of the leak.
func (r *rig) take(bug bool, n uint64) driver.Ptr {
	p, err := r.dev.MemAlloc(r.th, n)
	r.must(err)
	r.buffers = append(r.buffers, p)
	return r.forget(bug, p)
}

func leakOne(t *testing.T, bug bool) {
	r := newRig(t)
	plants("leak", "-", here()+1)
	r.take(bug, 1000)
}

func leakLoop(t *testing.T, bug bool) {
	r := newRig(t)
	for range 5 {
		plants("leak", "-", here()+1)
		r.take(bug, 4<<20)
	}
}

func leakUsed(t *testing.T, bug bool) {
	r := newRig(t)
	p := build(t, "leak_used", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(tid, in.Load(tid)) })
	in := r.zeroed()
	plants("leak", "-", here()+1)
	out := r.take(bug, 4*lanes)
	r.run(p, out, in)
}
