package memviz

import (
	"bufio"
	"cmp"
	"fmt"
	"hash/fnv"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// The picture of a flame graph, in pixels.
const (
	flameWidth  = 1200
	flameRow    = 18
	flameHead   = 40   // above the graph
	flameFoot   = 8    // below it
	flameLeast  = 0.1  // frames narrower than this are left out
	flameLetter = 6.6  // width of a character
	flameDeep   = 5000 // the deepest nesting of calls that is drawn; deeper calls count for the last
)

// flame is a frame of a flame graph with the calls it made.
type flame struct {
	name  string
	bytes uint64 // of it and all its calls
	calls map[string]*flame
}

// add adds a stack, outermost frame first.
func (f *flame) add(names []string, bytes uint64) {
	names = names[:min(len(names), flameDeep)]
	for {
		f.bytes += bytes
		if len(names) == 0 {
			return
		}
		next := f.calls[names[0]]
		if next == nil {
			if f.calls == nil {
				f.calls = map[string]*flame{}
			}
			next = &flame{name: names[0]}
			f.calls[names[0]] = next
		}
		f, names = next, names[1:]
	}
}

// depth returns the rows that a frame and its calls need at a scale of pixels a byte.
func (f *flame) depth(scale float64) int {
	n := 0
	for _, a := range f.calls {
		if float64(a.bytes)*scale >= flameLeast {
			n = max(n, a.depth(scale))
		}
	}
	return n + 1
}

// WriteFlameGraph reads lines of the form "outermost;…;innermost bytes", such as WriteSegments writes, and writes them as one
// self-contained SVG, outermost call on top: a frame is as wide as the bytes that it and its calls hold, a click widens it to the full
// width, and pointing at it gives its size. Lines of 0 or fewer bytes, which PyTorch's reports sometimes contain, are left out.
func WriteFlameGraph(w io.Writer, r io.Reader, title string) error {
	if r == nil {
		return fault.New(fault.Invalid, "the reader is nil; give it one")
	}
	root := &flame{name: "all"}
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadString('\n')
		if _, said := err.(*fault.Error); said {
			return err
		}
		if err != nil && err != io.EOF {
			return fault.Wrap(fault.System, err, "reading the lines of a flame graph")
		}
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			cut := strings.LastIndexByte(line, ' ')
			bytes, e := strconv.ParseInt(line[cut+1:], 10, 64)
			if cut < 0 || e != nil {
				return fault.New(fault.Invalid, "line %d of the flame graph does not end in a number of bytes", n)
			}
			if bytes > 0 {
				root.add(strings.Split(line[:cut], ";"), uint64(bytes))
			}
		}
		if err == io.EOF {
			break
		}
	}
	return lines(w, func(b *bufio.Writer) { root.draw(b, title) })
}

