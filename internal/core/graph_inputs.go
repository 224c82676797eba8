package core

import (
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// fill copies the inputs that r reads from copies, on st.
func (g *Segment) fill(r *Recorded, st *rt.Stream) error {
	if !slices.Contains(r.copied, true) {
		return nil
	}
	seq, err := st.Begin(opCopied, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	if err := st.Device().AwaitLent(st); err != nil {
		return err
	}
	return g.copyInputs(r, st, seq)
}

// copyInputs copies inputs for operation seq of st, whose turn the caller has.
func (g *Segment) copyInputs(r *Recorded, st *rt.Stream, seq uint64) error {
	c := &g.d.inputs
	c.reset(st)
	for i := range g.inputs {
		in := &g.inputs[i]
		if !r.copied[i] || in.Hi == in.Lo {
			continue
		}
		if err := in.st.beforeRead(st); err != nil {
			return err
		}
		c.add(r.inputs[i], in.Addr(), in.Hi-in.Lo)
	}
	if err := c.issue(); err != nil {
		return st.Device().Check(err, "an input of a compiled region could not be copied")
	}
	for i := range g.inputs {
		if in := &g.inputs[i]; r.copied[i] && in.Hi > in.Lo {
			in.st.didRead(st, seq)
		}
	}
	return nil
}

// wordTypes are the types of what a kernel copies.
var wordTypes = []dtype.DType{dtype.Int32}

// inputCopies are copies of ranges of a device's memory. One kernel makes those of whole words, the driver all others.
type inputCopies struct {
	kernels.Issuer // nil: what copies asks for nothing but launches
	st             *rt.Stream
	launch         kernels.Launch
	call           driver.Launch
	words, bytes   copyList
	which          [kernels.MultiTensors]int32
	outs, ins      [1]kernels.Column
}

// copyList are copies of sizes elements each.
type copyList struct {
	dst, src []uint64
	sizes    []int
}

func (l *copyList) reset() { l.dst, l.src, l.sizes = l.dst[:0], l.src[:0], l.sizes[:0] }

func (l *copyList) add(dst, src uint64, n int) {
	l.dst, l.src, l.sizes = append(l.dst, dst), append(l.src, src), append(l.sizes, n)
}

func (c *inputCopies) reset(st *rt.Stream) {
	c.st = st
	c.words.reset()
	c.bytes.reset()
}

// add includes a copy of n bytes, at least one, from src to dst.
func (c *inputCopies) add(dst, src uint64, n int) {
	if size := wordTypes[0].Size(); (dst|src|uint64(n))%uint64(size) == 0 {
		c.words.add(dst, src, n/size)
	} else {
		c.bytes.add(dst, src, n)
	}
}

// issue queues the copies. If a kernel cannot be loaded or launched, the driver makes its copies.
func (c *inputCopies) issue() error {
	// A checker would take the kernel for a use of what is copied.
	if c.st.Device().Info().Checked || c.together() != nil {
		if err := c.oneByOne(&c.words, wordTypes[0].Size()); err != nil {
			return err
		}
	}
	return c.oneByOne(&c.bytes, 1)
}

func (c *inputCopies) oneByOne(l *copyList, size int) error {
	for i, n := range l.sizes {
		err := c.st.Device().Driver().CopyDtoD(driver.Ptr(l.dst[i]), driver.Ptr(l.src[i]), uint64(n*size), c.st.Handle())
		if err != nil {
			return err
		}
	}
	return nil
}

// together queues the copies of words as one kernel for every 32.
func (c *inputCopies) together() error {
	l := &c.words
	for from := 0; from < len(l.sizes); from += kernels.MultiTensors {
		to := min(from+kernels.MultiTensors, len(l.sizes))
		c.outs[0] = kernels.Column{Ptrs: l.dst[from:to], Types: wordTypes}
		c.ins[0] = kernels.Column{Ptrs: l.src[from:to], Types: wordTypes}
		rows := kernels.Rows{Which: c.which[:to-from]}
		err := kernels.MultiTensorRun(c, kernels.Copy, wordTypes[0], rows, l.sizes[from:to], c.outs[:], c.ins[:])
		if err != nil {
			return err
		}
	}
	return nil
}

// NewLaunch returns the launch, emptied.
func (c *inputCopies) NewLaunch() *kernels.Launch {
	c.launch.Reset()
	return &c.launch
}

// Issue launches l.
func (c *inputCopies) Issue(l *kernels.Launch) error {
	fn, err := c.st.Device().Func(&l.Spec)
	if err != nil {
		return err
	}
	c.call.Func, c.call.Grid, c.call.Block, c.call.Shared = fn.Handle, l.Grid, l.Block, l.Shared+fn.Shared
	c.call.Args, c.call.Waits = l.Args, fn.Waits
	return c.st.Launch(&c.call)
}
