// Package tenon is tensors on GPUs for Go: eager operations with autograd, device memory that is cached and explained, and the same program
// on a simulated device where there is no GPU. It must not do any of the work: it is the face of the packages below, mostly generated
// from their documented methods.
//
// A program opens a device, and every operation runs on the Exec that Open returns:
//
//	x, err := tenon.Open(tenon.Best())
//	if err != nil { … }
//	defer func() { err = errors.Join(err, x.Close()) }() // Close tells what failed after the last wait
//	a := tenon.From(x, []float32{1, 2, 3})
//	b, err := tenon.Read[float32](x, x.MulS(a, 2))
//
// Operations panic with an *[Error], because mathematics must chain; [Try] and everything that returns an error turn the panic back into
// one.
package tenon

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// Exec is where an operation runs: a device and stream, whether gradients are recorded, and other modes. There is no current device,
// stream or mode besides: functions get an Exec as an argument, and On, NoGrad, Autocast and Host derive others of the same session.
//
// A session belongs to one goroutine; Fork gives another goroutine its own. Do not keep an Exec in a struct.
type Exec core.Exec

// Tensor is a handle of an n-dimensional array in device memory: a storage, an element type, and the shape, strides and offset of a view of
// it. All of that is immutable; the elements are not. Its methods never touch the device: what does is a method of Exec.
//
// Operations whose names end in Into change the elements of their destination, as out= does in PyTorch. It has the result's shape, lies on
// the Exec's device, and may be a view; autocast converts nothing for it. What else it may be depends on the operation:
//
//   - An element-wise operation, such as AddInto, ExpInto or WhereInto, converts to the destination's type where PyTorch does, such as from
//     integers to floating-point numbers and not back. The destination may be an operand, but may not overlap one otherwise. Gradients
//     follow the change, unless it is made on an Exec of NoGrad, with PyTorch's rules; a leaf that requires grad, or a view of one, can be
//     changed on such an Exec alone.
//   - Any other operation, such as MMInto, SumInto or CatInto, and one that is made of several, wants a destination of the result's type.
//     It may share memory with operands. Where gradients are recorded, and an operand or the destination requires one, the call is refused.
//     A contiguous destination at a multiple of 16 bytes, in another storage than the operands, is written without a copy; to others, and
//     from operations made of several, the result is copied.
//
// A tensor made while a scope is open belongs to it and is closed with it; see [Exec.Within]. Any other is loose: Close it, or leave it to
// the garbage collector, which is the slower net.
type Tensor core.Tensor

// Zero is 0 in an option whose 0 stands for a default: optim.AdamOpt{WeightDecay: tenon.Zero}.
const Zero = core.Zero

// Error is the error of every failed operation. Its fields are Kind, such as [OutOfMemory]; Op, the operation; Operands, their types and
// shapes; Msg; File and Line of the call; and Cause. Find it with errors.As.
type Error = fault.Error

// The kinds of [Error].
const (
	Invalid     = fault.Invalid
	OutOfMemory = fault.OutOfMemory
	DeviceFault = fault.Device
	Unsupported = fault.Unsupported
	Closed      = fault.Closed
	// CaptureFault is of what a capture cannot record, or breaks; SystemFault of what the machine refuses: a driver, a library or a file.
	CaptureFault = fault.Capture
	SystemFault  = fault.System
)

// DType is an element type.
type DType = dtype.DType

// The element types.
const (
	Bool       = dtype.Bool
	Uint8      = dtype.Uint8
	Int8       = dtype.Int8
	Int16      = dtype.Int16
	Int32      = dtype.Int32
	Int64      = dtype.Int64
	Float16    = dtype.Float16
	BFloat16   = dtype.BFloat16
	Float32    = dtype.Float32
	Float64    = dtype.Float64
	Complex64  = dtype.Complex64
	Complex128 = dtype.Complex128
)

// Reduction says how the losses of elements become the result of a loss.
type Reduction = core.Reduction

// The reductions: the mean of the losses, their sum, the losses as they are, and their sum over the size of dimension 0, which is for KLDiv
// alone.
const (
	ReduceMean      = core.ReduceMean
	ReduceSum       = core.ReduceSum
	ReduceNone      = core.ReduceNone
	ReduceBatchMean = core.ReduceBatchMean
)

// PadMode says what Pad adds.
type PadMode = core.PadMode

