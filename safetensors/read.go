package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/filetype"
	"tenon.dev/internal/origin"
)

// File is an opened file. Its methods are safe for concurrent use, as far as its io.ReaderAt is; Close is not.
type File struct {
	r        io.ReaderAt
	closer   io.Closer
	data     int64
	infos    []Info
	index    map[string]int
	metadata map[string]string
}

// Open opens the named file and checks its header. The caller closes it.
func Open(name string) (opened *File, err error) {
	defer origin.Located("safetensors.Open", &err)
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "the file cannot be opened")
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fault.Wrap(fault.System, err, "cannot find the length of %s", name)
	}
	s, err := New(f, st.Size())
	if err != nil {
		_ = f.Close()
		return nil, fault.Wrap(fault.KindOf(err), err, "cannot read %s", name)
	}
	s.closer = f
	return s, nil
}

// New opens the file in the first size bytes of r and checks its header. It reads no data yet.
func New(r io.ReaderAt, size int64) (opened *File, err error) {
	defer origin.Located("safetensors.New", &err)
	if r == nil {
		return nil, invalid("the reader is nil; give it one")
	}
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, foreign(r, size, fmt.Sprintf("%d bytes are too few for a safetensors file", size))
	}
	if err := readAt(r, prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if torchFile(r, prefix) || n > MaxHeader {
		return nil, foreign(r, size, fmt.Sprintf("the header claims %d bytes, the limit is %d: this is hardly a file of this format", n,
			MaxHeader))
	}
	if n > uint64(size)-8 {
		return nil, invalid("the header claims %d bytes, but only %d follow: the file is cut short; save or download it again", n, size-8)
	}
	text := make([]byte, n)
	if err := readAt(r, text, 8); err != nil {
		return nil, err
	}
	f := &File{r: r, data: 8 + int64(n), index: map[string]int{}}
	if f.infos, f.metadata, err = parseHeader(text, size-f.data); err != nil {
		return nil, err
	}
	for i, info := range f.infos {
		f.index[info.Name] = i
	}
	return f, nil
}

// foreign returns the error for a file of another format: what it is, if that can be told, or else text.
func foreign(r io.ReaderAt, size int64, text string) error {
	head := make([]byte, max(0, min(size, filetype.Head)))
	if err := readAt(r, head, 0); err != nil {
		return err
	}
	if is := filetype.Guess(head); is != "" {
		return invalid("this is not a safetensors file: it is %s", is)
	}
	return invalid("%s", text)
}

// torchFile reports whether a file begins with the prefix of a zip archive or of the older format of .pt files, and not, by chance, with a
// length before a header.
func torchFile(r io.ReaderAt, prefix [8]byte) bool {
	switch string(prefix[:4]) {
	case filetype.Zip, filetype.OldTorch:
		var next [1]byte
		return readAt(r, next[:], 8) != nil || next[0] != '{'
	}
	return false
}

// readAt fills dst from r at the offset.
func readAt(r io.ReaderAt, dst []byte, offset int64) error {
	n, err := r.ReadAt(dst, offset)
	if n == len(dst) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fault.Wrap(fault.System, err, "cannot read %d bytes at offset %d", len(dst), offset)
}

// Close closes the file, if Open opened it.
func (f *File) Close() error {
	if f == nil || f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Infos returns the arrays in the order of their data.
func (f *File) Infos() []Info {
	if f == nil {
		return nil
	}
	return slices.Clone(f.infos)
}

// Metadata returns the header's free strings by key; empty if there are none.
func (f *File) Metadata() map[string]string {
	if f == nil {
		return nil
	}
	return maps.Clone(f.metadata)
}

// Lookup returns the array with that name, or an error if the file does not hold it.
func (f *File) Lookup(name string) (found Info, err error) {
	defer origin.Located("safetensors.File.Lookup", &err)
	if f == nil || f.r == nil {
		return Info{}, invalid("the file is nil or a zero value; use one that Open or New returned")
	}
	i, ok := f.index[name]
	if !ok {
		return Info{}, invalid("the file holds no array %q", name)
	}
	return f.infos[i], nil
}

// ReadInto fills dst with the data of the named array; dst has exactly its Bytes.
func (f *File) ReadInto(dst []byte, name string) (err error) {
	defer origin.Located("safetensors.File.ReadInto", &err)
	info, err := f.Lookup(name)
	if err != nil {
		return err
	}
	if int64(len(dst)) != info.size {
		return invalid("array %q has %d bytes, the buffer for it %d", name, info.size, len(dst))
	}
	return readAt(f.r, dst, f.data+info.offset)
}

// Read returns the data of the named array in a new slice.
func (f *File) Read(name string) (b []byte, err error) {
	defer origin.Located("safetensors.File.Read", &err)
	info, err := f.Lookup(name)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, info.size)
	return dst, f.ReadInto(dst, name)
}
