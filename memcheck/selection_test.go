package memcheck

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev/internal/knob"
)

func names(tests []Test) string {
	var s []string
	for _, t := range tests {
		s = append(s, t.Name)
	}
	return strings.Join(s, " ")
}

func testsOf(list string) []Test {
	var tests []Test
	for _, n := range strings.Fields(list) {
		tests = append(tests, Test{Name: n, CPU: cpuOnly(n)})
	}
	return tests
}

func TestSelection(t *testing.T) {
	for _, c := range []struct {
		s          Selection
		list, want string
	}{
		{Selection{}, "b a C", "C a b"},
		{Selection{}, "x_cpu x_CPU x_cpu_cuda CUDA_cPu x", "CUDA_cPu x x_cpu_cuda"},
		{Selection{KeepCPU: true}, "x_cpu x", "x x_cpu"},
		{Selection{Match: regexp.MustCompile("^a"), Skip: regexp.MustCompile("z$")}, "ab az b", "ab"},
		{Selection{Shard: Shard{Split: 2, Rank: 0}}, "a b c d e", "a b c"},
		{Selection{Shard: Shard{Split: 2, Rank: 1}}, "e d c b a", "d e"},
		{Selection{Shard: Shard{Split: 4, Rank: 2}}, "a b c d e", "e"},
		{Selection{Shard: Shard{Split: 4, Rank: 3}}, "a b c d e", ""},
		{Selection{Shard: Shard{Split: 9, Rank: 8}}, "a b", ""},
	} {
		given := testsOf(c.list)
		if got := names(c.s.Of(given)); got != c.want {
			t.Errorf("%+v of %q gives %q, want %q", c.s, c.list, got, c.want)
		}
		if names(given) != c.list {
			t.Errorf("the argument was changed to %q", names(given))
		}
	}
}

// LeftOut counts each test once, for the first rule that drops it.
func TestLeftOut(t *testing.T) {
	match, skip := regexp.MustCompile("a"), regexp.MustCompile("z")
	for _, c := range []struct {
		s          Selection
		list, want string
	}{
		{Selection{}, "a b a_cuda", ""},
		{Selection{Shard: Shard{Split: 2}}, "a b", ""},
		{Selection{}, "x_cpu x_CPU x", "tests left out: 2 with cpu and not cuda in the name (see --keep-cpu)"},
		{Selection{Match: match, Skip: skip}, "x_cpu b c z az a", "tests left out: 1 with cpu and not cuda in the name (see --keep-cpu), " +
			"3 by --filter, 1 by --skip"},
		{Selection{KeepCPU: true, Skip: skip}, "x_cpu z", "tests left out: 1 by --skip"},
	} {
		if got := c.s.LeftOut(testsOf(c.list)); got != c.want {
			t.Errorf("%+v of %q: %q, want %q", c.s, c.list, got, c.want)
		}
	}
}

// The shards of every split contain each test exactly once.
func TestShardsCover(t *testing.T) {
	for n := range 25 {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("t%02d", i))
		}
		for split := 1; split < 12; split++ {
			var got []string
			for r := range split {
				got = append(got,
					strings.Fields(names(Selection{Shard: Shard{Split: split, Rank: r}}.Of(testsOf(strings.Join(list, " ")))))...)
			}
			if !slices.Equal(got, list) {
				t.Fatalf("%d tests in %d pieces: %v", n, split, got)
			}
		}
	}
}

