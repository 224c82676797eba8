package memviz

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// The reports of this file have the text of PyTorch's (torch.cuda._memory_viz), byte for byte, so that programs that read those can read
// these.

// readReport reads a snapshot with or without its events.
func readReport(r io.Reader, name string, events bool) (*snapshot.Snapshot, error) {
	o := snapshot.ReadOptions{}
	if !events {
		o.Events = func(int, []snapshot.Event) error { return nil }
	}
	s, err := snapshot.Read(r, o)
	if err != nil {
		return nil, refused(name, err)
	}
	return s, nil
}

// lines calls write with a buffered writer.
func lines(w io.Writer, write func(b *bufio.Writer)) error {
	if w == nil {
		return fault.New(fault.Invalid, "the writer is nil; give it one")
	}
	b := bufio.NewWriter(w)
	write(b)
	if err := b.Flush(); err != nil {
		return fault.Wrap(fault.System, err, "writing the report")
	}
	return nil
}

// statsPage is the number of bytes that one character of WriteStats stands for, and the smallest segment that it shows.
const statsPage = 20 << 20

// statsLegend explains WriteStats.
const statsLegend = `
Legend:
    [a     ] - a segment in the allocator
     ^-- a page 20.0MiB of memory in the segment
    a-z: pages filled with a single block's content
    ' ': page is completely free
    *: page if completely full with multiple blocks
    0-9: page is partially full with tensors of multiple blocks (9 == 90% full)
    (X% internal) - of the free memory, X% is free because we rounded the size of the allocation.
`

// WriteStats reads a snapshot and writes PyTorch's segsum: a line for each segment of at least 20 MiB, then totals. name stands for the
// snapshot in errors.
func WriteStats(w io.Writer, r io.Reader, name string) error {
	s, err := readReport(r, name, false)
	if err != nil {
		return err
	}
	return lines(w, func(b *bufio.Writer) { writeStats(b, s) })
}

// allocated returns the bytes of the owned blocks of a segment.
func allocated(g *snapshot.Segment) (n uint64) {
	for _, b := range g.Blocks {
		if b.State == snapshot.ActiveAllocated {
			n += b.Size
		}
	}
	return n
}

func writeStats(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintf(w, "Summary of segments >= %s in size\n", sizeText(statsPage))
	sorted := make([]*snapshot.Segment, len(s.Segments))
	for i := range sorted {
		sorted[i] = &s.Segments[i]
	}
	slices.SortStableFunc(sorted, func(a, b *snapshot.Segment) int {
		return cmp.Or(cmp.Compare(a.TotalSize, b.TotalSize), cmp.Compare(allocated(a), allocated(b)))
	})
	var reserved, used, rounding, free uint64
	for _, g := range sorted {
		var u, r, f uint64
		for _, b := range g.Blocks {
			if b.State != snapshot.ActiveAllocated {
				f += b.Size
				continue
			}
			u += requested(b)
			r += b.Size - min(b.Size, requested(b))
		}
		if g.TotalSize >= statsPage {
			stream := ""
			if g.Stream != 0 {
				stream = fmt.Sprintf(" stream_%d", g.Stream)
			}
			fmt.Fprintf(w, "[%s] %s allocated, %s free%s\n", pageLetters(g), sizeText(g.TotalSize), freeText(f, r), stream)
		}
		reserved, used, rounding, free = reserved+g.TotalSize, used+u, rounding+r, free+f
	}
	fmt.Fprintf(w, "segments: %d\ntotal_reserved: %s\ntotal_allocated: %s\ntotal_free: %s\n%s", len(s.Segments),
		sizeText(reserved), sizeText(used),
		freeText(free, rounding), statsLegend)
}

// requested returns the bytes that the owner of a block requested, or the block's size if that was not recorded.
func requested(b snapshot.Block) uint64 {
	if b.Requested == 0 && b.State == snapshot.ActiveAllocated {
		return b.Size
	}
	return b.Requested
}

// freeText writes free bytes with the part that is rounding.
func freeText(free, rounding uint64) string {
	if free+rounding == 0 {
		return sizeText(0)
	}
	return fmt.Sprintf("%s (%.1f%% internal)", sizeText(free+rounding), float64(rounding)/float64(free+rounding)*100)
}

// maxLetters bounds the characters of a segment: 80 TiB, more than any device has.
const maxLetters = 1 << 22

// pageLetters draws a segment, with one character for each 20 MiB.
func pageLetters(g *snapshot.Segment) string {
	if g.TotalSize > maxLetters*statsPage {
		return "larger than any device"
	}
	n := (g.TotalSize + statsPage - 1) / statsPage
	pages := []byte(strings.Repeat(" ", int(n)))
	full := make([]float64, n)
	var at uint64
	k := 0
	for _, b := range g.Blocks {
		if b.State != snapshot.ActiveAllocated {
			at += b.Size
			continue
		}
		if at >= g.TotalSize { // only in a file that no allocator wrote
			break
		}
		end := at + min(requested(b), g.TotalSize-at)
		for p := at / statsPage; p*statsPage < end; p++ {
			full[p] += float64(min(end, (p+1)*statsPage)-max(at, p*statsPage)) / statsPage
			if pages[p] == ' ' {
				pages[p] = byte('a' + k%26)
			} else {
				pages[p] = "0123456789*"[min(int(full[p]*10), 10)]
			}
		}
		at += b.Size
		k++
	}
	return string(pages)
}

