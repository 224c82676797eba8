package memviz_test

import (
	"fmt"
	"os"
	"strings"

	"tenon.dev/memviz"
)

func ExampleWriteStats() {
	f, err := os.Open("../internal/snapshot/testdata/gpt2_amp_graph.pickle.gz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	var report strings.Builder
	if err := memviz.WriteStats(&report, f, f.Name()); err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(report.String()) {
		if strings.HasPrefix(line, "total_") {
			fmt.Print(line)
		}
	}
	// Output:
	// total_reserved: 822.0MiB
	// total_allocated: 534.7MiB
	// total_free: 287.3MiB (1.6% internal)
}

func ExampleOpen() {
	rec, err := memviz.Open("../internal/snapshot/testdata/gpt2_amp_graph.pickle.gz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rec.Close()
	var lines, picture strings.Builder
	if err := memviz.WriteHolders(&lines, rec, rec.Devices()[0], "peak"); err != nil {
		fmt.Println(err)
		return
	}
	if err := memviz.WriteFlameGraph(&picture, strings.NewReader(lines.String()), "at the peak"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Count(lines.String(), "\n"), "stacks held memory at the peak")
	// Output: 33 stacks held memory at the peak
}
