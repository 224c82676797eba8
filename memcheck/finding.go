package memcheck

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Tool is one of a checker's tools: what it looks for.
type Tool string

// The tools of NVIDIA's compute-sanitizer, by its own names. The old cuda-memcheck and Tenon's own checker have the same.
const (
	// Memcheck finds accesses out of bounds, misaligned or to freed memory, failed calls of the CUDA API, and leaks.
	Memcheck Tool = "memcheck"
	// Racecheck finds hazards on shared memory between the threads of a block; Tenon's own checker also those between streams.
	Racecheck Tool = "racecheck"
	// Initcheck finds reads of device memory that nothing wrote.
	Initcheck Tool = "initcheck"
	// Synccheck finds barriers that not all threads reach, and other misuse of synchronisation.
	Synccheck Tool = "synccheck"
)

// Class is the kind of a defect, the same word whichever checker found it.
type Class string

// The classes.
const (
	OutOfBounds   Class = "out-of-bounds"  // an access outside of every allocation
	UseAfterFree  Class = "use-after-free" // an access to memory that was freed
	Misaligned    Class = "misaligned"     // an address that the access's width does not divide
	InvalidFree   Class = "invalid-free"   // a second free, or a free of no allocation
	Leak          Class = "leak"           // an allocation still alive at exit
	Uninitialized Class = "uninitialized"  // a read of memory that nothing wrote
	Race          Class = "race"           // two accesses without an order, between threads of a block
	StreamRace    Class = "stream-race"    // two accesses without an order, between streams
	Barrier       Class = "barrier"        // a barrier in divergent code, or another misuse of synchronisation
	APIError      Class = "api-error"      // a call of the CUDA API that failed
	DeviceFault   Class = "device-fault"   // an exception of the hardware that the checker reports without further analysis
	OtherDefect   Class = "other"          // a group of the report that fits no other class
)

// Severity says whether a finding makes its test fail.
type Severity string

// The severities. Checkers grade only hazards; everything else is an error.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Address is an address of device memory. It is written as hexadecimal text.
type Address uint64

// String returns the address as 0x and hexadecimal digits.
func (a Address) String() string { return "0x" + strconv.FormatUint(uint64(a), 16) }

// MarshalText writes the address as [Address.String] does.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads hexadecimal or decimal text.
func (a *Address) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 64)
	if err != nil {
		return fmt.Errorf("%q is no address", text)
	}
	*a = Address(n)
	return nil
}

// Frame is one line of a stack: host code, or a place in a kernel. What the checker does not tell is empty.
type Frame struct {
	// Function is the name, of a kernel or of host code.
	Function string `json:"function,omitempty"`
	// File is as the checker names it, often without its folder; Line counts from 1.
	File string `json:"file,omitempty"`
	// Line is the line in File; 0: unknown.
	Line int `json:"line,omitempty"`
	// Offset is the code offset: within the function for a kernel, within the module for host code.
	Offset Address `json:"offset,omitempty"`
	// Module is the shared library or program.
	Module string `json:"module,omitempty"`
	// Text is the checker's own line, trimmed.
	Text string `json:"text"`
}

// Place returns file:line, or the function and its offset, or the checker's line.
func (f Frame) Place() string {
	switch {
	case f.File != "" && f.Line > 0:
		return f.File + ":" + strconv.Itoa(f.Line)
	case f.File != "":
		return f.File
	case f.Function != "" && f.Offset != 0:
		return f.Function + "+" + f.Offset.String()
	case f.Function != "":
		return f.Function
	}
	return f.Text
}

// Allocation is the allocation that a finding concerns: the nearest one, the freed one, or the leaked one.
type Allocation struct {
	// Address is its first byte.
	Address Address `json:"address,omitempty"`
	// Size in bytes.
	Size uint64 `json:"size,omitempty"`
	// Relation is how the access lies to it, in the checker's words: "1 bytes after the nearest allocation".
	Relation string `json:"relation,omitempty"`
	// Stack is where it was made, innermost first, and Freed where it was freed.
	Stack []Frame `json:"stack,omitempty"`
	Freed []Frame `json:"freed,omitempty"`
}