// WriteSegments reads a snapshot and writes PyTorch's segments report: for each block stream, segment, state and stack, joined by
// semicolons, outermost call first, then the bytes. Flame graph programs read it; WriteFlameGraph is one.
func WriteSegments(w io.Writer, r io.Reader, name string) error { return writeBlocks(w, r, name, true) }

// WriteMemory is WriteSegments without the segments.
func WriteMemory(w io.Writer, r io.Reader, name string) error { return writeBlocks(w, r, name, false) }

func writeBlocks(w io.Writer, r io.Reader, name string, segments bool) error {
	s, err := readReport(r, name, false)
	if err != nil {
		return err
	}
	return lines(w, func(b *bufio.Writer) {
		t := folder{w: b, stacks: s.Stacks, segments: segments, texts: map[snapshot.StackID]string{}}
		for i := range s.Segments {
			t.segment("", &s.Segments[i])
		}
	})
}

// WriteCompare reads two snapshots and writes PyTorch's compare report: the lines of WriteSegments for the segments that only one of them
// has, by address and size, beginning with only_before or only_after.
func WriteCompare(w io.Writer, before, after io.Reader, beforeName, afterName string) error {
	a, err := readReport(before, beforeName, false)
	if err != nil {
		return err
	}
	b, err := readReport(after, afterName, false)
	if err != nil {
		return err
	}
	type key struct{ addr, size uint64 }
	list := func(s *snapshot.Snapshot) map[key]bool {
		m := map[key]bool{}
		for _, g := range s.Segments {
			m[key{g.Addr, g.TotalSize}] = true
		}
		return m
	}
	inBefore, inAfter := list(a), list(b)
	only := func(out *bufio.Writer, prefix string, s *snapshot.Snapshot, other map[key]bool) {
		t := folder{w: out, stacks: s.Stacks, segments: true, texts: map[snapshot.StackID]string{}}
		for i := range s.Segments {
			if g := &s.Segments[i]; !other[key{g.Addr, g.TotalSize}] {
				t.segment(prefix, g)
			}
		}
	}
	return lines(w, func(out *bufio.Writer) {
		only(out, "only_before;", a, inAfter)
		only(out, "only_after;", b, inBefore)
	})
}

// folder writes blocks as lines of a flame graph.
type folder struct {
	w        *bufio.Writer
	stacks   *snapshot.Stacks
	segments bool
	texts    map[snapshot.StackID]string
}

// segment writes the lines of one segment.
func (t *folder) segment(prefix string, g *snapshot.Segment) {
	prefix += fmt.Sprintf("stream_%d;", g.Stream)
	if t.segments {
		prefix += fmt.Sprintf("seg_%d;", g.Addr)
	}
	for _, b := range g.Blocks {
		owner := prefix + b.State.String() + ";"
		fmt.Fprintf(t.w, "%s%s %d\n", owner, t.stack(b.Stack), b.Requested)
		if b.Requested != b.Size { // merged free blocks may have been asked for more than they are; PyTorch prints that as it is
			fmt.Fprintf(t.w, "%s<gaps> %d\n", owner, int64(b.Size-b.Requested))
		}
	}
}

// stack returns a stack as a line shows it.
func (t *folder) stack(id snapshot.StackID) string {
	text, ok := t.texts[id]
	if !ok {
		text = foldStack(t.stacks, id)
		t.texts[id] = text
	}
	return text
}

// foldStack joins the frames of a stack, outermost first.
func foldStack(stacks *snapshot.Stacks, id snapshot.StackID) string {
	var words []string
	for f := range stacks.All(id) {
		if !internalFrame(f) {
			words = append(words, frameText(f))
		}
	}
	if words == nil {
		return "<non-python>"
	}
	slices.Reverse(words)
	return strings.Join(words, ";")
}

// The frames that PyTorch's reports leave out of stacks: the calls of the recording itself, of the interpreter, and of the dispatcher.
var (
	internalNames = []string{"unwind::unwind", "CapturedTraceback::gather", "gather_with_cpp", "_start", "__libc_start_main", "PyEval_",
		"PyObject_", "PyFunction_"}
	internalFiles = []string{"core/boxing", "/Register", "/Redispatch", "pythonrun.c", "Modules/main.c", "Objects/call.c",
		"Objects/methodobject.c",
		"pycore_ceval.h", "ceval.c", "cpython/abstract.h"}
)

// internalFrame reports whether reports leave a frame out.
func internalFrame(f snapshot.Frame) bool {
	in := func(s string) func(string) bool { return func(part string) bool { return strings.Contains(s, part) } }
	return slices.ContainsFunc(internalNames, in(f.Name)) || slices.ContainsFunc(internalFiles, in(f.File))
}

