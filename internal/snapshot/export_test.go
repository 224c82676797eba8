package snapshot_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// TestWriteProfile decodes a profile: its sums are the segments' and every sample's calls are its stack.
func TestWriteProfile(t *testing.T) {
	for _, name := range []string{"resnet50", "extra_streams", "gpt2_amp_graph"} {
		s := open(t, name)
		var b bytes.Buffer
		if err := s.WriteProfile(&b); err != nil {
			t.Fatal(err)
		}
		p, err := profile.Parse(&b)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][3]uint64{}
		for _, sample := range p.Sample {
			var calls []string
			for _, l := range sample.Location {
				f := l.Line[0].Function
				calls = append(calls, fmt.Sprint(f.Filename, ":", f.Name, ":", l.Line[0].Line))
			}
			key, v := strings.Join(calls, ";"), sample.Value
			sum := got[key]
			got[key] = [3]uint64{sum[0] + uint64(v[0]), sum[1] + uint64(v[1]), sum[2] + uint64(v[2])}
			if len(sample.Label["device"]) != 1 || len(sample.Label["stream"]) != 1 {
				t.Errorf("%s: the labels are %v", name, sample.Label)
			}
		}
		want := map[string][3]uint64{}
		for _, g := range s.Segments {
			for _, b := range g.Blocks {
				if b.State != snapshot.ActiveAllocated {
					continue
				}
				var calls []string
				for f := range s.Stacks.All(b.Stack) {
					calls = append(calls, fmt.Sprint(f.File, ":", f.Name, ":", f.Line))
				}
				key := strings.Join(calls, ";")
				if key == "" {
					key = ":(no stack recorded):0"
				}
				sum := want[key]
				want[key] = [3]uint64{sum[0] + 1, sum[1] + b.Size, sum[2] + b.Requested}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %d stacks, want %d", name, len(got), len(want))
		}
		types := []string{}
		for _, v := range p.SampleType {
			types = append(types, v.Type+"/"+v.Unit)
		}
		if got := strings.Join(types, " "); got != "inuse_objects/count inuse_space/bytes requested_space/bytes" || len(p.Mapping) != 1 ||
			p.TimeNanos < 1<<60 {
			t.Errorf("%s: sample types %s", name, got)
		}
	}
	if err := (&snapshot.Snapshot{Stacks: &snapshot.Stacks{}}).WriteProfile(failing{}); fault.KindOf(err) != fault.System {
		t.Errorf("a writer that fails: %v", err)
	}
}

// TestWriteTrace decodes a trace: its last counters are what the segments hold, and spans begin and end in pairs.
func TestWriteTrace(t *testing.T) {
	for _, c := range recorded {
		s := open(t, c.name)
		var b bytes.Buffer
		if err := s.WriteTrace(&b); err != nil {
			t.Fatal(err)
		}
		var trace struct {
			Events []struct {
				Name, Ph, ID string
				TS           int64
				PID, TID     int
				Args         map[string]any
			} `json:"traceEvents"`
		}
		if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
			t.Fatal(err)
		}
		var allocated, reserved float64
		begun, named := map[string]bool{}, map[string]bool{}
		var begins, ends, ooms, marks int
		for _, e := range trace.Events {
			switch e.Ph {
			case "C":
				allocated, reserved = e.Args["allocated"].(float64), e.Args["reserved"].(float64)
			case "M":
				named[e.Args["name"].(string)] = true
			case "b":
				begins++
				if e.PID != 1 || e.TID < 1 || e.TID > 3 {
					t.Errorf("%s: a span of process %d, thread %d", c.name, e.PID, e.TID)
				}
				begun[e.ID] = true
			case "e":
				ends++
				if !begun[e.ID] {
					t.Errorf("%s: the span %s ends before it begins", c.name, e.ID)
				}
				delete(begun, e.ID)
			case "i":
				if e.Name == "oom" {
					ooms++
				}
				if strings.HasSuffix(e.Name, " START") || strings.HasSuffix(e.Name, " END") {
					marks++
				}
			}
		}
		if !named["device 0"] || !named["default stream"] {
			t.Errorf("%s: the names are %v", c.name, named)
		}
		var active, total uint64
		for _, g := range s.Segments {
			active += g.Requested
			total += g.TotalSize
		}
		if got, want := []int{begins, ends, ooms, marks}, []int{c.allocs, c.frees, c.oom, c.annotations}; !slices.Equal(got, want) ||
			allocated != float64(active) || reserved != float64(total) {
			t.Errorf("%s: %v, want %v; %v allocated, want %d; %v reserved, want %d", c.name, got, want, allocated, active, reserved, total)
		}
	}
	s := open(t, "extra_streams")
	if err := s.WriteTrace(failing{}); fault.KindOf(err) != fault.System {
		t.Errorf("a writer that fails: %v", err)
	}
}