func TestAssignGPUs(t *testing.T) {
	for _, c := range []struct {
		spec    string
		n       int
		visible string
		want    string
		err     string
	}{
		{"all", 5, "0 1", "0 1 0 1 0", ""},
		{"", 2, "GPU-a GPU-b GPU-c", "GPU-a GPU-b", ""},
		{"all", 2, "", " ", ""},
		{"1,2:3,4:5,6", 3, "", "1,2 3,4 5,6", ""},
		{"1", 1, "0", "1", ""},
		{"1:2", 3, "0", "", wrongGPUs},
		{"1:", 2, "0", "", "empty entry for worker 1"},
		{"GPU-5a:MIG-0b/1/0,2", 2, "0", "GPU-5a MIG-0b/1/0,2", ""},
		{"all:1", 2, "0", "", `"all" of worker 0 names no GPU`},
		{"0:1,,2", 2, "0", "", `"" of worker 1 names no GPU`},
		{"-1", 1, "0", "", `"-1" of worker 0 names no GPU`},
	} {
		got, err := AssignGPUs(c.spec, c.n, strings.Fields(c.visible))
		if strings.Join(got, " ") != c.want && c.err == "" || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%q for %d gives %q, %v", c.spec, c.n, got, err)
		}
	}
	t.Setenv(knob.VisibleDevices.Name(), "2, 5")
	if got := VisibleGPUs(8); strings.Join(got, " ") != "2 5" {
		t.Errorf("visible %v", got)
	}
	t.Setenv(knob.VisibleDevices.Name(), "-1")
	if got := VisibleGPUs(2); got != nil {
		t.Errorf("visible %v", got)
	}
	t.Setenv(knob.VisibleDevices.Name(), "")
	if got := VisibleGPUs(2); strings.Join(got, " ") != "0 1" {
		t.Errorf("visible %v", got)
	}
}

func TestEnvironmentShard(t *testing.T) {
	n := func(i int) *int { return &i }
	all := []*knob.Text{knob.MemcheckSplit, knob.MemcheckRank, knob.SlurmArrayCount, knob.SlurmArrayID, knob.SlurmArrayMin,
		knob.SlurmArrayStep,
		knob.JobCompletionIndex, knob.Rank, knob.WorldSize}
	for _, c := range []struct {
		env         string
		split, rank *int
		want        Shard
		err         string
	}{
		{"", nil, nil, Shard{Split: 1}, ""},
		{"", n(4), nil, Shard{Split: 4}, ""},
		{"", n(4), n(3), Shard{Split: 4, Rank: 3}, ""},
		{"", nil, n(1), Shard{}, "rank 1 of 1 shards does not exist"},
		{"", n(0), nil, Shard{}, "split into 0 shards"},
		{"", n(2), n(-1), Shard{}, "rank -1"},
		{"TENON_MEMCHECK_SPLIT=3 TENON_MEMCHECK_RANK=2", nil, nil, Shard{3, 2, "the environment"}, ""},
		{"TENON_MEMCHECK_SPLIT=3 TENON_MEMCHECK_RANK=3", nil, nil, Shard{}, "rank 3 of 3 shards does not exist (from the environment)"},
		{"TENON_MEMCHECK_SPLIT=3 TENON_MEMCHECK_RANK=2", n(5), n(4), Shard{Split: 5, Rank: 4}, ""},
		{"TENON_MEMCHECK_SPLIT=x TENON_MEMCHECK_RANK=2", nil, nil, Shard{}, `TENON_MEMCHECK_SPLIT is "x"`},
		{"TENON_MEMCHECK_RANK=2", nil, nil, Shard{}, "set TENON_MEMCHECK_SPLIT"},
		{"TENON_MEMCHECK_SPLIT=2", nil, nil, Shard{}, "set TENON_MEMCHECK_RANK"},
		{"SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_STEP=2", nil, nil,
			Shard{4, 3, "a Slurm array"}, ""},
		{"SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_ID=9 SLURM_ARRAY_TASK_MIN=1", nil, nil, Shard{},
			"rank 8 of 3 shards does not exist (from a Slurm array)"},
		{"SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=q", nil, nil, Shard{}, `SLURM_ARRAY_TASK_MIN is "q"`},
		{"TENON_MEMCHECK_SPLIT=8 JOB_COMPLETION_INDEX=5", nil, nil, Shard{8, 5, "a Kubernetes indexed job"}, ""},
		{"JOB_COMPLETION_INDEX=5", n(6), nil, Shard{6, 5, "a Kubernetes indexed job"}, ""},
		{"JOB_COMPLETION_INDEX=0", nil, nil, Shard{}, "the number of shards is not given; set TENON_MEMCHECK_SPLIT"},
		{"RANK=1 WORLD_SIZE=2", nil, nil, Shard{2, 1, "torchrun"}, ""},
		{"RANK=1", nil, nil, Shard{Split: 1}, ""},
	} {
		for _, k := range all {
			t.Setenv(k.Name(), "")
		}
		for _, v := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(v, "=")
			t.Setenv(name, value)
		}
		got, err := EnvironmentShard(c.split, c.rank)
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q: %+v, %v; want %+v, %q", c.env, got, err, c.want, c.err)
		}
	}
}
