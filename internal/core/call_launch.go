package core

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// Arg is one argument of a user's kernel: a tensor that it reads or writes, or a number.
type Arg struct {
	kind   argKind
	t      *Tensor
	number kernels.Scalar
}

type argKind uint8

const (
	noArg argKind = iota
	argNumber
	argIn
	argOut
	argMapped
)

// In is an argument for a tensor that the kernel reads.
func In(t *Tensor) Arg { return Arg{kind: argIn, t: t} }

// Out is an argument for a tensor that the kernel writes, and may read.
func Out(t *Tensor) Arg { return Arg{kind: argOut, t: t} }

// Mapped is an argument for a tensor that the kernel reads through a tensor map.
func Mapped(t *Tensor) Arg { return Arg{kind: argMapped, t: t} }

// Number is a scalar argument. It is rounded to the type of a floating-point parameter; for any other parameter it must be whole, and in
// the range of its type.
func Number(v float64) Arg {
	s := kernels.FloatScalar(v)
	if v >= 1<<63 {
		s.I = math.MinInt64 // the greatest int64 rounds to 2^63 as a float, so it would seem equal
	}
	return Arg{kind: argNumber, number: s}
}

// Integer is a scalar argument, exact to 64 bits. It must be in the range of the parameter's type.
func Integer(v int64) Arg { return Arg{kind: argNumber, number: kernels.IntScalar(v)} }

// LaunchShape is a launch's grid in blocks and its block in threads.
type LaunchShape struct {
	// Grid is x, y, z. Counts that are left out at its end are 1; of the others, a 0 launches nothing.
	Grid [3]int
	// Block is x, y, z, where 0 means 1. A kernel that fixes its block, by FixedThreads or with tiles, needs none.
	Block [3]int
	// Shared is the dynamic shared memory of a block in bytes, for an array of the kernel that is declared with -1 elements.
	Shared int
}

// Over is the shape for at least n threads in x, in blocks of 256; if n is 0, the launch does nothing. A kernel that fixes another number
// of threads needs a shape of its own.
func Over(n int) LaunchShape {
	return LaunchShape{Grid: [3]int{min(n, (n+255)/256), 1, 1}, Block: [3]int{256}}
}

var rowLaunch *row

func init() {
	rowLaunch = define(row{Name: "Launch", takes: "tensors…^; first second third fourth; options ->", flags: flagUser,
		infer: func(*frame) {}, run: runLaunch, alters: alterLaunch, checkDeferred: checkLaunch})
}

// launching is a call of rowLaunch; the frame's many are the tensors among args, in order, and its scalars the first numbers.
type launching struct {
	k     *kernel.Kernel
	shape LaunchShape
	// kinds are the kinds of all arguments; numbers holds the other arguments that are numbers, each as an exact number and as a float.
	kinds   *intList
	numbers numberList
}

// Launch runs a user's kernel on x's stream, in order with the operations before and after. A buffer parameter gets the address of a
// tensor's first element; the caller ensures the strides that the kernel assumes. The kernel is built and loaded on its first launch on a
// device. It may touch the elements of the tensors that it is given and no others: in a region, the memory around them may not be there.
// There the first four numbers are values, which may change from run to run. No gradient is recorded, and writing to a tensor that requires
// one is refused: use a Function to give a kernel a derivative. In a backward pass with CreateGraph a launch on tensors that require grad
// is refused too, except under NoGrad.
func (x *Exec) Launch(k *kernel.Kernel, shape LaunchShape, args ...Arg) {
	f := x.op(rowLaunch)
	p, err := k.Program()
	f.checkKernel(err)
	if len(args) != len(p.Params) {
		f.fail(fault.Invalid, "kernel %s has %d parameters, but %d arguments were given; its parameters are %s", p.Name, len(p.Params),
			len(args), parameters(p))
	}
	for i := range args {
		switch a := &args[i]; {
		case a.kind == noArg:
			f.fail(fault.Invalid, "argument %d of kernel %s is a zero value; make it with In, Out, Mapped, Number or Integer", i, p.Name)
		case a.kind != argNumber && a.t == nil:
			f.fail(fault.Invalid, "argument %d of kernel %s is a nil tensor; give it one", i, p.Name)
		case a.kind != argNumber:
			f.many = append(f.many, a.t)
		}
	}
	f.keepsGrad(p.Name)
	kinds, scalars, numbers := f.lists[:0], f.scalarB[:0], 0
	for _, a := range args {
		kinds = append(kinds, int(a.kind))
		switch {
		case a.kind != argNumber:
			continue
		case numbers < len(f.scalar):
			f.scalar[numbers] = a.number
		default:
			scalars = append(scalars, a.number)
		}
		numbers++
	}
	f.opt = launching{k, shape, x.s.made.list(kinds), scalarsOf(scalars)}
	f.call()
	x.s.leave(f)
}

