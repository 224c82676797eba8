package core

import (
	"fmt"
	"slices"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

var rowEmpty, rowFull *row

func init() {
	rowEmpty = define(row{Name: "Empty", takes: ";; shape* dtype", Torch: "empty", infer: inferFactory, flags: flagIdle})
	rowFull = define(row{Name: "Full", takes: "; value; shape* dtype", Torch: "full", infer: inferFactory, run: runFill, points: true})
}

func inferFactory(f *frame) { f.newOut(0, f.dt, f.dims, nil) }

func runFill(f *frame) error {
	t := f.out[0]
	if infer.Numel(t.shape) == 0 {
		return nil
	}
	outs, _ := f.operandsOf()
	return f.pointwise(kernels.Fill, t.dt, f.scalar[:1], outs, nil)
}

// Empty returns a tensor with undefined elements.
func (x *Exec) Empty(shape []int, dt dtype.DType) *Tensor {
	f := x.op(rowEmpty)
	f.dims, f.dt = append(f.dims, shape...), dt
	return f.call1()
}

// Full returns a tensor whose elements are v, converted to dt: for integers the fraction is cut off. A v outside the range of dt is an
// error.
func (x *Exec) Full(shape []int, v float64, dt dtype.DType) *Tensor {
	return x.FullC(shape, complex(v, 0), dt)
}

// Zeros returns a tensor of zeros.
func (x *Exec) Zeros(shape []int, dt dtype.DType) *Tensor { return x.Full(shape, 0, dt) }

// Ones returns a tensor of ones.
func (x *Exec) Ones(shape []int, dt dtype.DType) *Tensor { return x.Full(shape, 1, dt) }

// scalarFromHost copies a 0-d tensor of the processor to x's device.
func (x *Exec) scalarFromHost(t *Tensor) *Tensor {
	b := make([]byte, t.dt.Size())
	x.check("To", x.readBytes(t, b))
	return x.FromBytes(b, t.dt)
}

// FromBytes returns a contiguous tensor of the given type and shape whose elements are the little-endian bytes data, copied.
func (x *Exec) FromBytes(data []byte, dt dtype.DType, shape ...int) *Tensor {
	if i := slices.IndexFunc(shape, func(n int) bool { return n < 0 }); i >= 0 {
		x.fail("FromBytes", fault.Invalid, nil,
			"the shape %v has a negative dimension; give every size, since only View and Reshape find one out", shape)
	}
	if want := infer.Numel(shape) * dt.Size(); dt.Valid() && want != len(data) {
		if n := len(data) / dt.Size(); n*dt.Size() == len(data) {
			x.fail("FromBytes", fault.Invalid, nil, "%d elements were given for a %v tensor of shape %v, which has %d", n, dt,
				shape, want/dt.Size())
		}
		x.fail("FromBytes", fault.Invalid, nil, "%d bytes were given for a %v tensor of shape %v, which has %d", len(data), dt, shape, want)
	}
	t := x.emptyNow(shape, dt)
	if err := x.writeBytes(t, data); err != nil {
		t.close()
		x.check("FromBytes", err)
	}
	return t
}

// emptyNow is Empty with memory that can be written immediately.
func (x *Exec) emptyNow(shape []int, dt dtype.DType) *Tensor {
	old := x.s.atOnce
	x.s.atOnce = true
	defer func() { x.s.atOnce = old }()
	return x.Empty(shape, dt)
}

// Bytes returns the elements in row-major order, little-endian. It waits for the work that computes them.
func (x *Exec) Bytes(t *Tensor) ([]byte, error) { return x.bytesFor("Bytes", t) }

// bytesFor is Bytes for the operation op, which errors name.
func (x *Exec) bytesFor(op string, t *Tensor) ([]byte, error) {
	if err := x.bytesFit(op, t); err != nil {
		return nil, err
	}
	if t.st.dev != x.m.stream.Device() {
		x = x.On(t.st.dev.DefaultStream())
	}
	var out []byte
	err := Try(func() {
		x.scoped(func(x *Exec) {
			whole := x.noGrad().Contiguous(t)
			out = make([]byte, infer.Numel(t.shape)*t.dt.Size()) // after the device had room for a copy, if it needs one
			x.check(op, x.readBytes(whole, out))
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// The names of copies from and to the host in the launch ring.
var opRead, opWrite = rt.RegisterOp("Bytes"), rt.RegisterOp("FromBytes")

// readBytes copies the elements of contiguous t to b and waits for them.
func (x *Exec) readBytes(t *Tensor, b []byte) error {
	t.usedBy(x.s)
	if t.closed.Load() {
		return fault.New(fault.Closed, "the tensor %s", t.whyClosed())
	}
	if len(b) == 0 {
		return nil
	}
	if err := x.s.capture.refuse("reading a tensor"); err != nil {
		return err
	}
	if !t.st.dev.Host || t.st.deferral() != 0 { // deferred calls make nothing that is on the processor
		if err := x.s.force("Read"); err != nil {
			return err
		}
	}
	if err := x.s.barred(t, false); err != nil {
		return err
	}
	if err := t.st.arrived(); err != nil {
		return err
	}
	st := x.m.stream
	if t.st.dev != st.Device() {
		st = t.st.dev.DefaultStream()
	}
	if err := x.queueRead(t, b, st); err != nil {
		return err
	}
	x.s.gate.rest()
	err := st.Synchronize()
	x.s.gate.resume()
	if err != nil {
		return err
	}
	return t.spoilt() // another waiter may have been told of the fault meanwhile
}

// queueRead queues the copy of the elements of contiguous t to b on st.
func (x *Exec) queueRead(t *Tensor, b []byte, st *rt.Stream) error {
	if err := x.s.open(); err != nil {
		return err
	}
	if err := x.s.apart("a tensor cannot be read"); err != nil {
		return err
	}
	seq, err := st.Begin(opRead, nil)
	if err != nil {
		return err
	}
	defer st.Issued(seq)
	if !x.m.manual {
		if err := t.spoilt(); err != nil {
			return err
		}
		if err := t.st.beforeRead(st); err != nil {
			return err
		}
		defer t.st.didRead(st, seq)
	}
	return st.Device().Check(toHost(st, t, b), "the tensor could not be read")
}

// writeBytes copies b to the elements of contiguous t.
func (x *Exec) writeBytes(t *Tensor, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := x.s.capture.refuse("copying host data to a tensor"); err != nil {
		return err
	}
	if t.st.deferral() != 0 {
		if err := x.s.force("Write"); err != nil {
			return err
		}
		if err := x.s.barred(t, true); err != nil {
			return err
		}
	}
	st := x.m.stream
	seq, mine, err := x.s.begin(opWrite, st, nil)
	if err != nil {
		return err
	}
	if mine {
		defer st.Issued(seq)
	}
	if !x.m.manual {
		if err := t.overwritten(); err != nil {
			return err
		}
		if err := t.st.beforeWrite(st); err != nil {
			return err
		}
		defer t.st.didWrite(st, seq)
	}
	return st.Device().Check(toDevice(st, t, b), "the tensor could not be written")
}

// From returns a tensor with a copy of data. With no shape it has one dimension.
func From[T dtype.Element](x *Exec, data []T, shape ...int) *Tensor {
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	return x.FromBytes(dtype.AsBytes(data), dtype.Of[T](), shape...)
}

// Read returns the elements in row-major order as T, which must be the tensor's type. It waits for the work that computes them.
func Read[T dtype.Element](x *Exec, t *Tensor) ([]T, error) {
	if want := dtype.Of[T](); want != t.dt {
		asked := goName(fmt.Sprintf("%T", *new(T)))
		if asked != want.String() {
			asked += ", which stands for " + want.String()
		}
		return nil, x.refusal("Read", t, "the tensor has type %v and cannot be read as %s; read it as %s, or convert it with x.ToDType",
			t.dt, asked, goName(t.dt.String()))
	}
	b, err := x.bytesFor("Read", t)
	if err != nil {
		return nil, err
	}
	out := make([]T, infer.Numel(t.shape))
	copy(dtype.AsBytes(out), b)
	return out, nil
}

// goName returns the name that a program gives the Go type for elements: that of the element type, but for the halves.
func goName(name string) string {
	switch name {
	case "float16", "dtype.F16":
		return "tenon.F16"
	case "bfloat16", "dtype.BF16":
		return "tenon.BF16"
	}
	return name
}

// Item returns the only element of t as a float64. It waits for the work that computes it. [Read] reads tensors of any size and type.
func (x *Exec) Item(t *Tensor) (float64, error) {
	if t.Numel() != 1 {
		return 0, x.refusal("Item", t, "a tensor with %d elements cannot be converted to a scalar; read all of them with "+
			"tenon.Read", t.Numel())
	}
	b, err := x.bytesFor("Item", t)
	if err != nil {
		return 0, err
	}
	return dtype.Float64At(t.dt, b, 0), nil
}
