package memcheck

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/internal/knob"
)

// Selection says which of a target's tests run.
type Selection struct {
	// KeepCPU keeps tests whose names say that they use only the processor, see [Test].
	KeepCPU bool
	// Match keeps the names that it matches, and Skip drops those that it matches. Nil: no filter.
	Match, Skip *regexp.Regexp
	// Shard is the part that runs; the zero value is the whole.
	Shard Shard
}

// The rules that drop tests, in their order, as LeftOut names them.
const (
	byCPU   = "with cpu and not cuda in the name (see --keep-cpu)"
	byMatch = "by --filter"
	bySkip  = "by --skip"
)

// rule returns the first rule that drops t, or "".
func (s Selection) rule(t Test) string {
	switch {
	case t.CPU && !s.KeepCPU:
		return byCPU
	case s.Match != nil && !s.Match.MatchString(t.Name):
		return byMatch
	case s.Skip != nil && s.Skip.MatchString(t.Name):
		return bySkip
	}
	return ""
}

// Of returns the tests to run: filtered, sorted by name (by bytes), and of these the shard's part: with n tests in shards of
// ceil(n/Split), those after the first Rank shards.
func (s Selection) Of(tests []Test) []Test {
	tests = slices.DeleteFunc(slices.Clone(tests), func(t Test) bool { return s.rule(t) != "" })
	slices.SortFunc(tests, func(a, b Test) int { return strings.Compare(a.Name, b.Name) })
	if s.Shard.Split > 1 {
		chunk := (len(tests) + s.Shard.Split - 1) / s.Shard.Split
		tests = tests[min(len(tests), chunk*s.Shard.Rank):min(len(tests), chunk*(s.Shard.Rank+1))]
	}
	return tests
}

// LeftOut says for people how many of the tests each filter drops, or returns "" if none does. Tests of other shards are not left out.
func (s Selection) LeftOut(tests []Test) string {
	count := map[string]int{}
	for _, t := range tests {
		count[s.rule(t)]++
	}
	var parts []string
	for _, rule := range []string{byCPU, byMatch, bySkip} {
		if n := count[rule]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, rule))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "tests left out: " + strings.Join(parts, ", ")
}

// Shard is one of several equal parts of a run, for several machines.
type Shard struct {
	// Split is the number of parts and Rank the index of this one, from 0.
	Split int `json:"split"`
	Rank  int `json:"rank"`
	// Source says where the shard comes from, for readers; "" for flags.
	Source string `json:"source,omitempty"`
}

// Check returns an error that says what is wrong with the shard.
func (s Shard) Check() error {
	from := ""
	if s.Source != "" {
		from = " (from " + s.Source + ")"
	}
	if s.Split < 1 {
		return fmt.Errorf("the run is split into %d shards%s; give --split a number from 1 on", s.Split, from)
	}
	if s.Rank < 0 || s.Rank >= s.Split {
		return fmt.Errorf("rank %d of %d shards does not exist%s; ranks count from 0: set --split and --rank", s.Rank, s.Split, from)
	}
	return nil
}

