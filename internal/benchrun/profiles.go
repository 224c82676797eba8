package benchrun

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"tenon.dev/fault"
	"tenon.dev/profile"
)

// Profiled is a program whose profile the page of profiles shows, where one is recorded.
type Profiled struct {
	// Name is that of its file without ".profile", and Title heads its section.
	Name, Title string
}

// profiled are the known programs in the page's order.
var profiled = []Profiled{
	{"gpt2.train.eager", "GPT-2's training step, eager"},
	{"gpt2.train.compiled", "GPT-2's training step, compiled"},
	{"resnet.train.compiled", "ResNet-50's training step, compiled"},
	{"resnet.infer.1.eager", "ResNet-50 on one picture, eager"},
	{"resnet.infer.1.graph", "ResNet-50 on one picture, as a graph"},
	{"resnet.infer.1.compiled", "ResNet-50 on one picture, compiled"},
}

// Condense returns what a profile that is recorded in the repository has: no events of memory, and files by their package instead of by
// where they lay when the program was built.
func Condense(p *profile.Profile) *profile.Profile {
	out := *p
	out.Memory = nil
	out.Frames = slices.Clone(p.Frames)
	for i := range out.Frames {
		f := &out.Frames[i]
		slash := strings.LastIndexByte(f.Function, '/') + 1
		name, _, _ := strings.Cut(f.Function[slash:], ".")
		pkg := strings.TrimPrefix(f.Function[:slash]+strings.TrimSuffix(name, "_test"), "tenon.dev/")
		f.File = pkg + "/" + path.Base(strings.ReplaceAll(f.File, `\`, "/"))
	}
	return &out
}

// Worst is operations of one name on operands of one kind, called on one line: what they took, and what they would take at least.
type Worst struct {
	// Op, Line and Operands are what they have in common; Kernels are the beginnings of the kernels' names, without their parameters.
	Op, Line, Operands, Kernels string
	// Launches is how many kernels they had. Device is their time, and Floor the least by the device's figures, 0 if they are not known.
	Launches      int
	Device, Floor time.Duration
}

// Above returns the time above the floor.
func (w Worst) Above() time.Duration { return w.Device - w.Floor }

// parameters are what a kernel's name has after its types.
var parameters = regexp.MustCompile(`_i(0|32|64)_v[0-9]+.*$`)

// WorstOf returns the operations that took time on the device, those with the most time above their floor first, and the sum of all.
func WorstOf(p *profile.Profile) (rows []Worst, all Worst) {
	index := map[string]int{}
	names := map[int][]string{}
	for i := range p.Ops {
		o := &p.Ops[i]
		d := o.Device()
		if d == 0 {
			continue
		}
		w := Worst{Op: o.Name, Line: p.Line(i), Operands: operands(o.Inputs)}
		if o.Phase == profile.Backward {
			w.Op += " (backward)"
		}
		key := w.Op + "\n" + w.Line + "\n" + w.Operands
		at, ok := index[key]
		if !ok {
			at = len(rows)
			index[key] = at
			rows = append(rows, w)
		}
		for _, k := range o.Kernels {
			if name := parameters.ReplaceAllString(k.Name, ""); !slices.Contains(names[at], name) {
				names[at] = append(names[at], name)
			}
		}
		for _, w := range []*Worst{&rows[at], &all} {
			w.Launches += len(o.Kernels)
			w.Device += d
			w.Floor += p.Floor(o)
		}
	}
	for i := range rows {
		rows[i].Kernels = strings.Join(names[i], ", ")
	}
	slices.SortStableFunc(rows, func(a, b Worst) int {
		return cmp.Or(cmp.Compare(b.Above(), a.Above()), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Op, b.Op),
			cmp.Compare(a.Operands, b.Operands))
	})
	return rows, all
}

// operands lists the first of the tensors.
func operands(ts []profile.Tensor) string {
	var words []string
	for i, t := range ts {
		if i == 2 && len(ts) > 3 {
			return strings.Join(append(words, fmt.Sprintf("and %d more", len(ts)-i)), ", ")
		}
		words = append(words, t.String())
	}
	return strings.Join(words, ", ")
}

// mostWorst is how many rows a section's table has.
const mostWorst = 10

// ProfileSection returns the section of a profile, in Markdown.
func ProfileSection(name string, p *profile.Profile) string {
	title := name
	if i := slices.IndexFunc(profiled, func(k Profiled) bool { return k.Name == name }); i >= 0 {
		title = profiled[i].Title
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s, %s ([`%s.profile`](../bench/profiles/%s.profile)). ", title, p.Device.Name,
		p.Began.UTC().Format(time.DateOnly), name, name)
	rows, all := WorstOf(p)
	if replays := slices.DeleteFunc(slices.Clone(p.Ops), func(o profile.Op) bool { return o.Kind != profile.KindGraph }); len(replays) > 0 {
		graphSection(&b, p, replays)
		return b.String()
	}
	fmt.Fprintf(&b, "%d launches took %s on the device.", all.Launches, micros(all.Device))
	if all.Floor > 0 {
		fmt.Fprintf(&b, " Their floors are %s together, %s of that.", micros(all.Floor), share(all.Floor, all.Device))
	} else {
		b.WriteString(noFigures(p))
	}
	b.WriteString("\n\n")
	line(&b, "operation", "kernels", "line", "operands", "launches", "time", "floor", "of the floor", "above the floor")
	line(&b, slices.Repeat([]string{"---"}, 9)...)
	for _, w := range rows[:min(len(rows), mostWorst)] {
		line(&b, w.Op, w.Kernels, w.Line, w.Operands, fmt.Sprint(w.Launches), micros(w.Device), micros(w.Floor), share(w.Floor, w.Device),
			micros(w.Above()))
	}
	return b.String()
}

// noFigures says why there is no floor.
func noFigures(p *profile.Profile) string {
	return " There are no floors: the figures of " + p.Device.Name + " are not known."
}

// graphSection writes what is known of a graph: the time of its replays, and what its kernels would take at least, of which the profile saw
// the capture.
func graphSection(b *strings.Builder, p *profile.Profile, replays []profile.Op) {
	var times []time.Duration
	for i := range replays {
		times = append(times, replays[i].Device())
	}
	slices.Sort(times)
	median := times[len(times)/2]
	var floor time.Duration
	for i := range p.Ops {
		if o := &p.Ops[i]; o.Captured && len(o.Kernels) > 0 {
			floor += p.Floor(o)
		}
	}
	fmt.Fprintf(b, "A replay of %d nodes took %s, the median of %d.", len(replays[0].Nodes), micros(median), len(times))
	if floor > 0 {
		fmt.Fprintf(b, " The floors of its kernels are %s together, %s of that.", micros(floor), share(floor, median))
	} else {
		b.WriteString(noFigures(p))
	}
	b.WriteString(" Its kernels have no times of their own; they are those of the eager program.\n")
}

// micros writes a time in microseconds with three or four digits, "-" for none.
func micros(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return short(float64(d.Nanoseconds())/1e3) + " µs"
}

// share is how much of whole part is, "-" where that is not known.
func share(part, whole time.Duration) string {
	if part <= 0 || whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// ProfilePage returns the page of the profiles in a folder, in Markdown: those of known programs in their order, then others by name.
func ProfilePage(dir string) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.profile"))
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot list the profiles")
	}
	place := func(file string) int {
		name := strings.TrimSuffix(filepath.Base(file), ".profile")
		if i := slices.IndexFunc(profiled, func(k Profiled) bool { return k.Name == name }); i >= 0 {
			return i
		}
		return len(profiled)
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	var b strings.Builder
	b.WriteString(profilesHead)
	if len(files) == 0 {
		b.WriteString("\nNo profile has been recorded yet.\n")
	}
	for _, file := range files {
		p, err := readProfile(file)
		if err != nil {
			return nil, err
		}
		b.WriteString("\n" + ProfileSection(strings.TrimSuffix(filepath.Base(file), ".profile"), p))
	}
	return []byte(b.String()), nil
}

func readProfile(file string) (*profile.Profile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "a profile cannot be opened")
	}
	defer f.Close()
	p, err := profile.Read(f)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "cannot use the profile %s", filepath.Base(file))
	}
	return p, nil
}

const profilesHead = `<!-- Code generated by bench/measurements from bench/profiles. DO NOT EDIT. -->

# Profiles of whole programs

Where the time of whole programs goes, by Tenon's own [profiler](profiler.md). A section shows ten groups of operations with the same name,
line and kind of operands: those furthest above their floor, where there is most to gain. The floor is the minimum time for their bytes or
floating-point operations, whichever is longer, at the rates that Tenon reached on the device. The line is the program's; a backward
operation is shown at the line of its forward operation. Kernels are named without their parameters.

The programs are those of [measurements.md](measurements.md): GPT-2 with 124 million parameters on 8 × 1024 tokens, and ResNet-50 on 64
images in training and on one in inference, all under bf16 autocast. A compiled program runs in a region without graphs, which launches the
same kernels as the graph, so that each kernel has its own time. The device was held until the program had issued its work, as far as the
queue allows, so that kernel times contain no host time. The two events around a kernel still add a microsecond or two, which matters for
small kernels.

On a machine with a GPU and without Go, in a copy of the repository:

` + "```sh" + `
bench/pack.sh /tmp                                                              # where Go is
bench/gpu.sh /tmp/binaries.txz /tmp/run.json COMMIT profiles                    # there; it writes /tmp/profiles
cp /tmp/profiles/*.profile bench/profiles && go generate ./bench                # where Go is: records them, and writes this page
` + "```" + `

` + "`tenon profile bench/profiles/NAME.profile`" + ` shows all of a program's operations, by name, line, module or time.
`
