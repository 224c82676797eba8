package data

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/mersenne"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/rt"
)

// LoaderOpt are the options of a Loader. The zero value reads single samples in order.
type LoaderOpt struct {
	// BatchSize is the number of samples in a batch; 0 is 1. The last batch may have fewer.
	BatchSize int
	// DropLast leaves out a last batch that is not full.
	DropLast bool
	// Shuffle gives every epoch a new order: the permutations that PyTorch's CPU generator draws one after another from Seed.
	Shuffle bool
	Seed    uint64
	// Workers is the number of goroutines that read samples; 0 is 1.
	Workers int
	// Prefetch is the number of batches that are read ahead; 0 is 2, and a negative number is none: a batch is read when the loop is at it.
	Prefetch int
}

// Loader hands out the samples of a data set in batches. Only one goroutine may use it at a time.
type Loader struct {
	ds     Dataset
	opt    LoaderOpt
	layout layout
	random *mersenne.Generator
	// drawn counts the epochs whose order was drawn; epoch and batch are the loader's position, see LoaderState.
	drawn, epoch, batch int
	// running counts the epochs in progress.
	running int
	// side is the stream of the copies, on the device of the last epoch.
	side *cuda.Stream
	home *cuda.Device
}

// Batch is a batch of samples on the device.
type Batch struct {
	// Tensors has one tensor for each field, of shape [samples, field's shape]. They are closed when the loop goes on to the next batch;
	// clone a tensor to keep it.
	Tensors []*tenon.Tensor
	// Rows are the samples' numbers.
	Rows []int
	// Index is the batch's number in its epoch, from 0, also in an epoch that is resumed. Last says that it is the epoch's last batch.
	Index int
	Last  bool
}

// maxBatch bounds the bytes of one field of a batch.
const maxBatch = 1 << 40

// NewLoader returns a loader of ds.
func NewLoader(ds Dataset, opts ...LoaderOpt) (l *Loader, err error) {
	defer origin.Located("data.NewLoader", &err)
	opt, err := core.Only("NewLoader", opts)
	if err != nil {
		return nil, err
	}
	if opt.BatchSize < 0 || opt.Workers < 0 {
		return nil, fault.New(fault.Invalid, "batch size %d and %d workers: neither may be negative", opt.BatchSize, opt.Workers)
	}
	if ds == nil {
		return nil, fault.New(fault.Invalid, "the data set is nil; give one, such as a Table")
	}
	fields := ds.Fields()
	if len(fields) == 0 {
		return nil, fault.New(fault.Invalid, "the data set's samples have no fields; give at least one")
	}
	opt.BatchSize, opt.Workers = max(opt.BatchSize, 1), max(opt.Workers, 1)
	for i, f := range fields {
		if n := f.Bytes(); n < 0 || n > 0 && opt.BatchSize > maxBatch/n {
			return nil, fault.New(fault.Invalid, "a batch of %d samples has more than %d bytes of field %d; give a smaller BatchSize",
				opt.BatchSize, maxBatch, i)
		}
	}
	if opt.Prefetch == 0 {
		opt.Prefetch = 2
	}
	return &Loader{ds: ds, opt: opt, layout: newLayout(fields, opt.BatchSize), random: mersenne.New(opt.Seed)}, nil
}

// Len returns the number of batches in an epoch.
func (l *Loader) Len() int {
	if l == nil || l.ds == nil {
		return 0
	}
	n := l.ds.Len()
	if l.opt.DropLast {
		return n / l.opt.BatchSize
	}
	if n <= 0 {
		return 0
	}
	return (n-1)/l.opt.BatchSize + 1
}

// String describes the loader, such as "data.Loader(938 batches of up to 64 samples)".
func (l *Loader) String() string {
	if l == nil {
		return "nil loader"
	}
	return fmt.Sprintf("data.Loader(%d batches of up to %d samples)", l.Len(), l.opt.BatchSize)
}

