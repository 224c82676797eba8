package memviz

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// Options are the options of Open and Import.
type Options struct {
	// Cache is the folder for column files, with which a snapshot that was opened before opens immediately. "" means a folder in the
	// user's cache directory. Files of less than 16 MiB are not kept there, since reading them again is just as quick.
	Cache string
	// NoCache keeps no column file.
	NoCache bool
	// Progress, if not nil, is called now and then with the number of bytes read; total is 0 if unknown.
	Progress func(read, total int64)
}

const (
	// keptFrom is the file size from which a column file is kept, keptFromPacked that of compressed files, which shrink to a thirtieth.
	keptFrom       = 16 << 20
	keptFromPacked = keptFrom / 32
	// forgetAfter is the time after which another import removes an unused column file.
	forgetAfter = 30 * 24 * time.Hour
)

// Open opens a snapshot file, a pickle as torch.cuda.memory._dump_snapshot or Tenon's DumpSnapshot writes it, plain or compressed with
// gzip. "-" is standard input.
func Open(path string, opts ...Options) (*Recording, error) {
	o, err := only("Open", opts)
	if err != nil {
		return nil, err
	}
	if path == "-" {
		return Import(os.Stdin, "standard input", o)
	}
	f, err := os.Open(path)
	if err != nil {
		var known *fs.PathError
		if errors.As(err, &known) {
			err = known.Err // the error without the path, which is already named
		}
		return nil, fault.Wrap(fault.Invalid, err, "cannot open the snapshot %s", path)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot open the snapshot")
	}
	if st.IsDir() {
		return nil, fault.New(fault.Invalid, "cannot open the snapshot %s: it is a folder; name a file", path)
	}
	if !large(f, st.Size()) || o.NoCache {
		return importFile(f, path, st.Size(), o)
	}
	src, err := identify(f, st)
	if err != nil {
		return nil, err
	}
	kept, err := columnPath(path, o.Cache)
	if err != nil {
		return importFile(f, path, st.Size(), o)
	}
	if rec := reopen(kept, path, src); rec != nil {
		return rec, nil
	}
	return importTo(kept, f, path, src, o)
}

// large reports whether the column file of a snapshot is worth keeping.
func large(f io.ReaderAt, size int64) bool {
	var b [2]byte
	_, err := f.ReadAt(b[:], 0)
	return size >= keptFrom || err == nil && b == [2]byte{0x1f, 0x8b} && size >= keptFromPacked
}

// Import reads a snapshot of unknown length; name stands for it in messages.
func Import(r io.Reader, name string, opts ...Options) (*Recording, error) {
	o, err := only("Import", opts)
	if err != nil {
		return nil, err
	}
	return importStream(r, name, 0, true, o)
}

// identify returns the source that a column file of this snapshot must name.
func identify(f *os.File, st os.FileInfo) (source, error) {
	b := make([]byte, 128<<10)
	n := min(int64(len(b)/2), st.Size())
	_, err := f.ReadAt(b[:n], 0)
	if err == nil {
		_, err = f.ReadAt(b[len(b)/2:][:n], st.Size()-n)
	}
	if err != nil {
		return source{}, fault.Wrap(fault.System, err, "reading %s", f.Name())
	}
	return source{Size: st.Size(), ModTime: st.ModTime().UnixNano(), CRC: crc32.Checksum(b, castagnoli)}, nil
}

// columnPath returns the path at which the column file of a snapshot is kept.
func columnPath(path, folder string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if folder == "" {
		if folder, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		folder = filepath.Join(folder, "tenon", "memviz")
	}
	sum := sha256.Sum256([]byte(full))
	return filepath.Join(folder, filepath.Base(path)+"-"+hex.EncodeToString(sum[:6])+".columns"), nil
}

// reopen opens a kept column file if it exists, is valid and comes from this source.
func reopen(kept, name string, src source) *Recording {
	f, err := os.Open(kept)
	if err != nil {
		return nil
	}
	rec, err := openColumns(f, name)
	if err != nil || rec.columns.dir.Source != src {
		f.Close()
		return nil
	}
	now := time.Now()
	os.Chtimes(kept, now, now) // marks it as used; a failure does no harm
	return rec
}