// What Pad adds: a constant, the elements mirrored at the border ones, the border ones, and the elements from the other end.
const (
	PadConstant  = core.PadConstant
	PadReflect   = core.PadReflect
	PadReplicate = core.PadReplicate
	PadCircular  = core.PadCircular
)

// ScatterMode says what a scatter does with the elements that are there.
type ScatterMode = core.ScatterMode

// What a scatter does with an element: it replaces it, adds to it, or multiplies it.
const (
	ScatterReplace  = core.ScatterReplace
	ScatterAdd      = core.ScatterAdd
	ScatterMultiply = core.ScatterMultiply
)

// Selector names a device to open.
type Selector struct{ sel rt.Selector }

// Best selects the first NVIDIA GPU, or the simulator where no NVIDIA device exists at all. A driver that is there and fails is an error.
func Best() Selector { return Selector{rt.Selector{Kind: rt.Best}} }

// CUDA selects the NVIDIA GPU with the given number.
func CUDA(ordinal int) Selector { return Selector{rt.Selector{Kind: rt.CUDA, Ordinal: ordinal}} }

// Sim selects a simulated device of the given capacity in bytes; 0 is 80 GiB. What is not touched costs no memory. Each is a machine of its
// own, unless TENON_SIM_DEVICES gives the simulated machine several devices.
func Sim(memory uint64) Selector { return Selector{rt.Selector{Kind: rt.Sim, Memory: memory}} }

// SimMachine selects device 0 of a new simulated machine of 1 to 8 devices, each of the given capacity in bytes; 0 is 80 GiB. At selects
// the others. They have one clock, and copies and waits between them go as between GPUs of one machine.
func SimMachine(devices int, memory uint64) Selector {
	return Selector{rt.Selector{Kind: rt.Sim, Machine: rt.NewMachine(devices, memory)}}
}

// At selects the device with the given number, from 0, in place of the one that s selects: Best().At(1) is the second NVIDIA GPU or, where
// there is none at all, the second device of the simulated machine.
func (s Selector) At(ordinal int) Selector {
	s.sel.Ordinal = ordinal
	return s
}

// Count returns how many devices At has to choose from.
func (s Selector) Count() (int, error) { return rt.Count(s.sel) }

// CPU selects this machine's processor.
func CPU() Selector { return Selector{rt.Selector{Kind: rt.CPU}} }

// ParseSelector returns the Selector that a text names, such as a program's option: "best", "cuda", "cuda:1", "cpu", "sim", or "sim:2GiB"
// with a number of KiB, MiB or GiB.
func ParseSelector(device string) (Selector, error) {
	kind, detail, given := strings.Cut(device, ":")
	switch {
	case kind == "best" && !given:
		return Best(), nil
	case kind == "cpu" && !given:
		return CPU(), nil
	case kind == "cuda" && !given:
		return CUDA(0), nil
	case kind == "cuda":
		if n, err := strconv.Atoi(detail); err == nil && n >= 0 {
			return CUDA(n), nil
		}
	case kind == "sim" && !given:
		return Sim(0), nil
	case kind == "sim":
		//tenon:unordered no text ends in two of them
		for unit, bytes := range map[string]uint64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
			number, ok := strings.CutSuffix(detail, unit)
			if n, err := strconv.ParseUint(number, 10, 32); ok && err == nil && n > 0 {
				return Sim(n * bytes), nil
			}
		}
	}
	err := fault.New(fault.Invalid, "Invalid device string: '%s'; give best, cuda, cuda:1, cpu, sim or sim:2GiB", device)
	return Selector{}, core.Located("ParseSelector", err)
}

// GPUs returns how many NVIDIA GPUs can be opened; 0 where there is no working driver. Until this process uses a GPU the count follows
// CUDA_VISIBLE_DEVICES, also where that changes, if NVIDIA's management library is there; the first use fixes it.
func GPUs() int { return rt.GPUs() }

// Open opens a device and returns the first Exec on it. Close it when done.
func Open(s Selector) (*Exec, error) {
	host, err := rt.Host()
	if err != nil {
		return nil, err
	}
	dev := host
	if s.sel.Kind != rt.CPU || s.sel.Ordinal != 0 {
		if dev, err = rt.Open(s.sel); err != nil {
			return nil, err
		}
	}
	return (*Exec)(core.New(dev, host)), nil
}

