package rt

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// lent is memory of pools that graphs overwrite with each run, whoever still has tensors there: the allocator does not see when its uses by
// other streams end, so the next run waits for them.
type lent struct {
	pools atomic.Pointer[[]lentPool]
	// streams has a bit for every stream that used such memory which no tensor has any more, and seqs how far its work had come then.
	streams atomic.Uint64
	seqs    [MaxStreams]atomic.Uint64
	// loose counts the tensors of such memory that do not own it and whose end nobody sees until the garbage collector tells.
	loose atomic.Int64
}

// lentPool is such a pool. Tree describes its graphs for a snapshot, or is nil; any goroutine may call it.
type lentPool struct {
	id   alloc.PoolID
	tree func(s *snapshot.Snapshot) snapshot.Tree
	runs *atomic.Uint64
}

// Lend says that graphs overwrite the memory of the pool id; tree describes them for snapshots, which have the segments by then.
// The caller counts in the result each run of a graph, but the first, before it.
func (d *Device) Lend(id alloc.PoolID, tree func(s *snapshot.Snapshot) snapshot.Tree) *atomic.Uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	runs := new(atomic.Uint64)
	all := []lentPool{{id, tree, runs}}
	if old := d.lent.pools.Load(); old != nil {
		all = append(all, *old...)
	}
	d.lent.pools.Store(&all)
	return runs
}

// EndLend takes Lend back.
func (d *Device) EndLend(id alloc.PoolID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.lent.pools.Load(); old != nil {
		all := slices.DeleteFunc(slices.Clone(*old), func(o lentPool) bool { return o.id == id })
		d.lent.pools.Store(&all)
	}
}

// Lends reports whether graphs overwrite the memory of the pool id.
func (d *Device) Lends(id alloc.PoolID) bool {
	return d.runsLent(id) != nil
}

// runsLent returns what Lend did, or nil if graphs do not overwrite the memory of the pool id.
func (d *Device) runsLent(id alloc.PoolID) *atomic.Uint64 {
	if all := d.lent.pools.Load(); all != nil {
		for i := range *all {
			if p := &(*all)[i]; p.id == id {
				return p.runs
			}
		}
	}
	return nil
}

// trees describes the graphs of the lent pools, by their ids.
func (d *Device) trees(s *snapshot.Snapshot) (all []snapshot.Tree) {
	pools := d.lent.pools.Load()
	if pools == nil {
		return nil
	}
	for _, p := range *pools {
		if p.tree != nil {
			t := p.tree(s)
			t.Device, t.Pool = max(d.info.Ordinal, 0), p.id
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b snapshot.Tree) int { return slices.Compare(a.Pool[:], b.Pool[:]) })
	return all
}

// UsedLent notes that the stream with that number has used lent memory until now.
func (d *Device) UsedLent(stream int) {
	if s := d.StreamByID(stream); s != nil {
		raise(&d.lent.seqs[stream], s.Seq())
		d.lent.streams.Or(1 << stream)
	}
}

// UsedLentByAny is UsedLent of every stream.
func (d *Device) UsedLentByAny() {
	for s := range d.allStreams {
		d.UsedLent(s.id)
	}
}

// LooseLent adds n to how many tensors have lent memory that they do not own and may be garbage any time.
func (d *Device) LooseLent(n int) { d.lent.loose.Add(int64(n)) }

// AwaitLent makes later work of s come after what UsedLent noted, and after all work if tensors of lent memory may be garbage, of which
// nothing is noted until a cleanup has run. The caller has the turn of s.
func (d *Device) AwaitLent(s *Stream) error {
	if d.lent.loose.Load() > 0 {
		d.UsedLentByAny()
	}
	for set := d.lent.streams.Load(); set != 0; set &= set - 1 {
		id := bits.TrailingZeros64(set)
		if err := s.WaitFor(d.StreamByID(id), d.lent.seqs[id].Load()); err != nil {
			return err
		}
	}
	return nil
}
