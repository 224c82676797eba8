package knob

import (
	"slices"
	"strings"
)

//go:generate go test -run TestPage -rewrite .

// MaxSimDevices is the most devices that a simulated machine can have.
const MaxSimDevices = 8

// Variables of the driver.
var (
	// Libcuda overrides the path of NVIDIA's driver library.
	Libcuda = newText("TENON_LIBCUDA", "",
		"File of NVIDIA's driver library (`libcuda.so.1`, `nvcuda.dll`). Unset: the loader's search path, then the usual places.")
	// SimDevices is the number of devices of a simulated machine.
	SimDevices = newCount("TENON_SIM_DEVICES", 1, 1, MaxSimDevices,
		"How many devices the simulated machine has, at most 8. With 2 or more, all simulated devices of one capacity that the process "+
			"opens belong to one machine, with one clock, and `Selector.At` selects among them; with 1 each is a separate machine.")
	// LineInfo asks the driver's compiler for line information.
	LineInfo = newBool("TENON_LINE_INFO", false,
		"Keep the Go source lines of kernels in the compiled code, so that compute-sanitizer and debuggers name them.")
	// LaunchLines makes the launch ring keep the Go line of every operation.
	LaunchLines = newBool("TENON_LAUNCH_LINES", false,
		"Keep the Go line of every operation, so that the error of a device fault names the lines of the suspects. Every "+
			"operation takes longer.")
	// AllocConf are the settings of the caching allocator.
	AllocConf = newText("PYTORCH_CUDA_ALLOC_CONF", "",
		"Settings of the caching allocator in PyTorch's format, such as `expandable_segments:True,max_split_size_mb:512`. They apply to "+
			"every device that is opened; `SetAllocatorSettings` changes them later.")
	// Poison fills freed memory with NaNs.
	Poison = newBool("TENON_POISON", false,
		"Fill device memory with NaNs when it is freed, so that later uses of it show. Every free waits for the device.")
	// Guard puts zones behind allocations.
	Guard = newBool("TENON_GUARD", false,
		"Put a guard zone behind every tensor in device memory and check it when the tensor is freed, so that writes "+
			"past the end are found, except those that change nothing. Every free waits for the device.")
	// NoCaching sends every allocation to the driver.
	NoCaching = newText("PYTORCH_NO_CUDA_MEMORY_CACHING", "",
		"With any value, the driver allocates and frees all device memory, so that compute-sanitizer sees every allocation. This is "+
			"slow. Memory that a capture allocates is freed when the last graph of its pool is closed, and compiled regions run "+
			"without graphs. The simulator's checker does not need this setting.")
	// VisibleDevices is NVIDIA's list of visible devices.
	VisibleDevices = newText("CUDA_VISIBLE_DEVICES", "",
		"NVIDIA's list of the devices that a process may see. The driver applies it when it is started, which opening the first "+
			"device does; until then Tenon applies it when it counts devices. Errors mention it if no device is found.")
	// NVTXInjection is NVIDIA's variable for a profiler's library.
	NVTXInjection = newText("NVTX_INJECTION64_PATH", "",
		"The library through which a profiler receives the ranges and marks of package `cuda/nvtx`. The profiler sets it.")
	// CacheDir and CacheDisable are NVIDIA's variables for the driver's cache; tenon doctor reports their effect.
	CacheDir = newText("CUDA_CACHE_PATH", "",
		"The folder in which NVIDIA's driver keeps compiled kernels. The driver applies it; `tenon doctor` checks that it is writable.")
	CacheDisable = newText("CUDA_CACHE_DISABLE", "",
		"With `1`, NVIDIA's driver does not keep compiled kernels. The driver applies it; `tenon doctor` says what it costs.")
)

// Variables of the kernels that are kept for later runs.
var (
	// KernelCache is the folder of the kernels.
	KernelCache = newText("TENON_KERNEL_CACHE", "",
		"The folder in which the source of built-in kernels is kept for later runs of the program, or `off`. Unset: `tenon/kernels` in "+
			"the user's cache folder. A folder that other users can write to is not used.")
	// KernelCacheMiB bounds the size of that folder.
	KernelCacheMiB = newCount("TENON_KERNEL_CACHE_MIB", 256, 16, 1<<20,
		"The maximum size of the files in `TENON_KERNEL_CACHE` in MiB. The least recently used kernels are deleted first.")
)

// Variables of the checker.
var (
	// MemoryCheck turns on the checker of simulated devices.
	MemoryCheck = newText("TENON_CHECK", "",
		"File to which the simulator's memory checker appends its findings as lines of JSON; `-` only prints them. Unset: no checker. "+
			"`tenon memcheck` sets it.")
	// MemoryCheckTools says what the checker looks for.
	MemoryCheckTools = newText("TENON_CHECK_TOOLS", "memcheck,racecheck,initcheck,synccheck",
		"What the simulator's memory checker looks for, separated by commas: `memcheck`, `racecheck`, `initcheck`, `synccheck`, as in "+
			"compute-sanitizer, and `leaks`. With `leaks`, closing a device leaves memory that was never freed for the checker, or "+
			"compute-sanitizer, to report. `cached` leaves the caching allocators on, which hide accesses from one tensor to another. "+
			"If `racecheck` is named, the warps of kernels on a GPU meet where otherwise one only tells the others how far it is, since "+
			"NVIDIA's racecheck does not follow that.")
)

// Watched reports whether the process says that a tool of a checker watches it, as `tenon memcheck` does for its children.
func Watched(tool string) bool {
	_, set := MemoryCheckTools.Lookup()
	return set && LookFor(tool)
}

// LookFor reports whether MemoryCheckTools names a tool.
func LookFor(tool string) bool {
	return slices.Contains(strings.FieldsFunc(MemoryCheckTools.Get(), func(r rune) bool { return r == ',' || r == ' ' }), tool)
}
