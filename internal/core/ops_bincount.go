package core

import (
	"encoding/binary"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/infer"
)

// BinCountOpt are the options of BinCount.
type BinCountOpt struct {
	// Weight is a vector as long as t whose elements are added up instead of ones; nil counts.
	Weight *Tensor
	// MinLength is the least number of bins.
	MinLength int
}

// BinCount returns how often each number from 0 on occurs in t, a vector of non-negative integers, as int64. The result's length is the
// greatest number plus one, or MinLength if that is more. With a weight, element i of the result is the sum of the weights of those
// elements of t that are i, in an order that only t decides, so that results repeat: float32 for a float32 weight, else float64. It has no
// derivative. The length depends on t, so the call waits for t and cannot be captured.
func (x *Exec) BinCount(t *Tensor, opt BinCountOpt) *Tensor {
	const op = "BinCount"
	weight := opt.Weight
	switch {
	case len(t.shape) != 1 || !t.dt.IsInt():
		x.fail(op, fault.Invalid, []*Tensor{t}, "bincount only supports 1-d non-negative integral inputs, not %v of shape %v; convert "+
			"them with x.ToDType", t.dt, t.shape)
	case opt.MinLength < 0:
		x.fail(op, fault.Invalid, []*Tensor{t}, "minlength should be >= 0, but is %d", opt.MinLength)
	case weight != nil && !infer.Same(weight.shape, t.shape):
		x.fail(op, fault.Invalid, []*Tensor{t, weight},
			"weights should be 1-d and have the same length as input, but have shape %v for %v", weight.shape, t.shape)
	case weight != nil && weight.dt.IsComplex():
		x.fail(op, fault.Unsupported, []*Tensor{t, weight}, "weights are real numbers, not %v; give x.RealPart of them", weight.dt)
	}
	return x.noGrad().composite(op, func(x *Exec) *Tensor {
		bins := opt.MinLength
		if t.Numel() > 0 {
			t = x.ToDType(t, dtype.Int64)
			b, err := x.Bytes(x.Stack([]*Tensor{x.AMin(t, nil, DimOpt{}), x.AMax(t, nil, DimOpt{})}, 0))
			x.check(op, err)
			least, most := int64(binary.LittleEndian.Uint64(b)), int(binary.LittleEndian.Uint64(b[8:]))
			if least < 0 {
				x.fail(op, fault.Invalid, []*Tensor{t},
					"bincount only supports 1-d non-negative integral inputs, but the least element is %d", least)
			}
			bins = max(bins, most+1)
		}
		switch {
		case weight == nil || t.Numel() == 0:
			weight = x.Expand(x.Ones(nil, dtype.Int64), t.shape...)
		case weight.dt != dtype.Float32:
			weight = x.ToDType(weight, dtype.Float64)
		}
		return x.sumAt([]int{bins}, 0, t, weight, 0)
	})
}
