package fuse

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// laysNames are the names of Lays in texts; the first one is not printed.
var laysNames = []string{"", "alike", "last", "first", "equal"}

// Print returns the text form of g: a line for every call, in the order in which they run, such as
//
//	live s3
//	s2.1:f32[4x8] = point values=1 Mul{1}(s1.0:f32[4x8], _)
//	s3.1:f32[8] = Sum{2}(s2.1:f32[4x8])
//
// s2.1 is version 1 of storage 2. A value's type and shape are followed by its strides, after a slash, unless they are those of a row-major
// array, and by its offset, after a plus, unless it is 0. An output with & is modified, one without is new. The calls of a group are in
// braces, with the values that the group reads and writes.
func (g *Graph) Print() string {
	var b strings.Builder
	if len(g.Live) > 0 {
		b.WriteString("live")
		for _, s := range g.Live {
			fmt.Fprint(&b, " s", s)
		}
		b.WriteByte('\n')
	}
	of := g.groupOf()
	for i := range g.Calls {
		s := of[i]
		switch {
		case g.Calls[i].Left:
		case s == nil:
			g.Calls[i].print(&b, "")
		case i == s.At:
			s.print(&b, g)
		}
	}
	return b.String()
}

// Only returns the calls of s, a group of g, as a graph.
func (g *Graph) Only(s *Set) *Graph {
	o := &Graph{Groups: []Set{{At: slices.Index(s.Calls, s.At), Join: s.Join, Saves: s.Saves}}}
	set := &o.Groups[0]
	at := func(r Ref) Ref { return Ref{slices.Index(s.Calls, r.Call), r.Index} }
	for k, i := range s.Calls {
		o.Calls = append(o.Calls, g.Calls[i])
		o.Calls[k].Narrow, o.Calls[k].Lays = Span{}, LaysFixed // they say nothing about what the calls do
		set.Calls = append(set.Calls, k)
	}
	for _, r := range s.Ins {
		set.Ins = append(set.Ins, at(r))
	}
	for _, r := range s.Outs {
		set.Outs = append(set.Outs, at(r))
	}
	return o
}

// Moves returns how many bytes the groups of g read and write.
func (g *Graph) Moves() (n int) {
	for i := range g.Groups {
		for _, r := range g.Groups[i].Ins {
			n += g.Calls[r.Call].Ins[r.Index].Bytes()
		}
		for _, r := range g.Groups[i].Outs {
			n += g.Calls[r.Call].Outs[r.Index].Bytes()
		}
	}
	return n
}

func (s *Set) print(b *strings.Builder, g *Graph) {
	kind := "group"
	if s.Join {
		kind = "join"
	}
	fmt.Fprintf(b, "%s {\n", kind)
	for _, i := range s.Calls {
		g.Calls[i].print(b, "  ")
	}
	b.WriteString("} reads")
	for _, r := range s.Ins {
		b.WriteByte(' ')
		g.Calls[r.Call].Ins[r.Index].print(b)
	}
	b.WriteString(" writes")
	for _, r := range s.Outs {
		b.WriteByte(' ')
		g.Calls[r.Call].Outs[r.Index].print(b)
	}
	if s.Join {
		b.WriteByte('\n')
		return
	}
	fmt.Fprintf(b, " saves %d\n", s.Saves)
}

func (c *Call) print(b *strings.Builder, indent string) {
	b.WriteString(indent)
	for i := range c.Outs {
		if i > 0 {
			b.WriteString(", ")
		}
		if c.into(i) {
			b.WriteByte('&')
		}
		c.Outs[i].print(b)
	}
	if len(c.Outs) > 0 {
		b.WriteByte(' ')
	}
	b.WriteByte('=')
	if c.Point {
		b.WriteString(" point")
	}
	if c.Row {
		b.WriteString(" row")
	}
	if c.Cat {
		fmt.Fprint(b, " cat=", c.Dim)
	}
	if c.Reduce != 0 {
		fmt.Fprint(b, " reduce=", c.Reduce)
	}
	if c.Product {
		b.WriteString(" product")
	}
	if c.Apart {
		b.WriteString(" apart")
	}
	if c.Once {
		b.WriteString(" once")
	}
	if c.Stores {
		b.WriteString(" stores")
	}
	if c.Rounds > 0 {
		fmt.Fprint(b, " rounds=", c.Rounds)
	}
	if c.Sums > 0 {
		fmt.Fprint(b, " sums=", c.Sums)
	}
	if c.Widens {
		b.WriteString(" widens")
	}
	if c.Converts {
		b.WriteString(" converts")
	}
	if c.Heavy {
		b.WriteString(" heavy")
	}
	if c.Again {
		b.WriteString(" again")
	}
	if c.Checks {
		b.WriteString(" checks")
	}
	if c.Effect {
		b.WriteString(" effect")
	}
	if c.Scales {
		b.WriteString(" scales")
	}
	if c.Factored {
		b.WriteString(" factored")
	}
	if c.Narrow != (Span{}) {
		fmt.Fprintf(b, " narrow=%d..%d", c.Narrow.From, c.Narrow.To)
	}
	if c.Scaled != (Span{}) {
		fmt.Fprintf(b, " scaled=%d..%d", c.Scaled.From, c.Scaled.To)
	}
	if c.Lays != LaysFixed {
		fmt.Fprintf(b, " lays=%s:%d", laysNames[c.Lays], c.Laid)
	}
	if c.States > 0 {
		fmt.Fprint(b, " states=", c.States)
	}
	if c.Values > 0 {
		fmt.Fprint(b, " values=", c.Values)
	}
	if c.Lane > 0 {
		fmt.Fprint(b, " lane=", c.Lane)
	}
	b.WriteByte(' ')
	b.WriteString(c.Op)
	if c.Attrs != 0 {
		fmt.Fprintf(b, "{%d}", c.Attrs)
	}
	b.WriteByte('(')
	for i := range c.Ins {
		if i > 0 {
			b.WriteString(", ")
		}
		c.Ins[i].print(b)
	}
	b.WriteString(")\n")
}

