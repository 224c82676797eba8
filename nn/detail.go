package nn

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// The options of this package's modules, printed in PyTorch's words.

func (m ReLU) detail() (name, options string)       { return "ReLU", "" }
func (m ReLU6) detail() (name, options string)      { return "ReLU6", "" }
func (m Sigmoid) detail() (name, options string)    { return "Sigmoid", "" }
func (m Tanh) detail() (name, options string)       { return "Tanh", "" }
func (m SiLU) detail() (name, options string)       { return "SiLU", "" }
func (m LogSigmoid) detail() (name, options string) { return "LogSigmoid", "" }
func (m Identity) detail() (name, options string)   { return "Identity", "" }
func (m Func) detail() (name, options string)       { return "Func", "" }

func (m GELU) detail() (name, options string) {
	if m.Tanh {
		return "GELU", "approximate='tanh'"
	}
	return "GELU", "approximate='none'"
}

func (m LeakyReLU) detail() (name, options string) {
	return "LeakyReLU", list("negative_slope", scalar(m.Slope, 0.01))
}

func (m *PReLU) detail() (name, options string) {
	return "PReLU", list("num_parameters", strconv.Itoa(dim(shapeOf(m.Weight), 0)))
}

func (m ELU) detail() (name, options string) {
	return "ELU", list("alpha", scalar(m.Alpha, 1))
}

func (m Hardtanh) detail() (name, options string) {
	return "Hardtanh", list("min_val", scalar(m.Min, -1),
		"max_val", scalar(m.Max, 1))
}

func (m Softplus) detail() (name, options string) {
	return "Softplus", list("beta", scalar(m.Beta, 1),
		"threshold", scalar(m.Threshold, 20))
}

func (m Softmax) detail() (name, options string) { return "Softmax", list("dim", strconv.Itoa(m.Dim)) }
func (m LogSoftmax) detail() (name, options string) {
	return "LogSoftmax", list("dim", strconv.Itoa(m.Dim))
}

func (m Flatten) detail() (name, options string) {
	if m == (Flatten{}) {
		m = Flatten{1, -1}
	}
	return "Flatten", list("start_dim", strconv.Itoa(m.From), "end_dim", strconv.Itoa(m.To))
}

func (m *Dropout) detail() (name, options string) {
	return "Dropout", list("p", core.Decimal(m.p), "inplace", core.Truth(false))
}

func (m *Linear) detail() (name, options string) {
	shape := shapeOf(m.Weight)
	return "Linear", list("in_features", strconv.Itoa(dim(shape, 1)), "out_features", strconv.Itoa(dim(shape, 0)), "bias",
		core.Truth(m.Bias != nil))
}

func (m *Embedding) detail() (name, options string) {
	shape := shapeOf(m.Weight)
	options = strconv.Itoa(dim(shape, 0)) + ", " + strconv.Itoa(dim(shape, 1))
	if m.Opt.Padding {
		row := m.Opt.PaddingIdx
		if row < 0 {
			row += dim(shape, 0)
		}
		options += ", " + list("padding_idx", strconv.Itoa(row))
	}
	if m.Opt.MaxNorm != nil {
		options += ", " + list("max_norm", scalar(m.Opt.MaxNorm, 0))
	}
	if n := scalar(m.Opt.NormType, 2); n != scalar(nil, 2) {
		options += ", " + list("norm_type", n)
	}
	if m.Opt.ScaleGradByFreq {
		options += ", " + list("scale_grad_by_freq", core.Truth(true))
	}
	return "Embedding", options
}

func (m *Conv2d) detail() (name, options string) {
	o := m.Opt
	return "Conv2d", convolution(m.Weight, m.Bias, o.Groups, o.Same, o.Stride[:], o.Padding[:], o.Dilation[:], nil)
}

func (m *Conv1d) detail() (name, options string) {
	o := m.Opt
	return "Conv1d", convolution(m.Weight, m.Bias, o.Groups, o.Same, []int{o.Stride}, []int{o.Padding}, []int{o.Dilation}, nil)
}

func (m *ConvTranspose2d) detail() (name, options string) {
	o := m.Opt
	return "ConvTranspose2d", convolution(m.Weight, m.Bias, o.Groups, false, o.Stride[:], o.Padding[:], o.Dilation[:], o.OutputPadding[:])
}

// convolution prints the options of a convolution, which has a stride, padding and dilation for each dimension; defaults are left out. One
// with outputPadding is transposed.
func convolution(weight, bias *Param, groups int, same bool, stride, padding, dilation, outputPadding []int) string {
	shape, groups := shapeOf(weight), max(1, groups)
	in, out := dim(shape, 1)*groups, dim(shape, 0)
	if outputPadding != nil {
		in, out = out, in
	}
	orOne := func(of []int) string {
		all := slices.Clone(of)
		for i := range all {
			all[i] = max(1, all[i])
		}
		return tuple(all...)
	}
	kernel := tuple()
	if len(shape) > 2 {
		kernel = tuple(shape[2:]...)
	}
	s := strconv.Itoa(in) + ", " + strconv.Itoa(out) + ", " + list("kernel_size", kernel, "stride", orOne(stride))
	switch {
	case same:
		s += ", padding=same"
	case slices.Max(padding) > 0:
		s += ", " + list("padding", tuple(padding...))
	}
	if slices.Max(dilation) > 1 {
		s += ", " + list("dilation", orOne(dilation))
	}
	if outputPadding != nil && slices.Max(outputPadding) > 0 {
		s += ", " + list("output_padding", tuple(outputPadding...))
	}
	if groups != 1 {
		s += ", " + list("groups", strconv.Itoa(groups))
	}
	if bias == nil {
		s += ", " + list("bias", core.Truth(false))
	}
	return s
}

