package compile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

const (
	notAllocatedText = "These storage data ptrs are not allocated in pool %v but should be %#x"
	notOutputsText   = "These live storage data ptrs are in the cudagraph pool but not accounted for as an output of " +
		"cudagraph trees: \n\n%s"
)

// checkPool returns an error unless the live blocks of the pool are exactly the path's outputs. It is called after warm-ups and recordings;
// a replay allocates nothing. ending reports whether only the segment uses an output; the segment has freed those.
func (fo *forest) checkPool(ending func(core.Store) bool) error {
	var want []uint64
	for range 3 { // another session's backward pass may be freeing an output
		want = want[:0]
		for _, s := range fo.stores() {
			if !ending(s) && !slices.Contains(want, s.Addr()) {
				want = append(want, s.Addr())
			}
		}
		if ok, err := fo.dev.Memory().PoolLive(fo.pool.ID(), want); ok || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	snap, err := (*cuda.Device)(fo.dev).Snapshot()
	if err != nil {
		return err
	}
	var others []string
	for _, s := range snap.Segments() {
		for _, b := range s.Blocks {
			i := slices.Index(want, b.Addr)
			switch {
			case s.Pool != fo.pool.ID() || b.State != "active_allocated":
			case i >= 0:
				want = slices.Delete(want, i, i+1)
			default:
				others = append(others, fmt.Sprintf("Data Pointer: %#x, history: \n%s", b.Addr, stackOf(b.Frames)))
			}
		}
	}
	if len(want) > 0 {
		return fault.New(fault.Invalid, notAllocatedText, fo.pool.ID(), want)
	}
	return fault.New(fault.Invalid, notOutputsText, strings.Join(others, "\n"))
}

// stackOf writes a stack, a line for each call.
func stackOf(frames []cuda.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "  %s:%d, in %s\n", f.File, f.Line, f.Name)
	}
	return b.String()
}
