package alloc

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tenon.dev/fault"
)

// A program is a string of bytes that drives an allocator: each operation takes one byte and its arguments further ones. A model checks it:
// a live block must not overlap another, nor a freed one whose readers are not done.
type program struct {
	code    []byte
	confs   []string // settings strings to choose from; the first is in force at the beginning
	changes bool     // the program may change settings, take checkpoints and restore them
	ops     int      // done

	f       *fakeDevice
	d       *Device
	live    []*Block
	reading []reading
	pools   [2]programPool
	open    []int // pools that have a diversion
	outcome []outcome
}

// outcome is the part of an operation's result that does not depend on settings.
type outcome struct {
	action    string
	bytes     uint64
	private   bool  // of a private pool
	live      int64 // number of live allocations
	active    int64 // blocks in use, or freed and read by other streams
	requested int64 // bytes requested, of active blocks
}

type programPool struct {
	id         PoolID
	uses       int
	capture    bool
	stream     Stream
	checkpoint *Checkpoint
}

// reading is a freed piece of memory that a shut stream still reads.
type reading struct {
	addr, size uint64
	stream     Stream
	opened     int // how often the stream had been opened
}

func (p *program) byte() int {
	if len(p.code) == 0 {
		return 0
	}
	b := p.code[0]
	p.code = p.code[1:]
	return int(b)
}

// size draws a size of any magnitude up to 200 MiB.
func (p *program) size() uint64 {
	exponent, mantissa := p.byte()%28, uint64(p.byte())
	return max(1, (256+mantissa)<<exponent>>8)
}

func newProgram(code []byte, total uint64, confs ...string) (*program, error) {
	p := &program{code: code, confs: confs, f: newFakeDevice(total)}
	s, err := ParseSettings(confs[0])
	if err != nil {
		return nil, err
	}
	p.d = New(p.f, Options{Settings: &s})
	return p, nil
}

// run runs the program and then frees everything, which must leave the device empty.
func (p *program) run() error {
	for len(p.code) > 0 {
		p.ops++
		op := p.byte()
		if err := p.step(op); err != nil {
			return fmt.Errorf("operation %d (%d): %w", p.ops, op%20, err)
		}
		if err := check(p.d, p.f); err != nil {
			return fmt.Errorf("after operation %d (%d): %w", p.ops, op%20, err)
		}
	}
	return p.finish()
}

func (p *program) finish() error {
	for len(p.open) > 0 {
		if err := p.endPool(); err != nil {
			return err
		}
	}
	for len(p.live) > 0 {
		if err := p.free(0); err != nil {
			return err
		}
	}
	for i := range p.pools {
		for p.pools[i].uses > 0 {
			if err := p.releasePool(i); err != nil {
				return err
			}
		}
	}
	if err := p.d.EmptyCache(); err != nil {
		return err
	}
	if err := check(p.d, p.f); err != nil {
		return err
	}
	if st := p.d.Stats(); st.ReservedBytes.All().Current != 0 || len(p.f.segments)+len(p.f.ranges) != 0 || len(p.d.private) != 0 {
		return fmt.Errorf("after all is freed %d bytes are held, in %d segments and %d ranges, by %d private pools",
			st.ReservedBytes.All().Current, len(p.f.segments), len(p.f.ranges), len(p.d.private))
	}
	return nil
}

func (p *program) step(op int) error {
	switch op % 20 {
	default:
		return p.alloc(&programPool{})
	case 6:
		return p.alloc(&p.pools[p.byte()%2])
	case 7, 8, 9, 10:
		if len(p.live) == 0 {
			return nil
		}
		return p.free(p.byte() % len(p.live))
	case 11, 12:
		if len(p.live) == 0 {
			return nil
		}
		return p.d.RecordStream(p.live[p.byte()%len(p.live)], Stream(p.byte()%4))
	case 13:
		p.f.Shut(Stream(p.byte() % 4))
	case 14:
		p.f.Open(Stream(p.byte() % 4))
	case 15:
		return p.d.EmptyCache()
	case 16:
		return p.beginPool(p.byte()%2, Stream(p.byte()%4), p.byte()%2 == 0)
	case 17:
		return p.endPool()
	case 18:
		return p.releasePool(p.byte() % 2)
	case 19:
		if p.changes {
			return p.change(p.byte())
		}
	}
	return nil
}

