// Package pprof writes profiles that go tool pprof reads.
// It may not know what their samples count.
package pprof

import (
	"compress/gzip"
	"io"

	"tenon.dev/fault"
)

// The fields of pprof's profile.proto that are written, from https://github.com/google/pprof/blob/main/proto/profile.proto.
const (
	profileSampleType = 1
	profileSample     = 2
	profileMapping    = 3
	profileLocation   = 4
	profileFunction   = 5
	profileStrings    = 6
	profileTime       = 9
	profileDuration   = 10

	valueType, valueUnit                           = 1, 2
	sampleLocation, sampleValue, sampleLabel       = 1, 2, 3
	labelKey, labelText, labelNumber               = 1, 2, 3
	mappingID, mappingFunctions                    = 1, 7
	locationID, locationMapping, locationLine      = 1, 2, 4
	lineFunction, lineNumber                       = 1, 2
	functionID, functionName, functionSystem, file = 1, 2, 3, 4
)

// proto is a message of protocol buffers being written.
type proto []byte

func (p *proto) varint(v uint64) {
	for v >= 0x80 {
		*p = append(*p, byte(v)|0x80)
		v >>= 7
	}
	*p = append(*p, byte(v))
}

// uint writes a field with a number.
func (p *proto) uint(field int, v uint64) {
	p.varint(uint64(field) << 3)
	p.varint(v)
}

// bytes writes a field with a message, text or packed numbers.
func (p *proto) bytes(field int, b []byte) {
	p.varint(uint64(field)<<3 | 2)
	p.varint(uint64(len(b)))
	*p = append(*p, b...)
}

func (p *proto) packed(field int, vs []uint64) {
	var b proto
	for _, v := range vs {
		b.varint(v)
	}
	p.bytes(field, b)
}

// Profile is a profile being written.
type Profile struct {
	out     proto
	strings map[string]uint64
	list    []string
}

// Type names what a value of each sample counts, and its unit.
type Type struct{ Name, Unit string }

// Label says something of a sample: a text or, where that is empty, a number.
type Label struct {
	Key, Text string
	Number    uint64
}

// New returns a profile whose samples have a value of each type.
func New(types ...Type) *Profile {
	p := &Profile{strings: map[string]uint64{"": 0}, list: []string{""}}
	for _, t := range types {
		var m proto
		m.uint(valueType, p.str(t.Name))
		m.uint(valueUnit, p.str(t.Unit))
		p.out.bytes(profileSampleType, m)
	}
	return p
}

func (p *Profile) str(s string) uint64 {
	id, ok := p.strings[s]
	if !ok {
		id = uint64(len(p.list))
		p.strings[s] = id
		p.list = append(p.list, s)
	}
	return id
}

// Sample adds the values of a stack, whose locations begin with the innermost.
func (p *Profile) Sample(locations, values []uint64, labels ...Label) {
	var m proto
	m.packed(sampleLocation, locations)
	m.packed(sampleValue, values)
	for _, l := range labels {
		var b proto
		b.uint(labelKey, p.str(l.Key))
		if l.Text != "" {
			b.uint(labelText, p.str(l.Text))
		} else {
			b.uint(labelNumber, l.Number)
		}
		m.bytes(sampleLabel, b)
	}
	p.out.bytes(profileSample, m)
}

// Location says what the location with that number, from 1, is. The function gets the same number.
func (p *Profile) Location(id uint64, name, path string, line int) {
	var l, m, fn proto
	l.uint(lineFunction, id)
	l.uint(lineNumber, uint64(max(line, 0)))
	m.uint(locationID, id)
	m.uint(locationMapping, 1)
	m.bytes(locationLine, l)
	p.out.bytes(profileLocation, m)
	fn.uint(functionID, id)
	fn.uint(functionName, p.str(name))
	fn.uint(functionSystem, p.str(name))
	fn.uint(file, p.str(path))
	p.out.bytes(profileFunction, fn)
}

// Write ends the profile and writes it, compressed with gzip. It was taken at a time in nanoseconds since 1970 and took so many; 0 leaves
// either out.
func (p *Profile) Write(w io.Writer, at, took int64) error {
	var m proto
	m.uint(mappingID, 1)
	m.uint(mappingFunctions, 1)
	p.out.bytes(profileMapping, m)
	if at > 0 {
		p.out.uint(profileTime, uint64(at))
	}
	if took > 0 {
		p.out.uint(profileDuration, uint64(took))
	}
	for _, text := range p.list {
		p.out.bytes(profileStrings, []byte(text))
	}
	z := gzip.NewWriter(w)
	_, err := z.Write(p.out)
	if e := z.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fault.Wrap(fault.System, err, "the profile cannot be written")
	}
	return nil
}
