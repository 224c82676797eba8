package core

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/rt"
)

// storage is a piece of device memory with its counts. Handles, views and saved slots each hold one reference; when the last one goes, the
// block returns to the allocator. Storages with a loose handle also have a cleanup, in case a handle is dropped without Close.
type storage struct {
	dev   *rt.Device
	block *alloc.Block // nil for no bytes
	ptr   uint64
	bytes int

	// id is the storage's number, unique in the process, once somebody has asked for it; see deferral for its high bits.
	id      word
	others  atomic.Int32 // references besides the first, so that a new storage needs no locked store
	version atomic.Uint32

	// writer is the last write, or what made the storage, and reader the last read of one stream: what later uses must come after. The
	// accesses of other streams are in rare.
	writer word
	reader atomic.Uint64
	// streams has one bit for every stream of the device, besides its block's own, that used the storage.
	streams atomic.Uint64
	// rare is what few storages have, or nil.
	rare atomic.Pointer[uncommon]

	// marks says whether the storage has been loosened, and whether other sessions have used it.
	marks atomic.Uint32
	// slot is the storage's index in touched of the deferral that has it, or was the first of those that share it. Only that one's session
	// may read it.
	slot int32
}

// uncommon is what few storages have.
type uncommon struct {
	// accesses are those of further streams; it is nil until there is one.
	accesses atomic.Pointer[otherAccesses]
	// locked is page-locked host memory, used instead of a block, or nil. It is set before another goroutine knows the storage.
	locked *lockedMemory
	// cleanup is for loosened storages.
	cleanup runtime.Cleanup
	// sharers says whose calls read the storage, if several sessions have deferred some.
	sharers sharers
}

// sharers are the deferrals whose calls read a storage, by number, while its id says that it is shared. first is that which had the
// storage alone, or 0 once its uses have ended.
type sharers struct {
	sync.Mutex
	of    []uint64
	first uint64
}

// other returns one of the deferrals besides not, or 0.
func (s *sharers) other(not uint64) uint64 {
	s.Lock()
	defer s.Unlock()
	for _, n := range s.of {
		if n != not {
			return n
		}
	}
	return 0
}

// uncommon returns what few storages have, and makes it if it is not there.
func (s *storage) uncommon() *uncommon {
	if u := s.rare.Load(); u != nil {
		return u
	}
	s.rare.CompareAndSwap(nil, &uncommon{})
	return s.rare.Load()
}

// locked returns the page-locked memory, or nil.
func (s *storage) locked() *lockedMemory {
	if u := s.rare.Load(); u != nil {
		return u.locked
	}
	return nil
}

// word is an atomic.Uint64 that begin sets without an atomic operation, while only one goroutine knows it.
type word struct{ v uint64 }

func (w *word) Store(v uint64) { atomic.StoreUint64(&w.v, v) }
func (w *word) begin(v uint64) { w.v = v }
func (w *word) Load() uint64   { return atomic.LoadUint64(&w.v) }
func (w *word) CompareAndSwap(old, new uint64) bool {
	return atomic.CompareAndSwapUint64(&w.v, old, new)
}
func (w *word) Or(mask uint64) (old uint64) { return atomic.OrUint64(&w.v, mask) }

// The bits of storage.marks. loosened: cleanup is set, or about to be by a holder of a reference. foreignUse: sessions with another number
// than that of a handle's maker have used the handle. returned: memory that the storage used without owning it is gone.
// ofLeaf: the storage is, or was, a gradient of a leaf. ofParam: it is, or was, a module's parameter. ofOmission: values may have to be
// computed again from it, or might have had to be. ofResult: a compiled function returned it.
const (
	loosened = 1 << iota
	foreignUse
	returned
	ofLeaf
	ofParam
	ofOmission
	ofResult
)

// live counts storages that hold a block, for tests that tensors are closed.
var live atomic.Int64

// LiveStorages returns how many storages of the process hold device memory now. Loose storages count until they are closed or collected.
func LiveStorages() int {
	letGoLeft()
	return int(live.Load())
}

// storageNumbers is the last number given to a storage.
var storageNumbers atomic.Uint64

// number returns the number of the storage, from 1 on. No other storage of the process ever has it.
func (s *storage) number() uint64 {
	if n := s.id.Load(); n != 0 {
		return n & numberMask
	}
	s.id.CompareAndSwap(0, storageNumbers.Add(1))
	return s.id.Load() & numberMask
}

func (s *storage) retain() { s.others.Add(1) }

// sole reports whether there is one reference. Only its holder may ask: nobody else can make more.
func (s *storage) sole() bool { return s.others.Load() == 0 }

// abandoned is the reference count of a storage that its holders released while deferred calls still use it.
const abandoned = -1

// release drops one reference; the last one frees the block. The error is the device's.
func (s *storage) release() error {
	if !s.sole() && s.others.Add(-1) >= 0 {
		return nil
	}
	if s.waits() { // calls that use it have not run
		s.others.Store(abandoned)
		if s.waits() || !s.others.CompareAndSwap(abandoned, abandoned-1) {
			return nil
		}
	}
	return s.free()
}

