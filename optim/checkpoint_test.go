package optim_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/internal/pickle"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// resumed is a training run with every kind of state that must resume.
type resumed struct {
	optim.Checkpoint
	x     *tenon.Exec
	model nn.Sequential
	adamw *optim.AdamW
	sched *optim.Schedule
	count struct {
		Steps  int
		Losses []float32
	}
}

// newResumed makes a training run with weights of the given seed, which a loaded file replaces.
func newResumed(t *testing.T, s tenon.Selector, seed uint64) *resumed {
	r := &resumed{x: testdevice.Open(t, s)}
	x := r.x
	init := nn.LinearOpt{Generator: nn.NewHostGenerator(seed)}
	r.model = nn.Sequential{nn.NewLinear(x, 3, 8, init), nn.NewBatchNorm1d(x, 8), nn.ReLU{}, nn.NewDropout(.3), nn.NewLinear(x, 8, 2, init)}
	var err1, err2, err3, err4, err5 error
	r.adamw, err1 = optim.NewAdamW(nn.Params(r.model), optim.AdamOpt{LR: .01 * float64(seed)})
	r.sched, err2 = optim.NewSchedule(r.adamw, optim.OneCycleLR([]float64{.1}, 40))
	r.Scaler, err3 = optim.NewGradScaler(optim.GradScalerOpt{InitScale: 1 << 30, GrowthInterval: 3})
	var in []float32
	var labels []int64
	for i := range 14 {
		in, labels = append(in, float32(i)/14, float32(i*i%7), 1), append(labels, int64(i%2))
	}
	table, err4 := data.NewTable(data.NewColumn(in, 3), data.NewColumn(labels))
	r.Loader, err5 = data.NewLoader(table, data.LoaderOpt{BatchSize: 4, Shuffle: true, Seed: 9})
	mustAll(t, err1, err2, err3, err4, err5, x.Generator().SetSeed(seed))
	r.Model, r.Optimizer, r.Schedule, r.Extra = r.model, r.adamw, r.sched, &r.count
	return r
}

func (r *resumed) close() {
	nn.Close(r.model)
	r.adamw.Close()
	r.Scaler.Close()
}

// train trains until the given number of epochs is over, or until after returns false after a step.
func (r *resumed) train(t *testing.T, epochs int, after func() bool) {
	for r.Loader.State().Epoch < epochs {
		for b, err := range r.Loader.Epoch(r.x) {
			mustAll(t, err)
			r.x.Scope(func(x *tenon.Exec) {
				r.adamw.ZeroGrad()
				half := x.Autocast(tenon.Float16)
				loss := half.CrossEntropy(r.model.Forward(half, b.Tensors[0]), b.Tensors[1])
				mustAll(t, x.Backward(r.Scaler.Scale(x, loss)), r.Scaler.Step(x, r.adamw), r.Scaler.Update(x), r.sched.Step())
				r.count.Steps++
				r.count.Losses = append(r.count.Losses, testdevice.Read[float32](t, x, loss)...)
			})
			if !after() {
				return
			}
		}
	}
}

// bits returns all numbers of the training run.
func (r *resumed) bits(t *testing.T) string {
	var b strings.Builder
	for key, a := range nn.StateDict(r.model) {
		raw, err := r.x.Bytes(a)
		mustAll(t, err)
		fmt.Fprintf(&b, "%s %x\n", key, raw)
	}
	scaler, err := r.Scaler.State(r.x)
	mustAll(t, err)
	fmt.Fprintf(&b, "%v\n%v\n%x\n%v\n", scaler, r.count, r.x.Generator().State(), r.adamw.LR(0))
	return b.String()
}

// Training that stops after any step, also in the middle of an epoch, resumes with the same bits as training that never stopped.
func TestCheckpointResumes(t *testing.T) {
	for name, s := range map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(0)} {
		t.Run(name, func(t *testing.T) {
			whole := newResumed(t, s, 1)
			defer whole.close()
			whole.train(t, 3, func() bool { return true })
			want := whole.bits(t)
			for _, stop := range []int{1, 4, 6, 11} { // 4 batches an epoch
				file := filepath.Join(t.TempDir(), "run.pt")
				first := newResumed(t, s, 1)
				defer first.close()
				first.train(t, 3, func() bool {
					if first.count.Steps == stop {
						mustAll(t, first.Save(first.x, file))
					}
					return first.count.Steps < stop
				})
				second := newResumed(t, s, 2)
				defer second.close()
				mustAll(t, second.Load(second.x, file))
				second.train(t, 3, func() bool { return true })
				same(t, fmt.Sprintf("stopped after step %d", stop), second.bits(t), want)
			}
		})
	}
}

