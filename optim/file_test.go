package optim_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/optim"
	"tenon.dev/safetensors"
)

// Training that is saved in the middle and resumes in another optimizer takes the same steps as without the interruption.
func TestResume(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for kind := range makers {
			name := filepath.Join(t.TempDir(), "optimizer.safetensors")
			steps := func(tr *training, from, to int) {
				t.Helper()
				for i := from; i < to; i++ {
					tr.gradient(x, i)
					if i%3 == 1 {
						tr.ps[1].SetGrad(nil) // not stepped, so its count differs
					}
					if err := tr.o.Step(x); err != nil {
						t.Fatal(err)
					}
				}
			}
			one, two := newTraining(t, x, kind), newTraining(t, x, kind)
			steps(one, 0, 5)
			one.o.SetLR(0, .03)
			if err := optim.SaveFile(x, one.o, name); err != nil {
				t.Fatal(err)
			}
			steps(two, 20, 22) // undone by loading
			for i := range one.ps {
				x.NoGrad().CopyInto(two.ps[i].Tensor(), one.ps[i].Tensor())
			}
			if err := optim.LoadFile(x, two.o, name); err != nil {
				t.Fatal(err)
			}
			if two.o.LR(0) != .03 {
				t.Errorf("%s: the learning rate is %v", kind, two.o.LR(0))
			}
			steps(one, 5, 9)
			steps(two, 5, 9)
			if got, want := two.values(t, x), one.values(t, x); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", kind, got, want)
			}
			one.close()
			two.close()
		}
	})
}

// A file names its tensors as PyTorch's state_dict does.
func TestFileNames(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		tr := newTraining(t, x, "AdamW AMSGrad")
		defer tr.close()
		name := filepath.Join(t.TempDir(), "optimizer.safetensors")
		tr.gradient(x, 0)
		tr.ps[2].SetGrad(nil)
		if err := tr.o.Step(x); err != nil {
			t.Fatal(err)
		}
		if err := optim.SaveFile(x, tr.o, name); err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var keys []string
		for _, a := range f.Infos() {
			keys = append(keys, a.Name)
		}
		slices.Sort(keys)
		if got, want := strings.Join(keys, " "), "state.0.exp_avg state.0.exp_avg_sq state.0.max_exp_avg_sq state.0.step "+
			"state.1.exp_avg state.1.exp_avg_sq state.1.max_exp_avg_sq state.1.step"; got != want {
			t.Errorf("got %s", got)
		}
		var groups []map[string]any
		if err := json.Unmarshal([]byte(f.Metadata()["param_groups"]), &groups); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(slices.Sorted(maps.Keys(groups[0])), " "),
			"amsgrad betas eps lr maximize names params weight_decay"; got != want || groups[0]["weight_decay"] != 1e-2 {
			t.Errorf("got %s: %v", got, groups[0])
		}
	})
}

