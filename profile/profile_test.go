package profile_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"tenon.dev/fault"
	"tenon.dev/profile"
)

const us = time.Microsecond

// sample returns a profile of a product with its derivative, a step with an operation within it, and a captured operation; all figures
// are round.
func sample() *profile.Profile {
	matrix := profile.Tensor{DType: "float32", Shape: []int{100, 100}}
	op := func(name string, phase profile.Phase, begin, end time.Duration, kernels ...profile.Kernel) profile.Op {
		return profile.Op{Name: name, Kind: profile.KindOp, Phase: phase, Parent: -1, Forward: -1, Fused: -1, Goroutine: 7,
			Begin: begin, End: end, Kernels: kernels}
	}
	kernel := func(begin, end time.Duration) profile.Kernel {
		return profile.Kernel{Name: "tile", Begin: begin, End: end, Timed: true}
	}
	mul := op("MatMul", profile.Forward, 10*us, 30*us, kernel(40*us, 60*us))
	mul.Calls, mul.Module, mul.Inputs, mul.Outputs = []int{0, 1}, "Net/Linear", []profile.Tensor{matrix, matrix}, []profile.Tensor{matrix}
	mul.Bytes, mul.FLOPs, mul.Compute = 120_000, 2_000_000, "float32"
	back := op("MatMul", profile.Backward, 40*us, 50*us, kernel(60*us, 90*us))
	back.Forward, back.Calls, back.Module = 0, []int{1}, "Net/Linear"
	outer := op("Step", profile.Optimizer, 60*us, 90*us)
	outer.Calls = []int{1}
	inner := op("Add", profile.Optimizer, 70*us, 80*us, kernel(100*us, 110*us))
	inner.Parent, inner.Calls = 2, []int{1}
	captured := op("Exp", profile.Forward, 91*us, 92*us, profile.Kernel{Name: "exp"})
	captured.Captured, captured.Goroutine = true, 8
	return &profile.Profile{Format: 1, Device: profile.Device{Name: "NVIDIA TEST", Bandwidth: 12e9,
		Rates: map[string]float64{"float32": 1e12}}, Commit: "0123abc",
		Began: time.Unix(1_790_000_000, 0).UTC(), Duration: 200 * us,
		Frames: []profile.Frame{{Function: "main.(*Net).Forward", File: "/src/app/net.go", Line: 12}, {Function: "main.main",
			File: "/src/app/main.go", Line: 30}},
		Ops: []profile.Op{mul, back, outer, inner, captured},
		Memory: []profile.MemoryEvent{{Addr: 512, Bytes: 1024, Category: profile.Parameters, Op: -1}, {At: 11 * us, Addr: 4096,
			Bytes: 2048, Category: profile.Activations, Op: 0},
			{At: 55 * us, Addr: 4096, Bytes: -2048, Category: profile.Activations, Op: 0}},
		Segments: []profile.SegmentEvent{{Addr: 512, Bytes: 2 << 20}, {At: 12 * us, Addr: 8 << 20, Bytes: 4 << 20},
			{At: 60 * us, Addr: 8 << 20, Bytes: -4 << 20}}}
}

// A program's own kernels have rows of their own.
func TestOwnKernelsAreNamed(t *testing.T) {
	p := sample()
	for i, name := range []string{"saxpy", "saxpy", "twice"} {
		p.Ops[i].Name, p.Ops[i].Phase, p.Ops[i].Parent, p.Ops[i].Forward = "Launch", profile.Forward, -1, -1
		p.Ops[i].Kernels = []profile.Kernel{{Name: name, Begin: 40 * us, End: 50 * us, Timed: true}}
	}
	rows, err := p.Rows(profile.ByOp)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for _, r := range rows {
		calls[r.Key] = r.Calls
	}
	if calls["Launch saxpy"] != 2 || calls["Launch twice"] != 1 {
		t.Errorf("%v", calls)
	}
}

