package snapshot_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// TestWriteRead writes PyTorch's snapshots and reads them back.
func TestWriteRead(t *testing.T) {
	for _, c := range recorded {
		s := open(t, c.name)
		var b, again bytes.Buffer
		if err := s.Write(&b); err != nil {
			t.Fatal(err)
		}
		r, err := snapshot.Read(bytes.NewReader(b.Bytes()), snapshot.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, c.name, r, s)
		if err := r.Write(&again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), again.Bytes()) {
			t.Errorf("%s: the second writing differs", c.name)
		}
	}
}

// TestWriteForms writes what PyTorch's recordings do not have.
func TestWriteForms(t *testing.T) {
	s := &snapshot.Snapshot{
		Segments: []snapshot.Segment{{Device: -1, Addr: 1 << 63, Stream: 1<<64 - 1, Type: "large", Pool: [2]uint64{3, 4}, Stack: 9}},
		Traces:   [][]snapshot.Event{nil, {{Action: snapshot.ActionUserDefined, Category: snapshot.CategoryOptimizerState}}},
	}
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	r, err := snapshot.Read(&b, snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Segments[0].Stack = 0
	if got, want := fmt.Sprint(r.Segments, r.Traces, r.Settings), fmt.Sprint(s.Segments, s.Traces, map[string]any{}); got != want {
		t.Errorf("read back: %s, want %s", got, want)
	}
	s.Settings = map[string]any{"a": nil, "b": 1.5, "wrong": 5}
	if err := s.Write(io.Discard); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "type int") {
		t.Errorf("a setting of another type: %v", err)
	}
	if err := s.Write(failing{}); fault.KindOf(err) != fault.System {
		t.Errorf("a writer that fails: %v", err)
	}
	for _, text := range []string{snapshot.Action(99).String(), snapshot.BlockState(99).String(), snapshot.Category(99).String()} {
		if text != "unknown" {
			t.Errorf("a value beyond the last is %q", text)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// compare is a program for Python that loads the pairs of snapshots that it is given, PyTorch's and ours, and fails unless they are equal
// in every key, share equal stacks as one object, and consist of instructions that PyTorch's viewer page reads.
const compare = `
import gzip, os, pickle, pickletools, sys
# PyTorch's viewer page reads pickles itself, and only these instructions of them.
viewer = set('APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE EMPTY_DICT EMPTY_LIST EMPTY_TUPLE FRAME LONG1 LONG_BINGET MARK '
    'MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2'.split())
def plain(s):
    for t in s['device_traces']:
        for e in t:
            if e.get('frames') == []: del e['frames']
    return s
for theirs, ours in zip(sys.argv[1::2], sys.argv[2::2]):
    a, b = plain(pickle.load(gzip.open(theirs))), plain(pickle.load(open(ours, 'rb')))
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    for k in a: assert a[k] == b[k], (theirs, k)
    stacks = [e['frames'] for t in b['device_traces'] for e in t if 'frames' in e]
    assert len({id(f) for f in stacks}) == len({str(f) for f in stacks}), 'equal stacks are different objects'
    other = os.path.getsize(ours) < 1 << 17 and {op.name for op, arg, at in pickletools.genops(open(ours, 'rb'))} - viewer
    assert not other, other
    print(len(b['segments']), sum(map(len, b['device_traces'])))
`

// TestPython lets Python's own pickle load what is written, and compare it with what PyTorch wrote.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed, so what is written is not compared by Python")
	}
	dir := t.TempDir()
	args := []string{"-c", compare}
	want := ""
	for _, c := range recorded {
		s := open(t, c.name)
		path := filepath.Join(dir, c.name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Write(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		args = append(args, "testdata/"+c.name+".pickle.gz", path)
		want += fmt.Sprintln(c.segments, c.events)
	}
	out, err := exec.Command(python, args...).CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("Python says %s (%v), want %s", out, err, want)
	}
}

// BenchmarkWrite writes a snapshot of 40,000 events.
func BenchmarkWrite(b *testing.B) {
	s := open(b, "gpt2_amp_graph")
	for len(s.Traces[0]) < 40_000 {
		s.Traces[0] = append(s.Traces[0], s.Traces[0]...)
	}
	s.Traces[0] = s.Traces[0][:40_000]
	for b.Loop() {
		if err := s.Write(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
