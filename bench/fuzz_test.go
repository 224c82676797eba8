package bench

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/benchrun"
)

var fuzzLogs = flag.String("fuzzlogs", "", "the folder of logs from which TestFuzzRuns takes how often each fuzz target was executed")

// fuzzTarget is a line of fuzz.txt.
type fuzzTarget struct {
	pkg, name string
	part      int // share of the executions, in thousandths
}

func (f fuzzTarget) log() string {
	stem := strings.ReplaceAll(f.pkg, "/", "_")
	if stem == "." {
		stem = "tenon"
	}
	return stem + "." + f.name + ".log"
}

func fuzzTargets(t *testing.T) (all []fuzzTarget) {
	b, err := os.ReadFile("fuzz.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var f fuzzTarget
		var seconds int
		if n, err := fmt.Sscan(line, &f.pkg, &f.name, &seconds, &f.part); n != 4 || seconds < 1 || f.part < 1 {
			t.Fatalf("the line %q is no package, target, seconds and part: %v", line, err)
		}
		all = append(all, f)
	}
	return all
}

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)

// CI and the long run include every fuzz target, and the shares of the long run add up to the whole.
func TestFuzzTargets(t *testing.T) {
	listed, whole := map[string]bool{}, 0
	for _, f := range fuzzTargets(t) {
		listed[f.pkg+" "+f.name] = true
		whole += f.part
	}
	if whole != 1000 {
		t.Errorf("the parts sum to %d of 1000", whole)
	}
	root, err := benchrun.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(name))
		for _, m := range fuzzFunc.FindAllSubmatch(b, -1) {
			key := filepath.ToSlash(pkg) + " " + string(m[1])
			if !listed[key] {
				t.Errorf("bench/fuzz.txt lacks %s", key)
			}
			delete(listed, key)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for key := range listed {
		t.Errorf("bench/fuzz.txt has %s, which is no fuzz target", key)
	}
}

var fuzzExecs = regexp.MustCompile(`execs: (\d+)`)

// executed returns how often the target was executed according to a log of Go's fuzzer, and whether it found nothing.
func executed(log string) (n float64, passed bool) {
	if m := fuzzExecs.FindAllStringSubmatch(log, -1); m != nil {
		n, _ = strconv.ParseFloat(m[len(m)-1][1], 64)
	}
	return n, strings.HasSuffix(strings.TrimSpace(log), "PASS")
}

func TestExecuted(t *testing.T) {
	const log = "fuzz: elapsed: 3s, execs: 120 (40/sec), new interesting: 3 (total: 5)\nfuzz: elapsed: 5s, execs: 200 (40/sec), new " +
		"interesting: 4 (total: 6)\n"
	for text, want := range map[string]float64{log + "PASS\n": 200, log + "--- FAIL: FuzzRead (5.00s)\nFAIL\n": -200, "": 0} {
		n, passed := executed(text)
		if !passed {
			n = -n
		}
		if n != want {
			t.Errorf("%q: %v", text, n)
		}
	}
}

// TestFuzzRuns records how often each target was executed in a run of bench/fuzz.sh, and for how many targets something was found.
func TestFuzzRuns(t *testing.T) {
	if *fuzzLogs == "" {
		t.Skip("there are no results of bench/fuzz.sh to record; it passes them with a flag")
	}
	count := func(name string, v float64, unit, note string) {
		benchrun.Record(benchrun.Figure{Name: name, Unit: unit, Sample: benchrun.Summarize([]float64{v}), Note: note})
	}
	total, findings := 0.0, 0.0
	for _, f := range fuzzTargets(t) {
		b, err := os.ReadFile(filepath.Join(*fuzzLogs, f.log()))
		if err != nil {
			t.Error(err)
			continue
		}
		n, passed := executed(string(b))
		if !passed {
			findings++
			t.Errorf("%s of %s found something: %s", f.name, f.pkg, filepath.Join(*fuzzLogs, f.log()))
		}
		total += n
		count("fuzz."+strings.TrimSuffix(f.log(), ".log"), n, "executions", "each target")
	}
	count("fuzz.executions", total, "executions", "")
	count("fuzz.findings", findings, "targets", "")
}
