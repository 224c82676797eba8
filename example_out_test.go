package tenon_test

import (
	"fmt"
	"log"

	"tenon.dev"
)

// A number that is left out of options stands for PyTorch's default, and 0 is 0. A method whose name ends in Into writes its result to an
// existing tensor.
func ExampleExec_Var() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	a := tenon.From(x, []float64{1, 2, 3, 4, 3, 6}, 3, 2)
	unbiased, biased := x.Var(a, []int{0}), x.Empty([]int{2}, tenon.Float64)
	x.VarInto(biased, a, []int{0}, tenon.VarOpt{Correction: 0})
	v, err := tenon.Read[float64](x, x.Stack([]*tenon.Tensor{unbiased, biased}, 0))
	fmt.Printf("%.3f %v\n", v, err)
	// Output: [1.333 4.000 0.889 2.667] <nil>
}
