package recorded

import (
	"compress/gzip"
	"io"
	"os"

	"tenon.dev/fault"
)

// File returns the content of a gzip-compressed file.
func File(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot open recorded data")
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "cannot read %s", name)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "cannot read %s", name)
	}
	return b, nil
}
