package cuda_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"tenon.dev"
	"tenon.dev/cuda"
)

// A program that wants to see where its memory goes writes a snapshot, and another one is written automatically when memory runs out.
func ExampleDevice_DumpSnapshot() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	before, err := os.Getwd()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.Chdir(folder); err != nil {
		log.Fatal(err)
	}
	defer os.Chdir(before)
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	dev := x.Device()
	if err := dev.RecordMemoryHistory(cuda.History{MaxEntries: 1_000_000}); err != nil {
		log.Fatal(err)
	}
	if err := dev.DumpOnOutOfMemory("oom-*.pickle"); err != nil {
		log.Fatal(err)
	}
	a := x.Ones([]int{1 << 20}, tenon.Float32)
	defer a.Close()
	if err := dev.DumpSnapshot("snapshot.pickle"); err != nil { // with the history up to here
		log.Fatal(err)
	}
	err = tenon.Try(func() { x.Ones([]int{1 << 25}, tenon.Float32) })
	var e *tenon.Error
	fmt.Println(errors.As(err, &e) && e.Kind == tenon.OutOfMemory)
	for _, name := range []string{"snapshot.pickle", "oom-1.pickle"} {
		s, err := cuda.ReadSnapshotFile(name)
		if err != nil {
			log.Fatal(err)
		}
		trace := s.Trace(dev.Ordinal())
		last := trace[len(trace)-1]
		fmt.Println(name, "ends with", last.Action, last.Size>>20, "MiB")
	}
	// Output:
	// true
	// snapshot.pickle ends with alloc 4 MiB
	// oom-1.pickle ends with oom 128 MiB
}
