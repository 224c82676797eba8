package cuda_test

import (
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/cuda"
)

// Two events on a stream measure how long the device works. A simulated device has its own clock, which advances while the host waits.
func ExampleEvent() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dev, stream := x.Device(), x.Stream()
	start, end := dev.NewEvent(cuda.EventOpt{Timing: true}), dev.NewEvent(cuda.EventOpt{Timing: true})
	defer start.Close()
	defer end.Close()

	if err := start.Record(stream); err != nil {
		log.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) {
		x.MatMul(x.Ones([]int{64, 64}, tenon.Float32), x.Ones([]int{64, 64}, tenon.Float32))
	})
	if err := end.Record(stream); err != nil {
		log.Fatal(err)
	}
	if err := end.Synchronize(); err != nil {
		log.Fatal(err)
	}
	took, err := start.Elapsed(end)
	fmt.Println(took >= 0, err)
	// Output: true <nil>
}

// Work on tensors is ordered across streams automatically. For other work, such as on memory that the program allocates itself, the program
// makes one stream wait for an event of the other.
func ExampleStream() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	side, err := x.Device().Stream()
	if err != nil {
		log.Fatal(err)
	}
	ready := x.Device().NewEvent()
	defer ready.Close()
	if err := ready.Record(x.Stream()); err != nil {
		log.Fatal(err)
	}
	if err := side.Wait(ready); err != nil {
		log.Fatal(err)
	}
	if err := side.Synchronize(); err != nil {
		log.Fatal(err)
	}
	done, err := ready.Query()
	fmt.Println(done, err)
	// Output: true <nil>
}
