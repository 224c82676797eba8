package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The scaling of losses, by which gradients of half precision stay above its smallest numbers, as torch.amp.GradScaler does it. The state is a row: the
// scale, which is a float32, and how many steps it has stood; the scalar is its inverse as a float32.

// Unscale multiplies gradients by the scalar of a row, and raises the flag of the call where one is not finite. For MultiTensor.
var Unscale = point(PointOp{Name: "unscale", Ins: 1, Scalars: 1,
	Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num { return []Num{in[0].Mul(s[0])} },
	Raise: func(in []Num) kernel.Value {
		v := in[0].Re
		return v.Sub(v).Ne(v.Like(0)) // infinite or NaN
	}})

// ScaleRow is a row of a scale that has stood for so many steps.
func ScaleRow(scale float32, steps int) [RowLen]float64 {
	row := [RowLen]float64{float64(scale), float64(steps)}
	row[rowScalars] = float64(float32(1 / float64(scale)))
	return row
}

// scaleFlags is how many flags an update looks at.
const scaleFlags = 64

// UpdateScale ends a step: if one of the flags is raised the scale of the row is multiplied by backoff, and after interval steps without that by
// growth, unless it then were infinite. scale (float32) gets the new one, and the flags are cleared.
func UpdateScale(is Issuer, row, scale Operand, flags []uint64, growth, backoff float64, interval int) error {
	if len(flags) > scaleFlags {
		return fmt.Errorf("a scale has %d flags, and at most %d can be looked at", len(flags), scaleFlags)
	}
	l := is.NewLaunch()
	s := &l.Spec
	s.Family, s.Compute, s.Outs = FamilyScale, dtype.Float64, 2
	s.DTypes[0], s.DTypes[1] = row.DType, scale.DType
	l.u64(row.Ptr)
	l.u64(scale.Ptr)
	for i := range scaleFlags {
		if i < len(flags) {
			l.u64(flags[i])
		} else {
			l.u64(0)
		}
	}
	l.i32(len(flags))
	l.f64(growth)
	l.f64(backoff)
	l.f64(float64(interval))
	l.Grid, l.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	return is.Issue(l)
}

var _ = register(FamilyScale, func(s *Spec) *kernel.Kernel {
	return kernel.Build(s.name("update_scale"), func(k *kernel.Builder) {
		k.FixedThreads(1)
		row, scale := k.Buffer("row", dtype.Float64), k.Buffer("scale", dtype.Float32)
		flags, n := k.Params("flag", dtype.Uint64, scaleFlags), k.Scalar("n", dtype.Int32)
		growth, backoff, interval := k.Scalar("growth", dtype.Float64), k.Scalar("backoff", dtype.Float64), k.Scalar("interval", dtype.Float64)
		zero := k.I32(0)
		found := k.Var(k.Bool(false))
		k.For(zero, n, k.I32(1), func(i kernel.Value) {
			flag := k.At(flags.Load(i), dtype.Float32)
			found.Set(found.Get().Or(flag.Load(zero).Ne(k.F32(0))))
			flag.Store(zero, k.F32(0))
		})
		old, steps := row.LoadAt(zero, 0), row.LoadAt(zero, 1).Add(k.F64(1))
		f32 := func(v kernel.Value) kernel.Value { return v.Convert(dtype.Float32).Convert(dtype.Float64) }
		grown := f32(old.Mul(growth))
		due := steps.Eq(interval)
		kept := due.And(grown.Sub(grown).Eq(k.F64(0))).Select(grown, old)
		now := found.Get().Select(f32(old.Mul(backoff)), kept)
		row.Store(zero, now)
		row.Store(k.I32(1), found.Get().Or(due).Select(k.F64(0), steps))
		row.Store(k.I32(rowScalars), f32(k.F64(1).Div(now)))
		scale.Store(zero, now.Convert(dtype.Float32))
	})
})
