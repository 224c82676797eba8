package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
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
	for bad, why := range map[string]string{filepath.Join(dir, "absent", "file"): "no such file or directory",
		dir: "it is a folder; name a file"} {
		if err := Write("test", bad, text("x")); err == nil || err.Error() != "test: cannot write "+bad+": "+why {
			t.Errorf("got %v", err)
		}
	}
	if err := Write("", dir, text("x")); err == nil || !strings.HasPrefix(err.Error(), "cannot write "+dir) {
		t.Errorf("got %v", err)
	}
}

// A link goes on leading to the file that it led to.
func TestWriteLink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a right there")
	}
	dir := t.TempDir()
	name, link := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "link")
	hello := func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }
	if err := errors.Join(os.WriteFile(name, []byte("old"), 0o600), os.Symlink(name, link), Write("test", link, hello)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); string(b) != "hello" || err != nil {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if to, err := os.Readlink(link); to != name || err != nil {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}
