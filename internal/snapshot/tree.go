package snapshot

import (
	"cmp"
	"math"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// Tree describes the recorded graphs that share a private pool: the CUDA graph trees of a session, one for each root.
type Tree struct {
	Device int
	Pool   [2]uint64
	// State is "idle", "warm-up", "recording" or "execution". In execution, tensors have memory that the allocator counts as free.
	State string
	// Generation is the generation of the path: the graphs that have run since the latest root, whose outputs may be in use.
	Generation int64
	// Nodes lists parents before their children.
	Nodes []TreeNode
}

// TreeNode describes a recording, or the runs of a function before it was recorded.
type TreeNode struct {
	// ID is the recording's number, and Parent the number of the recording before it, or -1. Numbers of warm-ups are below -1.
	ID, Parent int64
	// Function is its number, Name the region's or the callable's function in the program, and Kind "inference", "forward" or "backward".
	Function   int64
	Name, Kind string
	// From and To are the lines of the first and the last call, and Calls is the number of calls.
	From, To string
	Calls    int64
	// WarmUp says that the node describes runs without a graph.
	WarmUp bool
	// Runs counts the warm-ups, or the recording and its replays. Generation is the generation of the latest one.
	Runs, Generation int64
	// Place is the node's position in the path, from 0 on, or -1 if the node is not in the path.
	Place int64
	// Grown is how many bytes were added to the pool for it. Spans are the ranges of the pool that it writes or copies to when it runs, and
	// Used their total size in bytes.
	Grown, Used uint64
	Spans       [][2]uint64 // address and size
	// Outputs are the memory that is in use after it.
	Outputs []TreeOutput
}

// TreeOutput is memory that a node's calls make and that is in use after them.
type TreeOutput struct {
	Addr, Size uint64
	// Op is the operation that makes it, and At its line in the program.
	Op, At string
	// Live says that it was in use at the snapshot.
	Live bool
}

// JoinSpans sorts ranges of addresses, each a start and a size, and joins those that touch or overlap. It drops empty ranges and those that
// exceed the address space.
func JoinSpans(all [][2]uint64) (out [][2]uint64) {
	slices.SortFunc(all, func(a, b [2]uint64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	for _, s := range all {
		switch k := len(out) - 1; {
		case s[1] == 0 || s[0]+s[1] < s[0]:
		case k >= 0 && s[0] <= out[k][0]+out[k][1]:
			out[k][1] = max(out[k][1], s[0]+s[1]-out[k][0])
		default:
			out = append(out, s)
		}
	}
	return out
}

// The keys of a tree differ from those by which the reader recognises other parts of a file: see builder.take.

func (p *writer) int(key string, n int64) {
	p.String(key)
	p.Int(n)
}

func (p *writer) flag(key string, b bool) {
	p.String(key)
	p.Bool(b)
}

func (p *writer) tree(t *Tree) {
	p.EmptyDict()
	p.Mark()
	p.int("device", int64(t.Device))
	p.String("pool_id")
	p.Uint(t.Pool[0])
	p.Uint(t.Pool[1])
	p.Pair()
	p.text("phase", t.State)
	p.int("generation", t.Generation)
	p.String("nodes")
	p.list(min(len(t.Nodes), maxNodes), func(i int) { p.node(&t.Nodes[i]) })
	p.SetItems()
}

func (p *writer) node(n *TreeNode) {
	p.EmptyDict()
	p.Mark()
	p.int("id", n.ID)
	p.int("parent", n.Parent)
	p.int("function", n.Function)
	p.text("function_name", n.Name)
	p.text("kind", n.Kind)
	p.text("from", n.From)
	p.text("to", n.To)
	p.int("calls", n.Calls)
	p.flag("warm_up", n.WarmUp)
	p.int("runs", n.Runs)
	p.int("generation", n.Generation)
	p.int("place", n.Place)
	p.uint("grown", n.Grown)
	p.uint("used", n.Used)
	p.String("spans")
	p.list(len(n.Spans), func(i int) {
		p.Uint(n.Spans[i][0])
		p.Uint(n.Spans[i][1])
		p.Pair()
	})
	p.String("outputs")
	p.list(len(n.Outputs), func(i int) {
		o := &n.Outputs[i]
		p.EmptyDict()
		p.Mark()
		p.uint("at", o.Addr)
		p.uint("bytes", o.Size)
		p.text("op", o.Op)
		p.text("line_of_op", o.At)
		p.flag("live", o.Live)
		p.SetItems()
	})
	p.SetItems()
}

// maxNodes and maxTrees bound the nodes of a tree and the trees of a file, and so the work of a reader. A writer leaves out the rest.
const (
	maxNodes = 1 << 16
	maxTrees = 1 << 10
)

// CheckTrees returns an error unless every tree has a valid device, and its nodes are distinct, come after their parents and have valid
// places.
func CheckTrees(all []Tree) error {
	if len(all) > maxTrees {
		return fault.New(fault.Invalid, "the file is damaged: it has %d graph trees, more than %d", len(all), maxTrees)
	}
	for i := range all {
		t := &all[i]
		if t.Device < 0 || t.Device >= maxDevices || len(t.Nodes) > maxNodes {
			return fault.New(fault.Invalid, "the file is damaged: a graph tree has device %d and %d nodes", t.Device,
				len(t.Nodes))
		}
		seen := map[int64]bool{-1: true}
		for k := range t.Nodes {
			n := &t.Nodes[k]
			if !seen[n.Parent] || seen[n.ID] {
				return fault.New(fault.Invalid, "the file is damaged: node %d of a graph tree occurs twice or before its parent", n.ID)
			}
			if n.Place < -1 || n.Place > math.MaxInt32 {
				return fault.New(fault.Invalid, "the file is damaged: node %d of a graph tree has place %d in its path", n.ID, n.Place)
			}
			seen[n.ID] = true
		}
	}
	return nil
}

// parts reads the values of a dict by key. ok becomes false if a value is missing or has another type.
type parts struct {
	d  *pickle.Data
	of pickle.Ref
	ok bool
}

func (p *parts) at(key string) pickle.Ref {
	v, ok := p.d.Get(p.of, key)
	p.ok = p.ok && ok
	return v
}

func (p *parts) int(key string) int64 {
	n, ok := p.d.Int(p.at(key))
	p.ok = p.ok && ok
	return n
}

func (p *parts) uint(key string) uint64 {
	n, ok := p.d.Uint(p.at(key))
	p.ok = p.ok && ok
	return n
}

func (p *parts) text(key string) string {
	s, ok := p.d.Str(p.at(key))
	p.ok = p.ok && ok
	return s
}

func (p *parts) flag(key string) bool {
	b, ok := p.d.Bool(p.at(key))
	p.ok = p.ok && ok
	return b
}

// list returns a list's values. The parser has taken an empty list for a stack.
func (p *parts) list(key string) []pickle.Ref {
	v := p.at(key)
	if _, none := index(v, tagStack); none {
		return nil
	}
	p.ok = p.ok && v.Kind() == pickle.KindList
	return p.d.Items(v)
}

func (p *parts) pair(r pickle.Ref) (out [2]uint64) {
	items := p.d.Items(r)
	if len(items) != 2 {
		p.ok = false
		return out
	}
	var ok1, ok2 bool
	out[0], ok1 = p.d.Uint(items[0])
	out[1], ok2 = p.d.Uint(items[1])
	p.ok = p.ok && ok1 && ok2
	return out
}

// trees reads the trees of the file. Each must be complete.
func (b *builder) trees(d *pickle.Data, list pickle.Ref) error {
	if _, none := index(list, tagStack); none {
		return nil
	}
	if list.Kind() != pickle.KindList {
		return wrong(list, "graph_trees")
	}
	items := d.Items(list)
	if len(items) > maxTrees {
		return fault.New(fault.Invalid, "the file is damaged: it has %d graph trees, more than %d", len(items), maxTrees)
	}
	for _, r := range items {
		p := parts{d, r, r.Kind() == pickle.KindDict}
		if !p.ok {
			return wrong(r, "a graph tree")
		}
		t := Tree{Device: int(p.int("device")), Pool: p.pair(p.at("pool_id")), State: p.text("phase"), Generation: p.int("generation")}
		nodes := p.list("nodes")
		if !p.ok || len(nodes) > maxNodes {
			return fault.New(fault.Invalid, "the file is damaged: a graph tree is incomplete or too large")
		}
		for _, v := range nodes {
			n, err := treeNode(d, v)
			if err != nil {
				return err
			}
			t.Nodes = append(t.Nodes, n)
		}
		if err := d.Charge(256); err != nil {
			return err
		}
		b.s.Trees = append(b.s.Trees, t)
	}
	return CheckTrees(b.s.Trees)
}

func treeNode(d *pickle.Data, r pickle.Ref) (n TreeNode, err error) {
	p := parts{d, r, r.Kind() == pickle.KindDict}
	if !p.ok {
		return n, wrong(r, "a node of a graph tree")
	}
	n = TreeNode{ID: p.int("id"), Parent: p.int("parent"), Function: p.int("function"), Name: p.text("function_name"), Kind: p.text("kind"),
		From: p.text("from"), To: p.text("to"), Calls: p.int("calls"), WarmUp: p.flag("warm_up"), Runs: p.int("runs"),
		Generation: p.int("generation"),
		Place:      p.int("place"), Grown: p.uint("grown"), Used: p.uint("used")}
	spans, outputs := p.list("spans"), p.list("outputs")
	if err := d.Charge(512 + 32*len(spans) + 128*len(outputs)); err != nil {
		return n, err
	}
	for _, s := range spans {
		n.Spans = append(n.Spans, p.pair(s))
	}
	for _, o := range outputs {
		q := parts{d, o, p.ok && o.Kind() == pickle.KindDict}
		if q.ok {
			n.Outputs = append(n.Outputs, TreeOutput{Addr: q.uint("at"), Size: q.uint("bytes"), Op: q.text("op"), At: q.text("line_of_op"),
				Live: q.flag("live")})
		}
		p.ok = q.ok
	}
	if !p.ok {
		return n, fault.New(fault.Invalid, "the file is damaged: a node of a graph tree is incomplete")
	}
	return n, nil
}