// alloc allocates from the pool from, or from the default pool if from is zero or not held.
func (p *program) alloc(from *programPool) error {
	size, s := p.size(), Stream(p.byte()%4)
	want := PoolID{}
	if from.uses > 0 {
		want = from.id
	}
	b, err := p.d.AllocFrom(want, size, s)
	if fault.KindOf(err) == fault.OutOfMemory {
		p.note("oom", size, false)
		return nil
	}
	if err != nil {
		return err
	}
	if b.Requested() != size || b.Size() < size || b.Stream() != s || b.Addr()%minBlockSize != 0 {
		return fmt.Errorf("%d bytes on stream %d gave %d of %d at %#x on %d", size, s, b.Requested(), b.Size(), b.Addr(), b.Stream())
	}
	for _, i := range p.open {
		if p.pools[i].stream == s {
			want = p.pools[i].id
			break
		}
	}
	if b.Pool() != want {
		return fmt.Errorf("the block is of pool %v, wanted %v", b.Pool(), want)
	}
	p.note("alloc", size, want != PoolID{})
	return p.admit(b)
}

// admit adds a live block, and returns an error if it overlaps memory in use.
func (p *program) admit(b *Block) error {
	for _, o := range p.live {
		if b.addr < o.addr+o.size && o.addr < b.addr+b.size {
			return fmt.Errorf("block %#x of %d bytes overlaps the live one at %#x", b.addr, b.size, o.addr)
		}
	}
	kept := p.reading[:0]
	for _, r := range p.reading {
		if p.f.opened[r.stream] != r.opened {
			continue
		}
		if b.addr < r.addr+r.size && r.addr < b.addr+b.size {
			return fmt.Errorf("block %#x is handed out while stream %d reads it", b.addr, r.stream)
		}
		kept = append(kept, r)
	}
	p.reading = kept
	p.live = append(p.live, b)
	return nil
}

func (p *program) free(i int) error {
	b := p.live[i]
	p.live[i] = p.live[len(p.live)-1]
	p.live = p.live[:len(p.live)-1]
	p.forget(b)
	size := b.Requested()
	err := p.d.Free(b)
	p.note("free", size, false)
	return err
}

// forget notes which streams read b at the moment of its free. Captured work runs later and does not count.
func (p *program) forget(b *Block) {
	for _, s := range b.uses {
		captured := false
		for _, c := range b.captureUses {
			captured = captured || c == s
		}
		if p.f.shut[s] && !captured {
			p.reading = append(p.reading, reading{b.addr, b.size, s, p.f.opened[s]})
		}
	}
}

func (p *program) beginPool(i int, s Stream, capture bool) error {
	q := &p.pools[i]
	for _, o := range p.open {
		if o == i || p.pools[o].stream == s {
			return nil
		}
	}
	if q.uses == 0 {
		q.id, q.checkpoint = NewPoolID(), nil
	}
	q.stream, q.capture = s, capture
	filter := StreamFilter(s)
	if capture {
		p.f.Capture(s, q.id[1])
		filter = p.d.CaptureFilter(q.id[1])
	}
	q.uses++
	p.open = append(p.open, i)
	return p.d.BeginAllocateToPool(q.id, filter)
}

func (p *program) endPool() error {
	if len(p.open) == 0 {
		return nil
	}
	q := &p.pools[p.open[len(p.open)-1]]
	p.open = p.open[:len(p.open)-1]
	if q.capture {
		p.f.Capture(q.stream, 0)
	}
	return p.d.EndAllocateToPool(q.id)
}

func (p *program) releasePool(i int) error {
	q := &p.pools[i]
	for _, o := range p.open {
		if o == i && q.uses == 1 {
			return nil // a diversion needs its use
		}
	}
	if q.uses == 0 {
		return nil
	}
	q.uses--
	return p.d.ReleasePool(q.id)
}

