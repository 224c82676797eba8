package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	text := func(s string) func(w io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		}
	}
	holds := func(want string) {
		t.Helper()
		b, err := os.ReadFile(name)
		left, _ := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || string(b) != want || len(left) != 1 {
			t.Errorf("%q, %v, in a folder with %v; want %q", b, err, left, want)
		}
	}
	for _, s := range []string{"old", "new"} {
		if err := Write("test", name, text(s)); err != nil {
			t.Fatal(err)
		}
		holds(s)
	}
	mine := errors.New("mine")
	if err := Write("test", name, func(io.Writer) error { return mine }); err != mine {
		t.Errorf("got %v", err)
	}
	holds("new")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic was swallowed")
			}
		}()
		_ = Write("test", name, func(io.Writer) error { panic("mine") })
	}()
	holds("new")
	for _, bad := range []string{filepath.Join(dir, "absent", "file"), dir} {
		if err := Write("test", bad, text("x")); err == nil || !strings.HasPrefix(err.Error(), "test: cannot write") {
			t.Errorf("got %v", err)
		}
	}
}
