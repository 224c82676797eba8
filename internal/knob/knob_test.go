package knob

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/knobs.md instead of comparing with it")

// withOwn gives the test an empty registry.
func withOwn(t *testing.T) {
	old := registered
	registered = nil
	t.Cleanup(func() { registered = old })
}

func TestPage(t *testing.T) {
	const page = "../../docs/knobs.md"
	if *rewrite {
		if err := os.MkdirAll("../../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(page, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
		t.Errorf("%s is stale: run go generate ./internal/knob", page)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range registered {
		if seen[k.name] {
			t.Errorf("%s is registered twice", k.name)
		}
		seen[k.name] = true
		if !strings.HasSuffix(k.doc, ".") || strings.ContainsAny(k.doc, "\n|") {
			t.Errorf("%s: the meaning must be whole sentences on one line, without |", k.name)
		}
	}
}

func TestBool(t *testing.T) {
	withOwn(t)
	k := newBool("TENON_TEST_BOOL", true, "Test.")
	for v, want := range map[string]bool{"": true, "0": false, "1": true, "false": false, "maybe": true} {
		t.Setenv(k.Name(), v)
		if got := k.Get(); got != want {
			t.Errorf("%q gives %v, want %v", v, got, want)
		}
	}
}

func TestText(t *testing.T) {
	withOwn(t)
	k := newText("TENON_TEST_TEXT", "a", "Test.")
	for v, want := range map[string]string{"": "a", "b": "b"} {
		t.Setenv(k.Name(), v)
		if got := k.Get(); got != want {
			t.Errorf("%q gives %q, want %q", v, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	withOwn(t)
	k := newCount("TENON_TEST_COUNT", 2, 1, 4, "Test.")
	for v, want := range map[string]int{"": 2, "1": 1, "4": 4, "0": 2, "5": 2, "-1": 2, "x": 2} {
		t.Setenv(k.Name(), v)
		if got := k.Get(); got != want {
			t.Errorf("%q gives %d, want %d", v, got, want)
		}
		if err := Check(); (err != nil) != (v != "" && v != "1" && v != "4") {
			t.Errorf("%q: %v", v, err)
		}
	}
	t.Setenv(k.Name(), "x")
	if err := Check(); err == nil || !strings.Contains(err.Error(), "from 1 to 4") {
		t.Errorf("a letter: %v", err)
	}
}

func TestChoice(t *testing.T) {
	withOwn(t)
	k := newChoice("TENON_TEST_CHOICE", "Test.", "on", "off")
	for v, want := range map[string]string{"": "on", "on": "on", "off": "off", "Off": "on"} {
		t.Setenv(k.Name(), v)
		if got := k.Get(); got != want {
			t.Errorf("%q gives %q, want %q", v, got, want)
		}
	}
	t.Setenv(k.Name(), "Off")
	if err := Check(); err == nil || !strings.Contains(err.Error(), "one of on, off") {
		t.Errorf("another word: %v", err)
	}
}

func TestCheck(t *testing.T) {
	withOwn(t)
	b := newBool("TENON_TEST_BOOL", false, "Test.")
	c := newBool("TENON_TEST_OTHER", true, "Test.")
	newText("TENON_TEST_TEXT", "", "Test.")
	if err := Check(); err != nil {
		t.Errorf("nothing set: %v", err)
	}
	t.Setenv(b.Name(), "1")
	t.Setenv(c.Name(), "0")
	t.Setenv("TENON_TEST_TEXT", "anything")
	if err := Check(); err != nil {
		t.Errorf("all well-formed: %v", err)
	}
	t.Setenv(b.Name(), "maybe")
	t.Setenv(c.Name(), "12")
	err := Check()
	if err == nil {
		t.Fatal("two malformed values were accepted")
	}
	for _, want := range []string{b.Name(), "maybe", c.Name(), "12", "1 or 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestSettings(t *testing.T) {
	withOwn(t)
	newText("TENON_TEST_TEXT", "", "Test.")
	newText("OTHER_TEST_TEXT", "", "Test.")
	t.Setenv("TENON_TEST_TEXT", "a=b")
	t.Setenv("OTHER_TEST_TEXT", "c")
	t.Setenv("TENON_TSET_TEXT", "d")
	t.Setenv("TENON_TEST_EMPTY", "")
	t.Setenv("FOREIGN_TEST_TEXT", "e")
	var got []Setting
	for _, s := range Settings() {
		if strings.Contains(s.Name, "_TEST_") || strings.Contains(s.Name, "_TSET_") {
			got = append(got, s)
		}
	}
	want := []Setting{{"OTHER_TEST_TEXT", "c", true}, {"TENON_TEST_TEXT", "a=b", true}, {"TENON_TSET_TEXT", "d", false}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