func (v *Value) print(b *strings.Builder) {
	if v.Storage == 0 {
		b.WriteByte('_')
		return
	}
	fmt.Fprintf(b, "s%d.%d:%s", v.Storage, v.Version, v.DType.Short())
	printInts(b, v.Shape)
	if !slices.Equal(v.Stride, rowMajor(v.Shape)) {
		b.WriteByte('/')
		printInts(b, v.Stride)
	}
	if v.Offset != 0 {
		fmt.Fprint(b, "+", v.Offset)
	}
}

func printInts(b *strings.Builder, ns []int) {
	b.WriteByte('[')
	for i, n := range ns {
		if i > 0 {
			b.WriteByte('x')
		}
		b.WriteString(strconv.Itoa(n))
	}
	b.WriteByte(']')
}

func rowMajor(shape []int) []int {
	stride, n := make([]int, len(shape)), 1
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = n
		n *= max(1, shape[i])
	}
	return stride
}

// Parse reads the text that Print writes for a graph without groups. Lines that begin with a semicolon are comments. Errors give the line.
func Parse(text string) (*Graph, error) {
	g := &Graph{}
	var versions [][]int
	line := 0
	for l := range strings.Lines(text) {
		line++
		s := scanner{t: strings.TrimRight(l, "\n")}
		switch {
		case s.t == "" || s.t[0] == ';':
			continue
		case strings.HasPrefix(s.t, "live "):
			s.live(g)
		default:
			versions = append(versions, s.call(g))
		}
		if s.err == "" && s.t != "" {
			s.fail("%q is left over", s.t)
		}
		if s.err != "" {
			return nil, fault.New(fault.Invalid, "graph text, line %d: %s", line, s.err)
		}
	}
	slices.Sort(g.Live)
	g.Live = slices.Compact(g.Live)
	if err := g.Number(); err != nil {
		return nil, err
	}
	for i := range g.Calls {
		c := &g.Calls[i]
		for j := range len(c.Ins) + len(c.Outs) {
			v := c.at(j)
			if v.Version != versions[i][j] {
				return nil, fault.New(fault.Invalid, "graph text: call %d, %s, uses version %d of s%d where version %d is the last", i,
					c.Op, versions[i][j], v.Storage, v.Version)
			}
		}
	}
	return g, nil
}

// at returns input j or, beyond the inputs, an output.
func (c *Call) at(j int) *Value {
	if j < len(c.Ins) {
		return &c.Ins[j]
	}
	return &c.Outs[j-len(c.Ins)]
}

// scanner reads one line. The first error is kept and ends it.
type scanner struct{ t, err string }

func (s *scanner) fail(format string, args ...any) {
	if s.err == "" {
		s.err = fmt.Sprintf(format, args...)
	}
	s.t = ""
}

// has consumes word if it is next.
func (s *scanner) has(word string) bool {
	rest, ok := strings.CutPrefix(s.t, word)
	if ok {
		s.t = rest
	}
	return ok
}

func (s *scanner) want(word string) {
	if !s.has(word) {
		s.fail("%q is missing before %q", word, s.t)
	}
}

// number reads an integer from 0 to most, or from -most if negative is set.
func (s *scanner) number(most int, negative bool) int {
	i := 0
	if negative && strings.HasPrefix(s.t, "-") {
		i = 1
	}
	for i < len(s.t) && s.t[i] >= '0' && s.t[i] <= '9' {
		i++
	}
	n, err := strconv.Atoi(s.t[:i])
	if err != nil || n > most || n < -most || strconv.Itoa(n) != s.t[:i] {
		s.fail("%q is not a number up to %d", s.t, most)
		return 0
	}
	s.t = s.t[i:]
	return n
}

// name reads letters, digits, dots and underscores.
func (s *scanner) name() string {
	i := 0
	for i < len(s.t) && (s.t[i] == '_' || s.t[i] == '.' || s.t[i] >= '0' && s.t[i] <= '9' || s.t[i]|32 >= 'a' && s.t[i]|32 <= 'z') {
		i++
	}
	if i == 0 {
		s.fail("a name is missing before %q", s.t)
		return ""
	}
	n := s.t[:i]
	s.t = s.t[i:]
	return n
}

