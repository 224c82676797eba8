package main

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// Decoding with the cache as a graph writes the same tokens as the whole model run eagerly, also a second time with the same cache.
func TestDecoder(t *testing.T) {
	for _, dtype := range []tenon.DType{tenon.Float32, tenon.BFloat16} {
		c := config{vocab: 50, width: 32, heads: 4, keyHeads: 2, layers: 2, hidden: 48, context: 24, dtype: dtype}
		tenontest.Run(t, func(x *tenon.Exec) {
			x.Device().Generator().SetSeed(1)
			x = x.NoGrad()
			m := newLlama(x, c)
			defer nn.Close(m)
			for _, prompt := range [][]int64{{7, 3, 20}, {49}} {
				d, err := newDecoder(x, m)
				if err != nil {
					t.Fatal(err)
				}
				defer d.close()
				want, err := write(x, prompt, 12, m.next)
				if err != nil {
					t.Fatal(err)
				}
				got, err := write(x, prompt, 12, d.next)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) || len(slices.Compact(slices.Sorted(slices.Values(got)))) < 4 {
					t.Errorf("%v: the graph writes %v, want %v", dtype, got, want)
				}
			}
		}, tenon.Sim(0))
	}
}