func (p *program) change(what int) error {
	q := &p.pools[what/4%2]
	switch what % 4 {
	case 0:
		s, err := p.d.Settings().Update(p.confs[what/4%len(p.confs)])
		if err != nil {
			return err
		}
		p.d.SetSettings(s)
	case 1:
		return p.d.SetMemoryFraction(1 - float64(what/4%8)/16)
	case 2:
		if q.uses == 0 {
			return nil
		}
		c, err := p.d.Checkpoint(q.id)
		if err == nil {
			q.checkpoint = c
		} else if !strings.Contains(err.Error(), "Events should have synchronized") &&
			!strings.Contains(err.Error(), "Could not find pool") {
			return err
		}
	case 3:
		return p.restore(q)
	}
	return nil
}

func (p *program) restore(q *programPool) error {
	if q.checkpoint == nil || q.uses == 0 || len(p.open) > 0 {
		return nil
	}
	var kept, freed []*Block
	for _, b := range p.live {
		if b.Pool() == q.id {
			freed = append(freed, b)
		} else {
			kept = append(kept, b)
		}
	}
	for _, b := range freed {
		p.forget(b)
	}
	r, err := p.d.Restore(q.checkpoint)
	if err != nil {
		return err
	}
	if len(r.Freed) != len(freed) || len(r.Made) != len(q.checkpoint.Live()) {
		return fmt.Errorf("restoring freed %d and made %d blocks, wanted %d and %d", len(r.Freed), len(r.Made), len(freed),
			len(q.checkpoint.Live()))
	}
	p.live = kept
	for i, b := range r.Made {
		if b.Addr() != q.checkpoint.Live()[i] {
			return fmt.Errorf("restored block %d at %#x, was at %#x", i, b.Addr(), q.checkpoint.Live()[i])
		}
		if err := p.admit(b); err != nil {
			return err
		}
	}
	if ok, err := p.d.PoolLive(q.id, q.checkpoint.Live()); !ok || err != nil {
		return fmt.Errorf("the live blocks are not the checkpoint's (%v)", err)
	}
	return nil
}

// note adds to the outcome.
func (p *program) note(action string, bytes uint64, private bool) {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p.outcome = append(p.outcome, outcome{action, bytes, private, d.stats.now(statAllocations), d.stats.now(statActive),
		d.stats.now(statRequestedBytes)})
}

var programConfs = []string{
	"", "max_split_size_mb:32", "roundup_power2_divisions:4", "roundup_power2_divisions:[2:8,16:2,>:4]", "expandable_segments:True",
	"garbage_collection_threshold:0.3", "max_split_size_mb:40,garbage_collection_threshold:0.6,release_lock_on_cudamalloc:True",
	"expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:2", "expandable_segments:False",
}

func randomCode(r *rand.Rand, n int) []byte {
	code := make([]byte, n)
	for i := range code {
		code[i] = byte(r.Uint32())
	}
	return code
}

var programs = flag.Int("programs", 500, "run `n` random programs of about 430 operations each")

// TestPrograms runs random programs under changing settings on devices too small for them.
func TestPrograms(t *testing.T) {
	ops := 0
	for seed := range uint64(*programs) {
		r := rand.New(rand.NewPCG(seed, 3))
		confs := append([]string(nil), programConfs...)
		r.Shuffle(len(confs), func(i, j int) { confs[i], confs[j] = confs[j], confs[i] })
		p, err := newProgram(randomCode(r, 1200), uint64(200+r.IntN(2000))*mib, confs...)
		if err != nil {
			t.Fatal(err)
		}
		p.changes = true
		if err := p.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ops += p.ops
	}
	t.Logf("%d operations", ops)
}

// metamorphicConfs are the settings that a program is run under: every setting that affects blocks, alone and with others.
var metamorphicConfs = append(slices.Clone(programConfs[:8]), "max_split_size_mb:21", "max_non_split_rounding_mb:100,max_split_size_mb:30",
	"roundup_power2_divisions:16", "garbage_collection_threshold:0.0005", "expandable_segments:True,garbage_collection_threshold:0.0001")