// keepsGrad stops a launch in a derivative, in a pass with CreateGraph, on tensors that require grad: the derivative of what it computes
// would silently be missing. A checkpointed segment that runs again in the pass is no derivative.
func (f *frame) keepsGrad(name string) {
	r, m := f.x.s.run, &f.x.m
	if r == nil || r.node == nil || m.noGrad || m.saved != nil && m.saved.ours {
		return
	}
	for i, t := range f.many {
		if t.RequiresGrad() {
			f.fail(fault.Unsupported, "kernel %s is launched on tensor %d, which requires grad, in a pass with CreateGraph; a launch "+
				"records nothing, so the second derivative would lack this part: wrap the launch in a Function of its own, or launch on "+
				"x.NoGrad() to count its result as constant", name, i)
		}
	}
}

// parameters lists a kernel's parameters for an error, such as "n int64, x buffer of float32".
func parameters(p *kir.Program) string {
	if len(p.Params) == 0 {
		return "none"
	}
	var list []string
	for i := range p.Params {
		q := &p.Params[i]
		what := fmt.Sprint(q.Type)
		switch {
		case q.IsMap():
			what = "tensor map"
		case q.Kind == kir.ParamBuffer:
			what = "buffer of " + what
		case q.Kind == kir.ParamArray:
			what = fmt.Sprintf("[%d]%s", q.Count, what)
		}
		list = append(list, q.Name+" "+what)
	}
	return strings.Join(list, ", ")
}

// checkKernel stops the launch of a kernel with a mistake. The error has the line of the mistake, and names that of the launch.
func (f *frame) checkKernel(err error) {
	var e *fault.Error
	if !errors.As(err, &e) || e.Line == 0 {
		f.check(err)
		return
	}
	file, line := caller()
	n := fault.New(e.Kind, "%s, launched at %s:%d: %s", e.Op, file, line, e.Msg)
	n.File, n.Line = e.File, e.Line
	f.stop(n)
}

// paramUse is how a program uses its parameters, as far as a launch needs to know.
type paramUse struct {
	writes []bool        // buffers that the program may write
	tiles  []kir.MapTile // the tiles that are loaded through tensor maps
}

// paramUses caches the paramUse of each program.
var paramUses sync.Map // *kir.Program to paramUse

func paramsOf(p *kir.Program) paramUse {
	use, ok := paramUses.Load(p)
	if !ok {
		use, _ = paramUses.LoadOrStore(p, paramUse{p.Writes(), p.MapTiles()})
	}
	return use.(paramUse)
}

// mostBlocks are the blocks that every device takes along x, y and z.
var mostBlocks = [3]int{math.MaxInt32, math.MaxUint16, math.MaxUint16}

