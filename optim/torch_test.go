package optim_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// opens loads two files as PyTorch does by default, refusing everything but plain data and tensors. A module of PyTorch takes the first
// one's weights and an optimizer of PyTorch its state, and both must hold the numbers of a third file.
const opens = `
import json, sys, torch
run, types = (torch.load(f, weights_only=True) for f in sys.argv[1:3])
want = json.load(open(sys.argv[3]))
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(.3), torch.nn.Linear(8, 2))
model.load_state_dict(run['model'])
adamw = torch.optim.AdamW(model.parameters())
adamw.load_state_dict(run['optimizer'])
got = {name: a.double().flatten().tolist() for name, a in model.state_dict().items()}
assert got == want['Model'], got
for i, p in enumerate(model.parameters()):
    for key in 'step', 'exp_avg', 'exp_avg_sq':
        got = adamw.state[p][key].double().flatten().tolist()
        assert got == want['State'][i][key], (i, key, got)
assert sorted(run) == ['extra', 'generators', 'loader', 'model', 'optimizer', 'scaler', 'schedule'], sorted(run)
assert run['extra']['Steps'] == 8 and len(run['extra']['Losses']) == 8, run['extra']
for name, a in types.items():
    assert str(a.dtype) == 'torch.' + name and a.tolist() == [1, 1], (name, a)
assert len(types) == 10, types
print('same')
`

// TestTorchLoads has PyTorch load what Checkpoint and torchfile save.
func TestTorchLoads(t *testing.T) {
	if exec.Command("python3", "-c", "import torch").Run() != nil {
		t.Skip("python3 has no torch, so PyTorch does not load what is saved")
	}
	r := newResumed(t, tenon.CPU(), 1)
	defer r.close()
	r.train(t, 2, func() bool { return true })
	numbers := func(a *tenon.Tensor) []float64 {
		return testdevice.Read[float64](t, r.x, r.x.ToDType(a, tenon.Float64))
	}
	var want struct {
		Model map[string][]float64
		State []map[string][]float64
	}
	want.Model = map[string][]float64{}
	for name, a := range nn.StateDict(r.model) {
		want.Model[name] = numbers(a)
	}
	d, err := optim.StateDict(r.x, r.adamw)
	ok(t, err)
	state, _ := d.Get("state")
	for _, of := range state.(*torchfile.Dict).Values {
		p := map[string][]float64{}
		for i, key := range of.(*torchfile.Dict).Keys {
			p[key.(string)] = numbers(of.(*torchfile.Dict).Values[i].(*tenon.Tensor))
		}
		want.State = append(want.State, p)
	}
	types := map[string]*tenon.Tensor{}
	for _, d := range []tenon.DType{dtype.Bool, dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Int32, dtype.Int64, dtype.Float16,
		dtype.BFloat16, dtype.Float32, dtype.Float64} {
		types[d.String()] = r.x.Ones([]int{2}, d)
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "run.pt"), filepath.Join(dir, "types.pt"), filepath.Join(dir, "want.json")}
	text, err := json.Marshal(want)
	mustAll(t, err, r.Save(r.x, files[0]), torchfile.Save(r.x, files[1], types), os.WriteFile(files[2], text, 0o600))
	out, err := exec.Command("python3", append([]string{"-c", opens}, files...)...).CombinedOutput()
	if err != nil || string(out) != "same\n" {
		t.Errorf("PyTorch says %s (%v)", out, err)
	}
}
