// Package tenon brings tensors on GPUs to Go: eager operations with autograd, a caching allocator whose memory use can be explained, and
// a simulated device that runs the same program where there is no GPU. It does none of the work itself: it is the public face of the
// packages below, mostly generated from their documented methods.
//
// A program opens a device, and every operation runs on the Exec that Open returns:
//
//	x, err := tenon.Open(tenon.Best())
//	if err != nil { … }
//	defer func() { err = errors.Join(err, x.Close()) }() // Close reports what failed after the last wait
//	a := tenon.From(x, []float32{1, 2, 3})
//	b, err := tenon.Read[float32](x, x.MulS(a, 2))
//
// Operations panic with an *[Error], so that calls can be chained; [Try] and everything that returns an error turn the panic back into
// one.
package tenon

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// Exec is where an operation runs: a device and stream, whether gradients are recorded, and other modes. No global current device, stream
// or mode exists: functions get an Exec as an argument, and On, NoGrad, Autocast and Host derive others of the same session.
//
// A session belongs to one goroutine; Fork gives another goroutine its own. Do not keep an Exec in a struct.
type Exec core.Exec

// Tensor is a handle to an n-dimensional array in device memory: a storage, an element type, and the shape, strides and offset of a view
// of it. All of that is immutable; the elements are not. Its methods never touch the device: operations are methods of Exec.
//
// Operations whose names end in Into change the elements of their destination, as out= does in PyTorch. The destination has the result's
// shape, lies on the Exec's device, and may be a view; autocast converts nothing for it. The other rules depend on the operation:
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
// A tensor made while a scope is open belongs to it and is closed with it; see [Exec.Within]. Any other is loose: Close it, or leave it
// to the garbage collector, which frees it later.
type Tensor core.Tensor

// Scalar is a number in options: any of Go's integers or floating-point numbers. nil, as when it is left out, is the default.
type Scalar = core.Scalar

// Error is the error of every failed operation. Find it with errors.As. Its fields are
//
//	Kind     fault.Kind // what the caller can do about it, such as OutOfMemory
//	Op       string     // the operation, such as "Add"; empty if none was running
//	Operands []string   // types and shapes of its tensors, such as "float32[3 1]"
//	File     string     // file and line of the program's call; Line is 0 if it is unknown
//	Line     int
//	Msg      string     // what is wrong, and how to fix it
//	Suspects []string   // the operations that may have caused a device fault
//	Cause    error      // the underlying error, or nil
//
// An operation of the program's own reports an error by a panic with one: panic(&tenon.Error{Kind: tenon.Invalid, Op: "Mish", Msg: text}).
type Error = fault.Error

// The kinds of [Error].
const (
	Invalid     = fault.Invalid
	OutOfMemory = fault.OutOfMemory
	DeviceFault = fault.Device
	Unsupported = fault.Unsupported
	Closed      = fault.Closed
	// CaptureFault is the kind of errors of work that a capture cannot record, or that a capture breaks; SystemFault is the kind of
	// errors of a driver, a library or a file.
	CaptureFault = fault.Capture
	SystemFault  = fault.System
)

// DType is an element type.
type DType = dtype.DType

// The element types of tensors. Package dtype has the same and those that only kernels compute with: dtype.Uint16, Uint32 and Uint64.
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

// The reductions: the mean of the losses, their sum, the losses unreduced, and their sum divided by the size of dimension 0, for KLDiv
// only.
const (
	ReduceMean      = core.ReduceMean
	ReduceSum       = core.ReduceSum
	ReduceNone      = core.ReduceNone
	ReduceBatchMean = core.ReduceBatchMean
)

// PadMode says which elements Pad adds.
type PadMode = core.PadMode

// The pad modes: a constant, the elements mirrored at the border elements, the border elements repeated, and the elements from the
// opposite end.
const (
	PadConstant  = core.PadConstant
	PadReflect   = core.PadReflect
	PadReplicate = core.PadReplicate
	PadCircular  = core.PadCircular
)

// InterpolateMode says how Interpolate finds an element between others.
type InterpolateMode = core.InterpolateMode

// The modes of Interpolate: the nearest element before the place, the linear mixture of the neighbours in one, two or three dimensions, and
// the nearest element by the centres of elements.
const (
	InterpolateNearest      = core.InterpolateNearest
	InterpolateLinear       = core.InterpolateLinear
	InterpolateBilinear     = core.InterpolateBilinear
	InterpolateTrilinear    = core.InterpolateTrilinear
	InterpolateNearestExact = core.InterpolateNearestExact
)

// ScatterMode says how a scatter combines a value with the element that it writes to.
type ScatterMode = core.ScatterMode

// The scatter modes: the value replaces the element, is added to it, or multiplies it.
const (
	ScatterReplace  = core.ScatterReplace
	ScatterAdd      = core.ScatterAdd
	ScatterMultiply = core.ScatterMultiply
)

