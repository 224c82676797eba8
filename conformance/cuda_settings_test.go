package conformance

import (
	"testing"

	"tenon.dev"
)

// settingsTests are the behaviours of the allocator's settings.
var settingsTests = []cudaTest{
	{name: "CUDA-131_test_allocator_settings", run: testAllocatorSettings},
	{name: "CUDA-306_test_max_split_expandable", run: testMaxSplitExpandable},
	{name: "CUDA-307_test_garbage_collect_expandable", run: testGarbageCollectExpandable},
}

func testAllocatorSettings(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	set := func(s string) { must(t, dev.SetAllocatorSettings(s)) }
	settle(t, dev)
	const n, big = 21 * mib, 100 * mib // elements of float32
	// grown returns the growth of the active and the requested bytes for a tensor of n elements.
	grown := func(n int) (active, requested int64) {
		a, r := stat(t, dev, "active_bytes.all.allocated"), stat(t, dev, "requested_bytes.all.allocated")
		x.Empty([]int{n}, tenon.Float32)
		return stat(t, dev, "active_bytes.all.allocated") - a, stat(t, dev, "requested_bytes.all.allocated") - r
	}
	for _, c := range []struct {
		settings string
		n        int
		want     int64
	}{
		{"", n, 88_080_384},
		{"roundup_power2_divisions:4", n, 96 * mib},
		{"garbage_collection_threshold:0.5", n, 88_080_384}, // the divisions are reset
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", n, 88 * mib},
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", big, 512 * mib},
		{"max_split_size_mb:21", n, 88_080_384},
	} {
		set(c.settings)
		active, requested := grown(c.n)
		check(t, "active bytes with "+c.settings, active, c.want)
		check(t, "requested bytes with "+c.settings, requested, int64(c.n)*4)
	}
	for text, want := range map[string]string{
		"foo:1,bar:2":                        "Unrecognized CachingAllocator option: foo",
		"garbage_collection_threshold:1.2":   "garbage_collect_threshold too big, set it 0.0~1.0",
		"garbage_collection_threshold:0":     "garbage_collect_threshold too small, set it 0.0~1.0",
		"max_split_size_mb:2":                "CachingAllocator option max_split_size_mb too small, must be > 20",
		"max_split_size_mb:20":               "must be > 20",
		"release_lock_on_cudamalloc:none":    "Expected a single True/False argument for release_lock_on_cudamalloc",
		"expandable_segments:none":           "Expected a single True/False argument for expandable_segments",
		"pinned_use_cuda_host_register:none": "Expected a single True/False argument for pinned_use_cuda_host_register",
		"pinned_num_register_threads:none":   "",
		"pinned_num_register_threads:1024":   "Number of register threads should be less than or equal to 128",
		"pinned_num_register_threads:3":      "Number of register threads has to be power of 2 ",
		"roundup_power2_divisions:3":         "For roundups, the divisons has to be power of 2 ",
		"roundup_power2_divisions:[3:2]":     "For roundups, the intervals have to be power of 2 ",
		"backend:other":                      "Unknown allocator backend, options are native and cudaMallocAsync",
		"backend:cudaMallocAsync":            "Allocator backend parsed at runtime != allocator backend parsed at load time",
		"max_split_size_mb":                  "Error parsing CachingAllocator settings, expected :",
	} {
		wantError(t, dev.SetAllocatorSettings(text), want)
	}
	set("")
}

func testMaxSplitExpandable(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	settle(t, dev)
	capped(t, dev, 120*mib)
	ones := func(n int) *tenon.Tensor { return x.Ones([]int{n * mib}, tenon.Int8) }
	set := func(s string) { must(t, dev.SetAllocatorSettings(s)) }
	set("expandable_segments:False,max_split_size_mb:40")
	a := ones(40)
	set("expandable_segments:True,max_split_size_mb:40")
	segments := stat(t, dev, "segment.all.current")
	b := ones(40)
	check(t, "segments that expandable memory adds", stat(t, dev, "segment.all.current")-segments, 0)
	set("expandable_segments:False,max_split_size_mb:40")
	c := ones(40)
	wantOOM(t, tenon.Try(func() { ones(40) }), "out of memory")
	for _, v := range []*tenon.Tensor{a, b, c} {
		onesAre(t, x, "a tensor after the failure", v)
		v.Close()
	}
	// All of the memory, which requires freeing the cached blocks, including expandable ones.
	onesAre(t, x, "the large tensor", ones(120))
}

func testGarbageCollectExpandable(t *testing.T, x *tenon.Exec) {
	dev := x.Device()
	settle(t, dev)
	capped(t, dev, 120*mib)
	ones := func(n int) *tenon.Tensor { return x.Ones([]int{n * mib}, tenon.Int8) }
	set := func(s string) { must(t, dev.SetAllocatorSettings(s)) }
	set("expandable_segments:False,garbage_collection_threshold:0.5")
	a := ones(40)
	set("expandable_segments:True,garbage_collection_threshold:0.5")
	segments := stat(t, dev, "segment.all.current")
	b := ones(40)
	check(t, "segments that expandable memory adds", stat(t, dev, "segment.all.current")-segments, 0)
	a.Close()
	b.Close()
	freed := stat(t, dev, "num_device_free")
	retries := stat(t, dev, "num_alloc_retries")
	onesAre(t, x, "the large tensor", ones(80))
	check(t, "segments that the collection gave back", stat(t, dev, "num_device_free")-freed, 1)
	check(t, "retries: the collection came first", stat(t, dev, "num_alloc_retries")-retries, 0)
}

// onesAre fails unless all bytes of a are 1. It needs no device memory.
func onesAre(t *testing.T, x *tenon.Exec, what string, a *tenon.Tensor) {
	t.Helper()
	b, err := x.Bytes(a)
	must(t, err)
	for i, v := range b {
		if v != 1 {
			t.Errorf("%s: byte %d of %d is %d", what, i, len(b), v)
			return
		}
	}
}
