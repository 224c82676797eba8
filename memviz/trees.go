package memviz

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"tenon.dev/internal/snapshot"
)

// nodeID is what the page and the search call a node: the number of its graph, or w and the number of a function that ran without one.
func nodeID(n *snapshot.TreeNode) string {
	if n.WarmUp {
		return "w" + strconv.FormatInt(n.Function, 10)
	}
	return strconv.FormatInt(n.ID, 10)
}

// spans are ranges of memory, sorted and joined by snapshot.JoinSpans.
type spans [][2]uint64

func spansOf(all [][2]uint64) spans { return snapshot.JoinSpans(slices.Clone(all)) }

// within returns how many of the size bytes that begin at addr lie in the spans.
func (s spans) within(addr, size uint64) (n uint64) {
	if addr+size < addr {
		return 0
	}
	i, _ := slices.BinarySearchFunc(s, addr, func(x [2]uint64, addr uint64) int { return cmp.Compare(x[0]+x[1]-1, addr) })
	for ; i < len(s) && s[i][0] < addr+size; i++ {
		n += min(s[i][0]+s[i][1], addr+size) - max(s[i][0], addr)
	}
	return n
}

// treesOf describes a device's pools of graphs.
func treesOf(all []snapshot.Tree, segments []snapshot.Segment, device int) []GraphPool {
	out, pools := []GraphPool{}, poolsOf(segments)
	for i := range all {
		if all[i].Device == device {
			out = append(out, pools.describe(&all[i]))
		}
	}
	return out
}

// maxListed is how many addresses of segments the nodes of a file's pools may list together. Programs list some thousands; in a planted
// file every node could list every segment.
const maxListed = 1 << 18

// pools has the segments of each private pool, by address.
type pools struct {
	of   map[poolKey][]*snapshot.Segment
	left int // addresses that nodes may still list
}

type poolKey struct {
	device int
	id     [2]uint64
}

