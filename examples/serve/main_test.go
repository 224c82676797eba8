package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/tenontest"
)

// Workers give the same answers as a single Exec, to the bit, and a request that does not fit gets an error while the others are served.
// The Exec that they came from works on.
func TestServe(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		model := newModel(x)
		defer nn.Close(model)
		requests := make([][]float32, 40)
		for i := range requests {
			for range (1 + i%8) * 64 {
				requests[i] = append(requests[i], rand.Float32())
			}
		}
		requests[7] = requests[7][1:]
		answers, err := serve(x, model, 4, requests)
		if err == nil || !strings.Contains(err.Error(), "511") || strings.Contains(err.Error(), "\n") {
			t.Errorf("the only request with too few features: %v", err)
		}
		for i, scores := range answers {
			if i == 7 {
				if scores != nil {
					t.Errorf("a request with too few features has the answer %v", scores)
				}
				continue
			}
			rows := 1 + i%8
			want := model.Forward(x.NoGrad(), tenon.From(x, requests[i], rows, 64))
			tenontest.AssertEqual(t, x, tenon.From(x, scores, rows, 10), want)
		}
	}, tenon.Sim(0))
}
