package compile

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
)

// pathsPerBranch is how many times Opt.Branches the paths are that a region keeps: different runs, and different orders of recordings.
const pathsPerBranch = 4

// paths returns how many paths a region keeps.
func (o *Opt) paths() int { return pathsPerBranch * o.Branches }

// thrashSpan says when forgetting does harm: when what is forgotten was used in the latest runs, as many as this times what is kept.
const thrashSpan = 4

const thrashText = "A compiled region forgets work that it may need again: it keeps %d %s, and now a further one has come at %s (%s). " +
	"The one that was used least recently goes; when it comes back, it is recorded anew, which takes longer than running it without a " +
	"graph. To change that, %s, or raise compile.Opt.Branches."

const forgottenHelp = ", or raise compile.Opt.Branches: the region keeps %d %s, and forgets each before it comes again"

// thrashes reports whether what a region forgets, last used age runs ago, will probably be needed again: once, for a warning.
func (t *trace) thrashes(age, kept int) bool {
	first := !t.thrashed && age <= thrashSpan*kept
	t.thrashed = t.thrashed || first
	return first
}

// warnThrash warns that there were kept things when a further one came at a line, for the reason differs.
func (t *trace) warnThrash(kept int, what, at, differs string) {
	if t.tells(at) {
		help := cmp.Or(remedy(differs), "pad inputs to a few fixed shapes, or make fewer different calls")
		slog.Warn(fmt.Sprintf(thrashText, kept, what, at, differs, help))
	}
}

// makeRoom forgets the least recently used branches until there is room for c below n. It returns false if Frozen forbids that.
func (t *trace) makeRoom(n, c *node) bool {
	if len(n.next) == 0 {
		return true
	}
	was, what := n.next[0], "different calls after one"
	for {
		from, i, kept := n, 0, len(n.next)
		for k, b := range n.next {
			if b.Used() < n.next[i].Used() {
				i = k
			}
		}
		if kept < t.opt.Branches {
			what = "different runs"
			if from, i, kept = t.oldest(); kept < t.opt.paths() {
				return true
			}
		}
		if t.of.frozen {
			return false
		}
		switch harm := t.thrashes(t.stats.Runs-from.next[i].Used(), kept); {
		case harm && t.stats.Replays == 0 && t.opt.shapes() >= 0:
			t.warnNever(was, c, fmt.Sprintf(forgottenHelp, kept, what))
		case harm:
			t.warnThrash(kept, what, c.at, was.Call.Differs(c.Call))
		}
		t.forget(from, i)
		t.forgottenFor = c.at
	}
}

// oldest returns the branch from.next[i] that only the least recently used path of calls needs, and the number of paths. The current path
// is none of them.
func (t *trace) oldest() (from *node, i, paths int) {
	type branch struct {
		n *node
		i int
	}
	todo, used := []branch{{&node{next: []*node{t.root}}, 0}}, t.stats.Runs
	for len(todo) > 0 {
		b := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		c := b.n.next[b.i]
		for len(c.next) == 1 {
			if c.next[0].Used() < c.Used() || c == t.root { // shorter runs end here
				b = branch{c, 0}
			}
			c = c.next[0]
		}
		for k := range c.next {
			todo = append(todo, branch{c, k})
		}
		if len(c.next) > 0 {
			continue
		}
		paths++
		if c.Used() < used {
			from, i, used = b.n, b.i, c.Used()
		}
	}
	return from, i, paths
}

// forget drops the branch from.next[i] with its functions.
func (t *trace) forget(from *node, i int) {
	gone := from.next[i]
	from.next = slices.Delete(from.next, i, i+1)
	if from.Expect(nil); len(from.next) > 0 {
		from.Expect(&from.next[0].Expected)
	}
	t.stats.Forgotten++
	for todo := []*node{gone}; len(todo) > 0; {
		n := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], n.next...)
		maps.DeleteFunc(t.told, func(c cutAt, _ bool) bool { return c.after == n }) //tenon:unordered removes entries
		for _, f := range n.ends {
			f.fo.gone = append(f.fo.gone, f)
			t.uncountShape(f)
		}
	}
}

// sweep closes the recordings of functions that are gone, with those after them. Those of the path, and what the path has of the functions,
// stay until it has been left.
func (fo *forest) sweep() {
	if len(fo.gone) == 0 {
		return
	}
	fo.prune(func(r *recording) bool { return slices.Contains(fo.gone, r.f) })
	fo.mu.Lock()
	defer fo.mu.Unlock()
	fo.gone = slices.DeleteFunc(fo.gone, func(f *function) bool {
		if slices.Contains(fo.ran, f) || slices.ContainsFunc(fo.warm, func(o output) bool { return o.f == f }) {
			return false
		}
		delete(fo.warned, f)
		maps.DeleteFunc(fo.rerecorded, func(p place, _ int) bool { return p.f == f }) //tenon:unordered removes entries
		fo.warmers = slices.DeleteFunc(fo.warmers, func(o *function) bool { return o == f })
		return true
	})
}

// prune closes the recordings for which gone is true, unless they are on the path, and those after them.
func (fo *forest) prune(gone func(r *recording) bool) {
	var closed []*recording
	var rest func(rs []*recording) []*recording
	rest = func(rs []*recording) []*recording {
		return slices.DeleteFunc(rs, func(r *recording) bool {
			if gone(r) && !slices.Contains(fo.path, r) {
				closed = append(closed, r)
				return true
			}
			r.children = rest(r.children)
			return false
		})
	}
	fo.mu.Lock()
	fo.roots = rest(fo.roots)
	fo.mu.Unlock()
	for _, r := range closed {
		r.close()
	}
	closed = recordingsOf(closed)
	//tenon:unordered removes entries
	maps.DeleteFunc(fo.rerecorded, func(p place, _ int) bool { return slices.Contains(closed, p.after) })
}

// makeRoom closes the least recently used paths of recordings that end with functions of f's region until there is room for a further one.
func (fo *forest) makeRoom(f *function) {
	for {
		var oldest *recording
		paths := 0
		for _, r := range recordingsOf(fo.roots) {
			if len(r.children) > 0 || r.f.t != f.t || slices.Contains(fo.path, r) {
				continue
			}
			if paths++; oldest == nil || r.used < oldest.used {
				oldest = r
			}
		}
		if paths < f.t.opt.paths() {
			return
		}
		if f.t.thrashes(fo.begun-oldest.used, paths) {
			f.t.warnThrash(paths, "orders of recordings", f.calls[0].at, "it runs after other recordings than before")
		}
		f.t.stats.Forgotten++
		f.t.forgottenFor = f.calls[0].at
		fo.prune(func(r *recording) bool { return r == oldest })
	}
}
