package alloc

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"tenon.dev/fault"
)

// infinite is the max_split_size that splits every block.
const infinite = math.MaxUint64

// The allocator backends that settings can name.
const (
	BackendNative = "native"
	BackendAsync  = "cudaMallocAsync"
)

// roundups is the number of size classes that have their own power-of-two divisions: from 1 MiB to 32 GiB.
const roundups = 16

// Settings are the options of the settings string (PYTORCH_CUDA_ALLOC_CONF). They are a value: the zero Settings are not
// valid, start from DefaultSettings.
type Settings struct {
	Text    string // the string they were parsed from last, as given
	Backend string // BackendNative or BackendAsync

	MaxSplitSize        uint64           // bytes; blocks this large are neither split nor given to smaller requests
	MaxNonSplitRounding uint64           // how much larger, in bytes, a block above MaxSplitSize may be than its request
	Roundup             [roundups]uint64 // divisions between powers of two, class i holding [2^i, 2^(i+1)) MiB; 0 or 1: none
	GCThreshold         float64          // share of the allowed memory from which cached blocks are collected; 0: never
	ExpandableSegments  bool             // map physical memory into large address ranges instead of separate segments
	ReleaseLock         bool             // drop the allocator's lock around the device's malloc

	PinnedHostRegister    bool // pinned memory by registering pageable memory
	PinnedRegisterThreads int  // threads that touch the pages before that
	// PinnedBackgroundThreads would let background threads find freed pinned memory that is idle again. Alloc does that itself, so it has
	// no effect.
	PinnedBackgroundThreads bool

	divided bool // some class of Roundup has more than one division
}

// DefaultSettings returns PyTorch's defaults.
func DefaultSettings() Settings {
	return Settings{Backend: BackendNative, MaxSplitSize: infinite, MaxNonSplitRounding: largeBuffer, PinnedRegisterThreads: 1}
}

// divisions returns the power-of-two divisions for a request of n bytes.
func (s *Settings) divisions(n uint64) uint64 {
	return s.Roundup[min(max(bits.Len64(n)-21, 0), roundups-1)]
}

// Warning returns a sentence about settings that the chosen backend ignores, or "".
func (s *Settings) Warning() string {
	if s.Backend == BackendAsync && (s.MaxSplitSize != infinite || s.divided || s.GCThreshold != 0) {
		return "backend:cudaMallocAsync ignores max_split_size_mb,roundup_power2_divisions, and garbage_collect_threshold."
	}
	return ""
}

// ParseSettings returns the settings for text at start-up: comma-separated key:value pairs, or nothing. Errors are *fault.Error with
// PyTorch's texts.
func ParseSettings(text string) (Settings, error) {
	return DefaultSettings().parse(text, false)
}

// Update returns s changed by text. The split limit, the roundup divisions and the collection threshold go back to their defaults if text
// does not name them; all other options keep their values. The backend cannot change.
func (s Settings) Update(text string) (Settings, error) {
	return s.parse(text, true)
}

func (s Settings) parse(text string, loaded bool) (Settings, error) {
	s.Text = text
	s.MaxSplitSize, s.Roundup, s.GCThreshold = infinite, [roundups]uint64{}, 0
	p := settingsParser{tokens: settingsTokens(text), s: &s, loaded: loaded}
	for p.more() {
		if err := p.option(p.take()); err != nil {
			return Settings{}, err
		}
		if p.more() {
			if err := p.expect(","); err != nil {
				return Settings{}, err
			}
		}
	}
	s.divided = false
	for _, d := range s.Roundup {
		s.divided = s.divided || d > 1
	}
	return s, nil
}

// settingsTokens splits text at , : [ ] which are tokens themselves, and drops spaces.
func settingsTokens(text string) []string {
	var tokens []string
	var word strings.Builder
	flush := func() {
		if word.Len() > 0 {
			tokens = append(tokens, word.String())
			word.Reset()
		}
	}
	for _, c := range text {
		switch c {
		case ',', ':', '[', ']':
			flush()
			tokens = append(tokens, string(c))
		case ' ':
		default:
			word.WriteRune(c)
		}
	}
	flush()
	return tokens
}

type settingsParser struct {
	tokens []string // what is left
	s      *Settings
	loaded bool
}

func settingsError(format string, args ...any) error {
	return fault.New(fault.Invalid, format, args...)
}

func (p *settingsParser) more() bool { return len(p.tokens) > 0 }

func (p *settingsParser) take() string {
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t
}

func (p *settingsParser) expect(token string) error {
	if !p.more() || p.tokens[0] != token {
		return settingsError("Error parsing CachingAllocator settings, expected %s", token)
	}
	p.take()
	return nil
}

// value takes ":" and the token after it.
func (p *settingsParser) value(missing string) (string, error) {
	if err := p.expect(":"); err != nil {
		return "", err
	}
	if !p.more() {
		return "", settingsError("%s", missing)
	}
	return p.take(), nil
}

func (p *settingsParser) integer(key string) (int64, error) {
	v, err := p.value("Error, expecting " + key + " value")
	if err != nil {
		return 0, err
	}
	return parseInteger(key, v)
}

