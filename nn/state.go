package nn

import (
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
}

// Load copies state, by the keys of StateDict, into the parameters and buffers of m, converted to their types; the tensors may be on any
// device. If a key is missing or unknown or a shape differs, it returns an error that names all such keys. If there is an error, m is
// unchanged.
func Load(x *tenon.Exec, m any, state map[string]*tenon.Tensor, opts ...LoadOpt) (err error) {
	defer origin.Located("Load", &err)
	opt, err := core.Only("Load", opts)
	if err != nil {
		return err
	}
	if e := tenon.Try(func() { err = load(x, m, state, opt) }); e != nil {
		return e
	}
	return err
}

func load(x *tenon.Exec, m any, state map[string]*tenon.Tensor, opt LoadOpt) error {
	own := maps.Collect(StateDict(m))
	var wrong []string
	list := func(what string, keys []string) {
		if len(keys) > 0 && !opt.Partial {
			wrong = append(wrong, what+` key(s) in state_dict: "`+strings.Join(keys, `", "`)+`"`)
		}
	}
	var missing, unexpected []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if state[name] == nil {
			missing = append(missing, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if own[name] == nil {
			unexpected = append(unexpected, name)
		}
	}
	list("Missing", missing)
	list("Unexpected", unexpected)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if from := state[name]; from != nil && !slices.Equal(from.Shape(), own[name].Shape()) {
			e := fault.New(fault.Invalid,
				"size mismatch for %s: copying a param with shape %v from checkpoint, the shape in current model is %v",
				name, from.Shape(), own[name].Shape())
			wrong = append(wrong, e.Msg)
		}
	}
	if len(wrong) > 0 {
		return fault.New(fault.Invalid, "Error(s) in loading state_dict: %s", strings.Join(wrong, "; "))
	}
	return tenon.Try(func() {
		x.NoGrad().Scope(func(x *tenon.Exec) {
			var to, from []*tenon.Tensor
			for _, name := range slices.Sorted(maps.Keys(own)) {
				if t := state[name]; t != nil {
					to, from = append(to, own[name]), append(from, moved(x, t))
				}
			}
			core.Together((*core.Exec)(x), "Load", func(cx *core.Exec) {
				for i, t := range to {
					(*tenon.Exec)(cx).CopyInto(t, from[i])
				}
			})
		})
	})
}

// To moves the parameters, their gradients and the buffers of m to x's device. Tensors that are already there stay as they are.
func To(x *tenon.Exec, m any) (err error) {
	defer origin.Located("To", &err)
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor { return moved(x, t) })
}

// ToDType converts the floating-point parameters, their gradients and the floating-point buffers of m, which must be on x's device, to type
// dt.
func ToDType(x *tenon.Exec, m any, dt tenon.DType) (err error) {
	defer origin.Located("ToDType", &err)
	if !dt.IsFloat() && !dt.IsComplex() {
		return fault.New(fault.Invalid, "a module can be converted to floating-point and complex types only, not to %v", dt)
	}
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
		if !t.DType().IsFloat() && !t.DType().IsComplex() {
			return t
		}
		return x.ToDType(t, dt)
	})
}

// ToChannelsLast gives the parameters and buffers of m that have four dimensions, and their gradients, the channels-last memory order, as
// [tenon.Exec.ChannelsLast] does for images; m must be on x's device. A convolution whose weight is in that order takes images in either
// order and returns them channels last.
func ToChannelsLast(x *tenon.Exec, m any) (err error) {
	defer origin.Located("ToChannelsLast", &err)
	return change(x, m, func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
		if t.Dim() != 4 {
			return t
		}
		return x.ChannelsLast(t)
	})
}

// change replaces every tensor t of m with f(t).
func change(x *tenon.Exec, m any, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) error {
	return tenon.Try(func() {
		x := x.NoGrad()
		made := func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
			t = f(x, t)
			core.Check("To", core.Force((*core.Exec)(x))) // before what it stands for goes
			return t
		}
		for _, p := range Params(m) {
			changeParam(x, p, made)
		}
		for _, b := range Buffers(m) {
			b.Set(made(x, b.t))
		}
	})
}

func changeParam(x *tenon.Exec, p *Param, f func(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor) {
	t := f(x, p.t)
	if t == p.t {
		return
	}
	if p.t.RequiresGrad() {
		t.SetRequiresGrad(true)
		if g := p.Grad(); g != nil {
			if to := f(x, g); to == g {
				t.SetGrad(x.Clone(g))
			} else {
				t.SetGrad(to)
			}
		}
	}
	p.Set(t)
}
