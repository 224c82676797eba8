package memcheck

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

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

// expectation is what a test of a recorded run must have, by "TEST TOOL"; what is not named succeeded without a finding.
type expectation struct {
	outcome Outcome
	class   Class
	kernel  string
	// place is a prefix of the place in the kernel.
	place string
}

// TestRecordedPytest: in the run over a Python file on an H200 each planted bug lies in its test, under its tool, and nowhere else.
func TestRecordedPytest(t *testing.T) {
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
	compareRun(t, recordedRun(t, "testdata/h200/pytest.jsonl"), want, 40)
}

// TestRecordedGo is the same of Go kernels.
func TestRecordedGo(t *testing.T) {
	want := map[string]expectation{}
	for tool, classes := range map[Tool]map[Class]string{
		Memcheck: {
			OutOfBounds: "StorePast:store_past GatherBefore:gather_before LoopPast:loop_past StoreFreed:store_freed LoadFreed:load_freed AddFreed:add_freed",
			Leak:        "LeakOne: LeakLoop: LeakUsed:",
			StreamRace:  "StreamReadAfterWrite:stream_reader StreamWriteAfterWrite:stream_rewriter StreamWriteAfterRead:stream_overwriter",
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
	compareRun(t, recordedRun(t, "testdata/h200/go.jsonl"), want, 112)
}

// TestRecordedCUDA is the same of a CUDA C++ program, whose other findings only follow from these.
func TestRecordedCUDA(t *testing.T) {
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
		"blas_short memcheck":         {outcome: Fail}, // the library's errors, and the program's call that meets them
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
		for _, test := range strings.Fields("assert trap oob_write oob_read oob_before oob_shared null_write misaligned use_after_free blas_short stream_order") {
			if tool != "memcheck" { // the program itself fails where the device faults, which depends on where its memory lies
				want[test+" "+tool] = expectation{outcome: "any"}
			}
		}
	}
	compareRun(t, recordedRun(t, "testdata/h200/cuda.jsonl"), want, 128)
}

func compareRun(t *testing.T, records []*Record, want map[string]expectation, jobs int) {
	t.Helper()
	if len(records) != jobs {
		t.Errorf("%d records, want %d", len(records), jobs)
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
			t.Errorf("%s: %s (%s), want %s", name, r.Outcome, r.Reason, e.outcome)
		}
		n := 0
		for _, f := range r.Report.Findings {
			switch {
			case e.class == f.Class && f.Kernel == e.kernel:
				n++
				if e.place != "" && (len(f.Device) == 0 || !strings.HasPrefix(f.Device[0].Place(), e.place)) {
					t.Errorf("%s: at %v, want %s", name, f.Device, e.place)
				}
			case f.Library == "cuBLAS":
				libraries++
			case (e.class != "" || libraries > 0) && (f.Class == APIError || f.Class == Leak): // what follows from a lost device
			default:
				t.Errorf("%s: %s in %q: %s", name, f.Class, f.Kernel, f.Message)
			}
		}
		if e.class != "" && n != 1 {
			t.Errorf("%s: found %d times: %v", name, n, r.Report.Findings)
		}
	}
	if met != len(want) {
		t.Errorf("%d of the %d expected records are there", met, len(want))
	}
}
