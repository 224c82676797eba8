package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// Workers give the same answers as a single Exec, to the bit, and a request that does not fit gets an error while the others are served.
func TestServe(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		model := newModel(x)
		defer nn.Close(model)
		requests := make([][]float32, 40)
		for i := range requests {
			for range 64 {
				requests[i] = append(requests[i], rand.Float32())
			}
		}
		requests[7] = requests[7][1:]
		replies, err := serve(x, model, 4, requests)
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range replies {
			want := answer(x, model, requests[i])
			if i == 7 {
				if got.err == nil || !strings.Contains(got.err.Error(), "shapes cannot be multiplied") {
					t.Errorf("a request with too few features: %v", got.err)
				}
			} else if got.err != nil || want.err != nil || len(want.scores) != 10 || !slices.Equal(got.scores, want.scores) {
				t.Errorf("request %d: got %v, want %v", i, got, want)
			}
		}
	}, tenon.Sim(0))
}
