package optim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/safetensors"
)

// The metadata of an optimizer's file.
const (
	metaOptimizer = "optimizer"
	metaGroups    = "param_groups"
)

// savedGroup is what a file says of a group besides its options, which stand beside these in the same JSON object.
type savedGroup struct {
	// Params are the numbers of its parameters, counted over all groups, and Names what they were called.
	Params []int    `json:"params"`
	Names  []string `json:"names"`
}

// filed is an optimizer of this package.
type filed interface {
	save(x *tenon.Exec, name string) error
	load(x *tenon.Exec, f *safetensors.File) error
}

// SaveFile writes what o remembers, and its options, to the named file in the safetensors format, so that training can go on from there: the tensors of
// PyTorch's state_dict as state.NUMBER.NAME, such as state.0.exp_avg, and in the metadata the optimizer's name and the param_groups as JSON. Parameters are not
// in it, see nn.SaveFile. It waits for the device. An older file of that name stays as it was until the new one is complete.
func SaveFile(x *tenon.Exec, o Optimizer, name string) error {
	if isNil(o) {
		return missing("SaveFile")
	}
	s, ok := o.(filed)
	if !ok {
		return core.Refusal("SaveFile", fault.Unsupported, "%T is no optimizer of package optim; save what it remembers by its own means", o)
	}
	var failed error
	if err := tenon.Try(func() { failed = s.save(x, name) }); err != nil {
		failed = err
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot save %q", name)
	}
	return nil
}

// LoadFile gives o the state and the options of a file that SaveFile wrote. The optimizer must be of the same kind, with the same numbers of parameters in
// its groups, of the same shapes; if anything does not fit, nothing is changed.
func LoadFile(x *tenon.Exec, o Optimizer, name string) error {
	if isNil(o) {
		return missing("LoadFile")
	}
	s, ok := o.(filed)
	if !ok {
		return core.Refusal("LoadFile", fault.Unsupported, "%T is no optimizer of package optim; load what it remembers by its own means", o)
	}
	f, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	if err := tenon.Try(func() { failed = s.load(x, f) }); err != nil {
		failed = err
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot load %s", name)
	}
	return nil
}

func (o *optimizer[O]) save(x *tenon.Exec, name string) error {
	var groups []json.RawMessage
	var arrays []safetensors.Info
	data := map[string]func() ([]byte, error){}
	number := 0
	for _, g := range o.groups {
		saved := savedGroup{Names: g.names}
		plan := o.plan(&g.opt)
		rows, err := g.readRows(x)
		if err != nil {
			return err
		}
		for i := range g.params {
			saved.Params = append(saved.Params, number)
			add := func(what string, t tenon.DType, shape []int, read func() ([]byte, error)) {
				a := safetensors.Info{Name: stateKey(number, what), DType: t, Shape: shape}
				arrays, data[a.Name] = append(arrays, a), read
			}
			for j, t := range g.states[i] {
				add(plan.slots[j].name, t.DType(), t.Shape(), func() ([]byte, error) { return x.Bytes(t) })
			}
			if g.states[i] != nil {
				for j, what := range plan.counts {
					b := rows[(i*core.StepRow+j)*8:][:8]
					add(what, tenon.Float64, nil, func() ([]byte, error) { return b, nil })
				}
			}
			number++
		}
		text, err := json.Marshal(g.opt)
		if err != nil {
			return fmt.Errorf("the options of a group: %w; a number that is not finite cannot be saved", err)
		}
		more, err := json.Marshal(saved)
		if err != nil {
			return err
		}
		groups = append(groups, json.RawMessage(string(text[:len(text)-1])+","+string(more[1:])))
	}
	text, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	return safetensors.Save(name, map[string]string{metaOptimizer: o.name, metaGroups: string(text)}, arrays,
		func(a safetensors.Info) ([]byte, error) { return data[a.Name]() })
}

func stateKey(number int, what string) string { return fmt.Sprintf("state.%d.%s", number, what) }

// readRows copies the rows from the device; there are zeros before the first step.
func (g *group[O]) readRows(x *tenon.Exec) ([]byte, error) {
	if g.rows == nil {
		return make([]byte, len(g.params)*core.StepRow*8), nil
	}
	return x.Bytes(g.rows)
}

