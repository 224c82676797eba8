package torchfile

import (
	"io"
	"math"
	"os"

	"tenon.dev/fault"
	"tenon.dev/internal/filetype"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/pickle"
)

// Limits bound what a file may ask for, so that a file from an untrusted source can be opened. Each bounds the file as a whole. Values and
// tensors count as often as a walk over the file's value meets them, so that such a walk ends. A field that is zero is its default; the
// defaults suit what torch.save writes, and grow with the file.
type Limits struct {
	// Depth is how deep values may be nested: by default 1,000 levels, at most 100,000.
	Depth int
	// Values is how many numbers, strings, tensors, lists and so on there may be: by default 1,048,576 and 4 for each byte of the file.
	Values int64
	// Memory is how many bytes of memory all but the elements of tensors may take: by default 2 GiB, and of that no more than 16 MiB and
	// 128 bytes for each byte that describes values, nor than 16 MiB and 512 for each byte of the file, which may be compressed.
	Memory int64
	// Tensors is how many bytes the elements of all tensors may have: by default 64 MiB and 16 for each byte of the file.
	Tensors int64
	// Expanded is how many bytes the elements of tensors may have that share memory with others of the same tensor, as x.expand gives them:
	// by default 64 MiB.
	Expanded int64
}

const (
	defaultDepth    = 1000
	deepestDepth    = 100_000 // what Go's stack has room for many times
	defaultValues   = 1 << 20
	valuesFactor    = 4 // what each byte of a file allows
	defaultMemory   = 2 << 30
	floorMemory     = 16 << 20 // what any file may take
	pickleFactor    = 128      // what each byte of a pickle allows: a list in a list is 2 bytes of it
	fileFactor      = 512      // what each byte of a file allows
	floorTensors    = 64 << 20
	tensorsFactor   = 16
	defaultExpanded = 64 << 20
	// maxDims bounds the dimensions of a tensor, as in PyTorch.
	maxDims = 64
)

// Open is the function Open with these limits.
func (l Limits) Open(name string) (opened *File, err error) {
	defer origin.Located("torchfile.Open", &err)
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "the file cannot be opened")
	}
	info, err := f.Stat()
	if err == nil {
		var file *File
		if file, err = l.New(f, info.Size()); err == nil {
			file.closer = f
			return file, nil
		}
	}
	_ = f.Close()
	return nil, fault.Wrap(fault.KindOf(err), err, "cannot read %s", name)
}

// New is the function New with these limits.
func (l Limits) New(in io.ReaderAt, size int64) (opened *File, err error) {
	defer origin.Located("torchfile.New", &err)
	if in == nil {
		return nil, refuse("the reader is nil; give one")
	}
	b, err := l.budget(size)
	if err != nil {
		return nil, err
	}
	f := &File{in: in}
	var first [4]byte
	if _, err := in.ReadAt(first[:], 0); err != nil && err != io.EOF {
		return nil, fault.Wrap(fault.System, err, "cannot read")
	}
	if string(first[:]) == filetype.Zip {
		err = f.readZip(size, b)
	} else {
		err = f.readLegacy(size, b)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// safetensorsFile reports whether a file of size bytes begins like the safetensors format: with the length of a JSON object, and that.
// budget is the resources that a file may use.
type budget struct {
	Limits
	// bound returns the memory that a pickle may take after n of its bytes were read; nil if the caller set a limit.
	bound func(n int64) int64
}

// budget fills in the defaults for a file of size bytes.
func (l Limits) budget(size int64) (*budget, error) {
	if l.Depth < 0 || l.Depth > deepestDepth || min(l.Values, l.Memory, l.Tensors, l.Expanded) < 0 {
		return nil, refuse("the limits %+v have a negative one, or a depth of more than %d", l, deepestDepth)
	}
	size = min(max(size, 0), math.MaxInt64/fileFactor/2)
	b := &budget{Limits: l}
	set := func(to *int64, standard int64) {
		if *to == 0 {
			*to = standard
		}
		*to = min(*to, math.MaxInt64/4) // so that sums cannot overflow
	}
	if b.Depth == 0 {
		b.Depth = defaultDepth
	}
	if b.Memory == 0 {
		b.bound = func(n int64) int64 { return floorMemory + min(pickleFactor*n, fileFactor*size) }
	}
	set(&b.Values, defaultValues+valuesFactor*size)
	set(&b.Memory, defaultMemory)
	set(&b.Tensors, floorTensors+tensorsFactor*size)
	set(&b.Expanded, defaultExpanded)
	return b, nil
}

// read reads one pickle, treating all names as data. The resources that it uses are subtracted from the budget for the next.
func (b *budget) read(r io.Reader) (*pickle.Data, error) {
	o := pickle.Options{MaxMemory: max(b.Memory, 1), Bound: b.bound, Persistent: true, Global: func(string, string) bool { return true }}
	d, err := pickle.Read(r, o)
	if err != nil {
		return nil, b.unread(err)
	}
	b.Memory -= d.Used()
	return d, nil
}

// unread returns the error of values that cannot be read.
func (b *budget) unread(err error) error {
	if fault.KindOf(err) == fault.OutOfMemory {
		return fault.Wrap(fault.OutOfMemory, err, "the file is refused, as its values take too much memory; Limits.Memory "+
			"can allow more")
	}
	return fault.Wrap(fault.KindOf(err), err, "the file cannot be read")
}

// weight is the resources that a value uses, including its contents.
type weight struct {
	depth                     int
	values, tensors, expanded int64
}

// add adds the weight of a sibling.
func (w *weight) add(o weight) {
	w.depth = max(w.depth, o.depth)
	w.values += o.values
	w.tensors += o.tensors
	w.expanded += o.expanded
}

// check refuses a weight beyond the limits.
func (b *budget) check(w weight) error {
	switch {
	case w.depth > b.Depth:
		return refuse("the file is refused, as more than %d of its values lie in each other; Limits.Depth can allow more", b.Depth)
	case w.values > b.Values:
		return refuse("the file is refused, as it has more than %d values, each counted where it is used; Limits.Values can allow more",
			b.Values)
	case w.expanded > b.Expanded:
		return refuse("the file is refused, as its tensors are expansions to more than %d bytes; Limits.Expanded can allow more",
			b.Expanded)
	case w.tensors > b.Tensors:
		return refuse(
			"the file is refused, as its tensors have more than %d bytes, each counted where it is used; Limits.Tensors can allow more",
			b.Tensors)
	}
	return nil
}
