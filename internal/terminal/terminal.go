// Package terminal holds the one rule for which characters may be shown on a terminal, in a CI log or in a report. It must not depend on
// the kind of text: names, messages, the output of programs under test, and the contents of untrusted files.
//
// Letters, marks, digits, punctuation, symbols and spaces are shown as they are. Everything else is written as an escape: control
// characters, with which a text could move the cursor or set the window title or the clipboard; invisible characters and those that
// change the direction of writing; and bytes that are not characters.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Shown reports whether a character is shown as it is.
func Shown(r rune) bool {
	return ' ' <= r && r < 0x7f || r > 0x7f && unicode.IsGraphic(r)
}

// appendEscape writes a character that is not shown as \x1b or \u202e, or beyond these as a UTF-16 surrogate pair, as in JSON.
func appendEscape(b []byte, r rune) []byte {
	switch {
	case r < 0x20:
		return fmt.Appendf(b, `\x%02x`, r)
	case r < 0x10000:
		return fmt.Appendf(b, `\u%04x`, r)
	}
	high, low := utf16.EncodeRune(r)
	return fmt.Appendf(b, `\u%04x\u%04x`, high, low)
}

// appendText appends a text, in which the characters of keep are shown too. Bytes that are not UTF-8 are written as \xff.
func appendText(b []byte, s, keep string) []byte {
	for s != "" {
		n := plain(s)
		b, s = append(b, s[:n]...), s[n:]
		if s == "" {
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b = fmt.Appendf(b, `\x%02x`, s[0])
		case Shown(r) || strings.ContainsRune(keep, r):
			b = append(b, s[:n]...)
		default:
			b = appendEscape(b, r)
		}
		s = s[n:]
	}
	return b
}

// plain returns the length of the text's prefix of shown ASCII characters.
func plain(s string) int {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return i
		}
	}
	return len(s)
}

// Line returns a text as it may be shown within a line, shortened in the middle, where names differ least, to at most most characters. 0
// means no limit.
func Line(s string, most int) string {
	if most > 0 && len(s) > 8*most+8 { // skip the part that is cut anyway
		s = strings.ToValidUTF8(s[:4*most], "") + "…" + strings.ToValidUTF8(s[len(s)-4*most:], "")
	}
	if plain(s) != len(s) {
		s = string(appendText(nil, s, ""))
	}
	if most > 0 {
		s = clip(s, most)
	}
	return s
}

// clip shortens a text to n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	head := (n - 1) / 3
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}

// Lines returns a text of several lines, keeping line ends and tabs. Windows line ends become \n.
func Lines(s string) string {
	return string(appendLines(nil, s))
}

func appendLines(b []byte, s string) []byte {
	if strings.Contains(s, "\r\n") {
		s = strings.ReplaceAll(s, "\r\n", "\n")
	}
	return appendText(b, s, "\n\t")
}

// Writer passes on the text that is written to it as [Lines] shows it, wherever writes split it. Several goroutines may write.
type Writer struct {
	// To gets the text.
	To io.Writer

	mu sync.Mutex
	// rest is the start of a character or of a line's end that the last write cut, and text is scratch.
	rest, text []byte
}

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := p
	if len(w.rest) > 0 {
		in = append(w.rest, p...)
	}
	whole := len(in) - cut(in)
	err := w.pass(string(in[:whole]))
	w.rest = append([]byte(nil), in[whole:]...)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush passes on the incomplete rest of the last write.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := string(w.rest)
	w.rest = nil
	return w.pass(rest)
}

func (w *Writer) pass(s string) error {
	if s == "" {
		return nil
	}
	w.text = appendLines(w.text[:0], s)
	_, err := w.To.Write(w.text)
	return err
}

// cut returns how many bytes at the end may be the start of a character or of a line's end.
func cut(p []byte) int {
	if n := len(p); n > 0 && p[n-1] == '\r' {
		return 1
	}
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		if c := p[len(p)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			break
		}
	}
	return 0
}
