package conformance

import (
	"compress/gzip"
	"encoding/csv"
	"math"
	"os"
	"strconv"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/rt"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// digitsRow is one training image and its label.
type digitsRow struct {
	pixels [64]float32
	label  int64
}

// digitsRows reads the training rows: all but every fifth.
func digitsRows(t *testing.T) []digitsRow {
	t.Helper()
	f, err := os.Open("../examples/digits/digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []digitsRow
	for i, text := range all {
		if i%5 == 4 {
			continue
		}
		var r digitsRow
		for j, s := range text {
			v, err := strconv.Atoi(s)
			if err != nil {
				t.Fatal(err)
			}
			if j < 64 {
				r.pixels[j] = float32(v) / 16
			} else {
				r.label = int64(v)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// digitsNet is the recorded network with its initial weights.
func digitsNet(t *testing.T, x *tenon.Exec, run *recorded.DigitsRun) nn.Sequential {
	t.Helper()
	g := nn.NewHostGenerator(1)
	pad := nn.Conv2dOpt{Padding: [2]int{1, 1}, Generator: g}
	net := nn.Sequential{
		nn.NewConv2d(x, 1, 16, [2]int{3, 3}, pad), nn.ReLU{},
		nn.NewConv2d(x, 16, 32, [2]int{3, 3}, pad), nn.ReLU{},
		nn.MaxPool2d{Kernel: [2]int{2, 2}}, nn.Flatten{},
		nn.NewLinear(x, 512, 64, nn.LinearOpt{Generator: g}), nn.ReLU{},
		nn.NewLinear(x, 64, 10, nn.LinearOpt{Generator: g}),
	}
	t.Cleanup(func() { nn.Close(net) })
	x.Scope(func(x *tenon.Exec) {
		state := map[string]*tenon.Tensor{}
		for name, w := range run.Init {
			state[name] = x.FromBytes(w.Data, w.DType, w.Shape...)
		}
		if err := nn.Load(x, net, state); err != nil {
			t.Fatal(err)
		}
	})
	return net
}

// digitsBatch copies rows to the device.
func digitsBatch(x *tenon.Exec, rows []digitsRow, numbers []int64) (images, labels *tenon.Tensor) {
	var pixels []float32
	var classes []int64
	for _, n := range numbers {
		pixels = append(pixels, rows[n].pixels[:]...)
		classes = append(classes, rows[n].label)
	}
	return tenon.From(x, pixels, len(numbers), 1, 8, 8), tenon.From(x, classes)
}

// TestDigitsLosses trains from the recorded weights on the recorded batches and compares each step's loss with PyTorch's.
func TestDigitsLosses(t *testing.T) {
	run, err := recorded.OpenDigitsRun("testdata/digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	rows := digitsRows(t)
	x := open(t)
	net := digitsNet(t, x, run)
	adam, err := optim.NewAdam(nn.Params(net), optim.AdamOpt{LR: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	defer adam.Close()
	worst, early := 0.0, 0.0
	for step, numbers := range run.Batches {
		x.Scope(func(x *tenon.Exec) {
			images, labels := digitsBatch(x, rows, numbers)
			loss := x.CrossEntropy(net.Forward(x, images), labels)
			adam.ZeroGrad()
			if err := x.Backward(loss); err != nil {
				t.Fatal(err)
			}
			if err := adam.Step(x); err != nil {
				t.Fatal(err)
			}
			got, err := x.Item(loss)
			if err != nil {
				t.Fatal(err)
			}
			off := math.Abs(got-run.Losses[step]) / run.Losses[step]
			worst = max(worst, off)
			bound := 2e-4
			if step < 20 {
				early, bound = max(early, off), 2e-6
			}
			if off > bound {
				t.Errorf("step %d: loss %v, PyTorch's is %v: off by %.2g, the limit is %.2g", step, got, run.Losses[step], off, bound)
			}
		})
	}
	t.Logf("%d losses on %s: the first 20 within %.2g of PyTorch's, all within %.2g", len(run.Losses), x.Device().Name(), early, worst)
}

// TestPeakMemory runs programs whose peak memory was recorded from PyTorch, on the simulator and without help from the garbage collector.
// Each run may need at most 1.1 times the memory that PyTorch's run needed beyond the allocations before it.
func TestPeakMemory(t *testing.T) {
	run, err := recorded.OpenDigitsRun("testdata/digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("mlp32_nograd_4096x1024_f32", func(t *testing.T) {
		x := openNull(t)
		g := nn.NewHostGenerator(0)
		var net nn.Sequential
		for range 32 {
			net = append(net, nn.NewLinear(x, 1024, 1024, nn.LinearOpt{Generator: g}), nn.ReLU{})
		}
		defer nn.Close(net)
		in := x.Full([]int{4096, 1024}, 1, tenon.Float32)
		defer in.Close()
		comparePeaks(t, x, "peak.chain", run.Peaks["mlp32_nograd_4096x1024_f32"], func(x *tenon.Exec) { net.Forward(x.NoGrad(), in) })
	})
	t.Run("digits_step_b64", func(t *testing.T) {
		x := openSimulator(t)
		net := digitsNet(t, x, run)
		adam, err := optim.NewAdam(nn.Params(net), optim.AdamOpt{LR: 1e-3})
		if err != nil {
			t.Fatal(err)
		}
		defer adam.Close()
		images, labels := digitsBatch(x, digitsRows(t), run.Batches[0])
		defer images.Close()
		defer labels.Close()
		comparePeaks(t, x, "peak.digits", run.Peaks["digits_step_b64_cudnn_True"], func(x *tenon.Exec) {
			adam.ZeroGrad()
			loss := x.CrossEntropy(net.Forward(x, images), labels)
			if err := x.Backward(loss); err != nil {
				t.Fatal(err)
			}
			if err := adam.Step(x); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func openSimulator(t *testing.T) *tenon.Exec {
	t.Helper()
	x := testdevice.Open(t, tenon.Sim(0))
	x.Device().SetGarbageCollection(false)
	return x
}

// openNull opens a device that computes nothing, for programs whose memory alone matters.
func openNull(t *testing.T) *tenon.Exec {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(d driver.Device) driver.Device {
		image := d.Info().Image
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		return null.New(image)
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	x.Device().SetGarbageCollection(false)
	return x
}

// comparePeaks runs f in a scope as many times as PyTorch's program was run.
func comparePeaks(t *testing.T, x *tenon.Exec, name string, want recorded.Peak, f func(x *tenon.Exec)) {
	t.Helper()
	if len(want.Runs) == 0 {
		t.Fatal("the program was not recorded")
	}
	const peak, current = "allocated_bytes.all.peak", "allocated_bytes.all.current"
	d := x.Device()
	var ours, theirs []float64
	for i, r := range want.Runs {
		before := d.Stats()[current]
		d.ResetPeakStats()
		x.Scope(f)
		got, torch := d.Stats()[peak]-before, r[0]-r[1]
		t.Logf("run %d: %d bytes above the start, PyTorch's %d: %.3f times", i, got, torch, float64(got)/float64(torch))
		if float64(got) > 1.1*float64(torch) {
			t.Errorf("run %d needs %d bytes above its start, more than 1.1 times PyTorch's %d", i, got, torch)
		}
		ours, theirs = append(ours, float64(got)/(1<<20)), append(theirs, float64(torch)/(1<<20))
	}
	torch := benchrun.Summarize(theirs)
	benchrun.Record(benchrun.Figure{Name: name, Unit: "MiB", Sample: benchrun.Summarize(ours), Torch: &torch,
		Note: "on the simulator; PyTorch's as recorded"})
}
