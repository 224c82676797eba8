package memviz

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// The sizes of PyTorch's (c10/cuda/CUDACachingAllocator.cpp) and Tenon's allocators, in bytes.
const (
	smallRequest  = 1 << 20  // requests up to this go to the small pool
	smallSegment  = 2 << 20  // segments of the small pool
	largeSegment  = 20 << 20 // segments of the large pool for requests below directRequest
	directRequest = 10 << 20 // from here on a segment is as large as the request
)

// segmentFor returns the bytes that the allocator requests from the driver.
func segmentFor(size uint64) uint64 {
	switch {
	case size <= smallRequest:
		return smallSegment
	case size < directRequest:
		return largeSegment
	}
	return (size + smallSegment - 1) / smallSegment * smallSegment
}

// maxCandidates and maxHolders bound the lists of OOM.
const (
	maxCandidates = 20
	maxHolders    = 20
)

// The reasons why a free piece cannot serve a request.
const (
	tooSmall    = "too small"
	otherStream = "other stream"
	otherPool   = "other pool"
	otherKind   = "other kind"
	splitLimit  = "split limit"
	unexplained = "unexplained"
)

// reasonText explains the reasons.
var reasonText = map[string]string{
	tooSmall:    "Pieces smaller than the request; free memory is not moved together.",
	otherStream: "Pieces large enough that belong to another stream; the allocator does not hand them over.",
	otherPool: "Pieces large enough in another pool: a private one, such as a graph's, serves only its owner, and its owner is served " +
		"by nothing else.",
	otherKind:   "Pieces in the pool of the other kind: requests up to 1 MiB and larger ones never share segments.",
	splitLimit:  "Pieces that max_split_size_mb keeps for larger requests, or that are so much larger that it forbids wasting them.",
	unexplained: "Pieces that look large enough. The trace does not say which pool a request was for: it may have been another one.",
}

// piece is free memory in a segment.
type piece struct {
	Candidate
	kindOK, streamOK, poolOK bool
	whole                    bool // a segment of the default pool that could be returned to the driver
}

// oom explains the index-th failed allocation of a device.
func (rec *Recording) oom(d *device, index int) (*OOM, error) {
	if index < 0 || index >= len(d.entry.OOMs) {
		return nil, fault.New(fault.Invalid, "device %d has %d failed allocations; there is no number %d", d.index,
			len(d.entry.OOMs), index)
	}
	at := d.entry.OOMs[index]
	e, err := rec.event(d, at)
	if err != nil {
		return nil, err
	}
	state := at + 1
	o := &OOM{State: state, Size: e.Size, DeviceFree: e.Addr, Stream: strconv.FormatUint(e.Stream, 10), TimeUS: e.TimeUS,
		Stack: rec.text.stack(uint32(e.Stack)), Cached: d.cachedLine.total(state), Candidates: []Candidate{}, Reasons: []Reason{}}
	live := d.activeLine.live(state)
	var pending uint64
	for _, id := range live {
		o.Active += d.active.size[id]
		if int(d.active.freed[id]) <= state {
			pending += d.active.size[id]
		}
	}
	o.Holders, _, _ = rec.group(d, live, maxHolders)
	pool := d.requestPool(state, e.stream)
	pieces := rec.pieces(d, state, e, pool)
	limit := rec.splitLimit()
	for i := range pieces {
		p := &pieces[i]
		p.Why = p.why(e.Size, limit)
		o.Free += p.Size
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(a.Addr, b.Addr)) })
	for _, p := range pieces[:min(len(pieces), maxCandidates)] {
		o.Candidates = append(o.Candidates, p.Candidate)
	}
	o.count(pieces)
	o.summarise(pieces, pending, pool, rec.expandable())
	return o, nil
}

// defaultPool is the name of the pool for requests that name none.
const defaultPool = "(0,0)"

// requestPool guesses the pool for which a request on a stream, failed before state, was made, since the trace does not say: the pool of
// the stream's previous allocation. A capture's stream allocates only from the capture's pool while the capture lasts.
func (d *device) requestPool(state int, stream uint16) string {
	a := &d.active
	n, _ := slices.BinarySearch(a.start, uint32(state)) // the number of allocations that began before it; start is sorted
	for i := n - 1; i >= 0 && a.start[i] > 0; i-- {
		if a.stream[i] == stream {
			if name := d.pools[d.poolOf(uint32(i))]; name != "" {
				return name
			}
			break
		}
	}
	return defaultPool
}

// pieces returns the free memory of a state, judged for a failed request for a pool.
func (rec *Recording) pieces(d *device, state int, e traceEvent, pool string) []piece {
	kind := "large"
	if e.Size <= smallRequest {
		kind = "small"
	}
	var out []piece
	for _, s := range rec.blocks(d, state).Segments {
		base, _ := strconv.ParseUint(s.Addr, 0, 64)
		s.gaps(func(offset, size uint64, after int) {
			// The large pool does not split off a remainder of at most 1 MiB: it belongs to the block before it.
			if s.Kind == "large" && !s.Expandable && after > 0 && size <= smallRequest {
				return
			}
			p := piece{Candidate: Candidate{Addr: addrText(base + offset), Size: size,
				Stream: strconv.FormatUint(d.entry.Streams[s.Stream], 10),
				Pool:   d.pools[s.Pool], Kind: s.Kind, Segment: s.Addr, Before: -1, After: -1}}
			if after > 0 {
				p.Before = int(s.Blocks[after-1].ID)
			}
			if after < len(s.Blocks) {
				p.After = int(s.Blocks[after].ID)
			}
			p.kindOK, p.streamOK, p.poolOK = s.Kind == kind || s.Kind == "", s.Stream == int(e.stream), p.Pool == "" || p.Pool == pool
			p.whole = !s.Expandable && p.Before < 0 && p.After < 0 && p.Pool == defaultPool
			out = append(out, p)
		})
	}
	return out
}

