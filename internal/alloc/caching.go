package alloc

// caching is the strategy that keeps freed memory, by PyTorch's policy, decision for decision.
type caching struct {
	books
	virtual VirtualMemory // nil where the backend has none

	gc     bool // garbage collection can run: threshold and fraction are set
	expand bool // new memory comes in expandable segments: the setting is on and the backend can

	small, large pool
	segments     []*segment // by address

	queues      []*eventQueue // by stream
	outstanding int           // events in the queues
	deferred    []*Block      // freed, events to be recorded at the next poll outside diversions

	callbacks []func() bool
}

func (c *caching) init(b Backend, o Options) {
	c.backend, c.options, c.fraction = b, o, 1
	c.virtual, _ = b.(VirtualMemory)
	if o.Settings != nil {
		c.apply(*o.Settings)
	} else {
		c.apply(DefaultSettings())
	}
	if c.options.Table == nil {
		c.options.Table = new(Table)
	}
	c.small = pool{of: c, kind: smallPool}
	c.large = pool{of: c, kind: largePool}
}

// AllocFrom is Device.AllocFrom with the cache on.
func (c *caching) AllocFrom(id PoolID, size uint64, s Stream) (*Block, error) {
	b, failed, err := c.alloc(id, size, s, c.gather(LevelState))
	if failed != nil {
		return nil, failed.report(c.options.Index, failed.message(c.options.Index))
	}
	return b, err
}

// alloc is AllocFrom without the report of a failure. It takes the lock and may drop it in between. A function of the program that it calls
// may panic, and the allocator stays usable.
func (c *caching) alloc(id PoolID, requested uint64, s Stream, context any) (*Block, *outOfMemory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outstanding+len(c.deferred) > 0 {
		if err := c.poll(context); err != nil {
			return nil, nil, err
		}
	}
	size := c.settings.round(requested)
	p, err := c.choosePool(id, size, s)
	if err != nil {
		return nil, nil, err
	}
	l := p.silo(s)
	b := c.takeFree(l, size)
	if b == nil {
		var failed *outOfMemory
		r := request{size: size, segment: segmentSize(size), silo: l, context: context}
		if b, failed, err = c.climb(&r); b == nil {
			return nil, failed, err
		}
	}
	return c.handOut(b, size, requested, context), nil, nil
}

// takeFree takes the best fitting free block of the silo out of its list: the smallest that is large enough, at the lowest
// address. It returns nil if there is none, or if the limits of oversize blocks forbid it.
func (c *caching) takeFree(l *silo, size uint64) *Block {
	if c.gc {
		l.pool.lookups++
	}
	link := l.free.find(size)
	if link == nil {
		return nil
	}
	b := *link
	if b.expandable() {
		if b = c.fitExpandable(l, b); b == nil {
			return nil
		}
	}
	if limit := c.settings.MaxSplitSize; limit != infinite {
		if size < limit && b.size >= limit || size >= limit && b.size >= size+c.settings.MaxNonSplitRounding {
			return nil
		}
	}
	if b == *link {
		unlink(link)
	} else {
		l.free.remove(b)
	}
	return b
}

// splits says whether block b is split to serve size bytes.
func (c *caching) splits(b *Block, size uint64) bool {
	rest := b.size - size
	if b.silo.pool.kind == smallPool || c.expands(b.silo.pool) {
		return rest >= minBlockSize
	}
	return size < c.settings.MaxSplitSize && rest > smallSize
}

// handOut makes an allocation of b, which is in no list, and returns the rest to its list if b is split.
func (c *caching) handOut(b *Block, size, requested uint64, context any) *Block {
	return c.carve(b, size, requested, c.splits(b, size), context)
}

