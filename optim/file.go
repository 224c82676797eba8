package optim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
	"tenon.dev/safetensors"
)

// The metadata of an optimizer's file.
const (
	metaOptimizer = "optimizer"
	metaGroups    = "param_groups"
)

// savedGroup is what a file holds about a group besides its options, which are in the same JSON object.
type savedGroup struct {
	// Params are the numbers of the group's parameters, counted over all groups, and Names are their names.
	Params []int    `json:"params"`
	Names  []string `json:"names"`
}

// filed is an optimizer of this package.
type filed interface {
	save(x *tenon.Exec, name string) error
	stage(x *tenon.Exec, from *savedState) (*staged, error)
	fillRates(rates []float64) error
	rateFills(rates []float64) ([]*core.Tensor, []float64)
	groupTexts() ([]json.RawMessage, error)
	// kind returns the optimizer's name.
	kind() string
	// open returns the error of an operation on an optimizer that was closed, and openParams stops one if a parameter was.
	open(op string) error
	openParams(op string)
	// each calls f for the state of all parameters, with their numbers counted over all groups.
	each(x *tenon.Exec, f func(number int, what string, t *tenon.Tensor, v float64) error) error
}

// filedOf returns o as an optimizer of this package, or an error of operation op.
func filedOf(op string, o Optimizer) (filed, error) {
	if isNil(o) {
		return nil, missing(op)
	}
	s, ok := o.(filed)
	if !ok {
		return nil,
			core.Refusal(op, fault.Unsupported, "%T is not an optimizer of package optim; save and load what it remembers by its own "+
				"means", o)
	}
	if err := s.open(op); err != nil {
		return nil, err
	}
	if err := tenon.Try(func() { s.openParams(op) }); err != nil {
		return nil, err
	}
	return s, nil
}

// savedState is what a file holds of an optimizer.
type savedState struct {
	// kinds are the names of the optimizers that the file may be of; none if that is not known.
	kinds []string
	// groups are the options of the groups and a savedGroup each, in one JSON object.
	groups []json.RawMessage
	// arrays hold the parameters' state, by stateKey.
	arrays map[string]savedArray
}

type savedArray struct {
	dt    tenon.DType
	shape []int
	read  func() ([]byte, error)
}

