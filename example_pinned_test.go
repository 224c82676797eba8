package tenon_test

import (
	"fmt"
	"log"

	"tenon.dev"
)

// A result is copied to the host while the device goes on; reading it there waits for the copy.
func ExampleExec_CopyAsyncInto() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	host := x.Host()

	box := x.PinMemory(host.Zeros([]int{3}, tenon.Float32))
	x.CopyAsyncInto(box, x.Full([]int{3}, 7, tenon.Float32)) // returns at once
	sum, err := host.Item(host.Sum(box, nil))
	fmt.Println(box.IsPinned(), sum, err)
	// Output: true 21 <nil>
}
