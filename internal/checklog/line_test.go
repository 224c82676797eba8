package checklog

import (
	"bytes"
	"reflect"
	"testing"
)

// A line comes back as it was written, in one line, and what it does not know is no error.
func TestLine(t *testing.T) {
	for _, l := range []Line{
		{Checker: Name, PID: 7, Tools: []string{"memcheck"}},
		{PID: 7, Kernel: "a\nb"},
		{PID: 7, Free: 3},
		{PID: 7, Alloc: &Lifetime{ID: 3, Address: "0x10", Size: 4, Stack: []Frame{{File: "a.go", Line: 2, Text: "a"}}}},
		{PID: 7, Finding: &Finding{Class: Race, Thread: &[3]int{1, 0, 0}, Allocation: &Allocation{Address: "0x10"}, Count: 1}},
	} {
		b := l.Encode()
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, l) || bytes.Count(b, []byte("\n")) != 1 {
			t.Errorf("%s: %+v, %v", b, got, err)
		}
	}
	if _, err := Decode([]byte(`{"pid":1,"new":2}`)); err != nil {
		t.Error(err)
	}
	if _, err := Decode([]byte(`{`)); err == nil {
		t.Error("half a line was read")
	}
	if got := (Frame{File: "a.go", Line: 2}).String(); got != "a.go:2" {
		t.Error(got)
	}
}
