package torchfile

import (
	"archive/zip"
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math/big"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/pickle"
	"tenon.dev/internal/wholefile"
)

const (
	// alignment is the alignment of storages in the file, so that they can be mapped.
	alignment = 64
	// deepest bounds the nesting of containers, since a slice can contain itself.
	deepest = 1000
)

// Save writes v to the named file as torch.save does; torch.load reads it, with weights_only too. v is made of:
//
//   - nil, bool, all integers, *big.Int, floating-point numbers (the half types as the numbers that they stand for) and strings, and types
//     made of those;
//   - []byte, which is bytes in Python; all other slices and arrays, which are lists; and [Tuple];
//   - maps with string keys, which are dicts in the order of their keys, and [*Dict], which keeps its own;
//   - structs, which are dicts of their fields. A field's key is its tag `torch:"name"`, else its name; the tag "-" leaves it out; the
//     fields of an embedded struct without a tag are the outer struct's. A field that is not exported is an error unless it is left out;
//   - pointers to these, of which a nil one is None;
//   - *tenon.Tensor on x's device or the processor, and [Global] for constants such as torch.float32.
//
// A value that cannot be saved is an error that gives its path in v, as in "opt.Groups[1].Schedule is a func()". [Decode] does the
// reverse.
//
// A tensor that occurs twice is written once and is one tensor again when it is loaded. Tensors of one type that share memory share it
// again: the memory from their first to their last element is written once. Save waits for the device. A file that already has that name is
// replaced only once the new one is complete.
func Save(x *tenon.Exec, name string, v any) (err error) {
	defer origin.Located("torchfile.Save", &err)
	return wholefile.Write("torchfile", name, func(w io.Writer) error { return Write(x, w, v) })
}

// Write is Save to a writer.
func Write(x *tenon.Exec, out io.Writer, v any) (err error) {
	defer origin.Located("torchfile.Write", &err)
	if out == nil {
		return refuse("the writer is nil; give one")
	}
	var failed error
	if err := tenon.Try(func() {
		core.Made((*core.Exec)(x), "torchfile.Save")
		failed = write(x, out, v)
	}); err != nil {
		return err
	}
	return failed
}

// archive is a zip file whose entries are stored uncompressed; it counts the bytes written.
type archive struct {
	z   *zip.Writer
	out *bufio.Writer
	n   int64
}

func (a *archive) Write(b []byte) (int, error) {
	n, err := a.out.Write(b)
	a.n += int64(n)
	return n, err
}

