package tenon_test

import (
	"fmt"
	"log"
	"slices"

	"tenon.dev"
	"tenon.dev/nn"
)

// A model of one layer writes tokens with a cache of keys and values. The prompt is one call, and each later token one run of a graph.
func Example_decoding() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	x = x.NoGrad()
	const vocab, context, heads, keyHeads, width = 20, 16, 4, 2, 8
	g := nn.NewHostGenerator(1)
	linear := func(in, out int) *nn.Linear { return nn.NewLinear(x, in, out, nn.LinearOpt{Generator: g}) }
	embed := nn.NewEmbedding(x, vocab, heads*width, nn.EmbeddingOpt{Generator: g})
	query, key, value := linear(heads*width, heads*width), linear(heads*width, keyHeads*width), linear(heads*width, keyHeads*width)
	head := linear(heads*width, vocab)

	keys := x.Zeros([]int{1, keyHeads, context, width}, tenon.Float32) // the cache; each worker has its own
	values, slots := x.Zeros(keys.Shape(), tenon.Float32), x.Arange(context, tenon.Int64)
	forward := func(x *tenon.Exec, tokens, at *tenon.Tensor) *tenon.Tensor { // both are int64 [T]: tokens, and their positions
		n, h := tokens.Size(0), embed.Forward(x, tokens)
		split := func(l *nn.Linear, heads int) *tenon.Tensor { // [1, heads, T, width]
			return x.Transpose(x.View(l.Forward(x, h), 1, n, heads, width), 1, 2)
		}
		x.IndexCopyInto(keys, keys, 2, at, split(key, keyHeads))
		x.IndexCopyInto(values, values, 2, at, split(value, keyHeads))
		visible := x.Le(slots, x.View(at, n, 1)) // [T, context]: of each token, its own position and earlier ones
		opt := tenon.AttentionOpt{Mask: visible, GroupedHeads: true}
		out := x.ScaledDotProductAttention(split(query, heads), keys, values, opt)
		last := x.Select(x.Flatten(x.Transpose(out, 1, 2), 2, 3), 1, n-1)
		return head.Forward(x, last) // the logits [1, vocab] after the last token
	}

	token, at := x.Zeros([]int{1}, tenon.Int64), x.Zeros([]int{1}, tenon.Int64)
	var logits *tenon.Tensor
	graph, err := x.Capture(func(x *tenon.Exec) {
		logits = forward(x, token, at)
		x.AddSInto(at, at, 1)
	})
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()

	answer := func(prompt []int, n int) (tokens []int, err error) {
		bad := slices.IndexFunc(prompt, func(t int) bool { return t < 0 || t >= vocab })
		if bad >= 0 || len(prompt) == 0 || n < 1 || n > context-len(prompt) {
			return nil, fmt.Errorf("%d tokens and %d more do not fit, or one is not from 0 to %d", len(prompt), n, vocab-1)
		}
		err = x.Do(func(x *tenon.Exec) error {
			x.FillInto(keys, 0)
			x.FillInto(values, 0)
			scores := forward(x, tenon.From(x, prompt), x.Arange(float64(len(prompt)), tenon.Int64)) // the whole prompt at once
			x.FillInto(at, float64(len(prompt)))
			for {
				next, err := x.Item(x.ArgMax(scores, nil))
				if err != nil {
					return err
				}
				if tokens = append(tokens, int(next)); len(tokens) == n {
					return nil
				}
				x.FillInto(token, next)
				if err := x.Replay(graph); err != nil {
					return err
				}
				scores = logits
			}
		})
		return tokens, err
	}

	tokens, err := answer([]int{7, 3}, 5)
	if err != nil {
		log.Fatal(err)
	}
	for i := range tokens { // the same tokens, each from all of those before it
		again, err := answer(append([]int{7, 3}, tokens[:i]...), 1)
		fmt.Print(again[0] == tokens[i], " ", err, " ")
	}
	_, err = answer([]int{20}, 1)
	fmt.Println(err != nil)
	// Output:
	// true <nil> true <nil> true <nil> true <nil> true <nil> true
}
