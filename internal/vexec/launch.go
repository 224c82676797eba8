package vexec

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Memory is the device memory that kernels access.
type Memory interface {
	// Resolve returns the live allocation that contains addr: its bytes and the address of the first one. Several goroutines call it. The
	// bytes must have the same alignment as base, at least 8.
	Resolve(addr uint64) (mem []byte, base uint64, ok bool)
}

// Env is the environment of a launch.
type Env struct {
	// Mem is required if the kernel has buffers.
	Mem Memory
	// Clock returns the device clock in cycles; nil counts nanoseconds.
	Clock func() int64
	// Workers is the maximum number of goroutines that share the blocks; 0 means GOMAXPROCS.
	Workers int
	// Seed permutes the order of blocks; 0 means the natural order.
	Seed uint64
	// Watch, if not nil, is called for every access. The launch then stays on the caller's goroutine and is slow.
	Watch Watcher
}

// maxLanes is the maximum number of lanes per pass and of threads per block.
const maxLanes = 1024

// launch is one call of Run.
type launch struct {
	plan        *plan
	env         Env
	grid, block [3]uint32
	perPass     uint32 // blocks per pass
	across      int    // passes in x
	passes      int
	chunk       int64
	stride      int // of the walk through the passes; first is its start
	first       int
	next        atomic.Int64
	stop        atomic.Bool
	wg          sync.WaitGroup
	// work is the function that the goroutines run, kept so that starting one allocates nothing.
	work func()
	args []byte
	room int
	// shared is the number of bytes of static and dynamic shared memory.
	shared int

	mu    sync.Mutex
	fault *Fault
}

var launches = sync.Pool{New: func() any {
	l := &launch{}
	l.work = func() {
		l.serve()
		l.wg.Done()
	}
	return l
}}

var epoch = time.Now()

func hostClock() int64 { return int64(time.Since(epoch)) }

// Run executes the kernel over a grid of blocks and returns when all of them are done. shared is the number of bytes of dynamic shared
// memory. args are the packed arguments (kir.Program.ArgLayout); they are read only during the call. The error is a *Fault, after which
// memory holds part of the results. A warm Run allocates nothing.
func (k *Kernel) Run(e *Env, grid, block [3]uint32, shared uint32, args []byte) error {
	threads := uint64(block[0]) * uint64(block[1]) * uint64(block[2])
	switch {
	case threads == 0 || grid[0] == 0 || grid[1] == 0 || grid[2] == 0:
		return k.refuse(codeInvalidValue, "a launch of %v blocks of %v threads is empty", grid, block)
	case threads > maxLanes || threads > uint64(k.p.Threads):
		return k.refuse(codeOutOfResources, "a block of %d threads exceeds the %d that the kernel allows", threads,
			min(k.p.Threads, maxLanes))
	case k.p.FixedThreads && (threads != uint64(k.p.Threads) || block[0] != uint32(threads)):
		return k.refuse(codeInvalidValue, "a block of %v threads, but the kernel is written for exactly %d in x", block, k.p.Threads)
	case len(args) < k.argBytes:
		return k.refuse(codeInvalidValue, "%d bytes of arguments where %d are needed", len(args), k.argBytes)
	}
	l := launches.Get().(*launch)
	if err := l.begin(k, e, grid, block, int(threads), shared, args); err != nil {
		return err
	}
	n := l.workers()
	l.wg.Add(n - 1)
	for i := 1; i < n; i++ {
		go l.work()
	}
	l.serve()
	l.wg.Wait()
	f := l.fault
	l.plan, l.env, l.args, l.fault = nil, Env{}, nil, nil
	launches.Put(l)
	if f != nil {
		return f
	}
	return nil
}

func (k *Kernel) refuse(code int, format string, args ...any) *Fault {
	return &Fault{Code: code, Kernel: k.p.Name, Detail: fmt.Sprintf(format, args...)}
}