// why says why the piece cannot serve a request; limit is max_split_size in bytes, 0 for none.
func (p *piece) why(size, limit uint64) string {
	switch {
	case p.Size < size:
		return tooSmall
	case !p.poolOK:
		return otherPool
	case !p.kindOK:
		return otherKind
	case !p.streamOK:
		return otherStream
	case limit > 0 && (size < limit && p.Size >= limit || size >= limit && p.Size >= size+largeSegment):
		return splitLimit
	}
	return unexplained
}

// splitLimit returns the setting max_split_size in bytes, 0 if it is infinite.
func (rec *Recording) splitLimit() uint64 {
	switch v := rec.settings["max_split_size"].(type) {
	case float64:
		if v > 0 && v < 1<<62 {
			return uint64(v)
		}
	case int64:
		if v > 0 {
			return uint64(v)
		}
	}
	return 0
}

// expandable reports whether expandable segments were on.
func (rec *Recording) expandable() bool {
	on, _ := rec.settings["expandable_segments"].(bool)
	return on
}

// count fills Reasons.
func (o *OOM) count(pieces []piece) {
	for _, p := range pieces {
		i := slices.IndexFunc(o.Reasons, func(r Reason) bool { return r.Why == p.Why })
		if i < 0 {
			i = len(o.Reasons)
			o.Reasons = append(o.Reasons, Reason{Why: p.Why, Text: reasonText[p.Why]})
		}
		r := &o.Reasons[i]
		r.Pieces++
		r.Bytes += p.Size
		r.Largest = max(r.Largest, p.Size)
	}
	slices.SortStableFunc(o.Reasons, func(a, b Reason) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// summarise writes the sentences.
func (o *OOM) summarise(pieces []piece, pending uint64, pool string, expandable bool) {
	say := func(format string, args ...any) { o.Summary = append(o.Summary, fmt.Sprintf(format, args...)) }
	segment := segmentFor(o.Size)
	switch {
	case o.Size > o.Cached+o.DeviceFree:
		say("%s were asked for, more than all that this process could have had: %s in its segments and %s free in the driver. No "+
			"setting helps; ask for less.",
			plainSizeText(o.Size), plainSizeText(o.Cached), plainSizeText(o.DeviceFree))
	case o.DeviceFree < segment:
		say("%s were asked for. No free piece fitted, and the driver had only %s left for a new segment of %s.",
			plainSizeText(o.Size), plainSizeText(o.DeviceFree), plainSizeText(segment))
	default:
		say("%s were asked for. No free piece fitted, and although the driver had %s free, no segment of %s was had: a memory fraction, "+
			"or another process, stood in the way.",
			plainSizeText(o.Size), plainSizeText(o.DeviceFree), plainSizeText(segment))
	}
	var fit, ours uint64 // free memory that did not fit only because of its stream, pool or kind; free memory of the right ones
	var largest, whole uint64
	count := 0
	for _, p := range pieces {
		if p.whole {
			whole += p.Size
		}
		if p.poolOK && p.kindOK && p.streamOK {
			ours += p.Size
			largest = max(largest, p.Size)
			count++
		} else if p.Size >= o.Size {
			fit += p.Size
		}
	}
	if ours >= o.Size && largest < o.Size {
		text := fmt.Sprintf("The right stream and pool had %s free, in %d pieces of at most %s: enough, but in fragments.",
			plainSizeText(ours), count, plainSizeText(largest))
		if !expandable {
			text += " Try expandable_segments:True, which lets free memory grow together."
		}
		say("%s", text)
	}
	if fit > 0 {
		say("%s were free in large enough pieces that belong to another stream, pool or kind. Freeing earlier on that stream, or "+
			"emptying the cache, gives whole segments back.", plainSizeText(fit))
	}
	if pool != defaultPool {
		say("The allocation before it on this stream was served from the private pool %s, so the request is taken to be for that.", pool)
	}
	if whole > 0 && o.DeviceFree < segment && o.DeviceFree+whole >= segment {
		say("%s lie in free segments of the default pool that the driver could have had back; while a CUDA graph is captured nothing is "+
			"given back. Empty the cache before a capture.", plainSizeText(whole))
	}
	if pending > 0 {
		say("%s had been freed but wait until other streams are done with them.", plainSizeText(pending))
	}
	if len(o.Holders) > 0 && o.Active > 0 {
		h := o.Holders[0]
		say("%s were in use. The stack that held most, %s (%.0f %%), is %s.", plainSizeText(o.Active), plainSizeText(h.Bytes),
			100*float64(h.Bytes)/float64(o.Active), h.Label)
	}
}

// oomPoints returns where allocations failed, at most n.
func (rec *Recording) oomPoints(d *device, n int) ([]OOMPoint, error) {
	out := []OOMPoint{}
	for _, i := range d.entry.OOMs[:min(n, len(d.entry.OOMs))] {
		e, err := rec.event(d, i)
		if err != nil {
			return nil, err
		}
		if e.Action != snapshot.ActionOOM {
			return nil, damaged("a failed allocation is something else")
		}
		out = append(out, OOMPoint{State: i + 1, Size: e.Size})
	}
	return out, nil
}