// checkBlocks refuses a grid or block that the program cannot run with, and returns both as they run. A grid with a count of 0 launches
// nothing.
func (f *frame) checkBlocks(p *kir.Program, shape LaunchShape) (grid, block [3]int) {
	exact, given := p.ExactThreads(), shape.Block != [3]int{}
	grid, block = shape.sizes(p)
	threads := 1
	for i := range 3 {
		switch {
		case shape.Grid[i] < 0:
			f.fail(fault.Invalid, "the launch has a grid of %v; give at least 0 blocks", shape.Grid)
		case grid[i] > mostBlocks[i]:
			f.fail(fault.Invalid, "the launch has a grid of %v blocks; a device takes at most %d, %d and %d", grid, mostBlocks[0],
				mostBlocks[1], mostBlocks[2])
		case shape.Block[i] < 0:
			f.fail(fault.Invalid, "the launch has blocks of %v; give at least 1 thread", shape.Block)
		case block[i] > kir.MaxThreads:
			f.fail(fault.Invalid, "the launch has blocks of %v threads; give at most %d", block, kir.MaxThreads)
		}
		threads *= block[i]
	}
	switch {
	case shape.Grid == [3]int{}:
		f.fail(fault.Invalid, "the launch has no Grid; give the number of blocks, such as [3]int{n, 1, 1}, with which an n of 0 launches "+
			"nothing")
	case !exact && !given:
		f.fail(fault.Invalid, "kernel %s does not fix the threads of its blocks, and the launch has no Block; give it one, such as "+
			"[3]int{256}, or call FixedThreads in the kernel", p.Name)
	case exact && (threads != p.Threads || block[0] != threads) && !p.FixedThreads:
		f.fail(fault.Invalid, "kernel %s is written for blocks of %d threads in x, but the launch has blocks of %v; kernels with tiles "+
			"fix their threads: call FixedThreads(%d) in it, or give no Block", p.Name, p.Threads, block, threads)
	case exact && (threads != p.Threads || block[0] != threads):
		f.fail(fault.Invalid, "kernel %s is written for blocks of %d threads in x, but the launch has blocks of %v; give a "+
			"LaunchShape with a Grid of such blocks and no Block", p.Name, p.Threads, block)
	case threads > p.Threads:
		f.fail(fault.Invalid, "kernel %s is written for blocks of at most %d threads, but the launch has blocks of %v; launch smaller "+
			"blocks, and more of them", p.Name, p.Threads, block)
	}
	return grid, block
}

// sizes returns the grid and block as they run: the counts of Grid that are left out at its end are 1, and so are those of Block.
func (s LaunchShape) sizes(p *kir.Program) (grid, block [3]int) {
	grid, block = s.Grid, s.Block
	if block == [3]int{} && p.ExactThreads() {
		block[0] = p.Threads
	}
	for i := 2; i >= 0 && grid[i] == 0; i-- {
		grid[i] = 1
	}
	for i := range block {
		if block[i] == 0 {
			block[i] = 1
		}
	}
	return grid, block
}

// checkShared refuses a launch that takes more shared memory than a block may have. Tiles is what the kernel's tiles take of it.
func (f *frame) checkShared(p *kir.Program, shape LaunchShape, tiles int) {
	if shape.Shared < 0 {
		f.fail(fault.Invalid, "a launch with %d bytes of shared memory; give at least 0", shape.Shared)
	}
	total, dynamic, most := shape.Shared+tiles, "", f.x.m.stream.Device().Limits().SharedPerBlock
	for _, a := range p.Shared {
		total += max(a.Count, 0) * a.Type.Size()
		if a.Count < 0 {
			dynamic = a.Name
		}
	}
	switch {
	case shape.Shared == 0 && dynamic != "":
		f.fail(fault.Invalid, "the launch brings no memory for array %s of kernel %s, which is declared with -1 elements; give its size "+
			"in bytes as LaunchShape.Shared", dynamic, p.Name)
	case shape.Shared > 0 && dynamic == "":
		f.fail(fault.Invalid, "the launch brings %d bytes of dynamic shared memory, for which kernel %s declares no array; declare one "+
			"with -1 elements", shape.Shared, p.Name)
	case shape.Shared > most || total > most:
		f.fail(fault.Invalid, "a block of kernel %s takes %d bytes of shared memory, and the device has %d for one; take less", p.Name,
			max(total, shape.Shared), most)
	}
}

