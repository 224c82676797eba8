package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// message is a decoded message of protocol buffers: the values of each field, numbers or bytes.
type message map[uint64][]any

func decode(t *testing.T, b []byte) message {
	t.Helper()
	m := message{}
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		v, k := binary.Uvarint(b[n:])
		if n <= 0 || k <= 0 {
			t.Fatal("a broken message")
		}
		b = b[n+k:]
		switch tag & 7 {
		case 0:
			m[tag>>3] = append(m[tag>>3], v)
		case 2:
			m[tag>>3] = append(m[tag>>3], b[:v:v])
			b = b[v:]
		default:
			t.Fatalf("wire type %d", tag&7)
		}
	}
	return m
}

func numbers(t *testing.T, b []byte) (out []uint64) {
	t.Helper()
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatal("a broken list")
		}
		out = append(out, v)
		b = b[n:]
	}
	return out
}

// TestWriteProfile decodes a profile: its sums are the segments' and every sample's calls are its stack.
func TestWriteProfile(t *testing.T) {
	for _, name := range []string{"resnet50", "extra_streams", "gpt2_amp_graph"} {
		s := open(t, name)
		var b bytes.Buffer
		if err := s.WriteProfile(&b); err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		p := decode(t, data)
		var text []string
		for _, s := range p[6] {
			text = append(text, string(s.([]byte)))
		}
		functions := map[uint64]string{}
		for _, f := range p[5] {
			m := decode(t, f.([]byte))
			functions[m[1][0].(uint64)] = text[m[4][0].(uint64)] + ":" + text[m[2][0].(uint64)]
		}
		locations := map[uint64]string{}
		for _, l := range p[4] {
			m := decode(t, l.([]byte))
			line := decode(t, m[4][0].([]byte))
			locations[m[1][0].(uint64)] = fmt.Sprint(functions[line[1][0].(uint64)], ":", line[2][0])
		}
		got := map[string][3]uint64{}
		for _, sample := range p[2] {
			m := decode(t, sample.([]byte))
			var calls []string
			for _, l := range numbers(t, m[1][0].([]byte)) {
				calls = append(calls, locations[l])
			}
			v := numbers(t, m[2][0].([]byte))
			key := strings.Join(calls, ";")
			sum := got[key]
			got[key] = [3]uint64{sum[0] + v[0], sum[1] + v[1], sum[2] + v[2]}
			if label := decode(t, m[3][0].([]byte)); text[label[1][0].(uint64)] != "device" {
				t.Errorf("%s: a label is %v", name, label)
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
		for _, v := range p[1] {
			m := decode(t, v.([]byte))
			types = append(types, text[m[1][0].(uint64)]+"/"+text[m[2][0].(uint64)])
		}
		if got := strings.Join(types, " "); got != "inuse_objects/count inuse_space/bytes requested_space/bytes" || len(p[3]) != 1 || p[9][0].(uint64) < 1<<60 {
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