var metamorphic = flag.Int("metamorphic", 200, "run `n` random programs of about 430 operations under all settings")

// TestMetamorphic runs each random program under all settings: the outcome must not depend on them. Every other run records a history, and
// runs with the collection of old blocks have a memory fraction, which that needs.
func TestMetamorphic(t *testing.T) {
	var ops atomic.Int64
	var workers sync.WaitGroup
	seeds := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := range seeds {
				n, err := metamorphicRuns(seed)
				ops.Add(int64(n))
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	for seed := range uint64(*metamorphic) {
		seeds <- seed
	}
	close(seeds)
	workers.Wait()
	t.Logf("%d programs, %d settings, %d operations", *metamorphic, len(metamorphicConfs), ops.Load())
	if *metamorphic >= 200 && ops.Load() < 1_000_000 {
		t.Errorf("only %d operations", ops.Load())
	}
}

// metamorphicRuns runs the program of one seed under all settings and returns the operations done.
func metamorphicRuns(seed uint64) (ops int, err error) {
	code := randomCode(rand.New(rand.NewPCG(seed, 5)), 1200)
	var first []outcome
	for i, conf := range metamorphicConfs {
		p, err := newProgram(code, 1<<40, conf)
		if err != nil {
			return ops, err
		}
		if strings.Contains(conf, "garbage") {
			err = p.d.SetMemoryFraction(1)
		}
		if err == nil && i%2 == 0 {
			err = p.d.RecordHistory(History{Enabled: HistoryAll, MaxEntries: 100})
		}
		if err == nil {
			err = p.run()
		}
		ops += p.ops
		if err != nil {
			return ops, fmt.Errorf("%q: %w", conf, err)
		}
		if i == 0 {
			first = p.outcome
			continue
		}
		for j := range min(len(p.outcome), len(first)) {
			have, want := p.outcome[j], first[j]
			if strings.Contains(conf, "expandable") { // unmapping waits for streams, so blocks that they read become free sooner
				have.active, have.requested, want.active, want.requested = 0, 0, 0, 0
			}
			if have != want {
				return ops, fmt.Errorf("%q: outcome %d is %+v, under %q it is %+v", conf, j, have, metamorphicConfs[0], want)
			}
		}
		if len(p.outcome) != len(first) {
			return ops, fmt.Errorf("%q: %d outcomes, %d under %q", conf, len(p.outcome), len(first), metamorphicConfs[0])
		}
	}
	return ops, nil
}

// FuzzAlloc runs programs that the fuzzer finds.
func FuzzAlloc(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 8 {
		f.Add(randomCode(r, 200))
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		if len(code) > 4000 {
			return
		}
		p, err := newProgram(code, 500*mib, programConfs...)
		if err != nil {
			t.Fatal(err)
		}
		p.changes = true
		if err := p.run(); err != nil {
			t.Fatal(err)
		}
	})
}

// errInjected is a device error other than a lack of memory.
var errInjected = errors.New("injected failure")

// TestFaultWalk fails the n-th call of the device, for every n, once with a lack of memory and once with another error. The
// allocator must be consistent after it, and the operation must succeed when it is tried again.
func TestFaultWalk(t *testing.T) {
	for conf, total := range map[string]uint64{"max_split_size_mb:32,garbage_collection_threshold:0.2": 400 * mib,
		"expandable_segments:True": 500 * mib} {
		for _, injected := range []error{errInjected, ErrOutOfMemory} {
			n := 0
			for {
				fired, err := walkOnce(conf, total, injected, n+1)
				if err != nil {
					t.Fatalf("%q, call %d fails with %q: %v", conf, n+1, injected, err)
				}
				if !fired {
					break
				}
				n++
			}
			if n < 50 {
				t.Errorf("%q: only %d calls", conf, n)
			}
			t.Logf("walk alloc %s, %v: %d", conf, injected, n)
		}
	}
}

