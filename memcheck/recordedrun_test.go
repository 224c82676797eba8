package memcheck

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/benchrun"
)

var journals = flag.String("journals", "", "TestPlantedRuns judges the journals that testdata/runs.sh left in this folder")

// recordedRun reads the journal of a run on an H200.
func recordedRun(t *testing.T, file string) []*Record {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var records []*Record
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), `{"type":"test"`) {
			continue
		}
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		records = append(records, &r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return records
}

// expectation is the expected result of a test of a recorded run, by "TEST TOOL"; tests not named must succeed without a finding.
type expectation struct {
	outcome Outcome
	class   Class
	kernel  string
	// place is a prefix of the place in the kernel.
	place string
}

// comparePytest checks, for the run over a Python file, that each planted bug is found in its test, by its tool, and nowhere else.
func comparePytest(records []*Record) []string {
	want := map[string]expectation{
		"TestPlanted.test_out_of_bounds_cuda memcheck":  {Fail, OutOfBounds, "store_past", "store_past.cu:4"},
		"TestPlanted.test_race_cuda racecheck":          {Fail, Race, "race", "race.cu:4"},
		"TestPlanted.test_uninitialised_cuda initcheck": {Fail, Uninitialized, "copy", "copy.cu:2"},
		"TestPlanted.test_half_barrier_cuda synccheck":  {Fail, Barrier, "half_barrier", "half_barrier.cu:3"},
		"TestPlanted.test_hang_cuda memcheck":           {outcome: Timeout},
		"TestPlanted.test_hang_cuda racecheck":          {outcome: Timeout},
		"TestPlanted.test_hang_cuda initcheck":          {outcome: Timeout},
		"TestPlanted.test_hang_cuda synccheck":          {outcome: Timeout},
		"TestPlanted.test_fails_cuda memcheck":          {outcome: Fail},
		"TestPlanted.test_fails_cuda racecheck":         {outcome: Fail},
		"TestPlanted.test_fails_cuda initcheck":         {outcome: Fail},
		"TestPlanted.test_fails_cuda synccheck":         {outcome: Fail},
	}
	return compareRun(records, want, 40)
}

// compareGo does the same for Go kernels.
func compareGo(records []*Record) []string {
	want := map[string]expectation{}
	for tool, classes := range map[Tool]map[Class]string{
		Memcheck: {
			OutOfBounds: "StorePast:store_past GatherBefore:gather_before LoopPast:loop_past StoreFreed:store_freed " +
				"LoadFreed:load_freed AddFreed:add_freed",
			Leak:       "LeakOne: LeakLoop: LeakUsed:",
			StreamRace: "StreamReadAfterWrite:stream_reader StreamWriteAfterWrite:stream_rewriter StreamWriteAfterRead:stream_overwriter",
		},
		Racecheck: {Race: "ReadAfterWrite:read_after_write WriteAfterWrite:write_after_write WriteAfterRead:write_after_read"},
		Initcheck: {Uninitialized: "LoadUnwritten:load_unwritten HalfWritten:half_written SumUnwritten:sum_unwritten"},
		Synccheck: {Barrier: "BarrierInHalf:barrier_in_half BarrierInOdd:barrier_in_odd BarrierInMiddle:barrier_in_middle"},
	} {
		for class, tests := range classes {
			for _, x := range strings.Fields(tests) {
				name, kernel, _ := strings.Cut(x, ":")
				place := "planted_test.go:"
				if class == Leak {
					place = ""
				}
				want["TestPlanted"+name+" "+string(tool)] = expectation{Fail, class, kernel, place}
			}
		}
	}
	return compareRun(records, want, 140)
}

