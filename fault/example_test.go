package fault_test

import (
	"errors"
	"fmt"
	"log"
	"path/filepath"

	"tenon.dev"
	"tenon.dev/fault"
)

// The error of a failed operation names the operation, its operands and the line that called it.
func ExampleError() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	a, b := x.Zeros([]int{3, 1}, tenon.Float32), x.Zeros([]int{2, 1}, tenon.Float32)
	err = tenon.Try(func() { x.Add(a, b) })
	var e *fault.Error
	fmt.Println(errors.As(err, &e), fault.KindOf(err) == fault.Invalid)
	fmt.Println(e.Op, e.Operands, filepath.Base(e.File))
	fmt.Println(e.Msg)
	// Output:
	// true true
	// Add [float32[3 1] float32[2 1]] example_test.go
	// The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0
}