func poolsOf(segments []snapshot.Segment) *pools {
	all := &pools{map[poolKey][]*snapshot.Segment{}, maxListed}
	for i := range segments {
		g := &segments[i]
		if k := (poolKey{g.Device, g.Pool}); g.Pool != ([2]uint64{}) {
			all.of[k] = append(all.of[k], g)
		}
	}
	for _, of := range all.of { //tenon:unordered each is sorted by itself
		slices.SortFunc(of, func(a, b *snapshot.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	}
	return all
}

// describe describes the pool of a tree.
func (all *pools) describe(t *snapshot.Tree) GraphPool {
	segments := all.of[poolKey{t.Device, t.Pool}]
	p := GraphPool{Pool: poolText(t.Pool), State: t.State, Generation: t.Generation, Nodes: []GraphNode{}}
	var written, held [][2]uint64
	below := map[int64][]*snapshot.TreeNode{}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		below[n.Parent] = append(below[n.Parent], n)
		written = append(written, n.Spans...)
		for _, o := range n.Outputs {
			if o.Live {
				held = append(held, [2]uint64{o.Addr, o.Size})
			}
		}
	}
	all.add(&p, below, -1, "", 0, segments)
	slices.SortStableFunc(p.Nodes, func(a, b GraphNode) int { return cmp.Compare(order(&a), order(&b)) })
	use, live := spansOf(written), spansOf(held)
	every := append(slices.Clone(written), held...)
	for _, g := range segments {
		p.Segments++
		p.Reserved += g.TotalSize
		p.Used += use.within(g.Addr, g.TotalSize)
		p.Live += live.within(g.Addr, g.TotalSize)
		for _, b := range g.Blocks {
			if b.State != snapshot.Inactive {
				p.Allocated += b.Size
				every = append(every, [2]uint64{b.Addr, b.Size})
			}
		}
	}
	both := spansOf(every)
	for _, g := range segments {
		p.Idle += g.TotalSize - both.within(g.Addr, g.TotalSize)
	}
	return p
}

// needsOf returns the memory that the node writes to, and that of its outputs that are in use.
func needsOf(n *snapshot.TreeNode) [][2]uint64 {
	all := slices.Clone(n.Spans)
	for _, o := range n.Outputs {
		if o.Live {
			all = append(all, [2]uint64{o.Addr, o.Size})
		}
	}
	return all
}

// order puts functions without graphs behind the graphs.
func order(n *GraphNode) int {
	if n.WarmUp {
		return 1
	}
	return 0
}

// add appends the nodes after parent, each with those after it.
func (all *pools) add(p *GraphPool, below map[int64][]*snapshot.TreeNode, parent int64, root string, depth int,
	segments []*snapshot.Segment) {
	for _, n := range below[parent] {
		x := GraphNode{ID: nodeID(n), Root: cmp.Or(root, nodeID(n)), Depth: depth, Function: n.Function, Name: path.Base(n.Name),
			Kind: n.Kind, From: n.From, To: n.To,
			Calls: n.Calls, WarmUp: n.WarmUp, Runs: n.Runs, Generation: n.Generation, Place: n.Place, Grown: n.Grown, Used: n.Used,
			Outputs: []GraphOutput{}, Segments: []string{}}
		next := 0 // the first segment that is not in the list yet
		for _, s := range spansOf(needsOf(n)) {
			i, _ := slices.BinarySearchFunc(segments, s[0], func(g *snapshot.Segment, addr uint64) int {
				return cmp.Compare(g.Addr+g.TotalSize-1, addr)
			})
			for i = max(i, next); i < len(segments) && segments[i].Addr < s[0]+s[1] && all.left > 0; i++ {
				all.left--
				x.Segments = append(x.Segments, addrText(segments[i].Addr))
			}
			next = max(next, i)
		}
		for _, o := range n.Outputs {
			if o.Live {
				x.Live += o.Size
				x.Count++
			}
			x.Outputs = append(x.Outputs, GraphOutput{Addr: addrText(o.Addr), Size: o.Size, Op: o.Op, At: o.At, Live: o.Live})
		}
		p.Nodes = append(p.Nodes, x)
		all.add(p, below, n.ID, x.Root, depth+1, segments)
	}
}

func poolText(id [2]uint64) string { return fmt.Sprintf("(%d,%d)", id[0], id[1]) }

// WriteTrees reads a snapshot and writes the graphs of compiled regions as trees, by pool: how much each made its pool grow, what it
// writes, and which of its outputs were in use.
func WriteTrees(w io.Writer, r io.Reader, name string) error {
	s, err := readReport(r, name, false)
	if err != nil {
		return err
	}
	return lines(w, func(b *bufio.Writer) {
		if len(s.Trees) == 0 {
			fmt.Fprintf(b, "%s has no graph trees: no compiled region had a graph, or another program wrote the file\n", name)
		}
		all := poolsOf(s.Segments)
		for i := range s.Trees {
			p := all.describe(&s.Trees[i])
			p.write(b, s.Trees[i].Device)
		}
	})
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *GraphPool) write(w io.Writer, device int) {
	fmt.Fprintf(w, "device %d, private pool %s: %s in %s; %s, generation %d\n", device, p.Pool, plainSizeText(p.Reserved),
		count(p.Segments, "segment"), p.State, p.Generation)
	fmt.Fprintf(w, "%s in use, %s written by graphs, %s neither\n", plainSizeText(p.Live), plainSizeText(p.Used), plainSizeText(p.Idle))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "graph\truns\tgrew\twrites\tin use\tkind\tfunction\n")
	for i := range p.Nodes {
		n := &p.Nodes[i]
		id, kind := strings.Repeat("  ", min(n.Depth, 40))+n.ID, n.Kind
		if n.Place >= 0 {
			id += "*"
		}
		if n.WarmUp {
			kind += ", warm-up"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s, %s, %s\n", id, n.Runs, plainSizeText(n.Grown), plainSizeText(n.Used),
			plainSizeText(n.Live), oneLine(kind), oneLine(n.Name), count(int(n.Calls), "call"),
			oneLine(n.lines()))
	}
	_ = t.Flush() // to a buffer
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, o := range n.Outputs {
			if o.Live {
				fmt.Fprintf(w, "  in use of %s: %s at %s, %s at %s\n", n.ID, plainSizeText(o.Size), o.Addr, oneLine(o.Op),
					oneLine(o.At))
			}
		}
	}
	fmt.Fprintln(w, "* has run since the latest root; w0 is the warm-up of function 0")
}

// oneLine keeps a name from a file within its line.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }

// lines names the lines of the calls.
func (n *GraphNode) lines() string {
	if n.From == n.To {
		return n.From
	}
	return n.From + " to " + n.To
}

// nodeCondition parses the value of graph: and tree:, a node's name: what finds the live outputs of the node, or of it and all after it, or
// where l are segments those that it needs.
func (s searched) nodeCondition(value string, whole bool) func(id uint32) bool {
	var outputs, all [][2]uint64
	for i := range s.rec.trees {
		t := &s.rec.trees[i]
		if t.Device != s.d.index {
			continue
		}
		wanted := map[int64]bool{}
		for k := range t.Nodes {
			n := &t.Nodes[k]
			if nodeID(n) != value && !(whole && wanted[n.Parent]) {
				continue
			}
			wanted[n.ID] = true
			all = append(all, needsOf(n)...)
			for _, o := range n.Outputs {
				if o.Live {
					outputs = append(outputs, [2]uint64{o.Addr, o.Size})
				}
			}
		}
	}
	if !s.categories { // segments
		of := spansOf(all)
		return func(id uint32) bool {
			return int(s.l.end[id]) == s.d.entry.Events+1 && of.within(s.l.addr[id], s.l.size[id]) > 0
		}
	}
	begins := map[uint64]bool{}
	for _, o := range outputs {
		begins[o[0]] = true
	}
	return func(id uint32) bool { return int(s.l.end[id]) == s.d.entry.Events+1 && begins[s.l.addr[id]] }
}
