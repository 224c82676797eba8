package core

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"tenon.dev/fault"
	"tenon.dev/internal/alloc"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/rt"
)

// Store names the memory of tensors without keeping it alive.
type Store struct {
	p      weak.Pointer[storage]
	number uint64
	addr   uint64
}

func storeOf(s *storage) Store { return Store{weak.Make(s), s.number(), s.ptr} }

// StoreOf names the memory of t. No other session may be allocating that memory meanwhile.
func StoreOf(t *Tensor) Store { return storeOf(t.st) }

// StorageNumber returns the number of the storage of t.
func StorageNumber(t *Tensor) uint64 { return t.st.number() }

// Addr returns the address that the memory had when it was named.
func (s Store) Addr() uint64 { return s.addr }

// Number returns the storage's number, which no other storage of the process has or had.
func (s Store) Number() uint64 { return s.number }

// MarkResult notes that a compiled function returns t.
func MarkResult(t *Tensor) { t.st.marks.Or(ofResult) }

// Result reports whether a compiled function returned the memory.
func (s Store) Result() bool {
	st := s.p.Value()
	return st != nil && st.marks.Load()&ofResult != 0
}

// Alive reports whether a tensor, or a tensor saved for a derivative, has the memory. A backward pass of another session may free it at any
// time.
func (s Store) Alive() bool {
	st := s.p.Value()
	return st != nil && atomic.LoadUint64(&st.ptr) != 0
}

// Held reports whether somebody may have the memory. Any goroutine may ask. Of memory that its storage owns, which the allocator knows to
// be in use, a storage that was closed says so too.
func (s Store) Held() bool {
	st := s.p.Value()
	return st != nil && st.marks.Load()&returned == 0
}

// OutputBytes returns the size of storage i of those that the calls make.
func (g *Segment) OutputBytes(i int) uint64 { return uint64(g.madeAt(i).bytes) }

// MakerOf returns the number of the call that makes storage i of those that the calls make.
func (g *Segment) MakerOf(i int) int { return int(g.makers[i]) }

// Memory yields where r, a recording of the calls, has what they make and the inputs that it copies, but not the workspaces of its work.
func (g *Segment) Memory(r *Recorded) iter.Seq2[uint64, uint64] {
	return func(yield func(addr, size uint64) bool) {
		for i := range g.made {
			if r.addrs[i] != 0 && !yield(r.addrs[i], uint64(g.madeAt(i).bytes)) {
				return
			}
		}
		for i := range g.inputs {
			if in := &g.inputs[i]; r.copied[i] && !yield(r.inputs[i], uint64(in.Hi-in.Lo)) {
				return
			}
		}
	}
}

// Ending reports whether only the segment's calls use the memory.
func (g *Segment) Ending(s Store) bool {
	st := s.p.Value()
	return st != nil && st.others.Load() == abandoned && !g.Borrowed(s)
}

// Borrowed reports whether calls that another session deferred use the memory.
func (g *Segment) Borrowed(s Store) bool {
	st := s.p.Value()
	return st != nil && st.waits() && st.deferral() != g.d.number
}

// Moved reports whether the storage has other memory now than when it was named.
func (s Store) Moved() bool {
	st := s.p.Value()
	return st != nil && atomic.LoadUint64(&st.ptr) != s.addr
}

// overwritten has the messages for storages whose memory was given to another, by number.
var overwritten sync.Map

// Overwrite marks the memory of s, which was claimed, as taken by another: any use of a tensor in s then fails with the message. Memory
// that s owned is freed.
func Overwrite(s Store, message string) error {
	st := s.p.Value()
	if st == nil || st.ptr == 0 {
		return nil
	}
	overwritten.Store(st.number(), message)
	runtime.AddCleanup(st, func(n uint64) { overwritten.Delete(n) }, st.number())
	st.id.Or(deferralsOf)
	return st.drop()
}

// exposed are the numbers of storages of lent memory whose address the program knows.
var exposed sync.Map

// expose notes that the program knows the address of lent memory.
func (s *storage) expose() {
	if !s.lent() {
		return
	}
	if _, old := exposed.LoadOrStore(s.number(), true); !old {
		runtime.AddCleanup(s, func(n uint64) { exposed.Delete(n) }, s.number())
	}
}

// Exposed reports whether the program knows the memory's address.
func (s Store) Exposed() bool {
	_, ok := exposed.Load(s.number)
	return ok
}

// drop frees the memory of a storage that tensors still use.
func (s *storage) drop() error {
	s.tighten()
	if s.lent() {
		s.giveBack()
	}
	b := s.block
	if b == nil {
		s.dev.ReturnedLent(s.ptr)
	}
	s.block, s.ptr = nil, 0
	if b == nil {
		s.marks.Or(returned)
		return nil
	}
	live.Add(-1)
	return s.dev.Free(b)
}

// claimTries and claimPatience are how often Claim checks whether others have left.
const (
	claimTries    = yields + 10
	claimPatience = yields + 1000
)

// Claimed is memory that other sessions must not use: the storages from index from on in d.touched.
type Claimed struct {
	d    *deferral
	from int
}

// Release lets other sessions use the memory again.
func (c Claimed) Release() {
	if c.d == nil {
		return
	}
	for _, st := range c.d.touched[c.from:] {
		_ = st.endDeferral(c.d.number) // a failed free is the device's fault, which the next call reports
	}
	clear(c.d.touched[c.from:])
	clear(c.d.places[c.from:])
	c.d.touched, c.d.places = c.d.touched[:c.from], c.d.places[:c.from]
}

