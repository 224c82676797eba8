//go:build unix

package memcheck

import (
	"io"
	"os"
	"testing"
)

// A file loses its name at once, and is deleted when its last user closes it.
func TestOpenUnlinked(t *testing.T) {
	name := t.TempDir() + "/named"
	f, err := openUnlinked(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); !os.IsNotExist(err) {
		t.Errorf("the name is left: %v", err)
	}
	if _, err := f.WriteString("text"); err != nil {
		t.Error(err)
	}
	if text, err := io.ReadAll(io.NewSectionReader(f, 0, 10)); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if err := closeUnlinked(f); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openUnlinked(name); err == nil {
		t.Error("a file that is there was taken")
	}
}