// Selector names a device to open.
type Selector struct{ sel rt.Selector }

// Best selects the first NVIDIA GPU, or the simulator where no NVIDIA device exists at all. A driver that is installed but fails is an
// error.
func Best() Selector { return Selector{rt.Selector{Kind: rt.Best}} }

// CUDA selects the NVIDIA GPU with the given number.
func CUDA(ordinal int) Selector { return Selector{rt.Selector{Kind: rt.CUDA, Ordinal: ordinal}} }

// Sim selects a simulated device of the given capacity in bytes; 0 is 80 GiB. Simulated memory that is never touched takes no host
// memory. Each simulated device is a separate machine, unless TENON_SIM_DEVICES gives the simulated machine several devices.
func Sim(memory uint64) Selector { return Selector{rt.Selector{Kind: rt.Sim, Memory: memory}} }

// SimMachine selects device 0 of a new simulated machine of 1 to 8 devices, each of the given capacity in bytes; 0 is 80 GiB. At selects
// the others. The devices share one clock, and copies and waits between them work as between GPUs of one machine.
func SimMachine(devices int, memory uint64) Selector {
	return Selector{rt.Selector{Kind: rt.Sim, Machine: rt.NewMachine(devices, memory)}}
}

// At selects the device with the given number, from 0, in place of the one that s selects: Best().At(1) is the second NVIDIA GPU or, where
// there is none at all, the second device of the simulated machine.
func (s Selector) At(ordinal int) Selector {
	s.sel.Ordinal = ordinal
	return s
}

// String returns the selector as ParseSelector takes it, such as "cuda:1", or a description where no text stands for it.
func (s Selector) String() string { return s.sel.String() }

// Count returns how many devices At can choose from.
func (s Selector) Count() (int, error) { return rt.Count(s.sel) }

// CPU selects the host's processor.
func CPU() Selector { return Selector{rt.Selector{Kind: rt.CPU}} }

// ParseSelector returns the Selector for a string, such as a command-line flag: "best", "cuda", "cuda:1", "cpu", "sim", or "sim:2GiB"
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

// GPUs returns how many NVIDIA GPUs can be opened; 0 where there is no working driver. If NVIDIA's management library is installed, the
// count follows changes of CUDA_VISIBLE_DEVICES until this process first uses a GPU, which fixes it.
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

// Try runs f and returns the error with which an operation in it stopped, or nil. Any other panic goes on. An error that f itself stores
// in a variable is apart from Try's result: do not assign both to one variable, but join them, or use [Exec.Do], which returns both.
func Try(f func()) error { return core.Try(f) }

// Do runs f in a scope, as [Exec.Scope] does, and returns its error, or the error with which an operation in it stopped. The tensors that
// f made are closed either way.
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