func parseInteger(key, v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return 0, settingsError("CachingAllocator option %s must be a whole number, not %q", key, v)
	}
	return n, nil
}

func (p *settingsParser) boolean(key, missing string) (bool, error) {
	wrong := "Expected a single True/False argument for " + key
	if missing == "" {
		missing = wrong
	}
	v, err := p.value(missing)
	if err != nil {
		return false, err
	}
	if v != "True" && v != "False" {
		return false, settingsError("%s", wrong)
	}
	return v == "True", nil
}

func (p *settingsParser) option(key string) (err error) {
	s := p.s
	switch key {
	case "max_split_size_mb":
		s.MaxSplitSize, err = p.mebibytes(key)
	case "max_non_split_rounding_mb":
		s.MaxNonSplitRounding, err = p.mebibytes(key)
	case "garbage_collection_threshold":
		err = p.gcThreshold(key)
	case "roundup_power2_divisions":
		err = p.roundup(key)
	case "backend":
		err = p.backend()
	case "expandable_segments":
		s.ExpandableSegments, err = p.boolean(key, "")
	case "release_lock_on_cudamalloc":
		s.ReleaseLock, err = p.boolean(key, "")
	case "pinned_use_background_threads":
		s.PinnedBackgroundThreads, err = p.boolean(key, "Error, expecting pinned_use_background_threads value")
	case "pinned_use_cuda_host_register":
		s.PinnedHostRegister, err = p.boolean(key, "Error, expecting pinned_use_cuda_host_register value")
	case "pinned_num_register_threads":
		err = p.registerThreads(key)
	default:
		err = settingsError("Unrecognized CachingAllocator option: %s", key)
	}
	return err
}

func (p *settingsParser) mebibytes(key string) (uint64, error) {
	n, err := p.integer(key)
	if err != nil {
		return 0, err
	}
	if n <= largeBuffer/mib {
		return 0, settingsError("CachingAllocator option %s too small, must be > %d", key, largeBuffer/mib)
	}
	return uint64(n) * mib, nil
}

func (p *settingsParser) gcThreshold(key string) error {
	v, err := p.value("Error, expecting garbage_collection_threshold value")
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(v, 64)
	switch {
	case err != nil || f != f:
		return settingsError("CachingAllocator option %s must be a number, not %q", key, v)
	case f <= 0:
		return settingsError("garbage_collect_threshold too small, set it 0.0~1.0")
	case f >= 1:
		return settingsError("garbage_collect_threshold too big, set it 0.0~1.0")
	}
	p.s.GCThreshold = f
	return nil
}

func (p *settingsParser) backend() error {
	v, err := p.value("Error, expecting backend value")
	if err != nil {
		return err
	}
	if v != BackendNative && v != BackendAsync {
		return settingsError("Unknown allocator backend, options are native and cudaMallocAsync")
	}
	if p.loaded && v != p.s.Backend {
		return settingsError("Allocator backend parsed at runtime != allocator backend parsed at load time")
	}
	p.s.Backend = v
	return nil
}

func (p *settingsParser) registerThreads(key string) error {
	n, err := p.integer(key)
	switch {
	case err != nil:
		return err
	case !isPower2(n):
		return settingsError("Number of register threads has to be power of 2 ")
	case n > 128:
		return settingsError("Number of register threads should be less than or equal to 128")
	}
	p.s.PinnedRegisterThreads = int(n)
	return nil
}

func isPower2(n int64) bool { return n > 0 && n&(n-1) == 0 }

// roundup parses one number of divisions for all sizes, or [mib:divisions,...,>:divisions].
func (p *settingsParser) roundup(key string) error {
	v, err := p.value("Error, expecting roundup_power2_divisions value")
	if err != nil {
		return err
	}
	if v == "[" {
		return p.roundupArray(key)
	}
	n, err := parseInteger(key, v)
	if err != nil {
		return err
	}
	if !isPower2(n) {
		return settingsError("For roundups, the divisons has to be power of 2 ")
	}
	for i := range p.s.Roundup {
		p.s.Roundup[i] = uint64(n)
	}
	return nil
}

func (p *settingsParser) roundupArray(key string) error {
	const missing = "Error parsing roundup_power2_divisions value"
	last := 0
	for first := true; ; first = false {
		if !p.more() {
			return settingsError(missing)
		}
		size := p.take()
		v, err := p.value(missing)
		if err != nil {
			return err
		}
		n, err := parseInteger(key, v)
		if err != nil {
			return err
		}
		if n != 0 && !isPower2(n) {
			return settingsError("For roundups, the divisons has to be power of 2 or 0 to disable roundup ")
		}
		from, to := last, roundups
		if size != ">" {
			s, err := parseInteger(key, size)
			if err != nil {
				return err
			}
			if !isPower2(s) {
				return settingsError("For roundups, the intervals have to be power of 2 ")
			}
			last = min(bits.Len64(uint64(s))-1, roundups-1)
			from, to = last, last+1
			if first {
				from = 0
			}
		}
		for i := from; i < to; i++ {
			p.s.Roundup[i] = uint64(n)
		}
		if p.more() && p.tokens[0] == "]" {
			p.take()
			return nil
		}
		if err := p.expect(","); err != nil {
			return err
		}
	}
}