// WriteTrace reads a snapshot and writes PyTorch's trace report: each device's history as a program in which memory has names.
func WriteTrace(w io.Writer, r io.Reader, name string) error {
	s, err := readReport(r, name, true)
	if err != nil {
		return err
	}
	return lines(w, func(b *bufio.Writer) {
		inBefore := newCover()
		for i := range s.Segments {
			// PyTorch considers only this part of a segment of the snapshot.
			inBefore.add(s.Segments[i].Addr, s.Segments[i].Allocated, i)
		}
		for d, trace := range s.Traces {
			if len(trace) > 0 {
				fmt.Fprintf(b, "Device %d ----------------\n", d)
				t := teller{w: b, s: s, segments: map[uint64]string{}, blocks: map[uint64]string{}, in: newCover(), inBefore: inBefore}
				t.tell(trace)
			}
		}
	})
}

// heldSegment is a segment of a trace.
type heldSegment struct {
	name string
	addr uint64
}

// teller writes the trace of a device.
type teller struct {
	w     *bufio.Writer
	s     *snapshot.Snapshot
	named int
	// held are the segments of the trace, in order; freed ones stay, as in PyTorch's report. in finds these, and inBefore those of the
	// snapshot.
	held             []heldSegment
	in, inBefore     *cover
	segments, blocks map[uint64]string // names by address
}

// name returns the next of a, b, …, z, a1, b1, ….
func (t *teller) name() string {
	n := t.named
	t.named++
	name := string(rune('a' + n%26))
	if n >= 26 {
		name += decimal(n / 26)
	}
	return name
}

// nameOf returns a name, or the address if there is none.
func nameOf(names map[uint64]string, addr uint64) string {
	if n, ok := names[addr]; ok {
		return n
	}
	return strconv.FormatUint(addr, 10)
}

// place says where an address lies: segment and offset.
func (t *teller) place(addr uint64) string {
	if i, ok := t.in.find(addr); ok {
		return fmt.Sprintf("%s[%d", t.held[i].name, addr-t.held[i].addr)
	}
	if i, ok := t.inBefore.find(addr); ok {
		return fmt.Sprintf("seg_%d[%d", i, addr-t.s.Segments[i].Addr)
	}
	return fmt.Sprintf("MEM[%d", addr)
}

// tell writes the entries.
func (t *teller) tell(trace []snapshot.Event) {
	fmt.Fprintf(t.w, "%d entries\n", len(trace))
	// PyTorch's total is the number of the last entry, plus the bytes that it allocates or minus the bytes that it frees.
	var total float64
	for i := range trace {
		e := &trace[i]
		size := sizeText(e.Size)
		total = float64(i)
		switch e.Action {
		case snapshot.ActionAlloc:
			n := t.name()
			fmt.Fprintf(t.w, "%s = %s:%s]\n", n, t.place(e.Addr), size)
			t.blocks[e.Addr] = n
			total += float64(e.Size)
		case snapshot.ActionFreeRequested:
			fmt.Fprintf(t.w, "del %s # %s\n", nameOf(t.blocks, e.Addr), size)
		case snapshot.ActionFreeCompleted:
			fmt.Fprintf(t.w, "# free completed for %s %s\n", nameOf(t.blocks, e.Addr), size)
			total -= float64(e.Size)
		case snapshot.ActionSegmentAlloc:
			n := t.name()
			fmt.Fprintf(t.w, "%s = cudaMalloc(%d, %s)\n", n, e.Addr, size)
			t.segments[e.Addr] = n
			t.in.add(e.Addr, e.Size, len(t.held))
			t.held = append(t.held, heldSegment{n, e.Addr})
		case snapshot.ActionSegmentFree:
			fmt.Fprintf(t.w, "cudaFree(%s) # %s\n", nameOf(t.segments, e.Addr), size)
		case snapshot.ActionOOM:
			fmt.Fprintf(t.w, "raise OutOfMemoryError # %s requested, %s free in CUDA\n", size, sizeText(e.Addr))
		default:
			fmt.Fprintf(t.w, "%s\n", t.literal(e))
		}
	}
	fmt.Fprintf(t.w, "TOTAL MEM: %s", signedSizeText(total))
}

// literal returns an entry as Python prints it.
func (t *teller) literal(e *snapshot.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{'action': %s, 'addr': %d, 'size': %d, 'stream': %d, 'time_us': %d", pythonString(e.Action.String()), e.Addr, e.Size,
		e.Stream, e.TimeUS)
	if e.Note != 0 && int(e.Note) < len(t.s.Notes) {
		n := t.s.Notes[e.Note]
		fmt.Fprintf(&b, ", 'compile_context': %s, 'user_metadata': %s", pythonString(n.CompileContext), pythonString(n.UserMetadata))
	}
	if e.Stack != 0 {
		b.WriteString(", 'frames': [")
		for i, f := range t.s.Stacks.Frames(e.Stack) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "{'name': %s, 'filename': %s, 'line': %d}", pythonString(f.Name), pythonString(f.File), f.Line)
		}
		b.WriteString("]")
	}
	b.WriteString("}")
	return b.String()
}

// pythonString quotes a string as Python does.
func pythonString(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == '\\' || r == rune(quote):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(quote)
	return b.String()
}
