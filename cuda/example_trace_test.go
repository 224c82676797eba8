package cuda_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/cuda"
)

// Trace reports a device's actions. Here it shows that a loop waits for the device unnecessarily.
func ExampleDevice_Trace() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	waits := 0
	remove := x.Device().Trace(cuda.TraceCallbacks{StreamSynchronized: func(stream uint64) { waits++ }})
	defer remove()

	sum := x.Zeros(nil, tenon.Float32)
	for range 3 {
		x.AddInto(sum, sum, x.Sum(x.Rand([]int{10}, tenon.Float32), nil))
		if _, err := x.Item(sum); err != nil { // to print it, say
			log.Fatal(err)
		}
	}
	fmt.Println(waits, "waits")
	// Output: 3 waits
}
