package benchrun

import (
	"fmt"
	"strconv"
	"strings"
)

// Goal is the target of a figure: at most, or at least, Factor times another figure, plus Plus.
type Goal struct {
	// AtLeast is set if more is better; otherwise less is better.
	AtLeast bool
	// Of names the figure of the same run that is multiplied by Factor, or is "torch" for PyTorch's figure for the same work; it is empty
	// if the goal is Plus alone.
	Of     string
	Factor float64
	// Plus is in the figure's unit.
	Plus float64
}

// String returns the goal without its unit, such as "≤ launch + 0.8".
func (g Goal) String() string { return g.text("") }

// text returns the goal as the page shows it, such as "≤ launch + 0.8 µs"; a count has no unit beyond its title.
func (g Goal) text(unit string) string {
	var terms []string
	if g.Of != "" {
		term := strings.ReplaceAll(g.Of, "torch", "PyTorch")
		if g.Factor != 1 {
			term = short(g.Factor) + " × " + term
		}
		terms = append(terms, term)
	}
	if g.Plus != 0 || g.Of == "" {
		term := short(g.Plus)
		if unit != "" {
			term += " " + unit
		}
		terms = append(terms, term)
	}
	sign := "≤ "
	if g.AtLeast {
		sign = "≥ "
	}
	return sign + strings.Join(terms, " + ")
}

// Met reports whether the median of the figure reaches the goal, and whether that is known: what the goal refers to may be missing.
func (g Goal) Met(r *Run, f Figure) (met, known bool) {
	bound := g.Plus
	switch g.Of {
	case "":
	case "torch":
		if f.Torch == nil {
			return false, false
		}
		bound += g.Factor * f.Torch.Median
	default:
		o, ok := r.figure(g.Of)
		if !ok || o.Unit != f.Unit {
			return false, false
		}
		bound += g.Factor * o.Median
	}
	if g.AtLeast {
		return f.Median >= bound, true
	}
	return f.Median <= bound, true
}

