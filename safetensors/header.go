// Package safetensors reads and writes the safetensors file format: named arrays behind a JSON header that says where each lies.
// It must not depend on tensors or devices: it reads and writes little-endian bytes in row-major order with a dtype and a shape.
//
// The format (https://github.com/huggingface/safetensors, "Format"): eight bytes with the header's length N, little-endian; N bytes of
// JSON, an object from name to {dtype, shape, data_offsets} and at most one entry "__metadata__" from string to string; then the data,
// to which the offsets are relative. The arrays lie one after another and leave no gap.
//
// Files are untrusted: everything in the header is checked when a file is opened, and nothing is allocated that exceeds what the length
// of the file justifies. After that, reading fails only with errors of the file system.
package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// MaxHeader is the longest header in bytes that is read or written: the limit of the format's reference implementation.
const MaxHeader = 100_000_000

// maxDims bounds the dimensions of an array that is read, since a shape of zeros could have any length. PyTorch has the same bound.
const maxDims = 64

// metadataKey is the one name that no array may have.
const metadataKey = "__metadata__"

// Info describes one array of a file.
type Info struct {
	// Name is unique in its file. DType is the element type.
	Name  string
	DType dtype.DType
	// Shape holds the extents; a scalar has none.
	Shape []int

	offset, size int64
}

// Bytes returns the length of the array's data.
func (i Info) Bytes() int64 { return i.size }

// String returns the array's name, dtype and shape, such as "fc.weight float32[10 512]".
func (i Info) String() string { return fmt.Sprintf("%s %v%v", i.Name, i.DType, i.Shape) }

// formats pairs the format's names with dtypes. Complex types have none, and the format's 4- to 8-bit floats have no dtype here. The
// order is that of the reference implementation, which writes arrays of later types first.
var formats = []struct {
	name string
	d    dtype.DType
}{
	{"BOOL", dtype.Bool}, {"U8", dtype.Uint8}, {"I8", dtype.Int8}, {"I16", dtype.Int16}, {"U16", dtype.Uint16},
	{"F16", dtype.Float16}, {"BF16", dtype.BFloat16}, {"I32", dtype.Int32}, {"U32", dtype.Uint32}, {"F32", dtype.Float32},
	{"F64", dtype.Float64}, {"I64", dtype.Int64}, {"U64", dtype.Uint64},
}

// rank returns the index of d in formats, or -1.
func rank(d dtype.DType) int {
	for i, f := range formats {
		if f.d == d {
			return i
		}
	}
	return -1
}

// clip shortens long text of a file for a message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// quote writes text of a file for a message.
func quote(s string) string { return strconv.Quote(clip(s)) }

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, format, args...)
}

// checkedSize returns the bytes of an array, or an error if the shape cannot be one.
func checkedSize(name string, d dtype.DType, shape []int) (int64, error) {
	size := int64(d.Size())
	for _, n := range shape {
		if n < 0 {
			return 0, invalid("array %s has the negative extent %d in its shape %v", quote(name), n, shape)
		}
		if n > 0 && size > math.MaxInt64/int64(n) {
			return 0, invalid("array %s of shape %v is too large to be addressed", quote(name), shape)
		}
		size *= int64(n)
	}
	return size, nil
}

