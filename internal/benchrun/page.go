package benchrun

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"tenon.dev/fault"
)

// Runs reads every run file of a folder, with PyTorch's figures from the file next to it whose name ends in ".torch.json". Runs are sorted
// by file name, so older ones come first.
func Runs(dir string) (names []string, runs []*Run, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fault.Wrap(fault.System, err, "cannot list the run files")
	}
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasSuffix(stem, ".torch") || strings.HasSuffix(stem, ".pairs") {
			continue
		}
		r, err := Read(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		torch := filepath.Join(dir, stem+".torch.json")
		if _, e := os.Stat(torch); e == nil {
			if err := r.MergeTorch(torch); err != nil {
				return nil, nil, err
			}
		}
		if err := r.Check(); err != nil {
			return nil, nil, fault.Wrap(fault.Invalid, err, "cannot use the run %s", e.Name())
		}
		names, runs = append(names, e.Name()), append(runs, r)
	}
	return names, runs, nil
}

// pageHead is the text above the tables.
const pageHead = `This page lists Tenon's measurements by machine, with PyTorch's next to them. A figure is the median of n measurements,
with the smallest and the largest in brackets. A device's section shows the newest value of each figure, and the medians of earlier
runs. PyTorch's figures are from the same machine, measured right before or after with ` + "`bench/torch_bench.py`" + ` or, if they
name a run, in that run. Goals are the project's own; if one names another figure, such as ` + "`launch + 0.8 µs`" + `, it means that
figure of the same run. Two machines of one kind differ by up to 2.4 times, so compare ratios and differences within a run, and not
times alone.

` + "`bench/pack.sh` and `bench/gpu.sh`" + ` make a run on a GPU, and ` + "`bench/sim.sh`" + ` makes one without a GPU. The last tables
list each package's tests in the newest run; ` + "`go test ./FOLDER -run NAME -v`" + ` repeats one. [CONTRIBUTING.md](../CONTRIBUTING.md)
has more.
`

// remarks says, by file, what was special about a run, since files of runs are not edited.
var remarks = map[string]string{
	"2026-11-27-nvidia-h100-3.json": " `TestExpandableSegmentsGPU` compares the device's free memory, and failed while other tests ran; " +
		"alone it passed.",
	"2026-11-27-nvidia-h200-a.json": " `TestCUDA` failed in CUDA-099, which compares the device's free memory, while other tests ran; " +
		"alone it passed.",
	"2026-11-27-nvidia-h200-d.json": " Meanwhile compute-sanitizer ran on the machine's other device, so times of the host are long, " +
		"such as the compile time of GPT-2's step, the replay of a graph, and all that uses no GPU.",
	"2026-11-28-nvidia-h200-a.json": " A graph had only 4 to 64 row products, and its start is a part of their times, in PyTorch too: 36 " +
		"of 2048 × 8192 took 9.3 µs each at cd118c02, where nothing was prefetched.",
	"2026-11-28-nvidia-h200-h.json": " The host took longer than in the run at 3fd0adc4 for all that uses no GPU, such as the Go part of " +
		"an add, and so did what depends on it, such as the token of GPT-2.",
	"2026-11-28-nvidia-h200-i.json": " `TestWalk` counted storages that other tests had dropped and that were freed meanwhile; it waits " +
		"for that since c145f9a5, and passed then.",
	"2026-11-28-nvidia-h200-j.json": " `TestExpandableSegmentsGPU` compares the device's free memory, and failed while other tests ran; " +
		"alone it passed.",
	"2026-11-28-nvidia-h200-n.json": " Six cases of `TestTREE`, whose messages quote a line of Go, failed because the binary had been " +
		"built in a folder that was not on the machine; they passed with one built in the right folder.",
	"2026-11-28-nvidia-h200-o.json": " The forward pass of attention 4 × 16 × 2048 × 64 began right after that of 4 × 32 × 4096 × 128, " +
		"which lowers the device's clock: after shorter work the same kernel reached 422 TFLOP/s on this day.",
	"2026-11-28-nvidia-h200-f.json": " `TestBackEndsAgree` found no memory, which tests of `core` that use up the device had taken; " +
		"alone it passed.",
	"2026-12-01-nvidia-h200-a.json": " `TestExpandableSegmentsGPU`, CUDA-099 of `TestCUDA` and two parts of `TestConformance` compare " +
		"the device's free memory, and failed while other tests ran; alone they passed.",
	"2026-12-01-nvidia-h200-b.json": " CUDA-030, CUDA-050 and CUDA-121 of `TestCUDA`, parts of `TestConformance` and tests of `compile` " +
		"found no memory, which other tests had taken; alone they passed. `TestDeviceWork` missed a case for a new operation; it passed " +
		"at 77d0238c.",
}

