package optim

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
	"tenon.dev/torchfile"
)

// Checkpoint names what a training needs to go on where it stopped. Save writes all of it to one file and Load reads it back, into a
// Checkpoint that names the same things. What is left out is not saved. A training that goes on from a file computes the bits of one that
// never stopped.
//
// Gradients are not in the file: save between a step and the next backward pass, such as at the end of the loop's body. Nor are modes
// ([nn.Eval]) and graphs; capture after Load, which gives the optimizer's state other memory.
type Checkpoint struct {
	// Model is any module, as nn.StateDict takes it.
	Model any
	// Optimizer is one of this package.
	Optimizer Optimizer
	// Schedule is one of Optimizer's learning rates.
	Schedule Scheduler
	// Scaler is that of the losses.
	Scaler *GradScaler
	// Loader is saved as the number of its epoch and batch.
	Loader *data.Loader
	// Generators are those from which the training draws; nil is the one of the Exec that saves and loads.
	Generators []*cuda.Generator
	// Extra points to what else is to be saved, such as a struct with counts and losses: numbers, strings, and slices, maps with string
	// keys and structs of them. Load replaces it as torchfile.Decode does.
	Extra any
}

// Scheduler is a schedule of learning rates: a [*Schedule] or a [*ReduceLROnPlateau].
type Scheduler interface {
	// optimizer is whose rates it sets.
	optimizer() Optimizer
	// saved is its state as a file has it, and stage reads one: what it returns makes the schedule have it, as a part of a Together, after
	// the optimizer was given its own.
	saved() (any, error)
	stage(from any) (func(x *tenon.Exec), error)
}

const checkpointName = "Checkpoint"

// The keys of a checkpoint's file.
const (
	keyModel      = "model"
	keyOptimizer  = "optimizer"
	keySchedule   = "schedule"
	keyScaler     = "scaler"
	keyLoader     = "loader"
	keyGenerators = "generators"
	keyExtra      = "extra"
)

