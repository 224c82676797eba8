package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The scaling of losses, which keeps gradients of half precision above the smallest numbers of the type, as torch.amp.GradScaler does. The
// state is a row: the scale, which is a float32, and the number of steps since it last changed. The scalar is the inverse of the scale as a
// float32.

// Unscale multiplies gradients by the scalar of a row, and raises the flag of the call if one is not finite. It is for MultiTensor.
var Unscale = point(PointOp{Name: "unscale", Ins: 1, Scalars: 1,
	Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num { return []Num{in[0].Mul(s[0])} },
	Raise: func(in []Num) kernel.Value {
		v := in[0].Re
		return v.Sub(v).Ne(v.Like(0)) // infinite or NaN
	}})

// Scale multiplies tensors by the scalar of a row, their factor. It is for MultiTensor.
var Scale = point(PointOp{Name: "scale", Ins: 1, Scalars: 1,
	Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num { return []Num{in[0].Mul(s[0])} }})

// RowFactor is the index of the factor of Scale in a row.
const RowFactor = rowScalars

// ScaleRow returns the row of a scale that has not changed for the given number of steps.
func ScaleRow(scale float32, steps int) [RowLen]float64 {
	row := [RowLen]float64{float64(scale), float64(steps)}
	row[rowScalars] = float64(float32(1 / float64(scale)))
	return row
}

// scaleFlags is the maximum number of flags that an update checks.
const scaleFlags = 64

// scaleArgs are the arguments of the update of a scale; n is the number of flags.
type scaleArgs struct {
	row, scale                bufferArg
	flags                     listArg[uint64]
	n                         intArg
	growth, backoff, interval floatArg
}

func (a *scaleArgs) layout(p params) {
	p.buffer(&a.row, "row", dtype.Float64)
	p.buffer(&a.scale, "scale", dtype.Float32)
	list(p, &a.flags, "flag", scaleFlags)
	p.i32(&a.n, "n")
	p.f64(&a.growth, "growth")
	p.f64(&a.backoff, "backoff")
	p.f64(&a.interval, "interval")
}

// UpdateScale ends a step. If one of the flags is raised, the scale of the row is multiplied by backoff; after interval steps without a
// raised flag it is multiplied by growth, unless that would make it infinite. scale (float32) gets the new scale, and the flags are
// cleared.
func UpdateScale(is Issuer, row, scale Operand, flags []uint64, growth, backoff float64, interval int) error {
	if len(flags) > scaleFlags {
		return fmt.Errorf("a scale has %d flags, and at most %d can be checked", len(flags), scaleFlags)
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Outs = FamilyScale, dtype.Float64, 2
	s.DTypes[0], s.DTypes[1] = row.DType, scale.DType
	var a scaleArgs
	a.row.host, a.scale.host, a.flags.host, a.n.host = row.Ptr, scale.Ptr, flags, len(flags)
	a.growth.host, a.backoff.host, a.interval.host = growth, backoff, float64(interval)
	a.layout(packing(l))
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyScale, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("update_scale"), func(k *kernel.Builder) {
		k.FixedThreads(1)
		var a scaleArgs
		a.layout(declaring(k, s))
		zero := k.I32(0)
		found := k.Var(k.Bool(false))
		k.For(zero, a.n.Value, k.I32(1), func(i kernel.Value) {
			flag := k.At(a.flags.Load(i), dtype.Float32)
			found.Set(found.Get().Or(flag.Load(zero).Ne(k.F32(0))))
			flag.Store(zero, k.F32(0))
		})
		old, steps := a.row.LoadAt(zero, 0), a.row.LoadAt(zero, 1).Add(k.F64(1))
		f32 := func(v kernel.Value) kernel.Value { return v.Convert(dtype.Float32).Convert(dtype.Float64) }
		grown := f32(old.Mul(a.growth.Value))
		due := steps.Eq(a.interval.Value)
		kept := due.And(grown.Sub(grown).Eq(k.F64(0))).Select(grown, old)
		now := found.Get().Select(f32(old.Mul(a.backoff.Value)), kept)
		a.row.Store(zero, now)
		a.row.Store(k.I32(1), found.Get().Or(due).Select(k.F64(0), steps))
		a.row.Store(k.I32(rowScalars), f32(k.F64(1).Div(now)))
		a.scale.Store(zero, now.Convert(dtype.Float32))
	})
})
