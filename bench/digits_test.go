package bench

import (
	"flag"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

var longFlag = flag.Bool("long", false, "measure whole programs too; needs the go command")

// TestDigits measures the main job in a separate process on the simulator.
func TestDigits(t *testing.T) {
	if !*longFlag {
		t.Skip("whole programs are measured with -long")
	}
	bin := filepath.Join(t.TempDir(), "digits")
	if out, err := exec.Command("go", "build", "-o", bin, "../examples/digits").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	accuracy := func(args ...string) float64 {
		out, err := exec.Command(bin, append([]string{"-device", "sim", "-svg", ""}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		m := regexp.MustCompile(`(?m)^test accuracy ([0-9.]+) %`).FindSubmatch(out)
		if m == nil {
			t.Fatalf("no accuracy: %s", out)
		}
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const seeds = 5
	var seconds []float64
	mean := 0.0
	for seed := range seeds {
		start := time.Now()
		mean += accuracy("-seed", strconv.Itoa(seed)) / seeds
		seconds = append(seconds, time.Since(start).Seconds())
	}
	recordFigure("digits.sim", "s", seconds)
	recordFigure("digits.accuracy", "%", []float64{mean})
	recordFigure("digits.shuffled", "%", []float64{accuracy("-shuffle-labels")})
}