// compareCUDA does the same for a CUDA C++ program, whose other findings only follow from these.
func compareCUDA(records []*Record) []string {
	want := map[string]expectation{}
	for test, e := range map[string]expectation{
		"oob_write memcheck":          {Fail, OutOfBounds, "store_past(float *, int)", "planted.cu:"},
		"oob_read memcheck":           {Fail, OutOfBounds, "load_past(float *, const float *, int)", "planted.cu:"},
		"oob_before memcheck":         {Fail, OutOfBounds, "store_before(double *)", "planted.cu:"},
		"oob_shared memcheck":         {Fail, OutOfBounds, "shared_past(float *, int)", "planted.cu:"},
		"null_write memcheck":         {Fail, OutOfBounds, "null_store(int *)", "planted.cu:"},
		"use_after_free memcheck":     {Fail, OutOfBounds, "fill(float *, int)", "planted.cu:"},
		"misaligned memcheck":         {Fail, Misaligned, "misaligned(char *)", "planted.cu:"},
		"double_free memcheck":        {Fail, InvalidFree, "", ""},
		"copy_past memcheck":          {Fail, APIError, "", ""},
		"api_error memcheck":          {Fail, APIError, "", ""},
		"assert memcheck":             {Fail, DeviceFault, "__assertfail", ""},
		"trap memcheck":               {Fail, DeviceFault, "trap(int *)", "planted.cu:"},
		"stream_order memcheck":       {Fail, StreamRace, "fill(float *, int)", "planted.cu:"},
		"stream_order_free memcheck":  {Fail, StreamRace, "", ""},
		"blas_short memcheck":         {outcome: Fail}, // the library's errors, and the program's call that they make fail
		"race_read racecheck":         {Fail, Race, "race_read(float *)", "planted.cu:"},
		"race_write racecheck":        {Fail, Race, "race_write(float *)", "planted.cu:"},
		"race_reread racecheck":       {Fail, Race, "race_reread(float *)", "planted.cu:"},
		"uninit initcheck":            {Fail, Uninitialized, "load_unwritten(float *, const float *)", "planted.cu:"},
		"uninit_half initcheck":       {Fail, Uninitialized, "load_unwritten(float *, const float *)", "planted.cu:"},
		"uninit_copy initcheck":       {Fail, Uninitialized, "", ""},
		"barrier_divergent synccheck": {Fail, Barrier, "half_barrier(float *)", "planted.cu:"},
		"warp_mask synccheck":         {Fail, Barrier, "partial_warp(float *)", ""},
	} {
		want[test] = e
	}
	for _, tool := range []string{"memcheck", "racecheck", "initcheck", "synccheck"} {
		want["hang "+tool] = expectation{outcome: Timeout}
		for _, test := range strings.Fields("host_crash host_fails") {
			want[test+" "+tool] = expectation{outcome: Fail}
		}
		for _, test := range strings.Fields("assert trap oob_write oob_read oob_before oob_shared null_write misaligned use_after_free " +
			"blas_short stream_order") {
			if tool != "memcheck" { // the program itself fails if the device faults, which depends on where its memory lies
				want[test+" "+tool] = expectation{outcome: "any"}
			}
		}
	}
	return compareRun(records, want, 128)
}

// compareRun returns the differences from the expectations in a run of that many jobs.
func compareRun(records []*Record, want map[string]expectation, jobs int) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if len(records) != jobs {
		say("%d records, want %d", len(records), jobs)
	}
	met, libraries := 0, 0
	for _, r := range records {
		name := r.Test + " " + string(r.Tool)
		e, ok := want[name]
		if !ok {
			e.outcome = Success
		} else {
			met++
		}
		if e.outcome != "any" && r.Outcome != e.outcome {
			say("%s: %s (%s), want %s", name, r.Outcome, r.Reason, e.outcome)
		}
		n := 0
		for _, f := range r.Report.Findings {
			switch {
			case e.class == f.Class && f.Kernel == e.kernel:
				n++
				if e.place != "" && (len(f.Device) == 0 || !strings.HasPrefix(f.Device[0].Place(), e.place)) {
					say("%s: at %v, want %s", name, f.Device, e.place)
				}
			case f.Library == "cuBLAS":
				libraries++
			case (e.class != "" || libraries > 0) && (f.Class == APIError || f.Class == Leak): // consequences of a lost device
			default:
				say("%s: %s in %q: %s", name, f.Class, f.Kernel, f.Message)
			}
		}
		if e.class != "" && n != 1 {
			say("%s: found %d times: %v", name, n, r.Report.Findings)
		}
	}
	if met != len(want) {
		say("%d of the %d expected records are there", met, len(want))
	}
	return wrong
}

