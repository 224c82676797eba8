package optim

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/torchfile"
)

// StateDict returns the state and options of o as PyTorch's state_dict has them, for torchfile.Save, alone or beside a model's parameters,
// and the optimizer's name. The tensors are the optimizer's own. The step counts are tensors on the processor in x's scope, float32 or,
// where that would round, float64. It waits for the device.
func StateDict(x *tenon.Exec, o Optimizer) (*torchfile.Dict, error) {
	s, err := filedOf("StateDict", o)
	if err != nil {
		return nil, err
	}
	state, groups := &torchfile.Dict{}, []any{}
	var failed error
	if err := tenon.Try(func() {
		core.Made((*core.Exec)(x), "StateDict")
		groups, failed = fill(x, s, state)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, core.Refusal("StateDict", fault.Invalid, "%v", failed)
	}
	d := &torchfile.Dict{}
	d.Set("state", state)
	d.Set("param_groups", groups)
	d.Set(metaOptimizer, s.kind()) // PyTorch passes over it
	return d, nil
}

// fill adds a dict for each parameter to state, and returns one for each group.
func fill(x *tenon.Exec, s filed, state *torchfile.Dict) (groups []any, err error) {
	var last *torchfile.Dict
	number := -1
	if err := s.each(x, func(n int, what string, t *tenon.Tensor, v float64) error {
		if n != number {
			last, number = &torchfile.Dict{}, n
			state.Keys, state.Values = append(state.Keys, int64(n)), append(state.Values, last)
		}
		if t == nil {
			dt := tenon.Float32 // PyTorch's type, unless it would round
			if float64(float32(v)) != v {
				dt = tenon.Float64
			}
			t = x.Host().NoGrad().Full(nil, v, dt)
		}
		last.Set(what, t)
		return nil
	}); err != nil {
		return nil, err
	}
	texts, err := s.groupTexts()
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		var saved savedGroup
		var opt map[string]any
		if err := json.Unmarshal(text, &saved); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &opt); err != nil {
			return nil, err
		}
		delete(opt, "params")
		delete(opt, "names")
		g := &torchfile.Dict{}
		for _, key := range slices.Sorted(maps.Keys(opt)) {
			v := opt[key]
			if l, ok := v.([]any); ok { // betas and similar options
				v = torchfile.Tuple(l)
			}
			g.Set(key, v)
		}
		var params []any
		for _, n := range saved.Params {
			params = append(params, int64(n))
		}
		g.Set("params", params)
		groups = append(groups, g)
	}
	return groups, nil
}

// LoadStateDict restores the state and options of o from an optimizer's state_dict in a file, from PyTorch or StateDict. path leads to it
// through nested dicts, such as "optimizer" in a checkpoint with that key. The optimizer must be of the same kind; a file that does not
// name it, like those of PyTorch, is of the kind that has its options. The numbers of groups and parameters and their shapes must be the
// same; if anything does not fit, nothing is changed. Options that Tenon has no use for, such as fused, are ignored.
func LoadStateDict(x *tenon.Exec, o Optimizer, f *torchfile.File, path ...string) error {
	s, err := filedOf("LoadStateDict", o)
	if err != nil {
		return err
	}
	var failed error
	if err := tenon.Try(func() {
		var from *savedState
		if from, failed = torchState(f, path); failed == nil {
			failed = load(x, s, from)
		}
	}); err != nil {
		return err
	}
	if failed != nil {
		return core.Refusal("LoadStateDict", fault.Invalid, "%v", failed)
	}
	return nil
}

