// Package pprof writes profiles that go tool pprof reads.
// It must not depend on what the samples count: the caller names that.
package pprof

import (
	"io"

	"github.com/google/pprof/profile"

	"tenon.dev/fault"
)

// Profile is a profile being written.
type Profile struct {
	out       profile.Profile
	locations map[uint64]*profile.Location
}

// Type names what a value of each sample counts, and its unit.
type Type struct{ Name, Unit string }

// Label says something of a sample. Numbers are texts too, since readers of the format take a number 0 for none.
type Label struct{ Key, Text string }

// New returns a profile whose samples have a value of each type.
func New(types ...Type) *Profile {
	p := &Profile{locations: map[uint64]*profile.Location{}}
	p.out.Mapping = []*profile.Mapping{{ID: 1, HasFunctions: true}}
	for _, t := range types {
		p.out.SampleType = append(p.out.SampleType, &profile.ValueType{Type: t.Name, Unit: t.Unit})
	}
	return p
}

// Sample adds the values of a stack, whose locations begin with the innermost.
func (p *Profile) Sample(locations, values []uint64, labels ...Label) {
	s := &profile.Sample{Label: map[string][]string{}}
	for _, id := range locations {
		s.Location = append(s.Location, p.location(id))
	}
	for _, v := range values {
		s.Value = append(s.Value, int64(v))
	}
	for _, l := range labels {
		s.Label[l.Key] = append(s.Label[l.Key], l.Text)
	}
	p.out.Sample = append(p.out.Sample, s)
}

func (p *Profile) location(id uint64) *profile.Location {
	l := p.locations[id]
	if l == nil {
		l = &profile.Location{ID: id, Mapping: p.out.Mapping[0]}
		p.locations[id] = l
		p.out.Location = append(p.out.Location, l)
	}
	return l
}

// Location says what the location with that number, from 1, is.
func (p *Profile) Location(id uint64, name, path string, line int) {
	f := &profile.Function{ID: id, Name: name, SystemName: name, Filename: path}
	p.out.Function = append(p.out.Function, f)
	p.location(id).Line = []profile.Line{{Function: f, Line: int64(max(line, 0))}}
}

// Write ends the profile and writes it, compressed with gzip. It was taken at a time in nanoseconds since 1970 and took so many; 0 leaves
// either out.
func (p *Profile) Write(w io.Writer, at, took int64) error {
	p.out.TimeNanos, p.out.DurationNanos = at, took
	if err := p.out.Write(w); err != nil {
		return fault.Wrap(fault.System, err, "the profile cannot be written")
	}
	return nil
}
