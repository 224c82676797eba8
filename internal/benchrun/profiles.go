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

// Profiled is a program whose profile the page of profiles shows, if one is recorded.
type Profiled struct {
	// Name is the name of its file without ".profile", and Title the heading of its section.
	Name, Title string
}

// profiled are the known programs in the page's order.
var profiled = []Profiled{
	{"gpt2.train.eager", "GPT-2's training step, eager"},
	{"gpt2.train.compiled", "GPT-2's training step, compiled"},
	{"resnet.train.compiled", "ResNet-50's training step, compiled"},
	{"resnet.infer.1.eager", "ResNet-50 on one image, eager"},
	{"resnet.infer.1.graph", "ResNet-50 on one image, as a graph"},
	{"resnet.infer.1.compiled", "ResNet-50 on one image, compiled"},
}

// Condense returns the form of a profile that is stored in the repository: without memory events, and with files named by their package
// instead of their location when the program was built.
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

// Worst is a kernel of operations with one name, on operands of one kind, called on one line: the time that its launches took, and the
// least that they could take.
type Worst struct {
	// Kernel is the beginning of the kernel's name, without its parameters. Op, Line and Operands are those of its operations.
	Kernel, Op, Line, Operands string
	// Launches is the number of launches. Device is their time, and Floor the least possible according to the device's figures, or 0 if
	// those are not known.
	Launches      int
	Device, Floor time.Duration
}

// Above returns the time above the floor.
func (w Worst) Above() time.Duration { return w.Device - w.Floor }

// parameters match what follows the types in a kernel's name.
var parameters = regexp.MustCompile(`_i(0|32|64)_v[0-9]+.*$`)

// WorstOf returns the kernels that took time on the device, those with the most time above their floor first, and their sum.
func WorstOf(p *profile.Profile) (rows []Worst, all Worst) {
	index := map[Worst]int{}
	for i := range p.Ops {
		o := &p.Ops[i]
		took := o.Device()
		if took == 0 {
			continue
		}
		w := Worst{Op: o.Name, Line: p.Line(i), Operands: operands(o.Inputs)}
		if o.Phase == profile.Backward {
			w.Op += " (backward)"
		}
		for _, k := range o.Kernels {
			d := k.End - k.Begin
			if k.Whole || d == 0 {
				continue
			}
			w.Kernel = parameters.ReplaceAllString(k.Name, "")
			at, ok := index[w]
			if !ok {
				at = len(rows)
				index[w] = at
				rows = append(rows, w)
			}
			floor := time.Duration(float64(p.Floor(o)) * float64(d) / float64(took))
			for _, w := range []*Worst{&rows[at], &all} {
				w.Launches++
				w.Device += d
				w.Floor += floor
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b Worst) int {
		return cmp.Or(cmp.Compare(b.Above(), a.Above()), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Op, b.Op),
			cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Operands, b.Operands))
	})
	return rows, all
}

// operands lists the first few of the tensors.
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

// mostWorst is the maximum number of rows in a section's table.
const mostWorst = 10

// ProfileSection returns the section of a profile, in Markdown.
func ProfileSection(name string, p *profile.Profile) string {
	title := name
	if i := slices.IndexFunc(profiled, func(k Profiled) bool { return k.Name == name }); i >= 0 {
		title = profiled[i].Title
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s, %s, %s ([`%s.profile`](../bench/profiles/%s.profile)).", title, p.Device.Name,
		p.Began.UTC().Format(time.DateOnly), commit(p), name, name)
	if !replays(&b, p) {
		return b.String()
	}
	rows, all := WorstOf(p)
	fmt.Fprintf(&b, " %d launches took %s on the device.", all.Launches, micros(all.Device))
	if all.Floor > 0 {
		fmt.Fprintf(&b, " Their floors are %s together, %s of that.", micros(all.Floor), share(all.Floor, all.Device))
	} else {
		b.WriteString(noFigures(p))
	}
	b.WriteString("\n\n")
	line(&b, "kernel", "operation", "line", "operands", "launches", "time", "floor", "of the floor", "above the floor")
	line(&b, slices.Repeat([]string{"---"}, 9)...)
	for _, w := range rows[:min(len(rows), mostWorst)] {
		line(&b, w.Kernel, w.Op, w.Line, w.Operands, fmt.Sprint(w.Launches), micros(w.Device), micros(w.Floor), share(w.Floor, w.Device),
			micros(w.Above()))
	}
	return b.String()
}