func TestReadWrite(t *testing.T) {
	var b bytes.Buffer
	p := sample()
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	got, err := profile.Read(bytes.NewReader(whole))
	if err != nil || !reflect.DeepEqual(got, p) {
		t.Fatalf("%v: read %+v, not %+v", err, got, p)
	}
	for _, bad := range []func(p *profile.Profile){
		func(p *profile.Profile) { p.Ops[1].Forward = 99 },
		func(p *profile.Profile) { p.Ops[0].Calls[0] = -1 },
		func(p *profile.Profile) { p.Memory[0].Op = 5 },
	} {
		p := sample()
		bad(p)
		if err := p.Write(io.Discard); fault.KindOf(err) != fault.Invalid {
			t.Errorf("a damaged profile: %v", err)
		}
	}
	for name, text := range map[string]string{"nothing": "", "text": "no profile", "cut": string(whole[:len(whole)/2]),
		"other":   compressed(`{"a": 1}`),
		"damaged": compressed(`{"tenon_profile": 1, "ops": [{"parent": 3}]}`)} {
		if _, err := profile.Read(strings.NewReader(text)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func compressed(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

func TestFloor(t *testing.T) {
	p := sample()
	if got := p.Floor(&p.Ops[0]); got != 10*us { // 120 kB at 12 GB/s, where 2 MFLOP would take 2 µs
		t.Errorf("the floor of bytes is %v", got)
	}
	p.Device.Bandwidth = 0
	if got := p.Floor(&p.Ops[0]); got != 2*us {
		t.Errorf("the floor of operations is %v", got)
	}
	if got := profile.DeviceOf("unknown"); got.Bandwidth != 0 || got.Rates != nil {
		t.Errorf("an unknown device has %v", got)
	}
}

func TestTable(t *testing.T) {
	p := sample()
	for by, want := range map[profile.By]string{
		profile.ByOp: `
calls  device   share  host      bytes  FLOPs  of the floor  op
    1    30µs  50.0 %  10µs          -      -             -  MatMul (backward)
    1    20µs  33.3 %  20µs  117.2 KiB    2 M        50.0 %  MatMul
    1    10µs  16.7 %  10µs          -      -             -  Add
    1      0s       -  20µs          -      -             -  Step
    1      0s       -   1µs          -      -             -  Exp (captured)
`,
		profile.ByLine: `
calls  device   share  host      bytes  FLOPs  of the floor  line
    2    50µs  83.3 %  30µs  117.2 KiB    2 M        50.0 %  app/net.go:12
    2    10µs  16.7 %  30µs          -      -             -  app/main.go:30
    1      0s       -   1µs          -      -             -  (no line)
`,
		profile.ByModule: `
calls  device   share  host      bytes  FLOPs  of the floor  module
    2    50µs  83.3 %  30µs  117.2 KiB    2 M        50.0 %  Net/Linear
    3    10µs  16.7 %  31µs          -      -             -  (no module)
`,
		profile.ByTime: `
calls  device   share  host      bytes  FLOPs  of the floor  op
    1    30µs  50.0 %  10µs          -      -             -  MatMul (backward)()
    1    20µs  33.3 %  20µs  117.2 KiB    2 M        50.0 %  MatMul(float32[100 100], float32[100 100])
and 3 rows more
`} {
		most := 0
		if by == profile.ByTime {
			most = 2
		}
		var b strings.Builder
		if err := p.WriteTable(&b, by, most); err != nil {
			t.Fatal(err)
		}
		want = "NVIDIA TEST, 5 operations in 200µs; their kernels took 60µs on the device; commit 0123abc\n" + want +
			"\nmemory at the peak, 11µs in: 3 KiB, parameters 1 KiB, activations 2 KiB\n"
		if b.String() != want {
			t.Errorf("by %s:\n%s\nwant\n%s", by, b.String(), want)
		}
	}
	p.Device.Bandwidth, p.Device.Rates = 0, nil
	var b strings.Builder
	if err := p.WriteTable(&b, profile.ByModule, 0); err != nil {
		t.Fatal(err)
	}
	if want := `
calls  device   share  host      bytes  FLOPs  module
    2    50µs  83.3 %  30µs  117.2 KiB    2 M  Net/Linear
    3    10µs  16.7 %  31µs          -      -  (no module)

for a column of floors, give the figures of NVIDIA TEST as ProfileOpt.Bandwidth and Rates
`; !strings.Contains(b.String(), want) {
		t.Errorf("where no row has a floor, it is:\n%s\nwant\n%s", b.String(), want)
	}
	if _, err := p.Rows("colour"); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a table by colour: %v", err)
	}
}

func TestTrace(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteTrace(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			TS, Dur  float64
			PID, TID int
			ID       int
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, b.Bytes())
	}
	count, flows := map[string]int{}, map[int]int{}
	var last, reserved float64
	segments := ""
	for _, e := range got.TraceEvents {
		count[e.Ph]++
		switch e.Ph {
		case "s", "f":
			flows[e.ID]++
		case "i":
			if strings.HasPrefix(e.Name, "segment") {
				segments += fmt.Sprintf("%s %v %s %v, ", e.Name, e.TS, e.Args["addr"], e.Args["bytes"])
			}
		case "C":
			if e.Name == "reserved" {
				reserved = max(reserved, e.Args["bytes"].(float64))
				break
			}
			last = e.Args["activations"].(float64) + e.Args["parameters"].(float64)
		case "X":
			if e.Name == "Add" && (e.TS != 70 || e.Dur != 10 || e.PID != 1 || e.TID != 7) {
				t.Errorf("the call is %+v", e)
			}
			if e.PID == 2 && e.Args["op"] == "MatMul" && (e.TS != 40 || e.Dur != 20 || e.Args["line"] != "/src/app/net.go:12") {
				t.Errorf("the kernel is %+v", e)
			}
		}
	}
	want := "segment_alloc 0 0x200 2.097152e+06, segment_alloc 12 0x800000 4.194304e+06, segment_free 60 0x800000 4.194304e+06, "
	if segments != want || reserved != 6<<20 {
		t.Errorf("the segments are %s and at most %v bytes", segments, reserved)
	}
	if count["X"] != 5+3 || count["C"] != 3+3 || count["i"] != 3+3 || len(flows) != 3 || last != 1024 {
		t.Errorf("the trace has %v with %v, and ends with %v bytes", count, flows, last)
	}
	for id, n := range flows {
		if n != 2 {
			t.Errorf("arrow %d has %d ends", id, n)
		}
	}
}

func TestPprof(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WritePprof(&b); err != nil {
		t.Fatal(err)
	}
	p, err := pprof.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	types := ""
	for _, s := range p.SampleType {
		types += s.Type + "/" + s.Unit + " "
	}
	if types != "ops/count host/nanoseconds bytes/bytes flops/count device/nanoseconds " || p.DurationNanos == 0 {
		t.Errorf("types %s, duration %d", types, p.DurationNanos)
	}
	// The time on the device of a function with everything it called: the method's time includes its derivative.
	device, modules := map[string]int64{}, map[string]bool{}
	for _, s := range p.Sample {
		for _, m := range s.Label["module"] {
			modules[m] = true
		}
		for _, l := range s.Location {
			device[l.Line[0].Function.Name] += s.Value[4]
		}
	}
	for name, want := range map[string]int64{"main.(*Net).Forward": 50_000, "MatMul (backward)": 30_000, "main.main": 60_000} {
		if device[name] != want {
			t.Errorf("%s took %d ns, want %d", name, device[name], want)
		}
	}
	if !modules["Net/Linear"] {
		t.Errorf("the modules are %v", modules)
	}
}

// failing is a writer that fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestWriterFails(t *testing.T) {
	p := sample()
	for i, write := range []func(w io.Writer) error{p.Write, p.WriteTrace, p.WritePprof,
		func(w io.Writer) error { return p.WriteTable(w, profile.ByOp, 0) }} {
		if err := write(failing{}); fault.KindOf(err) != fault.System {
			t.Errorf("writer %d: %v", i, err)
		}
		if err := write(nil); fault.KindOf(err) != fault.Invalid {
			t.Errorf("no writer %d: %v", i, err)
		}
	}
}