// Epoch yields every sample once, in batches on x's device that x's operations can use immediately. The first epoch after SetState yields
// the rest of the epoch in which the state was taken. An error of the data set or the device comes as the last pair, with a nil batch.
// When the loop ends, even by break or panic, all goroutines have ended and all memory is freed.
func (l *Loader) Epoch(x *tenon.Exec) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		if l == nil || l.ds == nil {
			err := error(fault.New(fault.Invalid, "the loader is nil or a zero value; use one that NewLoader returned"))
			origin.Located("data.Loader.Epoch", &err)
			yield(nil, err)
			return
		}
		if err := l.open(x); err != nil {
			origin.Located("data.Loader.Epoch", &err)
			yield(nil, err)
			return
		}
		e := l.start((*core.Exec)(x).Device())
		defer e.stop()
		for i := e.first; i < e.count; i++ {
			// Start copying the next batch before the loop works on this one.
			b, err := e.upload(x.On(l.side), i)
			if err == nil && i+1 < e.count && e.ready(i+1) {
				_, err = e.upload(x.On(l.side), i+1)
			}
			if err != nil {
				origin.Located("data.Loader.Epoch", &err)
				yield(nil, err)
				return
			}
			l.epoch, l.batch = e.number, i+1
			if !yield(b, nil) {
				return
			}
			e.close(i)
		}
	}
}

// open finds the stream for the copies.
func (l *Loader) open(x *tenon.Exec) error {
	if err := tenon.Try(func() { core.Made((*core.Exec)(x), "Epoch") }); err != nil {
		return err
	}
	if l.side != nil && l.home == x.Device() {
		return nil
	}
	s, err := x.Device().Stream()
	if err != nil {
		return err
	}
	l.side, l.home = s, x.Device()
	return nil
}

// order returns the samples' numbers in the order of the next epoch.
func (l *Loader) order() []int {
	n := l.ds.Len()
	if l.opt.Shuffle {
		return l.random.Perm(n)
	}
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	return rows
}

// epoch is one epoch in progress. Workers take the numbers of batches from todo, which never runs more than Prefetch ahead of the loop.
type epoch struct {
	l    *Loader
	dev  *rt.Device
	rows []int
	// number counts the epochs before this one. first is the first batch to yield, and count the number of batches.
	number, first, count int

	todo    chan int
	done    chan struct{}
	workers sync.WaitGroup
	// read has, for every batch, a channel of capacity 1 for a worker's result.
	read []chan staged
	next int // the first batch that is not in todo yet
	// batches are the batches on the device that are not yet closed, by number.
	batches map[int]*Batch
}

// staged is a batch in page-locked memory, or the error of reading it.
type staged struct {
	mem *rt.Pinned
	err error
}

func (l *Loader) start(dev *rt.Device) *epoch {
	e := &epoch{l: l, dev: dev, rows: l.order(), number: l.drawn, count: l.Len(), done: make(chan struct{}), batches: map[int]*Batch{}}
	if l.running == 0 {
		e.first = l.batch // not 0 when an epoch is resumed
	}
	e.next = e.first
	l.drawn++
	l.running++
	ahead, left := min(max(l.opt.Prefetch, 0), e.count), e.count-e.first
	e.todo = make(chan int, ahead+1)
	e.read = make([]chan staged, e.count)
	for i := range e.read {
		e.read[i] = make(chan staged, 1)
	}
	if !e.lazy() {
		for range min(ahead+1, left) {
			e.request()
		}
	}
	for range min(l.opt.Workers, left) {
		e.workers.Go(e.work)
	}
	return e
}

// lazy reports whether a batch is requested only when the loop is at it.
func (e *epoch) lazy() bool { return e.l.opt.Prefetch < 0 }

// request lets the workers read one more batch.
func (e *epoch) request() {
	if e.next < e.count {
		e.todo <- e.next
		e.next++
	}
}

// work reads batches until the epoch ends.
func (e *epoch) work() {
	for {
		select {
		case <-e.done:
			return
		case i := <-e.todo:
			e.read[i] <- e.stage(i)
		}
	}
}

// rowsOf returns the numbers of the samples of batch i.
func (e *epoch) rowsOf(i int) []int {
	size := e.l.opt.BatchSize
	return e.rows[i*size : min((i+1)*size, len(e.rows))]
}