// Save writes the checkpoint to the named file: a dict with the keys model and optimizer (state dicts as PyTorch has them), schedule,
// scaler, loader, generators and extra, made only of what torch.load admits with weights_only. It waits for the device, and is an error
// in a capture. An older file of that name stays as it was until the new one is complete.
func (c *Checkpoint) Save(x *tenon.Exec, name string) error {
	var failed error
	if err := tenon.Try(func() {
		core.Made((*core.Exec)(x), checkpointName)
		if failed = c.check(x); failed != nil {
			return
		}
		x.Scope(func(x *tenon.Exec) {
			var d *torchfile.Dict
			if d, failed = c.dict(x); failed == nil {
				failed = torchfile.Save(x, name, d)
			}
		})
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot save %q", name)
	}
	return nil
}

// dict is what the file has.
func (c *Checkpoint) dict(x *tenon.Exec) (*torchfile.Dict, error) {
	d := &torchfile.Dict{}
	if c.Model != nil {
		d.Set(keyModel, torchfile.Tensors(nn.StateDict(c.Model)))
	}
	if c.Optimizer != nil {
		state, err := StateDict(x, c.Optimizer)
		if err != nil {
			return nil, err
		}
		d.Set(keyOptimizer, state)
	}
	if c.Schedule != nil {
		state, err := c.Schedule.saved()
		if err != nil {
			return nil, err
		}
		d.Set(keySchedule, state)
	}
	if c.Scaler != nil {
		state, err := c.Scaler.State(x)
		if err != nil {
			return nil, err
		}
		d.Set(keyScaler, state)
	}
	if c.Loader != nil {
		d.Set(keyLoader, c.Loader.State())
	}
	var states []*tenon.Tensor // as PyTorch has them
	for _, g := range c.generators(x) {
		states = append(states, tenon.From(x.Host(), g.State()))
	}
	d.Set(keyGenerators, states)
	if c.Extra != nil {
		d.Set(keyExtra, c.Extra)
	}
	return d, nil
}

// check refuses a checkpoint that could not be loaded.
func (c *Checkpoint) check(x *tenon.Exec) error {
	refuse := func(format string, args ...any) error {
		return core.Refusal(checkpointName, fault.Invalid, format, args...)
	}
	switch {
	case c == nil:
		return refuse("the checkpoint is nil; name what is to be saved in a Checkpoint")
	case core.Capturing((*core.Exec)(x)):
		return core.Refusal(checkpointName, fault.Capture,
			"a capture is under way, whose work has not run; save and load before or after it")
	}
	if c.Optimizer != nil {
		if _, err := filedOf(checkpointName, c.Optimizer); err != nil {
			return err
		}
	}
	if c.Schedule != nil {
		if v := reflect.ValueOf(c.Schedule); v.IsNil() {
			return refuse("the schedule is nil; look at the error of the function that was to make it")
		}
		if c.Optimizer == nil || c.Schedule.optimizer() != c.Optimizer {
			return refuse("the schedule is not of the checkpoint's Optimizer; give that one, whose rates it sets")
		}
	}
	for i, g := range c.Generators {
		if g == nil {
			return refuse("generator %d is nil; give one, or no list for the Exec's own", i)
		}
	}
	if v := reflect.ValueOf(c.Extra); c.Extra != nil && (v.Kind() != reflect.Pointer || v.IsNil()) {
		return refuse("Extra is a %T; give a pointer to what Load is to replace", c.Extra)
	}
	return nil
}

func (c *Checkpoint) generators(x *tenon.Exec) []*cuda.Generator {
	if c.Generators != nil {
		return c.Generators
	}
	return []*cuda.Generator{x.Generator()}
}

// Load gives all that the checkpoint names the state of a file that Save wrote. It must name what the file has, no more and no less; to
// take a part of a file, such as the model, open it with package torchfile. Nothing is changed unless all of it is: the error names the
// file and the key, shape or option that does not fit. The optimizer's learning rate tensors are filled. It waits for nothing but the
// region of package compile that it may be called in, and is an error in a capture and in the loop over the loader's epoch.
func (c *Checkpoint) Load(x *tenon.Exec, name string) error {
	f, err := torchfile.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	if err := tenon.Try(func() {
		core.Made((*core.Exec)(x), checkpointName)
		failed = c.load(x.NoGrad(), f)
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot load %q", name)
	}
	return nil
}

func (c *Checkpoint) load(x *tenon.Exec, f *torchfile.File) error {
	if err := c.check(x); err != nil {
		return err
	}
	l := &loading{f: f}
	defer l.close()
	for _, stage := range []func(x *tenon.Exec, c *Checkpoint) error{l.keys, l.model, l.optimizer, l.scaler, l.loader, l.generators,
		l.extra} {
		if err := stage(x, c); err != nil {
			return err
		}
	}
	core.Together((*core.Exec)(x), checkpointName, func(cx *core.Exec) {
		for _, change := range l.changes {
			change((*tenon.Exec)(cx))
		}
	})
	if err := core.Force((*core.Exec)(x)); err != nil { // what a region put off
		return err
	}
	if l.last != nil {
		l.last()
	}
	return nil
}

// loading is a Load under way. What may fail for any other reason than the device's comes first, and changes nothing.
type loading struct {
	f    *torchfile.File
	root *torchfile.Dict
	// changes are parts of one Together: should one fail, all are undone.
	changes []func(x *tenon.Exec)
	// last cannot fail.
	last   func()
	staged *staged
	// made are the tensors that were read. (They are in no scope, so that no error is the scope's.)
	made []*tenon.Tensor
}

// close frees what was read, or what it stands for now.
func (l *loading) close() {
	if l.staged != nil {
		l.staged.close()
	}
	for _, t := range l.made {
		t.Close()
	}
}

func (l *loading) change(f func(x *tenon.Exec)) { l.changes = append(l.changes, f) }

// keys compares what the file has with what the checkpoint names.
func (l *loading) keys(_ *tenon.Exec, c *Checkpoint) error {
	root, ok := l.f.Root().(*torchfile.Dict)
	if !ok {
		return fmt.Errorf("the file is no checkpoint; its value is no dict")
	}
	l.root = root
	want := map[string]bool{keyModel: c.Model != nil, keyOptimizer: c.Optimizer != nil, keySchedule: c.Schedule != nil,
		keyScaler: c.Scaler != nil, keyLoader: c.Loader != nil, keyGenerators: true, keyExtra: c.Extra != nil}
	var missing, unexpected []string
	for _, key := range []string{keyModel, keyOptimizer, keySchedule, keyScaler, keyLoader, keyGenerators, keyExtra} {
		if _, found, err := only(root, key); err != nil {
			return err
		} else if want[key] && !found {
			missing = append(missing, key)
		}
	}
	for _, k := range root.Keys {
		if key, ok := k.(string); !ok || !want[key] {
			unexpected = append(unexpected, fmt.Sprint(k))
		}
	}
	if missing == nil && unexpected == nil {
		return nil
	}
	var wrong []string
	if missing != nil {
		wrong = append(wrong, fmt.Sprintf("missing keys: %q", missing))
	}
	if unexpected != nil {
		wrong = append(wrong, fmt.Sprintf("unexpected keys: %q", unexpected))
	}
	return fmt.Errorf("the checkpoint names other things than the file has: %s", strings.Join(wrong, "; "))
}

func (l *loading) model(x *tenon.Exec, c *Checkpoint) error {
	if c.Model == nil {
		return nil
	}
	state, err := l.f.StateDict(x, keyModel)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(state)) {
		l.made = append(l.made, state[key])
	}
	l.change(func(x *tenon.Exec) { core.Check(checkpointName, nn.Load(x, c.Model, state)) })
	return nil
}

// optimizer reads the state of the optimizer and of its schedule, which have the same rates.
func (l *loading) optimizer(x *tenon.Exec, c *Checkpoint) error {
	if c.Optimizer == nil {
		return nil
	}
	o := c.Optimizer.(filed)
	from, err := torchState(l.f, []string{keyOptimizer})
	if err != nil {
		return err
	}
	if l.staged, err = o.stage(x, from); err != nil {
		return fmt.Errorf("the optimizer: %w", err)
	}
	l.change(func(x *tenon.Exec) {
		core.Undo((*core.Exec)(x), func() { l.staged.use(false) })
		l.staged.use(true)
		for i, t := range o.lrTensors() {
			if t != nil {
				x.On(t.Device().DefaultStream()).FillInto(t, l.staged.rates[i])
			}
		}
	})
	if c.Schedule == nil {
		return nil
	}
	state, _ := l.root.Get(keySchedule)
	change, err := c.Schedule.stage(state)
	if err != nil {
		return fmt.Errorf("the schedule: %w", err)
	}
	l.change(change)
	return nil
}

func (l *loading) scaler(x *tenon.Exec, c *Checkpoint) error {
	if c.Scaler == nil {
		return nil
	}
	var st GradScalerState
	if err := l.decode(keyScaler, &st); err != nil {
		return err
	}
	if c.Scaler.Enabled() {
		row, scale, change := c.Scaler.stage(x, st)
		l.made = append(l.made, row, scale)
		l.change(change)
	}
	return nil
}

func (l *loading) loader(_ *tenon.Exec, c *Checkpoint) error {
	if c.Loader == nil {
		return nil
	}
	var st data.LoaderState
	if err := l.decode(keyLoader, &st); err != nil {
		return err
	}
	l.change(func(x *tenon.Exec) {
		former := c.Loader.State()
		core.Check(checkpointName, c.Loader.SetState(st))
		core.Undo((*core.Exec)(x), func() { _ = c.Loader.SetState(former) }) // it was set to that
	})
	return nil
}

func (l *loading) generators(x *tenon.Exec, c *Checkpoint) error {
	var states []*torchfile.Tensor
	if err := l.decode(keyGenerators, &states); err != nil {
		return err
	}
	gs := c.generators(x)
	if len(states) != len(gs) {
		return fmt.Errorf("the file has the states of %d generators, and the checkpoint names %d; name as many", len(states), len(gs))
	}
	for i, g := range gs {
		state, err := l.f.Bytes(states[i])
		if err != nil {
			return fmt.Errorf("generator %d: %w", i, err)
		}
		l.change(func(x *tenon.Exec) {
			former := g.State()
			core.Check(checkpointName, g.SetState(state))
			core.Undo((*core.Exec)(x), func() { _ = g.SetState(former) }) // it had that
		})
	}
	return nil
}

func (l *loading) extra(_ *tenon.Exec, c *Checkpoint) error {
	if c.Extra == nil {
		return nil
	}
	to := reflect.ValueOf(c.Extra).Elem()
	fresh := reflect.New(to.Type())
	l.last = func() { to.Set(fresh.Elem()) }
	return l.decode(keyExtra, fresh.Interface())
}

// decode reads the value of one of the file's keys.
func (l *loading) decode(key string, to any) error {
	v, _ := l.root.Get(key)
	if err := torchfile.Decode(v, to); err != nil {
		return fmt.Errorf("the value of %q: %w", key, err)
	}
	return nil
}

func (s *Schedule) optimizer() Optimizer { return s.o }

func (s *Schedule) saved() (any, error) { return s.State() }

func (s *Schedule) stage(from any) (func(x *tenon.Exec), error) {
	var st ScheduleState
	if err := cmp.Or(s.usable(), torchfile.Decode(from, &st)); err != nil {
		return nil, err
	}
	if err := s.fits(st); err != nil {
		return nil, err
	}
	return func(x *tenon.Exec) {
		var is ScheduleState
		for _, n := range s.nodes {
			is.Steps, is.Initial = append(is.Steps, n.step), append(is.Initial, n.initial)
		}
		core.Undo((*core.Exec)(x), func() { s.adopt(is) })
		s.adopt(st)
		sameRates(s.o, st.Rates)
		for g, m := range st.Momenta {
			if is := s.momentum.Momentum(g); is != m {
				core.Fail(checkpointName, fault.Invalid,
					"the schedule has the momentum %v for group %d and its optimizer %v; a file that was saved has the same", m, g, is)
			}
		}
	}, nil
}

func (s *ReduceLROnPlateau) optimizer() Optimizer { return s.o }

func (s *ReduceLROnPlateau) saved() (any, error) { return s.State() }

func (s *ReduceLROnPlateau) stage(from any) (func(x *tenon.Exec), error) {
	var st PlateauState
	if err := cmp.Or(s.usable(), torchfile.Decode(from, &st)); err != nil {
		return nil, err
	}
	best, err := s.fits(st)
	if err != nil {
		return nil, err
	}
	return func(x *tenon.Exec) {
		former := *s
		core.Undo((*core.Exec)(x), func() { *s = former })
		s.best, s.bad, s.cooldown = best, st.Bad, st.Cooldown
		sameRates(s.o, st.Rates)
	}, nil
}

// sameRates refuses rates that are not the optimizer's.
func sameRates(o Optimizer, rates []float64) {
	for g, lr := range rates {
		if is := o.LR(g); is != lr {
			core.Fail(checkpointName, fault.Invalid,
				"the schedule has the rate %v for group %d and its optimizer %v; a file that was saved has the same", lr, g, is)
		}
	}
}
