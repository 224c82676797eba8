package sanitize

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev/memcheck"
)

var long = flag.Bool("long", false, "run the slow tests under the simulator's checker too")

// under runs a program under a tool and returns its output and the report.
func under(t *testing.T, c *memcheck.Checker, tool memcheck.Tool, dir string, args ...string) (string, *memcheck.Report) {
	t.Helper()
	inv := c.Command(tool, args, filepath.Join(t.TempDir(), "report"))
	cmd := exec.Command(inv.Args[0], inv.Args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), inv.Env...)
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	text := string(out)
	if strings.Contains(text, "Device not supported") {
		t.Skipf("compute-sanitizer does not support this machine's device: %.300s", text)
	}
	in, err := os.Open(inv.Report)
	if err != nil {
		t.Fatalf("no report: %v\n%.4000s", err, text)
	}
	defer in.Close()
	rep, err := memcheck.ParseReport(in, memcheck.ParseOptions{Tool: tool, Libraries: memcheck.DefaultLibraries()})
	if err != nil {
		t.Fatalf("%v\n%.4000s", err, text)
	}
	return text, rep
}

// failures extracts from the output of a verbose test run what each failed test printed, from its start to its verdict, and then the end of
// the output, at most 4,000 bytes of each.
func failures(out string) string {
	var b strings.Builder
	for at := range strings.SplitSeq(out, "=== RUN ") {
		if strings.Contains(at, "--- FAIL") {
			fmt.Fprintf(&b, "%.4000s\n", at)
		}
	}
	b.WriteString(out[max(0, len(out)-4000):])
	return b.String()
}

// finds checks that a tool finds a planted bug; otherwise it would mean nothing if the tool finds no others.
func finds(t *testing.T, c *memcheck.Checker, tool memcheck.Tool, test string) {
	t.Helper()
	out, rep := under(t, c, tool, "", plantedBinary(t), "-test.run=^"+test+"$", "-test.v")
	m := says.FindStringSubmatch(out)
	if m == nil || !slices.ContainsFunc(rep.Findings, func(f *memcheck.Finding) bool {
		return isOf(f, bug{memcheck.Class(m[1]), m[2], m[3]})
	}) {
		t.Fatalf("%s does not find the bug of %s: %v\n%.3000s", tool, test, rep.Findings, out)
	}
}

// proofs has a planted test for each tool.
var proofs = map[memcheck.Tool]string{memcheck.Memcheck: "TestPlantedStorePast", memcheck.Racecheck: "TestPlantedReadAfterWrite",
	memcheck.Initcheck: "TestPlantedLoadUnwritten", memcheck.Synccheck: "TestPlantedBarrierInHalf"}

// TestKernelsAreCleanOnSimulator runs the tests of internal/kernels under the simulator's checker, and its planted bugs with them.
func TestKernelsAreCleanOnSimulator(t *testing.T) {
	c := memcheck.TenonChecker()
	for tool, proof := range proofs {
		finds(t, c, tool, proof)
	}
	args := []string{testBinary(t, "internal/kernels"), "-test.v"}
	least := 2000
	if !*long { // the slowest
		args = append(args, "-test.skip=^(TestReduce|TestMultiTensor|TestNorms|TestPointOpsOfFloats|TestBatchNorm|TestReduceComplex|"+
			"TestFoldBySegments|TestMultinomialDraw|TestFusedRowsHaveTheBitsOfTheirSteps|TestCompaction|TestPoolingChannelsAtOnce|"+
			"TestCrossEntropyRowsGradient|TestKeySort|TestMultiReduce|TestUniqueSort|TestFusedHasTheBitsOfItsSteps|TestAttentionMask|"+
			"TestReductionsGoAgain|TestNormsWithSums|TestBatchNormSumsMakeTheirInput|TestAttention|TestSmallPools)$")
		least = 800
	}
	out, rep := under(t, c, "", filepath.Join("..", "kernels"), args...)
	if strings.Contains(out, "--- FAIL") || !strings.Contains(out, "\nPASS\n") {
		t.Fatalf("the tests fail under the checker:\n%s", failures(out))
	}
	for _, f := range rep.Findings {
		t.Errorf("%s in %s at %v: %s", f.Class, f.Kernel, f.Device, f.Message)
	}
	if rep.Kernels < least {
		t.Errorf("only %d kernels ran", rep.Kernels)
	}
	t.Logf("0 findings, %d kernels", rep.Kernels)
	if !t.Failed() && *long {
		recordCount("memcheck.kernels.sim", "kernels", rep.Kernels)
	}
}
