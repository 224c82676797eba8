package compile

import (
	"slices"

	"tenon.dev/internal/core"
)

const (
	managedMoved = "cudagraph managed tensor data pointer changed"
	staticMoved  = "static input data pointer changed"
)

// noteDead notes which outputs of the path before r nobody had when r was made, apart from those that its own calls closed. It looks after
// the recording, which may use the memory of what another session's backward pass, or a collection of garbage, freed meanwhile.
func (r *recording) noteDead(path []*recording) {
	for d, p := range path {
		for i, s := range p.stores {
			if at := (Index{d, i}); (!s.Alive() || s.Moved()) && !slices.Contains(r.ending, at) {
				r.dead = append(r.dead, at)
			}
		}
	}
}

// mismatch returns why r cannot run now, or "", and whether an address is the cause.
func (fo *forest) mismatch(r *recording, g *core.Segment) (why string, address bool) {
	for i, src := range r.inputs {
		in := &g.Inputs()[i]
		if src.managed {
			s := fo.path[src.of[0]].stores
			if src.of[1] >= len(s) || s[src.of[1]].Number() != in.Number() || in.Addr() != r.g.Input(i) {
				return managedMoved, true
			}
		}
	}
	for _, at := range r.dead {
		if s := fo.path[at[0]].stores[at[1]]; s.Alive() && !s.Moved() {
			return "expected dead indices before graph are live", false
		}
	}
	for i, src := range r.inputs {
		if src.static && g.Inputs()[i].Addr() != r.g.Input(i) {
			return staticMoved, true
		}
	}
	for _, at := range r.ending {
		if s := fo.path[at[0]].stores[at[1]]; s.Alive() && !s.Moved() && !g.Ending(s) {
			return "an input that was closed is open", false
		}
	}
	for _, i := range g.Open() {
		if !r.kept[i] && g.Wanted(int(i)) {
			return "an output that was closed is open", false
		}
	}
	return "", false
}

// replay runs r.
func (fo *forest) replay(r *recording, g *core.Segment) error {
	fo.runs.Add(1)
	if err := g.Replay(r.g, false, false); err != nil {
		return err
	}
	r.used = fo.begun
	r.f.t.stats.Replays++
	r.f.replays++
	fo.dev.UsedLent(g.Stream().ID())
	fo.mu.Lock()
	defer fo.mu.Unlock()
	clear(r.stores)
	for k, i := range r.outputs {
		if g.Wanted(i) {
			r.stores[k] = g.Output(i)
		}
	}
	fo.path, fo.ran = append(fo.path, r), append(fo.ran, r.f)
	fo.state, fo.generation = execution, fo.now()
	r.about.Runs++
	r.about.Generation = int64(fo.generation)
	return nil
}

// restore sets the pool to its state after the last recording of the path, with the outputs that are in use now.
func (fo *forest) restore() error {
	c, ok := core.Claim(fo.session, fo.stores(), false)
	defer c.Release()
	if !ok {
		return errInUse
	}
	return fo.reclaim()
}

func (fo *forest) reclaim() error {
	fo.checkpoints++
	return core.Reclaim(fo.current().checkpoint, fo.stores())
}
