package nn

import (
	"fmt"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// BatchNorm normalises every channel over the batch: in training with the batch's own statistics, which it also adds to running statistics,
// in evaluation with the running ones. Create one with NewBatchNorm1d or NewBatchNorm2d.
type BatchNorm struct {
	Mode
	// Weight and Bias are [C], or nil for none.
	Weight *Param `torch:"weight"`
	Bias   *Param `torch:"bias"`
	// RunningMean and RunningVar are [C], and NumBatchesTracked counts the training batches (Int64); nil if running statistics are not
	// kept.
	RunningMean       *Buffer `torch:"running_mean"`
	RunningVar        *Buffer `torch:"running_var"`
	NumBatchesTracked *Buffer `torch:"num_batches_tracked"`

	opt      BatchNormOpt
	channels int
	name     string
	min, max int // dimensions of the input
}

// BatchNormOpt are the options of NewBatchNorm1d and NewBatchNorm2d. The zero value is PyTorch's default.
type BatchNormOpt struct {
	// Eps is added to the variance; the default is 1e-5.
	Eps tenon.Scalar
	// Momentum is the weight of a batch's statistics in the running ones; the default is 0.1.
	Momentum tenon.Scalar
	// Cumulative keeps the plain average of all batches instead. Each training step then reads the count from the device.
	Cumulative bool
	// NoAffine leaves weight and bias out. NoRunningStats keeps no running statistics, and evaluation also uses the batch's.
	NoAffine, NoRunningStats bool
	// DType is the type of everything but the count; 0 is Float32.
	DType tenon.DType
}

// NewBatchNorm1d returns a normalisation of inputs [N, C] or [N, C, L].
func NewBatchNorm1d(x *tenon.Exec, channels int, opts ...BatchNormOpt) *BatchNorm {
	opt := core.One("NewBatchNorm1d", opts)
	return newBatchNorm(x, "BatchNorm1d", 2, 3, channels, opt)
}

// NewBatchNorm2d returns a normalisation of inputs [N, C, H, W].
func NewBatchNorm2d(x *tenon.Exec, channels int, opts ...BatchNormOpt) *BatchNorm {
	opt := core.One("NewBatchNorm2d", opts)
	return newBatchNorm(x, "BatchNorm2d", 4, 4, channels, opt)
}

func newBatchNorm(x *tenon.Exec, name string, min, max, channels int, opt BatchNormOpt) *BatchNorm {
	opt.Eps, opt.Momentum = core.OrEps("New"+name, opt.Eps, 1e-5), core.OrFinite("New"+name, "Momentum", opt.Momentum, 0.1)
	opt.DType = orFloat32(opt.DType)
	b := &BatchNorm{opt: opt, channels: channels, name: name, min: min, max: max}
	shape := []int{channels}
	if !opt.NoAffine {
		b.Weight, b.Bias = NewParam(x.Ones(shape, opt.DType)), NewParam(x.Zeros(shape, opt.DType))
	}
	if !opt.NoRunningStats {
		b.RunningMean, b.RunningVar = NewBuffer(x.Zeros(shape, opt.DType)), NewBuffer(x.Ones(shape, opt.DType))
		b.NumBatchesTracked = NewBuffer(x.Zeros(nil, tenon.Int64))
	}
	return b
}

// Training reports whether the module is in training mode.
func (b *BatchNorm) Training() bool { return made(b, "BatchNorm").Mode.Training() }

// Forward returns in, normalised. In training it updates the running statistics.
func (b *BatchNorm) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	if made(b, "BatchNorm").name == "" {
		fail("BatchNorm", "the module is a zero value; use one that NewBatchNorm1d or NewBatchNorm2d returned")
	}
	if in.Dim() < b.min || in.Dim() > b.max {
		want := fmt.Sprintf("%dD", b.min)
		if b.max > b.min {
			want += fmt.Sprintf(" or %dD", b.max)
		}
		fail(b.name, "expected %s input (got %dD input)", want, in.Dim())
	}
	weight, bias, mean, variance := b.Weight.Tensor(), b.Bias.Tensor(), b.RunningMean.Tensor(), b.RunningVar.Tensor()
	opt := tenon.BatchNormOpt{Training: b.Training() || b.RunningMean == nil, Momentum: b.opt.Momentum, Eps: b.opt.Eps}
	if !b.Training() || b.RunningMean == nil {
		return x.BatchNorm(in, weight, bias, mean, variance, opt)
	}
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		opt.Momentum = b.momentum(x)
		return (*tenon.Tensor)(core.BatchNormCounting((*core.Exec)(x), b.name, (*core.Tensor)(in), (*core.Tensor)(weight),
			(*core.Tensor)(bias), (*core.Tensor)(mean), (*core.Tensor)(variance), (*core.Tensor)(b.NumBatchesTracked.Tensor()),
			core.BatchNormOpt(opt)))
	})
}

// momentum returns the weight of the next batch's statistics.
func (b *BatchNorm) momentum(x *tenon.Exec) tenon.Scalar {
	if !b.opt.Cumulative {
		return b.opt.Momentum
	}
	v, err := x.Item(b.NumBatchesTracked.Tensor())
	if err != nil {
		core.FailWith(b.name, err, "the number of batches could not be read")
	}
	return 1 / (v + 1)
}