func (o *optimizer[O]) load(x *tenon.Exec, f *safetensors.File) (err error) {
	if kind := f.Metadata()[metaOptimizer]; kind != o.name {
		return fmt.Errorf("the file is of the optimizer %q, this is %s", kind, o.name)
	}
	var texts []json.RawMessage
	if err := json.Unmarshal([]byte(f.Metadata()[metaGroups]), &texts); err != nil {
		return fmt.Errorf("its param_groups cannot be read: %w", err)
	}
	if len(texts) != len(o.groups) {
		return fmt.Errorf("loaded state dict has a different number of parameter groups: %d, this optimizer has %d", len(texts), len(o.groups))
	}
	keys := map[string]bool{}
	for _, a := range f.Infos() {
		keys[a.Name] = true
	}
	var fresh []*group[O]
	defer func() {
		if err != nil {
			for _, g := range fresh {
				g.close()
			}
		}
	}()
	number := 0
	for i, g := range o.groups {
		var saved savedGroup
		n := &group[O]{opt: g.opt, names: g.names, params: g.params, lr: g.lr, states: make([][]*tenon.Tensor, len(g.params))}
		fresh = append(fresh, n)
		opt := &n.opt
		if err := json.Unmarshal(texts[i], &saved); err != nil {
			return fmt.Errorf("parameter group %d cannot be read: %w", i, err)
		}
		if err := json.Unmarshal(texts[i], opt); err != nil {
			return fmt.Errorf("the options of parameter group %d cannot be read: %w", i, err)
		}
		checked := *opt
		if err := o.resolve(&checked, o.refuse); err != nil {
			return err
		}
		if len(saved.Params) != len(g.params) {
			return fmt.Errorf("loaded state dict contains a parameter group that doesn't match the size of optimizer's group: group %d has %d parameters, here %d",
				i, len(saved.Params), len(g.params))
		}
		if err := o.loadGroup(x, f, n, &number, keys); err != nil {
			return err
		}
	}
	if len(keys) > 0 {
		return fmt.Errorf("unexpected state of parameters: %q", slices.Sorted(maps.Keys(keys)))
	}
	for i, g := range o.groups {
		g.close()
		*g = *fresh[i]
	}
	return nil
}

// loadGroup reads the state of a group's parameters, whose numbers go on from number, and takes what it read out of keys.
func (o *optimizer[O]) loadGroup(x *tenon.Exec, f *safetensors.File, g *group[O], number *int, keys map[string]bool) error {
	plan := o.plan(&g.opt)
	rows := make([]float64, len(g.params)*core.StepRow)
	x = x.NoGrad()
	for i, p := range g.params {
		read := func(what string, shape []int) ([]byte, tenon.DType, error) {
			a, err := f.Lookup(stateKey(*number, what))
			if err != nil {
				return nil, 0, fmt.Errorf("parameter %s: %w", g.names[i], err)
			}
			if !slices.Equal(a.Shape, shape) || !a.DType.IsFloat() {
				return nil, 0, fmt.Errorf("%s of parameter %s is of type %v and shape %v, here it has shape %v", what, g.names[i], a.DType, a.Shape, shape)
			}
			delete(keys, a.Name)
			b, err := f.Read(a.Name)
			return b, a.DType, err
		}
		if !keys[stateKey(*number, plan.counts[0])] { // it was never stepped
			*number++
			continue
		}
		t := p.Tensor()
		g.states[i] = make([]*tenon.Tensor, 0, len(plan.slots))
		for _, s := range plan.slots {
			b, dt, err := read(s.name, t.Shape())
			if err != nil {
				return err
			}
			x.Scope(func(x *tenon.Exec) {
				to := x.EmptyLike(t, tenon.LikeOpt{})
				x.CopyInto(to, x.FromBytes(b, dt, t.Shape()...))
				g.states[i] = append(g.states[i], own(to))
			})
		}
		for j, what := range plan.counts {
			b, dt, err := read(what, nil)
			if err != nil {
				return err
			}
			rows[i*core.StepRow+j] = dtype.Float64At(dt, b, 0)
		}
		*number++
	}
	x.Scope(func(x *tenon.Exec) { g.rows = own(tenon.From(x, rows, len(g.params), core.StepRow)) })
	return nil
}