// draw writes the picture.
func (f *flame) draw(w io.Writer, title string) {
	scale := flameWidth / float64(max(f.bytes, 1))
	rows := f.depth(scale)
	height := flameHead + rows*flameRow + flameFoot
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace,monospace" font-size="11">
<style>rect{stroke:#fff;stroke-width:.5}.f{cursor:pointer}.f:hover rect{stroke:#000}text{pointer-events:none;fill:#111}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="8" y="18" font-size="14">%s</text>
<text x="8" y="34" id="said">%s</text>
`, flameWidth, height, flameWidth, height, xmlText(title), sizeText(f.bytes))
	f.row(w, 0, 0, scale, f.bytes)
	io.WriteString(w, "<script><![CDATA["+flameScript+"]]></script>\n</svg>\n")
}

// row writes a frame at x bytes from the left and the calls it made, below it.
func (f *flame) row(w io.Writer, x uint64, depth int, scale float64, all uint64) {
	left, width := float64(x)*scale, float64(f.bytes)*scale
	y := flameHead + depth*flameRow
	fmt.Fprintf(w,
		`<g class="f" data-x="%.2f" data-w="%.2f" data-d="%d"><title>%s: %s (%.1f%%)</title>`+
			`<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/><text x="%.2f" y="%d">%s</text></g>`+"\n",
		left, width, depth, xmlText(f.name), sizeText(f.bytes), 100*float64(f.bytes)/float64(max(all, 1)), left, y, width, flameRow-1,
		flameColour(f.name),
		left+3, y+flameRow-6, xmlText(fitText(f.name, width)))
	sorted := make([]*flame, 0, len(f.calls))
	for _, a := range f.calls {
		sorted = append(sorted, a)
	}
	slices.SortFunc(sorted, func(a, b *flame) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.name, b.name))
	})
	for _, a := range sorted {
		if float64(a.bytes)*scale >= flameLeast {
			a.row(w, x, depth+1, scale, all)
		}
		x += a.bytes
	}
}

// xmlText escapes characters that are special in XML, and replaces those that XML cannot hold.
func xmlText(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0xfffe || r == 0xffff {
			return '\ufffd'
		}
		return r
	}, s))
}

// fitText shortens a name to fit a width.
func fitText(name string, width float64) string {
	n := int((width - 4) / flameLetter)
	if n < 3 {
		return ""
	}
	r := []rune(name)
	if len(r) <= n {
		return name
	}
	return string(r[:n-1]) + "…"
}

// flameColour returns a warm colour for calls and a cool one for the allocator's own entries.
func flameColour(name string) string {
	h := fnv.New32a()
	io.WriteString(h, name)
	v := h.Sum32()
	hue := 10 + v%45
	if strings.HasPrefix(name, "stream_") || strings.HasPrefix(name, "seg_") || strings.HasPrefix(name, "active_") || name == "inactive" ||
		strings.HasPrefix(name, "<") || strings.HasPrefix(name, "only_") {
		hue = 180 + v%40
	}
	return fmt.Sprintf("hsl(%d,%d%%,%d%%)", hue, 60+v>>8%20, 68+v>>16%12)
}

// flameScript widens a frame that is clicked; a click on the topmost goes back.
const flameScript = `
const frames = [...document.querySelectorAll('.f')].map(g => ({g, x: +g.dataset.x, w: +g.dataset.w, d: +g.dataset.d,
  rect: g.querySelector('rect'), text: g.querySelector('text'), name: g.querySelector('title').textContent}));
function zoom(to) {
  const k = 1200 / to.w;
  for (const f of frames) {
    let x = (f.x - to.x) * k, w = f.w * k;
    if (f.d <= to.d && f.x <= to.x + .005 && f.x + f.w >= to.x + to.w - .005) { x = 0; w = 1200; }
    const seen = x < 1200 && x + w > 0 && w > .1;
    f.g.style.display = seen ? '' : 'none';
    if (!seen) continue;
    f.rect.setAttribute('x', x);
    f.rect.setAttribute('width', w);
    f.text.setAttribute('x', x + 3);
    const name = f.name.slice(0, f.name.lastIndexOf(': ')), n = Math.floor((w - 4) / 6.6);
    f.text.textContent = n < 3 ? '' : name.length <= n ? name : name.slice(0, n - 1) + '…';
  }
}
for (const f of frames) {
  f.g.addEventListener('click', () => zoom(f));
  f.g.addEventListener('mouseenter', () => { document.getElementById('said').textContent = f.name; });
}
`

// WriteHolders writes the stacks that held memory on a device at a moment, "peak" or "end", as lines for WriteFlameGraph, most bytes
// first.
func WriteHolders(w io.Writer, rec *Recording, number int, at string) error {
	d, err := rec.device(number)
	if err != nil {
		return err
	}
	state, err := d.moment(at)
	if err != nil {
		return err
	}
	groups, _, _ := rec.group(d, d.activeLine.live(state), d.active.len())
	return lines(w, func(b *bufio.Writer) {
		for _, g := range groups {
			fmt.Fprintf(b, "%s %d\n", foldStack(rec.stacks, snapshot.StackID(g.Stack)), g.Bytes)
		}
	})
}

// MainDevice returns the number of the device with the longest trace, the lowest if there are several, or -1 if the recording has no
// device.
func (rec *Recording) MainDevice() int {
	if rec == nil {
		return -1
	}
	number, longest := -1, -1
	for _, d := range rec.devices {
		if d.entry.Events > longest {
			number, longest = d.index, d.entry.Events
		}
	}
	return number
}

// Devices returns the numbers of the recording's devices, ascending.
func (rec *Recording) Devices() []int {
	if rec == nil {
		return nil
	}
	var out []int
	for _, d := range rec.devices {
		out = append(out, d.index)
	}
	return out
}
