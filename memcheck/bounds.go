package memcheck

import (
	"bytes"
	"errors"
	"fmt"
	"math"
)

// Bounds on the values in a journal or a report. A file from elsewhere with values beyond them was not written by a run; it is refused
// before anything is allocated, drawn or counted based on its numbers.
const (
	// maxNumber bounds tests, pieces, errors, lines and thread indices.
	maxNumber = math.MaxInt32
	// maxSum bounds sums over tests, and bytes.
	maxSum = 1 << 53
	// maxSeconds bounds times; it is about three centuries.
	maxSeconds = 1e10
)

// bounds holds the error for the first value out of bounds.
type bounds struct{ err error }

// number checks that n is from least to most.
func (b *bounds) number(name string, n, least, most int64) {
	if b.err == nil && (n < least || n > most) {
		b.err = fmt.Errorf("%s is %d; it must be from %d to %d", name, n, least, most)
	}
}

// count checks a number that is a count.
func (b *bounds) count(name string, n int) { b.number(name, int64(n), 0, maxNumber) }

func (b *bounds) seconds(name string, s float64) {
	if b.err == nil && !(s >= 0 && s <= maxSeconds) {
		b.err = fmt.Errorf("%s is %g; it must be from 0 to %g", name, s, maxSeconds)
	}
}

// check returns an error that names the first value out of bounds.
func (h *Header) check() error {
	var b bounds
	b.count("jobs", h.Jobs)
	b.count("the shard's split", h.Shard.Split)
	b.number("the shard's rank", int64(h.Shard.Rank), 0, int64(max(h.Shard.Split, 1)-1))
	b.seconds("limit_seconds", h.Limit)
	return b.err
}

// check returns an error that names the first value out of bounds.
func (s *Summary) check() error {
	var b bounds
	for _, x := range []struct {
		name string
		n    int
	}{{"planned", s.Planned}, {"succeeded", s.Succeeded}, {"ignored", s.Ignored}, {"timeouts", s.Timeouts}, {"failed", s.Failed},
		{"skipped", s.Skipped},
		{"unverified", s.Unverified}, {"kernels", s.Kernels}, {"findings", s.Findings}} {
		b.number(x.name, int64(x.n), 0, maxSum)
	}
	b.seconds("seconds", s.Seconds)
	return b.err
}

// check returns an error that names the first invalid value.
func (r *Record) check() error {
	var b bounds
	if _, ok := rank[r.Outcome]; !ok {
		return fmt.Errorf("the outcome is %.40q; it is success, ignored, timeout or fail", r.Outcome)
	}
	b.number("exit", int64(r.Exit), math.MinInt32, math.MaxUint32)
	b.seconds("seconds", r.Seconds)
	b.seconds("cpu_seconds", r.CPU)
	b.number("memory_bytes", r.Memory, 0, maxSum)
	b.number("printed_bytes", r.Printed, 0, maxSum)
	b.number("worker", int64(r.Worker), 0, maxGPUs-1)
	b.count("rank", r.Shard)
	if b.err != nil || r.Report == nil {
		return b.err
	}
	return r.Report.check()
}

// check returns an error that names the first invalid value.
func (r *Report) check() error {
	var b bounds
	for name, n := range r.totals() {
		b.count(name, *n)
	}
	b.number("the number of findings", int64(len(r.Findings)), 0, MaxFindings)
	for _, f := range r.Findings {
		if b.err != nil {
			break
		}
		b.err = f.check()
	}
	return b.err
}

// totals yields the numbers of a report, in the order of its JSON form.
func (r *Report) totals() func(func(string, *int) bool) {
	return func(yield func(string, *int) bool) {
		_ = yield("errors", &r.Errors) && yield("warnings", &r.Warnings) && yield("groups", &r.Groups) &&
			yield("unprinted", &r.Unprinted) && yield("kernels", &r.Kernels)
	}
}

// clamp brings the totals within their bounds, and reports whether they already were.
func (r *Report) clamp() bool {
	within := true
	for _, n := range r.totals() {
		was := *n
		*n = min(max(was, 0), maxNumber)
		within = within && *n == was
	}
	return within
}

// check returns an error that names the first invalid value.
func (f *Finding) check() error {
	if f == nil {
		return errors.New("a finding is null")
	}
	var b bounds
	b.count("a finding's count", f.Count)
	b.count("a finding's size", f.Size)
	for _, t := range []*[3]int{f.Thread, f.Block} {
		if t != nil {
			for _, n := range t {
				b.count("an index of a thread", n)
			}
		}
	}
	stacks := [][]Frame{f.Device, f.Other, f.Stack}
	if f.Allocation != nil {
		stacks = append(stacks, f.Allocation.Stack, f.Allocation.Freed)
	}
	for _, s := range stacks {
		for i := range s {
			b.count("a frame's line", s[i].Line)
		}
	}
	return b.err
}

var errNullInList = errors.New("a list has a null")

// nullInList reports whether a JSON text has a null as an element of a list. encoding/json decodes it as an empty element, which no run
// writes.
func nullInList(text []byte) bool {
	if !bytes.Contains(text, []byte("null")) {
		return false
	}
	before := byte(0) // the previous non-blank character; a string counts as its quote
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case ' ', '\t', '\r', '\n':
			continue
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case 'n': // in an object, null follows a colon
			if before == '[' || before == ',' {
				return true
			}
		}
		before = text[min(i, len(text)-1)]
	}
	return false
}
