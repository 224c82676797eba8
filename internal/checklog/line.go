// Package checklog defines the log of the simulator's memory checker: one JSON value per line. Package check writes these lines and package
// memcheck reads them. It must not depend on either.
package checklog

import (
	"encoding/json"
	"fmt"
)

// Name is the checker's name, in the first line of a process.
const Name = "TENON-CHECK"

// The classes of findings.
const (
	OutOfBounds   = "out-of-bounds"
	UseAfterFree  = "use-after-free"
	Misaligned    = "misaligned"
	InvalidFree   = "invalid-free"
	Leak          = "leak"
	Uninitialized = "uninitialized"
	Race          = "race"
	StreamRace    = "stream-race"
	Barrier       = "barrier"
)

// Line is one line, in JSON. Besides PID, the process that wrote it, it has one of: Checker with Tools, once at the start of each process;
// Finding; Kernel; and, if leaks are looked for, Alloc or Free. An allocation without a free is a leak if the process ended by itself.
type Line struct {
	// Checker is Name, and Tools names what is looked for.
	Checker string   `json:"checker,omitempty"`
	PID     int      `json:"pid"`
	Tools   []string `json:"tools,omitempty"`
	// Finding is a defect, written once.
	Finding *Finding `json:"finding,omitempty"`
	// Kernel is the name of a watched kernel, written once.
	Kernel string `json:"kernel,omitempty"`
	// Alloc is a new allocation, and Free the id of one that ended.
	Alloc *Lifetime `json:"alloc,omitempty"`
	Free  uint64    `json:"free,omitempty"`
}

// Lifetime is an allocation, whose end is identified by its id. Ids count from 1 in each process.
type Lifetime struct {
	ID uint64 `json:"id"`
	// Address is hexadecimal text, Size is in bytes, and Stack is where it was allocated, innermost first.
	Address string  `json:"address"`
	Size    uint64  `json:"size"`
	Stack   []Frame `json:"stack,omitempty"`
}

// Finding is one defect.
type Finding struct {
	// Tool is the tool that finds the class, by compute-sanitizer's names; Severity is "error".
	Tool     string `json:"tool"`
	Class    string `json:"class"`
	Severity string `json:"severity"`
	// Message is one line, Details are further lines.
	Message string   `json:"message"`
	Details []string `json:"details,omitempty"`
	// Kernel is the name of the kernel, or of the driver's call.
	Kernel string `json:"kernel,omitempty"`
	// Device is the place in the kernel, Other that of the earlier access in a race.
	Device []Frame `json:"device,omitempty"`
	Other  []Frame `json:"other,omitempty"`
	// Access is "read", "write" or "atomic", Space "global" or "shared", Size is in bytes.
	Access string `json:"access,omitempty"`
	Space  string `json:"space,omitempty"`
	Size   int    `json:"size,omitempty"`
	// Address is hexadecimal text.
	Address string `json:"address,omitempty"`
	// Thread and Block are the indices of the first occurrence.
	Thread     *[3]int     `json:"thread,omitempty"`
	Block      *[3]int     `json:"block,omitempty"`
	Allocation *Allocation `json:"allocation,omitempty"`
	// Stack is the host's stack at the launch or call, innermost first, starting with the first frame outside of the library.
	Stack []Frame `json:"stack,omitempty"`
	Count int     `json:"count"`
}

// Allocation is the allocation that a finding is about.
type Allocation struct {
	// Address is hexadecimal text, Size is in bytes.
	Address string `json:"address"`
	Size    uint64 `json:"size"`
	// Relation describes where the access lies relative to it.
	Relation string `json:"relation,omitempty"`
	// Stack is where it was allocated and Freed where it was freed.
	Stack []Frame `json:"stack,omitempty"`
	Freed []Frame `json:"freed,omitempty"`
}

// Frame is a place in Go code.
type Frame struct {
	Function string `json:"function,omitempty"`
	// File has no folders, Line counts from 1.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Text is the whole frame, for readers.
	Text string `json:"text"`
}

// String returns file:line.
func (f Frame) String() string { return fmt.Sprintf("%s:%d", f.File, f.Line) }

// Encode returns the line with its newline, for a single write.
func (l *Line) Encode() []byte {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // values of these types can always be encoded
	}
	return append(b, '\n')
}