// A checkpoint's file contains nothing that torch.load refuses with weights_only.
func TestCheckpointIsWeightsOnly(t *testing.T) {
	r := newResumed(t, tenon.CPU(), 1)
	defer r.close()
	r.train(t, 1, func() bool { return true })
	file := filepath.Join(t.TempDir(), "run.pt")
	mustAll(t, r.Save(r.x, file))
	z, err := zip.OpenReader(file)
	mustAll(t, err)
	defer z.Close()
	named := map[string]bool{}
	for _, e := range z.File {
		if path.Base(e.Name) != "data.pkl" {
			continue
		}
		in, err := e.Open()
		mustAll(t, err)
		_, err = pickle.Read(in, pickle.Options{Persistent: true, Global: func(module, name string) bool {
			named[module+"."+name] = true
			return true
		}})
		mustAll(t, err)
	}
	for _, safe := range []string{"torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "torch.FloatStorage",
		"torch.LongStorage", "torch.ByteStorage"} {
		if !named[safe] {
			t.Errorf("%s is not named", safe)
		}
		delete(named, safe)
	}
	if len(named) > 0 {
		t.Errorf("the pickle names %v", named)
	}
}

// An error of Load names the file and what does not fit, and changes nothing.
func TestCheckpointRefuses(t *testing.T) {
	r := newResumed(t, tenon.CPU(), 1)
	defer r.close()
	x := r.x
	r.train(t, 1, func() bool { return true })
	file := filepath.Join(t.TempDir(), "run.pt")
	mustAll(t, r.Save(x, file))
	saved, err := os.ReadFile(file)
	mustAll(t, err)
	r.train(t, 2, func() bool { return true })
	other, err := optim.NewAdamW(nn.Params(nn.Sequential{r.model[0]}))
	mustAll(t, err)
	otherSchedule, err := optim.NewSchedule(other, optim.StepLR(3, .1))
	mustAll(t, err)
	sgd, err := optim.NewSGD(nn.Params(r.model), optim.SGDOpt{LR: .1, Momentum: .9})
	mustAll(t, err)
	sgdSchedule, err := optim.NewSchedule(sgd, optim.OneCycleLR([]float64{.1}, 40))
	mustAll(t, err)
	mySchedule, err := optim.NewSchedule(r.adamw, optim.StepLR(3, .1))
	mustAll(t, err)
	table, err := data.NewTable(data.NewColumn(make([]float32, 14)))
	mustAll(t, err)
	loader, err := data.NewLoader(table, data.LoaderOpt{BatchSize: 5, Shuffle: true, Seed: 9})
	mustAll(t, err)
	wide := nn.NewLinear(x, 3, 9)
	defer nn.Close(wide)
	before := r.bits(t)
	for want, change := range map[string]func(c *optim.Checkpoint){
		`missing keys: ["model"]`: nil,
		`unexpected keys: ["model" "extra"]; name exactly those in the Checkpoint, or read a part of the file`: func(c *optim.Checkpoint) {
			c.Model, c.Extra = nil, nil
		},
		`size mismatch for 0.weight: copying a param with shape [8 3] from checkpoint`: func(c *optim.Checkpoint) {
			c.Model = nn.Sequential{wide, r.model[1], r.model[2], r.model[3], r.model[4]}
		},
		`"4.0.bias", "4.0.weight"; Unexpected key(s) in state_dict: "4.bias", "4.weight"`: func(c *optim.Checkpoint) {
			c.Model = nn.Sequential{r.model[0], r.model[1], r.model[2], r.model[3], nn.Sequential{r.model[4]}}
		},
		"the optimizer: loaded state dict contains a parameter group that doesn't match": func(c *optim.Checkpoint) {
			c.Optimizer, c.Schedule = other, otherSchedule
		},
		"the schedule is not of the checkpoint's Optimizer": func(c *optim.Checkpoint) {
			c.Schedule = otherSchedule
		},
		`the schedule: StepLR: the state is of the rule "OneCycleLR"`: func(c *optim.Checkpoint) {
			c.Schedule = mySchedule
		},
		`the value of "extra": the file's value has unexpected keys: "Losses"`: func(c *optim.Checkpoint) {
			c.Extra = &struct{ Steps int }{}
		},
		"Extra is of type int; give a pointer": func(c *optim.Checkpoint) {
			c.Extra = 1
		},
		"of 14 samples in batches of 4, shuffled from seed 9, this one is of 14 samples in batches of 5": func(c *optim.Checkpoint) {
			c.Loader = loader
		},
		"the file has the states of 1 generators, and the checkpoint names 0": func(c *optim.Checkpoint) {
			c.Generators = []*cuda.Generator{}
		},
		"generator 0 is nil": func(c *optim.Checkpoint) {
			c.Generators = make([]*cuda.Generator, 1)
		},
		"the schedule is nil": func(c *optim.Checkpoint) { c.Schedule = (*optim.Schedule)(nil) },
		"the optimizer is nil": func(c *optim.Checkpoint) {
			c.Optimizer, c.Schedule = (*optim.AdamW)(nil), nil
		},
		"the optimizer: the file is of the optimizer AdamW, this is SGD; make it with NewAdamW": func(c *optim.Checkpoint) {
			c.Optimizer, c.Schedule = sgd, sgdSchedule
		},
	} {
		c, from := r.Checkpoint, file
		if change == nil {
			from = filepath.Join(t.TempDir(), "less.pt")
			less := c
			less.Model = nil
			mustAll(t, less.Save(x, from))
		} else {
			change(&c)
		}
		err := c.Load(x, from)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), from) {
			t.Errorf("got %v\nwant %q", err, want)
		}
		same(t, want, r.bits(t), before)
	}
	checkSaveRefuses(t, r, file, saved)
}

