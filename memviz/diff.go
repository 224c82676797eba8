package memviz

import (
	"cmp"
	"encoding/binary"
	"path/filepath"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// maxDiffGroups bounds the groups of a Diff.
const maxDiffGroups = 500

// The moments of a comparison.
const (
	atEnd  = "end"
	atPeak = "peak"
)

// moment returns the state that a moment means.
func (d *device) moment(at string) (int, error) {
	switch at {
	case atEnd:
		return d.entry.Events, nil
	case atPeak:
		return d.activeLine.peak, nil
	}
	return 0, fault.New(fault.Invalid, "a comparison is at %s or %s, not at %q", atEnd, atPeak, at)
}

// compare returns what two recordings hold on a device, by stack. If before has no such device, as with recordings of two processes that
// used one device each, its main device is compared.
func compare(before, after *Recording, number int, at string) (*Diff, error) {
	out := &Diff{At: at, BeforeFile: filepath.Base(before.name), AfterFile: filepath.Base(after.name), Groups: []DiffGroup{},
		OnlyBefore: []Segment{}, OnlyAfter: []Segment{}}
	b, err := before.device(number)
	if main := before.MainDevice(); err != nil && main >= 0 {
		b, err = before.device(main)
	}
	if err != nil {
		return nil, err
	}
	a, err := after.device(number)
	if err != nil {
		return nil, err
	}
	out.BeforeDevice, out.AfterDevice = b.index, a.index
	index := map[string]int{}
	add := func(rec *Recording, d *device, active, cached *uint64, count func(g *DiffGroup, bytes uint64)) error {
		state, err := d.moment(at)
		if err != nil {
			return err
		}
		*cached = d.cachedLine.total(state)
		keys := make(map[uint32]int)
		for _, id := range d.activeLine.live(state) {
			stack := d.active.stack[id]
			i, ok := keys[stack]
			if !ok {
				key := stackKey(rec.stacks, stack)
				if i, ok = index[key]; !ok {
					i = len(out.Groups)
					index[key] = i
					s := rec.text.stack(stack)
					out.Groups = append(out.Groups, DiffGroup{Label: s.Label, Frames: s.Frames})
				}
				keys[stack] = i
			}
			*active += d.active.size[id]
			count(&out.Groups[i], d.active.size[id])
		}
		return nil
	}
	err = add(before, b, &out.BeforeActive, &out.BeforeCached, func(g *DiffGroup, n uint64) { g.BeforeBytes += n; g.BeforeCount++ })
	if err == nil {
		err = add(after, a, &out.AfterActive, &out.AfterCached, func(g *DiffGroup, n uint64) { g.AfterBytes += n; g.AfterCount++ })
	}
	if err != nil {
		return nil, err
	}
	out.finish()
	out.OnlyBefore, out.OnlyAfter = onlyIn(before, b, after, a, at), onlyIn(after, a, before, b, at)
	return out, nil
}

// stackKey returns a stack as a map key, equal for two files if the frames are equal.
func stackKey(s *snapshot.Stacks, id uint32) string {
	var b []byte
	for f := range s.All(snapshot.StackID(id)) {
		b = binary.AppendVarint(append(append(b, f.File...), 0), int64(f.Line))
		b = append(append(b, f.Name...), 0)
	}
	return string(b)
}

// change returns the difference of the group in bytes.
func (g *DiffGroup) change() uint64 {
	return max(g.BeforeBytes, g.AfterBytes) - min(g.BeforeBytes, g.AfterBytes)
}

// finish sorts the groups and adds up those beyond the limit.
func (d *Diff) finish() {
	slices.SortStableFunc(d.Groups, func(a, b DiffGroup) int {
		return cmp.Or(cmp.Compare(b.change(), a.change()), cmp.Compare(b.AfterBytes, a.AfterBytes))
	})
	d.Rest = DiffGroup{Label: "all others", Frames: []Frame{}}
	n := min(len(d.Groups), maxDiffGroups)
	for _, g := range d.Groups[n:] {
		d.Rest.BeforeBytes += g.BeforeBytes
		d.Rest.AfterBytes += g.AfterBytes
		d.Rest.BeforeCount += g.BeforeCount
		d.Rest.AfterCount += g.AfterCount
	}
	d.Groups = d.Groups[:n]
}

// onlyIn returns the segments of one recording that the other does not have, compared by address and size. Stream and pool index the
// lists of the first.
func onlyIn(rec *Recording, d *device, other *Recording, od *device, at string) []Segment {
	list := func(r *Recording, d *device) []Segment {
		state, _ := d.moment(at) // checked by the caller
		return r.blocks(d, state).Segments
	}
	type key struct {
		addr string
		size uint64
	}
	has := map[key]bool{}
	for _, s := range list(other, od) {
		has[key{s.Addr, s.Size}] = true
	}
	out := []Segment{}
	for _, s := range list(rec, d) {
		if !has[key{s.Addr, s.Size}] {
			s.Blocks = []Block{}
			out = append(out, s)
		}
	}
	return out
}