// EnvironmentShard returns the shard to run. A split or rank that is not nil is used; otherwise it comes from the first scheduler that sets
// it in the environment: TENON_MEMCHECK_SPLIT and TENON_MEMCHECK_RANK (which a matrix of GitHub Actions sets), a Slurm array, a Kubernetes
// indexed job (with its size in TENON_MEMCHECK_SPLIT), torchrun. Without any, Split is 1 and Rank 0. An error names the variable and the
// remedy.
func EnvironmentShard(split, rank *int) (Shard, error) {
	if split != nil && rank != nil {
		s := Shard{Split: *split, Rank: *rank}
		return s, s.Check()
	}
	for _, e := range []struct {
		split, rank, first, step *knob.Text
		source                   string
	}{
		{knob.MemcheckSplit, knob.MemcheckRank, nil, nil, "the environment"},
		{knob.SlurmArrayCount, knob.SlurmArrayID, knob.SlurmArrayMin, knob.SlurmArrayStep, "a Slurm array"},
		{knob.MemcheckSplit, knob.JobCompletionIndex, nil, nil, "a Kubernetes indexed job"},
		{knob.WorldSize, knob.Rank, nil, nil, "torchrun"},
	} {
		if split == nil && e.split.Get() == "" || rank == nil && e.rank.Get() == "" {
			continue
		}
		s := Shard{Source: e.source}
		var errs [4]error
		s.Split, errs[0] = given(split, e.split, 1)
		s.Rank, errs[1] = given(rank, e.rank, 0)
		if rank == nil && e.first != nil {
			first, err1 := given(nil, e.first, 0)
			step, err2 := given(nil, e.step, 1)
			s.Rank, errs[2], errs[3] = (s.Rank-first)/max(1, step), err1, err2
		}
		if err := errors.Join(errs[:]...); err != nil {
			return Shard{}, err
		}
		return s, s.Check()
	}
	if split == nil && rank == nil {
		for _, k := range []*knob.Text{knob.MemcheckRank, knob.JobCompletionIndex} {
			if k.Get() != "" {
				return Shard{}, fmt.Errorf("%s is %s, but the number of shards is not given; set %s, or give --split", k.Name(), k.Get(),
					knob.MemcheckSplit.Name())
			}
		}
		if k := knob.MemcheckSplit; k.Get() != "" {
			return Shard{}, fmt.Errorf("%s is %s, but the rank of this piece is not given; set %s, or give --rank", k.Name(), k.Get(),
				knob.MemcheckRank.Name())
		}
	}
	s := Shard{Split: 1}
	if split != nil {
		s.Split = *split
	}
	if rank != nil {
		s.Rank = *rank
	}
	return s, s.Check()
}

// given returns the flag's value if set, otherwise the variable's, otherwise def.
func given(flag *int, k *knob.Text, def int) (int, error) {
	if flag != nil {
		return *flag, nil
	}
	if k.Get() == "" {
		return def, nil
	}
	n, err := strconv.Atoi(k.Get())
	if err != nil {
		return 0, fmt.Errorf("%s is %q, which is not a whole number; give --split and --rank", k.Name(), k.Get())
	}
	return n, nil
}

// wrongGPUs is the contract's message for a list of GPUs that does not fit the number of workers.
const wrongGPUs = "Please specify GPU assignment for each process, separated by :"

// maxGPUs bounds the length of a list of GPUs.
const maxGPUs = 1 << 16

// AssignGPUs returns the value of CUDA_VISIBLE_DEVICES for each of n workers. The spec "all" (or "") gives the workers one visible device
// each, in turn; otherwise it is a list with one entry per worker, separated by colons, where an entry may name several devices:
// "1,2:3,4:5,6". The error names an invalid entry. With "all" and no visible device, every entry is "" and the variable stays unchanged.
func AssignGPUs(spec string, n int, visible []string) ([]string, error) {
	gpus := make([]string, min(max(n, 0), maxGPUs))
	if spec == "all" || spec == "" {
		for i := range gpus {
			if len(visible) > 0 {
				gpus[i] = visible[i%len(visible)]
			}
		}
		return gpus, nil
	}
	entries := strings.Split(spec, ":")
	if len(entries) != n {
		return nil, fmt.Errorf("%s", wrongGPUs)
	}
	for i, e := range entries {
		if strings.TrimSpace(e) == "" {
			return nil, fmt.Errorf("--gpus %q has an empty entry for worker %d", spec, i)
		}
		gpus[i] = strings.ReplaceAll(e, " ", "")
		for _, g := range strings.Split(gpus[i], ",") {
			if !gpuName.MatchString(g) {
				return nil, fmt.Errorf("--gpus: %q of worker %d names no GPU; give numbers, or identifiers that begin with GPU- or MIG-",
					g, i)
			}
		}
	}
	return gpus, nil
}

// gpuName matches the names that CUDA_VISIBLE_DEVICES allows for a device; a name that it does not allow would leave the tests without a
// device.
var gpuName = regexp.MustCompile(`^([0-9]+|(GPU|MIG)-[0-9A-Za-z/-]+)$`)

// VisibleGPUs returns the devices that this process may use, as CUDA_VISIBLE_DEVICES names them: its entries if it is set (none if it is
// -1), otherwise the numbers of the machine's n devices.
func VisibleGPUs(n int) []string {
	switch list := strings.ReplaceAll(knob.VisibleDevices.Get(), " ", ""); list {
	case "":
	case "-1": // by convention: none
		return nil
	default:
		return strings.Split(list, ",")
	}
	gpus := make([]string, min(max(n, 0), maxGPUs))
	for i := range gpus {
		gpus[i] = fmt.Sprint(i)
	}
	return gpus
}
