package replay

import (
	"testing"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/snapshot"
)

// Frees that complete one after another take time in proportion to their number: almost none here, while scanning ahead from each would
// take hours.
func TestManyFrees(t *testing.T) {
	const n = 1 << 21
	events := make([]snapshot.Event, n, n+3)
	for i := range events {
		events[i].Action = snapshot.ActionFreeCompleted
	}
	events = append(events, snapshot.Event{Action: snapshot.ActionSegmentFree}, snapshot.Event{Action: snapshot.ActionSegmentAlloc},
		snapshot.Event{Action: snapshot.ActionFreeCompleted})
	r := reader{s: &snapshot.Snapshot{Stacks: &snapshot.Stacks{}}, events: events, held: map[uint64]uint32{1: 1, 2: 2}}
	for i := range n {
		// The last one leaves one of the two held blocks.
		if got, want := r.waitedFor(i), i < n-1; got != want {
			t.Fatalf("at event %d the allocator waited: %v, want %v", i, got, want)
		}
	}
	if r.waitedFor(n + 2) {
		t.Error("at the end of the trace it waited")
	}
}

// Memory returned in another order than the recording's, ranges reserved for many streams, and pages of many ranges take time in
// proportion to their number.
func TestLongScript(t *testing.T) {
	const n = 1 << 16
	var steps []driverStep
	back := driverStep{}
	for i := range uint64(n) {
		steps = append(steps, driverStep{addr: (i + 1) << 40, size: smallPage, stream: 1 + alloc.Stream(i), mapped: true})
		back.back = append(back.back, span{i << 10, 1024})
	}
	s := newScript(append([]driverStep{back}, steps...))
	for i := range uint64(n) {
		s.release((n-1-i)<<10, 512)
		s.release((n-1-i)<<10+512, 512)
	}
	if s.at != 1 || s.left != "" {
		t.Fatalf("at step %d: %s", s.at, s.left)
	}
	d := newDevice(Unlimited, 0)
	d.script = s
	for i := range uint64(n) {
		s.stream = 1 + alloc.Stream(n-1-i)
		if addr, err := d.Reserve(smallPage); err != nil || addr != (n-i)<<40 {
			t.Fatalf("stream %d is given %#x, %v", s.stream, addr, err)
		}
	}
	for i := range steps {
		steps[i].stream = 1
		steps[i].addr = uint64(2*i+1) << 22
	}
	if got := rangeMemory(nil, steps); got == Unlimited {
		t.Error("no memory is said")
	}
}