// openColumns loads a column file, which the recording then owns.
func openColumns(f *os.File, name string) (*Recording, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "the column file cannot be opened")
	}
	rec, err := load(name, f, st.Size())
	if err != nil {
		return nil, err
	}
	rec.close = f.Close
	return rec, nil
}

// importTo reads a snapshot, keeps its column file and opens that. A column file that cannot be kept is used this once.
func importTo(kept string, f *os.File, name string, src source, o Options) (*Recording, error) {
	folder := filepath.Dir(kept)
	if os.MkdirAll(folder, 0o700) != nil {
		return importFile(f, name, src.Size, o)
	}
	forget(folder)
	out, err := os.CreateTemp(folder, "import-*.partial")
	if err != nil {
		return importFile(f, name, src.Size, o)
	}
	if err := importSnapshot(reader(f, src.Size, o), out, src); err != nil {
		return nil, errors.Join(refused(name, err), out.Close(), os.Remove(out.Name()))
	}
	at := out.Name()
	if err := out.Close(); err != nil {
		return nil, fault.Wrap(fault.System, err, "the column file cannot be written")
	}
	if os.Rename(at, kept) == nil {
		at = kept
	} // else another viewer has the old one open on a system that then forbids replacing it; use this one once
	if out, err = os.Open(at); err != nil {
		return nil, fault.Wrap(fault.System, err, "the column file cannot be opened")
	}
	rec, err := openColumns(out, name)
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if at != kept {
		rec.close = func() error { return errors.Join(out.Close(), os.Remove(at)) }
	}
	return rec, nil
}

// forget removes column files that have not been used for long, and the remains of interrupted imports.
func forget(folder string) {
	list, _ := os.ReadDir(folder)
	for _, e := range list {
		if i, err := e.Info(); err == nil && e.Type().IsRegular() && time.Since(i.ModTime()) > forgetAfter {
			os.Remove(filepath.Join(folder, e.Name()))
		}
	}
}

// reader is snapshot.Read of r with progress.
func reader(r io.Reader, total int64, o Options) func(snapshot.ReadOptions) (*snapshot.Snapshot, error) {
	return func(ro snapshot.ReadOptions) (*snapshot.Snapshot, error) {
		if o.Progress != nil {
			ro.Progress = func(read int64) { o.Progress(read, total) }
		}
		return snapshot.Read(r, ro)
	}
}

// importFile reads a snapshot without keeping a column file.
func importFile(f *os.File, name string, size int64, o Options) (*Recording, error) {
	return importStream(f, name, size, large(f, size), o)
}

// importStream reads a snapshot into memory, or into a temporary file if it may be large. total is for the progress.
func importStream(r io.Reader, name string, total int64, large bool, o Options) (*Recording, error) {
	read := reader(r, total, o)
	if !large {
		var b bytes.Buffer
		if err := importSnapshot(read, &b, source{}); err != nil {
			return nil, refused(name, err)
		}
		return load(name, bytes.NewReader(b.Bytes()), int64(b.Len()))
	}
	f, err := os.CreateTemp("", "tenon-memviz-*.columns")
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "no room for a temporary file")
	}
	remove := func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	if err := importSnapshot(read, f, source{}); err != nil {
		return nil, errors.Join(refused(name, err), remove())
	}
	rec, err := openColumns(f, name)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	rec.close = remove
	return rec, nil
}

// refused adds the file's name to an error of reading it.
func refused(name string, err error) error {
	return fault.Wrap(fault.Invalid, err, "reading %s", name)
}

// only returns the options of a function, which takes them once or not at all.
func only[T any](name string, opts []T) (opt T, err error) {
	if len(opts) > 1 {
		return opt, fault.New(fault.Invalid, "%s: options are given %d times; give one %T", name, len(opts), opt)
	}
	if len(opts) == 1 {
		opt = opts[0]
	}
	return opt, nil
}