// parseHeader reads the JSON header of a file whose data section has the given length.
func parseHeader(text []byte, data int64) (infos []Info, metadata map[string]string, err error) {
	if !utf8.Valid(text) {
		return nil, nil, invalid("the header is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	seen := map[string]bool{}
	err = object(dec, func(name string) error {
		if seen[name] {
			return invalid("the header names %s twice", quote(name))
		}
		seen[name] = true
		if name == metadataKey {
			metadata, err = parseMetadata(dec)
			return err
		}
		info, err := parseInfo(dec, name)
		infos = append(infos, info)
		return err
	})
	if err != nil {
		return nil, nil, headerError(err)
	}
	if rest := strings.TrimRight(string(text[dec.InputOffset():]), " \t\r\n"); rest != "" {
		return nil, nil, invalid("the header goes on after its JSON object")
	}
	sort.Slice(infos, func(i, j int) bool {
		a, b := infos[i], infos[j]
		if a.offset != b.offset {
			return a.offset < b.offset
		}
		if a.size != b.size {
			return a.size < b.size
		}
		return a.Name < b.Name
	})
	at := int64(0)
	for _, i := range infos {
		switch {
		case i.offset < at:
			return nil, nil, invalid("array %s begins at %d, within the array before it, which ends at %d", quote(i.Name), i.offset, at)
		case i.offset > at:
			return nil, nil, invalid("array %s begins at %d and leaves a gap: the array before it ends at %d", quote(i.Name), i.offset, at)
		}
		at += i.size
	}
	if at != data {
		return nil, nil, invalid("the arrays end at %d, but the file holds %d bytes of data: it is cut short or has something behind it",
			at, data)
	}
	return infos, metadata, nil
}

// headerError rewords errors of the JSON decoder.
func headerError(err error) error {
	if fault.KindOf(err) != 0 {
		return err
	}
	return fault.Wrap(fault.Invalid, err, "the header is not JSON of the format's form")
}

// object reads one JSON object and calls f for each key; f reads the value.
func object(dec *json.Decoder, f func(key string) error) error {
	if err := delim(dec, '{'); err != nil {
		return err
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		if err := f(t.(string)); err != nil {
			return err
		}
	}
	return delim(dec, '}')
}

func delim(dec *json.Decoder, want json.Delim) error {
	t, err := dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("found %s where %v belongs", clip(fmt.Sprint(t)), want)
	}
	return nil
}

// parseMetadata reads the entry of metadataKey: strings by key, none twice.
func parseMetadata(dec *json.Decoder) (map[string]string, error) {
	m := map[string]string{}
	err := object(dec, func(key string) error {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		v, ok := t.(string)
		if _, twice := m[key]; twice || !ok {
			return invalid("metadata %s is not one string", quote(key))
		}
		m[key] = v
		return nil
	})
	return m, err
}

// parseInfo reads the entry of one array and checks it by itself.
func parseInfo(dec *json.Decoder, name string) (Info, error) {
	info := Info{Name: name, Shape: []int{}}
	var format string
	var offsets []int64
	had := map[string]bool{}
	err := object(dec, func(key string) error {
		if had[key] {
			return invalid("array %s has %s twice", quote(name), quote(key))
		}
		had[key] = true
		switch key {
		case "dtype":
			t, err := dec.Token()
			if err != nil {
				return err
			}
			s, ok := t.(string)
			if !ok {
				return invalid("array %s has a dtype that is not a string", quote(name))
			}
			format = s
			return nil
		case "shape":
			return integers(dec, name, key, func(n int64) error {
				if len(info.Shape) == maxDims {
					return invalid("array %s has more than %d dimensions", quote(name), maxDims)
				}
				if n > math.MaxInt {
					return invalid("array %s has the extent %d, too large for this platform", quote(name), n)
				}
				info.Shape = append(info.Shape, int(n))
				return nil
			})
		case "data_offsets":
			return integers(dec, name, key, func(n int64) error {
				if len(offsets) == 2 {
					return invalid("array %s has more than two data_offsets, a begin and an end", quote(name))
				}
				offsets = append(offsets, n)
				return nil
			})
		}
		return invalid("array %s has the unknown property %s", quote(name), quote(key))
	})
	if err != nil {
		return info, err
	}
	if len(had) != 3 {
		return info, invalid("array %s lacks one of dtype, shape and data_offsets", quote(name))
	}
	for _, f := range formats {
		if f.name == format {
			info.DType = f.d
		}
	}
	if !info.DType.Valid() {
		var known []string
		for _, f := range formats {
			known = append(known, f.name)
		}
		return info, fault.New(fault.Unsupported, "array %s has dtype %s; offered are %s", quote(name), quote(format),
			strings.Join(known, ", "))
	}
	if len(offsets) != 2 || offsets[0] > offsets[1] {
		return info, invalid("array %s has the data_offsets %v, not a begin and an end", quote(name), offsets)
	}
	info.offset, info.size = offsets[0], offsets[1]-offsets[0]
	need, err := checkedSize(name, info.DType, info.Shape)
	if err != nil {
		return info, err
	}
	if need != info.size {
		return info, invalid("array %s of dtype %v and shape %v needs %d bytes, but its data_offsets hold %d", quote(name), info.DType,
			info.Shape, need, info.size)
	}
	return info, nil
}

// integers reads a JSON array of integers from 0 to 2^63-1 and hands each to f.
func integers(dec *json.Decoder, name, key string, f func(int64) error) error {
	if err := delim(dec, '['); err != nil {
		return err
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		num, ok := t.(json.Number)
		n, err := num.Int64()
		if !ok || err != nil || n < 0 {
			return invalid("array %s has %s in %s, not an integer from 0 to 2^63-1", quote(name), clip(fmt.Sprint(t)), key)
		}
		if err := f(n); err != nil {
			return err
		}
	}
	return delim(dec, ']')
}