// begin plans the passes.
func (l *launch) begin(k *Kernel, e *Env, grid, block [3]uint32, threads int, shared uint32, args []byte) error {
	l.perPass = 1
	form := singlePlan
	switch {
	case e.Watch != nil:
		form = watchedPlan
	case k.fusable:
		if l.perPass = max(min(uint32(maxLanes/(threads*k.widest)), grid[0]), 1); l.perPass > 1 {
			form = fusedPlan
		}
	}
	p, err := k.plan(form)
	if err != nil {
		return k.refuse(codeInvalidValue, "%v", err)
	}
	l.plan, l.env, l.grid, l.block, l.args = p, *e, grid, block, args
	if l.env.Clock == nil {
		l.env.Clock = hostClock
	}
	l.room, l.shared = max(threads*int(l.perPass), p.least), k.sharedBytes+int(shared)
	l.across = int((grid[0] + l.perPass - 1) / l.perPass)
	l.passes = l.across * int(grid[1]) * int(grid[2])
	l.first, l.stride = order(e.Seed, l.passes)
	l.next.Store(0)
	l.stop.Store(false)
	return nil
}

// order returns the start and the stride of a walk that visits each of n passes.
func order(seed uint64, n int) (first, stride int) {
	if seed == 0 || n == 1 {
		return 0, 1
	}
	x := seed * 0x9e3779b97f4a7c15
	x ^= x >> 29
	first, stride = int(x%uint64(n)), int(x>>32%uint64(n))|1
	for gcd(stride, n) != 1 {
		stride++
	}
	return first, stride
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// parallelWork is the number of lane operations below which a launch stays on the caller's goroutine: starting another one costs some
// microseconds.
const parallelWork = 1 << 18

// workers returns how many goroutines to use, and sets how many passes each takes at a time.
func (l *launch) workers() int {
	n := l.env.Workers
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	n = min(n, l.passes)
	if l.env.Watch != nil || n > 1 && float64(l.passes)*float64(l.room)*l.plan.cost < parallelWork {
		n = 1
	}
	l.chunk = int64(max(1, l.passes/(n*16)))
	if n == 1 {
		l.chunk = int64(l.passes)
	}
	return n
}

// serve runs passes until there are none left.
func (l *launch) serve() {
	w := l.plan.pool.take(l)
	for !l.stop.Load() {
		from := l.next.Add(l.chunk) - l.chunk
		if from >= int64(l.passes) {
			break
		}
		for i := from; i < min(from+l.chunk, int64(l.passes)) && w.fault == nil; i++ {
			at := int(i)
			if l.stride != 1 || l.first != 0 {
				at = int((uint64(i)*uint64(l.stride) + uint64(l.first)) % uint64(l.passes))
			}
			w.runPass(l, at)
		}
		if w.fault != nil {
			l.stop.Store(true)
			l.mu.Lock()
			if l.fault == nil || w.fault.pass < l.fault.pass {
				l.fault = w.fault
			}
			l.mu.Unlock()
		}
	}
	l.plan.pool.give(w)
}

// runPass runs pass number i.
func (w *worker) runPass(l *launch, i int) {
	x := uint32(i%l.across) * l.perPass
	w.pass = i
	w.cta = [3]uint32{x, uint32(i / l.across % int(l.grid[1])), uint32(i / l.across / int(l.grid[1]))}
	w.ext[3] = int64(min(l.perPass, l.grid[0]-x))
	w.lanes = int(w.ext[0] * w.ext[1] * w.ext[2] * w.ext[3])
	if w.plan.returns {
		clear(w.dead[:w.lanes])
	}
	if w.plan.watched {
		w.env.Watch.Block(w.cta[0], w.cta[1], w.cta[2], len(w.shared))
	}
	w.m = mask{hi: w.lanes}
	w.run(w.plan.body)
}

// workerPool holds a plan's idle workers.
type workerPool struct {
	mu   sync.Mutex
	idle []*worker
}

// take returns a worker set up for the launch.
func (p *workerPool) take(l *launch) *worker {
	p.mu.Lock()
	var w *worker
	if n := len(p.idle); n > 0 {
		w, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	if w == nil {
		w = newWorker(l.plan)
	}
	w.begin(l)
	return w
}

// give returns a worker to the pool, without references to the launch's memory.
func (p *workerPool) give(w *worker) {
	clear(w.sites)
	for _, i := range w.plan.aliases {
		w.p[i] = nil
	}
	w.args, w.env, w.fault = nil, nil, nil
	arenas.give(w.arena)
	w.arena = nil
	p.mu.Lock()
	p.idle = append(p.idle, w)
	p.mu.Unlock()
}

func newWorker(p *plan) *worker {
	w := &worker{plan: p, scalars: append([]uint64(nil), p.consts...), aff: make([]affinity, p.nAff), spans: make([]lanespan, p.nSpans),
		sites: make([]site, p.nSites), masks: make([][]uint8, p.nMasks), cont: make([]mask, p.nConts),
		p: make([]unsafe.Pointer, len(p.pointers))}
	for i, x := range p.pointers {
		if x.scalar >= 0 {
			w.p[i] = unsafe.Pointer(&w.scalars[x.scalar])
		}
	}
	return w
}

// begin lays out the registers in an arena and computes what depends only on the launch.
func (w *worker) begin(l *launch) {
	w.env, w.args, w.grid, w.fault = &l.env, l.args, l.grid, nil
	w.ext = [4]int64{int64(l.block[0]), int64(l.block[1]), int64(l.block[2]), 1}
	w.room = l.room
	clear(w.cont)
	const line = 64
	// an additional cache line, so that registers do not have the same low address bits
	size := func(bytes int) int { return (bytes + 2*line - 1) &^ (line - 1) }
	row := w.room + laneSlack
	total := l.shared + 2*line
	for _, x := range w.plan.pointers {
		if x.scalar == -1 {
			total += size(x.room(row))
		}
	}
	total += (len(w.masks) + 1) * size(row)
	w.arena = arenas.take((total + line) / 8)
	base := unsafe.Pointer(unsafe.SliceData(w.arena))
	at := int(-uintptr(base) & (line - 1))
	place := func(bytes int) unsafe.Pointer {
		p := unsafe.Add(base, at)
		at += size(bytes)
		return p
	}
	w.shared = lanes[byte](place(l.shared), l.shared)
	for i, x := range w.plan.pointers {
		if x.scalar == -1 {
			w.p[i] = place(x.room(row))
		}
	}
	for i := range w.masks {
		w.masks[i] = lanes[uint8](place(row), row)
	}
	w.dead = lanes[uint8](place(row), row)
	for _, v := range w.plan.bools { // even an undefined Bool must be 0 or 1
		clear(lanes[uint8](w.p[v], w.plan.pointers[v].room(row)))
	}
	w.ext[3] = int64(l.perPass)
	w.lanes = int(w.ext[0] * w.ext[1] * w.ext[2] * w.ext[3])
	w.m = mask{hi: w.lanes}
	w.run(w.plan.prologue)
}

// room returns the size in bytes of the register or tile, with row lanes per register.
func (x *pointer) room(row int) int {
	if x.bytes > 0 {
		return x.bytes
	}
	return row * int(x.size) * int(x.count)
}

// arenaPool holds the memory of registers, in size classes of powers of two.
type arenaPool struct {
	mu   sync.Mutex
	idle [40][][]uint64
}

var arenas arenaPool

// take returns at least n words with arbitrary contents.
func (a *arenaPool) take(n int) []uint64 {
	class := 9
	for 1<<class < n {
		class++
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.idle[class]; len(s) > 0 {
		a.idle[class] = s[:len(s)-1]
		return s[len(s)-1]
	}
	return make([]uint64, 1<<class)
}

func (a *arenaPool) give(s []uint64) {
	class := 0
	for 1<<class < len(s) {
		class++
	}
	a.mu.Lock()
	a.idle[class] = append(a.idle[class], s)
	a.mu.Unlock()
}
