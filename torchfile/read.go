package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"path"
	"strings"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/filetype"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/pickle"
)

// File is an open file. Its values may be used after Close, its tensors not. It is safe for concurrent use.
type File struct {
	in     io.ReaderAt
	root   any
	closer io.Closer
}

// legacyMagic begins files of PyTorch before 1.6.
const legacyMagic = "119547037146038801333356"

func refuse(format string, args ...any) error {
	return fault.New(fault.Invalid, format, args...)
}

// Open opens the named file, in the format of PyTorch since 1.6 (a zip archive) or the one before, with the default Limits.
func Open(name string) (opened *File, err error) {
	defer origin.Located("torchfile.Open", &err)
	return Limits{}.Open(name)
}

// New reads a file of size bytes from in, which must stay open as long as tensors are read.
func New(in io.ReaderAt, size int64) (opened *File, err error) {
	defer origin.Located("torchfile.New", &err)
	return Limits{}.New(in, size)
}

// Close closes a file that Open opened.
func (f *File) Close() error {
	if f == nil || f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Root returns the value that was saved.
func (f *File) Root() any {
	if f == nil {
		core.Fail("Root", fault.Invalid, "the file is nil; look at the error of the function that was to open it")
	}
	return f.root
}

// entries of an archive that say how it was written.
const maxEntry = 64

func (f *File) readZip(size int64, limits *budget) error {
	z, err := zip.NewReader(f.in, size)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the archive is broken or cut short; save or download it again")
	}
	var data *zip.File
	entries := map[string]*zip.File{}
	for _, e := range z.File {
		entries[e.Name] = e
		if path.Base(e.Name) == "data.pkl" && strings.Count(e.Name, "/") <= 1 {
			data = e
		}
	}
	if data == nil {
		return refuse("the archive has no data.pkl, which every .pt file has")
	}
	prefix := strings.TrimSuffix(data.Name, "data.pkl")
	if e := entries[prefix+"constants.pkl"]; e != nil {
		return fault.New(fault.Unsupported, "the file is a TorchScript program; save the state_dict of its module instead")
	}
	if e := entries[prefix+"byteorder"]; e != nil {
		r, err := e.Open()
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "the archive's byteorder is broken")
		}
		text, err := io.ReadAll(io.LimitReader(r, maxEntry))
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "the archive's byteorder is broken")
		}
		if string(text) != "little" {
			return fault.New(fault.Unsupported, "the bytes of its numbers are in the order %q; only little can be read", text)
		}
	}
	storages := map[string]*storage{}
	find := func(key string, n int64) (*storage, error) {
		if s := storages[key]; s != nil {
			return s, nil
		}
		e := entries[prefix+"data/"+key]
		if e == nil {
			return nil, refuse("the archive lacks the data of storage %s", quote(key))
		}
		if e.Method != zip.Store {
			return nil, fault.New(fault.Unsupported, "storage %s is compressed, which no .pt file is; unpack the archive and "+
				"pack it without compression", quote(key))
		}
		at, err := e.DataOffset()
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "storage %s is broken", quote(key))
		}
		s := &storage{key: key, at: at, n: int64(e.UncompressedSize64)}
		if s.n < 0 || at < 0 || s.n > size-at || s.n < n {
			return nil, refuse("storage %s has %d bytes, of which the file holds %d; the file says that it has %d",
				quote(key), s.n, size-at, n)
		}
		storages[key] = s
		return s, nil
	}
	r, err := data.Open()
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the archive's data.pkl is broken")
	}
	defer r.Close()
	p, err := limits.read(r)
	if err != nil {
		return err
	}
	f.root, err = newBuilder(p, limits, find).root()
	return err
}

// foreign returns the error for a file of another format: what it is, if that can be told, or else text.
func (f *File) foreign(size int64, text string) error {
	head := make([]byte, max(0, min(size, filetype.Head)))
	if _, err := f.in.ReadAt(head, 0); err != nil && err != io.EOF {
		return fault.Wrap(fault.System, err, "cannot read")
	}
	is := filetype.Guess(head)
	if is == "" || bytes.HasPrefix(head, []byte(filetype.OldTorch)) {
		return refuse("%s", text)
	}
	return refuse("the file is neither an archive nor a pickle, as .pt files are: it is %s", is)
}

