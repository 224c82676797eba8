package profile_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"tenon.dev/profile"
)

// replayed returns sample with one replay whose product has its own time, and one replay without times.
func replayed() *profile.Profile {
	p := sample()
	whole := profile.Kernel{Name: "graph", Begin: 120 * us, End: 150 * us, Timed: true, Whole: true}
	run := profile.Op{Name: "Replay", Kind: profile.KindGraph, Phase: profile.Forward, Parent: -1, Forward: -1, Fused: -1, Goroutine: 7,
		Begin: 110 * us, End: 115 * us, Calls: []int{1}, Kernels: []profile.Kernel{whole}}
	part := p.Ops[0]
	part.Parent, part.Begin, part.End = len(p.Ops), run.Begin, run.Begin
	part.Kernels = []profile.Kernel{{Name: "tile", Begin: 122 * us, End: 147 * us, Timed: true}}
	alone := run
	alone.Note, alone.Kernels = "one time: <because>", []profile.Kernel{{Name: "graph", Begin: 150 * us, End: 170 * us, Timed: true}}
	p.Ops = append(p.Ops, run, part, alone, alone)
	return p
}

// The time of a replay whose kernels have their own times counts once, as the kernels'.
func TestReplayRows(t *testing.T) {
	p := replayed()
	rows, err := p.Rows(profile.ByOp)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		switch {
		case r.Key == "MatMul" && (r.Calls != 2 || r.Device != 45*us || r.Host != 20*us || r.Bytes != 240_000 || r.FLOPs != 4_000_000),
			r.Key == "Replay" && (r.Calls != 3 || r.Device != 40*us || r.Host != 15*us):
			t.Errorf("%+v", r)
		}
	}
	var b bytes.Buffer
	if err := p.WriteTable(&b, profile.ByOp, 1); err != nil || strings.Count(b.String(), "\none time: <because> (2 times)\n") != 1 {
		t.Errorf("the table says\n%s%v", b.String(), err)
	}
	b.Reset()
	if err := p.WriteHTML(&b); err != nil || !strings.Contains(b.String(), `"notes":["one time: \u003cbecause\u003e (2 times)"]`) ||
		strings.Contains(b.String(), `"begin":120000,"end":150000`) || !strings.Contains(b.String(), `"begin":122000,"end":147000`) ||
		strings.Contains(b.String(), `"begin":110000,"end":110000`) {
		t.Errorf("the page has\n%s%v", b.String(), err)
	}
	b.Reset()
	if err := p.WritePprof(&b); err != nil {
		t.Fatal(err)
	}
	read, err := pprof.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	var device int64
	for _, s := range read.Sample {
		device += s.Value[4]
	}
	if want := int64((60 + 25 + 20 + 20) * us); device != want {
		t.Errorf("pprof has %d ns on the device, not %d", device, want)
	}
}

// In a trace a replay's kernels lie within it on the device and have arrows from its call; the host shows no calls of them.
func TestReplayTrace(t *testing.T) {
	var b bytes.Buffer
	if err := replayed().WriteTrace(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			TS, Dur  float64
			PID      int
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	calls, kernels, notes := 0, 0, 0
	for _, e := range got.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if e.PID == 1 && e.Name == "MatMul" {
			calls++
		}
		if e.Args["note"] == "one time: <because>" {
			notes++
		}
		if e.TS == 122 && (e.PID != 2 || e.Dur != 25 || e.Args["op"] != "MatMul" || e.Args["bytes"] != 120_000.0 ||
			e.Args["line"] != "/src/app/net.go:12") {
			t.Errorf("the kernel is %+v", e)
		}
		if e.PID == 2 && (e.TS == 120 && e.Dur == 30 || e.TS == 122) {
			kernels++
		}
	}
	if calls != 1 || kernels != 2 || notes != 2 {
		t.Errorf("the trace has %d calls, %d kernels of the replay, %d notes", calls, kernels, notes)
	}
}
