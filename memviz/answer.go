package memviz

import (
	"encoding/json"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"tenon.dev/fault"
)

// viewer answers requests about a recording, and about one that it is compared with.
type viewer struct {
	rec *Recording
	// before is what the diff compares rec with, or nil.
	before *Recording
	// first is the view to begin with.
	first View
}

// Limits of what one answer holds.
const (
	maxOOMs   = 10000
	maxTop    = 10000
	maxEvents = 10000
	maxFound  = 10000
	maxStacks = 10000
)

// answer returns the answer to a request, "tile?device=0&…": JSON, or a tile.
func (v *viewer) answer(path string, q url.Values) (body []byte, isTile bool, err error) {
	a := asked{q: q}
	if path == "tile" {
		t, err := v.tile(&a)
		return t, true, err
	}
	var out any
	switch path {
	case "info":
		out, err = v.info()
	case "stack":
		out, err = v.stacks(q.Get("id"))
	case "at", "blocks", "events", "alloc", "search", "oom", "diff", "trees":
		out, err = v.ofDevice(path, &a)
	default:
		err = fault.New(fault.Invalid, "there is no request %q", path)
	}
	if err == nil {
		err = a.err
	}
	if err != nil {
		return nil, false, err
	}
	body, err = json.Marshal(out)
	return body, false, err
}

// asked reads parameters; the first error stays.
type asked struct {
	q   url.Values
	err error
}

// number returns a parameter, or standard if it is left out.
func (a *asked) number(name string, standard uint64, most uint64) uint64 {
	text := a.q.Get(name)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		if a.err == nil {
			a.err = fault.New(fault.Invalid, "the parameter %s is %q; it must be a number from 0 to %d", name, text, most)
		}
		return 0
	}
	return n
}

// device returns the device that is asked for.
func (v *viewer) device(a *asked) (*device, error) {
	n := a.number("device", 0, 1<<20)
	if a.err != nil {
		return nil, a.err
	}
	return v.rec.device(int(n))
}

// ofDevice answers the requests about one device.
func (v *viewer) ofDevice(path string, a *asked) (any, error) {
	d, err := v.device(a)
	if err != nil {
		return nil, err
	}
	last := uint64(d.entry.Events)
	switch path {
	case "at":
		state, top := a.number("state", 0, last), a.number("top", 20, maxTop)
		if a.err == nil {
			return v.rec.at(d, int(state), int(top), a.q.Get("filter"))
		}
	case "blocks":
		if state := a.number("state", 0, last); a.err == nil {
			return v.rec.blocks(d, int(state)), nil
		}
	case "events":
		from, count := a.number("from", 0, last), a.number("count", 100, maxEvents)
		if a.err == nil {
			return v.rec.eventList(d, int(from), int(count))
		}
	case "alloc":
		view := View(a.q.Get("view"))
		line, err := v.rec.line(d, view, "")
		if err != nil {
			return nil, err
		}
		if id := a.number("id", math.MaxUint64, uint64(len(line.start))); a.err == nil {
			if id >= uint64(len(line.start)) {
				return nil, fault.New(fault.Invalid, "there are %d allocations; there is no number %q", len(line.start), a.q.Get("id"))
			}
			return v.rec.allocation(d, view, uint32(id)), nil
		}
	case "search":
		if limit := a.number("limit", 100, maxFound); a.err == nil {
			return v.rec.search(d, a.q.Get("q"), int(limit))
		}
	case "oom":
		if k := a.number("index", 0, maxOOMs); a.err == nil {
			return v.rec.oom(d, int(k))
		}
	case "trees":
		return treesOf(v.rec.trees, v.rec.segments, d.index), nil
	case "diff":
		if v.before == nil {
			return nil, fault.New(fault.Invalid, "nothing to compare with; start the viewer with two files")
		}
		return compare(v.before, v.rec, d.index, a.q.Get("at"))
	}
	return nil, a.err
}

// tile answers a request for a tile.
func (v *viewer) tile(a *asked) (Tile, error) {
	d, err := v.device(a)
	if err != nil {
		return nil, err
	}
	view := View(a.q.Get("view"))
	line, err := v.rec.line(d, view, a.q.Get("filter"))
	if err != nil {
		return nil, err
	}
	top := line.topTile()
	r := tileRequest{level: int(a.number("level", 0, uint64(top)))}
	if a.err != nil {
		return nil, a.err
	}
	r.index = int(a.number("index", 0, uint64(line.states-1)/(TileColumns<<r.level)))
	r.min, r.lo, r.hi = a.number("min", 0, 1<<62), a.number("lo", 0, 1<<62), a.number("hi", 0, 1<<62)
	if a.err != nil {
		return nil, a.err
	}
	l, marks := &d.active, d.marksOf
	if view == ViewCached {
		l, marks = &d.cached, d.segmentMarks
	}
	describe := func(id uint32) (uint32, uint32) { return l.stack[id], marks(id) }
	times := d.coarseTime
	if 1<<r.level < timeEvery {
		times = func(state int) int64 { return v.rec.timeOf(d, state) }
	}
	return line.draw(r, describe, times), nil
}

// stacks answers a request for stacks, numbers with commas between.
func (v *viewer) stacks(ids string) ([]Stack, error) {
	words := strings.Split(ids, ",")
	if len(words) > maxStacks {
		return nil, fault.New(fault.Invalid, "at most %d stacks can be asked for at a time", maxStacks)
	}
	out := []Stack{}
	for _, w := range words {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil || int(n) >= v.rec.stacks.Len() {
			return nil, fault.New(fault.Invalid, "%q is not a stack; there are %d", w, v.rec.stacks.Len())
		}
		out = append(out, v.rec.text.stack(uint32(n)))
	}
	return out, nil
}

// info answers what the file holds.
func (v *viewer) info() (*Info, error) {
	rec := v.rec
	out := &Info{File: filepath.Base(rec.name), Settings: rec.settings, Categories: categories(),
		Views: []View{ViewActive, ViewCached, ViewState}, First: v.first,
		Stacks: rec.stacks.Len(), Devices: []DeviceInfo{}}
	if v.before != nil {
		out.Diff = filepath.Base(v.before.name)
	}
	if out.Settings == nil {
		out.Settings = map[string]any{}
	}
	for _, d := range rec.devices {
		n := d.entry.Events
		i := DeviceInfo{Device: d.index, Events: n, States: n + 1, TopLevel: d.activeLine.topTile(), TimeStart: rec.timeOf(d, 0),
			TimeEnd:   rec.timeOf(d, n),
			MaxActive: d.activeLine.max, PeakState: d.activeLine.peak, MaxCached: d.cachedLine.max, CachedPeak: d.cachedLine.peak,
			EndActive: d.activeLine.last, EndCached: d.cachedLine.last, Allocations: d.active.len(), Pools: d.pools, Marks: d.marks,
			Streams: []string{}}
		for _, s := range d.entry.Streams {
			i.Streams = append(i.Streams, strconv.FormatUint(s, 10))
		}
		for k := range rec.segments {
			if rec.segments[k].Device == d.index {
				i.Segments++
			}
		}
		for k := range rec.trees {
			if rec.trees[k].Device == d.index {
				i.Trees++
			}
		}
		var err error
		if i.OOMs, err = rec.oomPoints(d, maxOOMs); err != nil {
			return nil, err
		}
		out.Categorised = out.Categorised || d.categorised
		out.Devices = append(out.Devices, i)
	}
	return out, nil
}
