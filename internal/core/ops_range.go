package core

import (
	"fmt"
	"math"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kernels"
)

// Tensors of numbers that depend on their index, and tensors like another.
var rowArange, rowLinspace, rowEye, rowEmptyLike, rowFullLike, rowFill *row

func init() {
	rowArange = define(placesRow("Arange", "arange", "start step", kernels.Arange))
	rowLinspace = define(placesRow("Linspace", "linspace", "start end step n", kernels.Linspace))
	rowEye = define(placesRow("Eye", "eye", "columns", kernels.Eye))
	rowEmptyLike = define(row{Name: "EmptyLike", takes: "t;; dtype", Torch: "empty_like", infer: inferLike, flags: flagIdle})
	rowFullLike = define(row{Name: "FullLike", takes: "t; value; dtype", Torch: "full_like", infer: inferLike, run: runFill, points: true})
	// The result depends on nothing, so the derivative does nothing: a tensor that is overwritten loses its former history.
	rowFill = define(row{Name: "FillInto", takes: "; value", flags: flagInto, Torch: "fill_", run: runFill, points: true,
		back: func(*back) {}, infer: func(f *frame) {
			f.newOut(0, f.dst[0].dt, f.dst[0].shape, nil)
		}})
}

// placesRow returns the row of a factory whose elements op computes from their indexes.
func placesRow(name, torch, numbers string, op *kernels.PointOp) row {
	return row{Name: name, Torch: torch, takes: "; " + numbers + "; shape* dtype", infer: inferFactory, run: func(f *frame) error {
		if f.out[0].Numel() == 0 {
			return nil
		}
		outs, _ := f.operandsOf()
		return kernels.Pointwise(f, op, f.dt, f.scalar[:op.Scalars], outs, nil)
	}}
}

// inferLike makes an output of input 0's shape, in its memory order if that has no gaps, of the frame's type.
func inferLike(f *frame) {
	t := f.in[0]
	dt := f.dt
	if dt == dtype.Invalid {
		dt = t.dt
	}
	f.newOut(0, dt, t.shape, f.layout(t.shape))
}

// fillScalar returns v as a scalar for tensors of type dt.
func fillScalar(v complex128, dt dtype.DType) kernels.Scalar {
	s := kernels.FloatScalar(real(v))
	s.Im = imag(v)
	if dt == dtype.Bool && v != 0 {
		s.I = 1
	}
	return s
}

// fits fails if v is outside the range of type dt. Fractions are truncated; uint8 also takes negative whole numbers, which wrap; bool takes
// all.
func (f *frame) fits(v complex128, dt dtype.DType) {
	var most float64
	if !dt.Valid() {
		return // the operation that makes the tensor refuses the type
	}
	switch dt.Real() {
	case dtype.Float16:
		most = 65504
	case dtype.BFloat16:
		most = 0x1.fep127
	case dtype.Float32:
		most = math.MaxFloat32
	case dtype.Bool, dtype.Float64:
		return
	default:
		re, bits := real(v), 8*dt.Size()
		low, high := -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1)
		if !dt.IsSigned() {
			low, high = 0, math.Ldexp(1, bits)
			if re == math.Trunc(re) {
				low = 1 - high
			}
		}
		switch {
		case imag(v) != 0:
			f.fail(fault.Invalid, "the number %v is complex, and the type is %v; give a real one", v, dt)
		case !(re >= low && re < high):
			least, most := int64(-1)<<(bits-1), int64(math.MaxInt64)>>(64-bits)
			if !dt.IsSigned() {
				least, most = 0, most*2+1
			}
			f.fail(fault.Invalid, "the number %v is out of range for %v; give one from %d to %d", re, dt, least, most)
		}
		return
	}
	over := func(p float64) bool { return math.Abs(p) > most && !math.IsInf(p, 0) }
	if over(real(v)) || over(imag(v)) {
		text := fmt.Sprint(real(v))
		if imag(v) != 0 {
			text = fmt.Sprint(v)
		}
		f.fail(fault.Invalid, "the number %s is out of range for %v; give one from %v to %v, or an infinite one", text, dt, -most, most)
	}
}

// FullC is Full with a complex number.
func (x *Exec) FullC(shape []int, v complex128, dt dtype.DType) *Tensor {
	f := x.op(rowFull)
	f.fits(v, dt)
	f.dims, f.dt = append(f.dims, shape...), dt
	f.scalar[0] = fillScalar(v, dt)
	return f.call1()
}

// FillInto sets every element of dst to v, converted to dst's type as by Full.
func (x *Exec) FillInto(dst *Tensor, v float64) { x.FillCInto(dst, complex(v, 0)) }

// FillCInto is FillInto for complex v.
func (x *Exec) FillCInto(dst *Tensor, v complex128) {
	f := x.op(rowFill)
	if dst == nil {
		f.fail(fault.Invalid, operandNil, 0)
	}
	f.fits(v, dst.dt)
	f.scalar[0] = fillScalar(v, dst.dt)
	f.call1Into(dst)
}

// LikeOpt are the options of factories that follow another tensor.
type LikeOpt struct {
	// DType is the result's type; the zero value is the other tensor's.
	DType dtype.DType
}