// Try runs f and returns the error with which an operation in it stopped, or nil. Any other panic goes on.
func Try(f func()) error { return core.Try(f) }

// Do runs f in a scope, as [Exec.Scope] does, and returns its error, or the one with which an operation in it stopped. What f made is
// closed either way.
func (x *Exec) Do(f func(x *Exec) error) (err error) {
	stopped := Try(func() {
		if f == nil {
			core.NoFunction("Do", "f")
		}
		x.Scope(func(x *Exec) { err = f(x) })
	})
	switch {
	case stopped == nil:
		return err
	case err == nil:
		return stopped
	}
	return errors.Join(err, stopped)
}

// On returns the Exec of the same modes on stream st, which may be another device's.
func (x *Exec) On(st *cuda.Stream) *Exec {
	c := core.Made((*core.Exec)(x), "On")
	if on := c.Last((*rt.Stream)(st)); on != nil {
		return (*Exec)(on)
	}
	core.Enter(c, "On")
	defer core.Leave(c)
	return (*Exec)(c.On((*rt.Stream)(st)))
}

// F16 holds the bits of an element of Float16. Its Float32 method gives the number, and F16FromFloat32 makes one.
type F16 = dtype.F16

// BF16 holds the bits of an element of BFloat16. Its Float32 method gives the number, and BF16FromFloat32 makes one.
type BF16 = dtype.BF16

// F16FromFloat32 rounds f to nearest, ties to even; overflow gives infinity.
func F16FromFloat32(f float32) F16 { return dtype.F16FromFloat32(f) }

// BF16FromFloat32 rounds f to nearest, ties to even; overflow gives infinity.
func BF16FromFloat32(f float32) BF16 { return dtype.BF16FromFloat32(f) }

// From returns a tensor with a copy of data. With no shape it has one dimension. Its type is the one that T stands for: Int64 for int,
// Float16 for [F16], BFloat16 for [BF16], and for Go's other types the one of the same name.
func From[T dtype.Element](x *Exec, data []T, shape ...int) *Tensor {
	c := x.enter("From")
	defer core.Leave(c)
	return (*Tensor)(core.From(c, data, shape...))
}

// Read returns the elements in row-major order as T, which must stand for the tensor's type as it does in From. It waits for the work that
// makes them.
func Read[T dtype.Element](x *Exec, t *Tensor) ([]T, error) {
	c, err := x.entered("Read", t)
	if err != nil {
		return nil, err
	}
	defer core.Leave(c)
	return core.Read[T](c, (*core.Tensor)(t))
}

// Arg is one argument of a kernel: [In], [Out], [Mapped], [Number] or [Integer].
type Arg = core.Arg

// LaunchShape is the grid of a launch in blocks and the block in threads: its fields Grid and Block have three ints each, x, y and z, of
// which 0 means 1, and Shared is the dynamic shared memory of a block in bytes.
type LaunchShape = core.LaunchShape

// In is a tensor that a kernel reads. A launch is refused whose kernel writes it at an address made of the parameter's, whatever way that
// takes through the kernel; what is written at an address that the kernel loads from device memory is not seen.
func In(t *Tensor) Arg { return core.In((*core.Tensor)(t)) }

// Out is a tensor that a kernel writes, and may read.
func Out(t *Tensor) Arg { return core.Out((*core.Tensor)(t)) }

// Mapped is a tensor that a kernel reads by a [kernel.TensorMap]: a matrix, or an array of matrices in three dimensions or, for a map that
// is used with Group, in four, of Float16, BFloat16 or Float32. The elements of its last dimension are adjacent, and its address and other
// strides are multiples of 16 bytes; another one is refused.
func Mapped(t *Tensor) Arg { return core.Mapped((*core.Tensor)(t)) }

// Number is a scalar argument; it is converted to the parameter's type.
func Number(v float64) Arg { return core.Number(v) }

// Integer is a scalar argument, exact to 64 bits.
func Integer(v int64) Arg { return core.Integer(v) }

// Over is the shape for at least n threads in x.
func Over(n int) LaunchShape { return core.Over(n) }

// Launch runs a kernel on x's stream, in order with the operations before and after. A buffer parameter gets the address of a tensor's
// first element. The kernel is built and loaded on its first launch on a device. No gradient is recorded: give it one with a [Function].
func (x *Exec) Launch(k *kernel.Kernel, shape LaunchShape, args ...Arg) {
	c := x.enter("Launch")
	defer core.Leave(c)
	c.Launch(k, shape, args...)
}

