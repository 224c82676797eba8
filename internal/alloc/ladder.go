package alloc

// request is one allocation on its way up the ladder.
type request struct {
	size    uint64 // rounded
	segment uint64 // bytes to ask the device for
	silo    *silo
	context any
	refusal error // the backend's latest, if it had no room
}

// climb finds memory for r after its free list had none, by PyTorch's ladder: callbacks, collection of old cached blocks, a
// new segment, release of oversize blocks, release of everything cached. Where the program gave a Collect function it is
// asked before the segment and before failing. It may drop the lock in between. All results nil cannot be.
func (d *Device) climb(r *request) (*Block, *outOfMemory, error) {
	if p := r.silo.pool.private; p != nil {
		p.uses++ // the pool must outlive the climb, in which the lock may be dropped
		defer func() { p.uses-- }()
	}
	if d.runCallbacks() {
		if b := d.takeFree(r.silo, r.size); b != nil {
			return b, nil, nil
		}
	}
	for _, failing := range [...]bool{false, true} {
		collected := d.collect(r, failing)
		if collected {
			if err := d.poll(r.context); err != nil {
				return nil, nil, err
			}
			if b := d.takeFree(r.silo, r.size); b != nil {
				return b, nil, nil
			}
		}
		if failing && !collected {
			break
		}
		if b, err := d.grow(r); b != nil || err != nil {
			return b, nil, err
		}
	}
	failed, err := d.fail(r)
	return nil, failed, err
}

// runCallbacks asks the registered functions to free memory.
func (d *Device) runCallbacks() bool {
	if len(d.callbacks) == 0 {
		return false
	}
	callbacks := d.callbacks
	d.mu.Unlock()
	defer d.mu.Lock()
	freed := false
	for _, f := range callbacks {
		freed = f() || freed
	}
	return freed
}

// collect asks for a garbage collection.
func (d *Device) collect(r *request, failing bool) bool {
	if d.options.Collect == nil || len(d.diversions) > 0 {
		return false
	}
	if _, capturing := d.backend.Capturing(r.silo.stream); capturing {
		return false
	}
	p := Pressure{Wanted: r.segment, Reserved: d.reserved, Failing: failing}
	d.mu.Unlock()
	defer d.mu.Lock()
	return d.options.Collect(p)
}

// grow asks the device for memory, freeing more and more of the cache. nil without an error means there is none.
func (d *Device) grow(r *request) (*Block, error) {
	if d.gc {
		if err := d.collectCached(r.context); err != nil {
			return nil, err
		}
	}
	if b, err := d.newSegment(r); b != nil || err != nil {
		return b, err
	}
	if d.settings.MaxSplitSize != infinite && r.silo.pool.private == nil { // graphs write to what is free in their pools
		enough, err := d.releaseOversize(r)
		if err != nil {
			return nil, err
		}
		if enough {
			if b, err := d.newSegment(r); b != nil || err != nil {
				return b, err
			}
		}
	}
	if len(d.diversions) > 0 {
		return nil, nil
	}
	if err := d.flush(r.context); err != nil {
		return nil, err
	}
	d.stats.AllocRetries++
	return d.newSegment(r)
}

// releaseOversize returns just enough cached oversize blocks of r's stream to the device: one that alone is large enough, or
// the largest ones until they are. It says whether they are.
func (d *Device) releaseOversize(r *request) (bool, error) {
	l, limit := r.silo, d.settings.MaxSplitSize
	need := max(r.size, limit)
	if link := l.free.find(need); link != nil && !(*link).expandable() && !(*link).isSplit() {
		return true, d.release(*link, r.context)
	}
	var released uint64
	for b := l.free.below(need); b != nil && b.size >= limit && released < need; {
		next := l.free.under(b)
		if !b.expandable() && !b.isSplit() {
			size := b.size
			if err := d.release(b, r.context); err != nil {
				return false, err
			}
			released += size
		}
		b = next
	}
	return released >= need, nil
}

// collectCached is the garbage collection of cached blocks: once more than the threshold's share of the allowed memory is
// held, it returns those unsplit blocks of the default large pool to the device that have gone unused for at least the
// average number of searches, until enough is free. It waits for nothing.
func (d *Device) collectCached(context any) error {
	threshold := uint64(d.settings.GCThreshold * float64(d.allowed))
	if d.reserved <= threshold {
		return nil
	}
	target := d.reserved - threshold
	p := &d.large
	var candidates []*Block
	var age float64 // sum over candidates
	for _, b := range p.freeBlocks() {
		if !b.isSplit() && !b.expandable() {
			candidates = append(candidates, b)
			age += float64(p.lookups - b.ageBase)
		}
	}
	var reclaimed uint64
	for freed := true; reclaimed < target && freed && len(candidates) > 0; {
		average := age / float64(len(candidates))
		freed = false
		kept := candidates[:0]
		for _, b := range candidates {
			old := float64(p.lookups - b.ageBase)
			if old < average {
				kept = append(kept, b)
				continue
			}
			size := b.size
			if err := d.release(b, context); err != nil {
				return err
			}
			freed = true
			reclaimed += size
			age -= old
		}
		candidates = kept
	}
	return nil
}
