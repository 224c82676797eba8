package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tenon.dev/internal/benchrun"
)

var (
	pairsFlag  = flag.String("pairs", "", "write figures of this binary and of the one that -before names, measured in turns, to this file")
	beforeFlag = flag.String("before", "", "with -pairs: the benchmarks' binary of the earlier commit")
	earlier    = flag.String("beforecommit", "", "with -pairs: the earlier commit")
	rowsFlag   = flag.String("rows", ".", "with -pairs: the tests to run, as in -test.run")
	timeFlag   = flag.Duration("pairstime", 8*time.Minute, "with -pairs: as many rounds as this time allows")
)

// TestPairs measures two commits in turns. The order changes with each round, so that neither always runs on the warmer machine.
func TestPairs(t *testing.T) {
	if *pairsFlag == "" {
		t.Skip("measures two binaries only with -pairs")
	}
	if *beforeFlag == "" {
		t.Fatal("-pairs compares with a binary of an earlier commit; name it with -before, or in BEFORE for bench/gpu.sh")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	before, err := filepath.Abs(*beforeFlag)
	if err != nil {
		t.Fatal(err)
	}
	p := &benchrun.Pairs{Before: *earlier, After: benchrun.Commit(), Tests: *rowsFlag}
	until, longest := time.Now().Add(*timeFlag), time.Duration(0)
	rounds := 0
	for ; rounds == 0 || time.Now().Add(longest).Before(until); rounds++ {
		start := time.Now()
		var runs [2]*benchrun.Run
		for i := range runs {
			which := (i + rounds) % 2
			runs[which] = figuresOf(t, []string{before, self}[which])
		}
		if err := p.Add(runs[0], runs[1]); err != nil {
			t.Fatal(err)
		}
		if err := p.Write(*pairsFlag); err != nil { // after each round, in case the machine is taken away
			t.Fatal(err)
		}
		longest = max(longest, time.Since(start))
	}
	if len(p.Rows) == 0 {
		t.Fatal("the binaries have no figure in common")
	}
	fmt.Printf("pairs: %d figures in %d rounds\n", len(p.Rows), rounds)
}

// figuresOf runs the tests that -rows names with a binary of benchmarks, and returns the figures.
func figuresOf(t *testing.T, binary string) *benchrun.Run {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.json")
	ctx, cancel := context.WithTimeout(t.Context(), *timeFlag)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", *rowsFlag, "-test.skip", "^TestPairs$", "-device", *deviceFlag, "-runfile", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	r, err := benchrun.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