// Graph is captured work: Exec.Replay runs it again on the same memory. Tensors made while it was captured belong to it and are closed with
// it, unless Exec.Keep took them out; those it read live at least as long as it does.
type Graph core.Graph

// Nodes returns how many operations the graph has, 0 for none.
func (g *Graph) Nodes() int { return (*core.Graph)(g).Nodes() }

// Pool returns the id of the pool of the graph's memory, by which other captures can share it; zero if g is not a graph that Capture
// returned.
func (g *Graph) Pool() [2]uint64 { return (*core.Graph)(g).Pool() }

// Dump writes the graph to a file in the DOT language, with what the driver knows of each node. It needs CaptureOpt.Debug.
func (g *Graph) Dump(path string) error { return core.Located("Dump", (*core.Graph)(g).Dump(path)) }

// Close releases the graph, its memory and the tensors that were made while it was captured. Closing twice does nothing.
func (g *Graph) Close() error { return (*core.Graph)(g).Close() }

// CaptureOpt are the options of Capture.
type CaptureOpt struct {
	// Share lets the graph use the memory of another one: running one may overwrite what the other made, and the graph that was captured
	// first should run first. Runs of graphs that share memory wait for each other, unless ManualStreams switched that off.
	Share *Graph
	// Pool is the id of the private pool for the graph's memory, from cuda.NewPoolID: graphs of one pool share memory as by Share. Zero is
	// a new pool.
	Pool [2]uint64
	// Stream is where f's work is recorded: not the default stream. Nil is one that nobody else has.
	Stream *cuda.Stream
	// Mode says which calls that could disturb the capture end it: of its own thread, of all, or none.
	Mode cuda.CaptureMode
	// Debug keeps the graph as it was recorded, for Dump.
	Debug bool
}

// Capture records the work of f as a graph and returns it; nothing runs until Replay. What waits for the device or reads or brings host
// data (Item, Read, From, Synchronize) is an error that names the call's line: in f, and of Capture, also if f passes over it. The device
// stays usable. The Exec that f gets has another stream than x, and f's work on further streams belongs to the graph where it depends on
// f's. Memory comes from the graph's own pool. Random numbers are drawn anew by every Replay, from where the generator then is.
func (x *Exec) Capture(f func(x *Exec), opts ...CaptureOpt) (*Graph, error) {
	opt, err := core.Only("Capture", opts)
	if err != nil {
		return nil, err
	}
	c, err := x.entered("Capture")
	if err != nil {
		return nil, err
	}
	defer core.Leave(c)
	if f == nil {
		return nil, core.Try(func() { core.NoFunction("Capture", "f") })
	}
	g, err := c.Capture(func(x *core.Exec) {
		f((*Exec)(x))
	}, core.CaptureOpt{Share: (*core.Graph)(opt.Share), Pool: opt.Pool, Stream: (*rt.Stream)(opt.Stream),
		Mode: rt.CaptureMode(opt.Mode), Debug: opt.Debug})
	return (*Graph)(g), core.Located("Capture", err)
}

// Replay queues one run of the graph on x's stream, after all earlier work on what it reads and writes. Device memory changes; host code of
// the captured function does not run.
func (x *Exec) Replay(g *Graph) error {
	c, err := x.entered("Replay")
	if err != nil {
		return err
	}
	defer core.Leave(c)
	return core.Located("Replay", c.Replay((*core.Graph)(g)))
}

// Function is an operation with a derivative of its own. Forward's operations are not recorded; Backward is called in their stead. Both run
// under the autocast of the Exec that Apply is a method of, and Forward gets its inputs as they are; see [CastsInputs].
type Function interface {
	// Forward computes the outputs. What Backward needs it saves in c.
	Forward(x *Exec, c *FunctionContext, inputs ...*Tensor) []*Tensor
	// Backward returns the gradients of the inputs, nil where there is none, given those of the outputs (zeros where none came). An error
	// fails the backward pass and names the line of the forward call.
	Backward(x *Exec, c *FunctionContext, grads ...*Tensor) ([]*Tensor, error)
}

