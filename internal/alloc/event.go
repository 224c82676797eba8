package alloc

import (
	"errors"
	"slices"
)

// eventQueue holds the events of freed blocks that were recorded on one stream, in order.
type eventQueue struct {
	stream  Stream
	pending []pendingEvent
	head    int // index of the first in pending that is not done
}

type pendingEvent struct {
	event Event
	block *Block
}

func (q *eventQueue) empty() bool { return q.head == len(q.pending) }

func (q *eventQueue) pop() {
	q.head++
	if q.empty() {
		q.pending, q.head = q.pending[:0], 0
	}
}

func (c *caching) queue(s Stream) *eventQueue {
	i, ok := slices.BinarySearchFunc(c.queues, s, func(q *eventQueue, s Stream) int {
		switch {
		case q.stream < s:
			return -1
		case q.stream > s:
			return 1
		}
		return 0
	})
	if !ok {
		c.queues = slices.Insert(c.queues, i, &eventQueue{stream: s})
	}
	return c.queues[i]
}

// recordEvents records one event per further stream of b. On failure the streams not yet done stay in b.uses.
func (c *caching) recordEvents(b *Block) error {
	for len(b.uses) > 0 {
		s := b.uses[len(b.uses)-1]
		e, err := c.backend.AcquireEvent()
		if err != nil {
			return err
		}
		if err := c.backend.RecordEvent(e, s); err != nil {
			c.backend.ReleaseEvent(e)
			return err
		}
		b.uses = b.uses[:len(b.uses)-1]
		b.events++
		q := c.queue(s)
		q.pending = append(q.pending, pendingEvent{e, b})
		c.outstanding++
	}
	b.captureUses = b.captureUses[:0]
	return nil
}

// recordDeferred records the events of blocks that were freed under a diversion. It first drops streams that were being captured when
// RecordStream named them: the work captured there runs only in replays, whose owner keeps the memory.
func (c *caching) recordDeferred(context any) error {
	for i, b := range c.deferred {
		for _, s := range b.captureUses {
			if i := slices.Index(b.uses, s); i >= 0 {
				b.uses = slices.Delete(b.uses, i, i+1)
			}
		}
		if err := c.recordEvents(b); err != nil {
			c.deferred = slices.Delete(c.deferred, 0, i)
			return err
		}
		if b.events == 0 {
			c.complete(b, context)
		}
	}
	clear(c.deferred)
	c.deferred = c.deferred[:0]
	return nil
}

// poll frees the blocks whose events are complete. Under a diversion it does nothing: querying an event is illegal in a capture. It checks
// each stream's queue up to the first incomplete event.
func (c *caching) poll(context any) error {
	if len(c.diversions) > 0 {
		return nil
	}
	if err := c.recordDeferred(context); err != nil {
		return err
	}
	for _, q := range c.queues {
		for !q.empty() {
			done, err := c.backend.QueryEvent(q.pending[q.head].event)
			if err != nil {
				return err
			}
			if !done {
				break
			}
			c.eventDone(q, context)
		}
	}
	return nil
}

// eventDone drops the head of q, which is complete, and frees its block if that was its last event.
func (c *caching) eventDone(q *eventQueue, context any) {
	e := q.pending[q.head]
	q.pop()
	c.outstanding--
	c.backend.ReleaseEvent(e.event)
	e.block.events--
	if e.block.isFree() {
		c.complete(e.block, context)
	}
}

// synchronize waits for all outstanding events and frees their blocks. No diversion may be active. With only non-nil, events
// of other private pools are left alone.
func (c *caching) synchronize(only *privatePool, context any) error {
	c.stats.SyncAllStreams++
	if err := c.recordDeferred(context); err != nil {
		return err
	}
	for _, q := range c.queues {
		if only != nil && !slices.ContainsFunc(q.pending[q.head:], func(e pendingEvent) bool { return e.block.silo.pool.private == only }) {
			continue
		}
		for !q.empty() {
			if err := c.backend.SyncEvent(q.pending[q.head].event); err != nil {
				return err
			}
			c.eventDone(q, context)
		}
	}
	return nil
}

// isOutOfMemory says whether a backend's error means no room.
func isOutOfMemory(err error) bool { return errors.Is(err, ErrOutOfMemory) }
