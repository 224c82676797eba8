package memviz

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"tenon.dev/internal/snapshot"
)

// stackText describes stacks in words, computed on demand.
type stackText struct{ stacks *snapshot.Stacks }

// frameText returns a frame as reports write it: file:line:name with the file's last path element.
func frameText(f snapshot.Frame) string {
	return f.File[strings.LastIndexByte(f.File, '/')+1:] + ":" + decimal(f.Line) + ":" + f.Name
}

// telling reports whether a frame shows where in the user's code a call came from: it has a file and a line, and is not in package tenon,
// whose functions are the only ones with that prefix and no slash.
func telling(f snapshot.Frame) bool {
	return f.Line > 0 && f.File != "" && f.File != "??" && !strings.HasPrefix(f.File, "<") &&
		(!strings.HasPrefix(f.Name, "tenon.") || strings.Contains(f.Name, "/"))
}

// label returns one line for a stack: its innermost frame with a file and a line. A stack with only C++ frames, as in PyTorch's backward
// pass, is named by the op and the autograd node that called it, else by its innermost frame that is not the recorder's or the
// allocator's own.
func (t stackText) label(id uint32) string {
	op, node, first, any := "", "", "", ""
	for f := range t.stacks.All(snapshot.StackID(id)) {
		if telling(f) {
			return frameText(f)
		}
		if name, ok := between(f.Name, "at::_ops::"); ok && op == "" {
			op = name
		}
		if name, ok := between(f.Name, "torch::autograd::generated::"); ok && node == "" && strings.Contains(name, "Backward") {
			node, _, _ = strings.Cut(name, "_apply")
		}
		if first == "" && !machinery(f.Name) {
			first = f.Name
		}
		if any == "" {
			any = f.Name
		}
	}
	switch {
	case op != "" && node != "":
		return op + " in " + node
	case op != "" || node != "":
		return op + node
	case first != "":
		return first
	case any != "":
		return any
	}
	return "no stack recorded"
}

// between returns the part of a C++ name between a prefix and the next "::".
func between(name, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	part, _, more := strings.Cut(rest, "::")
	return part, ok && more
}

// machinery reports whether a native frame belongs to the recording of stacks or to the allocator.
func machinery(name string) bool {
	for _, p := range []string{"torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::(anonymous namespace)::gather",
		"c10::cuda::CUDACachingAllocator::"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return name == ""
}

// stack returns the whole stack.
func (t stackText) stack(id uint32) Stack {
	s := Stack{ID: id, Label: t.label(id), Frames: []Frame{}}
	for f := range t.stacks.All(snapshot.StackID(id)) {
		s.Frames = append(s.Frames, Frame{f.File, f.Line, f.Name})
	}
	return s
}

// matching returns, by stack, whether a word occurs in one of its frames, written file:line:name, ignoring case.
func (t stackText) matching(word string) []bool {
	word = strings.ToLower(word)
	frames := make([]bool, t.stacks.FrameCount())
	for i := range frames {
		f := t.stacks.Frame(snapshot.FrameID(i))
		frames[i] = strings.Contains(strings.ToLower(f.File+":"+decimal(f.Line)+":"+f.Name), word)
	}
	out := make([]bool, t.stacks.Len())
	for i := range out {
		for _, c := range t.stacks.Calls(snapshot.StackID(i)) {
			if frames[c] {
				out[i] = true
				break
			}
		}
	}
	return out
}

// addrText returns an address as answers write it.
func addrText(addr uint64) string { return fmt.Sprintf("0x%x", addr) }

// sizeUnits are the units of sizeText.
var sizeUnits = [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}

// sizeText writes bytes as PyTorch's reports do: one decimal and the unit, "1.5MiB".
func sizeText(n uint64) string { return signedSizeText(float64(n)) }

// plainSizeText writes bytes as the page does: three significant figures, "1.5 MiB", "512 B".
func plainSizeText(n uint64) string {
	v, u := float64(n), 0
	for ; v >= 1023.5 && u < len(sizeUnits)-1; u++ {
		v /= 1024
	}
	digits := 2
	switch {
	case u == 0 || v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return text + " " + sizeUnits[u]
}

// signedSizeText is sizeText for numbers that may be negative.
func signedSizeText(v float64) string {
	u := 0
	for ; math.Abs(v) >= 1024 && u < len(sizeUnits)-1; u++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f%s", v, sizeUnits[u])
}