// launchArgs packs the arguments in the layout of the program's parameters.
func (f *frame) launchArgs(p *kir.Program, c *launching) {
	l := f.NewLaunch()
	at, size := p.ArgLayout()
	for len(l.Args) < size {
		l.Args = append(l.Args, 0)
	}
	clear(l.Args)
	le := binary.LittleEndian
	tensors, use := f.many, paramsOf(p)
	kinds, scalars := c.kinds.ints(), append(f.scalar[:len(f.scalar):len(f.scalar)], c.numbers.scalars()...)
	for i := range p.Params {
		q, kind, b := &p.Params[i], argKind(kinds[i]), l.Args[at[i]:]
		switch {
		case q.IsMap():
			if kind != argMapped {
				f.fail(fault.Invalid, "parameter %s of kernel %s is a tensor map; give it a tensor with Mapped", q.Name, p.Name)
			}
			f.tensorMap(p, q, use.tiles[i], tensors[0], b)
			tensors = tensors[1:]
		case kind == argMapped:
			f.fail(fault.Invalid,
				"parameter %s of kernel %s is not a tensor map, but Mapped was given; give a tensor with In or Out, or a number", q.Name,
				p.Name)
		case q.Kind == kir.ParamBuffer && kind != argNumber:
			t := tensors[0]
			tensors = tensors[1:]
			if t.dt != q.Type {
				f.fail(fault.Invalid,
					"parameter %s of kernel %s is a buffer of %v, but a tensor of %v was given; convert it with x.ToDType", q.Name,
					p.Name, q.Type, t.dt)
			}
			if kind == argOut && q.ReadOnly {
				f.fail(fault.Invalid, "parameter %s of kernel %s is read-only, but the tensor was given as an output", q.Name, p.Name)
			}
			if kind == argIn && use.writes[i] {
				f.fail(fault.Invalid, "kernel %s writes its parameter %s, but the tensor was given as an input; give it with Out", p.Name,
					q.Name)
			}
			le.PutUint64(b, t.ptr())
		case q.Kind == kir.ParamScalar && kind == argNumber:
			f.checkScalar(p, q, scalars[0])
			putScalar(b, q.Type, scalars[0])
			scalars = scalars[1:]
		case q.Kind == kir.ParamScalar:
			f.fail(fault.Invalid, "parameter %s of kernel %s is a number, but a tensor was given", q.Name, p.Name)
		case q.Kind == kir.ParamBuffer:
			f.fail(fault.Invalid, "parameter %s of kernel %s is a buffer, but a number was given", q.Name, p.Name)
		default:
			f.fail(fault.Unsupported, "parameter %s of kernel %s is an array, which Launch does not pass", q.Name, p.Name)
		}
	}
}

// checkScalar refuses a number that parameter q cannot hold.
func (f *frame) checkScalar(p *kir.Program, q *kir.Param, v kernels.Scalar) {
	if q.Type.IsFloat() {
		return
	}
	lo, hi := extent(q.Type)
	switch fits := float64(v.I) == v.F; {
	case v.F != math.Trunc(v.F) || math.IsInf(v.F, 0):
		f.fail(fault.Invalid, "parameter %s of kernel %s is of type %v, but the number %v was given; give a whole number", q.Name, p.Name,
			q.Type, v.F)
	case !fits:
		f.fail(fault.Invalid, "parameter %s of kernel %s is of type %v, but the number %v was given; give one from %d to %d", q.Name,
			p.Name, q.Type, v.F, lo, hi)
	case v.I < lo || v.I > hi:
		f.fail(fault.Invalid, "parameter %s of kernel %s is of type %v, but the number %d was given; give one from %d to %d, or declare "+
			"it int64", q.Name, p.Name, q.Type, v.I, lo, hi)
	}
}

// extent returns the least and the greatest int64 that a type has, which is an integer's or Bool.
func extent(t dtype.DType) (lo, hi int64) {
	bits := 8 * t.Size()
	switch {
	case t == dtype.Bool:
		return 0, 1
	case t.IsSigned():
		return -1 << (bits - 1), 1<<(bits-1) - 1
	}
	return 0, 1<<min(bits, 63) - 1
}