// SaveFile writes the state and options of o to the named file in the safetensors format, so that training can resume: the tensors of
// PyTorch's state_dict as state.NUMBER.NAME, such as state.0.exp_avg, and in the metadata the optimizer's name and the param_groups as
// JSON. Parameters are not in the file; see nn.SaveFile. They must not be closed. SaveFile waits for the device. A file that already has
// that name is replaced only once the new one is complete.
func SaveFile(x *tenon.Exec, o Optimizer, name string) (err error) {
	defer origin.Located("SaveFile", &err)
	s, err := filedOf("SaveFile", o)
	if err != nil {
		return err
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

// LoadFile restores the state and options of o from a file that SaveFile wrote. The optimizer must be of the same kind, and its groups
// must have the same numbers of parameters with the same shapes; if anything does not fit, nothing is changed.
func LoadFile(x *tenon.Exec, o Optimizer, name string) (err error) {
	defer origin.Located("LoadFile", &err)
	s, err := filedOf("LoadFile", o)
	if err != nil {
		return err
	}
	f, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	if err := tenon.Try(func() {
		kind := f.Metadata()[metaOptimizer]
		if kind == "" {
			failed = fmt.Errorf("the file names no optimizer; give one that SaveFile wrote")
			return
		}
		from := &savedState{kinds: []string{kind}, arrays: map[string]savedArray{}}
		if err := json.Unmarshal([]byte(f.Metadata()[metaGroups]), &from.groups); err != nil {
			failed = fmt.Errorf("its param_groups cannot be read: %w", err)
			return
		}
		if failed = keysOnce(f.Metadata()[metaGroups]); failed != nil {
			failed = fmt.Errorf("its param_groups cannot be read: %w", failed)
			return
		}
		for _, a := range f.Infos() {
			from.arrays[a.Name] = savedArray{a.DType, a.Shape, func() ([]byte, error) { return f.Read(a.Name) }}
		}
		failed = load(x, s, from)
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot load %s", name)
	}
	return nil
}

func (o *optimizer[O]) save(x *tenon.Exec, name string) error {
	groups, err := o.groupTexts()
	if err != nil {
		return err
	}
	text, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	var arrays []safetensors.Info
	data := map[string]func() ([]byte, error){}
	err = o.each(x, func(number int, what string, t *tenon.Tensor, v float64) error {
		a := safetensors.Info{Name: stateKey(number, what), DType: tenon.Float64}
		data[a.Name] = func() ([]byte, error) { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)), nil }
		if t != nil {
			a.DType, a.Shape = t.DType(), t.Shape()
			data[a.Name] = func() ([]byte, error) { return x.Bytes(t) }
		}
		arrays = append(arrays, a)
		return nil
	})
	if err != nil {
		return err
	}
	return safetensors.Save(name, map[string]string{metaOptimizer: o.name, metaGroups: string(text)}, arrays,
		func(a safetensors.Info) ([]byte, error) { return data[a.Name]() })
}

// groupTexts returns, for each group, its options and its parameters' numbers and names as a JSON object.
func (o *optimizer[O]) groupTexts() (groups []json.RawMessage, err error) {
	number := 0
	for _, g := range o.groups {
		saved := savedGroup{Names: g.names}
		for range g.params {
			saved.Params = append(saved.Params, number)
			number++
		}
		text, err := json.Marshal(g.opt)
		if err != nil {
			return nil, fmt.Errorf("the options of a group: %w; a number that is not finite cannot be saved", err)
		}
		more, err := json.Marshal(saved)
		if err != nil {
			return nil, err
		}
		groups = append(groups, json.RawMessage(string(text[:len(text)-1])+","+string(more[1:])))
	}
	return groups, nil
}

// each calls f for the state tensors of every parameter that was stepped, and for the numbers in its row.
func (o *optimizer[O]) each(x *tenon.Exec, f func(number int, what string, t *tenon.Tensor, v float64) error) error {
	first := 0
	for _, g := range o.groups {
		plan := o.plan(&g.opt)
		var rows []float64
		if g.rows != nil {
			var err error
			if rows, err = tenon.Read[float64](x, g.rows); err != nil {
				return err
			}
		}
		for i, state := range g.states {
			if state == nil {
				continue
			}
			for j, t := range state {
				if err := f(first+i, plan.slots[j].name, t, 0); err != nil {
					return err
				}
			}
			for j, what := range plan.counts {
				if err := f(first+i, what, nil, rows[i*core.StepRow+j]); err != nil {
					return err
				}
			}
		}
		first += len(g.params)
	}
	return nil
}

func stateKey(number int, what string) string { return fmt.Sprintf("state.%d.%s", number, what) }

// staged is a state that was read for an optimizer but is not yet in use.
type staged struct {
	// rates are the learning rates of the groups.
	rates []float64
	// swap exchanges this state with the one in use; used says that this one is in use.
	swap func()
	used bool
	// close frees the state that is not in use.
	close func()
}

// use puts the state in use or takes it out again.
func (s *staged) use(on bool) {
	if s.used != on {
		s.swap()
		s.used = on
	}
}

// load puts a state that was read into o.
func load(x *tenon.Exec, o filed, from *savedState) error {
	s, err := o.stage(x, from)
	if err != nil {
		return err
	}
	defer s.close()
	if err := core.Force((*core.Exec)(x)); err != nil {
		return err
	}
	if err := o.fillRates(s.rates); err != nil {
		return err
	}
	s.use(true)
	return nil
}

// stage reads a state without changing anything.
func (o *optimizer[O]) stage(x *tenon.Exec, from *savedState) (s *staged, err error) {
	if len(from.kinds) > 0 && !slices.Contains(from.kinds, o.name) {
		return nil, wrongKind(from.kinds, o.name)
	}
	if len(from.groups) != len(o.groups) {
		return nil, fmt.Errorf("loaded state dict has a different number of parameter groups: %d, this optimizer has %d",
			len(from.groups), len(o.groups))
	}
	var fresh []*group[O]
	out := &staged{
		swap: func() {
			for i, g := range o.groups {
				*g, *fresh[i] = *fresh[i], *g
			}
		},
		close: func() {
			for _, g := range fresh {
				g.close()
			}
		},
	}
	defer func() {
		if s == nil {
			out.close()
		}
	}()
	seen := map[int]bool{}
	for i, g := range o.groups {
		var saved savedGroup
		n := &group[O]{opt: g.opt, names: g.names, params: g.params, lr: g.lr, captured: slices.Clone(g.captured),
			states: make([][]*tenon.Tensor, len(g.params))}
		fresh = append(fresh, n)
		if err := o.loadOptions(i, from.groups[i], &n.opt, &saved); err != nil {
			return nil, err
		}
		for _, n := range saved.Params {
			if seen[n] {
				return nil, fmt.Errorf("parameter %d is in the parameter groups twice; each parameter has a number of its own", n)
			}
			seen[n] = true
		}
		if err := o.loadGroup(x, from, n, saved.Params); err != nil {
			return nil, err
		}
		out.rates = append(out.rates, num(*o.lr(&n.opt)))
	}
	if len(from.arrays) > 0 {
		return nil, fmt.Errorf("unexpected state of parameters: %q", slices.Sorted(maps.Keys(from.arrays)))
	}
	return out, nil
}

// loadOptions reads the options of group i and its savedGroup.
func (o *optimizer[O]) loadOptions(i int, text json.RawMessage, opt *O, saved *savedGroup) error {
	if err := json.Unmarshal(text, saved); err != nil {
		return fmt.Errorf("parameter group %d cannot be read: %w", i, err)
	}
	numbers(opt) // copies the lists, which Unmarshal writes to
	if err := json.Unmarshal(text, opt); err != nil {
		return fmt.Errorf("the options of parameter group %d cannot be read: %w", i, err)
	}
	if bad := numbers(opt); bad != "" {
		return fmt.Errorf("the options of parameter group %d cannot be read: %s", i, bad)
	}
	if err := o.resolve(opt, o.refuse); err != nil {
		return err
	}
	if have := len(o.groups[i].params); len(saved.Params) != have {
		return fmt.Errorf("loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "+
			"group %d has %d parameters, here %d",
			i, len(saved.Params), have)
	}
	return nil
}

// loadGroup reads the state of a group's parameters, which have the given numbers in the file, and deletes from the savedState what it
// read.
func (o *optimizer[O]) loadGroup(x *tenon.Exec, from *savedState, g *group[O], numbers []int) error {
	plan := o.plan(&g.opt)
	rows := make([]float64, len(g.params)*core.StepRow)
	x = x.NoGrad()
	for i, p := range g.params {
		read := func(what string, shape []int) ([]byte, tenon.DType, error) {
			key := stateKey(numbers[i], what)
			a, ok := from.arrays[key]
			if !ok {
				return nil, 0, fmt.Errorf("parameter %s: %s is not there", g.names[i], key)
			}
			if !slices.Equal(a.shape, shape) || !a.dt.IsFloat() {
				return nil, 0, fmt.Errorf("%s of parameter %s is of type %v and shape %v, here it has shape %v", what, g.names[i],
					a.dt, a.shape, shape)
			}
			delete(from.arrays, key)
			b, err := a.read()
			return b, a.dt, err
		}
		if _, ok := from.arrays[stateKey(numbers[i], plan.counts[0])]; !ok { // it was never stepped
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
				to := x.EmptyLike(t)
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
	}
	x.Scope(func(x *tenon.Exec) { g.rows = own(tenon.From(x, rows, len(g.params), core.StepRow)) })
	return nil
}
