// Package profile is what a device's profiler saw of a stretch of a program: operations with their lines, times, bytes and kernels, and
// memory by what it was for. It reads and writes profiles as files, tables, pages, and in the formats of other tools. cuda's Device.Profile
// makes profiles; this package uses no device and no tensor.
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

// Profile is what was seen. Times are counted from its beginning.
type Profile struct {
	// Format is 1.
	Format int `json:"tenon_profile"`
	// Device is what it was seen of.
	Device Device `json:"device"`
	// Began is when it began, and Duration how long it was.
	Began    time.Time     `json:"began"`
	Duration time.Duration `json:"duration"`
	// Frames are the calls that Op.Calls names.
	Frames []Frame `json:"frames"`
	// Ops are in the order in which they began on the host.
	Ops []Op `json:"ops"`
	// Memory is in the order of time.
	Memory []MemoryEvent `json:"memory"`
}

// Device is a device and the figures that its floor is made of.
type Device struct {
	// Name and Ordinal are as of cuda.Device.
	Name    string `json:"name"`
	Ordinal int    `json:"ordinal"`
	// Bandwidth is in bytes per second, read and written; 0 if unknown.
	Bandwidth float64 `json:"bandwidth,omitempty"`
	// Rates are floating-point operations per second by Op.Compute.
	Rates map[string]float64 `json:"rates,omitempty"`
}

// Frame is a call in the program.
type Frame struct {
	// Function is its full name; File and Line are where it stands.
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// Kind is what an Op is.
type Kind string

// The kinds: an operation; one kernel for several operations of a compiled region; a replay of a graph; a copy from or to the host.
const (
	KindOp    Kind = "op"
	KindFused Kind = "fused"
	KindGraph Kind = "graph"
	KindCopy  Kind = "copy"
)

// Phase is what part of a training step an Op belongs to.
type Phase string

// The phases. Forward is all that is neither of the others.
const (
	Forward   Phase = "forward"
	Backward  Phase = "backward"
	Optimizer Phase = "optimizer"
)

// Op is one operation, or one entry like it.
type Op struct {
	// Name is the operation's, and Within that of the outermost composite that it is a part of, or "".
	Name   string `json:"name"`
	Within string `json:"within,omitempty"`
	// Kind and Phase are what it is, and what it is a part of.
	Kind  Kind  `json:"kind"`
	Phase Phase `json:"phase"`
	// Module is the types whose method Forward was under way, such as "Sequential/Linear". A backward operation has that of its forward
	// one.
	Module string `json:"module,omitempty"`
	// Calls are the program's calls that led to it, innermost first, by number in Frames.
	Calls []int `json:"calls,omitempty"`
	// Parent is the number of the operation that it was a part of, Forward of the one whose derivative it belongs to, and Fused of the
	// entry whose kernel did its work; -1 if there is none.
	Parent  int `json:"parent"`
	Forward int `json:"forward"`
	Fused   int `json:"fused"`
	// Goroutine is the number of the goroutine, and Stream that of the device's stream.
	Goroutine int64 `json:"goroutine"`
	Stream    int   `json:"stream"`
	// Begin and End are when the call was made and when it returned.
	Begin time.Duration `json:"begin"`
	End   time.Duration `json:"end"`
	// Captured says that a graph recorded it, so that only replays run it; Deferred that a compiled region put it off.
	Captured bool `json:"captured,omitempty"`
	Deferred bool `json:"deferred,omitempty"`
	// Inputs and Outputs are the tensors that it read and made. An input that it changes is among both.
	Inputs  []Tensor `json:"inputs,omitempty"`
	Outputs []Tensor `json:"outputs,omitempty"`
	// Bytes is what it must read and write at least, and FLOPs are the floating-point operations of products, convolutions and of what is
	// done element by element; 0 for others. Compute is the type in which it computes: an element type, or "tf32".
	Bytes   int64  `json:"bytes,omitempty"`
	FLOPs   int64  `json:"flops,omitempty"`
	Compute string `json:"compute,omitempty"`
	// Kernels are what it gave the device to do.
	Kernels []Kernel `json:"kernels,omitempty"`
	// Nodes are the kernels that a replayed graph has, by name, in the order of their recording.
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

// String returns it as "float32[2 3]".
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
	// Name is the kernel's, or what else it is.
	Name string `json:"name"`
	// Begin and End are on the device's clock, whose zero is the profile's beginning. Both are 0 where Timed is false.
	Begin time.Duration `json:"begin,omitempty"`
	End   time.Duration `json:"end,omitempty"`
	Timed bool          `json:"timed,omitempty"`
	// Whole says that it is a run of a graph whose kernels have times of their own, which Op.Device leaves out.
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

// Line returns where op number i stands in the program, as "file:line": a backward operation where its forward one does. It is "" if
// that is not known, or there is no such operation.
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

// notes returns what the operations' notes say, each once.
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

// usable refuses what cannot be written, or written to.
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

// mostBytes is how long a profile may be when it is not compressed.
const mostBytes = 4 << 30

// Read reads a profile that Write wrote.
func Read(r io.Reader) (*Profile, error) {
	if r == nil {
		return nil, fault.New(fault.Invalid, "the reader is nil; give it one")
	}
	z, err := gzip.NewReader(r)
	if errors.Is(err, io.ErrUnexpectedEOF) { // too short for what gzip begins with
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

// notProfile is the error of a file that gzip or JSON cannot read.
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

// check refuses numbers that name nothing.
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
