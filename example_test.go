package tenon_test

import (
	"fmt"
	"log"

	"tenon.dev"
)

func Example() {
	x, err := tenon.Open(tenon.Best()) // the first NVIDIA GPU, or the simulator where there is none
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := x.Close(); err != nil { // what failed on the device after the last wait
			log.Print(err)
		}
	}()

	w := tenon.From(x, []float32{1, 2, 3}).SetRequiresGrad(true)
	loss := x.Within(func(x *tenon.Exec) *tenon.Tensor { // temporaries are closed, the result moves out
		return x.Sum(x.Mul(w, w), nil)
	})
	if err := x.Backward(loss); err != nil {
		log.Fatal(err)
	}
	grad, err := tenon.Read[float32](x, w.Grad()) // [2 4 6]
	fmt.Println(grad, err)
	// Output: [2 4 6] <nil>
}