// CastsInputs is a [Function] that under autocast gets its inputs in one type: those that autocast may convert come in the type CastInputs
// returns, and Forward and Backward run without autocast. Gradients go back in the types that the inputs had. Without autocast it is as any
// other, and so it is with the zero type.
type CastsInputs interface {
	Function
	CastInputs() DType
}

// FunctionContext carries what Forward leaves for Backward: the tensors that Save keeps, and anything else in its field Value, of type any.
type FunctionContext core.FunctionContext

// Save keeps tensors for Backward; inputs and outputs of the function keep their history. It is called once.
func (c *FunctionContext) Save(ts ...*Tensor) { (*core.FunctionContext)(c).Save(coreList(ts)...) }

// Saved returns what Save kept.
func (c *FunctionContext) Saved() []*Tensor { return faceList((*core.FunctionContext)(c).Saved()) }

// NeedsGrad reports whether input i wants a gradient.
func (c *FunctionContext) NeedsGrad(i int) bool { return (*core.FunctionContext)(c).NeedsGrad(i) }

// Apply runs fn on the inputs and records it if any of them requires a gradient.
func (x *Exec) Apply(fn Function, inputs ...*Tensor) []*Tensor {
	c := x.enter("Apply", inputs...)
	defer core.Leave(c)
	if fn == nil {
		core.NoFunction("Apply", "fn")
	}
	return faceList(c.Apply(function{fn}, coreList(inputs)...))
}

// function is a Function as core sees it.
type function struct{ fn Function }

// String names the user's type.
func (f function) String() string { return fmt.Sprintf("%T", f.fn) }

func (f function) Forward(x *core.Exec, c *core.FunctionContext, inputs ...*core.Tensor) []*core.Tensor {
	return coreList(f.fn.Forward((*Exec)(x), (*FunctionContext)(c), faceList(inputs)...))
}

func (f function) Backward(x *core.Exec, c *core.FunctionContext, grads ...*core.Tensor) ([]*core.Tensor, error) {
	res, err := f.fn.Backward((*Exec)(x), (*FunctionContext)(c), faceList(grads)...)
	return coreList(res), err
}

// CastInputs is 0 where the function says nothing.
func (f function) CastInputs() DType {
	if c, ok := f.fn.(CastsInputs); ok {
		return c.CastInputs()
	}
	return 0
}

// made returns x as core sees it. It stops the method op with an error if x is nil or no one's session, or if one of its operands is nil, a
// zero value or closed.
func (x *Exec) made(op string, operands ...*Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op)
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	return c
}

// enter is made for a method that uses the session: the caller leaves it with core.Leave.
func (x *Exec) enter(op string, operands ...*Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op) // as made does, without another call
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	core.Enter(c, op)
	return c
}

// orNil returns an operand that may be nil. It refuses a zero value and a closed tensor.
func orNil(op string, i int, t *Tensor) *core.Tensor {
	c := (*core.Tensor)(t)
	if t != nil {
		core.Given(op, i, c)
	}
	return c
}

// found is made for a method that returns an error.
func (x *Exec) found(op string, operands ...*Tensor) (c *core.Exec, err error) {
	err = core.Try(func() { c = x.made(op, operands...) })
	return c, err
}

// entered is enter for a method that returns an error.
func (x *Exec) entered(op string, operands ...*Tensor) (c *core.Exec, err error) {
	err = core.Try(func() { c = x.enter(op, operands...) })
	return c, err
}

// made is the same for a method of a tensor.
func (t *Tensor) made(op string, operands ...*Tensor) *core.Tensor {
	c := core.MadeTensor((*core.Tensor)(t), op)
	for i, o := range operands {
		core.Given(op, i, (*core.Tensor)(o))
	}
	return c
}

// coreAny and faceAny convert a value that may be a tensor.
func coreAny(v any) any {
	if t, ok := v.(*Tensor); ok {
		return (*core.Tensor)(t)
	}
	return v
}

func faceAny(v any) any {
	if t, ok := v.(*core.Tensor); ok {
		return (*Tensor)(t)
	}
	return v
}

func coreList(ts []*Tensor) []*core.Tensor {
	if ts == nil {
		return nil
	}
	out := make([]*core.Tensor, len(ts))
	for i, t := range ts {
		out[i] = (*core.Tensor)(t)
	}
	return out
}

func faceList(ts []*core.Tensor) []*Tensor {
	if ts == nil {
		return nil
	}
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		out[i] = (*Tensor)(t)
	}
	return out
}
