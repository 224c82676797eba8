// Package wholefile writes files that are there whole or not at all.
// It may not know what is in them.
package wholefile

import (
	"io"
	"os"
	"path/filepath"

	"tenon.dev/fault"
)

// Write makes the named file of what write writes. Until that is complete the file has another name in the same folder, so that a failure leaves an older
// file of that name as it was. An error of write is returned as it is; one of the system begins with who, the package that the file is of.
func Write(who, name string, write func(w io.Writer) error) error {
	failed := func(err error) error { return fault.Wrap(fault.System, err, "%s: cannot write", who) }
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".partial-*")
	if err != nil {
		return failed(err)
	}
	saved := false
	defer func() { // when write panics too
		if !saved {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	for _, finish := range []func() error{
		func() error { return f.Chmod(0o644) }, f.Sync, f.Close, func() error { return os.Rename(f.Name(), name) },
	} {
		if err := finish(); err != nil {
			return failed(err)
		}
	}
	saved = true
	return nil
}
