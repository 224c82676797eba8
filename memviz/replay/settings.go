package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tenon.dev/internal/alloc"
)

// recordedSettings returns the settings in force when a snapshot was taken, from its map of settings, and as a settings string. Settings
// that only concern pinned memory, or that this allocator does not know, are left out.
func recordedSettings(m map[string]any) (alloc.Settings, string) {
	text, _ := m["PYTORCH_CUDA_ALLOC_CONF"].(string)
	if s, err := alloc.ParseSettings(text); err == nil && agrees(&s, m) {
		return s, text
	}
	var parts []string
	if n, ok := m["max_split_size"].(int64); ok && n > 0 {
		parts = append(parts, fmt.Sprintf("max_split_size_mb:%d", n/mib))
	}
	if f, ok := m["garbage_collection_threshold"].(float64); ok && f > 0 {
		parts = append(parts, fmt.Sprintf("garbage_collection_threshold:%v", f))
	}
	if list, divided := divisions(m); divided {
		parts = append(parts, "roundup_power2_divisions:["+list+"]")
	}
	if on, _ := m["expandable_segments"].(bool); on {
		parts = append(parts, "expandable_segments:True")
	}
	text = strings.Join(parts, ",")
	s, err := alloc.ParseSettings(text)
	if err != nil { // a value that the grammar refuses
		return alloc.DefaultSettings(), ""
	}
	return s, text
}

// agrees reports whether the parsed string gives the values in the map, which a program may have changed since.
func agrees(s *alloc.Settings, m map[string]any) bool {
	split := int64(-1)
	if s.MaxSplitSize != math.MaxUint64 {
		split = int64(s.MaxSplitSize)
	}
	if n, ok := m["max_split_size"].(int64); ok && n != split {
		return false
	}
	if f, ok := m["garbage_collection_threshold"].(float64); ok && f != s.GCThreshold {
		return false
	}
	if on, ok := m["expandable_segments"].(bool); ok && on != s.ExpandableSegments {
		return false
	}
	if r, ok := m["roundup_power2_divisions"].(map[string]any); ok {
		for i, d := range s.Roundup {
			if n, ok := r[fmt.Sprint(1<<i)].(int64); ok && uint64(n) != d {
				return false
			}
		}
	}
	return true
}

// divisions writes the map of power-of-two divisions as the settings string does.
func divisions(m map[string]any) (list string, divided bool) {
	r, _ := m["roundup_power2_divisions"].(map[string]any)
	var parts []string
	for i := range 16 {
		n, _ := r[fmt.Sprint(1<<i)].(int64)
		divided = divided || n > 1
		parts = append(parts, fmt.Sprintf("%d:%d", 1<<i, n))
	}
	return strings.Join(parts, ","), divided
}

// autoSettings are worth a try for any program: each bounds fragmentation in its own way.
var autoSettings = []string{
	"",
	"expandable_segments:True",
	"max_split_size_mb:32",
	"max_split_size_mb:64",
	"max_split_size_mb:128",
	"max_split_size_mb:256",
	"max_split_size_mb:512",
	"roundup_power2_divisions:2",
	"roundup_power2_divisions:4",
	"roundup_power2_divisions:8",
	"roundup_power2_divisions:[64:8,128:4,256:2,>:1]",
	"max_split_size_mb:128,roundup_power2_divisions:8",
	"max_non_split_rounding_mb:64,max_split_size_mb:128",
	"expandable_segments:True,roundup_power2_divisions:8",
}

// collecting are settings that only act within a memory fraction.
var collecting = []string{
	"garbage_collection_threshold:0.6",
	"garbage_collection_threshold:0.8",
	"garbage_collection_threshold:0.9",
	"garbage_collection_threshold:0.8,max_split_size_mb:128",
}

// AutoSettings returns settings strings worth comparing for the program: its own first, then a built-in set. Settings that collect cached
// blocks are included only with a memory fraction, since they do nothing without it.
func (p *Program) AutoSettings(fraction bool) []string {
	var set []string
	if p != nil {
		set = append(set, p.Recorded.Settings)
	}
	set = append(set, autoSettings...)
	if fraction {
		set = append(set, collecting...)
	}
	var out []string
	for _, s := range set {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
