package memcheck

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Tool is one of a checker's tools: the kind of defect that it looks for.
type Tool string

// The tools of NVIDIA's compute-sanitizer, by its own names. The old cuda-memcheck and Tenon's own checker have the same tools.
const (
	// Memcheck finds out-of-bounds and misaligned accesses, uses of freed memory, failed calls of the CUDA API, and leaks.
	Memcheck Tool = "memcheck"
	// Racecheck finds hazards on shared memory between the threads of a block; Tenon's own checker also finds hazards between streams.
	Racecheck Tool = "racecheck"
	// Initcheck finds reads of device memory that was never written.
	Initcheck Tool = "initcheck"
	// Synccheck finds barriers that not all threads reach, and other misuse of synchronisation.
	Synccheck Tool = "synccheck"
)

// Class is the kind of a defect, with the same name for every checker.
type Class string

// The classes.
const (
	OutOfBounds   Class = "out-of-bounds"  // an access outside of all allocations
	UseAfterFree  Class = "use-after-free" // an access to freed memory
	Misaligned    Class = "misaligned"     // an address that is not a multiple of the access's width
	InvalidFree   Class = "invalid-free"   // a double free, or a free of something that is not an allocation
	Leak          Class = "leak"           // an allocation still alive at exit
	Uninitialized Class = "uninitialized"  // a read of memory that was never written
	Race          Class = "race"           // two unordered accesses by threads of a block
	StreamRace    Class = "stream-race"    // two unordered accesses by streams
	Barrier       Class = "barrier"        // a barrier in divergent code, or another misuse of synchronisation
	APIError      Class = "api-error"      // a failed call of the CUDA API
	DeviceFault   Class = "device-fault"   // a hardware exception that the checker reports without further analysis
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

// Address is an address of device memory. Its text form is hexadecimal.
type Address uint64

// String returns the address as 0x and hexadecimal digits.
func (a Address) String() string { return "0x" + strconv.FormatUint(uint64(a), 16) }

// MarshalText writes the address as [Address.String] does.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads hexadecimal or decimal text.
func (a *Address) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 64)
	if err != nil {
		return fmt.Errorf("%q is not an address", text)
	}
	*a = Address(n)
	return nil
}

// Frame is one line of a stack: host code, or a place in a kernel. Fields that the checker does not report are empty.
type Frame struct {
	// Function is the name of a kernel or of a host function.
	Function string `json:"function,omitempty"`
	// File is the name that the checker reports, often without its folder.
	File string `json:"file,omitempty"`
	// Line is the line in File, counted from 1; 0: unknown.
	Line int `json:"line,omitempty"`
	// Offset is the code offset: within the function for a kernel, within the module for host code.
	Offset Address `json:"offset,omitempty"`
	// Module is the shared library or program.
	Module string `json:"module,omitempty"`
	// Text is the checker's own line, trimmed.
	Text string `json:"text"`
}

// Place returns file:line or, as far as known, the file, the function with its offset, or the checker's line.
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

// Allocation is the allocation that a finding is about: the nearest one, the freed one, or the leaked one.
type Allocation struct {
	// Address is its first byte.
	Address Address `json:"address,omitempty"`
	// Size in bytes.
	Size uint64 `json:"size,omitempty"`
	// Relation is where the access is, relative to it, in the checker's words: "1 bytes after the nearest allocation".
	Relation string `json:"relation,omitempty"`
	// Stack is where it was allocated, innermost first, and Freed where it was freed.
	Stack []Frame `json:"stack,omitempty"`
	Freed []Frame `json:"freed,omitempty"`
}

// Finding is one defect, as a checker reports it. Reports from many threads of one kernel at one place are one finding with a Count.
type Finding struct {
	// Tool is the tool that found it.
	Tool Tool `json:"tool,omitempty"`
	// Class is its kind.
	Class Class `json:"class"`
	// Severity says whether it makes its test fail.
	Severity Severity `json:"severity"`
	// Message is the first line of the report.
	Message string `json:"message"`
	// Details are the report's further lines that are not part of a stack, trimmed.
	Details []string `json:"details,omitempty"`
	// Kernel is the name of the kernel, and Device its stack of device code, innermost first. The first frame is the place of the defect.
	Kernel string  `json:"kernel,omitempty"`
	Device []Frame `json:"device,omitempty"`
	// Other is the place of the second access of a race.
	Other []Frame `json:"other,omitempty"`
	// Access is "read", "write" or "atomic"; Space is "global", "shared" or "local"; Size is the bytes of the access.
	Access string `json:"access,omitempty"`
	Space  string `json:"space,omitempty"`
	Size   int    `json:"size,omitempty"`
	// Address is the first address reported.
	Address Address `json:"address,omitempty"`
	// Thread and Block are the first ones reported, nil if the report has none.
	Thread *[3]int `json:"thread,omitempty"`
	Block  *[3]int `json:"block,omitempty"`
	// Allocation is nil if the report names none.
	Allocation *Allocation `json:"allocation,omitempty"`
	// Stack is the host's stack at the launch or call, innermost first.
	Stack []Frame `json:"stack,omitempty"`
	// Library is the name of the library in the list of [Libraries] that the stack mentions; empty for user code.
	Library string `json:"library,omitempty"`
	// Count is the number of groups of the report that were merged into this finding, at least 1.
	Count int `json:"count"`
}

// Report is what a checker reported about one process, or about a process and its children.
type Report struct {
	// Checker is the name in the report's first line: "COMPUTE-SANITIZER", "CUDA-MEMCHECK", "TENON-CHECK". Empty if there was no report at
	// all.
	Checker string `json:"checker,omitempty"`
	// Findings are distinct by [Finding.Key], in the order of first appearance, and at most [MaxFindings].
	Findings []*Finding `json:"findings,omitempty"`
	// Errors is the summary's number of errors (for several processes, the sum), and Warnings its number of hazards that are not errors.
	Errors   int `json:"errors"`
	Warnings int `json:"warnings,omitempty"`
	// Groups is the number of error groups in the report before merging; the checker's print limit bounds it.
	Groups int `json:"groups"`
	// Unprinted is the number of errors that the checker says it counted but did not print.
	Unprinted int `json:"unprinted,omitempty"`
	// Kernels is the number of kernels that the checker says it checked; 0 if it does not say.
	Kernels int `json:"kernels,omitempty"`
	// NoCalls is set if the checker says only that the process ended before it called CUDA.
	NoCalls bool `json:"no_calls,omitempty"`
}

// MaxFindings bounds the distinct findings that a Report keeps; later ones are only counted in Groups.
const MaxFindings = 1000

// Failing reports whether the report has an error that is not a library's, or an unprinted one, which could be anything.
func (r *Report) Failing() bool {
	for _, f := range r.Findings {
		if f.Severity == SeverityError && f.Library == "" {
			return true
		}
	}
	return r.Unprinted > 0
}

// numbers match what differs between two reports of one defect.
var numbers = regexp.MustCompile(`0x[0-9a-fA-F]+|\b[0-9]+\b`)

// accessBytes matches the one number that distinguishes defects.
var accessBytes = regexp.MustCompile(`of size [0-9]+`)

// Key is equal for two findings of one defect: same tool, class, kernel and place, same kind of message and library, regardless of the
// thread, the address and the host's call path. If there is no place in a kernel, the host's innermost frame outside of the driver is used.
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

// Site is the host frame that a reader wants to see first: the innermost one that is not in the driver, the CUDA runtime or assembly. Nil
// if there is no stack.
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
