package dtype_test

import (
	"fmt"

	"tenon.dev/dtype"
)

func ExamplePromote() {
	fmt.Println(dtype.Promote(dtype.Int64, dtype.Float16))
	fmt.Println(dtype.Promote(dtype.Float16, dtype.BFloat16))
	fmt.Println(dtype.Promote(dtype.Uint8, dtype.Int8))
	fmt.Println(dtype.Promote(dtype.Float64, dtype.Complex64))
	// Output:
	// float16
	// float32
	// int16
	// complex128
}
