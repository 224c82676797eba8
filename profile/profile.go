// Package profile holds what a device's profiler recorded of a program: operations with their lines, times, bytes and kernels, and memory
// by its use. It reads and writes profiles as files, and writes tables, pages and the formats of other tools. cuda's Device.Profile makes
// profiles; this package uses no device and no tensor.
package profile

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tenon.dev/fault"
)

// Profile is a recorded profile. Its times count from its beginning.
type Profile struct {
	// Format is the version of the file format, 1.
	Format int `json:"tenon_profile"`
	// Device is the device that was profiled.
	Device Device `json:"device"`
	// Commit is the commit of the program's source, if whoever took the profile noted it, or "".
	Commit string `json:"commit,omitempty"`
	// Began is the time when the profile began, and Duration its length.
	Began    time.Time     `json:"began"`
	Duration time.Duration `json:"duration"`
	// Frames are the calls that Op.Calls refers to.
	Frames []Frame `json:"frames"`
	// Ops are in the order in which they began on the host.
	Ops []Op `json:"ops"`
	// Memory is in chronological order.
	Memory []MemoryEvent `json:"memory"`
	// Segments is in chronological order.
	Segments []SegmentEvent `json:"segments,omitempty"`
}

// Device is a device and the figures from which Profile.Floor is computed.
type Device struct {
	// Name and Ordinal are those of cuda.Device.
	Name    string `json:"name"`
	Ordinal int    `json:"ordinal"`
	// Bandwidth is in bytes per second, read and written; 0 if unknown.
	Bandwidth float64 `json:"bandwidth,omitempty"`
	// Rates are floating-point operations per second by Op.Compute.
	Rates map[string]float64 `json:"rates,omitempty"`
}