// free releases the memory.
func (s *storage) free() error {
	s.tighten()
	if s.arriving() {
		if a := s.locked().arrival.Swap(nil); a != nil {
			a.Close()
		}
	}
	b := s.block
	if s.streams.Load() != 0 && s.lent() {
		s.giveBack()
	}
	s.block = nil
	if b == nil {
		if s.locked() == nil && s.ptr != 0 {
			s.dev.ReturnedLent(s.ptr)
			atomic.StoreUint64(&s.ptr, 0) // another session's trees may look; see [Store.Alive]
			s.marks.Or(returned)
		}
		return s.locked().free()
	}
	atomic.StoreUint64(&s.ptr, 0)
	live.Add(-1)
	return s.dev.Free(b)
}

// lent reports whether graphs overwrite the memory: it is in the pool of compiled regions, and the storage need not own it.
func (s *storage) lent() bool {
	if s.block == nil {
		return s.ptr != 0 && s.locked() == nil
	}
	return s.dev.Lends(s.dev.PoolOf(s.block))
}

// giveBack notes which streams have used lent memory, since the next run of a graph overwrites it.
func (s *storage) giveBack() {
	for set := s.streams.Load(); set != 0; set &= set - 1 {
		s.dev.UsedLent(bits.TrailingZeros64(set))
	}
}

// arriving reports whether nobody has waited yet for a copy that fills the storage.
func (s *storage) arriving() bool { return s.locked() != nil && s.locked().arrival.Load() != nil }

// arrived completes the copy that fills the storage, if one is under way.
func (s *storage) arrived() error {
	if !s.arriving() {
		return nil
	}
	a := s.locked().arrival.Load()
	if a == nil {
		return nil
	}
	if err := a.Synchronize(); err != nil {
		return err
	}
	if err := a.Spoilt(); err != nil {
		return err
	}
	if s.locked().arrival.CompareAndSwap(a, nil) {
		a.Close()
	}
	return nil
}

// loosen attaches a cleanup that frees the block once no Go value refers to the storage.
func (s *storage) loosen() {
	if s.block == nil && s.waits() {
		s.id.Or(looseBit)
		return
	}
	if s.block == nil && s.locked() == nil && s.ptr == 0 || s.marks.Or(loosened)&loosened != 0 {
		return
	}
	if s.block == nil && s.locked() == nil {
		s.dev.LooseLent(1)
		s.uncommon().cleanup = runtime.AddCleanup(s, func(b borrowed) {
			b.dev.UsedLentByAny()
			b.dev.LooseLent(-1)
			b.dev.ReturnedLent(b.ptr)
		}, borrowed{s.dev, s.ptr})
		return
	}
	if s.locked() != nil {
		s.uncommon().cleanup = runtime.AddCleanup(s, (*lockedMemory).forget, s.locked())
		return
	}
	s.dev.Loose().Add(s.bytes)
	s.uncommon().cleanup = runtime.AddCleanup(s, func(d dropped) {
		if d.dev.Lends(d.dev.PoolOf(d.block)) {
			d.dev.UsedLentByAny()
		}
		d.dev.Loose().Put(d.block)
		live.Add(-1)
	}, dropped{s.dev, s.block})
}

// tighten undoes loosen, and reports whether there was anything to undo. The memory must still be the same as at loosen.
func (s *storage) tighten() bool {
	if s.marks.Load()&loosened == 0 || s.marks.And(^uint32(loosened))&loosened == 0 { // most never were loosened, and an And locks
		return false
	}
	s.rare.Load().cleanup.Stop()
	if s.block == nil && s.locked() == nil {
		s.dev.LooseLent(-1)
	}
	return true
}

// borrowed is what a cleanup needs of memory that its storage does not own.
type borrowed struct {
	dev *rt.Device
	ptr uint64
}

// dropped is what a cleanup needs to free memory whose last handle was collected.
type dropped struct {
	dev   *rt.Device
	block *alloc.Block
}

const seqBits = 56

// pack identifies operation seq of the stream with number id in one word; 0 is none.
func pack(id int, seq uint64) uint64 { return uint64(id+1)<<seqBits | seq }

func unpack(v uint64) (id int, seq uint64) { return int(v>>seqBits) - 1, v & (1<<seqBits - 1) }

// A storage's id has its number in the low bits. Above is the number of the deferral whose calls use it, 0 if there is none, several if
// there are more, all of which only read it, or lost. The bits above say that the calls write it (writtenBit), and that a cleanup will be
// attached to the memory (looseBit).
const (
	numberBits  = 48
	numberMask  = 1<<numberBits - 1
	writtenBit  = 1 << 61
	looseBit    = 1 << 62
	lost        = 1<<13 - 1
	several     = lost - 1
	deferralsOf = lost << numberBits
)

// deferral returns the number of the deferral whose calls use s, 0 if there is none, several, or lost if the call that should have made its
// elements failed.
func (s *storage) deferral() uint64 { return s.id.Load() & deferralsOf >> numberBits }

// waits reports whether calls that use s have been deferred.
func (s *storage) waits() bool {
	n := s.deferral()
	return n != 0 && n != lost
}

// otherAccesses are accesses by stream. The bits say which streams ever had one.
type otherAccesses struct {
	readers, writers atomic.Uint64
	reads, writes    [rt.MaxStreams]atomic.Uint64
}

// disown forgets the block, which the allocator has freed or given to another owner.
func (s *storage) disown() {
	if s.block == nil { // another tensor of the same storage was named too
		return
	}
	s.tighten()
	s.block = nil
	live.Add(-1)
}

// adopt replaces the storage's block.
func (s *storage) adopt(b *alloc.Block) {
	loose := s.tighten()
	s.block = b
	s.dev.Own(b)
	if loose {
		s.loosen()
	}
}
