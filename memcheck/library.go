package memcheck

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Libraries are the libraries whose errors are not the user's: a finding whose host stack mentions one is ignored unless the run is strict.
// A nil list is empty.
type Libraries []Library

// Library is a library whose errors are not the user's.
type Library struct {
	// Name is its name for readers; Mark is a text that its stack lines contain.
	Name, Mark string
}

// DefaultLibraries returns cuBLAS (and cuBLASLt), cuDNN and cuFFT.
func DefaultLibraries() Libraries {
	return Libraries{{"cuBLAS", "libcublas"}, {"cuDNN", "libcudnn"}, {"cuFFT", "libcufft"}}
}

// Read adds the libraries of a list. Each line holds a name and the text that marks the library's stack lines, separated by blanks, or one
// word that is both. A # starts a comment. The error for bad input names the line.
func (l *Libraries) Read(r io.Reader) error {
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line, _, _ := strings.Cut(s.Text(), "#")
		switch f := strings.Fields(line); len(f) {
		case 0:
		case 1:
			*l = append(*l, Library{f[0], f[0]})
		case 2:
			*l = append(*l, Library{f[0], f[1]})
		default:
			return fmt.Errorf("line %d of the list of libraries has %d words; give a name and the text that marks its stack lines, such "+
				"as: NCCL libnccl", n, len(f))
		}
	}
	return s.Err()
}

// Match returns the name of the first library that one of the lines mentions, or "".
func (l Libraries) Match(lines ...string) string {
	for _, k := range l {
		for _, line := range lines {
			if strings.Contains(line, k.Mark) {
				return k.Name
			}
		}
	}
	return ""
}

// OnlyLibraries reports whether every error of the report is a library's: it has findings, each mentions a library, and none is unprinted.
// A report that could not be read fully must never be ignored; the caller knows that from the error of [ParseReport].
func (r *Report) OnlyLibraries() bool {
	for _, f := range r.Findings {
		if f.Library == "" {
			return false
		}
	}
	return len(r.Findings) > 0 && len(r.Findings) < MaxFindings && r.Unprinted == 0
}