// entry writes an entry, whose data is aligned.
func (a *archive) entry(name string, data []byte) error {
	name = "archive/" + name
	if err := a.z.Flush(); err != nil {
		return err
	}
	// A local header has 30 bytes, the name and the extra field, which begins with its own four-byte header.
	pad := alignment - (a.n+30+int64(len(name))+4)%alignment
	extra := append([]byte{'F', 'B', byte(pad), 0}, make([]byte, pad)...)
	size := uint64(len(data))
	// With sizes and checksum known beforehand, no data descriptor follows an entry.
	w, err := a.z.CreateRaw(&zip.FileHeader{Name: name, Method: zip.Store, Extra: extra, CRC32: crc32.ChecksumIEEE(data),
		CompressedSize64: size, UncompressedSize64: size})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

func write(x *tenon.Exec, out io.Writer, v any) error {
	a := &archive{out: bufio.NewWriterSize(out, 1<<20)}
	a.z = zip.NewWriter(a)
	fail := func(err error) error {
		if _, ok := err.(*fault.Error); ok {
			return err
		}
		return fault.Wrap(fault.System, err, "cannot write")
	}
	var data bytes.Buffer
	w := &writer{p: pickle.NewWriter2(&data), seen: map[identity]uint32{}, memory: map[memory]*stretch{}}
	v, err := plain(v)
	if err != nil {
		return err
	}
	w.note(v)
	w.value(v)
	if err := w.p.Close(); err != nil {
		return fail(err)
	}
	if err := a.entry("data.pkl", data.Bytes()); err != nil {
		return fail(err)
	}
	for _, e := range [][2]string{{".format_version", "1"}, {".storage_alignment", fmt.Sprint(alignment)}, {"byteorder", "little"}} {
		if err := a.entry(e[0], []byte(e[1])); err != nil {
			return fail(err)
		}
	}
	for i, r := range w.written {
		b, err := r.bytes(x)
		if err != nil {
			return err
		}
		if err := a.entry(fmt.Sprintf("data/%d", i), b); err != nil {
			return fail(err)
		}
	}
	if err := a.entry("version", []byte("3\n")); err != nil {
		return fail(err)
	}
	if err := a.z.Close(); err != nil {
		return fail(err)
	}
	if err := a.out.Flush(); err != nil {
		return fail(err)
	}
	return nil
}

// identity is the key by which two tensors are the same in a file.
type identity struct {
	ptr           uint64
	device        string
	dt            dtype.DType
	shape, stride string
	grad          bool
}

func identityOf(t *tenon.Tensor) identity {
	return identity{t.DataPtr(), t.Device().Name(), t.DType(), fmt.Sprint(t.Shape()), fmt.Sprint(t.Stride()), t.RequiresGrad()}
}

// writer writes a value and gathers its tensors.
type writer struct {
	p *pickle.Writer
	// memory maps the memory of the value's tensors to the stretches written, and written holds the stretches named so far, in order.
	memory  map[memory]*stretch
	written []*stretch
	// seen holds the number of each tensor in the pickle's memo.
	seen map[identity]uint32
}

// value writes a result of plain.
func (w *writer) value(v any) {
	switch v := v.(type) {
	case nil:
		w.p.None()
	case bool:
		w.p.Bool(v)
	case int64:
		w.p.Int(v)
	case *big.Int:
		w.p.Big(v)
	case float64:
		w.p.Float(v)
	case string:
		w.p.String(v)
	case []byte:
		w.bytes(v)
	case Global:
		w.p.Global(v.Module, v.Name)
	case []any:
		w.p.EmptyList()
		w.p.Mark()
		w.values(v)
		w.p.Appends()
	case Tuple:
		w.p.Mark()
		w.values(v)
		w.p.Tuple()
	case *Dict:
		w.p.EmptyDict()
		w.p.Mark()
		for i := range v.Keys {
			w.value(v.Keys[i])
			w.value(v.Values[i])
		}
		w.p.SetItems()
	case *tenon.Tensor:
		w.tensor(v)
	}
}

// values writes the elements of a list or tuple.
func (w *writer) values(vs []any) {
	for _, v := range vs {
		w.value(v)
	}
}

// bytes writes bytes as Python does in pickle protocols without them: as the call that makes them from a string.
func (w *writer) bytes(b []byte) {
	text := make([]rune, len(b))
	for i, c := range b {
		text[i] = rune(c)
	}
	w.p.Global("_codecs", "encode")
	w.p.Mark()
	w.p.String(string(text))
	w.p.String("latin1")
	w.p.Tuple()
	w.p.Reduce()
}

// classes are the storage classes by element type.
var classes = func() map[dtype.DType]string {
	m := map[dtype.DType]string{}
	//tenon:unordered the classes have different types
	for class, typ := range storageTypes {
		if typ != "" {
			m[types[typ].dt] = class
		}
	}
	return m
}()

// tensor writes a tensor as the call that rebuilds it, from a storage with its elements in row-major order or with the memory that it
// shares with others.
func (w *writer) tensor(t *tenon.Tensor) {
	id := identityOf(t)
	if n, ok := w.seen[id]; ok && t.Numel() > 0 {
		w.p.Get(n)
		return
	}
	r := w.memory[memoryOf(t)]
	if r == nil || t.Numel() == 0 {
		r = &stretch{only: t}
	}
	if !r.written {
		r.written, r.key = true, len(w.written)
		w.written = append(w.written, r)
	}
	p := w.p
	class, ok := classes[t.DType()]
	untyped := !ok
	if untyped {
		class = "UntypedStorage"
		p.Global("torch._utils", "_rebuild_tensor_v3")
	} else {
		p.Global("torch._utils", "_rebuild_tensor_v2")
	}
	p.Mark()
	p.Mark()
	p.String("storage")
	if untyped {
		p.Global("torch.storage", class)
	} else {
		p.Global("torch", class)
	}
	p.String(fmt.Sprint(r.key))
	p.String("cpu")
	if n := int64(r.count()); untyped {
		p.Int(n * int64(t.DType().Size()))
	} else {
		p.Int(n)
	}
	p.Tuple()
	p.Persistent()
	offset, stride := r.place(t)
	p.Int(int64(offset))
	for _, l := range [][]int{t.Shape(), stride} {
		p.Mark()
		for _, n := range l {
			p.Int(int64(n))
		}
		p.Tuple()
	}
	p.Bool(t.RequiresGrad())
	p.Global("collections", "OrderedDict")
	p.Mark()
	p.Tuple()
	p.Reduce()
	if untyped {
		p.Global("torch", t.DType().String())
	}
	p.Tuple()
	p.Reduce()
	w.seen[id] = p.Memoize()
}
