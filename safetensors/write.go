package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"tenon.dev/fault"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/wholefile"
)

// Write writes a file of the described arrays to w. It asks data once for the bytes of each, in the order of the file, so that only one
// needs to be in memory. The same arrays and metadata give the same bytes, which equal those of the reference implementation: wider types
// come first, which aligns every array to its element, then names in byte order, and spaces pad the header to a multiple of eight.
func Write(w io.Writer, metadata map[string]string, arrays []Info, data func(Info) ([]byte, error)) (err error) {
	defer origin.Located("safetensors.Write", &err)
	if w == nil || data == nil && len(arrays) > 0 {
		return invalid("the writer or the function that gives the data is nil; give both")
	}
	arrays, header, err := layOut(metadata, arrays)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 1<<16)
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(len(header)))
	if _, err := b.Write(prefix[:]); err != nil {
		return writeError(err)
	}
	if _, err := b.Write(header); err != nil {
		return writeError(err)
	}
	for _, a := range arrays {
		bytes, err := data(a)
		if err != nil {
			return err
		}
		if int64(len(bytes)) != a.size {
			return invalid("array %v needs %d bytes, but its data are %d", a, a.size, len(bytes))
		}
		if _, err := b.Write(bytes); err != nil {
			return writeError(err)
		}
	}
	if err := b.Flush(); err != nil {
		return writeError(err)
	}
	return nil
}

func writeError(err error) error { return fault.Wrap(fault.System, err, "cannot write") }

// Save writes the named file as Write does. Until it is complete it has another name in the same folder, so that a failure leaves an
// older file of that name as it was.
func Save(name string, metadata map[string]string, arrays []Info, data func(Info) ([]byte, error)) (err error) {
	defer origin.Located("safetensors.Save", &err)
	return wholefile.Write("safetensors", name, func(w io.Writer) error { return Write(w, metadata, arrays, data) })
}

// layOut checks the arrays and metadata, orders and places the arrays, and returns them with the header.
func layOut(metadata map[string]string, arrays []Info) ([]Info, []byte, error) {
	arrays = slices.Clone(arrays)
	slices.SortFunc(arrays, func(a, b Info) int {
		if d := rank(b.DType) - rank(a.DType); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	var header bytes.Buffer
	header.WriteByte('{')
	if len(metadata) > 0 {
		for _, k := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(k) || !utf8.ValidString(metadata[k]) {
				return nil, nil, invalid("metadata %q is not UTF-8", k)
			}
		}
		if err := entry(&header, metadataKey, metadata); err != nil {
			return nil, nil, err
		}
	}
	at := int64(0)
	names := map[string]bool{}
	for i := range arrays {
		a := &arrays[i]
		format := rank(a.DType)
		switch {
		case format < 0:
			return nil, nil, fault.New(fault.Unsupported, "array %q has dtype %v, which the format lacks (store a complex "+
				"array as a real one with a last dimension of 2)", a.Name, a.DType)
		case a.Name == metadataKey:
			return nil, nil, invalid("an array may not be named %q", metadataKey)
		case !utf8.ValidString(a.Name):
			return nil, nil, invalid("the array name %q is not UTF-8", a.Name)
		case names[a.Name]:
			return nil, nil, invalid("two arrays are named %q", a.Name)
		}
		names[a.Name] = true
		size, err := checkedSize(a.Name, a.DType, a.Shape)
		if err != nil {
			return nil, nil, err
		}
		if at+size < at {
			return nil, nil, invalid("the arrays together are too large to be addressed")
		}
		a.offset, a.size = at, size
		at += size
		err = entry(&header, a.Name, struct {
			DType   string   `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{formats[format].name, append([]int{}, a.Shape...), [2]int64{a.offset, at}})
		if err != nil {
			return nil, nil, err
		}
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	if header.Len() > MaxHeader {
		return nil, nil, invalid("the header would have %d bytes, the limit is %d", header.Len(), MaxHeader)
	}
	return arrays, header.Bytes(), nil
}

// entry appends one member of the header's object.
func entry(header *bytes.Buffer, key string, value any) error {
	if header.Len() > 1 {
		header.WriteByte(',')
	}
	enc := json.NewEncoder(header)
	enc.SetEscapeHTML(false)
	for i, v := range []any{key, value} {
		if i > 0 {
			header.WriteByte(':')
		}
		if err := enc.Encode(v); err != nil {
			return fault.Wrap(fault.Invalid, err, "cannot encode the header's entry %q", key)
		}
		header.Truncate(header.Len() - 1) // Encode ends with a line end
	}
	return nil
}
