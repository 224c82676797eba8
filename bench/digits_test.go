package bench

import (
	"flag"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var longFlag = flag.Bool("long", false, "measure whole programs too; needs the go command")

// TestDigits measures the main job as a process of its own on the simulator.
func TestDigits(t *testing.T) {
	if !*longFlag {
		t.Skip("whole programs are measured with -long")
	}
	bin := filepath.Join(t.TempDir(), "digits")
	if out, err := exec.Command("go", "build", "-o", bin, "../examples/digits").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var values []float64
	for range 3 {
		start := time.Now()
		if out, err := exec.Command(bin, "-device", "sim", "-svg", "").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		values = append(values, time.Since(start).Seconds())
	}
	recordFigure("digits.sim", "s", values)
}
