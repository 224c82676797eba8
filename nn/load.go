package nn

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
)

// LoadOpt are the options of Load. The zero value is PyTorch's default.
type LoadOpt struct {
	// Partial loads the keys that both sides have and ignores the others.
	Partial bool
	// IgnoreUnexpected ignores the keys that m does not have. All of m's must be there.
	IgnoreUnexpected bool
}

// source is a tensor that a key of a state dict has.
type source struct {
	shape []int
	// read returns the tensor, which may be on any device.
	read func(host *tenon.Exec) (*tenon.Tensor, error)
}

// Load copies state, by the keys of StateDict, into the parameters and buffers of m, converted to their types; the tensors may be on any
// device. Those of other devices are converted by the processor, so that m's device needs no memory for them. Of the names of a shared
// tensor one is enough. If a key is missing or unknown or a shape differs, Load returns an error that names all such keys. If there is an
// error, m is unchanged.
func Load(x *tenon.Exec, m any, state map[string]*tenon.Tensor, opts ...LoadOpt) (err error) {
	defer origin.Located("Load", &err)
	opt, err := core.Only("Load", opts)
	if err != nil {
		return err
	}
	if e := tenon.Try(func() {
		given := map[string]source{}
		for key, t := range state { //tenon:unordered it fills a map
			if t != nil {
				given[key] = source{t.Shape(), func(*tenon.Exec) (*tenon.Tensor, error) { return t, nil }}
			}
		}
		err = load(x, m, given, opt)
	}); e != nil {
		return e
	}
	return err
}

// load copies the tensors of given to m's. All of them are read before the first is copied.
func load(x *tenon.Exec, m any, given map[string]source, opt LoadOpt) error {
	own := maps.Collect(StateDict(m))
	if err := mismatch(own, given, opt); err != nil {
		return err
	}
	var failed error
	doing := "" // the key under way
	err := tenon.Try(func() {
		x := x.NoGrad()
		x.Host().Scope(func(host *tenon.Exec) {
			var keys []string
			var from []*tenon.Tensor
			for _, doing = range slices.Sorted(maps.Keys(own)) {
				s, has := given[doing]
				if !has {
					continue
				}
				t := host.Within(func(host *tenon.Exec) (t *tenon.Tensor) {
					if t, failed = s.read(host); failed == nil {
						t = fitted(x, host, own[doing], t)
					}
					return t
				})
				if failed != nil {
					return
				}
				keys, from = append(keys, doing), append(from, t)
			}
			core.Together((*core.Exec)(x), "Load", func(cx *core.Exec) {
				for i, t := range from {
					doing = keys[i]
					(*tenon.Exec)(cx).CopyInto(own[doing], t)
				}
				doing = "" // an error of the driver's is about all of them
			})
		})
	})
	if err != nil {
		failed = err
	}
	if failed == nil || doing == "" {
		return failed
	}
	var e *fault.Error
	if !errors.As(failed, &e) {
		return fault.Wrap(fault.System, failed, "%s", doing)
	}
	e = fault.At(e, e.File, e.Line)
	e.Op, e.Msg = "", doing+": "+e.Msg // the caller's name replaces that of a part of it
	return e
}

// mismatch returns an error that names the keys that only one side has, unless opt allows them, and those whose shapes differ.
func mismatch(own map[string]*tenon.Tensor, given map[string]source, opt LoadOpt) error {
	shared := map[*tenon.Tensor]bool{} // what is given, under any name
	for key, t := range own {          //tenon:unordered it fills a set
		if _, has := given[key]; has {
			shared[t] = true
		}
	}
	var missing, unexpected, wrong []string
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if !shared[own[key]] {
			missing = append(missing, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if own[key] == nil {
			unexpected = append(unexpected, key)
		}
	}
	list := func(what string, keys []string, ignored bool) {
		if len(keys) > 0 && !ignored {
			wrong = append(wrong, what+` key(s) in state_dict: "`+strings.Join(keys, `", "`)+`"`)
		}
	}
	list("Missing", missing, opt.Partial)
	list("Unexpected", unexpected, opt.Partial || opt.IgnoreUnexpected)
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if from, has := given[key]; has && !slices.Equal(from.shape, own[key].Shape()) {
			e := fault.New(fault.Invalid,
				"size mismatch for %s: copying a param with shape %v from checkpoint, the shape in current model is %v",
				key, from.shape, own[key].Shape())
			wrong = append(wrong, e.Msg)
		}
	}
	if len(wrong) > 0 {
		return fault.New(fault.Invalid, "Error(s) in loading state_dict: %s", strings.Join(wrong, "; "))
	}
	return nil
}

// fitted returns t, or a tensor of the processor whose bytes can be copied to to.
func fitted(x, host *tenon.Exec, to, t *tenon.Tensor) *tenon.Tensor {
	if t.Device() == x.Device() {
		return t
	}
	t = host.ToDType(host.To(t), to.DType())
	if to.Dim() == 4 && !to.IsContiguous() {
		t = host.ChannelsLast(t)
	} else {
		t = host.Contiguous(t)
	}
	if t.IsPinned() { // such copies do not wait for others, which Load's do
		t = host.Clone(t)
	}
	return t
}
