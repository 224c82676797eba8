package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// The scaling of losses, by which gradients of half precision stay above its smallest numbers, as torch.amp.GradScaler does it. The state
// is a row: the scale, which is a float32, and how many steps it has stood; the scalar is its inverse as a float32.

// Unscale multiplies gradients by the scalar of a row, and raises the flag of the call where one is not finite. For MultiTensor.
var Unscale = point(PointOp{Name: "unscale", Ins: 1, Scalars: 1,
	Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num { return []Num{in[0].Mul(s[0])} },
	Raise: func(in []Num) kernel.Value {
		v := in[0].Re
		return v.Sub(v).Ne(v.Like(0)) // infinite or NaN
	}})

// Scale multiplies tensors by the scalar of a row, their factor. For MultiTensor.
var Scale = point(PointOp{Name: "scale", Ins: 1, Scalars: 1,
	Build: func(_ *kernel.Builder, _ dtype.DType, in, s []Num) []Num { return []Num{in[0].Mul(s[0])} }})

// RowFactor is where a row has the factor of Scale.
const RowFactor = rowScalars

// ScaleRow is a row of a scale that has stood for so many steps.
func ScaleRow(scale float32, steps int) [RowLen]float64 {
	row := [RowLen]float64{float64(scale), float64(steps)}
	row[rowScalars] = float64(float32(1 / float64(scale)))
	return row
}

// scaleFlags is how many flags an update looks at.
const scaleFlags = 64

// scaleArgs are the arguments of the update of a scale: n flags count.
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

// UpdateScale ends a step: if one of the flags is raised the scale of the row is multiplied by backoff, and after interval steps without
// that by growth, unless it then were infinite. scale (float32) gets the new one, and the flags are cleared.
func UpdateScale(is Issuer, row, scale Operand, flags []uint64, growth, backoff float64, interval int) error {
	if len(flags) > scaleFlags {
		return fmt.Errorf("a scale has %d flags, and at most %d can be looked at", len(flags), scaleFlags)
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