// kernelTests are the tests of Tenon that run its kernels on a GPU, with the line in which some of them give the number.
var kernelTests = map[string]*regexp.Regexp{
	"TestBackEndsAgree":         regexp.MustCompile(`(\d+) kernels agree, 0 buffers differ`),
	"TestKernels":               regexp.MustCompile(`kernels: (\d+) built`),
	"TestProductsOnGPU":         nil,
	"TestProducts":              nil,
	"TestPortableProductsOnGPU": nil,
	"TestUnary32":               nil,
	"TestDigitsLosses":          nil,
}

// compareKernels checks a run over Tenon's kernel tests and, in the same run, a planted bug for each tool and one in a child process of a
// shell: the file RUN.kernels.jsonl that bench/gpu.sh leaves.
func compareKernels(records []*Record) []string {
	want := map[string]expectation{
		"TestPlantedStorePast memcheck":       {Fail, OutOfBounds, "store_past", "planted_test.go:"},
		"TestPlantedLoopPast memcheck":        {Fail, OutOfBounds, "loop_past", "planted_test.go:"},
		"TestPlantedReadAfterWrite racecheck": {Fail, Race, "read_after_write", "planted_test.go:"},
		"TestPlantedLoadUnwritten initcheck":  {Fail, Uninitialized, "load_unwritten", "planted_test.go:"},
		"TestPlantedBarrierInHalf synccheck":  {Fail, Barrier, "barrier_in_half", "planted_test.go:"},
	}
	const tools, planted = 4, 5
	wrong := compareRun(records, want, (len(kernelTests)+planted)*tools)
	met := 0
	for _, r := range records {
		line, ok := kernelTests[r.Test]
		if !ok {
			continue
		}
		met++
		name := r.Test + " " + string(r.Tool)
		if r.Skipped || !r.Verified || r.Report.Errors != 0 {
			wrong = append(wrong, fmt.Sprintf("%s: skipped %v, verified %v, %d errors", name, r.Skipped, r.Verified, r.Report.Errors))
		}
		if line == nil {
			continue
		}
		n := 0
		if m := line.FindStringSubmatch(r.Stdout); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		if n < 1000 {
			wrong = append(wrong, fmt.Sprintf("%s: only %d kernels ran", name, n))
		}
	}
	if met != len(kernelTests)*tools {
		wrong = append(wrong, fmt.Sprintf("%d records of kernel tests, want %d", met, len(kernelTests)*tools))
	}
	return wrong
}

