package alloc

// request is one allocation that climbs the ladder.
type request struct {
	size    uint64 // rounded
	segment uint64 // bytes to ask the device for
	silo    *silo
	context any
	refusal error // the backend's latest, if it had no room
}

// climb finds memory for r after its free list had none, by PyTorch's ladder: callbacks, collection of old cached blocks, a new segment,
// release of oversize blocks, release of everything cached. Options.Collect, if set, is called before the new segment and before failing.
// climb may drop the lock in between. One of the results is not nil.
func (c *caching) climb(r *request) (*Block, *outOfMemory, error) {
	if p := r.silo.pool.private; p != nil {
		p.uses++ // the pool must outlive the climb, in which the lock may be dropped
		defer func() { p.uses-- }()
	}
	if c.runCallbacks() {
		if b := c.takeFree(r.silo, r.size); b != nil {
			return b, nil, nil
		}
	}
	for _, failing := range [...]bool{false, true} {
		collected := c.collect(r, failing)
		if collected {
			if err := c.poll(r.context); err != nil {
				return nil, nil, err
			}
			if b := c.takeFree(r.silo, r.size); b != nil {
				return b, nil, nil
			}
		}
		if failing && !collected {
			break
		}
		if b, err := c.grow(r); b != nil || err != nil {
			return b, nil, err
		}
	}
	failed, err := c.fail(r)
	if err == nil {
		failed.split = c.virtual != nil && !c.expands(r.silo.pool) && r.silo.pool.source() == nil
	}
	return nil, failed, err
}

// runCallbacks asks the registered functions to free memory.
func (c *caching) runCallbacks() bool {
	if len(c.callbacks) == 0 {
		return false
	}
	callbacks := c.callbacks
	c.mu.Unlock()
	defer c.mu.Lock()
	freed := false
	for _, f := range callbacks {
		freed = f() || freed
	}
	return freed
}

// grow asks the device for memory, freeing more and more of the cache. nil without an error means there is none.
func (c *caching) grow(r *request) (*Block, error) {
	if c.gc {
		if err := c.collectCached(r.context); err != nil {
			return nil, err
		}
	}
	if b, err := c.newSegment(r); b != nil || err != nil {
		return b, err
	}
	if c.settings.MaxSplitSize != infinite && r.silo.pool.private == nil { // graphs write to the free memory of their pools
		enough, err := c.releaseOversize(r)
		if err != nil {
			return nil, err
		}
		if enough {
			if b, err := c.newSegment(r); b != nil || err != nil {
				return b, err
			}
		}
	}
	if len(c.diversions) > 0 {
		return nil, nil
	}
	if err := c.flush(r.context); err != nil {
		return nil, err
	}
	c.stats.AllocRetries++
	return c.newSegment(r)
}

// releaseOversize returns just enough cached oversize blocks of r's stream to the device: one that alone is large enough, or the largest
// ones until their sum is. It says whether enough was returned.
func (c *caching) releaseOversize(r *request) (bool, error) {
	l, limit := r.silo, c.settings.MaxSplitSize
	need := max(r.size, limit)
	if link := l.free.find(need); link != nil && !(*link).expandable() && !(*link).isSplit() {
		return true, c.release(*link, r.context)
	}
	var released uint64
	for b := l.free.below(need); b != nil && b.size >= limit && released < need; {
		next := l.free.under(b)
		if !b.expandable() && !b.isSplit() {
			size := b.size
			if err := c.release(b, r.context); err != nil {
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
func (c *caching) collectCached(context any) error {
	threshold := uint64(c.settings.GCThreshold * float64(c.allowed))
	if c.reserved <= threshold {
		return nil
	}
	target := c.reserved - threshold
	p := &c.large
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
			if err := c.release(b, context); err != nil {
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