// carve is handOut with the decision to split made by the caller.
func (c *caching) carve(b *Block, size, requested uint64, split bool, context any) *Block {
	kind := b.silo.pool.kind
	wasSplit := b.isSplit()
	if split {
		rest := b
		b = c.splitFront(rest, size)
		rest.silo.insertFree(rest)
	}
	st := &c.stats
	if !b.expandable() {
		switch {
		case wasSplit && split:
			st.sub(statInactiveSplitBytes, kind, int64(size))
		case split:
			st.add(statInactiveSplitBytes, kind, int64(b.next.size))
			st.add(statInactiveSplit, kind, 1)
		case wasSplit:
			st.sub(statInactiveSplitBytes, kind, int64(b.size))
			st.sub(statInactiveSplit, kind, 1)
		}
	}
	b.allocated = true
	b.oversize = b.size >= c.settings.MaxSplitSize
	b.requested = requested
	b.context = context
	c.record(ActionAlloc, b.addr, requested, b.silo.stream, context)
	n := int64(b.size)
	st.add(statAllocations, kind, 1)
	st.add(statAllocatedBytes, kind, n)
	st.add(statActive, kind, 1)
	st.add(statActiveBytes, kind, n)
	st.add(statRequestedBytes, kind, int64(requested))
	if b.oversize {
		st.OversizeAllocations.add(1)
	}
	return b
}

// Free is Device.Free of a block of the cache.
func (c *caching) Free(b *Block) error {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.free(b, context)
}

func (c *caching) free(b *Block, context any) error {
	if !b.allocated {
		return freedBefore(b)
	}
	c.forgetRaw(b)
	kind := b.silo.pool.kind
	b.allocated = false
	c.stats.sub(statAllocations, kind, 1)
	c.stats.sub(statAllocatedBytes, kind, int64(b.size))
	if b.oversize {
		c.stats.OversizeAllocations.sub(1)
	}
	c.record(ActionFreeRequested, b.addr, b.requested, b.silo.stream, either(context, b.context))
	if len(b.uses) == 0 {
		c.complete(b, context)
		return nil
	}
	if len(c.diversions) > 0 {
		c.deferred = append(c.deferred, b)
		return nil
	}
	err := c.recordEvents(b)
	if err != nil {
		c.deferred = append(c.deferred, b)
	}
	return err
}

// either returns the first context that is not nil.
func either(a, b any) any {
	if a != nil {
		return a
	}
	return b
}

// complete merges a block that nothing uses any more with its free neighbours and returns it to its free list.
func (c *caching) complete(b *Block, context any) {
	c.record(ActionFreeCompleted, b.addr, b.requested, b.silo.stream, either(context, b.context))
	b.context = nil
	kind := b.silo.pool.kind
	size, requested := int64(b.size), int64(b.requested)
	var blocks, bytes int64 // change of inactive split blocks
	if n := c.absorb(b, b.prev); n > 0 {
		blocks, bytes = blocks-1, bytes-int64(n)
	}
	if n := c.absorb(b, b.next); n > 0 {
		blocks, bytes = blocks-1, bytes-int64(n)
	}
	b.silo.insertFree(b)
	if b.isSplit() {
		blocks, bytes = blocks+1, bytes+int64(b.size)
	}
	st := &c.stats
	if !b.expandable() {
		st.change(statInactiveSplit, kind, blocks)
		st.change(statInactiveSplitBytes, kind, bytes)
	}
	st.sub(statActive, kind, 1)
	st.sub(statActiveBytes, kind, size)
	st.sub(statRequestedBytes, kind, requested)
}

// EmptyCache is Device.EmptyCache.
func (c *caching) EmptyCache() error {
	context := c.gather(LevelAll)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush(context)
}

// SetSettings replaces the settings from now on. Blocks and segments stay as they are.
func (c *caching) SetSettings(s Settings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apply(s)
}

func (c *caching) apply(s Settings) {
	c.settings = s
	c.gc = c.fractionSet && s.GCThreshold > 0
	c.expand = s.ExpandableSegments && c.virtual != nil
}

// UpdateSettings changes the settings as text says, by PyTorch's rules (Settings.Update). An invalid text changes nothing.
func (c *caching) UpdateSettings(text string) (Settings, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.settings.Update(text)
	if err != nil {
		return Settings{}, err
	}
	c.apply(s)
	return s, nil
}

// AddFreeMemoryCallback adds a function that is called to free memory when no cached block fits, before the device is asked for a new
// segment. It is called without the allocator's lock and says whether it freed something.
func (c *caching) AddFreeMemoryCallback(f func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.callbacks = append(c.callbacks, f)
}