// torchState finds a state_dict in a file.
func torchState(f *torchfile.File, path []string) (*savedState, error) {
	at := f.Root()
	for i, key := range append(slices.Clone(path), "") {
		d, ok := at.(*torchfile.Dict)
		if !ok {
			return nil, fmt.Errorf("the file's value %s is not a dict", strings.Join(path[:i], "."))
		}
		if i == len(path) {
			break
		}
		var err error
		if at, ok, err = only(d, key); err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("the file has no %s", strings.Join(path[:i+1], "."))
		}
	}
	root := at.(*torchfile.Dict)
	state, _, err1 := only(root, "state")
	groups, _, err2 := only(root, "param_groups")
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	states, ok1 := state.(*torchfile.Dict)
	list, ok2 := groups.([]any)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("there is no optimizer's state_dict with state and param_groups; name the key of the dict that has them")
	}
	from := &savedState{arrays: map[string]savedArray{}}
	if kind, ok, err := only(root, metaOptimizer); err != nil {
		return nil, err
	} else if name, is := kind.(string); ok && is {
		from.kinds = []string{name}
	} else if len(list) > 0 {
		from.kinds = kindsOf(list[0])
	}
	for i, g := range list {
		text, err := groupText(f, g)
		if err != nil {
			return nil, fmt.Errorf("parameter group %d: %w", i, err)
		}
		from.groups = append(from.groups, text)
	}
	seen := map[int64]bool{}
	for i, k := range states.Keys {
		number, ok1 := k.(int64)
		values, ok2 := states.Values[i].(*torchfile.Dict)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("the state of parameter %v cannot be read", k)
		}
		if seen[number] {
			return nil, fmt.Errorf("the state of parameter %d is there twice; a state dict has each key once", number)
		}
		seen[number] = true
		if err := from.add(f, int(number), values); err != nil {
			return nil, err
		}
	}
	return from, nil
}

// add records the state of a parameter.
func (s *savedState) add(f *torchfile.File, number int, values *torchfile.Dict) error {
	seen := map[string]bool{}
	for i, k := range values.Keys {
		what, ok := k.(string)
		if !ok {
			return fmt.Errorf("the state of parameter %d has the key %v", number, k)
		}
		if seen[what] {
			return fmt.Errorf("%q of parameter %d is there twice; a state dict has each key once", what, number)
		}
		seen[what] = true
		switch v := values.Values[i].(type) {
		case nil: // such as a buffer that does not exist yet
		case *torchfile.Tensor:
			s.arrays[stateKey(number, what)] = savedArray{v.DType, v.Shape, func() ([]byte, error) { return f.Bytes(v) }}
		case int64:
			s.number(number, what, float64(v))
		case float64:
			s.number(number, what, v)
		default:
			return fmt.Errorf("%s of parameter %d is a %T", what, number, v)
		}
	}
	// PyTorch's SGD does not count steps; a buffer shows that the parameter was stepped.
	if _, ok := s.arrays[stateKey(number, "momentum_buffer")]; ok {
		if _, ok := s.arrays[stateKey(number, "step")]; !ok {
			s.number(number, "step", 1)
		}
	}
	return nil
}

func (s *savedState) number(number int, what string, v float64) {
	s.arrays[stateKey(number, what)] = savedArray{tenon.Float64, nil, func() ([]byte, error) {
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), nil
	}}
}

// groupText writes a group's options as JSON: numbers, booleans, tuples of numbers, and tensors of one number.
func groupText(f *torchfile.File, group any) (json.RawMessage, error) {
	g, ok := group.(*torchfile.Dict)
	if !ok {
		return nil, fmt.Errorf("it is not a dict")
	}
	out, seen := map[string]any{}, map[string]bool{}
	for i, k := range g.Keys {
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("it has the key %v", k)
		}
		if seen[key] {
			return nil, twice(key)
		}
		seen[key] = true
		switch v := g.Values[i].(type) {
		case bool, int64, float64, string, []any:
			out[key] = v
		case torchfile.Tuple:
			out[key] = []any(v)
		case *torchfile.Tensor: // a learning rate
			b, err := f.Bytes(v)
			if err != nil {
				return nil, err
			}
			if v.DType.IsFloat() && len(b) == v.DType.Size() {
				out[key] = dtype.Float64At(v.DType, b, 0)
			}
		}
	}
	return json.Marshal(out)
}
