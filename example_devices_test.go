package tenon_test

import (
	"fmt"
	"log"

	"tenon.dev"
)

// The same program runs on two GPUs, where best is tenon.Best().
func ExampleSelector_At() {
	best := tenon.SimMachine(2, 1<<30)
	n, err := best.Count()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("devices:", n)

	x, err := tenon.Open(best)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	second, err := tenon.Open(best.At(1))
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()

	x.Scope(func(x *tenon.Exec) {
		y := x.On(second.Stream()) // the same session on the other device
		w := tenon.From(x, []float32{1, 2, 3}).SetRequiresGrad(true)
		half := y.To(x.Square(w)) // queued: nobody waits
		loss := y.Sum(y.MulS(half, 2), nil)
		if err := y.Backward(loss); err != nil {
			log.Fatal(err)
		}
		fmt.Println(w.Grad().Device().Ordinal(), loss.Device().Ordinal())
		fmt.Println(tenon.Read[float32](x, w.Grad()))
	})
	// Output:
	// devices: 2
	// 0 1
	// [4 8 12] <nil>
}