// short formats a number that has decimals with at most four significant digits.
func short(v float64) string {
	if v >= 1000 || v <= -1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func atMost(v float64) *Goal                     { return &Goal{Plus: v} }
func atLeast(v float64) *Goal                    { return &Goal{Plus: v, AtLeast: true} }
func over(of string, plus float64) *Goal         { return &Goal{Of: of, Factor: 1, Plus: plus} }
func times(f float64, of string) *Goal           { return &Goal{Of: of, Factor: f} }
func ofTorch(f float64) *Goal                    { return &Goal{Of: "torch", Factor: f, AtLeast: true} }
func ofTorchMost(f float64) *Goal                { return &Goal{Of: "torch", Factor: f} }
func both(f float64, of string, p float64) *Goal { return &Goal{Of: of, Factor: f, Plus: p} }

// Entry describes a figure that the page of measurements knows.
type Entry struct {
	// Name is the figure's name, Unit its unit in every run.
	Name, Unit string
	// Title says what is measured.
	Title string
	// Torch is the name of PyTorch's figure for the same work in bench/torch_bench.py, if it differs from Name.
	Torch string
	// Goal is the goal; nil for figures that only serve as a reference.
	Goal *Goal
}

// Section is a table of the page.
type Section struct {
	// Title is the heading of the table.
	Title   string
	Entries []Entry
}

// Catalogue returns the known figures in the page's order. A launch's time depends on the machine, so goals for overheads are relative to
// the bare call in the same run.
func Catalogue() []Section { return catalogue }

var catalogue = []Section{
	{"Issue and host overhead", []Entry{
		{"launch", "µs", "bare kernel launch through the driver contract", "", nil},
		{"launch.allocs", "allocs/op", "bare kernel launch: allocations", "", atMost(0)},
		{"add", "µs", "small add, issue per op", "", over("launch", 0.8)},
		{"add.allocs", "allocs/op", "small add: allocations", "", atMost(2)},
		{"add.go", "µs", "the Go part of an add alone, on the null driver", "", atMost(0.8)},
		{"add.go.grad", "µs", "the Go part of an add that records for backward", "", atMost(1.5)},
		{"add.go.allocs", "allocs/op", "the Go part of an add: allocations", "", nil},
		{"adamw.go", "µs", "the Go part of a step of AdamW over 200 tensors of 1,000 f32", "", times(165, "add.go")},
		{"adamw.go.scaled", "µs", "the same with gradients that a GradScaler scaled, and its update", "", times(250, "add.go")},
		{"gate.go", "µs", "the part of it that detects a second goroutine: entering and leaving a session's gate", "", atMost(0.005)},
		{"gate.go.cas", "µs", "one compare-and-swap of the processor, for comparison", "", nil},
		{"region.go.call", "µs", "the Go part of an add that a compiled region defers, handle included", "", times(0.35, "add.go")},
		{"region.go.call.grad", "µs", "the same where the add records for backward", "", times(0.5, "add.go.grad")},
		{"region.go.1", "µs", "the Go part of a region of one add, replayed as a graph", "", atMost(5)},
		{"region.go.1.allocs", "allocs/op", "the same: allocations, the result's handle among them", "", atMost(1)},
		{"region.go.64", "µs", "the Go part of a replay beside its calls, of 62 calls with 64 storages", "", atMost(5)},
		{"region.go.1500", "µs", "the same of 1,500 calls with 1,502 storages", "", atMost(19.4)},
		{"inputs.1", "µs", "a call of a callable that copies a tensor of 4 KiB, which is copied to the graph's memory first", "", nil},
		{"inputs.2", "µs", "the same with 2 tensors, which it joins", "", nil},
		{"inputs.8", "µs", "the same with 8 tensors", "", nil},
		{"inputs.32", "µs", "the same with 32 tensors", "", nil},
		{"add.grad", "µs", "small add that records for backward, issue per op", "", nil},
		{"empty.scoped", "µs", "empty and close from cache, scoped tensor", "empty", atMost(0.4)},
		{"empty.loose", "µs", "empty and close from cache, loose tensor", "empty", atMost(0.8)},
		{"empty.go.scoped", "µs", "empty and close from cache on the null driver, scoped tensor", "", nil},
		{"empty.go.loose", "µs", "empty and close from cache on the null driver, loose tensor", "", nil},
		{"event", "µs", "bare event record through the driver contract", "", nil},
		{"event.allocs", "allocs/op", "bare event record: allocations", "", atMost(0)},
		{"event.record", "µs", "event record on a stream", "", over("event", 0.3)},
		{"stream.switch", "µs", "run the next op on another stream", "", atMost(0.05)},
	}},
	{"Training step", []Entry{
		{"mlp.launches", "launches", "launches of one MLP 784-512-256-10 training step, batch 256, fused Adam", "", atMost(26)},
		{"mlp.eager", "µs", "the MLP's training step, eager", "", both(26, "launch", 26*0.8+30)},
		{"mlp.graph", "µs", "the MLP's training step as one graph", "", atMost(90)},
		{"mlp.compiled", "µs", "the MLP's training step, compiled", "", atMost(65)},
		{"mlp.eager.go", "µs", "the Go part of the step alone, on the null driver, eager", "", nil},
		{"mlp.graph.go", "µs", "the same as one graph", "", nil},
		{"mlp.compiled.go", "µs", "the same compiled", "", nil},
		{"gpt2.eager", "ms", "GPT-2 124M's training step, eager: 8 × 1024 tokens of 50,257 padded to 50,304, bf16 autocast, " +
			"clipping, AdamW", "", atMost(24)},
		{"gpt2.compiled", "ms", "the same compiled", "", atMost(16.5)},
		{"gpt2.callable", "ms", "the same with forward pass and loss as a callable, and clipping and AdamW outside", "gpt2.compiled",
			ofTorchMost(1)},
		{"gpt2.callable.saved", "ms", "the same without recomputation", "gpt2.compiled", nil},
		{"gpt2.speed", "times", "compiled as fast as eager", "", atLeast(1.4)},
		{"gpt2.eager.peak", "GiB", "peak of the tensors' memory, eager", "", nil},
		{"gpt2.compiled.peak", "GiB", "the same compiled", "", atMost(5.5)},
		{"gpt2.callable.peak", "GiB", "the same with a callable", "gpt2.compiled.peak", ofTorchMost(1)},
		{"gpt2.callable.saved.peak", "GiB", "the same without recomputation", "gpt2.compiled.peak", nil},
		{"gpt2.memory", "times", "compiled's peak over eager's", "", atMost(1)},
		{"gpt2.eager.reserved", "GiB", "the most memory taken from the device, eager", "", nil},
		{"gpt2.compiled.reserved", "GiB", "the same compiled", "", nil},
		{"gpt2.callable.reserved", "GiB", "the same with a callable", "gpt2.compiled.reserved", nil},
		{"gpt2.callable.saved.reserved", "GiB", "the same without recomputation", "gpt2.compiled.reserved", nil},
		{"gpt2.compile", "s", "from the first compiled step to the end of the first that is replayed", "", atMost(3)},
		{"llama.eager", "ms", "training step of a model with Llama's parts and 201 million parameters, eager: 8 × 1024 tokens of 32,000, " +
			"bf16 autocast, clipping, AdamW", "", ofTorchMost(1)},
		{"llama.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"llama.callable", "ms", "the same with forward pass and loss as a callable, and clipping and AdamW outside", "llama.compiled",
			ofTorchMost(1)},
		{"llama.eager.peak", "GiB", "peak of the tensors' memory, eager", "", nil},
		{"llama.compiled.peak", "GiB", "the same compiled", "", nil},
		{"llama.callable.peak", "GiB", "the same with a callable", "llama.compiled.peak", ofTorchMost(1)},
		{"llama.eager.reserved", "GiB", "the most memory taken from the device, eager", "", nil},
		{"llama.compiled.reserved", "GiB", "the same compiled", "", nil},
		{"llama.callable.reserved", "GiB", "the same with a callable", "llama.compiled.reserved", nil},
		{"resnet.train.eager", "ms",
			"ResNet-50's training step, eager: 64 images of 224 × 224, bf16 autocast, channels last, SGD with momentum",
			"", atMost(17)},
		{"resnet.train.graph", "ms", "the same as one graph", "", nil},
		{"resnet.train.compiled", "ms", "the same compiled", "", atMost(14)},
		{"resnet.train.compiled.first", "ms", "the same compiled, with channels first", "", nil},
		{"resnet.train.eager.peak", "GiB", "peak of the tensors' memory, eager", "", nil},
		{"resnet.train.graph.peak", "GiB", "the same as one graph", "", nil},
		{"resnet.train.compiled.peak", "GiB", "the same compiled", "", nil},
		{"resnet.train.compiled.first.peak", "GiB", "the same compiled, with channels first", "", nil},
		{"resnet.infer.1.eager", "ms", "ResNet-50's inference on one image, eager: bf16 autocast, channels last", "", nil},
		{"resnet.infer.1.graph", "ms", "the same as one graph", "", atMost(0.7)},
		{"resnet.infer.1.compiled", "ms", "the same compiled", "", atMost(0.7)},
		{"resnet.infer.1.compiled.first", "ms", "the same compiled, with channels first", "", nil},
		{"resnet.infer.64.eager", "ms", "the same on 64 images, eager, channels last", "", nil},
		{"resnet.infer.64.graph", "ms", "the same as one graph", "", nil},
		{"resnet.infer.64.compiled", "ms", "the same compiled", "", atMost(3.4)},
		{"resnet.infer.64.compiled.first", "ms", "the same compiled, with channels first", "", nil},
		{"zoo.bert.eager", "ms", "BERT's training step, eager: 32 texts of up to 512 words, dropout of a tenth, bf16 autocast, AdamW", "",
			ofTorchMost(1)},
		{"zoo.bert.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"zoo.bert.compiled.peak", "GiB", "peak of the tensors' memory, compiled", "", nil},
		{"zoo.vit_b_16.eager", "ms", "ViT-B/16's training step, eager: 64 images of 224 × 224, bf16 autocast, AdamW", "", ofTorchMost(1)},
		{"zoo.vit_b_16.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"zoo.vit_b_16.compiled.peak", "GiB", "peak of the tensors' memory, compiled", "", nil},
		{"zoo.convnext_tiny.eager", "ms", "ConvNeXt-T's training step, eager: the same images, channels last", "", ofTorchMost(1)},
		{"zoo.convnext_tiny.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"zoo.convnext_tiny.compiled.peak", "GiB", "peak of the tensors' memory, compiled", "", nil},
		{"zoo.mobilenet_v2.eager", "ms", "MobileNetV2's training step, eager, likewise", "", ofTorchMost(1)},
		{"zoo.mobilenet_v2.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"zoo.mobilenet_v2.compiled.peak", "GiB", "peak of the tensors' memory, compiled", "", nil},
		{"zoo.unet.eager", "ms", "a U-Net's training step, eager: 64 images of 128 × 128, likewise", "", ofTorchMost(1)},
		{"zoo.unet.compiled", "ms", "the same compiled", "", ofTorchMost(1)},
		{"zoo.unet.compiled.peak", "GiB", "peak of the tensors' memory, compiled", "", nil},
		{"decode.eager", "µs", "GPT-2 124M in bf16, a token after the other with caches of 1,024 positions, eager", "", nil},
		{"decode.compiled", "µs", "the same compiled", "", ofTorchMost(1)},
		{"decode.eager.go", "µs", "the Go part of a token, on the null driver, eager", "", nil},
		{"decode.compiled.go", "µs", "the same compiled", "", nil},
	}},
	{"Graphs", []Entry{
		{"graph.launch", "µs", "bare graph launch through the driver contract", "", nil},
		{"graph.issue", "µs", "replay of a 100-node graph: issue", "", over("graph.launch", 0.5)},
		{"graph.allocs", "allocs/op", "replay of a 100-node graph: allocations", "", atMost(0)},
		{"graph.bare", "µs", "a 100-node graph launched bare: completion", "", nil},
		{"graph.replay", "µs", "replay of a 100-node graph: completion", "", times(1.02, "graph.bare")},
	}},
	{"Bandwidth", []Entry{
		{"copy", "TB/s", "copy of 4 GiB f32, bytes read and written", "", ofTorch(0.97)},
		{"add.large", "TB/s", "add of two 4 GiB f32 tensors, bytes read and written", "", ofTorch(0.97)},
		{"sum", "TB/s", "sum of 4 GiB f32, bytes read", "", ofTorch(0.97)},
		{"turn", "TB/s", "copy of a transposed matrix of 4 GiB f32, bytes read and written", "", ofTorch(1)},
		{"turn.half", "TB/s", "copy of 64 images of 256 channels, 56 × 56 bf16, to channels last, bytes read and written", "", ofTorch(1)},
		{"columns.768", "µs", "sum over the rows of 8192 × 768 bf16, in a graph", "", ofTorchMost(1)},
		{"columns.2304", "µs", "the same of 8192 × 2304", "", ofTorchMost(1)},
		{"columns.3072", "µs", "the same of 8192 × 3072", "", ofTorchMost(1)},
		{"pool.max.backward", "µs", "gradient of max pooling 2 × 2, 64 images of 32 channels, 128 × 128 f32, channels last, in a graph", "",
			atMost(64)},
		{"pool.max.first.backward", "µs", "the same, channels first", "", atMost(64)},
		{"pool.avg.backward", "µs", "gradient of average pooling 2 × 2, 64 images of 64 channels, 64 × 64 f32, channels last, in a graph",
			"", atMost(23)},
		{"pool.avg.first.backward", "µs", "the same, channels first", "", atMost(23)},
		{"pool.stem", "µs", "max pooling 3 × 3 with stride 2, 64 images of 64 channels, 112 × 112 bf16, channels last, in a graph", "",
			atMost(63)},
		{"pool.stem.backward", "µs", "its gradient", "", atMost(63)},
		{"softmax", "TB/s", "softmax over rows of 1024, 4 GiB f32, bytes read and written", "", atLeast(4.1)},
		{"layernorm", "TB/s", "layer norm over rows of 1024, 4 GiB f32, bytes read and written", "", atLeast(4.1)},
		{"copy.time", "ms", "copy of 4 GiB f32", "", nil},
		{"chain", "ms", "six-op pointwise chain on 4 GiB f32, eager", "", atMost(12)},
		{"chain.compiled", "ms", "six-op pointwise chain on 4 GiB f32, compiled", "", times(1.03, "copy.time")},
		{"fusion.rmsnorm", "ms", "residual and RMS norm, bf16 8192 × 4096, compiled", "", atMost(0.049)},
		{"fusion.gelu", "ms", "bias and GELU by tanh, bf16 8192 × 4096, compiled", "", atMost(0.036)},
		{"fusion.softmax", "ms", "masked softmax, bf16 8192 × 4096, compiled", "", atMost(0.040)},
		{"fusion.layernorm", "ms", "layer norm over rows of 1024 and SiLU, 4 GiB f32, compiled", "", atMost(2.06)},
		{"fusion.sine", "ms", "sigmoid(exp(relu(sin(2a + 1)))), 4 GiB f32, compiled", "", times(1.05, "copy.time")},
		{"fusion.exp", "ms", "a chain of six with one exponential, 4 GiB f32, compiled", "", times(1.03, "copy.time")},
		{"fusion.distance", "ms", "mean((a - b)²) of two 4 GiB f32, compiled", "", ofTorchMost(1)},
		{"fusion.columns", "ms", "sum over the rows of a product of two bf16 8192 × 4096, compiled", "", ofTorchMost(1)},
		{"fusion.dots", "ms", "sum within each row of a product of two bf16 8192 × 4096, compiled", "", ofTorchMost(1)},
		{"fusion.moments", "ms", "mean of the squares less the square of the mean within each row of bf16 8192 × 4096, compiled", "",
			ofTorchMost(1)},
		{"fusion.norm", "ms", "an RMS norm written out, in f32 for bf16 8192 × 4096, compiled", "", ofTorchMost(1)},
		{"fusion.normalize", "ms", "rows of 1024 divided by the root of the sum of their squares, 4 GiB f32, compiled", "", ofTorchMost(1)},
		{"fusion.written.layernorm", "ms", "a layer norm written out, in f32 for bf16 8192 × 4096, compiled", "", ofTorchMost(1)},
		{"fusion.written.softmax", "ms", "a softmax written out, over rows of 1024, 4 GiB f32, compiled", "", ofTorchMost(1)},
		{"fusion.quantized", "ms", "a row times an int8 weight of 28672 × 8192 with a factor for each output, in bf16, compiled; " +
			"PyTorch with coordinate_descent_tuning", "",
			ofTorchMost(1)},
		{"fusion.entropy.eager", "ms", "cross-entropy in f32 of bf16 logits 8192 × 50304, forward and backward, eager", "", nil},
		{"fusion.entropy.compiled", "ms", "the same compiled", "fusion.entropy", atMost(0.70)},
		{"uniform", "TB/s", "uniform_ of 4 GiB f32, bytes written", "", atLeast(4.0)},
		{"normal", "TB/s", "normal_ of 4 GiB f32, bytes written", "", atLeast(2.5)},
		{"cumsum", "TB/s", "cumsum of 2²⁸ f32, bytes read and written", "", atLeast(3.5)},
		{"sort", "TB/s", "sort of 2²⁶ f32 with indices, bytes of keys read and written", "", atLeast(0.28)},
		{"attention.8x12x1024x64.causal", "TFLOP/s", "attention forward, bf16, batch × heads × length × width, causal", "", ofTorch(0.95)},
		{"attention.4x32x4096x128.causal", "TFLOP/s", "the same, longer and wider", "", ofTorch(0.95)},
		{"attention.4x16x2048x64", "TFLOP/s", "the same, all keys seen", "", ofTorch(0.95)},
		{"attention.backward.8x12x1024x64.causal", "TFLOP/s", "attention backward, deterministic", "", ofTorch(0.85)},
		{"attention.backward.4x32x4096x128.causal", "TFLOP/s", "the same, longer and wider", "", ofTorch(0.85)},
		{"attention.backward.4x16x2048x64", "TFLOP/s", "the same, all keys seen", "", ofTorch(0.85)},
		{"attention.8x16x1024x80", "TFLOP/s", "attention forward of vectors of 80 elements", "", ofTorch(1)},
		{"attention.backward.8x16x1024x80", "TFLOP/s", "the same backward", "", ofTorch(1)},
		{"attention.2x8x1024x160", "TFLOP/s", "attention forward of vectors of 160 elements", "", ofTorch(1)},
		{"attention.backward.2x8x1024x160", "TFLOP/s", "the same backward", "", ofTorch(1)},
		{"attention.2x8x2048x256.causal", "TFLOP/s", "attention forward of vectors of 256 elements, causal", "", ofTorch(1)},
		{"attention.backward.2x8x2048x256.causal", "TFLOP/s", "the same backward", "", ofTorch(1)},
		{"attention.bert.none", "ms", "attention of 32 × 12 heads of 512 by 64, bf16, forward", "", ofTorchMost(1)},
		{"attention.bert.padding", "ms", "the same under a mask of padding, of texts of 512, 320 and 136 words", "", ofTorchMost(1)},
		{"attention.bert.dropout", "ms", "the same with dropout", "", ofTorchMost(1)},
		{"attention.bert.both", "ms", "the same with both", "", ofTorchMost(1)},
		{"attention.bert.backward.none", "ms", "the same backward", "", ofTorchMost(1)},
		{"attention.bert.backward.padding", "ms", "the same backward, under the mask", "", ofTorchMost(1)},
		{"attention.bert.backward.dropout", "ms", "the same backward, with dropout", "", ofTorchMost(1)},
		{"attention.bert.backward.both", "ms", "the same backward, with both", "", ofTorchMost(1)},
		{"attention.bert.bias", "ms", "the same with a bias for each pair that is learned, forward", "", ofTorchMost(1)},
		{"attention.bert.backward.bias", "ms", "the same backward", "", ofTorchMost(1)},
		{"attention.few.1x12x12x1024x64", "µs", "attention of one query under a mask, bf16, batch × heads × heads of keys × keys " +
			"× width, in a graph", "", ofTorchMost(1)},
		{"attention.few.1x32x8x8192x128", "µs", "the same with shared heads of keys and more keys", "", ofTorchMost(1)},
		{"attention.few.32x32x8x2048x128", "µs", "the same for a batch", "", ofTorchMost(1)},
	}},
	{"Optimizers", []Entry{
		{"adamw.large", "TB/s", "step of AdamW over 2²⁸ f32 in 64 tensors, bytes read and written", "", ofTorch(0.97)},
		{"sgd.large", "TB/s", "step of SGD with momentum over the same", "", ofTorch(0.97)},
		{"adamw.small", "µs", "step of AdamW over 200 tensors of 1,000 f32, one after the other", "", ofTorchMost(1)},
		{"adamw.scaled", "µs", "the same with gradients that a GradScaler scaled, and its update", "", ofTorchMost(1)},
	}},
	{"Sums by index", []Entry{
		{"embedding.backward", "ms", "gradient of an embedding [50257, 768] f32 for 32,768 words", "", ofTorchMost(1.5)},
		{"scatter.add", "ms", "2²⁴ f32 added to 2²⁰ places drawn at random; Tenon's sums repeat bit for bit, PyTorch's do not", "", nil},
		{"scatter.add.fixed", "ms", "the same; PyTorch with deterministic algorithms, whose sums repeat too", "", nil},
	}},
	{"Matrix product 8192³", []Entry{
		{"matmul.bf16", "TFLOP/s", "bf16", "", ofTorch(0.98)},
		{"matmul.f16", "TFLOP/s", "f16", "", ofTorch(0.98)},
		{"matmul.f32", "TFLOP/s", "f32, exact", "", ofTorch(0.98)},
		{"matmul.tf32", "TFLOP/s", "f32 rounded to tf32", "", ofTorch(0.98)},
		{"matmul.bf16.mma", "TFLOP/s", "bf16, own kernel with mma", "matmul.bf16", ofTorch(0.6)},
		{"matmul.bf16.wgmma", "TFLOP/s", "bf16, own kernel with wgmma", "matmul.bf16", ofTorch(0.85)},
	}},
	{"Matrix products by size, replayed from a graph", productEntries()},
	{"One row times a matrix, bf16, replayed from a graph; the matrices rotate over more than the cache holds", rowEntries()},
	{"Convolution [64, 256, 56, 56] with [256, 256, 3, 3], bf16", []Entry{
		{"conv.forward", "TFLOP/s", "forward", "", ofTorch(0.6)},
		{"conv.input", "TFLOP/s", "gradient of the input", "", ofTorch(0.6)},
		{"conv.weight", "TFLOP/s", "gradient of the weight", "", ofTorch(0.6)},
	}},
	{"Memory", []Entry{
		{"alloc.exact", "ns", "allocate and free from cache, exact reuse", "", atMost(120)},
		{"alloc.split", "ns", "allocate and free from cache, split and merge", "", atMost(250)},
		{"alloc.parallel", "Mpairs/s", "pairs of allocate and free from 8 goroutines together", "", atLeast(3)},
		{"alloc.replay", "Mops/s", "operations of PyTorch's recorded fuzz runs", "", atLeast(0.5)},
		{"alloc.allocs", "allocs/op", "raw allocate and free: allocations in Go's heap", "", atMost(0)},
		{"history.event", "ns", "recording: what it adds to an event of the allocator", "", atMost(1000)},
		{"snapshot", "ms", "memory snapshot with 40,000 events", "", atMost(20)},
		{"snapshot.write", "ms", "memory snapshot with 40,000 events, and written as a pickle", "", atMost(20)},
		{"snapshot.read", "MB/s", "a snapshot's pickle read, its events streamed", "", atLeast(150)},
		{"peak.chain", "MiB", "peak above start: 32 × (Linear(1024), ReLU) without gradients, 4096 rows", "", ofTorchMost(1.1)},
		{"peak.digits", "MiB", "peak above start: training step of the digits network, batch 64", "", ofTorchMost(1.1)},
		{"peak.encoder", "MiB", "peak above start: transformer encoder layer, forward and backward on [16, 256, 512]", "",
			ofTorchMost(1.1)},
	}},
	{"Memory viewer, a trace of 10 million events", []Entry{
		{"viewer.import", "MB/s", "the pickle read, its column file written and opened", "", atLeast(150)},
		{"viewer.reopen", "s", "the column file opened, the first request answered", "", atMost(2)},
		{"viewer.tile", "ms", "a tile of any level over HTTP, the slowest of 400", "", atMost(50)},
	}},
	{"Memory checker", []Entry{
		{"memcheck.planted.sim", "tests",
			"planted tests, of 28, that come out right under the simulator's checker (`bench/sim.sh … memcheck`)", "", atLeast(28)},
		{"memcheck.planted.gpu", "tests", "planted tests, of 28, that come out right under compute-sanitizer (`bench/gpu.sh … sanitize`)",
			"", atLeast(28)},
		{"memcheck.planted.pytest", "runs", "tests of a Python file with planted bugs × compute-sanitizer's tools, of 40 runs those " +
			"with what was planted (`bench/gpu.sh … planted`)", "", atLeast(40)},
		{"memcheck.planted.cuda", "runs", "the same of a CUDA C++ program, of 128", "", atLeast(128)},
		{"memcheck.planted.go", "runs", "the same of Go tests, of 140", "", atLeast(140)},
		{"memcheck.kernels.sim", "kernels", "kernels of internal/kernels' tests under the simulator's checker, 0 findings " +
			"(`bench/sim.sh … memcheck`)", "", nil},
		{"memcheck.kernels.memcheck", "kernels", "kernels under compute-sanitizer's memcheck by `tenon memcheck`, 0 findings " +
			"(`bench/gpu.sh … memcheck`)", "", nil},
		{"memcheck.kernels.racecheck", "kernels", "the same under racecheck, 0 findings", "", nil},
		{"memcheck.kernels.initcheck", "kernels", "the same under initcheck, 0 findings", "", nil},
		{"memcheck.kernels.synccheck", "kernels", "the same under synccheck, 0 findings", "", nil},
		{"memcheck.Instant:times-bare", "times-bare",
			"1,000 tests that end at once, of the time of the bare processes (`bench/sim.sh … memcheck`)", "", atMost(1.3)},
		{"memcheck.memory", "MiB", "the runner's peak memory while two tests print 100 MB each", "", atMost(100)},
	}},
	{"Fuzzing (`bench/fuzz.sh`)", []Entry{
		{"fuzz.executions", "executions", "of all fuzz targets together, with inputs that they make", "", atLeast(1e8)},
		{"fuzz.findings", "targets", "of those in which an input failed", "", atMost(0)},
	}},
	{"Start", []Entry{
		{"start.cold", "s", "process start to first add on a GPU, no kernel cached", "", atMost(0.6)},
		{"start.warm", "s", "process start to first add on a GPU, kernels cached by the driver", "", atMost(0.45)},
		{"start.sim", "s", "process start to first add on the simulator", "", atMost(0.1)},
	}},
	{"Simulator", []Entry{
		{"sim.saxpy", "GB/s", "saxpy on 64 MiB, bytes read and written", "", nil},
		{"sim.saxpy.loop", "GB/s", "saxpy on 64 MiB by a plain Go loop", "", nil},
		{"sim.chain", "GB/s", "six-op pointwise chain on 64 MiB in one kernel, bytes read and written", "", nil},
		{"sim.chain.eager", "GB/s", "the same as six calls", "", nil},
		{"sim.chain.compiled", "GB/s", "the same as six calls in a compiled region", "",
			&Goal{Of: "sim.chain.eager", Factor: 3, AtLeast: true}},
		{"sim.chain.loop", "GB/s", "six-op pointwise chain on 64 MiB by a plain Go loop", "", nil},
		{"sim.matmul", "GFLOP/s", "f32 matrix product 1024³", "", atLeast(5)},
		{"sim.matvec", "GB/s", "f32 product of a row and a transposed matrix of 1024², bytes of the matrix", "", atLeast(10)},
		{"sim.mlp.eager", "µs", "the MLP's training step, eager", "", nil},
		{"sim.mlp.graph", "µs", "the MLP's training step as one graph", "", nil},
		{"sim.mlp.compiled", "µs", "the MLP's training step, compiled", "", nil},
		{"digits.sim", "s", "go run ./examples/digits, 20 epochs, without building", "", atMost(60)},
		{"digits.accuracy", "%", "the same with seeds 0 to 4 (`-seed 0` …), mean of the test accuracies", "", atLeast(97.2)},
		{"digits.shuffled", "%", "test accuracy with `-shuffle-labels`", "", atMost(20)},
	}},
}

// torchName returns the name of PyTorch's figure for the same work.
func torchName(name string) string {
	for _, s := range catalogue {
		for _, e := range s.Entries {
			if e.Name == name && e.Torch != "" {
				return e.Torch
			}
		}
	}
	return name
}

// unitOf returns the unit of a known figure, or "".
func unitOf(name string) string {
	for _, s := range catalogue {
		for _, e := range s.Entries {
			if e.Name == name {
				return e.Unit
			}
		}
	}
	return ""
}

// Check returns an error if the unit of a known figure of the run differs from the catalogue's.
func (r *Run) Check() error {
	for _, f := range r.Figures {
		if u := unitOf(f.Name); u != "" && u != f.Unit {
			return fmt.Errorf("figure %s is in %s, the page shows it in %s", f.Name, f.Unit, u)
		}
	}
	return nil
}
