// Package zoo is well-known models with the names of PyTorch's parameters, written as a user of nn would write them. Tests compare them
// with what PyTorch computes, and benchmarks of whole programs train them. Parameters and inputs are filled by a formula, so no weights are
// shipped.
package zoo

import (
	"hash/crc32"
	"math"
	"strings"

	"tenon.dev"
	"tenon.dev/nn"
)

// Network is a model that trains. Its parameters have the names and the order of PyTorch's.
type Network interface {
	// Forward returns the network's output.
	Forward(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor
	// Loss returns the loss of an output.
	Loss(x *tenon.Exec, out, target *tenon.Tensor) *tenon.Tensor
}

// Model is a kind of network. New makes one with random weights. Inputs returns inputs for Network.Forward and the target for Network.Loss:
// batch samples with a side or a length of size, with the values of real and ints. Batch and Size are those that PyTorch's results were
// recorded with.
type Model struct {
	New         func(x *tenon.Exec) Network
	Inputs      func(x *tenon.Exec, batch, size int) (in []*tenon.Tensor, target *tenon.Tensor)
	Batch, Size int
}

// Models returns all models by PyTorch's name.
func Models() map[string]Model {
	return map[string]Model{
		"bert":          {New: newBERT, Inputs: bertInputs, Batch: 3, Size: 64},
		"convnext_tiny": {New: newConvNeXtTiny, Inputs: imageInputs, Batch: 2, Size: 224},
		"gpt2":          {New: newGPT2, Inputs: gpt2Inputs, Batch: 2, Size: 128},
		"llama":         {New: newLlama, Inputs: llamaInputs, Batch: 2, Size: 96},
		"lstm":          {New: newLSTM, Inputs: lstmInputs, Batch: 4, Size: 50},
		"mobilenet_v2":  {New: newMobileNet, Inputs: imageInputs, Batch: 4, Size: 224},
		"transformer":   {New: newSeq2seq, Inputs: seq2seqInputs, Batch: 3, Size: 24},
		"unet":          {New: newUNet, Inputs: unetInputs, Batch: 2, Size: 64},
		"vit_b_16":      {New: newViT, Inputs: imageInputs, Batch: 2, Size: 224},
	}
}

// Fill sets the parameters and the running statistics of m, a module, to the values of PyTorch's recording.
func Fill(x *tenon.Exec, m any) {
	x = x.NoGrad()
	for name, a := range nn.StateDict(m) {
		if a.DType() == tenon.Float32 {
			x.Scope(func(x *tenon.Exec) { x.CopyInto(a, tenon.From(x, filled(name, a.Shape()), a.Shape()...)) })
		}
	}
}

// uniform returns n numbers from 0 to 1 that depend only on the name: splitmix64 of a counter.
func uniform(name string, n int) []float64 {
	u := make([]float64, n)
	start := uint64(crc32.ChecksumIEEE([]byte(name)))<<32 + 0x9e3779b97f4a7c15
	for i := range u {
		z := start + uint64(i)
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		u[i] = float64((z^z>>31)>>11) * 0x1p-53
	}
	return u
}

// filled returns the values of a parameter or buffer.
func filled(name string, shape []int) []float32 {
	n := numel(shape)
	out := make([]float32, n)
	for i, u := range uniform(name, n) {
		v := 0.1 * (2*u - 1)
		switch {
		case strings.HasSuffix(name, "running_var"):
			v = 1 + 0.5*u
		case len(shape) >= 2:
			v = (2*u - 1) * math.Sqrt(3/float64(n/shape[0]))
		case strings.HasSuffix(name, "weight"):
			v++
		}
		out[i] = float32(v)
	}
	return out
}

// real returns a tensor of numbers from -1.7 to 1.7 that depend only on the name.
func real(x *tenon.Exec, name string, shape ...int) *tenon.Tensor {
	out := make([]float32, numel(shape))
	for i, u := range uniform(name, len(out)) {
		out[i] = float32(2*u-1) * 1.7
	}
	return tenon.From(x, out, shape...)
}

// ints returns a tensor of integers below high that depend only on the name.
func ints(x *tenon.Exec, name string, high int, shape ...int) *tenon.Tensor {
	out := make([]int64, numel(shape))
	for i, u := range uniform(name, len(out)) {
		out[i] = min(int64(u*float64(high)), int64(high-1))
	}
	return tenon.From(x, out, shape...)
}

func numel(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

const imageClasses = 1000

// Images returns the images of the recording [batch, 3, size, size].
func Images(x *tenon.Exec, batch, size int) *tenon.Tensor {
	return real(x, "image", batch, 3, size, size)
}

// imageInputs returns images and their classes.
func imageInputs(x *tenon.Exec, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	return []*tenon.Tensor{Images(x, batch, size)}, ints(x, "label", imageClasses, batch)
}

// classes is the loss of networks that tell classes apart: the mean cross-entropy of logits [..., classes].
type classes struct{}

func (classes) Loss(x *tenon.Exec, out, target *tenon.Tensor) *tenon.Tensor {
	s := out.Shape()
	return x.CrossEntropy(x.Reshape(out, -1, s[len(s)-1]), x.Flatten(target, 0, -1))
}
