package torchfile

import (
	"archive/zip"
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/big"
	"slices"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/pickle"
	"tenon.dev/internal/wholefile"
)

const (
	// alignment is that of storages in the file, so that they can be mapped.
	alignment = 64
	// deepest is how many containers may lie in each other: a slice can contain itself.
	deepest = 1000
)

// Save writes v to the named file as torch.save does; torch.load reads it, with weights_only too. v and what it holds may be nil, bool, any int, float32, float64,
// string, []any, Tuple, *Dict, map[string]any and map[string]*tenon.Tensor (in the order of their keys), *tenon.Tensor on x's device or the processor, and
// Global for constants such as torch.float32. A tensor that is there twice is written once and is one tensor again when it is loaded. Tensors of one type that
// share memory share it again: that from the first to the last of their elements is written once. It waits for the device. An older file of that name stays as it was until the new one is complete.
func Save(x *tenon.Exec, name string, v any) error {
	return wholefile.Write("torchfile", name, func(w io.Writer) error { return Write(x, w, v) })
}

// Write is Save to a writer.
func Write(x *tenon.Exec, out io.Writer, v any) error {
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

// archive is a zip file whose entries are stored, and where bytes were counted.
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
	// A local header has 30 bytes, the name and the extra field, which begins with four bytes of its own.
	pad := alignment - (a.n+30+int64(len(name))+4)%alignment
	extra := append([]byte{'F', 'B', byte(pad), 0}, make([]byte, pad)...)
	size := uint64(len(data))
	// With sizes and sum known beforehand nothing stands between an entry and the next.
	w, err := a.z.CreateRaw(&zip.FileHeader{Name: name, Method: zip.Store, Extra: extra, CRC32: crc32.ChecksumIEEE(data), CompressedSize64: size, UncompressedSize64: size})
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
		return fault.Wrap(fault.System, err, "torchfile: cannot write")
	}
	var data bytes.Buffer
	w := &writer{p: pickle.NewWriter2(&data), seen: map[identity]uint32{}, memory: map[memory]*stretch{}}
	if err := w.note(v, 0); err != nil {
		return err
	}
	if err := w.value(v); err != nil {
		return err
	}
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

// identity is what makes two tensors one in a file.
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
	// memory has what is written of the memory of the value's tensors, and written what was named so far, in that order.
	memory  map[memory]*stretch
	written []*stretch
	// seen has the number of each tensor in the pickle's memo.
	seen map[identity]uint32
}

func (w *writer) value(v any) error {
	switch v := v.(type) {
	case nil:
		w.p.None()
	case bool:
		w.p.Bool(v)
	case int:
		w.p.Int(int64(v))
	case int8:
		w.p.Int(int64(v))
	case int16:
		w.p.Int(int64(v))
	case int32:
		w.p.Int(int64(v))
	case int64:
		w.p.Int(v)
	case uint:
		w.p.Uint(uint64(v))
	case uint8:
		w.p.Int(int64(v))
	case uint16:
		w.p.Int(int64(v))
	case uint32:
		w.p.Int(int64(v))
	case uint64:
		w.p.Uint(v)
	case *big.Int:
		if v == nil {
			return refuse("a *big.Int is nil; use nil itself")
		}
		w.p.Big(v)
	case float32:
		w.p.Float(float64(v))
	case float64:
		w.p.Float(v)
	case string:
		w.p.String(v)
	case Global:
		w.p.Global(v.Module, v.Name)
	case []any:
		w.p.EmptyList()
		w.p.Mark()
		if err := w.values(v); err != nil {
			return err
		}
		w.p.Appends()
	case Tuple:
		w.p.Mark()
		if err := w.values(v); err != nil {
			return err
		}
		w.p.Tuple()
	case *Dict:
		return w.dict(v)
	case map[string]any:
		return w.dict(sorted(v))
	case map[string]*tenon.Tensor:
		return w.dict(sorted(v))
	case *tenon.Tensor:
		return w.tensor(v)
	default:
		return refuse("a %T cannot be saved; use nil, bool, numbers, strings, tensors, and lists, tuples and dicts of them", v)
	}
	return nil
}

// values writes what a list or tuple has.
func (w *writer) values(vs []any) error {
	for _, v := range vs {
		if err := w.value(v); err != nil {
			return err
		}
	}
	return nil
}

// sorted is the Dict of m, in the order of its keys.
func sorted[T any](m map[string]T) *Dict {
	d := &Dict{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		d.Keys, d.Values = append(d.Keys, k), append(d.Values, m[k])
	}
	return d
}

func (w *writer) dict(d *Dict) error {
	if d == nil || len(d.Keys) != len(d.Values) {
		return refuse("a dict is nil, or has another number of keys than of values")
	}
	w.p.EmptyDict()
	w.p.Mark()
	seen := make(map[string]bool, len(d.Keys))
	for i := range d.Keys {
		if key, ok := d.Keys[i].(string); ok {
			if seen[key] {
				return refuse("a dict has the key %s twice, and only one of its values could be read; give each its own", quote(key))
			}
			seen[key] = true
		}
		switch d.Keys[i].(type) {
		case nil, bool, int, int64, float64, string, Tuple:
		default:
			return refuse("a %T cannot be the key of a dict; use strings or numbers", d.Keys[i])
		}
		if err := w.value(d.Keys[i]); err != nil {
			return err
		}
		if err := w.value(d.Values[i]); err != nil {
			return err
		}
	}
	w.p.SetItems()
	return nil
}

// classes are the classes of storages by element type.
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

// tensor writes a tensor as the call that makes it anew, of a storage with its elements in row-major order or with what it shares with others.
func (w *writer) tensor(t *tenon.Tensor) error {
	id := identityOf(t)
	if n, ok := w.seen[id]; ok && t.Numel() > 0 {
		w.p.Get(n)
		return nil
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
	return nil
}