// readLegacy reads the format before PyTorch 1.6: a magic number, a version, facts about the machine, the value and the keys of its
// storages, a pickle each; then the storages, each with its number of elements.
func (f *File) readLegacy(size int64, limits *budget) error {
	at := int64(0)
	next := func() (*pickle.Data, error) {
		d, err := limits.read(io.NewSectionReader(f.in, at, size-at))
		if err == nil {
			at += d.Size()
		}
		return d, err
	}
	magic, err := next()
	if err != nil {
		return f.foreign(size, "the file is neither an archive nor a pickle, as .pt files are")
	}
	if n, ok := magic.Big(magic.Root()); !ok || n.String() != legacyMagic {
		return f.foreign(size, "the file is a pickle, but no .pt file; what that begins with is not there")
	}
	for _, what := range []string{"version", "machine"} {
		d, err := next()
		if err != nil {
			return err
		}
		if what == "machine" {
			if little, ok := d.Get(d.Root(), "little_endian"); ok {
				if b, ok := d.Bool(little); ok && !b {
					return fault.New(fault.Unsupported,
						"the bytes of its numbers are in the order \"big\"; only little can be read")
				}
			}
		}
	}
	p, err := next()
	if err != nil {
		return err
	}
	storages, sizes := map[string]*storage{}, map[string]int64{}
	f.root, err = newBuilder(p, limits, func(key string, n int64) (*storage, error) {
		if storages[key] == nil {
			storages[key] = &storage{key: key, n: n}
			sizes[key] = n
		}
		return storages[key], nil
	}).root()
	if err != nil {
		return err
	}
	keys, err := next()
	if err != nil {
		return err
	}
	for _, r := range keys.Items(keys.Root()) {
		key, _ := keys.Str(r)
		s := storages[key]
		if s == nil {
			return refuse("the file has a storage %s that no tensor uses, whose size is not known", quote(key))
		}
		var count [8]byte
		if _, err := f.in.ReadAt(count[:], at); err != nil {
			return refuse("the file ends before storage %s", quote(key))
		}
		at += 8
		// The number of elements was given before, with their type.
		if s.at = at; binary.LittleEndian.Uint64(count[:]) > math.MaxInt64 || s.n > size-at {
			return refuse("storage %s has %d bytes, of which the file holds %d", quote(key), s.n, size-at)
		}
		at += s.n
		delete(sizes, key)
	}
	if len(sizes) > 0 {
		return refuse("the file lacks the data of %d storages", len(sizes))
	}
	return nil
}

// extent returns the number of storage elements from the tensor's first to its last one, and count the number of its elements; ok is
// false if either does not fit in an int64.
func (t *Tensor) extent() (extent, count int64, ok bool) {
	extent, count = 1, 1
	for i, n := range t.Shape {
		if n == 0 {
			return 0, 0, true
		}
		if n < 0 || t.Stride[i] < 0 || int64(n) > math.MaxInt64/count || t.Stride[i] > 0 &&
			int64(n-1) > (math.MaxInt64-extent)/int64(t.Stride[i]) {
			return 0, 0, false
		}
		count *= int64(n)
		extent += int64(n-1) * int64(t.Stride[i])
	}
	return extent, count, true
}

// check refuses a tensor that extends beyond its storage.
func (t *Tensor) check() error {
	extent, count, ok := t.extent()
	size := int64(t.size)
	if !ok || t.offset < 0 || count > 0 && (int64(t.offset) > math.MaxInt64-extent || int64(t.offset)+extent > t.storage.n/size) {
		return refuse("a tensor %v with strides %v at %d lies beyond its storage %s of %d elements", t, t.Stride, t.offset,
			quote(t.storage.key), t.storage.n/size)
	}
	return nil
}

// weight returns the resources that the tensor's elements use.
func (t *Tensor) weight() weight {
	extent, count, _ := t.extent()
	w := weight{tensors: math.MaxInt64 / 4}
	if count <= w.tensors/int64(t.size) {
		w.tensors = count * int64(t.size)
	}
	if count > extent {
		w.expanded = w.tensors
	}
	return w
}

// opened refuses a File that Open or New did not return.
func (f *File) opened() error {
	if f == nil || f.in == nil {
		return refuse("the file is nil or a zero value; use one that Open or New returned")
	}
	return nil
}

