package compile

import (
	"reflect"
	"runtime"
	"slices"

	"tenon.dev/internal/alloc"
	"tenon.dev/internal/core"
	"tenon.dev/internal/snapshot"
)

// nameOf returns the name of a function of the program.
func nameOf(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// node returns the part of f's description in snapshots that all its recordings and warm-ups share.
func (f *function) node() *snapshot.TreeNode {
	t := f.t
	if t.ahead != nil {
		t = t.ahead
	}
	return &snapshot.TreeNode{ID: -2 - int64(f.id), Parent: -1, Function: int64(f.id), Name: t.name, Kind: string(f.kind),
		From: f.calls[0].at, To: f.last.at, Calls: int64(len(f.calls)), Place: -1}
}

// outputOf describes storage i of those that the calls make.
func (f *function) outputOf(g *core.Segment, i int) snapshot.TreeOutput {
	k := g.MakerOf(i)
	return snapshot.TreeOutput{Addr: g.Output(i).Addr(), Size: g.OutputBytes(i), Op: g.Op(k), At: f.calls[k].at}
}

// segments returns the pool's segments.
func (fo *forest) segments() []alloc.SegmentInfo { return fo.dev.Memory().PoolSegments(fo.pool.ID()) }

// reserved returns the bytes of the pool's segments.
func (fo *forest) reserved() (n uint64) {
	for _, s := range fo.segments() {
		n += s.TotalSize
	}
	return n
}

// grownFrom returns by how many bytes the pool has grown since it had before bytes.
func (fo *forest) grownFrom(before uint64) uint64 {
	now := fo.reserved()
	return now - min(now, before)
}

// aboutOf describes a recording that g has just made. The pool had before bytes when the recording began.
func (fo *forest) aboutOf(r *recording, g *core.Segment, before uint64) *snapshot.TreeNode {
	n := r.f.node()
	n.ID = int64(r.id)
	if r.parent != nil {
		n.Parent = int64(r.parent.id)
	}
	n.Grown = fo.grownFrom(before)
	for _, i := range r.outputs {
		n.Outputs = append(n.Outputs, r.f.outputOf(g, i))
	}
	in := fo.segments()
	for addr, size := range g.Memory(r.g) {
		if size > 0 && slices.ContainsFunc(in, func(s alloc.SegmentInfo) bool { return addr-s.Addr < s.TotalSize }) {
			n.Spans = append(n.Spans, [2]uint64{addr, size})
		}
	}
	n.Spans = snapshot.JoinSpans(n.Spans)
	for _, s := range n.Spans {
		n.Used += s[1]
	}
	return n
}

// warmer returns the description of f's runs without a graph, which snapshots show from now on.
func (fo *forest) warmer(f *function) *snapshot.TreeNode {
	if f.about == nil {
		f.about = f.node()
		f.about.WarmUp = true
	}
	if !slices.Contains(fo.warmers, f) {
		fo.warmers = append(fo.warmers, f)
	}
	return f.about
}

// grew notes a run of f without a graph. The pool had before bytes when the run began.
func (fo *forest) grew(f *function, before uint64) {
	grown := fo.grownFrom(before)
	fo.mu.Lock()
	defer fo.mu.Unlock()
	n := fo.warmer(f)
	n.Grown += grown
	n.Runs++
	n.Generation = int64(fo.generation)
}

// tree describes the forest for a snapshot of its device.
func (fo *forest) tree(s *snapshot.Snapshot) snapshot.Tree {
	fo.mu.Lock()
	defer fo.mu.Unlock()
	t := snapshot.Tree{State: string(fo.state), Generation: int64(fo.generation)}
	if fo.pool == nil {
		return t
	}
	taken := map[uint64]bool{} // blocks in use whose owner, the latest run that made the block, is still to be found
	for i := range s.Segments {
		if s.Segments[i].Pool == fo.pool.ID() {
			for _, b := range s.Segments[i].Blocks {
				taken[b.Addr] = b.State == snapshot.ActiveAllocated
			}
		}
	}
	live := func(s core.Store) bool {
		if !s.Held() || fo.state != execution && !taken[s.Addr()] {
			return false
		}
		taken[s.Addr()] = false
		return true
	}
	warm := map[*function][]snapshot.TreeOutput{}
	for _, o := range slices.Backward(fo.warm) {
		about := *o.about
		if about.Live = live(o.Store); about.Live {
			warm[o.f] = append(warm[o.f], about)
		}
	}
	place := map[*recording]int{}
	outputs := map[*recording][]snapshot.TreeOutput{}
	for i, r := range slices.Backward(fo.path) {
		place[r], outputs[r] = i, slices.Clone(r.about.Outputs)
		for k, s := range r.stores {
			outputs[r][k].Live = live(s)
		}
	}
	for _, r := range recordingsOf(fo.roots) {
		n := *r.about
		if i, ok := place[r]; ok {
			n.Place, n.Outputs = int64(i), outputs[r]
		}
		t.Nodes = append(t.Nodes, n)
	}
	for _, f := range fo.warmers {
		n := *f.about
		n.Outputs = warm[f]
		t.Nodes = append(t.Nodes, n)
	}
	return t
}
