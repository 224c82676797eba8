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

// Checkpoint names everything that training needs to resume where it stopped. Save writes all of it to one file and Load reads it back,
// into a Checkpoint that names the same things. A field that is nil is not saved. Training that resumes from a file computes the same
// bits as training that never stopped.
//
// Gradients are not in the file: save between a step and the next backward pass, such as at the end of the loop's body. Modes ([nn.Eval])
// and graphs are not saved either; capture graphs after Load, which moves the optimizer's state to other memory.
type Checkpoint struct {
	// Model is any module that nn.StateDict accepts.
	Model any
	// Optimizer is an optimizer of this package.
	Optimizer Optimizer
	// Schedule is a schedule of Optimizer's learning rates.
	Schedule Scheduler
	// Scaler is the scaler of the losses.
	Scaler *GradScaler
	// Loader is saved as the numbers of its epoch and batch.
	Loader *data.Loader
	// Generators are the random number generators that training uses; nil is the generator of the Exec that saves and loads.
	Generators []*cuda.Generator
	// Extra points to other data to save, such as a struct with counts and losses: numbers and strings, and slices, maps with string keys
	// and structs of them. Load replaces the data as torchfile.Decode does.
	Extra any
}

// Scheduler is a schedule of learning rates: a [*Schedule] or a [*ReduceLROnPlateau].
type Scheduler interface {
	// optimizer returns the optimizer whose rates the schedule sets.
	optimizer() Optimizer
	// saved returns the state as a file holds it. stage reads such a state and returns a function that puts it in use, as a part of a
	// Together, after the optimizer got its own state.
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

// Save writes the checkpoint to the named file: a dict with the keys model and optimizer (PyTorch's state dicts), schedule, scaler, loader,
// generators and extra, made only of types that torch.load accepts with weights_only. It waits for the device, and is an error in a
// capture. A file that already has that name is replaced only once the new one is complete.
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

// dict returns the contents of the file.
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
	var states []*tenon.Tensor // in PyTorch's format
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
	case core.SessionCaptures((*core.Exec)(x)):
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
		return refuse("Extra is of type %T; give a pointer to what Load is to replace", c.Extra)
	}
	return nil
}

func (c *Checkpoint) generators(x *tenon.Exec) []*cuda.Generator {
	if c.Generators != nil {
		return c.Generators
	}
	return []*cuda.Generator{x.Generator()}
}

// Load restores everything that the checkpoint names from a file that Save wrote. The checkpoint must name exactly what the file holds;
// to read a part of a file, such as the model, open it with package torchfile. Load changes everything or nothing: its error names the
// file and the key, shape or option that does not fit. It fills the optimizer's learning rate tensors. Inside a region of package compile
// it first runs the deferred work; it waits for nothing else. It is an error in a capture and in the loop over the loader's epoch.
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
	if err := core.Force((*core.Exec)(x)); err != nil { // runs what a region deferred
		return err
	}
	if l.last != nil {
		l.last()
	}
	return nil
}

// loading is a Load in progress. The steps that may fail for any reason but the device's come first, and change nothing.
type loading struct {
	f    *torchfile.File
	root *torchfile.Dict
	// changes are parts of one Together: if one fails, all are undone.
	changes []func(x *tenon.Exec)
	// last cannot fail.
	last   func()
	staged *staged
	// made are the tensors that were read. They are in no scope, so that no error closes them.
	made []*tenon.Tensor
}

// close frees the tensors that were read or, after the exchange, the former state.
func (l *loading) close() {
	if l.staged != nil {
		l.staged.close()
	}
	for _, t := range l.made {
		t.Close()
	}
}

func (l *loading) change(f func(x *tenon.Exec)) { l.changes = append(l.changes, f) }

// keys compares the file's keys with the fields that the checkpoint names.
func (l *loading) keys(_ *tenon.Exec, c *Checkpoint) error {
	root, ok := l.f.Root().(*torchfile.Dict)
	if !ok {
		return fmt.Errorf("the file is not a checkpoint; its value is not a dict")
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
	return fmt.Errorf("the Checkpoint and the file do not hold the same things: %s; name exactly those in the Checkpoint, or read a part "+
		"of the file, such as the model, with torchfile.Open and StateDict", strings.Join(wrong, "; "))
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

// optimizer reads the states of the optimizer and of its schedule, which must have the same rates.
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
		ts, rates := o.rateFills(l.staged.rates)
		for i, t := range ts {
			t := (*tenon.Tensor)(t)
			x.On(t.Device().DefaultStream()).FillInto(t, rates[i])
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
		core.Undo((*core.Exec)(x), func() { _ = c.Loader.SetState(former) }) // was valid before
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
			core.Undo((*core.Exec)(x), func() { _ = g.SetState(former) }) // was its state before
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
