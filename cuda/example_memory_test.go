package cuda_test

import (
	"errors"
	"fmt"
	"strings"

	"tenon.dev"
	"tenon.dev/cuda"
)

// The memory that a program uses: the caching allocator takes 20 MiB for two tensors of a few MiB and keeps them for later tensors.
func ExampleDevice_Stats() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		panic(err)
	}
	defer x.Close()
	d := x.Device()
	a := x.Zeros([]int{3 << 20}, tenon.Uint8)
	b := x.Zeros([]int{2 << 20}, tenon.Uint8)
	b.Close()
	free, total, err := d.MemInfo()
	if err != nil {
		panic(err)
	}
	fmt.Println(d.MemoryAllocated()>>20, d.MaxMemoryAllocated()>>20, d.MemoryReserved()>>20, (total-free)>>20)
	fmt.Println(d.Stats()["allocation.large_pool.freed"])
	a.Close()
	if err := d.EmptyCache(); err != nil {
		panic(err)
	}
	fmt.Println(d.MemoryReserved())
	// Output:
	// 3 5 20 20
	// 1
	// 0
}

// The table that torch.cuda.memory_summary prints.
func ExampleDevice_MemorySummary() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		panic(err)
	}
	defer x.Close()
	defer x.Zeros([]int{5 << 20}, tenon.Uint8).Close()
	for line := range strings.Lines(x.Device().MemorySummary(cuda.SummaryOpt{Abbreviated: true})) {
		if strings.Contains(line, "memory") {
			fmt.Print(line)
		}
	}
	// Output:
	// |                  PyTorch CUDA memory summary, device ID 0                 |
	// | Allocated memory      |   5120 KiB |   5120 KiB |   5120 KiB |      0 B   |
	// | Active memory         |   5120 KiB |   5120 KiB |   5120 KiB |      0 B   |
	// | Requested memory      |   5120 KiB |   5120 KiB |   5120 KiB |      0 B   |
	// | GPU reserved memory   |  20480 KiB |  20480 KiB |  20480 KiB |      0 B   |
	// | Non-releasable memory |  15360 KiB |  15360 KiB |  15360 KiB |      0 B   |
}

// The settings and their errors are PyTorch's.
func ExampleDevice_SetAllocatorSettings() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		panic(err)
	}
	defer x.Close()
	d := x.Device()
	var e *tenon.Error
	if errors.As(d.SetAllocatorSettings("max_split_size_mb:2"), &e) {
		fmt.Println(e.Msg)
	}
	if err := d.SetAllocatorSettings("roundup_power2_divisions:[64:8,128:2,>:1]"); err != nil {
		panic(err)
	}
	x.Zeros([]int{84 << 20}, tenon.Uint8).Close()
	fmt.Println(d.MaxMemoryAllocated() >> 20)
	// Output:
	// CachingAllocator option max_split_size_mb too small, must be > 20
	// 88
}

// An observer is called for a failing allocation before the program gets the error.
func ExampleDevice_OnOutOfMemory() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		panic(err)
	}
	defer x.Close()
	d := x.Device()
	if err := d.SetMemoryFraction(0.25); err != nil {
		panic(err)
	}
	d.OnOutOfMemory(func(o cuda.OOM) { fmt.Println("wanted", o.Wanted>>20, "allowed", o.Allowed>>20, "free", o.Free>>20) })
	err = tenon.Try(func() { x.Zeros([]int{300 << 20}, tenon.Uint8) })
	fmt.Println(strings.Contains(err.Error(), "CUDA out of memory. Tried to allocate 300.00 MiB."))
	// Output:
	// wanted 300 allowed 256 free 1024
	// true
}

// pages is an allocator that counts what it hands out.
type pages struct {
	d    *cuda.Device
	held uint64
}

// Alloc takes memory from the driver.
func (p *pages) Alloc(size uint64, s *cuda.Stream) (uint64, error) {
	addr, err := p.d.Malloc(size)
	if err == nil {
		p.held += size
	}
	return addr, err
}

// Free gives the memory back.
func (p *pages) Free(addr, size uint64, s *cuda.Stream) error {
	p.held -= size
	return p.d.Free(addr)
}

// A pool with a custom allocator, such as one for memory that a network card can reach.
func ExampleNewMemPool() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		panic(err)
	}
	defer x.Close()
	p := &pages{d: x.Device()}
	pool, err := cuda.NewMemPool(x.Device(), cuda.MemPoolOpt{Allocator: p})
	if err != nil {
		panic(err)
	}
	in := x.UsePool(pool)
	a := in.Ones([]int{1 << 20}, tenon.Float32)
	b := x.Add(a, a) // not in the pool
	fmt.Println(p.held>>20, len(pool.Segments()), pool.UseCount())
	a.Close()
	b.Close()
	if err := pool.Close(); err != nil {
		panic(err)
	}
	fmt.Println(p.held)
	// Output:
	// 20 1 1
	// 0
}
