//go:build unix

package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe stays one and gets what is written; once nobody reads it, the error is that of the file, whatever write makes of it.
func TestWritePipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Skip(err)
	}
	reader, err := os.OpenFile(name, os.O_RDWR, 0) // which waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	if err := Write("", name, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(name); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Fatalf("the pipe became %v, %v", info.Mode(), err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != "hello" {
		t.Errorf("the pipe holds %q, %v", got, err)
	}
	err = Write("", name, func(w io.Writer) error {
		reader.Close()
		_, err := w.Write(make([]byte, 1<<20))
		return errors.Join(errors.New("mine"), err)
	})
	if err == nil || err.Error() != "cannot write "+name+": broken pipe" {
		t.Errorf("got %v", err)
	}
}
