package replay_test

import (
	"fmt"
	"os"

	"tenon.dev/memviz/replay"
)

// The memory that training would have held under other settings, from its recorded snapshot.
func ExampleRead() {
	f, err := os.Open("../../internal/snapshot/testdata/resnet50.pickle.gz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	p, err := replay.Read(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, settings := range []string{p.Recorded.Settings, "expandable_segments:True"} {
		r, err := p.Run(replay.Options{Settings: settings})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%q: at most %d MiB held, %d calls of the driver\n", settings, r.PeakReserved>>20, r.DriverCalls)
	}
	// Output:
	// "": at most 3548 MiB held, 126 calls of the driver
	// "expandable_segments:True": at most 3108 MiB held, 197 calls of the driver
}
