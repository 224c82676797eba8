package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"tenon.dev/fault"
	"tenon.dev/internal/wholefile"
)

// input is a file that a command reads. Closing it leaves standard input open.
type input struct{ *os.File }

// Close implements [io.Closer].
func (in input) Close() error {
	if in.File == os.Stdin {
		return nil
	}
	return in.File.Close()
}

// openInput opens a file, or standard input for "-"; what names it in errors: "snapshot".
func openInput(what, path string) (input, error) {
	if path == "-" {
		return input{os.Stdin}, nil
	}
	f, err := os.Open(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.IsDir() {
			err = fault.New(fault.Invalid, "it is a folder; name a file")
		}
		if err == nil {
			return input{f}, nil
		}
		_ = f.Close()
	}
	var known *fs.PathError
	if errors.As(err, &known) {
		err = known.Err // the error without the path, which is already named
	}
	return input{}, fault.Wrap(fault.Invalid, err, "cannot open the %s %s", what, path)
}

// writeOutput writes a file completely or not at all; "-" stands for out.
func writeOutput(path string, out io.Writer, write func(io.Writer) error) error {
	if path == "-" {
		return write(out)
	}
	return wholefile.Write("", path, write)
}
