package snapshot

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

	valueType, valueUnit                           = 1, 2
	sampleLocation, sampleValue, sampleLabel       = 1, 2, 3
	labelKey, labelNumber                          = 1, 3
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

// profiler writes a profile.
type profiler struct {
	out     proto
	strings map[string]uint64
	list    []string
}

func (p *profiler) str(s string) uint64 {
	id, ok := p.strings[s]
	if !ok {
		id = uint64(len(p.list))
		p.strings[s] = id
		p.list = append(p.list, s)
	}
	return id
}

// unknownFrame stands for the stack of an allocation that was made while none were recorded.
var unknownFrame = Frame{Name: "(no stack recorded)"}

// WriteProfile writes the blocks that are allocated, by stack, device and stream, as a profile for go tool pprof, compressed with gzip: their
// number, their bytes, and the bytes that were asked for.
func (s *Snapshot) WriteProfile(w io.Writer) error {
	p := &profiler{strings: map[string]uint64{"": 0}, list: []string{""}}
	for _, t := range [][2]string{{"inuse_objects", "count"}, {"inuse_space", "bytes"}, {"requested_space", "bytes"}} {
		var m proto
		m.uint(valueType, p.str(t[0]))
		m.uint(valueUnit, p.str(t[1]))
		p.out.bytes(profileSampleType, m)
	}
	type key struct {
		stack  StackID
		device int
		stream uint64
	}
	sums := map[key]*[3]uint64{}
	var order []key
	for i := range s.Segments {
		g := &s.Segments[i]
		for _, b := range g.Blocks {
			if b.State != ActiveAllocated {
				continue
			}
			k := key{b.Stack, g.Device, g.Stream}
			sum := sums[k]
			if sum == nil {
				sum = new([3]uint64)
				sums[k] = sum
				order = append(order, k)
			}
			sum[0]++
			sum[1] += b.Size
			sum[2] += b.Requested
		}
	}
	// Location 1 is the unknown frame's, those of frames follow in their order.
	used := make([]bool, s.Stacks.FrameCount())
	for _, k := range order {
		locations := []uint64{1}
		if k.stack != 0 {
			locations = locations[:0]
			for _, f := range s.Stacks.Calls(k.stack) {
				used[f] = true
				locations = append(locations, uint64(f)+2)
			}
		}
		var m proto
		m.packed(sampleLocation, locations)
		m.packed(sampleValue, sums[k][:])
		p.label(&m, "device", uint64(k.device))
		p.label(&m, "stream", k.stream)
		p.out.bytes(profileSample, m)
	}
	p.location(1, unknownFrame)
	for f, u := range used {
		if u {
			p.location(uint64(f)+2, s.Stacks.Frame(FrameID(f)))
		}
	}
	var m proto
	m.uint(mappingID, 1)
	m.uint(mappingFunctions, 1)
	p.out.bytes(profileMapping, m)
	if t := s.lastTime(); t > 0 {
		p.out.uint(profileTime, uint64(t)*1000)
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

func (p *profiler) label(m *proto, name string, n uint64) {
	var l proto
	l.uint(labelKey, p.str(name))
	l.uint(labelNumber, n)
	m.bytes(sampleLabel, l)
}

// location writes a location and the function of the same number.
func (p *profiler) location(id uint64, f Frame) {
	var line, m, fn proto
	line.uint(lineFunction, id)
	line.uint(lineNumber, uint64(max(f.Line, 0)))
	m.uint(locationID, id)
	m.uint(locationMapping, 1)
	m.bytes(locationLine, line)
	p.out.bytes(profileLocation, m)
	fn.uint(functionID, id)
	fn.uint(functionName, p.str(f.Name))
	fn.uint(functionSystem, p.str(f.Name))
	fn.uint(file, p.str(f.File))
	p.out.bytes(profileFunction, fn)
}

// lastTime returns the time of the newest event in microseconds since 1970, or 0.
func (s *Snapshot) lastTime() int64 {
	var t int64
	for _, trace := range s.Traces {
		if n := len(trace); n > 0 {
			t = max(t, trace[n-1].TimeUS)
		}
	}
	return t
}