// commit says which state of the source was profiled.
func commit(p *profile.Profile) string {
	if p.Commit == "" {
		return "commit not recorded"
	}
	return "commit " + p.Commit
}

// noFigures says why there is no floor.
func noFigures(p *profile.Profile) string {
	return " There are no floors: the figures of " + p.Device.Name + " are not known."
}

// replays writes how long the replays of a graph took, if there are any, and reports whether kernels have times of their own. If none has,
// it also writes the least possible time of the graph's kernels, if the profile includes the capture.
func replays(b *strings.Builder, p *profile.Profile) (parts bool) {
	var times []time.Duration
	var nodes int
	var floor time.Duration
	for i := range p.Ops {
		o := &p.Ops[i]
		switch {
		case o.Kind == profile.KindGraph:
			nodes = max(nodes, len(o.Nodes))
			times = append(times, whole(o))
		case o.Device() > 0:
			parts = true
		case o.Captured && len(o.Kernels) > 0:
			floor += p.Floor(o)
		}
	}
	if len(times) == 0 {
		return true
	}
	slices.Sort(times)
	median := times[len(times)/2]
	took := "was not timed"
	if median > 0 {
		took = fmt.Sprintf("took %s, the median of %d", micros(median), len(times))
	}
	fmt.Fprintf(b, " A replay of %d kernels %s.", nodes, took)
	if parts {
		return true
	}
	switch {
	case floor > 0 && median > 0:
		fmt.Fprintf(b, " The floors of its kernels are %s together, %s of that.", micros(floor), share(floor, median))
	case floor > 0:
		fmt.Fprintf(b, " The floors of its kernels are %s together.", micros(floor))
	default:
		b.WriteString(noFigures(p))
	}
	b.WriteString(" Its kernels have no times of their own.\n")
	return false
}

// whole returns the time of a replay from its first kernel to its last.
func whole(o *profile.Op) time.Duration {
	for _, k := range o.Kernels {
		if k.Whole {
			return k.End - k.Begin
		}
	}
	return o.Device()
}

// micros formats a time in microseconds with three or four digits; "-" for none.
func micros(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return short(float64(d.Nanoseconds())/1e3) + " µs"
}

// share formats part as a fraction of whole; "-" if unknown.
func share(part, whole time.Duration) string {
	if part <= 0 || whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// ProfilePage returns the page of the profiles in a folder, in Markdown: first those of known programs in their order, then others by name.
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

Where the time of whole programs goes, by Tenon's own [profiler](profiler.md). A section shows ten kernels, each with the operation that
launched it, its line and the kind of its operands: those furthest above their floor, where there is most to gain. The floor is the minimum
time for an operation's bytes or floating-point operations, whichever is longer, at the rates that Tenon reached on the device. An operation
of several kernels divides its floor among them in proportion to their times. The line is the program's; a backward operation is shown at
the line of its forward operation. Kernels are named without their parameters.

The programs are those of [measurements.md](measurements.md): GPT-2 with 124 million parameters on 8 × 1024 tokens, and ResNet-50 on 64
images in training and on one in inference, all under bf16 autocast. A compiled program runs in a region without graphs, which launches the
same kernels as the graph. Where a program is a graph, its replays ran as the profiler's [twin](profiler.md#how-a-replay-is-timed): the same
kernels one after another, each with its time. The device was held until the program had issued its work, as far as the queue allows, so
that kernel times contain no host time. The two events around a kernel still add about three microseconds: the times of small kernels, such
as those of ResNet-50 on one image, are mostly this.

On a machine with a GPU and without Go, in a copy of the repository:

` + "```sh" + `
bench/pack.sh /tmp                                                              # where Go is
bench/gpu.sh /tmp/binaries.txz /tmp/run.json COMMIT profiles                    # there; it writes /tmp/profiles
cp /tmp/profiles/*.profile bench/profiles && go generate ./bench                # where Go is: records them, and writes this page
` + "```" + `

` + "`tenon profile bench/profiles/NAME.profile`" + ` shows all of a program's operations, by name, line, module or time.
`
