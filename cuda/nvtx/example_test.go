package nvtx_test

import (
	"fmt"

	"tenon.dev/cuda/nvtx"
)

// A program that labels what it does. Run it under a profiler to see the ranges: nsys profile ./program.
func Example() {
	epoch := nvtx.Start("epoch 1")
	defer epoch.End()
	for i := range 2 {
		if nvtx.Listening() { // build the text only if a profiler sees it
			nvtx.Push(fmt.Sprintf("step %d", i))
		} else {
			nvtx.Push("step")
		}
		// …
		nvtx.Pop()
	}
	nvtx.Mark("saved")
	fmt.Println("done")
	// Output: done
}