// TestCompareKernels checks that a run that lacks a test, a finding, or kernels does not pass as clean.
func TestCompareKernels(t *testing.T) {
	made := func() (rs []*Record) {
		places := map[string]*Finding{
			"TestPlantedStorePast memcheck":       {Class: OutOfBounds, Kernel: "store_past"},
			"TestPlantedLoopPast memcheck":        {Class: OutOfBounds, Kernel: "loop_past"},
			"TestPlantedReadAfterWrite racecheck": {Class: Race, Kernel: "read_after_write"},
			"TestPlantedLoadUnwritten initcheck":  {Class: Uninitialized, Kernel: "load_unwritten"},
			"TestPlantedBarrierInHalf synccheck":  {Class: Barrier, Kernel: "barrier_in_half"},
		}
		for _, tool := range []Tool{Memcheck, Racecheck, Initcheck, Synccheck} {
			for name := range kernelTests {
				rs = append(rs, &Record{Test: name, Tool: tool, Outcome: Success, Verified: true, Report: &Report{},
					Stdout: "1062 kernels agree, 0 buffers differ; kernels: 1755 built\n"})
			}
			for _, name := range strings.Fields("TestPlantedStorePast TestPlantedLoopPast TestPlantedReadAfterWrite " +
				"TestPlantedLoadUnwritten TestPlantedBarrierInHalf") {
				r := &Record{Test: name, Tool: tool, Outcome: Success, Verified: true, Report: &Report{}}
				if f := places[name+" "+string(tool)]; f != nil {
					f.Device = []Frame{{File: "planted_test.go", Line: 7}}
					r.Outcome, r.Report.Findings = Fail, []*Finding{f}
				}
				rs = append(rs, r)
			}
		}
		return rs
	}
	if wrong := compareKernels(made()); len(wrong) != 0 {
		t.Errorf("as it must be: %q", wrong)
	}
	of := func(rs []*Record, name string, tool Tool) *Record {
		return rs[slices.IndexFunc(rs, func(r *Record) bool { return r.Test == name && r.Tool == tool })]
	}
	for what, change := range map[string]func(rs []*Record) []*Record{
		"a test is missing":     func(rs []*Record) []*Record { return rs[1:] },
		"a test skipped itself": func(rs []*Record) []*Record { of(rs, "TestUnary32", Racecheck).Skipped = true; return rs },
		"a report is missing":   func(rs []*Record) []*Record { of(rs, "TestUnary32", Racecheck).Verified = false; return rs },
		"few kernels":           func(rs []*Record) []*Record { of(rs, "TestKernels", Racecheck).Stdout = "kernels: 17 built"; return rs },
		"a bug is not found":    func(rs []*Record) []*Record { of(rs, "TestPlantedLoopPast", Memcheck).Report = &Report{}; return rs },
		"a test timed out":      func(rs []*Record) []*Record { of(rs, "TestBackEndsAgree", Initcheck).Outcome = Timeout; return rs },
		"a kernel has a finding": func(rs []*Record) []*Record {
			of(rs, "TestKernels", Memcheck).Report.Findings = []*Finding{{Class: Race}}
			return rs
		},
		"another finding instead": func(rs []*Record) []*Record {
			of(rs, "TestPlantedStorePast", Memcheck).Report.Findings[0].Kernel = "other"
			return rs
		},
	} {
		if wrong := compareKernels(change(made())); len(wrong) == 0 {
			t.Errorf("%s: nothing is wrong", what)
		}
	}
}

// TestRecordedRuns compares every journal of a run on an H200 with the planted bugs.
func TestRecordedRuns(t *testing.T) {
	const dir = "testdata/h200"
	compare := map[string]func(records []*Record) []string{
		"pytest.jsonl":  comparePytest,
		"go.jsonl":      compareGo,
		"cuda.jsonl":    compareCUDA,
		"kernels.jsonl": compareKernels,
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) != len(compare) {
		t.Errorf("%d journals are in %s, and %d are known: %q, %v", len(files), dir, len(compare), files, err)
	}
	for name, f := range compare {
		for _, w := range f(recordedRun(t, filepath.Join(dir, name))) {
			t.Errorf("%s: %s", name, w)
		}
	}
}

// TestPlantedRuns compares a new run over the planted programs, on a GPU, with the planted bugs.
func TestPlantedRuns(t *testing.T) {
	if *journals == "" {
		t.Skip("it judges runs made on a GPU just before: bench/gpu.sh's part planted makes them and names their folder by -journals; " +
			"TestRecordedRuns judges those that are kept")
	}
	for name, f := range map[string]func(records []*Record) []string{"pytest": comparePytest, "go": compareGo, "cuda": compareCUDA} {
		records := recordedRun(t, filepath.Join(*journals, name+".jsonl"))
		wrong := f(records)
		for _, w := range wrong {
			t.Errorf("%s: %s", name, w)
		}
		if len(wrong) == 0 {
			t.Logf("%s: %d runs as planted", name, len(records))
			benchrun.Record(benchrun.Figure{Name: "memcheck.planted." + name, Unit: "runs",
				Sample: benchrun.Summarize([]float64{float64(len(records))})})
		}
	}
}