// tensorMap fills in parameter q, a tensor map of t through which tiles are loaded.
func (f *frame) tensorMap(p *kir.Program, q *kir.Param, tile kir.MapTile, t *Tensor, b []byte) {
	if tile.Type == dtype.Invalid {
		return // no tile is loaded by it
	}
	if t.dt != tile.Type || !kir.Mappable(t.dt) {
		f.fail(fault.Invalid, "tensor map %s of kernel %s loads tiles of %v, but a tensor of %v was given; give one of the same type, "+
			"which float16, bfloat16 and float32 can be",
			q.Name, p.Name, tile.Type, t.dt)
	}
	n := len(t.shape)
	switch {
	case tile.Pixels:
		f.fail(fault.Unsupported, "tensor map %s of kernel %s loads pixels, which kernels of programs cannot do; load matrices",
			q.Name, p.Name)
	case tile.Groups && (n != 4 || t.Numel() == 0):
		f.fail(fault.Invalid, "tensor map %s of kernel %s was given a tensor of shape %v; it loads from groups of matrices: "+
			"give a tensor of 4 dimensions that has elements", q.Name, p.Name, t.shape)
	case !tile.Groups && (n != 2 && n != 3 || t.Numel() == 0):
		f.fail(fault.Invalid, "tensor map %s of kernel %s was given a tensor of shape %v; give a matrix, or an array of matrices in 3 "+
			"dimensions, that has elements", q.Name, p.Name, t.shape)
	}
	size := t.dt.Size()
	m := kir.TensorMap{Addr: t.ptr(), Dims: [4]int{1, 1, 1, 1}, Strides: [3]int{16, 16, 16}, Tile: tile}
	for d := range n {
		m.Dims[d] = t.shape[n-1-d]
	}
	sound := m.Addr%16 == 0 && (t.stride[n-1] == 1 || t.shape[n-1] == 1)
	for d := range m.Strides {
		if m.Dims[d+1] > 1 {
			m.Strides[d] = t.stride[n-2-d] * size
		}
		sound = sound && m.Strides[d] > 0 && m.Strides[d]%16 == 0 && m.Strides[d] < 1<<40
	}
	for _, d := range m.Dims {
		sound = sound && d <= 1<<32
	}
	if !sound {
		f.fail(fault.Invalid, "tensor map %s of kernel %s was given a tensor of shape %v and strides %v that begins at %#x; the "+
			"elements of the last dimension must be adjacent, and its lines and matrices begin at "+
			"multiples of 16 bytes: give a copy of it whose last dimension is padded to a multiple of %d", q.Name, p.Name, t.shape,
			t.stride, m.Addr, 16/size)
	}
	m.Append(b[:0])
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

func alterLaunch(f *frame) {
	tensors := f.many
	for _, kind := range f.opt.(launching).kinds.ints() {
		if argKind(kind) == argNumber {
			continue
		}
		if argKind(kind) == argOut {
			f.alter(tensors[0])
		}
		tensors = tensors[1:]
	}
}

// checkLaunch finds the mistakes of a deferred launch, whose operands may have no address yet; what is allocated later is aligned.
func checkLaunch(f *frame) {
	c := f.opt.(launching)
	p, err := c.k.Program()
	f.check(err)
	f.checkBlocks(p, c.shape)
	f.launchArgs(p, &c)
	fn, err := f.x.m.stream.Device().User(c.k)
	f.check(err)
	f.checkShared(p, c.shape, int(fn.Shared))
}

// runLaunch issues a user's kernel.
func runLaunch(f *frame) error {
	c, st := f.opt.(launching), f.x.m.stream
	p, err := c.k.Program()
	if err != nil {
		return err
	}
	grid, block := f.checkBlocks(p, c.shape)
	f.launchArgs(p, &c)
	if f.x.s.learning() { // no built-in kernel
		return nil
	}
	fn, err := st.Device().User(c.k)
	if err != nil {
		return err
	}
	f.checkShared(p, c.shape, int(fn.Shared))
	if grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return nil
	}
	d, l := f.dl, &f.launch
	for i := range 3 {
		d.Grid[i], d.Block[i] = uint32(grid[i]), uint32(block[i])
	}
	d.Func, d.Stream, d.Shared, d.Args, d.Waits = fn.Handle, st.Handle(), uint32(c.shape.Shared)+fn.Shared, l.Args, fn.Waits
	f.comesFrom(fn)
	f.x.s.launches++
	return f.hand()
}

func (launching) param() {}

func (l launching) printed() string {
	name, grid, block := "a kernel with a mistake", l.shape.Grid, l.shape.Block
	if p, err := l.k.Program(); err == nil {
		name = p.Name
		grid, block = l.shape.sizes(p)
	}
	out := fmt.Sprintf("%s in a grid of %v blocks of %v", name, grid, block)
	if l.shape.Shared > 0 {
		out += fmt.Sprintf(" with %d shared bytes", l.shape.Shared)
	}
	for _, v := range l.numbers.scalars() {
		if float64(v.I) == v.F {
			out += fmt.Sprintf(", %d", v.I)
		} else {
			out += fmt.Sprintf(", %v", v.F)
		}
	}
	for _, kind := range l.kinds.ints() {
		out += map[argKind]string{argIn: ", read", argOut: ", written", argMapped: ", mapped"}[argKind(kind)]
	}
	return out
}
