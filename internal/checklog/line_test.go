package checklog

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// A line is read as it was written, and is a single line.
func TestLine(t *testing.T) {
	for _, l := range []Line{
		{Checker: Name, PID: 7, Tools: []string{"memcheck"}},
		{PID: 7, Kernel: "a\nb"},
		{PID: 7, Free: 3},
		{PID: 7, Alloc: &Lifetime{ID: 3, Address: "0x10", Size: 4, Stack: []Frame{{File: "a.go", Line: 2, Text: "a"}}}},
		{PID: 7, Finding: &Finding{Class: Race, Thread: &[3]int{1, 0, 0}, Allocation: &Allocation{Address: "0x10"}, Count: 1}},
	} {
		b := l.Encode()
		var got Line
		err := json.Unmarshal(b, &got)
		if err != nil || !reflect.DeepEqual(got, l) || bytes.Count(b, []byte("\n")) != 1 {
			t.Errorf("%s: %+v, %v", b, got, err)
		}
	}
	if got := (Frame{File: "a.go", Line: 2}).String(); got != "a.go:2" {
		t.Error(got)
	}
}
