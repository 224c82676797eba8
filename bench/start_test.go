package bench

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/rt"
)

// startChild is set in the process that TestStart starts.
const startChild = "TENON_BENCH_START"

// TestStart measures the time from the start of a process to its first result: this binary is started again, opens the device and adds.
func TestStart(t *testing.T) {
	if kind := os.Getenv(startChild); kind != "" {
		sel := tenon.Sim(0)
		if kind == "cuda" {
			sel = tenon.CUDA(0)
		}
		x, err := tenon.Open(sel)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := x.Item(x.Add(x.Ones(nil, tenon.Float32), x.Ones(nil, tenon.Float32))); err != nil || v != 2 {
			t.Fatal(v, err)
		}
		// The driver's own work at exit is not part of the start.
		os.Stdout.WriteString("first result\n")
		os.Exit(0)
	}
	kinds := map[string]string{"sim": "start.sim"}
	if rt.GPUs() > 0 {
		kinds["cuda"] = "start.warm"
	}
	for kind, name := range kinds {
		var values []float64
		for i := range 6 {
			cmd := exec.Command(os.Args[0], "-test.run", "TestStart$")
			cmd.Env = append(os.Environ(), startChild+"="+kind)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			n, err := out.Read(buf)
			d := time.Since(start)
			if string(buf[:n]) != "first result\n" {
				t.Fatalf("the child said %q (%v)", buf[:n], err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				values = append(values, d.Seconds())
			}
		}
		recordFigure(name, "s", values)
	}
}