// Bytes returns the elements of t, one of this file's tensors, in row-major order, little-endian; bool has one byte each.
func (f *File) Bytes(t *Tensor) (b []byte, err error) {
	defer origin.Located("torchfile.File.Bytes", &err)
	if err := f.opened(); err != nil {
		return nil, err
	}
	if t == nil || t.storage == nil {
		return nil, refuse("the tensor is nil or a zero value; use one of the file's")
	}
	extent, count, _ := t.extent()
	raw := make([]byte, extent*int64(t.size))
	if _, err := f.in.ReadAt(raw, t.storage.at+int64(t.offset)*int64(t.size)); err != nil && !(err == io.EOF && len(raw) == 0) {
		return nil, fault.Wrap(fault.System, err, "cannot read storage %s", quote(t.storage.key))
	}
	if count == extent && rowMajor(t.Shape, t.Stride) {
		return raw, nil
	}
	out := make([]byte, 0, count*int64(t.size))
	index := make([]int, len(t.Shape))
	for at := 0; len(out) < cap(out); {
		out = append(out, raw[at*t.size:][:t.size]...)
		for d := len(index) - 1; d >= 0; d-- {
			index[d]++
			at += t.Stride[d]
			if index[d] < t.Shape[d] {
				break
			}
			at -= index[d] * t.Stride[d]
			index[d] = 0
		}
	}
	return out, nil
}

func rowMajor(shape, stride []int) bool {
	n := 1
	for d := len(shape) - 1; d >= 0; d-- {
		if shape[d] != 1 && stride[d] != n {
			return false
		}
		n *= shape[d]
	}
	return true
}

// Load returns t, one of this file's tensors, as a contiguous tensor on x's device. It does not require grad. Types that Tenon does not
// have are an error; Bytes reads them.
func (f *File) Load(x *tenon.Exec, t *Tensor) (out *tenon.Tensor, err error) {
	defer origin.Located("torchfile.File.Load", &err)
	b, err := f.Bytes(t)
	if err != nil {
		return nil, err
	}
	if t.DType == dtype.Invalid {
		return nil, fault.New(fault.Unsupported, "a tensor is %s, a type that tensors cannot have here; convert it before it "+
			"is saved, or read its Bytes", t.Type)
	}
	err = tenon.Try(func() {
		core.Made((*core.Exec)(x), "torchfile.Load")
		out = x.FromBytes(b, t.DType, t.Shape...)
	})
	return out, err
}

// StateDict returns the tensors of a dict by their keys, on x's device, as nn.Load takes them. path leads through nested dicts: without
// it the file's value is the dict, with "model" the value of its key "model".
func (f *File) StateDict(x *tenon.Exec, path ...string) (out map[string]*tenon.Tensor, err error) {
	defer origin.Located("torchfile.File.StateDict", &err)
	if f == nil {
		return nil, refuse("the file is nil; look at the error of the function that was to open it")
	}
	at, where := f.Root(), "the file's value"
	for _, key := range path {
		d, ok := at.(*Dict)
		if !ok {
			return nil, refuse("%s is a %s and no dict", where, nameOf(at))
		}
		v, ok := d.Get(key)
		if !ok {
			return nil, refuse("%s has no key %q; it has %s", where, key, keysOf(d))
		}
		at, where = v, "the value of "+quote(key)
	}
	d, ok := at.(*Dict)
	if !ok {
		return nil, refuse("%s is a %s and no dict of tensors", where, nameOf(at))
	}
	out = map[string]*tenon.Tensor{}
	closeAll := func() {
		for _, t := range out { //tenon:unordered what is freed first makes no difference
			t.Close()
		}
	}
	for i, k := range d.Keys {
		key, ok := k.(string)
		t, isTensor := d.Values[i].(*Tensor)
		if !ok || !isTensor {
			closeAll()
			return nil, refuse("%s has the key %s with a %s, not a tensor; if one of its dicts has the tensors, name that one: it has %s",
				where, show(k), nameOf(d.Values[i]), keysOf(d))
		}
		if out[key] != nil {
			closeAll()
			return nil, refuse("%s has the key %s twice; a state dict has each key once", where, quote(key))
		}
		v, err := f.Load(x, t)
		if err != nil {
			closeAll()
			return nil, fault.Wrap(fault.KindOf(err), err, "key %s", quote(key))
		}
		out[key] = v
	}
	return out, nil
}

// keysOf lists the first keys of a dict.
func keysOf(d *Dict) string {
	var keys []string
	for _, k := range d.Keys {
		if len(keys) == 10 {
			keys = append(keys, "…")
			break
		}
		if s, ok := k.(string); ok {
			keys = append(keys, quote(s))
		} else {
			keys = append(keys, nameOf(k))
		}
	}
	if keys == nil {
		return "none"
	}
	return strings.Join(keys, ", ")
}
