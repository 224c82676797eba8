package core

import (
	"testing"

	"tenon.dev/dtype"
)

// TestEmbeddingOfHalves: a word that comes 3,000 times gets the sum of 3,000 gradients, although a half cannot count so far by ones, and
// divided by how often it comes their mean.
func TestEmbeddingOfHalves(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		const often = 3000
		words := make([]int64, often+1)
		words[7] = 1
		index := From(x, words)
		for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			for _, byFrequency := range []bool{false, true} {
				w := x.Zeros([]int{2, 1}, dt).SetRequiresGrad(true)
				y := x.Embedding(index, w, EmbeddingOpt{ScaleGradByFreq: byFrequency})
				if err := x.Backward(x.Sum(y, nil, SumOpt{}), BackwardOpt{}); err != nil {
					t.Fatal(err)
				}
				first := float32(1)
				if !byFrequency {
					first = 3000
					if dt == dtype.BFloat16 {
						first = 3008
					}
				}
				want(t, x, x.ToDType(w.Grad(), dtype.Float32), first, 1)
			}
		}
	})
}
