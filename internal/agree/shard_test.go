package agree

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"tenon.dev/internal/rt"
)

// shardFlag is "i/n" in a process that runs share i of n of a test's trials.
var shardFlag = flag.String("shard", "",
	"the share of the trials that this process does, as 2/8; tests on a GPU start such processes themselves")

// longFlag is for simulated devices alone: on a GPU a test always runs all of its trials.
var longFlag = flag.Bool("long", false, "run the trials of all kernels on simulated devices, not those of every fifth one, and assemble "+
	"every kernel for every target")

// shard is a share of the trials, selected by the name of their first kernel.
type shard struct{ index, count int }

func (s shard) has(tr *trial) bool {
	name := tr.name
	for _, st := range tr.steps[0] {
		if st.prog != nil {
			name = st.prog.Name
			break
		}
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return int(h.Sum32()%uint32(s.count)) == s.index
}

// spread runs a test's trials: in this process without a GPU, otherwise in several, since the driver compiles on only one thread of a
// process at a time.
func spread(t *testing.T, trials func(p *pair)) {
	t.Helper()
	if rt.GPUs() > 0 && *shardFlag == "" {
		runShards(t, min(8, max(1, runtime.NumCPU()/2)))
		return
	}
	p := newPair(t)
	if !p.onGPU() && !*longFlag {
		p.shard.count = 5
	}
	if *shardFlag != "" {
		if n, err := fmt.Sscanf(*shardFlag, "%d/%d", &p.shard.index, &p.shard.count); n != 2 || err != nil ||
			p.shard.index >= p.shard.count {
			t.Fatalf("-shard %s: want a share such as 2/8", *shardFlag)
		}
	}
	trials(p)
	p.finish()
	if *shardFlag != "" {
		t.Logf("kernels of this share: %d", len(p.loaded))
	}
}

// runShards runs this test in n processes at once and adds up the counts that they print.
func runShards(t *testing.T, n int) {
	t.Helper()
	outputs, errs := make([]bytes.Buffer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", fmt.Sprintf("-shard=%d/%d", i, n))
			c.Stdout, c.Stderr = &outputs[i], &outputs[i]
			errs[i] = c.Run()
		})
	}
	wg.Wait()
	sum, kernels, special := map[string]*tally{}, map[string]bool{}, 0
	for i := range outputs {
		if errs[i] != nil {
			t.Errorf("share %d of %d: %v", i, n, errs[i])
		}
		lines := bufio.NewScanner(&outputs[i])
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			special += readShard(lines.Text(), sum, kernels)
			if text := lines.Text(); errs[i] != nil && !strings.HasPrefix(text, "shard ") {
				t.Logf("%d: %.2000s", i, text)
			}
		}
	}
	logTallies(t, sum, "simulator and GPU")
	t.Logf("%d processes; %d products by instructions of this device alone", n, special)
	if t.Name() == "TestProducts" && special == 0 {
		t.Error("no product uses wgmma")
	}
}

// print writes the pair's counts for readShard.
func (p *pair) print() {
	for name, kind := range p.loaded {
		fmt.Println("shard kernel", kind, name)
	}
	for kind, c := range p.compared {
		fmt.Println("shard tally", kind, c.trials, c.elements)
	}
	fmt.Println("shard special", p.sides[1].special)
}

// readShard adds one line of print to sum and returns the count of special instructions in it; kernels are those already counted.
func readShard(line string, sum map[string]*tally, kernels map[string]bool) (special int) {
	var kind, name string
	var c tally
	at := func() *tally {
		if sum[kind] == nil {
			sum[kind] = &tally{}
		}
		return sum[kind]
	}
	if n, _ := fmt.Sscanf(line, "shard kernel %s %s", &kind, &name); n == 2 && !kernels[name] {
		kernels[name] = true
		at().kernels++
	}
	if n, _ := fmt.Sscanf(line, "shard tally %s %d %d", &kind, &c.trials, &c.elements); n == 3 {
		at().trials += c.trials
		at().elements += c.elements
	}
	fmt.Sscanf(line, "shard special %d", &special)
	return special
}
