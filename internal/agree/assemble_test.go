package agree

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
)

// assembler returns the path of ptxas, which .ci/ptxas.sh fetches.
func assembler(t *testing.T) string {
	if path, err := filepath.Abs("../../.tools/ptxas"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("no ptxas: run .ci/ptxas.sh")
	}
	return path
}

// assemble runs ptxas on text and returns what it says of registers and spills.
func assemble(t *testing.T, as string, target ptx.Target, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.ptx")
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
	arch := fmt.Sprintf("sm_%d%d", target.Major, target.Minor)
	if target.Arch {
		arch += "a"
	}
	out, err := exec.Command(as, "-v", "-arch", arch, "-o", os.DevNull, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%.4000s", arch, err, out)
	}
	return string(out)
}

var targets = []ptx.Target{{Major: 7, Minor: 5}, {Major: 8}, {Major: 9}}

// TestProductsAssemble assembles the products, all for one capability and those of untransposed operands for the others; none may spill
// where the matrix units hold its sums.
func TestProductsAssemble(t *testing.T) {
	as := assembler(t)
	targets := targets
	if help, err := exec.Command(as, "--help").Output(); err == nil && bytes.Contains(help, []byte("sm_90a")) {
		targets = append(targets[:len(targets):len(targets)], ptx.Target{Major: 9, Arch: true})
	}
	used, spill := regexp.MustCompile(`Used .*`), regexp.MustCompile(`[1-9]\d* bytes spill`)
	for _, q := range products() {
		p, err := q.build()
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range targets {
			if target.Major != 8 && !target.Arch && (q.transA || q.transB) {
				continue
			}
			text, err := ptx.Compile([]*kir.Program{p}, target)
			if err != nil {
				t.Fatal(err)
			}
			said := assemble(t, as, target, text)
			shared, err := ptx.DynamicShared(p, target)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s %v: %d bytes of PTX, %d dynamic shared, %s", q.name(), target, len(text), shared, used.FindString(said))
			if s := spill.FindString(said); s != "" && target.Major > 7 {
				t.Errorf("%s: %s", q.name(), s)
			}
		}
	}
}

func TestEveryOperationAssembles(t *testing.T) {
	as := assembler(t)
	var progs []*kir.Program
	for _, c := range pointCases() {
		progs = append(progs, c.prog)
	}
	for _, c := range threadCases(rand.New(rand.NewPCG(1, 2))) {
		progs = append(progs, c.prog)
	}
	for _, target := range targets {
		text, err := ptx.Compile(progs, target)
		if err != nil {
			t.Fatal(err)
		}
		assemble(t, as, target, text)
		t.Logf("sm_%d%d: %d kernels, %d bytes of PTX", target.Major, target.Minor, len(progs), len(text))
	}
}
