package compile_test

import (
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// A deferred call that changes its operand knows that it does, and does not copy it: the gradient of an embedding is scattered into zeros.
func TestScatterInPlaceIsNotCopied(t *testing.T) {
	x := open(t)
	w := x.Zeros([]int{16, 4}, tenon.Float32)
	w.SetRequiresGrad(true)
	at := x.Arange(8, tenon.Int64)
	r := compile.New(compile.Opt{NoGraphs: true})
	p, err := x.Device().Profile()
	must(t, err)
	for range 2 {
		must(t, r.Do(x, func(x *tenon.Exec) error { return x.Backward(x.Sum(x.Embedding(at, w), nil)) }))
	}
	got, err := p.Stop()
	must(t, err)
	scatters := 0
	for _, op := range got.Ops {
		if op.Name != "Scatter" {
			continue
		}
		scatters++
		for _, k := range op.Kernels {
			if strings.HasPrefix(k.Name, "pw_copy") {
				t.Errorf("it copies: %s", k.Name)
			}
		}
	}
	if scatters != 2 {
		t.Errorf("%d scatters in the profile, want 2", scatters)
	}
}
