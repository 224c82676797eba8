//go:build unix

package memcheck

import (
	"os"
	"testing"
)

// Where a file cannot be made without a name, it loses its name.
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
	if text, err := fileTail(f); err != nil || text != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if err := closeOutput(f); err != nil {
		t.Error(err)
	}
	if _, err := fileTail(f); err == nil {
		t.Error("a closed file was read")
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openUnlinked(name); err == nil {
		t.Error("a file that is there was taken")
	}
}