// Page returns the page of measurements of the named runs and of the pairs, in Markdown. For each device it shows the newest run's value of
// every figure.
func Page(names []string, runs []*Run, pairs []*Pairs) []byte {
	var b strings.Builder
	b.WriteString("<!-- Code generated by bench/measurements from bench/runs. DO NOT EDIT. -->\n\n# Measurements\n\n")
	b.WriteString(pageHead)
	if len(runs) == 0 {
		b.WriteString("\nNo run has been recorded yet.\n")
		return []byte(b.String())
	}
	byDevice := map[string][]int{}
	for i, r := range runs {
		byDevice[r.Device] = append(byDevice[r.Device], i)
	}
	for _, device := range slices.Sorted(maps.Keys(byDevice)) {
		fmt.Fprintf(&b, "\n## %s\n\n", device)
		for _, i := range byDevice[device] {
			b.WriteString("- Run " + label(i) + ": " + machine(runs[i]) + "." + remarks[names[i]] + "\n")
		}
		deviceTables(&b, runs, byDevice[device])
	}
	pairTables(&b, pairs)
	runTable(&b, names, runs)
	testTables(&b, runs)
	return []byte(b.String())
}

// newest returns the last of the runs at the given indices that has the figure.
func newest(runs []*Run, places []int, name string) (run int, f Figure, ok bool) {
	for _, i := range slices.Backward(places) {
		if f, ok := runs[i].figure(name); ok {
			return i, f, true
		}
	}
	return 0, Figure{}, false
}

func (r *Run) figure(name string) (Figure, bool) {
	i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return r.Figures[i], true
}

// met says whether a run's figure meets its goal; "" if it has none.
func (e Entry) met(r *Run, f Figure) string {
	if e.Goal == nil {
		return ""
	}
	yes, known := e.Goal.Met(r, f)
	switch {
	case !known:
		return "not known"
	case yes:
		return "yes"
	}
	return "**no**"
}

// earlier lists the row's figure in the runs before its own, newest first, and marks those whose result for the goal differs.
func (r row) earlier(runs []*Run, places []int) string {
	var words []string
	for _, i := range slices.Backward(places) {
		f, ok := runs[i].figure(r.Name)
		if i >= r.run || !ok {
			continue
		}
		text := short(f.Median)
		if met := r.met(runs[i], f); met != r.met(runs[r.run], r.f) {
			text += " (met: " + strings.Trim(met, "*") + ")"
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

// label is the name of a run in the tables.
func label(run int) string { return strconv.Itoa(run + 1) }

// machine describes briefly where, and with what, a run was made.
func machine(r *Run) string {
	words := []string{r.Date}
	if r.Host != "" {
		words = append(words, r.Host)
	}
	if r.Go != "" {
		words = append(words, r.Go)
	}
	if r.Torch != "" {
		words = append(words, "PyTorch "+r.Torch)
	}
	return strings.Join(words, ", ")
}

// deviceTables writes the tables of one device: the catalogue's sections, then all other figures.
func deviceTables(b *strings.Builder, runs []*Run, places []int) {
	seen := map[string]bool{}
	for _, s := range Catalogue() {
		sectionTable(b, s, runs, places, seen)
	}
	others := map[string][]string{} // by family
	for _, i := range places {
		for _, f := range runs[i].Figures {
			if !seen[f.Name] {
				seen[f.Name] = true
				others[family(f)] = append(others[family(f)], f.Name)
			}
		}
	}
	for _, title := range slices.Sorted(maps.Keys(others)) {
		furtherTable(b, title, others[title], runs, places)
	}
}

// row is a row of a section's table.
type row struct {
	Entry
	run int
	f   Figure
}

// sectionTable writes the table of a section, without PyTorch's columns if PyTorch was not measured, and marks the figures as seen.
func sectionTable(b *strings.Builder, s Section, runs []*Run, places []int, seen map[string]bool) {
	var rows []row
	beside := false
	for _, e := range s.Entries {
		if i, f, ok := newest(runs, places, e.Name); ok {
			seen[e.Name] = true
			rows = append(rows, row{e, i, f})
			_, torch := newestBeside(runs, places, e.Name)
			beside = beside || torch.Torch != nil
		}
	}
	if len(rows) == 0 {
		return
	}
	head := []string{"work", "Tenon"}
	if beside {
		head = append(head, "PyTorch", "against PyTorch")
	}
	head = append(head, "goal", "met", "run")
	if len(places) > 1 {
		head = append(head, "earlier runs")
	}
	fmt.Fprintf(b, "\n### %s\n\n", s.Title)
	line(b, head...)
	line(b, slices.Repeat([]string{"---"}, len(head))...)
	for _, r := range rows {
		title := r.Title + " (`" + r.Name + "`)"
		if r.f.Note != "" {
			title += "; " + r.f.Note
		}
		cells := []string{title, r.f.text(r.f.Unit)}
		switch before, f := newestBeside(runs, places, r.Name); {
		case !beside:
		case r.f.Torch != nil:
			cells = append(cells, r.f.Torch.text(r.f.Unit), against(r.f))
		case f.Torch != nil: // on another machine of the same kind
			cells = append(cells, f.Torch.text(f.Unit)+", run "+label(before), "")
		default:
			cells = append(cells, "", "")
		}
		goal := ""
		if r.Goal != nil {
			goal = r.Goal.text(r.Unit)
		}
		cells = append(cells, goal, r.met(runs[r.run], r.f), label(r.run))
		if len(places) > 1 {
			cells = append(cells, r.earlier(runs, places))
		}
		line(b, cells...)
	}
}

// newestBeside returns the newest run that has PyTorch's figure for the figure of that name, and the figure.
func newestBeside(runs []*Run, places []int, name string) (run int, f Figure) {
	for _, i := range slices.Backward(places) {
		if f, ok := runs[i].figure(name); ok && f.Torch != nil {
			return i, f
		}
	}
	return 0, Figure{}
}

// line writes a row of a table.
func line(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + cell(c) + " ")
	}
	b.WriteString("|\n")
}

// against says how a figure compares with PyTorch's: how many times as fast, or what fraction of its memory.
func against(f Figure) string {
	ratio, what := f.Median/f.Torch.Median, "the memory"
	switch {
	case strings.HasSuffix(f.Unit, "s") && !strings.Contains(f.Unit, "/") && f.Unit != "launches":
		ratio, what = 1/ratio, "as fast"
	case strings.HasSuffix(f.Unit, "/s"):
		what = "as fast"
	}
	digits := 2
	if ratio >= 100 {
		digits = 0
	}
	return strconv.FormatFloat(ratio, 'f', digits, 64) + " × " + what
}

// family names what a figure outside the catalogue shares with others: the beginning of its name and its note.
func family(f Figure) string {
	if f.Note == "" {
		return "Further benchmarks"
	}
	stem, _, _ := strings.Cut(f.Name, ".")
	return stem + ": " + f.Note
}

// furtherTable writes figures outside the catalogue.
func furtherTable(b *strings.Builder, title string, figures []string, runs []*Run, places []int) {
	sort.Strings(figures)
	fmt.Fprintf(b, "\n### %s\n\n", title)
	line(b, "benchmark", "Tenon", "run")
	line(b, "---", "---", "---")
	for _, name := range figures {
		i, f, _ := newest(runs, places, name)
		line(b, name, f.text(f.Unit), label(i))
	}
}

// text returns the sample as a table cell.
func (s Sample) text(unit string) string {
	if s.N < 2 || s.Min == s.Max {
		return short(s.Median) + " " + unit
	}
	return fmt.Sprintf("%s %s (%s–%s, n %d)", short(s.Median), unit, short(s.Min), short(s.Max), s.N)
}

// cell escapes what would end a table cell.
func cell(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), "\n", " ") }

