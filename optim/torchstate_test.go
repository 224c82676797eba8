package optim_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/recorded"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// A PyTorch checkpoint: Adam after one step over the parameters of a small network.
func TestTorchCheckpoint(t *testing.T) {
	f := checkpoint(t)
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var ps []*nn.Param
		for _, shape := range [][]int{{8, 4}, {8}, {8}, {8}, {2, 8}, {2}} {
			p := nn.NewParam(x.Zeros(shape, tenon.Float32))
			defer p.Close()
			ps = append(ps, p)
		}
		o, err := optim.NewAdam(list(ps...), optim.AdamOpt{LR: 5, Betas: []float64{.1, .2}, AMSGrad: true})
		ok(t, err)
		defer o.Close()
		ok(t, optim.LoadStateDict(x, o, f, "optimizer"))
		if o.LR(0) != 1e-3 {
			t.Errorf("the learning rate is %v", o.LR(0))
		}
		d, err := optim.StateDict(x, o)
		ok(t, err)
		// The state dict equals the one in the file.
		root, _ := f.Root().(*torchfile.Dict).Get("optimizer")
		was, _ := root.(*torchfile.Dict).Get("state")
		is, _ := d.Get("state")
		if len(is.(*torchfile.Dict).Keys) != 6 {
			t.Errorf("state of %v", is.(*torchfile.Dict).Keys)
		}
		for i, values := range was.(*torchfile.Dict).Values {
			for j, key := range values.(*torchfile.Dict).Keys {
				want, err := f.Bytes(values.(*torchfile.Dict).Values[j].(*torchfile.Tensor))
				ok(t, err)
				v, _ := is.(*torchfile.Dict).Values[i].(*torchfile.Dict).Get(key.(string))
				got, err := x.Bytes(v.(*tenon.Tensor))
				ok(t, err)
				if !bytes.Equal(got, want) {
					t.Errorf("%v of parameter %d differs", key, i)
				}
			}
		}
		for _, c := range []struct {
			o    optim.Optimizer
			path []string
			want string
		}{
			{o, nil, "no optimizer's state_dict with state and param_groups"},
			{o, []string{"absent"}, "the file has no absent"},
			{o, []string{"epoch", "x"}, "value epoch is not a dict"},
			{o, []string{"model"}, "no optimizer's state_dict"},
			{nil, nil, "the optimizer is nil"},
			{struct{ optim.Optimizer }{o}, nil, "not an optimizer of package optim"},
			{other(t, x, ps[:2]), []string{"optimizer"}, "group 0 has 6 parameters, here 2"},
		} {
			if err := optim.LoadStateDict(x, c.o, f, c.path...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if _, err := optim.StateDict(x, struct{ optim.Optimizer }{o}); err == nil {
			t.Error("the state of another kind of optimizer was given")
		}
	})
}

func other(t *testing.T, x *tenon.Exec, ps []*nn.Param) optim.Optimizer {
	o, err := optim.NewAdam(list(ps...))
	ok(t, err)
	return o
}

func checkpoint(t *testing.T) *torchfile.File {
	t.Helper()
	files, err := recorded.File("../torchfile/testdata/torch_files.tar.gz")
	ok(t, err)
	for r := tar.NewReader(bytes.NewReader(files)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatal("there is no checkpoint")
		}
		ok(t, err)
		if filepath.Base(h.Name) == "checkpoint.pt" {
			b, err := io.ReadAll(r)
			ok(t, err)
			f, err := torchfile.New(bytes.NewReader(b), int64(len(b)))
			ok(t, err)
			return f
		}
	}
}

// The state of one kind of optimizer is refused by the others, with both names, also if the file, like those of PyTorch, does not name it.
func TestStateOfAnotherKind(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		kindOf := func(maker string) string { return strings.Fields(maker)[0] }
		for maker := range makers {
			one := newTraining(t, x, maker)
			one.gradient(x, 0)
			ok(t, one.o.Step(x))
			d, err := optim.StateDict(x, one.o)
			ok(t, err)
			for _, named := range []bool{true, false} {
				if !named {
					d.Keys, d.Values = d.Keys[:2], d.Values[:2] // state and param_groups
				}
				name := filepath.Join(t.TempDir(), "optimizer.pt")
				ok(t, torchfile.Save(x, name, d))
				f, err := torchfile.Open(name)
				ok(t, err)
				for other := range makers {
					two := newTraining(t, x, other)
					err := optim.LoadStateDict(x, two.o, f)
					from, to := kindOf(maker), kindOf(other)
					adams := strings.HasPrefix(from, "Adam") && len(from) < 6 // without a name it may be either
					want, remedy := "the file is of the optimizer "+from+", this is "+to, "make it with New"+from
					if adams && !named {
						want, remedy = "the file is of the optimizer Adam or AdamW, this is "+to, "make it with NewAdam or NewAdamW"
					}
					if from == "Adamax" && !named { // other optimizers had no more options in earlier versions
						want, remedy = "state", ""
					}
					switch fits := from == to || adams && !named && (to == "Adam" || to == "AdamW"); {
					case fits && err != nil && maker == other:
						t.Errorf("%s, named %v: %v", maker, named, err)
					case !fits && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), remedy)):
						t.Errorf("%s into %s, named %v: %v, want %q", maker, other, named, err, want)
					}
					two.close()
				}
				ok(t, f.Close())
			}
			one.close()
		}
	})
}

// Every optimizer resumes from a state_dict in PyTorch's format as if it had not stopped, up to values that the format holds in float32.
func TestTorchResume(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for kind := range makers {
			name := filepath.Join(t.TempDir(), "checkpoint.pt")
			one, two := newTraining(t, x, kind), newTraining(t, x, kind)
			for i := range 5 {
				one.gradient(x, i)
				ok(t, one.o.Step(x))
			}
			one.o.SetLR(0, .03)
			d, err := optim.StateDict(x, one.o)
			ok(t, err)
			ok(t, torchfile.Save(x, name, map[string]any{"optimizer": d}))
			f, err := torchfile.Open(name)
			ok(t, err)
			for i := range one.ps {
				x.NoGrad().CopyInto(two.ps[i].Tensor(), one.ps[i].Tensor())
			}
			ok(t, optim.LoadStateDict(x, two.o, f, "optimizer"), f.Close())
			for i := 5; i < 8; i++ {
				for _, tr := range []*training{one, two} {
					tr.gradient(x, i)
					ok(t, tr.o.Step(x))
				}
			}
			near := func(a, b float32) bool { return math.Abs(float64(a-b)) <= 1e-6*max(1, math.Abs(float64(b))) }
			if got, want := two.values(t, x), one.values(t, x); !slices.EqualFunc(got, want, near) || two.o.LR(0) != .03 {
				t.Errorf("%s: got %v, want %v", kind, got, want)
			}
			one.close()
			two.close()
		}
	})
}