// EmptyLike returns a tensor of t's shape with undefined elements, in t's memory order if that has no gaps.
func (x *Exec) EmptyLike(t *Tensor, opt LikeOpt) *Tensor {
	f := x.op(rowEmptyLike, t)
	f.dt = opt.DType
	return f.call1()
}

// FullLike returns a tensor of t's shape whose elements are v, in t's memory order if that has no gaps.
func (x *Exec) FullLike(t *Tensor, v float64, opt LikeOpt) *Tensor {
	return x.FullLikeC(t, complex(v, 0), opt)
}

// FullLikeC is FullLike with a complex number.
func (x *Exec) FullLikeC(t *Tensor, v complex128, opt LikeOpt) *Tensor {
	f := x.op(rowFullLike, t)
	f.dt = opt.DType
	dt := t.dt
	if opt.DType != dtype.Invalid {
		dt = opt.DType
	}
	f.fits(v, dt)
	f.scalar[0] = fillScalar(v, dt)
	return f.call1()
}

// ZerosLike is FullLike with 0.
func (x *Exec) ZerosLike(t *Tensor, opt LikeOpt) *Tensor { return x.FullLike(t, 0, opt) }

// OnesLike is FullLike with 1.
func (x *Exec) OnesLike(t *Tensor, opt LikeOpt) *Tensor { return x.FullLike(t, 1, opt) }

// ArangeOpt are the options of Arange. The zero value is PyTorch's default.
type ArangeOpt struct {
	// Start is the first element. Step is the difference of neighbours; the default is 1.
	Start float64
	Step  Scalar
}

// Arange returns the vector start, start+step, … before end, each element computed from its index.
//
//tenon:into
func (x *Exec) Arange(end float64, dt dtype.DType, opt ArangeOpt) *Tensor {
	start, step := opt.Start, Or("Arange", "Step", opt.Step, 1)
	f := x.op(rowArange)
	f.dt = dt
	switch n := math.Ceil((end - start) / step); {
	case step == 0 || dt.IsInt() && math.Abs(step) < 1:
		f.fail(fault.Invalid, "step must be nonzero")
	case start > end && step > 0 || start < end && step < 0:
		f.fail(fault.Invalid, "upper bound and lower bound inconsistent with step sign: %v to %v by %v", start, end, step)
	case n != n || n >= 1<<53:
		f.fail(fault.Invalid, "a range from %v to %v by %v has no finite size", start, end, step)
	case dt == dtype.Bool || dt.IsComplex():
		f.fail(fault.Unsupported, "a range of %v is not defined; make one of a real type and convert it with x.ToDType", dt)
	default:
		f.dims = append(f.dims, int(n))
	}
	f.scalar[0], f.scalar[1] = kernels.FloatScalar(start), kernels.FloatScalar(step)
	return f.call1()
}

// Linspace returns the vector of n evenly spaced numbers from start to end.
//
//tenon:into
func (x *Exec) Linspace(start, end float64, n int, dt dtype.DType) *Tensor {
	return x.LinspaceC(complex(start, 0), complex(end, 0), n, dt)
}

// LinspaceC is Linspace between complex numbers.
//
//tenon:into
func (x *Exec) LinspaceC(start, end complex128, n int, dt dtype.DType) *Tensor {
	f := x.op(rowLinspace)
	if n < 0 {
		f.fail(fault.Invalid, "number of steps must be non-negative, not %d", n)
	}
	if dt == dtype.Bool {
		f.fail(fault.Unsupported, "linspace is not defined for bool")
	}
	f.dims, f.dt = append(f.dims, n), dt
	start, end = asHalf(start, dt), asHalf(end, dt)
	step := asHalf((end-start)/complex(float64(max(n-1, 1)), 0), dt)
	f.scalar[0], f.scalar[1], f.scalar[2], f.scalar[3] = fillScalar(start, dt), fillScalar(end, dt), fillScalar(step, dt),
		kernels.IntScalar(int64(n))
	return f.call1()
}

// asHalf returns v rounded to dt if that is a half type, since PyTorch computes the steps of halves in halves; else v.
func asHalf(v complex128, dt dtype.DType) complex128 {
	switch dt {
	case dtype.Float16:
		return complex(float64(dtype.F16FromFloat64(real(v)).Float32()), 0)
	case dtype.BFloat16:
		return complex(float64(dtype.BF16FromFloat64(real(v)).Float32()), 0)
	}
	return v
}

// EyeOpt are the options of Eye. The zero value is PyTorch's default.
type EyeOpt struct {
	// Columns is how many columns there are; nil means as many as rows.
	Columns *int
}

// Eye returns the matrix of n rows and columns with ones where row and column are equal and zeros elsewhere.
//
//tenon:into
func (x *Exec) Eye(n int, dt dtype.DType, opt EyeOpt) *Tensor {
	m := whole(opt.Columns, n)
	f := x.op(rowEye)
	if n < 0 || m < 0 {
		f.fail(fault.Invalid, "the sizes of eye must not be negative, but are %d and %d", n, m)
	}
	f.dims, f.dt = append(f.dims, n, m), dt
	f.scalar[0] = kernels.IntScalar(int64(m))
	return f.call1()
}
