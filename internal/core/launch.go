package core

import (
	"encoding/binary"
	"math"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// Arg is one argument of a user's kernel: a tensor that it reads or writes, or a number.
type Arg struct {
	t      *Tensor
	writes bool
	number kernels.Scalar
}

// In is a tensor that the kernel reads.
func In(t *Tensor) Arg { return Arg{t: t} }

// Out is a tensor that the kernel writes, and may read.
func Out(t *Tensor) Arg { return Arg{t: t, writes: true} }

// Number is a scalar argument; it is converted to the parameter's type.
func Number(v float64) Arg { return Arg{number: kernels.FloatScalar(v)} }

// Integer is a scalar argument, exact to 64 bits.
func Integer(v int64) Arg { return Arg{number: kernels.IntScalar(v)} }

// LaunchShape is the grid of a launch in blocks and the block in threads; zero counts mean 1.
type LaunchShape struct {
	// Grid and Block are x, y, z.
	Grid, Block [3]int
	// Shared is the dynamic shared memory of a block in bytes.
	Shared int
}

// Over is the shape for at least n threads in x, in blocks of 256.
func Over(n int) LaunchShape {
	return LaunchShape{Grid: [3]int{(n + 255) / 256}, Block: [3]int{256}}
}

var rowLaunch *row

func init() { rowLaunch = define(row{Name: "Launch", meta: func(*frame) {}, run: runLaunch}) }

// launching is a call of rowLaunch; the frame's many are the tensors among args, in order.
type launching struct {
	k     *kernel.Kernel
	shape LaunchShape
	args  []Arg
}

// Launch runs a user's kernel on x's stream, in order with the operations before and after. A buffer parameter gets the address of a tensor's
// first element; what the kernel assumes of strides the caller ensures. It is built and loaded on its first launch on a device. No gradient is
// recorded, and writing to a tensor that requires one is refused: give it one with a Function.
func (x *Exec) Launch(k *kernel.Kernel, shape LaunchShape, args ...Arg) {
	f := x.op(rowLaunch)
	p, err := k.Program()
	f.check(err)
	if len(args) != len(p.Params) {
		f.fail(fault.Invalid, "kernel %s has %d parameters, but %d arguments were given", p.Name, len(p.Params), len(args))
	}
	for i := range args {
		if t := args[i].t; t != nil {
			f.many = append(f.many, t)
		}
	}
	f.opt = &launching{k, shape, args}
	f.call()
	x.s.leave(f)
}

// stored caches by program which parameters it writes.
var stored sync.Map // *kir.Program to []bool

// storesTo reports which of the parameters the program's own stores and atomic operations name as their buffer. What is written at an address
// that was computed is not seen.
func storesTo(p *kir.Program) []bool {
	if v, ok := stored.Load(p); ok {
		return v.([]bool)
	}
	out, param := make([]bool, len(p.Params)), map[kir.Value]int{}
	var visit func(b *kir.Block)
	visit = func(b *kir.Block) {
		for _, in := range b.Instrs {
			switch {
			case in.Op == kir.OpParam:
				param[in.Res[0]] = in.Sym
			case (in.Op == kir.OpStore || in.Op == kir.OpAtomic) && in.Space == kir.Global:
				if i, ok := param[in.Args[0]]; ok {
					out[i] = true
				}
			}
			for _, inner := range in.Blocks {
				visit(inner)
			}
		}
	}
	visit(p.Body)
	stored.Store(p, out)
	return out
}

// checkBlocks refuses a grid and block that the program is not written for.
func (f *frame) checkBlocks(p *kir.Program, shape LaunchShape) {
	threads := 1
	for i := range 3 {
		if shape.Grid[i] < 0 || shape.Block[i] < 0 || shape.Block[i] > 1024 {
			f.fail(fault.Invalid, "a launch of grid %v and block %v; give counts of at least 0, and of at most 1024 threads", shape.Grid, shape.Block)
		}
		threads *= max(shape.Block[i], 1)
	}
	switch exact := p.FixedThreads || len(p.Tiles) > 0; {
	case exact && (threads != p.Threads || max(shape.Block[0], 1) != threads):
		f.fail(fault.Invalid, "kernel %s is written for blocks of %d threads in x, but the launch has blocks of %v", p.Name, p.Threads, shape.Block)
	case threads > p.Threads:
		f.fail(fault.Invalid, "kernel %s is written for blocks of at most %d threads, but the launch has blocks of %v", p.Name, p.Threads, shape.Block)
	}
}

// launchArgs packs the arguments as the program's parameters want them.
func (f *frame) launchArgs(p *kir.Program, args []Arg) {
	l := f.NewLaunch()
	at, size := p.ArgLayout()
	for len(l.Args) < size {
		l.Args = append(l.Args, 0)
	}
	clear(l.Args)
	le := binary.LittleEndian
	tensors, stores := f.many, storesTo(p)
	for i := range p.Params {
		q, a, b := &p.Params[i], &args[i], l.Args[at[i]:]
		switch {
		case q.Kind == kir.ParamBuffer && a.t != nil:
			t := tensors[0] // a.t, or its copy on this device
			tensors = tensors[1:]
			if t.dt != q.Type {
				f.fail(fault.Invalid, "parameter %s of kernel %s is a buffer of %v, but a tensor of %v was given", q.Name, p.Name, q.Type, t.dt)
			}
			if a.writes && q.ReadOnly {
				f.fail(fault.Invalid, "parameter %s of kernel %s is read-only, but the tensor was given as an output", q.Name, p.Name)
			}
			if !a.writes && stores[i] {
				f.fail(fault.Invalid, "kernel %s writes its parameter %s, but the tensor was given as an input; give it with Out", p.Name, q.Name)
			}
			le.PutUint64(b, t.ptr())
		case q.Kind == kir.ParamScalar && a.t == nil:
			putScalar(b, q.Type, a.number)
		case q.Kind == kir.ParamScalar:
			f.fail(fault.Invalid, "parameter %s of kernel %s is a number, but a tensor was given", q.Name, p.Name)
		case q.Kind == kir.ParamBuffer:
			f.fail(fault.Invalid, "parameter %s of kernel %s is a buffer, but a number was given", q.Name, p.Name)
		default:
			f.fail(fault.Unsupported, "parameter %s of kernel %s is an array, which Launch does not pass", q.Name, p.Name)
		}
	}
}

func putScalar(b []byte, t dtype.DType, v kernels.Scalar) {
	le := binary.LittleEndian
	switch t {
	case dtype.Float32:
		le.PutUint32(b, math.Float32bits(float32(v.F)))
	case dtype.Float64:
		le.PutUint64(b, math.Float64bits(v.F))
	case dtype.Float16:
		le.PutUint16(b, uint16(dtype.F16FromFloat64(v.F)))
	case dtype.BFloat16:
		le.PutUint16(b, uint16(dtype.BF16FromFloat64(v.F)))
	default:
		switch t.Size() {
		case 1:
			b[0] = byte(v.I)
		case 2:
			le.PutUint16(b, uint16(v.I))
		case 4:
			le.PutUint32(b, uint32(v.I))
		default:
			le.PutUint64(b, uint64(v.I))
		}
	}
}

// runLaunch issues a user's kernel.
func runLaunch(f *frame) error {
	c, st := f.opt.(*launching), f.x.m.stream
	p, err := c.k.Program()
	if err != nil {
		return err
	}
	f.checkBlocks(p, c.shape)
	f.launchArgs(p, c.args)
	fn, err := st.Device().User(c.k)
	if err != nil {
		return err
	}
	tensors := f.many
	for i := range c.args {
		if c.args[i].t == nil {
			continue
		}
		if c.args[i].writes {
			if t := tensors[0]; !f.x.m.noGrad && t.inherits() {
				f.checkHistory(t)
			}
			f.writes(tensors[0])
		}
		tensors = tensors[1:]
	}
	d, l := f.dl, &f.launch
	for i := range 3 {
		d.Grid[i], d.Block[i] = uint32(max(c.shape.Grid[i], 1)), uint32(max(c.shape.Block[i], 1))
	}
	d.Func, d.Stream, d.Shared, d.Args = fn.Handle, st.Handle(), uint32(c.shape.Shared)+fn.Shared, l.Args
	return st.Device().Check(st.Device().Driver().Launch(d), "the kernel could not be launched")
}
