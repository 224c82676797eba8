package memcheck

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

// The lines of a group, in the formats of NVIDIA's two checkers.
var (
	invalidAccess = regexp.MustCompile(`^Invalid __(\w+)__ (read|write|atomic) of size ([0-9,]+)`)
	uninitRead    = regexp.MustCompile(`^Uninitialized __(\w+)__ memory read of size ([0-9,]+)`)
	hostAccess    = regexp.MustCompile(`^Host API memory access error at host access to (0x[0-9a-fA-F]+) of size ([0-9,]+)`)
	raceReport    = regexp.MustCompile(`^Race reported between (\w+) access(?:es)? at (.+)$`)
	raceAnd       = regexp.MustCompile(`^and (\w+) access(?:es)? at (.+?)(?: \[[0-9]+ hazards?\])?$`)
	hazard        = regexp.MustCompile(
		`^Potential (\w+) hazard detected at __(\w+)__ (0x[0-9a-fA-F]+) in block \(([0-9]+),([0-9]+),([0-9]+)\)`)
	hazardThread = regexp.MustCompile(`^(\w+) Thread \(([0-9]+),([0-9]+),([0-9]+)\) at (.+)$`)
	leaked       = regexp.MustCompile(`^Leaked ([0-9,]+) bytes at (0x[0-9a-fA-F]+)`)
	apiCall      = regexp.MustCompile(`^Program hit .* on CUDA API call to (\w+)`)
	staleOrder   = regexp.MustCompile(`^Use-after-free on allocation of size ([0-9,]+) bytes at (0x[0-9a-fA-F]+)`)

	threadBlock = regexp.MustCompile(`^by thread \(([0-9]+),([0-9]+),([0-9]+)\) in block \(([0-9]+),([0-9]+),([0-9]+)\)`)
	addressLine = regexp.MustCompile(`^(?:Access to|Address) (0x[0-9a-fA-F]+)(?: is (.*))?$`)
	uninitHost  = regexp.MustCompile(`^Uninitialized access to (0x[0-9a-fA-F]+)`)
	nearest     = regexp.MustCompile(`^and is (.*?the nearest allocation) at (0x[0-9a-fA-F]+) of size ([0-9,]+) bytes`)
	backtrace   = regexp.MustCompile(
		`^Saved host backtrace up to driver entry point at (.+?) time$|^Saved host backtrace up to driver entry point at (error)$`)

	newPlace  = regexp.MustCompile(`^(.*?)\+(0x[0-9a-fA-F]+)(?: in (.+?):([0-9]+)| in (.+))?$`)
	oldPlace  = regexp.MustCompile(`^(0x[0-9a-fA-F]+) in (?:(.+?):([0-9]+):)?(.+)$`)
	hostFrame = regexp.MustCompile(`^(.*?)(?: in ([^ ]+|<[^>]*>):([0-9]+))?(?: \[(0x[0-9a-fA-F]+)\](?: in (.+))?)?$`)
	oldHost   = regexp.MustCompile(`^(\S+)(?: \((.*?) ?(?:\+ (0x[0-9a-fA-F]+))?\))?(?: \[(0x[0-9a-fA-F]+)\])?$`)
	oldDevice = regexp.MustCompile(`^(.*?) \((.+?) ?: (0x[0-9a-fA-F]+)\)$`)
)

// newFinding parses a group: its message and its indented lines.
func newFinding(group []string) *Finding {
	f := &Finding{Class: OtherDefect, Severity: SeverityError, Message: strings.TrimSpace(group[0]), Count: 1}
	for prefix, s := range map[string]Severity{"Error: ": SeverityError, "Warning: ": SeverityWarning, "Warn: ": SeverityWarning,
		"Info: ": SeverityInfo} {
		if rest, ok := strings.CutPrefix(f.Message, prefix); ok {
			f.Message, f.Severity = rest, s
			break
		}
	}
	f.message()
	stack := &f.Stack
	for _, line := range group[1:] {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case backtrace.MatchString(line):
			stack = f.stackOf(line)
		case strings.HasPrefix(line, "Host Frame:"):
			*stack = append(*stack, parseHostFrame(strings.TrimSpace(line[len("Host Frame:"):])))
		case strings.HasPrefix(line, "Device Frame:"):
			if d := parsePlace(strings.TrimSpace(line[len("Device Frame:"):])); len(f.Device) == 0 || f.Device[0].Text != d.Text {
				f.Device = append(f.Device, d)
			}
		case f.detail(line):
		default:
			f.Details = append(f.Details, line)
		}
	}
	if n := len(f.Device); n > 0 {
		f.Kernel = f.Device[n-1].Function
	}
	return f
}

// stackOf returns the stack that the frames after a heading belong to.
func (f *Finding) stackOf(heading string) *[]Frame {
	m := backtrace.FindStringSubmatch(heading)
	switch when := m[1]; {
	case when == "allocation":
		return &f.allocation().Stack
	case strings.Contains(when, "Free"):
		return &f.allocation().Freed
	}
	return &f.Stack
}

func (f *Finding) allocation() *Allocation {
	if f.Allocation == nil {
		f.Allocation = &Allocation{}
	}
	return f.Allocation
}

