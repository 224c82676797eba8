package snapshot

import (
	"io"
	"strconv"

	"tenon.dev/internal/pprof"
)

// unknownFrame stands for the stack of an allocation that was made while none were recorded.
var unknownFrame = Frame{Name: "(no stack recorded)"}

// WriteProfile writes the blocks that are allocated, by stack, device and stream, as a profile for go tool pprof, compressed with gzip:
// their number, their bytes, and the bytes that were asked for.
func (s *Snapshot) WriteProfile(w io.Writer) error {
	p := pprof.New(pprof.Type{Name: "inuse_objects", Unit: "count"}, pprof.Type{Name: "inuse_space", Unit: "bytes"},
		pprof.Type{Name: "requested_space", Unit: "bytes"})
	type key struct {
		stack  StackID
		device int
		stream uint64
	}
	sums := map[key]*[3]uint64{}
	var order []key
	for i := range s.Segments {
		g := &s.Segments[i]
		for _, b := range g.Blocks {
			if b.State != ActiveAllocated {
				continue
			}
			k := key{b.Stack, g.Device, g.Stream}
			sum := sums[k]
			if sum == nil {
				sum = new([3]uint64)
				sums[k] = sum
				order = append(order, k)
			}
			sum[0]++
			sum[1] += b.Size
			sum[2] += b.Requested
		}
	}
	// Location 1 is the unknown frame's, those of frames follow in their order.
	used := make([]bool, s.Stacks.FrameCount())
	for _, k := range order {
		locations := []uint64{1}
		if k.stack != 0 {
			locations = locations[:0]
			for _, f := range s.Stacks.Calls(k.stack) {
				used[f] = true
				locations = append(locations, uint64(f)+2)
			}
		}
		p.Sample(locations, sums[k][:], pprof.Label{Key: "device", Text: strconv.Itoa(k.device)},
			pprof.Label{Key: "stream", Text: strconv.FormatUint(k.stream, 10)})
	}
	location := func(id uint64, f Frame) { p.Location(id, f.Name, f.File, f.Line) }
	location(1, unknownFrame)
	for f, u := range used {
		if u {
			location(uint64(f)+2, s.Stacks.Frame(FrameID(f)))
		}
	}
	return p.Write(w, s.lastTime()*1000, 0)
}

// lastTime returns the time of the newest event in microseconds since 1970, or 0.
func (s *Snapshot) lastTime() int64 {
	var t int64
	for _, trace := range s.Traces {
		if n := len(trace); n > 0 {
			t = max(t, trace[n-1].TimeUS)
		}
	}
	return t
}
