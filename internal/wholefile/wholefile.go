// Package wholefile writes files that appear whole or not at all.
// It must not depend on what is in them.
package wholefile

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tenon.dev/fault"
)

// Write makes the named file, with the content that write writes. Until that is complete the file has another name in the same folder, so
// that a failure leaves an older file of that name as it was. Where the name is a link, the file that it leads to is replaced; a device or
// a pipe is written to as it is. An error of write is returned as it is; one of the system names the file and begins with who, where that
// is not "".
func Write(who, name string, write func(w io.Writer) error) error {
	target := name
	if real, err := filepath.EvalSymlinks(name); err == nil {
		target = real
	}
	open := func() (*os.File, error) {
		return os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".partial-*")
	}
	whole := true
	switch info, err := os.Stat(target); {
	case err != nil: // a new file, or one that cannot be made either
	case info.IsDir():
		return failed(who, name, errors.New("it is a folder; name a file"))
	case !info.Mode().IsRegular():
		whole = false
		open = func() (*os.File, error) { return os.OpenFile(target, os.O_WRONLY, 0) }
	}
	f, err := open()
	if err != nil {
		return failed(who, name, err)
	}
	saved := false
	defer func() { // when write panics too
		if !saved {
			_ = f.Close()
			if whole {
				_ = os.Remove(f.Name())
			}
		}
	}()
	b := bufio.NewWriterSize(f, 1<<16)
	err = write(b)
	if lost := b.Flush(); lost != nil { // write's error too is then that of the file
		return failed(who, name, lost)
	}
	if err != nil {
		return err
	}
	finish := []func() error{f.Close}
	if whole {
		finish = []func() error{
			func() error { return f.Chmod(0o644) }, f.Sync, f.Close, func() error { return os.Rename(f.Name(), target) }}
	}
	for _, step := range finish {
		if err := step(); err != nil {
			return failed(who, name, err)
		}
	}
	saved = true
	return nil
}

// failed is an error of the system, which names the file that is asked for and not the one that is written meanwhile.
func failed(who, name string, err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	}
	if who != "" {
		who += ": "
	}
	return fault.Wrap(fault.System, err, "%scannot write %s", who, name)
}
