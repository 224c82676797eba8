package safetensors_test

import (
	"fmt"

	"tenon.dev/safetensors"
)

func ExampleOpen() {
	f, err := safetensors.Open("testdata/model.safetensors")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	for _, info := range f.Infos()[:2] {
		fmt.Println(info, info.Bytes(), "bytes")
	}
	// Output:
	// 1.num_batches_tracked int64[] 8 bytes
	// 0.bias float32[8] 32 bytes
}
