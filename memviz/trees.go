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

// spans are pieces of memory, by address, that do not meet.
type spans [][2]uint64

// spansOf sorts pieces and joins those that meet.
func spansOf(all [][2]uint64) (out spans) {
	all = slices.Clone(all)
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

// within returns how many bytes from addr on the spans have of size bytes.
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

// treesOf describes the pools that graphs share, of one device.
func treesOf(all []snapshot.Tree, segments []snapshot.Segment, device int) []GraphPool {
	out, pools := []GraphPool{}, poolsOf(segments)
	listed := 0
	for i := range all {
		if all[i].Device == device {
			p := poolOf(&all[i], pools, listed)
			listed = p.listed
			out = append(out, p)
		}
	}
	return out
}

// maxListed is how many addresses of segments the nodes of a device's pools may list together. Programs list some thousands; a planted file
// could make every node list every segment.
const maxListed = 1 << 18

// pools are the segments of each private pool of a device, by address.
type pools map[poolKey][]*snapshot.Segment

type poolKey struct {
	device int
	id     [2]uint64
}

func poolsOf(segments []snapshot.Segment) pools {
	all := pools{}
	for i := range segments {
		g := &segments[i]
		if k := (poolKey{g.Device, g.Pool}); g.Pool != ([2]uint64{}) {
			all[k] = append(all[k], g)
		}
	}
	for _, of := range all { //tenon:unordered each is sorted by itself
		slices.SortFunc(of, func(a, b *snapshot.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	}
	return all
}

// poolOf describes the pool of t, after pools whose nodes list so many addresses.
func poolOf(t *snapshot.Tree, all pools, listed int) GraphPool {
	segments := all[poolKey{t.Device, t.Pool}]
	p := GraphPool{Pool: poolText(t.Pool), State: t.State, Generation: t.Generation, Nodes: []GraphNode{}, listed: listed}
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
	p.add(below, -1, "", 0, segments)
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
func (p *GraphPool) add(below map[int64][]*snapshot.TreeNode, parent int64, root string, depth int, segments []*snapshot.Segment) {
	for _, n := range below[parent] {
		x := GraphNode{ID: nodeID(n), Root: cmp.Or(root, nodeID(n)), Depth: depth, Function: n.Function, Name: path.Base(n.Name),
			Kind: n.Kind, From: n.From, To: n.To,
			Calls: n.Calls, WarmUp: n.WarmUp, Runs: n.Runs, Generation: n.Generation, Place: n.Place, Grown: n.Grown, Used: n.Used,
			Outputs: []GraphOutput{}, Segments: []string{}}
		next := 0 // of the segments that do not yet stand in the list
		for _, s := range spansOf(needsOf(n)) {
			i, _ := slices.BinarySearchFunc(segments, s[0], func(g *snapshot.Segment, addr uint64) int {
				return cmp.Compare(g.Addr+g.TotalSize-1, addr)
			})
			for i = max(i, next); i < len(segments) && segments[i].Addr < s[0]+s[1] && p.listed < maxListed; i++ {
				p.listed++
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
		p.add(below, n.ID, x.Root, depth+1, segments)
	}
}

func poolText(id [2]uint64) string { return fmt.Sprintf("(%d,%d)", id[0], id[1]) }

// WriteTrees reads a snapshot and writes what the pools of compiled regions are for: their graphs as trees, which of these made a pool
// grow, what each writes to, and which of its outputs were in use.
func WriteTrees(w io.Writer, r io.Reader, name string) error {
	s, err := readReport(r, name, false)
	if err != nil {
		return err
	}
	return lines(w, func(b *bufio.Writer) {
		if len(s.Trees) == 0 {
			fmt.Fprintf(b, "%s holds no trees: no compiled region had graphs then, or it is not Tenon's\n", name)
		}
		all := poolsOf(s.Segments)
		for i := range s.Trees {
			p := poolOf(&s.Trees[i], all, maxListed) // the text does not list them
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
			plainSizeText(n.Live), kind, n.Name,
			count(int(n.Calls), "call"), n.lines())
	}
	_ = t.Flush() // to a buffer
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, o := range n.Outputs {
			if o.Live {
				fmt.Fprintf(w, "  in use of %s: %s at %s, %s at %s\n", n.ID, plainSizeText(o.Size), o.Addr, o.Op, o.At)
			}
		}
	}
}

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
