package memcheck

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenon.dev/internal/browser"
)

// shots is the folder for screenshots of the report, to look at.
var shots = flag.String("shots", "", "folder for screenshots of the HTML report")

// richJournal returns a run with findings of most classes over two devices, and the folder with their source.
func richJournal(t *testing.T) (path, sources string) {
	t.Helper()
	sources = t.TempDir()
	var text strings.Builder
	for i := 1; i <= 60; i++ {
		fmt.Fprintf(&text, "\tk.If(i.Lt(n), func() { y.Store(i.Add(one), a.Mul(x.Load(i))) }) // %d\n", i)
	}
	if err := os.WriteFile(filepath.Join(sources, "scale.go"), []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	host := []Frame{{Function: "cuLaunchKernel", Offset: 0x39fb94, Module: "libcuda.so.1",
		Text: "cuLaunchKernel [0x39fb94] in libcuda.so.1"},
		{Function: "(*Device).Launch", File: "launch.go", Line: 88, Module: "scale.test",
			Text: "(*Device).Launch in launch.go:88 in scale.test"},
		{Function: "TestScale", File: "scale_test.go", Line: 12, Module: "scale.test", Text: "TestScale in scale_test.go:12 in scale.test"}}
	at := func(kernel string, line int) []Frame {
		return []Frame{{Function: kernel, File: "scale.go", Line: line, Offset: 0x60, Text: kernel + "+0x60 in scale.go"}}
	}
	past := &Finding{Tool: Memcheck, Class: OutOfBounds, Severity: SeverityError, Message: "Invalid __global__ write of size 4 bytes",
		Kernel: "scale", Device: at("scale", 43),
		Access: "write", Size: 4, Space: "global", Address: 0x7feb42a01008, Thread: &[3]int{16, 0, 0}, Block: &[3]int{2, 0, 0},
		Count: 32, Stack: host,
		Details: []string{"Access to 0x7feb42a01008 is out of bounds", "and is 9 bytes after the nearest allocation at " +
			"0x7feb42a00000 of size 4096 bytes"},
		Allocation: &Allocation{Address: 0x7feb42a00000, Size: 4096, Relation: "9 bytes after the nearest allocation",
			Stack: []Frame{{Function: "NewBuffer", File: "scale.go", Line: 9, Text: "NewBuffer in scale.go:9"}}}}
	freed := &Finding{Tool: Memcheck, Class: UseAfterFree, Severity: SeverityError, Message: "Invalid __global__ read of size 8 bytes",
		Kernel: "gather_rows", Device: at("gather_rows", 21),
		Access: "read", Size: 8, Space: "global", Address: 0x7feb42a00100, Count: 1, Stack: host,
		Allocation: &Allocation{Address: 0x7feb42a00000, Size: 1024, Relation: "inside of an allocation that was freed",
			Freed: []Frame{{Function: "(*Buffer).Free", File: "scale.go", Line: 30, Text: "(*Buffer).Free in scale.go:30"}}}}
	race := &Finding{Tool: Racecheck, Class: Race, Severity: SeverityError, Message: "Race reported between Write access at " +
		"transpose+0x90 in scale.go:12 and Read access at transpose+0xe0 in scale.go:14 [64 hazards]",
		Kernel: "transpose", Device: at("transpose", 12), Other: at("transpose", 14), Space: "shared", Count: 1}
	warning := &Finding{Tool: Racecheck, Class: Race, Severity: SeverityWarning, Message: "Race reported between Write access and Write " +
		"access of equal values", Kernel: "flag_any", Device: at("flag_any", 50), Space: "shared", Count: 3}
	uninit := &Finding{Tool: Initcheck, Class: Uninitialized, Severity: SeverityError, Message: "Uninitialized __global__ memory read " +
		"of size 4 bytes", Kernel: "sum_rows", Device: at("sum_rows", 33),
		Access: "read", Size: 4, Space: "global", Address: 0x7feb42b00010, Count: 256, Stack: host,
		Allocation: &Allocation{Address: 0x7feb42b00000, Size: 64}}
	blas := &Finding{Tool: Memcheck, Class: APIError, Severity: SeverityError, Message: "Program hit cudaErrorInvalidResourceHandle " +
		"(error 400) due to \"invalid resource handle\" on CUDA API call to cudaEventQuery.", Library: "cuBLAS", Count: 1,
		Stack: []Frame{{Function: "cublasSgemm_v2", Offset: 0x5512, Module: "libcublas.so.12", Text: "cublasSgemm_v2 [0x5512] in " +
			"libcublas.so.12"}}}
	leak := &Finding{Tool: Memcheck, Class: Leak, Severity: SeverityError, Message: "Leaked 1,048,576 bytes at 0x7feb42c00000",
		Address: 0x7feb42c00000, Count: 1,
		Allocation: &Allocation{Address: 0x7feb42c00000, Size: 1 << 20, Stack: host[1:]}}
	var records []*Record
	began := time.Unix(1_790_000_000, 0)
	free := make([]float64, 4)
	for i := range 260 {
		r := record(fmt.Sprintf("TestKernels.test_%s_%03d_cuda", []string{"scale", "gather", "transpose", "sum", "softmax"}[i%5], i),
			Success)
		r.Worker, r.GPU = i%4, []string{"0", "1"}[i%2]
		r.Seconds = 0.8 + float64(i*i%97)/40
		r.CPU, r.Memory = r.Seconds*0.7, int64(300+i%7*40)<<20
		switch {
		case i%61 == 0:
			r = failed(r, "1 error", past)
		case i == 77:
			r = failed(r, "3 errors", freed, uninit)
		case i%90 == 12:
			r = failed(r, "1 error", race)
		case i == 33:
			r.Report.Findings = []*Finding{warning}
		case i%50 == 40:
			r.Outcome, r.Reason, r.Report.Findings = Ignored, "every error is a library's", []*Finding{blas}
		case i == 101:
			r.Outcome, r.Reason, r.Seconds, r.Stdout = Timeout, "still running after 20s", 20, "launching spin<<<1, 1>>>\n"
		case i == 150:
			r = failed(r, "1 error", leak)
		case i == 151:
			r = failed(r, "the checker found nothing, but the test failed by itself: exit status 1")
			r.Stdout, r.Stderr = "", "Traceback (most recent call last):\n  File \"test_kernels.py\", line 31, in "+
				"test_sum\nAssertionError: 3.0 != 4.0\n"
		case i%40 == 7:
			r.Skipped = true
		case i == 8:
			r.Verified = false
		}
		r.Start = began.Add(time.Duration(free[r.Worker] * float64(time.Second)))
		free[r.Worker] += r.Seconds + 0.05
		records = append(records, r)
	}
	h := Header{Target: "test_kernels.py", Checker: CheckerSanitizer, Tools: []Tool{Memcheck}, Shard: Shard{Split: 1},
		GPUs: []string{"0", "1", "0", "1"}, Host: "gpu-07", Limit: 20, Began: began}
	return journal(t, JournalName, h, false, records...), sources
}

func failed(r *Record, reason string, findings ...*Finding) *Record {
	r.Outcome, r.Reason, r.Exit, r.Report.Findings = Fail, reason, 1, findings
	r.Stdout, r.Printed = "========= COMPUTE-SANITIZER\n========= "+reason+"\n", 120_000
	return r
}

// TestPageInBrowser uses the report as a reader would.
func TestPageInBrowser(t *testing.T) {
	path, sources := richJournal(t)
	res, err := ReadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "result.html")
	f, err := os.Create(page)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(res.WriteHTML(f, sources), f.Close()); err != nil {
		t.Fatal(err)
	}
	tab := browser.Open(t, "file://"+page, 1280, 900)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	shot := func(name string) {
		t.Helper()
		if *shots != "" {
			must(os.WriteFile(filepath.Join(*shots, name+".png"), tab.PNG(), 0o644))
		}
	}
	is := func(expression string, want any) {
		t.Helper()
		var got any
		tab.Eval(expression, &got)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", expression, got, want)
		}
	}
	tab.Eval("document.documentElement.style.scrollBehavior = 'auto'", nil)
	shot("top")
	is("document.querySelector('#verdict').textContent", "11 failed")
	is("document.querySelectorAll('.card').length", 7)
	is("document.querySelector('.card .source .here').textContent.trim().slice(0, 2)", "43")
	is("document.querySelector('.card svg.map').getAttribute('aria-label')", "The access is 8 bytes past the end")
	is("document.querySelectorAll('tr.test').length", 200) // of 260, until more are requested
	is("document.querySelector('tr.test .badge').textContent", "failed")
	is("document.querySelector('#legend').textContent.includes('1 timed out')", true)
	tab.Eval("document.querySelector('#more').click()", nil)
	is("document.querySelectorAll('tr.test').length", 260)
	// Search and filters.
	tab.Press("/")
	tab.Type("gather_rows")
	is("document.querySelectorAll('.card').length", 1)
	tab.Press("Escape")
	is("document.querySelectorAll('.card').length", 7)
	tab.Eval("[...document.querySelectorAll('#classes .chip')].find(c => c.textContent.startsWith('race')).click()", nil)
	is("document.querySelectorAll('.card').length", 2)
	tab.Eval("[...document.querySelectorAll('#outcomes .chip')].find(c => c.textContent.startsWith('timed out')).click()", nil)
	is("document.querySelectorAll('tr.test').length", 1)
	// A link from a test leads to its finding, regardless of filters, and back.
	tab.Eval("location.hash = '#f-0'", nil)
	tab.Wait("document.querySelectorAll('.card').length === 7")
	shot("finding")
	tab.Eval("location.hash = '#t-151'", nil)
	tab.Wait("document.querySelector('tr.open pre') !== null")
	is("document.querySelector('tr.open pre').textContent.includes('AssertionError: 3.0 != 4.0')", true)
	shot("test")
	tab.Eval("document.querySelector('#timeline').scrollIntoView()", nil)
	shot("timeline")
	is("document.querySelector('#lanes').getContext('2d').getImageData(200, 8, 1, 1).data[3] > 0", true)
	tab.Prefer("prefers-color-scheme", "dark")
	tab.Wait("document.documentElement.classList.contains('dark')")
	tab.Eval("scrollTo(0, 0)", nil)
	shot("dark")
	tab.Press("t")
	is("document.documentElement.classList.contains('dark')", false)
	tab.Resize(420, 900)
	is("document.documentElement.scrollWidth <= 420", true)
	shot("narrow")
	hostile, err := ReadResults(hostileJournal(t))
	must(err)
	f, err = os.Create(page)
	must(err)
	must(errors.Join(hostile.WriteHTML(f), f.Close()))
	tab.Reload()
	tab.Wait("document.querySelector('#verdict').textContent === '1 failed'")
	is("/[\\u0000-\\u0008\\u001b\\u009b\\u202e\\u2066\\ufffe]/.test(document.body.innerText)", false)
	is("document.querySelector('#title').textContent.includes(String.raw`x\\x1b]0;t\\x07`)", true)
	several, err := ReadResults(journal(t, "several.jsonl", Header{Target: "t.test", Tools: []Tool{Memcheck, Racecheck},
		Shard: Shard{Split: 1}}, false, underTools()...))
	must(err)
	f, err = os.Create(page)
	must(err)
	must(errors.Join(several.WriteHTML(f), f.Close()))
	tab.Reload()
	tab.Wait("document.querySelector('#verdict').textContent === '2 failed'")
	is("document.querySelector('#tiles dd').textContent", "5 under 2 tools")
	is("document.querySelector('#legend').textContent", "2 failed1 timed out2 passed")
	is("document.querySelectorAll('tr.test').length", 10)
	if e := tab.Errors(); len(e) > 0 {
		t.Errorf("the page complains: %q", e)
	}
	for _, r := range tab.Requests() {
		if !strings.HasPrefix(r, "file://") && !strings.HasPrefix(r, "data:") {
			t.Errorf("the page asked for %s", r)
		}
	}
}
