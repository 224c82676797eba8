package memcheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"tenon.dev/internal/checklog"
)

// TestTenonFinding checks that every field of a line is read, and that a journal writes it in the same form.
func TestTenonFinding(t *testing.T) {
	at := []checklog.Frame{{Function: "f", File: "a.go", Line: 3, Text: "f in a.go:3"}}
	all := &checklog.Finding{Tool: "racecheck", Class: checklog.StreamRace, Severity: "error", Message: "m", Details: []string{"d"},
		Kernel: "k", Device: at, Other: at,
		Access: "read", Space: "global", Size: 4, Address: "0x10", Thread: &[3]int{1, 2, 3}, Block: &[3]int{4, 5, 6}, Stack: at, Count: 2,
		Allocation: &checklog.Allocation{Address: "0x20", Size: 8, Relation: "inside", Stack: at, Freed: at}}
	log := (&checklog.Line{Checker: checklog.Name, PID: 1}).Encode()
	log = append(log, (&checklog.Line{PID: 1, Finding: all}).Encode()...)
	rep, err := ParseReport(bytes.NewReader(log))
	if err != nil || len(rep.Findings) != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	want, err1 := json.Marshal(all)
	got, err2 := json.Marshal(rep.Findings[0])
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s\nwant\n%s, %v", got, want, err)
	}
	for _, class := range []Class{OutOfBounds, UseAfterFree, Misaligned, InvalidFree, Leak, Uninitialized, Race, StreamRace, Barrier} {
		if !strings.Contains(" "+strings.Join([]string{checklog.OutOfBounds, checklog.UseAfterFree, checklog.Misaligned,
			checklog.InvalidFree, checklog.Leak,
			checklog.Uninitialized, checklog.Race, checklog.StreamRace, checklog.Barrier}, " ")+" ", " "+string(class)+" ") {
			t.Errorf("%s is no class of the log", class)
		}
	}
}

// TestTenonReportBroken checks that unknown fields of a line are not an error, but that a line with invalid JSON or an invalid address
// makes the report incomplete.
func TestTenonReportBroken(t *testing.T) {
	head := string((&checklog.Line{Checker: checklog.Name, PID: 1}).Encode())
	if rep, err := ParseReport(strings.NewReader(head + `{"pid":1,"new":2,"kernel":"k"}` + "\n")); err != nil ||
		rep.Kernels != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	for _, line := range []string{"{", `{"pid":1,"finding":{"class":"race","address":"here"}}`,
		`{"pid":1,"finding":{"class":"leak","allocation":{"address":"x"}}}`,
		`{"pid":1,"alloc":{"id":1,"address":"x"}}`} {
		if _, err := ParseReport(strings.NewReader(head + line + "\n")); !errors.Is(err, ErrNoSummary) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
