package cuda_test

import (
	"fmt"
	"log"

	"tenon.dev"
)

// The time that a device works is measured between two events on its stream. A simulated device has a clock of its own, which moves while
// the host waits.
func ExampleEvent() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dev, stream := x.Device(), x.Stream()
	start, end := dev.NewEvent(true), dev.NewEvent(true)
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

// Order between streams beyond that of tensors, such as for memory that a program allocates itself, is the program's: one stream waits for
// an event of the other.
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
	ready := x.Device().NewEvent(false)
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
