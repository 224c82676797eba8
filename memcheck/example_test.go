package memcheck_test

import (
	"fmt"
	"strings"

	"tenon.dev/memcheck"
)

// A report is read from a checker's output, which the program's own output is mixed into.
func ExampleParseReport() {
	output := `========= COMPUTE-SANITIZER
epoch 1
========= Invalid __global__ write of size 4 bytes
=========     at scale+0x60 in scale.cu:43
=========     by thread (16,0,0) in block (0,0,0)
=========     Access to 0x7feb42a00040 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7feb42a00000 of size 64 bytes
=========
========= ERROR SUMMARY: 1 error
`
	report, err := memcheck.ParseReport(strings.NewReader(output), memcheck.ParseOptions{Tool: memcheck.Memcheck})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range report.Findings {
		fmt.Println(f.Class, f.Kernel, f.Device[0].Place(), f.Address, f.Allocation.Size)
	}
	// Output: out-of-bounds scale scale.cu:43 0x7feb42a00040 64
}

// The second of two machines takes the second half of the tests, sorted by name.
func ExampleSelection_Of() {
	var tests []memcheck.Test
	for _, name := range []string{"test_sum_cuda", "test_add_cuda", "test_mul_cuda", "test_copy_cuda"} {
		tests = append(tests, memcheck.Test{Name: name})
	}
	for _, t := range (memcheck.Selection{Shard: memcheck.Shard{Split: 2, Rank: 1}}).Of(tests) {
		fmt.Println(t.Name)
	}
	// Output:
	// test_mul_cuda
	// test_sum_cuda
}
