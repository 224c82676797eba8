package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// odd contains control sequences, characters that reverse or hide text, and invalid text.
const odd = "ok ünï 漢字 é 🙂\x1b]0;t\a\x1b[2J\u009b31m\x7f\u202eevil\u2066\u200b\u2028\ufeff\U000e0041\ufffe\xff\xfe\x00\b"

const oddShown = `ok ünï 漢字 é 🙂\x1b]0;t\x07\x1b[2J\u009b31m\u007f\u202eevil\u2066\u200b\u2028\ufeff\udb40\udc41\ufffe\xff\xfe\x00\x08`

func TestLine(t *testing.T) {
	if got := Line(odd, 0); got != oddShown {
		t.Errorf("%s\nwant\n%s", got, oddShown)
	}
	if got := Line("a\nb\tc\rd", 0); got != `a\x0ab\x09c\x0dd` {
		t.Error(got)
	}
	for _, n := range []int{1, 2, 9, 40} {
		for _, s := range []string{"", "short", odd, strings.Repeat(odd, 50), strings.Repeat("é", 5000), strings.Repeat("\x1b", 5000)} {
			if got := Line(s, n); utf8.RuneCountInString(got) > n || !utf8.ValidString(got) {
				t.Errorf("%d characters of %.20q are %q", n, s, got)
			}
		}
	}
	if got := Line("test_of_a_long_name_a", 10); got != "tes…name_a" {
		t.Error(got)
	}
}

// A Writer's output is the same wherever the writes split the text.
func TestWriterCut(t *testing.T) {
	text := odd + "\r\nnext\tline\n\rover \xe2\x80"
	want := oddShown + "\nnext\tline\n\\x0dover \\xe2\\x80"
	for at := range len(text) {
		var b bytes.Buffer
		w := Writer{To: &b}
		for _, part := range []string{text[:at], text[at:]} {
			if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := w.Flush(); err != nil || b.String() != want {
			t.Errorf("cut at %d: %s\nwant\n%s, %v", at, b.String(), want, err)
		}
	}
	if got := Lines(text); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// JSON keeps its value.
func TestJSONStays(t *testing.T) {
	in, err := json.Marshal(odd)
	if err != nil {
		t.Fatal(err)
	}
	var want, got string
	if err := errors.Join(json.Unmarshal(in, &want), json.Unmarshal([]byte(Lines(string(in))), &got)); err != nil || got != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestWriterFails(t *testing.T) {
	w := Writer{To: broken{}}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("no error")
	}
}

// FuzzWriter: the output has only characters that may be shown, and shown text is unchanged.
func FuzzWriter(f *testing.F) {
	f.Add([]byte(odd), 3)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		var b bytes.Buffer
		w := Writer{To: &b}
		at = min(max(at, 0), len(text))
		_, err1 := w.Write(text[:at])
		_, err2 := w.Write(text[at:])
		if err := errors.Join(err1, err2, w.Flush()); err != nil {
			t.Fatal(err)
		}
		clean := true
		for _, r := range b.String() {
			if !Shown(r) && r != '\n' && r != '\t' || r == utf8.RuneError && !bytes.Contains(text, []byte("\ufffd")) {
				t.Fatalf("%q became %q", text, b.String())
			}
		}
		for _, r := range string(text) {
			clean = clean && (Shown(r) && r != utf8.RuneError || r == '\n' || r == '\t')
		}
		if clean && b.String() != string(text) {
			t.Fatalf("%q became %q", text, b.String())
		}
	})
}