// Parallel runs f on n goroutines, 1 to 1024, and returns when all of them have. Each has an Exec of its own with x's modes, from
// [Exec.Fork], in which f runs as in [Exec.Do]; worker is its number, from 0. An error does not stop the others; all errors are returned,
// joined by [errors.Join]. x stays with the caller's goroutine.
func (x *Exec) Parallel(n int, f func(x *Exec, worker int) error) error {
	if _, err := x.found("Parallel"); err != nil {
		return err
	}
	switch {
	case f == nil:
		return core.Refusal("Parallel", fault.Invalid, "the function is nil; give it one")
	case n < 1 || n > 1024:
		return core.Refusal("Parallel", fault.Invalid, "there cannot be %d goroutines; give a number from 1 to 1024", n)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			y, err := x.Fork()
			if err != nil {
				errs[i] = err
				return
			}
			errs[i] = errors.Join(y.Do(func(y *Exec) error { return f(y, i) }), y.Close())
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// On returns an Exec with the same modes on stream st, which may belong to another device.
func (x *Exec) On(st *cuda.Stream) *Exec {
	c := core.Made((*core.Exec)(x), "On")
	if on := c.Last((*rt.Stream)(st)); on != nil {
		return (*Exec)(on)
	}
	core.Enter(c, "On")
	defer core.Leave(c)
	return (*Exec)(c.On((*rt.Stream)(st)))
}

// F16 holds the bits of an element of Float16. Its Float32 method returns the number, and F16FromFloat32 makes one.
type F16 = dtype.F16

// BF16 holds the bits of an element of BFloat16. Its Float32 method returns the number, and BF16FromFloat32 makes one.
type BF16 = dtype.BF16

// F16FromFloat32 rounds f to nearest, ties to even; overflow gives infinity.
func F16FromFloat32(f float32) F16 { return dtype.F16FromFloat32(f) }

// BF16FromFloat32 rounds f to nearest, ties to even; overflow gives infinity.
func BF16FromFloat32(f float32) BF16 { return dtype.BF16FromFloat32(f) }

// From returns a tensor with a copy of data. Without a shape the tensor has one dimension; otherwise the product of the sizes must be
// len(data). T determines the element type: Int64 for int, Float16 for [F16], BFloat16 for [BF16], and for any other type of Go the element
// type of the same name.
func From[T dtype.Element](x *Exec, data []T, shape ...int) *Tensor {
	c := x.enter("From")
	defer core.Leave(c)
	return (*Tensor)(core.From(c, data, shape...))
}

// Read returns the elements in row-major order as T, which must match the tensor's type as in From. It waits for the work that makes the
// elements.
func Read[T dtype.Element](x *Exec, t *Tensor) ([]T, error) {
	c, err := x.entered("Read", t)
	if err != nil {
		return nil, err
	}
	defer core.Leave(c)
	return core.Read[T](c, (*core.Tensor)(t))
}

// Arg is one argument of a kernel. It has no exported fields; these functions make one:
//
//	In(t)      // a tensor that the kernel reads
//	Out(t)     // a tensor that it writes, and may read
//	Mapped(t)  // a tensor that it reads by a tensor map
//	Number(v)  // a scalar, rounded to the parameter's type
//	Integer(v) // a whole number, exact to 64 bits
type Arg = core.Arg

// LaunchShape is the size of a launch. Its fields are
//
//	Grid   [3]int // the number of blocks along x, y and z
//	Block  [3]int // the threads of a block along x, y and z, where 0 means 1; leave it out only if the kernel fixes it
//	Shared int    // dynamic shared memory of a block in bytes, for an array that the kernel declares with -1 elements
//
// The counts of Grid that are left out at its end are 1; if one of the others is 0, the launch does nothing. So Grid: [3]int{rows, 1, 1}
// does nothing without rows, while [3]int{rows} is then an error, as no blocks are given. FixedThreads and tiles fix a kernel's block.
type LaunchShape = core.LaunchShape

// In is a tensor that a kernel reads. A launch is refused if its kernel writes to an address computed from this parameter, on whatever
// path through the kernel. Writes to an address that the kernel loads from device memory are not detected.
func In(t *Tensor) Arg { return core.In((*core.Tensor)(t)) }

// Out is a tensor that a kernel writes, and may read.
func Out(t *Tensor) Arg { return core.Out((*core.Tensor)(t)) }

// Mapped is a tensor that a kernel reads by a [kernel.TensorMap]: a matrix, or an array of matrices in three dimensions or, for a map
// that is used with Group, in four, of Float16, BFloat16 or Float32. The elements of its last dimension are adjacent, and its address and
// other strides are multiples of 16 bytes; any other tensor is refused.
func Mapped(t *Tensor) Arg { return core.Mapped((*core.Tensor)(t)) }

// Number is a scalar argument. It is rounded to the type of a floating-point parameter; for any other parameter it must be whole, and in
// the range of its type.
func Number(v float64) Arg { return core.Number(v) }

// Integer is a scalar argument, exact to 64 bits. It must be in the range of the parameter's type.
func Integer[T int | int32 | int64](v T) Arg { return core.Integer(int64(v)) }

// Over returns the shape for at least n threads in x, in blocks of 256; if n is 0, the launch does nothing. A kernel that fixes another
// number of threads needs a shape of its own.
func Over(n int) LaunchShape { return core.Over(n) }

// Launch runs a kernel on x's stream, in order with the operations before and after. A buffer parameter gets the address of a tensor's
// first element, and the kernel may touch the elements of the tensors that it is given and no others. The kernel is built and loaded on its
// first launch on a device. No gradient is recorded: define one with a [Function]. A compiled region defers the launch like any other call.
func (x *Exec) Launch(k *kernel.Kernel, shape LaunchShape, args ...Arg) {
	c := x.enter("Launch")
	defer core.Leave(c)
	c.Launch(k, shape, args...)
}

// Graph is captured work: Exec.Replay runs it again on the same memory. Tensors made during the capture belong to the graph and are
// closed with it, unless Exec.Keep took them out; tensors that it read live at least as long as the graph.
type Graph core.Graph

// Nodes returns the number of operations in the graph, 0 for none.
func (g *Graph) Nodes() int { return (*core.Graph)(g).Nodes() }

// String describes the graph, such as "tenon.Graph(nodes 3)".
func (g *Graph) String() string { return fmt.Sprintf("tenon.Graph(nodes %d)", g.Nodes()) }

// Pool returns the id of the graph's memory pool, with which other captures can share it; zero if Capture did not return g.
func (g *Graph) Pool() [2]uint64 { return (*core.Graph)(g).Pool() }

// Dump writes the graph to a file in the DOT language, with what the driver knows about each node. It needs CaptureOpt.Debug.
func (g *Graph) Dump(path string) error { return core.Located("Dump", (*core.Graph)(g).Dump(path)) }

// Close releases the graph, its memory and the tensors made during its capture. Closing twice does nothing.
func (g *Graph) Close() error { return (*core.Graph)(g).Close() }

// CaptureOpt are the options of Capture.
type CaptureOpt struct {
	// Share lets the graph use the memory of another graph: running one may overwrite the results of the other, and the graph captured
	// first should run first. Runs of graphs that share memory wait for each other, unless ManualStreams switched that off.
	Share *Graph
	// Pool is the id of the private pool for the graph's memory, from cuda.NewPoolID: graphs of one pool share memory as with Share. Zero
	// means a new pool.
	Pool [2]uint64
	// Stream is where f's work is recorded; it must not be the default stream. Nil means a stream that nothing else uses.
	Stream *cuda.Stream
	// Mode says which threads must not make driver calls that could disturb the capture: its own, which is the zero value, all threads, or
	// none. Such a call ends the capture with an error.
	Mode cuda.CaptureMode
	// Debug keeps the graph as it was recorded, for Dump.
	Debug bool
}

// Capture calls f once, records its work as a graph and returns it; nothing runs until Replay. The Exec that f gets has x's modes, such as
// NoGrad and Autocast, and works on a stream of its own. Work of f on further streams belongs to the graph if it depends on work of that
// stream. Memory comes from the graph's own pool. Every Replay draws new random numbers, from the generator's state at that time.
//
// What waits for the device or copies from the host (Item, Read, From, Synchronize) cannot be recorded: in f such a call fails, with an
// error that names its line. Then Capture returns that error too, even if f ignores it, as it does with the error of a Backward or of an
// optimizer's step. The device stays usable.
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

// Replay queues one run of the graph on x's stream, after all earlier work on what it reads and writes. It changes device memory; host
// code of the captured function does not run.
func (x *Exec) Replay(g *Graph) error {
	c, err := x.entered("Replay")
	if err != nil {
		return err
	}
	defer core.Leave(c)
	return core.Located("Replay", c.Replay((*core.Graph)(g)))
}

// Function is an operation with a custom derivative, as PyTorch's autograd.Function. Forward's operations are not recorded; Backward is
// called instead. Both run under the autocast of the Exec that Apply is called on, and Forward gets its inputs unconverted; see
// [CastsInputs].
type Function interface {
	// Forward computes the outputs. It saves in c what Backward needs.
	Forward(x *Exec, c *FunctionContext, inputs ...*Tensor) []*Tensor
	// Backward returns the gradients of the inputs, nil for an input without one, given those of the outputs (zeros for an output without
	// one). An error that it returns fails the backward pass and names the line of the forward call; the error of an operation in it names
	// the operation's line.
	Backward(x *Exec, c *FunctionContext, grads ...*Tensor) ([]*Tensor, error)
}

// CastsInputs is a [Function] that gets its inputs in one type under autocast: inputs that autocast may convert come in the type that
// CastInputs returns, and Forward and Backward run without autocast. Gradients are converted back to the types that the inputs had.
// Without autocast, or if CastInputs returns the zero type, it works as any other Function.
type CastsInputs interface {
	Function
	CastInputs() DType
}

// FunctionContext carries data from Forward to Backward: the tensors that Save keeps, and anything else in its field Value, of type any.
type FunctionContext core.FunctionContext

// Save keeps tensors for Backward; inputs and outputs of the function keep their history. It is called once.
func (c *FunctionContext) Save(ts ...*Tensor) { (*core.FunctionContext)(c).Save(coreList(ts)...) }

// Saved returns the tensors that Save kept.
func (c *FunctionContext) Saved() []*Tensor { return faceList((*core.FunctionContext)(c).Saved()) }

// NeedsGrad reports whether input i needs a gradient.
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

// CastInputs returns 0 if the function is no CastsInputs.
func (f function) CastInputs() DType {
	if c, ok := f.fn.(CastsInputs); ok {
		return c.CastInputs()
	}
	return 0
}

// made returns x as core sees it. It stops the method op with an error if x is nil or has no session, or if one of its operands is nil, a
// zero value or closed.
func (x *Exec) made(op string, operands ...*Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op)
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	return c
}

// enter is made for a method that uses the session; the caller must leave with core.Leave.
func (x *Exec) enter(op string, operands ...*Tensor) *core.Exec {
	c := core.Made((*core.Exec)(x), op) // as made does, without another call
	for i, t := range operands {
		core.Given(op, i, (*core.Tensor)(t))
	}
	core.Enter(c, op)
	return c
}

// orNil returns an operand that may be nil. It refuses a zero value or a closed tensor.
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
