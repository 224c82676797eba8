package alloc

import (
	"strings"
	"testing"

	"tenon.dev/fault"
)

func TestSettingsErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"foo:1,bar:2", "Unrecognized CachingAllocator option: foo"},
		{"max_split_size_mb:2", "CachingAllocator option max_split_size_mb too small, must be > 20"},
		{"max_split_size_mb:20", "CachingAllocator option max_split_size_mb too small, must be > 20"},
		{"max_split_size_mb:-1", "CachingAllocator option max_split_size_mb too small, must be > 20"},
		{"max_split_size_mb:many", `CachingAllocator option max_split_size_mb must be a whole number, not "many"`},
		{"max_split_size_mb:", "Error, expecting max_split_size_mb value"},
		{"max_split_size_mb", "Error parsing CachingAllocator settings, expected :"},
		{"max_split_size_mb:30 backend:native", `CachingAllocator option max_split_size_mb must be a whole number, not "30backend"`},
		{"max_split_size_mb:30:", "Error parsing CachingAllocator settings, expected ,"},
		{"max_non_split_rounding_mb:20", "CachingAllocator option max_non_split_rounding_mb too small, must be > 20"},
		{"garbage_collection_threshold:0", "garbage_collect_threshold too small, set it 0.0~1.0"},
		{"garbage_collection_threshold:1.2", "garbage_collect_threshold too big, set it 0.0~1.0"},
		{"garbage_collection_threshold:1", "garbage_collect_threshold too big, set it 0.0~1.0"},
		{"garbage_collection_threshold:NaN", `must be a number, not "NaN"`},
		{"garbage_collection_threshold:", "Error, expecting garbage_collection_threshold value"},
		{"garbage_collection_threshold", "Error parsing CachingAllocator settings, expected :"},
		{"roundup_power2_divisions:3", "For roundups, the divisons has to be power of 2 "},
		{"roundup_power2_divisions:x", `must be a whole number, not "x"`},
		{"roundup_power2_divisions:", "Error, expecting roundup_power2_divisions value"},
		{"roundup_power2_divisions:[", "Error parsing roundup_power2_divisions value"},
		{"roundup_power2_divisions:[64", "Error parsing CachingAllocator settings, expected :"},
		{"roundup_power2_divisions:[64:", "Error parsing roundup_power2_divisions value"},
		{"roundup_power2_divisions:[64:8", "Error parsing CachingAllocator settings, expected ,"},
		{"roundup_power2_divisions:[64:8,", "Error parsing roundup_power2_divisions value"},
		{"roundup_power2_divisions:[65:8]", "For roundups, the intervals have to be power of 2 "},
		{"roundup_power2_divisions:[a:8]", `must be a whole number, not "a"`},
		{"roundup_power2_divisions:[64:b]", `must be a whole number, not "b"`},
		{"roundup_power2_divisions:[64:3]", "For roundups, the divisons has to be power of 2 or 0 to disable roundup "},
		{"backend:foo", "Unknown allocator backend, options are native and cudaMallocAsync"},
		{"backend:", "Error, expecting backend value"},
		{"expandable_segments:yes", "Expected a single True/False argument for expandable_segments"},
		{"expandable_segments:", "Expected a single True/False argument for expandable_segments"},
		{"expandable_segments", "Error parsing CachingAllocator settings, expected :"},
		{"release_lock_on_cudamalloc:none", "Expected a single True/False argument for release_lock_on_cudamalloc"},
		{"pinned_use_cuda_host_register:none", "Expected a single True/False argument for pinned_use_cuda_host_register"},
		{"pinned_use_cuda_host_register:", "Error, expecting pinned_use_cuda_host_register value"},
		{"pinned_num_register_threads:none", `must be a whole number, not "none"`},
		{"pinned_num_register_threads:3", "Number of register threads has to be power of 2 "},
		{"pinned_num_register_threads:1024", "Number of register threads should be less than or equal to 128"},
		{"pinned_num_register_threads:", "Error, expecting pinned_num_register_threads value"},
	} {
		_, err := ParseSettings(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestSettingsUpdate(t *testing.T) {
	s, err := ParseSettings("max_split_size_mb:40, garbage_collection_threshold:0.5 ,roundup_power2_divisions:4,expandable_segments:True," +
		"max_non_split_rounding_mb:25,pinned_num_register_threads:8,pinned_use_cuda_host_register:True,release_lock_on_cudamalloc:True")
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxSplitSize != 40*mib || s.GCThreshold != 0.5 || s.Roundup[0] != 4 || s.Roundup[15] != 4 || !s.ExpandableSegments ||
		s.MaxNonSplitRounding != 25*mib || s.PinnedRegisterThreads != 8 || !s.PinnedHostRegister || !s.ReleaseLock {
		t.Errorf("parsed as %+v", s)
	}
	s, err = s.Update("backend:native")
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultSettings()
	want.Text, want.ExpandableSegments, want.MaxNonSplitRounding, want.PinnedRegisterThreads = "backend:native", true, 25*mib, 8
	want.PinnedHostRegister, want.ReleaseLock = true, true
	if s != want {
		t.Errorf("after the update %+v, want %+v", s, want)
	}
	if _, err := s.Update("backend:cudaMallocAsync"); err == nil ||
		!strings.Contains(err.Error(), "Allocator backend parsed at runtime != allocator backend parsed at load time") {
		t.Errorf("the backend changed: %v", err)
	}
	if s.Warning() != "" {
		t.Errorf("a warning: %s", s.Warning())
	}
	s, err = ParseSettings("backend:cudaMallocAsync,garbage_collection_threshold:0.5")
	if err != nil || !strings.HasPrefix(s.Warning(), "backend:cudaMallocAsync ignores ") {
		t.Errorf("warning %q, error %v", s.Warning(), err)
	}
}

func TestSettingsRoundupArray(t *testing.T) {
	s, err := ParseSettings("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")
	if err != nil {
		t.Fatal(err)
	}
	if want := [roundups]uint64{8, 8, 8, 8, 8, 8, 8, 2, 2, 2, 1, 1, 1, 1, 1, 1}; s.Roundup != want {
		t.Errorf("divisions %v, want %v", s.Roundup, want)
	}
	s, err = ParseSettings("roundup_power2_divisions:[4:2,16:8],expandable_segments:False")
	if err != nil {
		t.Fatal(err)
	}
	if want := [roundups]uint64{2, 2, 2, 0, 8}; s.Roundup != want {
		t.Errorf("divisions %v, want %v", s.Roundup, want)
	}
	if s, err = ParseSettings("roundup_power2_divisions:[1048576:2]"); err != nil || s.Roundup[15] != 2 {
		t.Errorf("a size beyond the table: %v, %v", s.Roundup, err)
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		conf    string
		n, want uint64
	}{
		{"", 1, 512}, {"", 512, 512}, {"", 513, 1024}, {"", 88080384, 88080384}, {"", sizeLimit - 1, sizeLimit},
		{"roundup_power2_divisions:4", 511, 512}, {"roundup_power2_divisions:4", 1200, 1536},
		{"roundup_power2_divisions:4", 88080384, 96 * mib},
		{"roundup_power2_divisions:4", 64 * mib, 64 * mib},
		{"roundup_power2_divisions:4", 2049, 2560},
		{"roundup_power2_divisions:4", 2048, 2048},
		{"roundup_power2_divisions:1", 88080385, 88080896},
		{"roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 88080384, 88 * mib},
		{"roundup_power2_divisions:[256:2]", 400 * mib, 512 * mib},
		{"roundup_power2_divisions:[256:2]", 2048 * mib * 64, 2048 * mib * 64},
	} {
		s, err := ParseSettings(c.conf)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.round(c.n); got != c.want {
			t.Errorf("%q: %d is rounded to %d, want %d", c.conf, c.n, got, c.want)
		}
	}
	for _, c := range []struct{ n, d, want uint64 }{{1200, 4, 1280}, {1024, 4, 1024}, {1025, 2, 1536}, {3, 8, 4}, {5, 2, 6}} {
		if got := roundPower2(c.n, c.d); got != c.want {
			t.Errorf("%d with %d divisions is rounded to %d, want %d", c.n, c.d, got, c.want)
		}
	}
	for _, c := range []struct{ n, want uint64 }{{512, 2 * mib}, {mib, 2 * mib}, {mib + 512, 20 * mib}, {10*mib - 512, 20 * mib},
		{10 * mib, 10 * mib}, {10*mib + 512, 12 * mib}} {
		if got := segmentSize(c.n); got != c.want {
			t.Errorf("%d bytes take a segment of %d, want %d", c.n, got, c.want)
		}
	}
}