// scalar prints an option or its default. One that is no number, which Forward refuses, is printed as it is.
func scalar(v tenon.Scalar, def float64) string {
	if v == nil {
		return core.Decimal(def)
	}
	if n, ok := core.NumberOf(v); ok {
		return core.Decimal(n)
	}
	return fmt.Sprint(v)
}

// number returns an option that the constructor resolved; it is 0 in a module that is a zero value.
func number(v tenon.Scalar) float64 {
	n, _ := v.(float64)
	return n
}

func (m *BatchNorm) detail() (name, options string) {
	momentum := core.Decimal(number(m.opt.Momentum))
	if m.opt.Cumulative {
		//tenon:quoted the printed form of PyTorch's module
		momentum = "None"
	}
	return cmp.Or(m.name, "BatchNorm"), strconv.Itoa(m.channels) + ", " + list("eps", core.Decimal(number(m.opt.Eps)), "momentum", momentum,
		"affine", core.Truth(!m.opt.NoAffine), "track_running_stats", core.Truth(!m.opt.NoRunningStats))
}

func (m *LayerNorm) detail() (name, options string) {
	return "LayerNorm", tuple(m.shape...) + ", " + list("eps", core.Decimal(number(m.eps)), "elementwise_affine",
		core.Truth(m.Weight != nil))
}

func (m *RMSNorm) detail() (name, options string) {
	eps := "None" //tenon:quoted the printed form of PyTorch's module
	if m.eps != nil {
		eps = core.Decimal(number(m.eps))
	}
	return "RMSNorm", tuple(m.shape...) + ", " + list("eps", eps, "elementwise_affine", core.Truth(m.Weight != nil))
}

func (m *GroupNorm) detail() (name, options string) {
	return "GroupNorm", strconv.Itoa(m.groups) + ", " + strconv.Itoa(m.channels) + ", " + list("eps", core.Decimal(number(m.eps)), "affine",
		core.Truth(m.Weight != nil))
}

func (m MaxPool2d) detail() (name, options string) {
	return "MaxPool2d", list("kernel_size", pair(m.Kernel), "stride", pair(orKernel(m.Opt.Stride, m.Kernel)), "padding",
		pair(m.Opt.Padding),
		"dilation", pair([2]int{max(1, m.Opt.Dilation[0]), max(1, m.Opt.Dilation[1])}), "ceil_mode", core.Truth(m.Opt.CeilMode))
}

func (m AvgPool2d) detail() (name, options string) {
	return "AvgPool2d", list("kernel_size", pair(m.Kernel), "stride", pair(orKernel(m.Opt.Stride, m.Kernel)), "padding",
		pair(m.Opt.Padding))
}

func (m Upsample) detail() (name, options string) {
	what, numbers := "size", []string{}
	for _, n := range m.Size {
		numbers = append(numbers, strconv.Itoa(n))
	}
	if len(m.Size) == 0 {
		what = "scale_factor"
		for _, v := range m.Scale {
			numbers = append(numbers, core.Decimal(v))
		}
	}
	text := strings.Join(numbers, ", ")
	if len(numbers) != 1 {
		text = "(" + text + ")"
	}
	return "Upsample", list(what, text, "mode", "'"+m.Mode.String()+"'")
}

func (m AdaptiveAvgPool2d) detail() (name, options string) {
	return "AdaptiveAvgPool2d", list("output_size", pair(m.Size))
}

func (m CrossEntropyLoss) detail() (name, options string)  { return "CrossEntropyLoss", "" }
func (m NLLLoss) detail() (name, options string)           { return "NLLLoss", "" }
func (m MSELoss) detail() (name, options string)           { return "MSELoss", "" }
func (m L1Loss) detail() (name, options string)            { return "L1Loss", "" }
func (m BCEWithLogitsLoss) detail() (name, options string) { return "BCEWithLogitsLoss", "" }
func (m SmoothL1Loss) detail() (name, options string)      { return "SmoothL1Loss", "" }
func (m HuberLoss) detail() (name, options string)         { return "HuberLoss", "" }
func (m BCELoss) detail() (name, options string)           { return "BCELoss", "" }
func (m KLDivLoss) detail() (name, options string)         { return "KLDivLoss", "" }

func (m *LSTM) detail() (name, options string) { return "LSTM", m.recurrent.options() }
func (m *GRU) detail() (name, options string)  { return "GRU", m.recurrent.options() }

// list joins alternating names and values.
func list(namesAndValues ...string) string {
	var b strings.Builder
	for i := 0; i < len(namesAndValues); i += 2 {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(namesAndValues[i] + "=" + namesAndValues[i+1])
	}
	return b.String()
}

// pair prints two equal numbers as one.
func pair(p [2]int) string {
	if p[0] == p[1] {
		return strconv.Itoa(p[0])
	}
	return tuple(p[:]...)
}

func orKernel(stride, kernel [2]int) [2]int {
	if stride == ([2]int{}) {
		return kernel
	}
	return stride
}