// Claim keeps the memory of stores from all sessions except that of the key, which is from SessionOf: other sessions' uses of it fail until
// Release, or until calls that the session deferred have run. It reports whether nobody else is using the memory now, in an operation under
// way or by deferred calls. It waits for operations under way; unless patiently is true, only as long as short ones take.
func Claim(session any, stores []Store, patiently bool) (c Claimed, ok bool) {
	s, seen, tries := sessionOf(session), false, claimTries
	if patiently {
		tries = claimPatience
	}
	if s == nil {
		return Claimed{}, true
	}
	if s.putOff == nil {
		if s.putOff = newDeferral(s); s.putOff == nil {
			return Claimed{}, false
		}
	}
	d := s.putOff
	if len(d.thin) == 0 {
		w := &Whence{}
		w.File, w.Line = caller()
		d.at.Store(w)
	}
	c, ok = Claimed{d, len(d.touched)}, true
	for i := 0; !s.accumulates && !accumulateMu.TryLock(); i++ { // another session's backward pass may add to a gradient among them
		if i == tries {
			return c, false
		}
		pause(i)
	}
	for _, v := range stores {
		st := v.p.Value()
		if st == nil || st.ptr == 0 {
			continue
		}
		if _, free := d.take(st, true); !free {
			ok = false
			continue
		}
		seen = seen || st.marks.Load()&foreignUse != 0
	}
	if !s.accumulates {
		accumulateMu.Unlock()
	}
	return c, (!seen || s.lonely(tries)) && ok
}

// MoveOut gives the tensors of s new memory from the default pool with the same elements, for work on g's stream; another may take their
// old memory. They were claimed. from is where the call comes from that made them. EndMoves follows the last one.
func (g *Segment) MoveOut(s Store, from *Whence) error {
	m, st := s.p.Value(), g.Stream()
	if m == nil || m.ptr == 0 {
		return nil
	}
	if !g.d.s.accumulates { // another session's backward pass may add to m, if it is a gradient
		accumulateMu.Lock()
		defer accumulateMu.Unlock()
	}
	g.d.represent(from)
	b, err := st.Device().Alloc(uint64(m.bytes), alloc.Stream(st.Handle()))
	if err != nil {
		return fmt.Errorf("the output of an earlier run could not be kept: %w", err)
	}
	seq, err := st.Begin(opCopied, nil)
	if err != nil {
		return errors.Join(err, m.dev.Free(b))
	}
	defer st.Issued(seq)
	err = m.beforeRead(st)
	if err == nil {
		err = st.Device().Check(st.Device().Driver().CopyDtoD(driver.Ptr(b.Addr()), driver.Ptr(m.ptr), uint64(m.bytes), st.Handle()),
			"a kept output could not be copied")
	}
	if err != nil {
		return errors.Join(err, m.dev.Free(b))
	}
	m.didRead(st, seq)
	st.Device().MovedLent(m.ptr, b.Addr(), m.marks.Load()&ofLeaf != 0)
	loose := m.marks.Load()&loosened != 0
	err = m.drop()
	m.block, m.ptr = b, b.Addr()
	live.Add(1)
	m.streams.Store(0)
	m.didWrite(st, seq)
	if loose {
		m.loosen()
	}
	return err
}

// EndMoves ends MoveOut.
func (g *Segment) EndMoves() { g.d.unrepresent() }

// Reclaim returns a pool to its checkpoint: stores that are alive become owners of their memory that was live then, and the rest is freed.
// All live memory of the pool must belong to stores, and be claimed.
func Reclaim(c *rt.PoolCheckpoint, stores []Store) error {
	var owned []*alloc.Block
	var held []*storage // so that nobody collects them meanwhile
	for _, s := range stores {
		st := s.p.Value()
		if st == nil || st.ptr == 0 {
			continue
		}
		held = append(held, st)
		if st.block != nil && st.dev.PoolOf(st.block) == c.Pool() {
			owned = append(owned, st.block)
		}
	}
	made, err := c.Device().RestorePool(c, owned)
	if len(made) == 0 && fault.KindOf(err) == fault.Invalid {
		return err // nothing was freed
	}
	for _, st := range held {
		loose := st.tighten()
		if st.block != nil && st.dev.PoolOf(st.block) == c.Pool() {
			st.disown()
		}
		if b := made[st.ptr]; b != nil && st.block == nil {
			delete(made, st.ptr)
			st.block = b
			st.dev.Own(b)
			live.Add(1)
		}
		if loose {
			st.loosen()
		}
	}
	var rest []uint64
	for addr := range made { //tenon:unordered sorted below
		rest = append(rest, addr)
	}
	slices.Sort(rest)
	for _, addr := range rest {
		err = errors.Join(err, c.Device().Free(made[addr]))
	}
	return err
}

// HasPools reports whether dev's allocator has private pools that graphs can share. The driver's own pool does not.
func HasPools(dev *rt.Device) bool { return dev.Memory().Settings().Backend != alloc.BackendAsync }

// LiveBlocks returns how many blocks of the pool are in use, and their bytes.
func LiveBlocks(dev *rt.Device, pool alloc.PoolID) (n int, bytes int64) {
	for _, s := range dev.Memory().PoolSegments(pool) {
		for _, b := range s.Blocks {
			if b.State == alloc.ActiveAllocated {
				n, bytes = n+1, bytes+int64(b.Size)
			}
		}
	}
	return n, bytes
}

// errOverwritten returns the error for using a tensor of s if its memory was overwritten, or nil.
func errOverwritten(s *storage) error {
	if m, ok := overwritten.Load(s.number()); ok {
		return fault.New(fault.Invalid, "%s", m)
	}
	return nil
}