func (s *scanner) storage() int {
	s.want("s")
	n := s.number(MaxStorage, false)
	if n == 0 {
		s.fail("storages are numbered from 1 on")
	}
	return n
}

func (s *scanner) live(g *Graph) {
	s.want("live")
	for s.has(" ") {
		g.Live = append(g.Live, s.storage())
	}
}

// call reads a call and returns the versions of its inputs and outputs.
func (s *scanner) call(g *Graph) (versions []int) {
	c := Call{At: len(g.Calls)}
	for !s.has("=") && s.err == "" {
		if len(c.Outs) > 0 {
			s.want(", ")
		}
		if s.has("&") {
			c.Into |= 1 << len(c.Outs)
		}
		c.Outs = append(c.Outs, s.value())
		if len(c.Outs) > 16 {
			s.fail("there are more than 16 outputs")
		}
		if strings.HasPrefix(s.t, " =") {
			s.t = s.t[1:]
		}
	}
	s.want(" ")
	c.Point, c.Row = s.has("point "), s.has("row ")
	if c.Cat = s.has("cat="); c.Cat {
		c.Dim = s.number(63, false)
		s.want(" ")
	}
	if s.has("reduce=") {
		c.Reduce = s.number(1<<20, false)
		s.want(" ")
	}
	c.Product, c.Apart, c.Once = s.has("product "), s.has("apart "), s.has("once ")
	c.Stores = s.has("stores ")
	if s.has("rounds=") {
		c.Rounds = s.number(1<<20, false)
		s.want(" ")
	}
	if s.has("sums=") {
		c.Sums = s.number(1<<20, false)
		s.want(" ")
	}
	c.Widens = s.has("widens ")
	c.Converts, c.Heavy = s.has("converts "), s.has("heavy ")
	c.Checks, c.Effect = s.has("checks "), s.has("effect ")
	c.Scales, c.Factored = s.has("scales "), s.has("factored ")
	for _, f := range []struct {
		name string
		to   *Span
	}{{"narrow=", &c.Narrow}, {"scaled=", &c.Scaled}} {
		if s.has(f.name) {
			f.to.From = s.number(1<<10-1, false)
			s.want("..")
			f.to.To = s.number(1<<10-1, false)
			s.want(" ")
		}
	}
	if s.has("lays=") {
		name := s.name()
		if c.Lays = Lays(max(0, slices.Index(laysNames, name))); c.Lays == LaysFixed {
			s.fail("no operands are laid %q", name)
		}
		s.want(":")
		c.Laid = uint(s.number(1<<20-1, false))
		s.want(" ")
	}
	if s.has("states=") {
		c.States = s.number(1<<20, false)
		s.want(" ")
	}
	if s.has("values=") {
		c.Values = s.number(1<<20, false)
		s.want(" ")
	}
	if s.has("lane=") {
		c.Lane = s.number(1<<20, false)
		s.want(" ")
	}
	c.Op = s.name()
	if s.has("{") {
		c.Attrs = s.number(1<<30, false)
		s.want("}")
	}
	s.want("(")
	for !s.has(")") && s.err == "" {
		if len(c.Ins) > 0 {
			s.want(", ")
		}
		if s.has("_") {
			c.Ins = append(c.Ins, Value{})
		} else {
			c.Ins = append(c.Ins, s.value())
		}
	}
	for j := range len(c.Ins) + len(c.Outs) {
		versions = append(versions, c.at(j).Version)
	}
	g.Calls = append(g.Calls, c)
	return versions
}

func (s *scanner) value() (v Value) {
	v.Storage = s.storage()
	s.want(".")
	v.Version = s.number(1<<20, false)
	s.want(":")
	for t := dtype.Invalid + 1; t.Valid(); t++ {
		if rest, ok := strings.CutPrefix(s.t, t.Short()+"["); ok {
			v.DType, s.t = t, "["+rest
			break
		}
	}
	if v.DType == dtype.Invalid {
		s.fail("%q begins with no type", s.t)
	}
	v.Shape = s.ints(false)
	v.Stride = rowMajor(v.Shape)
	if s.has("/") {
		v.Stride = s.ints(true)
	}
	if len(v.Stride) != len(v.Shape) {
		s.fail("there are %d strides for %d dimensions", len(v.Stride), len(v.Shape))
		v.Stride = rowMajor(v.Shape)
	}
	if s.has("+") {
		v.Offset = s.number(1<<40, false)
	}
	return v
}

func (s *scanner) ints(negative bool) (ns []int) {
	s.want("[")
	for !s.has("]") && s.err == "" {
		if len(ns) > 0 {
			s.want("x")
		}
		ns = append(ns, s.number(1<<20, negative))
		if len(ns) > 64 {
			s.fail("there are more than 64 dimensions")
		}
	}
	return ns
}