// message parses the first line.
func (f *Finding) message() {
	s := f.Message
	if m := invalidAccess.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Access, f.Size = OutOfBounds, m[1], m[2], small(m[3])
	} else if m := uninitRead.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Access, f.Size = Uninitialized, m[1], "read", small(m[2])
	} else if m := hostAccess.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Address, f.Size = OutOfBounds, "global", address(m[1]), small(m[2])
	} else if m := raceReport.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Access = Race, "shared", strings.ToLower(m[1])
		f.Device = append(f.Device, parsePlace(m[2]))
	} else if m := hazard.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Address, f.Block = Race, m[2], address(m[3]), triple(m[4:])
	} else if m := leaked.FindStringSubmatch(s); m != nil {
		f.Class, f.Allocation = Leak, &Allocation{Size: integer(m[1]), Address: address(m[2])}
	} else if m := apiCall.FindStringSubmatch(s); m != nil {
		f.Class = APIError
		if strings.Contains(m[1], "Free") && strings.Contains(s, "error 1)") {
			f.Class = InvalidFree
		}
	} else if m := staleOrder.FindStringSubmatch(s); m != nil {
		f.Class, f.Space, f.Allocation = UseAfterFree, "global", &Allocation{Size: integer(m[1]), Address: address(m[2])}
	} else {
		f.Class = classOf(s)
	}
}

// classOf classifies messages that contain nothing else.
func classOf(s string) Class {
	for _, c := range []struct {
		class Class
		parts []string
	}{
		{Barrier, []string{"Barrier error", "Divergent thread", "deadlock", "Synchronization"}},
		{InvalidFree, []string{"Double free", "Invalid pointer to free", "Corrupted pointer"}},
		{DeviceFault, []string{"trap", "Warp assert", "Warp ", "Illegal", "Stack overflow", "Out-of-range", "Lane ", "Fatal UVM",
			"Device hardware", "Unknown Error",
			"Operand", "CUDA Exception"}},
	} {
		for _, part := range c.parts {
			if strings.Contains(s, part) {
				return c.class
			}
		}
	}
	return OtherDefect
}

// detail parses a line that is not a frame, and reports whether it understood all of it.
func (f *Finding) detail(s string) bool {
	if m := threadBlock.FindStringSubmatch(s); m != nil {
		f.Thread, f.Block = triple(m[1:4]), triple(m[4:7])
		return true
	}
	if rest, ok := strings.CutPrefix(s, "at "); ok && len(f.Device) == 0 {
		f.Device = append(f.Device, parsePlace(rest))
		return true
	}
	if m := nearest.FindStringSubmatch(s); m != nil {
		a := f.allocation()
		a.Relation, a.Address, a.Size = m[1], address(m[2]), integer(m[3])
		return true
	}
	if m := raceAnd.FindStringSubmatch(s); m != nil {
		f.Other = append(f.Other, parsePlace(m[2]))
	} else if m := hazardThread.FindStringSubmatch(s); m != nil {
		if place := parsePlace(m[5]); len(f.Device) == 0 {
			f.Access, f.Thread, f.Device = strings.ToLower(m[1]), triple(m[2:5]), []Frame{place}
		} else {
			f.Other = append(f.Other, place)
		}
	} else if m := addressLine.FindStringSubmatch(s); m != nil {
		f.Address = address(m[1])
		switch {
		case strings.Contains(m[2], "potentially"):
			f.Class = StreamRace
		case strings.Contains(m[2], "misaligned"):
			f.Class = Misaligned
		case strings.Contains(m[2], "free"):
			f.Class = UseAfterFree
		}
	} else if m := uninitHost.FindStringSubmatch(s); m != nil {
		f.Class, f.Access, f.Address = Uninitialized, "read", address(m[1])
	}
	return false
}

// parsePlace parses "kernel(args)+0x60 in file.cu:43", or cuda-memcheck's "0x00000060 in file.cu:43:kernel(args)".
func parsePlace(s string) Frame {
	f := Frame{Text: s}
	if m := oldPlace.FindStringSubmatch(s); m != nil {
		f.Offset, f.File, f.Line, f.Function = address(m[1]), base(m[2]), small(m[3]), m[4]
	} else if m := newPlace.FindStringSubmatch(s); m != nil {
		f.Function, f.Offset, f.File, f.Line = m[1], address(m[2]), base(m[3]+m[5]), small(m[4])
	} else if m := oldDevice.FindStringSubmatch(s); m != nil {
		f.Function, f.Offset = m[1], address(m[3])
	} else {
		f.Function = s
	}
	return f
}

// parseHostFrame parses "main [0x9d53] in planted", "f in file.go:12 [0x9d53] in program", "test in test_x.py:5", or cuda-memcheck's
// "/usr/lib/libcuda.so.1 (cuLaunchKernel + 0x331) [0x138281]".
func parseHostFrame(s string) Frame {
	f := Frame{Text: s}
	if strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") {
		if m := oldHost.FindStringSubmatch(s); m != nil {
			f.Module, f.Function, f.Offset = m[1], m[2], address(m[4])
			return f
		}
	}
	if strings.HasPrefix(s, "[") { // no name: the module and the offset in it
		s = " " + s
	}
	if m := hostFrame.FindStringSubmatch(s); m != nil {
		f.Function, f.File, f.Line, f.Offset, f.Module = strings.TrimSpace(m[1]), m[2], small(m[3]), address(m[4]), m[5]
	}
	return f
}

func base(file string) string {
	if file == "" {
		return ""
	}
	return path.Base(file)
}

// integer parses digits with thousands separators; a number that is too large gives 0.
func integer(s string) uint64 {
	n, _ := strconv.ParseUint(strings.ReplaceAll(s, ",", ""), 10, 63)
	return n
}

// small is integer for numbers of at most MaxInt32: lines, bytes of an access, thread indices.
func small(s string) int {
	n := integer(s)
	if n > maxNumber {
		return 0
	}
	return int(n)
}

func address(s string) Address {
	n, _ := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(s), "0x"), 16, 64)
	return Address(n)
}

func triple(m []string) *[3]int {
	var t [3]int
	for i := range t {
		t[i] = small(m[i])
	}
	return &t
}
