package agree

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

func TestEveryOperationAssembles(t *testing.T) {
	as := assembler(t)
	var progs []*kir.Program
	for _, c := range pointCases() {
		progs = append(progs, c.prog)
	}
	for _, c := range threadCases(rand.New(rand.NewPCG(1, 2))) {
		progs = append(progs, c.prog)
	}
	for _, target := range []ptx.Target{{Major: 7, Minor: 5}, {Major: 8}, {Major: 9}} {
		text, err := ptx.Compile(progs, target)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "all.ptx")
		if err := os.WriteFile(file, text, 0o666); err != nil {
			t.Fatal(err)
		}
		arch := "sm_" + string(rune('0'+target.Major)) + string(rune('0'+target.Minor))
		if out, err := exec.Command(as, "-O1", "-arch", arch, "-o", os.DevNull, file).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%.4000s", arch, err, out)
		}
		t.Logf("%s: %d kernels, %d bytes of PTX", arch, len(progs), len(text))
	}
}