// Finding is one defect, as a checker reports it. Reports of many threads of one kernel at one place are one finding with a Count.
type Finding struct {
	// Tool found it.
	Tool Tool `json:"tool,omitempty"`
	// Class is its kind.
	Class Class `json:"class"`
	// Severity says whether it makes its test fail.
	Severity Severity `json:"severity"`
	// Message is the first line of the report.
	Message string `json:"message"`
	// Details are the report's further lines that are no stack, trimmed.
	Details []string `json:"details,omitempty"`
	// Kernel is the name of the kernel, and Device its stack of device code, innermost first. The first frame is the place.
	Kernel string  `json:"kernel,omitempty"`
	Device []Frame `json:"device,omitempty"`
	// Other is the place of the second access of a race.
	Other []Frame `json:"other,omitempty"`
	// Access is "read", "write" or "atomic"; Space is "global", "shared" or "local"; Size is the bytes of the access.
	Access string `json:"access,omitempty"`
	Space  string `json:"space,omitempty"`
	Size   int    `json:"size,omitempty"`
	// Address is the first one reported.
	Address Address `json:"address,omitempty"`
	// Thread and Block are the first ones reported, nil where the report has none.
	Thread *[3]int `json:"thread,omitempty"`
	Block  *[3]int `json:"block,omitempty"`
	// Allocation is nil where the report names none.
	Allocation *Allocation `json:"allocation,omitempty"`
	// Stack is the host's, innermost first, at the launch or call.
	Stack []Frame `json:"stack,omitempty"`
	// Library is the name in the list of [Libraries] that the stack mentions; empty for code of the user.
	Library string `json:"library,omitempty"`
	// Count is how many groups of the report were merged into this finding, at least 1.
	Count int `json:"count"`
}

// Report is what a checker said of one process, or of a process and its children.
type Report struct {
	// Checker is the name in the report's first line: "COMPUTE-SANITIZER", "CUDA-MEMCHECK", "TENON-CHECK". Empty: there was no report at
	// all.
	Checker string `json:"checker,omitempty"`
	// Findings are distinct by [Finding.Key], in the order of first appearance, and at most [MaxFindings].
	Findings []*Finding `json:"findings,omitempty"`
	// Errors is the summary's number of errors (for several processes, the sum), and Warnings that of hazards that are no errors.
	Errors   int `json:"errors"`
	Warnings int `json:"warnings,omitempty"`
	// Groups is how many groups of errors the report had before they were merged; the checker's print limit bounds it.
	Groups int `json:"groups"`
	// Unprinted is how many errors the checker counted and says it did not print.
	Unprinted int `json:"unprinted,omitempty"`
	// Kernels is how many kernels the checker says it looked at; 0 where it does not say.
	Kernels int `json:"kernels,omitempty"`
	// NoCalls: the checker says that the process ended before it called CUDA, and says nothing else.
	NoCalls bool `json:"no_calls,omitempty"`
}

// MaxFindings bounds the distinct findings that a Report keeps; later ones are counted in Groups alone.
const MaxFindings = 1000

// Failing reports whether the report has an error that is not a library's, or one that was not printed and so could be anything.
func (r *Report) Failing() bool {
	for _, f := range r.Findings {
		if f.Severity == SeverityError && f.Library == "" {
			return true
		}
	}
	return r.Unprinted > 0
}

// numbers are what differs between two reports of one defect.
var numbers = regexp.MustCompile(`0x[0-9a-fA-F]+|\b[0-9]+\b`)

// accessBytes keeps the one number that tells defects apart.
var accessBytes = regexp.MustCompile(`of size [0-9]+`)

// Key is equal for two findings of one defect: same tool, class, kernel and place, the same kind of message and of library, whatever the
// thread, the address, and the host's way there. Without a place in a kernel, the host's innermost frame outside of the driver counts.
func (f *Finding) Key() string {
	parts := []string{string(f.Tool), string(f.Class), string(f.Severity), f.Kernel, f.Library,
		accessBytes.FindString(f.Message), numbers.ReplaceAllString(f.Message, "N")}
	if len(f.Device) > 0 {
		parts = append(parts, f.Device[0].Place())
	} else if s := f.Site(); s != nil {
		parts = append(parts, s.Place())
	}
	if len(f.Other) > 0 {
		parts = append(parts, f.Other[0].Place())
	}
	return strings.Join(parts, "\x1f")
}

// Site is the host frame that a reader wants first: the innermost that is neither the driver's, nor the CUDA runtime's, nor assembly. Nil:
// no stack.
func (f *Finding) Site() *Frame {
	stack := f.Stack
	if len(stack) == 0 && f.Allocation != nil {
		stack = f.Allocation.Stack
	}
	for i := range stack {
		if s := &stack[i]; !strings.Contains(s.Module, "libcuda.") && !strings.Contains(s.Module, "libcudart") &&
			!strings.HasPrefix(s.Function, "cuda") && !strings.HasSuffix(s.File, ".s") {
			return s
		}
	}
	if len(stack) > 0 {
		return &stack[0]
	}
	return nil
}