// checkSaveRefuses saves checkpoints that cannot be saved over a file, which must stay as it is.
func checkSaveRefuses(t *testing.T, r *resumed, file string, saved []byte) {
	x := r.x
	bad := r.Checkpoint
	bad.Extra = &struct{ F func() }{}
	if err := bad.Save(x, file); err == nil || !strings.Contains(err.Error(), `["extra"].F is a func()`) ||
		!strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
	g, err := x.Capture(func(x *tenon.Exec) {
		x.Mul(r.model[0].(*nn.Linear).Weight.Tensor(), r.model[0].(*nn.Linear).Weight.Tensor())
		if err := r.Save(x, file); err == nil || !strings.Contains(err.Error(), "a capture is under way") {
			t.Errorf("got %v", err)
		}
		if err := r.Load(x, file); err == nil || !strings.Contains(err.Error(), "a capture is under way") {
			t.Errorf("got %v", err)
		}
	})
	mustAll(t, err, g.Close())
	for range r.Loader.Epoch(x) {
		if err := r.Load(x, file); err == nil || !strings.Contains(err.Error(), "epoch is under way") {
			t.Errorf("got %v", err)
		}
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, saved) {
		t.Errorf("the file changed: %v", err)
	}
	var none *optim.Checkpoint
	if err := none.Load(x, file); err == nil || none.Save(x, file) == nil {
		t.Error("a nil checkpoint was loaded or saved")
	}
}

// versions count changes, and a load is one.
var versions = regexp.MustCompile(`version \d+`)

// A schedule driven by a metric resumes too, and so does every optimizer with all its counts.
func TestCheckpointOfEveryOptimizer(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	for _, name := range slices.Sorted(maps.Keys(optimizers)) {
		x.Scope(func(x *tenon.Exec) {
			ends := make([]string, 2)
			file := filepath.Join(t.TempDir(), "run.pt")
			for run := range ends {
				w := stepped(name, 1, 0)(t, x)
				plateau, err := optim.NewReduceLROnPlateau(w.opt, 1)
				mustAll(t, err)
				model := map[string]*nn.Param{}
				for i, p := range w.params {
					model[fmt.Sprint(i)] = p
				}
				table, err := data.NewTable(data.NewColumn([]float32{1}))
				mustAll(t, err)
				loader, err := data.NewLoader(table)
				mustAll(t, err)
				c := &optim.Checkpoint{Model: model, Optimizer: w.opt, Schedule: plateau, Loader: loader}
				for step := range 6 {
					if run == 1 && step < 3 {
						continue
					}
					if run == 1 && step == 3 {
						refuseInEpoch(t, x, c, file, plateau)
						mustAll(t, c.Load(x, file))
					}
					if step == 3 && run == 0 {
						mustAll(t, c.Save(x, file))
					}
					mustAll(t, w.opt.Step(x), plateau.Step(1))
				}
				st, err := plateau.State()
				mustAll(t, err)
				exact := filepath.Join(t.TempDir(), "optimizer") // with the counts in float64
				mustAll(t, optim.SaveFile(x, w.opt, exact))
				raw, err := os.ReadFile(exact)
				mustAll(t, err)
				ends[run] = fmt.Sprintf("%s%v\n%x", versions.ReplaceAllString(w.look(t, x), ""), st, raw)
				w.close()
			}
			same(t, name, ends[1], ends[0])
		})
	}
}

// refuseInEpoch loads in the loop over an epoch; the loader refuses after the schedule has changed.
func refuseInEpoch(t *testing.T, x *tenon.Exec, c *optim.Checkpoint, file string, s *optim.ReduceLROnPlateau) {
	t.Helper()
	before, err := s.State()
	mustAll(t, err)
	for range c.Loader.Epoch(x) {
		err = c.Load(x, file)
	}
	after, err2 := s.State()
	mustAll(t, err2)
	if err == nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("%v: the schedule is %v and was %v", err, after, before)
	}
}