// runTable lists the runs.
func runTable(b *strings.Builder, names []string, runs []*Run) {
	b.WriteString("\n## Runs\n\n| run | file | device | driver | host | Go | PyTorch | commit | figures | tests |\n| --- | --- | --- | " +
		"--- | --- | --- | --- | --- | --- | --- |\n")
	for i, r := range runs {
		count := map[string]int{}
		for _, t := range r.Tests {
			count[t.Result]++
		}
		tests := ""
		if len(r.Tests) > 0 {
			tests = fmt.Sprintf("%d passed, %d failed, %d skipped", count["pass"], count["fail"], count["skip"])
		}
		commit := r.Commit
		if commit == "" {
			commit = "by the hashes of its packages"
		} else {
			commit = "`" + commit[:min(len(commit), 12)] + "`"
		}
		line(b, label(i), "["+names[i]+"](../bench/runs/"+names[i]+")", r.Device, r.Driver, r.Host, r.Go, r.Torch, commit,
			strconv.Itoa(len(r.Figures)), tests)
	}
}

// testTables lists, for each device and package, the tests of the newest run that has any, and names those that did not pass.
func testTables(b *strings.Builder, runs []*Run) {
	last := map[string]map[string]int{} // by device and package
	for i, r := range runs {
		for _, t := range r.Tests {
			if last[r.Device] == nil {
				last[r.Device] = map[string]int{}
			}
			last[r.Device][t.Package] = i
		}
	}
	for _, device := range slices.Sorted(maps.Keys(last)) {
		fmt.Fprintf(b, "\n## Tests on %s\n\n| package | run | tests | sub-tests passed | failed | skipped | seconds |\n"+
			"| --- | --- | --- | --- | --- | --- | --- |\n", device)
		for _, pkg := range slices.Sorted(maps.Keys(last[device])) {
			tests, subs, seconds, not := 0, 0, 0.0, map[string][]string{}
			for _, t := range runs[last[device][pkg]].Tests {
				if t.Package != pkg {
					continue
				}
				tests, subs, seconds = tests+1, subs+t.Subtests["pass"], seconds+t.Seconds
				if t.Result != "pass" {
					not[t.Result] = append(not[t.Result], t.Name)
				}
			}
			fmt.Fprintf(b, "| %s | %s | %d | %d | %s | %s | %s |\n", pkg, label(last[device][pkg]), tests, subs,
				strings.Join(not["fail"], ", "), strings.Join(not["skip"], ", "), short(seconds))
		}
	}
}
