package nn

import "tenon.dev"

// MaxPool2d takes the largest element of every window.
type MaxPool2d struct {
	// Kernel is the window's height and width.
	Kernel [2]int
	// Opt are stride (0 is the kernel's size), padding, dilation and rounding.
	Opt tenon.MaxPoolOpt
}

// Forward maps in [N, C, H, W], or [C, H, W], to the windows' values.
func (p MaxPool2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.MaxPool2d(in, p.Kernel, p.Opt)
}

// AvgPool2d takes the mean of every window.
type AvgPool2d struct {
	// Kernel is the window's height and width.
	Kernel [2]int
	// Opt are stride (0 is the kernel's size), padding, rounding, and what the mean divides by.
	Opt tenon.AvgPoolOpt
}

// Forward maps in [N, C, H, W], or [C, H, W], to the windows' values.
func (p AvgPool2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.AvgPool2d(in, p.Kernel, p.Opt)
}

// AdaptiveAvgPool2d takes the means of windows chosen so that the output has Size.
type AdaptiveAvgPool2d struct {
	// Size is the output's height and width.
	Size [2]int
}

// Forward maps in [N, C, H, W], or [C, H, W], to [..., Size].
func (p AdaptiveAvgPool2d) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.AdaptiveAvgPool2d(in, p.Size)
}