func walkOnce(conf string, total uint64, injected error, n int) (fired bool, err error) {
	p, err := newProgram(nil, total, conf)
	if err != nil {
		return false, err
	}
	calls := 0
	p.f.fail = func(call string) error {
		calls++
		if calls == n {
			fired = true
			return injected
		}
		return nil
	}
	for i, step := range walkSteps {
		before := fired
		err := step(p)
		if e := check(p.d, p.f); e != nil {
			return fired, fmt.Errorf("step %d: %w (%v)", i, e, err)
		}
		if err == nil {
			continue
		}
		if before || !fired {
			return fired, fmt.Errorf("step %d: %w", i, err)
		}
		if injected == errInjected && !errors.Is(err, injected) {
			return fired, fmt.Errorf("step %d: the error %q hides the device's", i, err)
		}
		if err := step(p); err != nil {
			return fired, fmt.Errorf("step %d, again: %w", i, err)
		}
	}
	p.f.fail = nil
	p.f.OpenAll()
	return fired, p.finish()
}

// allocStep allocates, and keeps the block for the steps that follow.
func allocStep(size uint64, s Stream) func(*program) error {
	return func(p *program) error {
		b, err := p.d.Alloc(size, s)
		if err != nil {
			return err
		}
		return p.admit(b)
	}
}

// freeStep frees live block i after naming the streams that use it.
func freeStep(i int, uses ...Stream) func(*program) error {
	return func(p *program) error {
		if i >= len(p.live) {
			return nil
		}
		for _, s := range uses {
			if err := p.d.RecordStream(p.live[i], s); err != nil {
				return err
			}
		}
		return p.free(i)
	}
}

// restoreStep restores pool 0. A failing restore may have freed some of the pool's blocks, so the program drops all of them.
func restoreStep(p *program) error {
	p.live = slices.DeleteFunc(p.live, func(b *Block) bool { return b.Pool() == p.pools[0].id })
	r, err := p.d.Restore(p.pools[0].checkpoint)
	if err == nil {
		p.live = append(p.live, r.Made...)
	}
	return err
}

var walkSteps = []func(*program) error{
	func(p *program) error { return p.d.SetMemoryFraction(0.9) },
	allocStep(1000, 0), allocStep(3*mib, 0), allocStep(50*mib, 0), allocStep(64*mib, 1), allocStep(40*mib, 1),
	func(p *program) error { p.f.Shut(2); p.f.Shut(3); return nil },
	freeStep(2, 2), freeStep(1, 2, 3), freeStep(0, 1), freeStep(0),
	allocStep(30*mib, 0),
	allocStep(2000, 2),
	func(p *program) error { return p.beginPool(0, 2, true) },
	allocStep(5*mib, 2), allocStep(100, 2), allocStep(70*mib, 2),
	freeStep(1, 0, 3),
	func(p *program) error {
		if len(p.open) == 0 {
			return nil
		}
		return p.endPool()
	},
	func(p *program) error {
		p.f.OpenAll()
		return p.change(2) // checkpoint of pool 0
	},
	func(p *program) error { return p.d.EmptyPool(p.pools[0].id) },
	func(p *program) error {
		p.f.Shut(3)
		for _, b := range p.live {
			if b.Pool() == p.pools[0].id {
				return p.d.RecordStream(b, 3)
			}
		}
		return nil
	},
	restoreStep,
	allocStep(90*mib, 0), allocStep(110*mib, 1), // needs the cached memory
	freeStep(0), freeStep(0, 2), freeStep(0), freeStep(0),
	allocStep(200*mib, 3), // needs all memory
	freeStep(0, 0, 1, 2),
	func(p *program) error { return p.releasePool(0) },
	func(p *program) error { return p.d.EmptyCache() },
	func(p *program) error { // frees everything; the cache stays
		p.f.OpenAll()
		for len(p.live) > 0 {
			if err := p.free(0); err != nil {
				return err
			}
		}
		return nil
	},
	allocStep(350*mib, 0), freeStep(0, 1),
	func(p *program) error { return p.d.EmptyCache() },
}