// A file that does not fit changes nothing, and the error says why.
func TestFileErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		tr := newTraining(t, x, "Adam")
		defer tr.close()
		dir := t.TempDir()
		tr.gradient(x, 0)
		if err := tr.o.Step(x); err != nil {
			t.Fatal(err)
		}
		good := filepath.Join(dir, "good")
		if err := optim.SaveFile(x, tr.o, good); err != nil {
			t.Fatal(err)
		}
		file, err := safetensors.Open(good)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		groups := file.Metadata()["param_groups"]
		// change writes the good file with other metadata and tensors.
		change := func(meta map[string]string, tensors func(a *safetensors.Info) bool) string {
			t.Helper()
			m := file.Metadata()
			maps.Copy(m, meta)
			var arrays []safetensors.Info
			from := map[string]string{}
			for _, a := range file.Infos() {
				was := a.Name
				if tensors == nil || tensors(&a) {
					arrays, from[a.Name] = append(arrays, a), was
				}
			}
			name := filepath.Join(dir, "bad")
			if err := safetensors.Save(name, m, arrays, func(a safetensors.Info) ([]byte, error) {
				return file.Read(from[a.Name])
			}); err != nil {
				t.Fatal(err)
			}
			return name
		}
		before := tr.values(t, x)
		for _, c := range []struct {
			meta    map[string]string
			tensors func(a *safetensors.Info) bool
			want    string
		}{
			{map[string]string{"optimizer": "SGD"}, nil,
				"the file is of the optimizer SGD, this is Adam; make it with NewSGD, or load only the model and begin with a new Adam"},
			{map[string]string{"optimizer": "Sad\x1b"}, nil, `the file is of the optimizer "Sad\x1b", which is none of package optim`},
			{map[string]string{"optimizer": ""}, nil, "the file names no optimizer"},
			{map[string]string{"param_groups": "{"}, nil, "its param_groups cannot be read"},
			{map[string]string{"param_groups": "[]"}, nil, "a different number of parameter groups: 0, this optimizer has 1"},
			{map[string]string{"param_groups": `[{"params": "x"}]`}, nil, "parameter group 0 cannot be read"},
			{map[string]string{"param_groups": `[{"params": [0], "lr": "x"}]`}, nil, "the options of parameter group 0 cannot be read"},
			{map[string]string{"param_groups": strings.Replace(groups, `"eps":`, `"eps":-`, 1)}, nil, "Invalid epsilon value"},
			{map[string]string{"param_groups": strings.Replace(groups, `"betas":[`, `"betas":[0.5,`, 1)}, nil, "give two numbers"},
			{map[string]string{"param_groups": `[{"params": [0]}]`}, nil, "group 0 has 1 parameters, here 3"},
			{nil, func(a *safetensors.Info) bool { return a.Name != "state.1.exp_avg" }, "state.1.exp_avg"},
			{nil, func(a *safetensors.Info) bool {
				if a.Name == "state.0.exp_avg" {
					a.Shape = []int{25}
				}
				return true
			}, "exp_avg of parameter 0 is of type float32 and shape [25], here it has shape [5 5]"},
			{nil, func(a *safetensors.Info) bool {
				a.Name = strings.Replace(a.Name, "state.2.exp_avg_sq", "state.3.exp_avg", 1)
				return true
			}, "state.2.exp_avg_sq"},
			{nil, func(a *safetensors.Info) bool {
				a.Name = strings.Replace(a.Name, "state.2.", "state.3.", 1)
				return true
			}, "unexpected state of parameters"},
			{map[string]string{"param_groups": strings.NewReplacer(`"betas":[0.8`, `"betas":[0.5`, `"eps":`, `"eps":-`).Replace(groups)}, nil,
				"Invalid epsilon value"}, // last, so that no other case sets the betas again
		} {
			if err := optim.LoadFile(x, tr.o, change(c.meta, c.tensors)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if err := optim.LoadFile(x, tr.o, filepath.Join(dir, "absent")); err == nil {
			t.Error("an absent file was loaded")
		}
		if err := optim.SaveFile(x, tr.o, filepath.Join(dir, "absent", "file")); err == nil {
			t.Error("a file was saved where there is no folder")
		}
		other := struct{ optim.Optimizer }{tr.o}
		for _, err := range []error{optim.SaveFile(x, other, good), optim.LoadFile(x, other, good)} {
			if err == nil || !strings.Contains(err.Error(), "not an optimizer of package optim") {
				t.Errorf("got %v", err)
			}
		}
		// The next step is the one that it would have been.
		twin := newTraining(t, x, "Adam")
		defer twin.close()
		for i := range 2 {
			twin.gradient(x, i)
			if err := twin.o.Step(x); err != nil {
				t.Fatal(err)
			}
		}
		if got := tr.values(t, x); !slices.Equal(got, before) {
			t.Errorf("got %v, want %v", got, before)
		}
		tr.gradient(x, 1)
		if err := tr.o.Step(x); err != nil {
			t.Fatal(err)
		}
		if got, want := tr.values(t, x), twin.values(t, x); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// An optimizer can be saved and loaded before its first step.
func TestFileBeforeSteps(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		name := filepath.Join(t.TempDir(), "optimizer")
		tr := newTraining(t, x, "Adam")
		defer tr.close()
		if err := optim.SaveFile(x, tr.o, name); err != nil {
			t.Fatal(err)
		}
		if err := optim.LoadFile(x, tr.o, name); err != nil {
			t.Fatal(err)
		}
		tr.gradient(x, 0)
		if err := tr.o.Step(x); err != nil {
			t.Fatal(err)
		}
	})
}
