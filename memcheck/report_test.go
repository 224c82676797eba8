package memcheck

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/cost"
)

var rewrite = flag.Bool("rewrite", false, "write what is found as what is expected")

// parse parses a text as the output of a tool.
func parse(tool Tool, text string) (*Report, error) {
	return ParseReport(strings.NewReader(text), ParseOptions{Tool: tool, Libraries: DefaultLibraries()})
}

// toolOf returns the tool that a recording's name begins with.
func toolOf(file string) Tool {
	tool, _, _ := strings.Cut(filepath.Base(file), "-")
	return Tool(tool)
}

// describe formats a report as in testdata/recordings.want.
func describe(r *Report, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s errors %d warnings %d groups %d unprinted %d", r.Checker, r.Errors, r.Warnings, r.Groups, r.Unprinted)
	if err != nil {
		fmt.Fprintf(&b, ": %v", err)
	}
	b.WriteString("\n")
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "  %d × %s %s", f.Count, f.Severity, f.Class)
		if f.Access != "" {
			fmt.Fprintf(&b, " %s %s %d", f.Space, f.Access, f.Size)
		}
		for _, frames := range [][]Frame{f.Device, f.Other} {
			if len(frames) > 0 {
				fmt.Fprintf(&b, " at %s", frames[0].Place())
			}
		}
		if f.Kernel != "" {
			fmt.Fprintf(&b, " in %s", f.Kernel)
		}
		if f.Thread != nil {
			fmt.Fprintf(&b, " by %v of %v", *f.Thread, *f.Block)
		}
		if a := f.Allocation; a != nil {
			fmt.Fprintf(&b, " allocation of %d %q made by %d freed by %d frames", a.Size, a.Relation, len(a.Stack), len(a.Freed))
		}
		if f.Address != 0 {
			b.WriteString(" with an address")
		}
		if f.Library != "" {
			fmt.Fprintf(&b, " library %s", f.Library)
		}
		fmt.Fprintf(&b, " stack of %d", len(f.Stack))
		if s := f.Site(); s != nil {
			fmt.Fprintf(&b, " from %s%s", s.Function, s.File)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestRecordings parses the output of compute-sanitizer on an H200 for programs with and without bugs.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("testdata/h200/*check-*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	var got strings.Builder
	for _, file := range files {
		in, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseReport(in, ParseOptions{Tool: toolOf(file), Libraries: DefaultLibraries()})
		in.Close()
		fmt.Fprintf(&got, "%s\n%s", filepath.Base(file), describe(r, err))
		for _, f := range r.Findings {
			if f.Tool != toolOf(file) || f.Message == "" || f.Count < 1 {
				t.Errorf("%s: %+v", file, f)
			}
		}
	}
	const want = "testdata/recordings.want"
	if *rewrite {
		if err := os.WriteFile(want, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expected, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if g, w := strings.Split(got.String(), "\n"), strings.Split(string(expected), "\n"); got.String() != string(expected) {
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("line %d of %s:\n got %s\nwant %s", i+1, want, g[i], w[i])
			}
		}
		t.Fatalf("%d lines, want %d of %s", len(g), len(w), want)
	}
}

// TestRecordedClasses compares the most important recordings with the planted bugs, independently of the file that -rewrite makes.
func TestRecordedClasses(t *testing.T) {
	for file, want := range map[string]struct {
		class  Class
		kernel string
		place  string
	}{
		"memcheck-cuda-oob_write.txt":          {OutOfBounds, "store_past(float *, int)", "planted.cu:"},
		"memcheck-cuda-misaligned.txt":         {Misaligned, "misaligned(char *)", "planted.cu:"},
		"memcheck-cuda-double_free.txt":        {InvalidFree, "", ""},
		"memcheck-cuda-trap.txt":               {DeviceFault, "trap(int *)", "planted.cu:"},
		"memcheck-leak-leak.txt":               {Leak, "", ""},
		"memcheck-order-stream_order.txt":      {StreamRace, "fill(float *, int)", "planted.cu:"},
		"racecheck-cuda-race_read.txt":         {Race, "race_read(float *)", "planted.cu:"},
		"racecheck-hazard-race_reread.txt":     {Race, "race_reread(float *)", "planted.cu:"},
		"initcheck-cuda-uninit_half.txt":       {Uninitialized, "load_unwritten(float *, const float *)", "planted.cu:"},
		"synccheck-cuda-barrier_divergent.txt": {Barrier, "half_barrier(float *)", "planted.cu:"},
		"memcheck-pytest-out_of_bounds.txt":    {OutOfBounds, "store_past", "store_past.cu:4"},
		"racecheck-pytest-race.txt":            {Race, "race", "race.cu:4"},
		"initcheck-pytest-uninitialised.txt":   {Uninitialized, "copy", "copy.cu:2"},
		"memcheck-go-StorePast.txt":            {OutOfBounds, "store_past", "planted_test.go:"},
		"racecheck-go-ReadAfterWrite.txt":      {Race, "read_after_write", "planted_test.go:"},
		"initcheck-go-LoadUnwritten.txt":       {Uninitialized, "load_unwritten", "planted_test.go:"},
		"synccheck-go-BarrierInHalf.txt":       {Barrier, "barrier_in_half", "planted_test.go:"},
	} {
		text, err := os.ReadFile(filepath.Join("testdata/h200", file))
		if err != nil {
			t.Error(err)
			continue
		}
		r, err := parse(toolOf(file), string(text))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		n := 0
		for _, f := range r.Findings {
			if f.Class == want.class {
				n++
				if f.Kernel != want.kernel || want.place != "" &&
					(len(f.Device) == 0 || !strings.HasPrefix(f.Device[0].Place(), want.place)) {
					t.Errorf("%s: kernel %q at %v, want %q at %s", file, f.Kernel, f.Device, want.kernel, want.place)
				}
			}
		}
		if n == 0 || n > 2 || n == 2 && want.class != Leak {
			t.Errorf("%s has %d findings of class %s", file, n, want.class)
		}
	}
}

// legacy is a report in the format of cuda-memcheck.
const legacy = `a line of the program
========= CUDA-MEMCHECK
more of the program
========= Invalid __global__ write of size 4
=========     at 0x00000060 in ./src/demo.cu:6:unaligned_kernel(int*)
=========     by thread (1,2,3) in block (4,5,6)
=========     Address 0x400100001 is misaligned
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame:/usr/lib/libcuda.so.1 (cuLaunchKernel + 0x331) [0x138281]
=========     Host Frame:demo (main + 0x2b) [0xcab]
=========
========= Program hit cudaErrorLaunchFailure (error 4) due to "unspecified launch failure" on CUDA API call to cudaDeviceSynchronize. 
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame:/usr/local/cuda/lib64/libcublas.so.10 [0x2f4b33]
=========
`

func TestLegacy(t *testing.T) {
	r, err := parse(Memcheck, legacy+"========= ERROR SUMMARY: 2 errors\n========= ERROR SUMMARY: 9 errors\n")
	if err != nil || r.Checker != CheckerLegacy || r.Errors != 2 || r.Groups != 2 || len(r.Findings) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	f := r.Findings[0]
	if f.Class != Misaligned || f.Kernel != "unaligned_kernel(int*)" || f.Device[0].Place() != "demo.cu:6" ||
		*f.Thread != [3]int{1, 2, 3} || *f.Block != [3]int{4, 5, 6} ||
		f.Address != 0x400100001 || f.Size != 4 || f.Access != "write" || f.Space != "global" {
		t.Errorf("%+v", f)
	}
	if len(f.Stack) != 2 || f.Stack[0].Module != "/usr/lib/libcuda.so.1" || f.Stack[0].Function != "cuLaunchKernel" ||
		f.Stack[0].Offset != 0x138281 ||
		f.Stack[1].Text != "demo (main + 0x2b) [0xcab]" {
		t.Errorf("stack %+v", f.Stack)
	}
	if g := r.Findings[1]; g.Class != APIError || g.Library != "cuBLAS" || f.Library != "" {
		t.Errorf("%+v", g)
	}
	if r.OnlyLibraries() || !r.Failing() {
		t.Error("one error is not a library's")
	}
}

// TestReportChecks checks the cases of the contract: the count, the summary, an unfinished group.
func TestReportChecks(t *testing.T) {
	const group = "========= Invalid __global__ read of size 4\n=========     Saved host backtrace\n=========     Host Frame:libcudnn.so\n"
	const noCall = "========= Error: Target application terminated before first instrumented API call\n"
	for name, c := range map[string]struct {
		text   string
		want   error
		groups int
	}{
		"none":                 {"", ErrNoSummary, 0},
		"no report":            {"nonsense\n========= COMPUTE\n", ErrNoSummary, 0},
		"header is no line":    {"x ========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors\n", ErrNoSummary, 0},
		"clean":                {"========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors\n", nil, 0},
		"cut off":              {"========= CUDA-MEMCHECK\n" + group + "=========\n", ErrNoSummary, 1},
		"one":                  {"========= CUDA-MEMCHECK\n" + group + "=========\n========= ERROR SUMMARY: 1 errors\n", nil, 1},
		"modern one":           {"========= COMPUTE-SANITIZER\n" + group + "========= \n========= ERROR SUMMARY: 1 error\n", nil, 1},
		"too few":              {"========= CUDA-MEMCHECK\n" + group + "=========\n========= ERROR SUMMARY: 2 errors\n", ErrCount, 1},
		"too many":             {"========= CUDA-MEMCHECK\n" + group + "=========\n========= ERROR SUMMARY: 0 errors\n", ErrCount, 1},
		"no number":            {"========= CUDA-MEMCHECK\n========= ERROR SUMMARY: many errors\n", ErrCount, 0},
		"huge number":          {"========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 99999999999999999999 errors\n", ErrCount, 0},
		"unended group":        {"========= CUDA-MEMCHECK\n" + group + "========= ERROR SUMMARY: 1 errors\n", ErrCount, 0},
		"modern unended group": {"========= COMPUTE-SANITIZER\n" + group + "========= ERROR SUMMARY: 1 error\n", nil, 1},
		"ornament": {"========= COMPUTE-SANITIZER\n========== x\n=================== FAILURES ====\n========= ERROR " +
			"SUMMARY: 0 errors\n", nil, 0},
		"windows":         {"========= CUDA-MEMCHECK\r\n========= ERROR SUMMARY: 0 errors\r\n", nil, 0},
		"no last newline": {"========= CUDA-MEMCHECK\n========= ERROR SUMMARY: 0 errors", nil, 0},
		"not printed": {"========= COMPUTE-SANITIZER\n" + group + "========= \n========= ERROR SUMMARY: 3 errors\n" +
			"========= ERROR SUMMARY: 2 errors were not printed. Use --print-limit option to adjust the number of printed errors\n", nil,
			1},
		"program failed": {"========= COMPUTE-SANITIZER\n========= Target application returned an error\n" +
			"========= ERROR SUMMARY: 0 errors\n", nil, 0},
		"no call":     {"========= COMPUTE-SANITIZER\n" + noCall, nil, 0},
		"two without": {"========= COMPUTE-SANITIZER\n" + noCall + noCall, nil, 0},
		"one of two":  {"========= COMPUTE-SANITIZER\n" + noCall + group + "========= \n========= ERROR SUMMARY: 1 error\n", nil, 1},
	} {
		r, err := parse(Memcheck, c.text)
		if !errors.Is(err, c.want) || r.Groups != c.groups || r.NoCalls != slices.Contains([]string{"no call", "two without"}, name) {
			t.Errorf("%s: %d groups, no calls %v and %v, want %d and %v", name, r.Groups, r.NoCalls, err, c.groups, c.want)
		}
	}
	if ErrCount.Error() != "Number of errors does not match" || ErrNoSummary.Error() != "No error summary found" {
		t.Error("the texts are the contract's")
	}
}

func TestLibraries(t *testing.T) {
	const only = "========= CUDA-MEMCHECK\n========= Invalid __global__ read of size 4\n=========     Saved host backtrace\n=========   " +
		"  Host Frame:%s\n=========\n========= ERROR SUMMARY: 1 errors\n"
	for frame, want := range map[string]string{"/x/libcublasLt.so.13 [0x1]": "cuBLAS", "/x/libcudnn_ops.so.9": "cuDNN",
		"/x/libcufft.so.12": "cuFFT", "/x/libmine.so": "", "main": ""} {
		r, err := parse(Memcheck, fmt.Sprintf(only, frame))
		if err != nil || len(r.Findings) != 1 || r.Findings[0].Library != want || r.OnlyLibraries() != (want != "") ||
			r.Failing() != (want == "") {
			t.Errorf("%s: %+v, %v", frame, r.Findings, err)
		}
	}
	libs := DefaultLibraries()
	if err := libs.Read(strings.NewReader("# further ones\n\nNCCL libnccl # collectives\nlibmine\n")); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{"Host Frame: f in /x/libnccl.so.2": "NCCL", "libmine.so": "libmine", "libcufft.so": "cuFFT",
		"libother.so": ""} {
		if got := libs.Match("x", line); got != want {
			t.Errorf("%s is of %q, want %q", line, got, want)
		}
	}
	if err := libs.Read(strings.NewReader("one\na b c\n")); err == nil || !strings.Contains(err.Error(), "line 2") ||
		!strings.Contains(err.Error(), "NCCL libnccl") {
		t.Errorf("three words give %v", err)
	}
	if (&Report{}).OnlyLibraries() {
		t.Error("a report without findings is no library's")
	}
}

// TestReportIsBounded parses many distinct findings and an endless line.
func TestReportIsBounded(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("========= COMPUTE-SANITIZER\n")
	const n = 3 * MaxFindings
	for i := range n {
		fmt.Fprintf(&b, "========= Invalid __global__ read of size 4 bytes\n=========     at kernel_%d+0x10 in a.cu:%d\n========= \n", i, i)
	}
	b.Write(bytes.Repeat([]byte("x"), 1<<20))
	fmt.Fprintf(&b, "\n========= %s\n========= \n========= ERROR SUMMARY: %d errors\n", strings.Repeat("y", 1<<20), n+1)
	r, err := ParseReport(&b, ParseOptions{Tool: Memcheck})
	if err != nil || len(r.Findings) != MaxFindings || r.Groups != n+1 || r.Errors != n+1 {
		t.Errorf("%d findings of %d groups, %d errors, %v", len(r.Findings), r.Groups, r.Errors, err)
	}
}

const tenonLog = `{"checker":"TENON-CHECK","pid":7,"tools":["memcheck","leaks"]}
{"pid":7,"alloc":{"id":1,"address":"0xa00000000000","size":128,"stack":[{"function":"f","file":"a_test.go","line":3,"text":"f in a_test.go:3"}]}}
{"pid":7,"alloc":{"id":2,"address":"0xa00000000200","size":64,"stack":[{"function":"f","file":"a_test.go","line":3,"text":"f in a_test.go:3"}]}}
{"pid":7,"alloc":{"id":3,"address":"0xa00000000400","size":64}}
{"pid":7,"kernel":"saxpy"}
{"pid":7,"finding":{"tool":"memcheck","class":"out-of-bounds","severity":"error","message":"Invalid __global__ write of size 4 bytes","kernel":"saxpy","device":[{"function":"saxpy","file":"a_test.go","line":9,"text":"saxpy in a_test.go:9"}],"access":"write","space":"global","size":4,"address":"0xa00000000080","thread":[31,0,0],"block":[0,0,0],"count":1}}
{"checker":"TENON-CHECK","pid":8,"tools":["memcheck","leaks"]}
{"pid":8,"alloc":{"id":3,"address":"0xa00000000000","size":16}}
{"pid":8,"kernel":"saxpy"}
{"pid":7,"free":3}
{"pid":8,"free":3}
`

func TestTenonLog(t *testing.T) {
	r, err := parse(Memcheck, tenonLog)
	if err != nil || r.Checker != CheckerTenon || r.Kernels != 1 || len(r.Findings) != 2 || r.Groups != 3 || r.Errors != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if f := r.Findings[0]; f.Class != OutOfBounds || f.Device[0].Place() != "a_test.go:9" || f.Address != 0xa00000000080 ||
		f.Thread[0] != 31 || f.Kernel != "saxpy" {
		t.Errorf("%+v", f)
	}
	if f := r.Findings[1]; f.Class != Leak || f.Count != 2 || f.Allocation.Size != 128 || f.Site().Place() != "a_test.go:3" {
		t.Errorf("%+v", f)
	}
	if _, err := parse(Memcheck, tenonLog+`{"pid":7,"fin`); !errors.Is(err, ErrNoSummary) {
		t.Errorf("a line that was cut off gives %v", err)
	}
}

// FuzzParseReport checks that for any input the parser fails only with its two errors, and keeps no more than documented.
func FuzzParseReport(f *testing.F) {
	f.Add([]byte(legacy + "========= ERROR SUMMARY: 2 errors\n"))
	f.Add([]byte(tenonLog))
	files, _ := filepath.Glob("testdata/h200/*check-*.txt")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && len(text) < 8000 {
			f.Add(text)
		}
	}
	f.Add([]byte("========= COMPUTE-SANITIZER\n" + strings.Repeat("========= x\n========= \n", 50)))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r *Report
		var err error
		cost.Within(t, 1<<20+1000*len(text), func() {
			r, err = ParseReport(bytes.NewReader(text), ParseOptions{Tool: Memcheck, Libraries: DefaultLibraries()})
		})
		if r == nil || err != nil && !errors.Is(err, ErrCount) && !errors.Is(err, ErrNoSummary) {
			t.Fatalf("%v, %v", r, err)
		}
		if len(r.Findings) > MaxFindings || len(r.Findings) > bytes.Count(text, []byte("\n"))+1 {
			t.Fatalf("%d findings of %d bytes", len(r.Findings), len(text))
		}
		if err := r.check(); err != nil { // a journal with it could not be read back
			t.Fatal(err)
		}
		for _, g := range r.Findings {
			if g.Count < 1 || g.Key() == "" {
				t.Fatalf("%+v", g)
			}
			g.Site()
		}
	})
}
