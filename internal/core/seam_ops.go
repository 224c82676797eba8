package core

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// With this file's functions a package outside core defines its own operations. They are rows like core's: they go through the same funnel,
// and taps, captures, the tape and the page of operations treat them like any other.

// Row is an operation's entry in the table.
type Row = row

// Back is what a derivative sees: the call's attributes, the gradients of its outputs and the saved tensors.
type Back = back

// Op is the definition of an operation by a package outside core.
type Op struct {
	// Name is the operation's name in errors and traces; Torch is PyTorch's name, such as "linalg.cross".
	Name, Torch string
	// Package is the folder of the package that defines it, such as "linalg".
	Package string
	// Takes declares the operands, attributes and outputs in the syntax of core's rows, such as "a b bias?;; dim".
	Takes string
	// Infer decides the outputs' types, shapes and strides from those of the operands and from the attributes: it calls NewOut for each
	// output. It needs no device, and refuses a call with Check.
	Infer func(f *Frame)
	// Run issues the kernels. The frame is a kernels.Issuer.
	Run func(f *Frame) error
	// Saves names the operands and outputs that the derivative reads, by the names in Takes; SetBack sets the derivative.
	Saves string
	// Cast says what autocast does with the operands.
	Cast CastClass
	// Draws is set if Run takes numbers from a generator, with Philox, and returns how many words each thread draws.
	Draws func(f *Frame) uint64
	// Waits says that the operation waits for the device, or may, and so is refused in a capture; Varies that if several elements go to one
	// place, which of them wins may differ from run to run; Sized that the size of the output is a number in the structure that was read
	// from the device; Asserts that its kernels have assertions, which may fail.
	Waits, Varies, Sized, Asserts bool
}

// CastClass says what autocast does with the operands of an operation.
type CastClass = castClass

// The classes of autocast that a package outside core may give its operations.
const (
	// CastNone converts nothing, CastLow to the low-precision type, CastFloat32 to float32, and CastWidest to float32 if one of them is
	// float32, else to the low-precision type.
	CastNone, CastLow, CastFloat32, CastWidest = castNone, castLow, castFloat32, castWidest
)

// Define registers an operation. A package calls it once for each operation, when it is initialised.
func Define(o Op) *Row {
	if o.Package == "" {
		panic("core: the operation " + o.Name + " names no package")
	}
	r := define(row{Name: o.Name, Torch: o.Torch, pkg: o.Package, takes: o.Takes, infer: o.Infer, run: o.Run, draws: o.Draws, cast: o.Cast})
	if o.Varies {
		r.flags |= flagVaries
	}
	if o.Sized {
		r.flags |= flagSized
	}
	if o.Asserts {
		r.flags |= flagAsserts
	}
	if o.Waits {
		r.flags |= flagWaits
		r.run = func(f *frame) error {
			if err := f.x.s.capture.refuse(o.Name); err != nil {
				return err
			}
			return o.Run(f)
		}
	}
	for _, name := range strings.Fields(o.Saves) {
		is := func(n named) bool { return n.name == name }
		switch i, out := slices.IndexFunc(r.sig.ins, is), slices.IndexFunc(r.sig.outs, is); {
		case i >= 0:
			r.saves |= in0 << i
		case out >= 0:
			r.saves |= out0 << out
		default:
			panic("core: the operation " + o.Name + " saves " + name + ", which it does not have")
		}
	}
	return r
}

// SetBack sets the operation's derivative, which computes the gradients of the inputs with Exec operations; an operation without one has
// none. Call it from an init function of the package: a derivative may call the operation itself, and the initialiser of the operation's
// variable must not refer to itself.
func (r *row) SetBack(back func(b *Back)) { r.back = back }

// Begin begins a call of r on the given operands. Set its attributes before Do ends it.
func Begin(x *Exec, r *Row, ins ...*Tensor) *Frame { return x.op(r, ins...) }

// Do runs the call and returns its first output.
func (f *frame) Do() *Tensor { return f.call1() }

// In returns operand i, or nil.
func (f *frame) In(i int) *Tensor { return f.in[i] }

// Whole returns the whole number i among the attributes.
func (f *frame) Whole(i int) int { return f.i[i] }

