package cuda_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"tenon.dev"
	"tenon.dev/cuda"
)

// The history of a device shows which code allocated and freed memory, and when.
func ExampleDevice_RecordMemoryHistory() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dev := x.Device()
	if err := dev.RecordMemoryHistory(cuda.History{MaxEntries: 100_000}); err != nil {
		log.Fatal(err)
	}
	a := x.Ones([]int{1 << 20}, tenon.Float32)
	a.Close()
	s, err := dev.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range s.Trace(dev.Ordinal()) {
		who := ""
		for _, f := range e.Frames {
			if strings.HasPrefix(f.Name, "tenon.") {
				who = f.Name
				break
			}
		}
		fmt.Println(e.Action, e.Size, who)
	}
	// Output:
	// segment_alloc 20971520 tenon.(*Exec).Ones
	// alloc 4194304 tenon.(*Exec).Ones
	// free_requested 4194304 tenon.(*Tensor).Close
	// free_completed 4194304 tenon.(*Tensor).Close
}

// A snapshot shows the segments that the allocator holds and the blocks in them.
func ExampleDevice_Snapshot() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	a := x.Ones([]int{1000}, tenon.Float32)
	defer a.Close()
	s, err := x.Device().Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range s.Segments() {
		fmt.Println("segment of", g.TotalSize, "bytes,", g.Type)
		for _, b := range g.Blocks {
			fmt.Println("block of", b.Size, "bytes,", b.State)
		}
	}
	// Output:
	// segment of 2097152 bytes, small
	// block of 4096 bytes, active_allocated
	// block of 2093056 bytes, inactive
}

// A program that runs out of memory can leave a file that shows what held the memory. "tenon memviz" and PyTorch's viewer open it.
func ExampleDevice_DumpOnOutOfMemory() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dev := x.Device()
	if err := dev.RecordMemoryHistory(); err != nil {
		log.Fatal(err)
	}
	if err := dev.DumpOnOutOfMemory(filepath.Join(dir, "oom-*.pickle")); err != nil {
		log.Fatal(err)
	}
	err = tenon.Try(func() { x.Ones([]int{1 << 25}, tenon.Float32) })
	fmt.Println(err != nil)
	s, err := cuda.ReadSnapshotFile(filepath.Join(dir, "oom-1.pickle"))
	if err != nil {
		log.Fatal(err)
	}
	trace := s.Trace(dev.Ordinal())
	last := trace[len(trace)-1]
	fmt.Println(last.Action, last.Size, "bytes wanted,", last.Addr, "free")
	// Output:
	// true
	// oom 134217728 bytes wanted, 67108864 free
}

// A profile of the live allocations opens in "go tool pprof".
func ExampleSnapshot_WriteProfile() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dev := x.Device()
	h := cuda.History{Enabled: cuda.HistoryState, Context: cuda.ContextState, Stacks: cuda.StacksGo}
	if err := dev.RecordMemoryHistory(h); err != nil {
		log.Fatal(err)
	}
	a := x.Ones([]int{1000}, tenon.Float32)
	defer a.Close()
	s, err := dev.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	var profile bytes.Buffer
	if err := s.WriteProfile(&profile); err != nil {
		log.Fatal(err)
	}
	fmt.Println(profile.Len() > 0)
	// Output: true
}