// stage reads batch i.
func (e *epoch) stage(i int) staged {
	mem, err := e.dev.AllocPinned(max(e.l.layout.bytes, 1))
	if err != nil {
		return staged{err: err}
	}
	dst := make([][]byte, len(e.l.layout.fields))
	for at, row := range e.rowsOf(i) {
		select {
		case <-e.done:
			return staged{mem, nil} // the epoch has ended, and nobody waits for the batch
		default:
		}
		err := mem.Use(func(b []byte) error {
			e.l.layout.sample(dst, b, at)
			if err := e.l.read(row, dst); err != nil {
				return fault.Wrap(fault.Invalid, err, "sample %d could not be read", row)
			}
			return nil
		})
		if err != nil {
			return staged{mem, err}
		}
	}
	return staged{mem, nil}
}

// read reads one sample. A data set that uses tensors may panic with an error of the library; read returns it.
func (l *Loader) read(row int, dst [][]byte) (err error) {
	if stopped := tenon.Try(func() { err = l.ds.Read(row, dst) }); stopped != nil {
		return stopped
	}
	return err
}

// ready reports whether upload would not wait for batch i.
func (e *epoch) ready(i int) bool { return len(e.read[i]) > 0 }

// upload returns batch i, after queueing its copies on x's stream if that was not done before.
func (e *epoch) upload(x *tenon.Exec, i int) (*Batch, error) {
	if b := e.batches[i]; b != nil {
		return b, nil
	}
	if e.lazy() {
		e.request()
	}
	s := <-e.read[i]
	if !e.lazy() {
		e.request()
	}
	if s.err != nil {
		if s.mem != nil {
			_ = s.mem.Free() // the reading error is the one to report
		}
		return nil, s.err
	}
	rows := e.rowsOf(i)
	b := &Batch{Rows: rows, Index: i, Last: i == e.count-1}
	e.batches[i] = b
	err := tenon.Try(func() {
		for j, f := range e.l.layout.fields {
			t := x.FromBytes(e.l.layout.column(s.mem.Bytes(), j, len(rows)), f.DType, append([]int{len(rows)}, f.Shape...)...)
			b.Tensors = append(b.Tensors, (*tenon.Tensor)(core.Own((*core.Tensor)(t))))
		}
	})
	if e := s.mem.Record((*core.Exec)(x).Stream()); err == nil {
		err = e
	}
	if e := s.mem.Free(); err == nil {
		err = e
	}
	return b, err
}

// close frees batch i.
func (e *epoch) close(i int) {
	for _, t := range e.batches[i].Tensors {
		t.Close()
	}
	delete(e.batches, i)
}

// stop ends the workers and frees all unused memory.
func (e *epoch) stop() {
	e.l.running--
	e.l.epoch, e.l.batch = e.l.drawn, 0
	close(e.done)
	e.workers.Wait()
	for _, i := range slices.Sorted(maps.Keys(e.batches)) {
		e.close(i)
	}
	for _, c := range e.read {
		select {
		case s := <-c:
			if s.mem != nil {
				_ = s.mem.Free() // fails on a lost device, which the loop's own work reports
			}
		default:
		}
	}
}

// layout says where the fields of a full batch lie in one block of memory.
type layout struct {
	fields []Field
	start  []int
	bytes  int
}

func newLayout(fields []Field, samples int) layout {
	const alignment = 256 // of each field, which is one copy
	l := layout{fields: fields}
	for _, f := range fields {
		l.start = append(l.start, l.bytes)
		l.bytes += (f.Bytes()*samples + alignment - 1) / alignment * alignment
	}
	return l
}

// sample sets dst to the memory of the fields of sample number at.
func (l *layout) sample(dst [][]byte, mem []byte, at int) {
	for j, f := range l.fields {
		n := f.Bytes()
		lo := l.start[j] + at*n
		dst[j] = mem[lo : lo+n : lo+n]
	}
}

// column returns field j of the first n samples.
func (l *layout) column(mem []byte, j, n int) []byte {
	size := n * l.fields[j].Bytes()
	return mem[l.start[j] : l.start[j]+size : l.start[j]+size]
}
