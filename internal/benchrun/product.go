package benchrun

import "fmt"

// Product is a product of matrices [M, K] and [K, N] whose speed is measured, in one of the types bf16, f16, tf32 and f32.
type Product struct {
	Type    string
	M, K, N int
}

// Products returns the products that are measured besides the large ones, by type.
func Products() (out []Product) {
	for _, t := range []string{"bf16", "f16", "tf32", "f32"} {
		for _, n := range []int{256, 512, 768, 1024, 1536, 2048, 3072, 4096} {
			out = append(out, Product{t, n, n, n})
		}
		out = append(out, Product{t, 4096, 1024, 4096}, Product{t, 128, 4096, 4096}, Product{t, 4096, 4096, 128},
			Product{t, 8192, 64, 8192}, Product{t, 2048, 8192, 2048})
	}
	return out
}

// Name returns the figure's name: the type, and the one size or all three.
func (p Product) Name() string {
	if p.M == p.K && p.K == p.N {
		return fmt.Sprintf("matmul.%s.%d", p.Type, p.M)
	}
	return fmt.Sprintf("matmul.%s.%dx%dx%d", p.Type, p.M, p.K, p.N)
}

// ModelProduct is a product of a layer of a model, gpt2 or llama, with 8 x 1024 tokens: Y [M, N] = X [M, K] Wᵀ, or the gradient of X or W.
type ModelProduct struct {
	Model, Layer string
	K, N         int
}

// ModelRows is the number of tokens.
const ModelRows = 8 * 1024

// ModelDirections are the products of a layer: forward, and the gradients of its input and its weight.
var ModelDirections = [3]string{"forward", "input", "weight"}

// ModelProducts returns the layers of GPT-2 with 124 million parameters, and those of the model with Llama's parts.
func ModelProducts() []ModelProduct {
	return []ModelProduct{{"gpt2", "qkv", 768, 2304}, {"gpt2", "out", 768, 768}, {"gpt2", "up", 768, 3072}, {"gpt2", "down", 3072, 768},
		{"gpt2", "head", 768, 50304}, {"llama", "query", 1024, 1024}, {"llama", "key", 1024, 256}, {"llama", "up", 1024, 2816},
		{"llama", "down", 2816, 1024}, {"llama", "head", 1024, 32000}}
}

// Name returns the figure's name for a direction.
func (p ModelProduct) Name(direction string) string {
	return p.Model + ".product." + p.Layer + "." + direction
}

func productEntries() (out []Entry) {
	for _, p := range ModelProducts() {
		for _, d := range ModelDirections {
			model := map[string]string{"gpt2": "GPT-2", "llama": "Llama"}[p.Model]
			label := fmt.Sprintf("%s's layer %s, %d to %d with %d tokens, bf16: %s", model, p.Layer, p.K, p.N, ModelRows, d)
			out = append(out, Entry{p.Name(d), "TFLOP/s", label, "", ofTorch(1)})
		}
	}
	for _, p := range Products() {
		out = append(out, Entry{p.Name(), "TFLOP/s", fmt.Sprintf("%s, [%d, %d] by [%d, %d]", p.Type, p.M, p.K, p.K, p.N), "", nil})
	}
	return out
}

// RowProduct is the product of one row of K numbers and a matrix of N columns, each of which lies in one piece, in bf16. Goal is its time
// in microseconds on an H200.
type RowProduct struct {
	K, N int
	Goal float64
}

// RowBytes is how much memory the matrices take together that a benchmark of row products rotates over.
const RowBytes = 256 << 20

// RowProducts returns the row products that are measured.
func RowProducts() []RowProduct {
	return []RowProduct{{2048, 8192, 9.5}, {8192, 2048, 9.5}, {2048, 2048, 3.5}, {4096, 14336, 29}, {2048, 128256, 121}}
}

// Name returns the figure's name.
func (p RowProduct) Name() string { return fmt.Sprintf("row.%dx%d", p.K, p.N) }

func rowEntries() (out []Entry) {
	for _, p := range RowProducts() {
		out = append(out, Entry{p.Name(), "µs", fmt.Sprintf("[1, %d] by [%d, %d]", p.K, p.K, p.N), "", atMost(p.Goal)})
	}
	return out
}
