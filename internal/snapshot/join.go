package snapshot

import (
	"cmp"
	"math"
	"slices"

	"tenon.dev/fault"
)

// Join merges snapshots of different devices into one, with the segments by address. Its settings are those of the first part. The parts
// are not changed.
func Join(parts []*Snapshot) (*Snapshot, error) {
	out := &Snapshot{Stacks: &Stacks{}, Notes: make([]Note, 1)}
	owner := map[int]int{} // part by device
	for i, p := range parts {
		claim := func(device int) error {
			if o, taken := owner[device]; taken && o != i {
				return fault.New(fault.Invalid, "two of the snapshots are of device %d; join snapshots of different devices", device)
			}
			owner[device] = i
			return nil
		}
		stacks := make([]StackID, p.Stacks.Len())
		stack := func(id StackID) StackID {
			if id != 0 && stacks[id] == 0 {
				stacks[id] = out.Stacks.Add(p.Stacks.Frames(id))
			}
			return stacks[id]
		}
		for _, g := range p.Segments {
			if err := claim(g.Device); err != nil {
				return nil, err
			}
			g.Stack = stack(g.Stack)
			g.Blocks = slices.Clone(g.Blocks)
			for k := range g.Blocks {
				g.Blocks[k].Stack = stack(g.Blocks[k].Stack)
			}
			out.Segments = append(out.Segments, g)
		}
		notes := out.addNotes(p.Notes)
		for len(out.Traces) < len(p.Traces) {
			out.Traces = append(out.Traces, nil)
		}
		for device, trace := range p.Traces {
			if len(trace) == 0 {
				continue
			}
			if err := claim(device); err != nil {
				return nil, err
			}
			trace = slices.Clone(trace)
			for k := range trace {
				trace[k].Stack, trace[k].Note = stack(trace[k].Stack), notes[trace[k].Note]
			}
			out.Traces[device] = trace
		}
		out.Annotations = append(out.Annotations, p.Annotations...)
		out.Trees = append(out.Trees, p.Trees...)
		if i == 0 {
			out.Settings = p.Settings
		}
	}
	slices.SortStableFunc(out.Segments, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Device, b.Device))
	})
	slices.SortStableFunc(out.Annotations, func(a, b Annotation) int { return cmp.Compare(a.TimeUS, b.TimeUS) })
	return out, nil
}

// addNotes adds notes, the first of which is empty, and returns where each of them stands now: those that an index has no room for at 0.
func (s *Snapshot) addNotes(notes []Note) []uint16 {
	at := make([]uint16, max(len(notes), 1))
	for i, n := range notes {
		if i > 0 && len(s.Notes) <= math.MaxUint16 {
			at[i] = uint16(len(s.Notes))
			s.Notes = append(s.Notes, n)
		}
	}
	return at
}