// SetWhole sets the whole number i among the attributes.
func (f *frame) SetWhole(i, v int) { f.i[i] = v }

// List returns the list of numbers among the attributes.
func (f *frame) List() []int { return f.dims }

// SetList sets the list of numbers among the attributes.
func (f *frame) SetList(vs ...int) { f.dims = append(f.dims[:0], vs...) }

// Number returns number i among the attributes.
func (f *frame) Number(i int) float64 { return f.scalar[i].F }

// SetNumber sets number i among the attributes.
func (f *frame) SetNumber(i int, v float64) { f.scalar[i] = kernels.FloatScalar(v) }

// options is an attribute whose type another package defines.
type options[T comparable] struct{ of T }

func (options[T]) param() {}

// printed returns the attribute as a Call prints it.
func (o options[T]) printed() string { return fmt.Sprintf("%T%+v", o.of, o.of) }

// SetOptions sets the call's own attribute, options in Takes. It is structure: T consists of numbers and of objects that exist only once,
// and refers to no device memory.
func SetOptions[T comparable](f *Frame, v T) { f.opt = options[T]{v} }

// OptionsOf returns the call's own attribute, for the row's functions and its derivative.
func OptionsOf[T comparable](of interface{ own() param }) T { return of.own().(options[T]).of }

func (f *frame) own() param { return f.opt }
func (b *back) own() param  { return b.n.opt }

// Philox returns the generator state for a row with Draws.
func (f *frame) Philox() kernels.Philox { return f.philox() }

// Promoted returns the type that the operands promote to.
func (f *frame) Promoted() dtype.DType { return f.promoted() }

// NewOut says that output i is new; it is contiguous if stride is nil.
func (f *frame) NewOut(i int, dt dtype.DType, shape, stride []int) { f.newOut(i, dt, shape, stride) }

// Check stops the call if err is not nil.
func (f *frame) Check(err error) { f.check(err) }

// ElementsOf describes t's elements for kernels.
func ElementsOf(t *Tensor) kernels.Operand { return operand(t) }

// Exec returns the Exec on which the derivative runs.
func (b *back) Exec() *Exec { return b.x }

// Whole returns the whole number i among the call's attributes.
func (b *back) Whole(i int) int { return b.n.i[i] }

// Number returns number i among the call's attributes.
func (b *back) Number(i int) float64 { return b.n.scalar[i].F }

// Needs reports whether input i wants a gradient.
func (b *back) Needs(i int) bool { return b.need(i) }

// Grad returns the gradient of output i, or zeros if none came.
func (b *back) Grad(i int) *Tensor { return b.grad(i) }

// In returns saved input i.
func (b *back) In(i int) *Tensor { return b.in(i) }

// Out returns saved output i.
func (b *back) Out(i int) *Tensor { return b.out(i) }

// Set gives the gradient of input i: it sums g over broadcast dimensions and casts it to the input's type.
func (b *back) Set(i int, g *Tensor) { b.set(i, g) }

// Composite runs f, which calls other operations, as one operation named name: errors carry the name, and temporaries are closed when it
// ends.
func Composite(x *Exec, name string, f func(x *Exec) *Tensor) *Tensor { return x.composite(name, f) }

// CompositeMany is Composite for several results.
func CompositeMany(x *Exec, name string, f func(x *Exec) []*Tensor) []*Tensor {
	return x.compositeMany(name, f)
}

// Different returns, for each element of the vector t of integers from 0 to below-1, its index among the distinct values in ascending
// order, and how many distinct values there are. It is called in a composite named op, and waits for t.
func Different(x *Exec, op string, t *Tensor, below int) (inverse *Tensor, count int) {
	_, _, starts, inverse := x.noGrad().different(t, max(bits.Len(uint(max(below, 1)-1)), 1))
	return inverse, x.last(op, starts)
}

// Casting converts the operands of a composite that autocast treats as one operation of class c, and returns the Exec that runs it, on
// which autocast is off. It is called in the composite's scope.
func Casting(x *Exec, op string, c CastClass, ts ...**Tensor) *Exec { return x.casting(op, c, ts...) }

// Refuse panics with err, unless it is nil, as an error of the operation op on those operands.
func Refuse(x *Exec, op string, err error, operands ...*Tensor) { x.refuse(op, err, operands...) }