// Frame is a call in the program.
type Frame struct {
	// Function is the full name of the function; File and Line are the position of the call.
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// Kind says what an Op is.
type Kind string

// The kinds: an operation; one kernel for several operations of a compiled region; a replay of a graph; a copy from or to the host.
const (
	KindOp    Kind = "op"
	KindFused Kind = "fused"
	KindGraph Kind = "graph"
	KindCopy  Kind = "copy"
)

// Phase is the part of a training step that an Op belongs to.
type Phase string

// The phases. Forward is everything that belongs to neither of the others.
const (
	Forward   Phase = "forward"
	Backward  Phase = "backward"
	Optimizer Phase = "optimizer"
)

// Op is one entry of a profile: an operation, or one of the other kinds.
type Op struct {
	// Name is the operation's name, and Within the name of the outermost composite operation around it, or "".
	Name   string `json:"name"`
	Within string `json:"within,omitempty"`
	// Kind is what it is, and Phase the part of a training step that it belongs to.
	Kind  Kind  `json:"kind"`
	Phase Phase `json:"phase"`
	// Module is the path of the types whose Forward was running, such as "Sequential/Linear". A backward operation has the path of its
	// forward operation.
	Module string `json:"module,omitempty"`
	// Calls are the program's calls that led to it, innermost first, as indexes into Frames.
	Calls []int `json:"calls,omitempty"`
	// Parent is the index of the operation that it was a part of, Forward the index of the operation whose derivative it belongs to, and
	// Fused the index of the entry whose kernel did its work; each is -1 if there is none.
	Parent  int `json:"parent"`
	Forward int `json:"forward"`
	Fused   int `json:"fused"`
	// Goroutine is the number of the goroutine, and Stream the number of the device's stream.
	Goroutine int64 `json:"goroutine"`
	Stream    int   `json:"stream"`
	// Begin and End are the times of the call and of its return.
	Begin time.Duration `json:"begin"`
	End   time.Duration `json:"end"`
	// Captured says that a graph recorded it, so that only replays run it; Deferred says that a compiled region deferred it.
	Captured bool `json:"captured,omitempty"`
	Deferred bool `json:"deferred,omitempty"`
	// Inputs and Outputs are the tensors that it read and made. An input that it changes is in both.
	Inputs  []Tensor `json:"inputs,omitempty"`
	Outputs []Tensor `json:"outputs,omitempty"`
	// Bytes is the least that it must read and write, and FLOPs are the floating-point operations of products, convolutions and
	// element-wise operations; 0 for others. Compute is the type in which it computes: an element type, or "tf32".
	Bytes   int64  `json:"bytes,omitempty"`
	FLOPs   int64  `json:"flops,omitempty"`
	Compute string `json:"compute,omitempty"`
	// Kernels is the work that it gave the device.
	Kernels []Kernel `json:"kernels,omitempty"`
	// Nodes are the names of a replayed graph's kernels, in the order of their recording.
	Nodes []string `json:"nodes,omitempty"`
	// Note says why a replay has no times of its kernels, or is "".
	Note string `json:"note,omitempty"`
}

// Tensor is the type and shape of an operand.
type Tensor struct {
	// DType is the element type's name, and Shape the dimensions.
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

// String returns the type and shape, such as "float32[2 3]".
func (t Tensor) String() string {
	var b strings.Builder
	b.WriteString(t.DType)
	for i, n := range t.Shape {
		b.WriteByte("[ "[min(i, 1)])
		b.WriteString(strconv.Itoa(n))
	}
	if len(t.Shape) == 0 {
		b.WriteByte('[')
	}
	return b.String() + "]"
}

// Kernel is a kernel, a copy, a fill or a graph on the device.
type Kernel struct {
	// Name is the kernel's name, or says what else it is.
	Name string `json:"name"`
	// Begin and End are on the device's clock, whose zero is the profile's beginning. Both are 0 where Timed is false.
	Begin time.Duration `json:"begin,omitempty"`
	End   time.Duration `json:"end,omitempty"`
	Timed bool          `json:"timed,omitempty"`
	// Whole says that it is a run of a graph whose kernels have their own times; Op.Device leaves it out.
	Whole bool `json:"whole,omitempty"`
}

// Device returns the time that the device spent on o's kernels.
func (o *Op) Device() time.Duration {
	if o == nil {
		return 0
	}
	var d time.Duration
	for _, k := range o.Kernels {
		if !k.Whole {
			d += k.End - k.Begin
		}
	}
	return d
}

// Host returns the time from the call to its return.
func (o *Op) Host() time.Duration {
	if o == nil {
		return 0
	}
	return o.End - o.Begin
}

// Line returns the program's line of op number i, as "file:line"; a backward operation has the line of its forward operation. It is "" if
// the line is not known or the operation does not exist.
func (p *Profile) Line(i int) string {
	if f, ok := p.at(i); ok {
		return f.File + ":" + strconv.Itoa(f.Line)
	}
	return ""
}

// at returns the call that Line names.
func (p *Profile) at(i int) (Frame, bool) {
	if p == nil || i < 0 || i >= len(p.Ops) {
		return Frame{}, false
	}
	o := &p.Ops[i]
	if o.Forward >= 0 && o.Forward < len(p.Ops) {
		o = &p.Ops[o.Forward]
	}
	if len(o.Calls) == 0 || o.Calls[0] < 0 || o.Calls[0] >= len(p.Frames) {
		return Frame{}, false
	}
	return p.Frames[o.Calls[0]], true
}

// replayed reports whether op number i is a part of a replay, so that the host did not call it then.
func (p *Profile) replayed(i int) bool {
	up := p.Ops[i].Parent
	return up >= 0 && p.Ops[up].Kind == KindGraph
}

// notes returns the operations' notes, each once.
func (p *Profile) notes() (all []string) {
	var texts []string
	times := map[string]int{}
	for i := range p.Ops {
		if n := p.Ops[i].Note; n != "" {
			if times[n]++; times[n] == 1 {
				texts = append(texts, n)
			}
		}
	}
	for _, n := range texts {
		if times[n] > 1 {
			n = fmt.Sprintf("%s (%d times)", n, times[n])
		}
		all = append(all, n)
	}
	return all
}

// Floor returns the least time that the device would need for o's bytes and operations, by its figures; 0 if they are not known.
func (p *Profile) Floor(o *Op) time.Duration {
	if p == nil || o == nil {
		return 0
	}
	var s float64
	if p.Device.Bandwidth > 0 {
		s = float64(o.Bytes) / p.Device.Bandwidth
	}
	if r := p.Device.Rates[o.Compute]; r > 0 {
		s = max(s, float64(o.FLOPs)/r)
	}
	return time.Duration(s * 1e9)
}

// Write writes the profile for Read: as JSON, compressed with gzip.
func (p *Profile) Write(w io.Writer) error {
	if err := p.usable(w); err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	err := json.NewEncoder(z).Encode(p)
	if e := z.Close(); err == nil {
		err = e
	}
	return written(err)
}

// usable refuses a profile that cannot be written and a nil writer.
func (p *Profile) usable(w io.Writer) error {
	switch {
	case p == nil:
		return fault.New(fault.Invalid, "the profile is nil; use one that Profiler.Stop or Read returned")
	case w == nil:
		return fault.New(fault.Invalid, "the writer is nil; give it one")
	}
	return p.check()
}

func written(err error) error {
	if err == nil {
		return nil
	}
	return fault.Wrap(fault.System, err, "the profile cannot be written")
}

// mostBytes bounds the uncompressed length of a profile.
const mostBytes = 4 << 30

// Read reads a profile that Write wrote.
func Read(r io.Reader) (*Profile, error) {
	if r == nil {
		return nil, fault.New(fault.Invalid, "the reader is nil; give it one")
	}
	z, err := gzip.NewReader(r)
	if errors.Is(err, io.ErrUnexpectedEOF) { // shorter than gzip's header
		err = gzip.ErrHeader
	}
	if err != nil {
		return nil, notProfile(err)
	}
	p := &Profile{}
	if err := json.NewDecoder(io.LimitReader(z, mostBytes)).Decode(p); err != nil {
		return nil, notProfile(err)
	}
	if p.Format != 1 {
		return nil, fault.New(fault.Invalid, "this is not a profile of format 1; give a file that Profile.Write of this version wrote")
	}
	return p, p.check()
}

// notProfile returns the error of a file that gzip or JSON cannot read.
func notProfile(err error) error {
	var syntax *json.SyntaxError
	var other *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return fault.New(fault.Invalid, "the file is empty; give one that Profile.Write wrote")
	case errors.Is(err, gzip.ErrHeader), errors.As(err, &syntax), errors.As(err, &other):
		return fault.New(fault.Invalid, "this is not a profile; give a file that Profile.Write wrote")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.Invalid, "the profile ends in the middle; write or copy it again")
	}
	return fault.Wrap(fault.Invalid, err, "the profile cannot be read; write or copy it again")
}

// check refuses indexes that are out of range.
func (p *Profile) check() error {
	bad := func(what string, i int) error {
		return fault.New(fault.Invalid, "the profile is damaged: %s names number %d, which there is not", what, i)
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		for _, n := range []int{o.Parent, o.Forward, o.Fused} {
			if n < -1 || n >= len(p.Ops) {
				return bad("an operation", n)
			}
		}
		for _, c := range o.Calls {
			if c < 0 || c >= len(p.Frames) {
				return bad("an operation's call", c)
			}
		}
	}
	for _, e := range p.Memory {
		if e.Op < -1 || e.Op >= len(p.Ops) {
			return bad("a piece of memory", e.Op)
		}
	}
	return nil
}
