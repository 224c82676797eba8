package optim

import (
	"cmp"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/nn"
)

// GradScalerOpt are the options of a GradScaler. The zero value is PyTorch's default.
type GradScalerOpt struct {
	// InitScale is the first scale; the default is 65536.
	InitScale tenon.Scalar
	// GrowthFactor multiplies the scale after GrowthInterval steps without an infinite or NaN gradient, and BackoffFactor after a step with
	// one; the defaults are 2, 2000 and 0.5. The shortest interval is 1, since the scale cannot grow after zero steps, and 0 is the
	// default; a very long one, such as math.MaxInt32, keeps it from growing.
	GrowthFactor, BackoffFactor tenon.Scalar
	GrowthInterval              int
	// Disabled leaves losses and gradients alone.
	Disabled bool
}

// GradScaler multiplies losses so that gradients of half precision do not vanish, divides the gradients again before the optimizer's step,
// skips a step whose gradients are infinite or NaN, and finds a scale that avoids such steps (P. Micikevicius and others, ICLR 2018), as
// torch.amp.GradScaler does. Its state is on the device, which also makes the decisions: with optimizers of this package nothing waits for
// the device, and everything can be captured in a graph once an iteration has made the state. A scaler belongs to one device, and only one
// goroutine may use it at a time.
//
//	loss := scaler.Scale(x, model.Loss(x.Autocast(tenon.Float16), batch))
//	err := x.Backward(loss)
//	err = scaler.Step(x, o)
//	err = scaler.Update(x)
type GradScaler struct {
	// state holds the options, and the scale and its count of steps until they are on the device.
	state    GradScalerState
	disabled bool
	// row is the state, see core.ScaleRow, and scale the scale as a float32; nil before the first use.
	row, scale *tenon.Tensor
	opts       map[Optimizer]*scaled
	order      []*scaled
	closed     bool
	// grads are the emptied lists of the latest Unscale, for reuse.
	grads []gradList
}

// gradList holds gradients of one type.
type gradList struct {
	dt   tenon.DType
	list []*core.Tensor
}

// stage says how far an iteration has got with an optimizer.
type stage int

const (
	ready stage = iota
	unscaled
	stepped
)

// scaled is what the scaler knows about an optimizer.
type scaled struct {
	stage stage
	// found is not 0 if a gradient was infinite or NaN; checked says that gradients were checked since the last update.
	found   *tenon.Tensor
	checked bool
}

// held is the interface that an optimizer of another package needs for the scaler.
type held interface {
	Optimizer
	// Params yields the parameters of all groups.
	Params() iter.Seq[*nn.Param]
}

// skipper is an optimizer whose steps the device can skip.
type skipper interface {
	step(x *tenon.Exec, found *tenon.Tensor) error
}

const scalerName = "GradScaler"

// NewGradScaler returns a scaler.
func NewGradScaler(opts ...GradScalerOpt) (*GradScaler, error) {
	opt, err := core.Only(scalerName, opts)
	if err != nil {
		return nil, err
	}
	if bad := numbers(&opt); bad != "" {
		return nil, refuseScaler("%s", bad)
	}
	st := GradScalerState{Scale: num(or(opt.InitScale, 65536)), GrowthFactor: num(or(opt.GrowthFactor, 2)),
		BackoffFactor: num(or(opt.BackoffFactor, 0.5)), GrowthInterval: cmp.Or(opt.GrowthInterval, 2000)}
	if err := checkScaler(&st); err != nil {
		return nil, err
	}
	return &GradScaler{state: st, disabled: opt.Disabled, opts: map[Optimizer]*scaled{}}, nil
}

func checkScaler(opt *GradScalerState) error {
	switch {
	case !(opt.GrowthFactor > 1):
		return refuseScaler("The growth factor must be > 1.0; it is %v", opt.GrowthFactor)
	case !(opt.BackoffFactor < 1 && opt.BackoffFactor > 0):
		return refuseScaler("The backoff factor must be < 1.0 and positive; it is %v", opt.BackoffFactor)
	case opt.GrowthInterval < 0:
		return refuseScaler("the growth interval is %d steps; give a positive number", opt.GrowthInterval)
	case !(opt.Scale > 0) || opt.Scale > 3.4e38:
		return refuseScaler("the scale is %v; give a positive number that float32 can hold", opt.Scale)
	}
	return nil
}

func refuseScaler(format string, args ...any) error {
	return core.Refusal(scalerName, fault.Invalid, format, args...)
}

// made stops unless s is a scaler that NewGradScaler returned.
func (s *GradScaler) made() {
	if s == nil || s.opts == nil {
		core.Fail(scalerName, fault.Invalid, "the scaler is nil or a zero value; use one that NewGradScaler returned")
	}
}

// open is made for a call that a closed scaler refuses.
func (s *GradScaler) open() {
	if s.made(); s.closed {
		core.Fail(scalerName, fault.Closed, "the scaler was closed; close it after the last use of it, or make another with NewGradScaler")
	}
}

// String describes the scaler by its options. The scale is on the device, where reading it would wait: see State.
func (s *GradScaler) String() string {
	switch {
	case s == nil || s.opts == nil:
		return "nil GradScaler"
	case s.disabled:
		return "GradScaler (disabled)"
	}
	return fmt.Sprintf("GradScaler (init_scale: %s, growth_factor: %s, backoff_factor: %s, growth_interval: %d)",
		core.Decimal(s.state.Scale), core.Decimal(s.state.GrowthFactor), core.Decimal(s.state.BackoffFactor), s.state.GrowthInterval)
}

// Enabled reports whether the scaler does anything.
func (s *GradScaler) Enabled() bool {
	s.made()
	return !s.disabled
}

// try runs f, unless the scaler is disabled, and returns the error with which it stopped.
func (s *GradScaler) try(f func() error) error {
	var failed error
	if err := tenon.Try(func() {
		if s.open(); !s.disabled {
			failed = f()
		}
	}); err != nil {
		return err
	}
	return failed
}

// Close frees the state. Afterwards the scaler cannot be used.
func (s *GradScaler) Close() {
	if s == nil || s.opts == nil {
		return
	}
	s.row.Close()
	s.scale.Close()
	for _, o := range s.order {
		o.found.Close()
	}
	s.row, s.scale, s.opts, s.order, s.closed = nil, nil, map[Optimizer]*scaled{}, nil, true
}

// ready makes the state on x's device.
func (s *GradScaler) ready(x *tenon.Exec) {
	core.Made((*core.Exec)(x), scalerName)
	if s.row != nil {
		return
	}
	if core.SessionCaptures((*core.Exec)(x)) {
		core.Fail(scalerName, fault.Capture,
			"the first use makes the scaler's state and cannot be captured; run an iteration before the capture")
	}
	x.NoGrad().Scope(func(x *tenon.Exec) {
		row, scale := stateOf(x, s.state.Scale, s.state.GrowthTracker)
		s.row, s.scale = own(row), own(scale)
	})
	core.Undo((*core.Exec)(x), func() {
		s.row.Close()
		s.scale.Close()
		s.row, s.scale = nil, nil
	})
}

// stateOf returns a scale and its growth as tensors.
func stateOf(x *tenon.Exec, initial float64, growth int) (row, scale *tenon.Tensor) {
	return tenon.From(x, core.ScaleRow(float32(initial), growth)), x.Full(nil, initial, tenon.Float32)
}

// Scale returns t times the scale, recorded for the backward pass as any product.
func (s *GradScaler) Scale(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
	s.open()
	if s.disabled {
		return t
	}
	s.ready(x)
	return x.Mul(t, s.scale)
}

// of returns what the scaler knows about an optimizer.
func (s *GradScaler) of(x *tenon.Exec, o Optimizer) *scaled {
	st := s.opts[o]
	if st == nil {
		if core.SessionCaptures((*core.Exec)(x)) {
			core.Fail(scalerName, fault.Capture, "the first step of an optimizer makes its flag and cannot be captured; run an "+
				"iteration before the capture")
		}
		st = &scaled{found: own(x.NoGrad().Zeros(nil, tenon.Float32))}
		s.opts[o] = st
		s.order = append(s.order, st)
		core.Undo((*core.Exec)(x), func() {
			st.found.Close()
			delete(s.opts, o)
			s.order = slices.DeleteFunc(s.order, func(other *scaled) bool { return other == st })
		})
	}
	return st
}

// Unscale divides the gradients of o's parameters by the scale, in place, and records whether one is infinite or NaN. Step does this if
// it was not called. Between the two calls a program can inspect or clip gradients.
func (s *GradScaler) Unscale(x *tenon.Exec, o Optimizer) error {
	return core.Spoil((*core.Exec)(x), s.with(o, func() error {
		s.unscale(x, o)
		return nil
	}))
}

func (s *GradScaler) unscale(x *tenon.Exec, o Optimizer) *scaled {
	fail := func(kind fault.Kind, format string, args ...any) { core.Fail(scalerName, kind, format, args...) }
	h, ok := o.(held)
	if !ok {
		fail(fault.Unsupported, "%T does not say which parameters it has; give it a method Params() iter.Seq[*nn.Param]", o)
	}
	core.Made((*core.Exec)(x), scalerName)
	if f, ok := o.(filed); ok {
		core.Check(scalerName, f.open(scalerName))
		f.openParams(scalerName)
	}
	if s.row == nil {
		fail(fault.Invalid, "Attempted unscale but the scale is nil. This may indicate your program did not use Scale on the loss or "+
			"outputs earlier in the iteration: the scale is made by the first Scale; pass the loss to that, and its result to Backward")
	}
	st := s.of(x, o)
	switch st.stage {
	case unscaled:
		fail(fault.Invalid, "Unscale has already been called on this optimizer since the last update; call Update after Step")
	case stepped:
		fail(fault.Invalid, "Unscale is being called after Step")
	}
	lists, some := s.grads, false
	s.grads = nil
	defer func() { s.grads = emptied(lists) }()
	for p := range h.Params() {
		g := p.Grad()
		if g == nil {
			continue
		}
		dt := g.DType()
		switch {
		case dt == tenon.Float16:
			fail(fault.Invalid,
				"Attempting to unscale FP16 gradients; keep the parameters in float32 and run the forward pass under Autocast")
		case !dt.IsFloat():
			fail(fault.Unsupported, "a gradient is %v; real floating-point gradients can be unscaled", dt)
		}
		i := slices.IndexFunc(lists, func(l gradList) bool { return l.dt == dt })
		if i < 0 {
			i, lists = len(lists), append(lists, gradList{dt: dt})
		}
		l := &lists[i]
		l.list, some = append(l.list, (*core.Tensor)(g)), true
	}
	core.Together((*core.Exec)(x), scalerName, func(x *core.Exec) {
		for _, l := range lists {
			core.Unscale(x, l.list, (*core.Tensor)(s.row), (*core.Tensor)(st.found))
		}
	})
	s.recorded(x)
	st.stage, st.checked = unscaled, some
	return st
}

// emptied takes the gradients out of the lists.
func emptied(lists []gradList) []gradList {
	for i := range lists {
		l := &lists[i]
		clear(l.list)
		l.list = l.list[:0]
	}
	return lists
}

// recorded arranges that the current stages are restored if the work that x recorded or deferred never runs.
func (s *GradScaler) recorded(x *tenon.Exec) {
	for _, st := range s.order {
		stage, checked := st.stage, st.checked
		core.Undo((*core.Exec)(x), func() { st.stage, st.checked = stage, checked })
	}
}

// with is try for a call on an optimizer.
func (s *GradScaler) with(o Optimizer, f func() error) error {
	if isNil(o) {
		return missing(scalerName)
	}
	if !reflect.ValueOf(o).Comparable() {
		return refuseScaler("a %T cannot be told from another; give a pointer to it", o)
	}
	return s.try(f)
}

// Step calls o.Step unless a gradient is infinite or NaN. It first divides the gradients by the scale if Unscale has not done so. An
// optimizer of this package skips its step on the device; for any other, Step waits for the device to learn whether to call o.Step.
func (s *GradScaler) Step(x *tenon.Exec, o Optimizer) error {
	if s != nil && s.disabled && !s.closed && !isNil(o) {
		return o.Step(x)
	}
	return core.Spoil((*core.Exec)(x), s.with(o, func() error { return s.step(x, o) }))
}

func (s *GradScaler) step(x *tenon.Exec, o Optimizer) error {
	core.Made((*core.Exec)(x), scalerName)
	st := s.opts[o]
	if st != nil && st.stage == stepped {
		core.Fail(scalerName, fault.Invalid, "Step has already been called since the last update; call Update after the steps of all "+
			"optimizers")
	}
	if sk, ok := o.(skipper); ok {
		return s.stepTogether(x, o, st, sk)
	}
	if st == nil || st.stage == ready {
		st = s.unscale(x, o)
	}
	st.wantChecked()
	found, err := x.Item(st.found)
	if err == nil && found == 0 {
		err = o.Step(x)
	}
	if err == nil {
		st.stage = stepped
	}
	return err
}

// stepTogether unscales, if that is not done, and steps; an error leaves gradients and stage as they were.
func (s *GradScaler) stepTogether(x *tenon.Exec, o Optimizer, st *scaled, sk skipper) error {
	if st == nil {
		st = s.of(x, o)
	}
	stage, checked := st.stage, st.checked
	defer func() {
		if st.stage != stepped {
			st.stage, st.checked = stage, checked
		}
	}()
	core.Together((*core.Exec)(x), scalerName, func(cx *core.Exec) {
		x := (*tenon.Exec)(cx)
		if stage == ready {
			s.unscale(x, o)
		}
		st.wantChecked()
		core.Check(scalerName, sk.step(x, st.found))
	})
	s.recorded(x)
	st.stage = stepped
	return nil
}

func (st *scaled) wantChecked() {
	if !st.checked {
		core.Fail(scalerName, fault.Invalid, "No inf checks were recorded for this optimizer: none of its parameters has a gradient")
	}
}

// Update ends an iteration: the scale shrinks if a gradient was infinite or NaN, and grows after GrowthInterval steps without one.
func (s *GradScaler) Update(x *tenon.Exec) error {
	return core.Spoil((*core.Exec)(x), s.try(func() error {
		core.Made((*core.Exec)(x), scalerName)
		var found []*core.Tensor
		for _, st := range s.order {
			if st.checked {
				found = append(found, (*core.Tensor)(st.found))
			}
		}
		if found == nil {
			core.Fail(scalerName, fault.Invalid, "No inf checks were recorded prior to update; call Step or Unscale with an optimizer "+
				"whose parameters have gradients")
		}
		core.UpdateScale((*core.Exec)(x), (*core.Tensor)(s.row), (*core.Tensor)(s.scale), found, s.state.GrowthFactor,
			s.state.BackoffFactor, s.state.GrowthInterval)
		s.recorded(x)
		s.restart()
		return nil
	}))
}

// restart begins an iteration.
func (s *GradScaler) restart() {
	for _, st := range s.order {
		st.stage, st.checked = ready, false
	}
}

// GradScalerState is the state of a scaler; as JSON it has the keys of PyTorch's state_dict.
type GradScalerState struct {
	// Scale is the current scale.
	Scale float64 `json:"scale" torch:"scale"`
	// GrowthFactor, BackoffFactor and GrowthInterval are the options.
	GrowthFactor   float64 `json:"growth_factor" torch:"growth_factor"`
	BackoffFactor  float64 `json:"backoff_factor" torch:"backoff_factor"`
	GrowthInterval int     `json:"growth_interval" torch:"growth_interval"`
	// GrowthTracker counts the steps since the last change of the scale.
	GrowthTracker int `json:"_growth_tracker" torch:"_growth_tracker"`
}

// State returns the scaler's state, including the scale, or the zero value if it is disabled. It waits for the device.
func (s *GradScaler) State(x *tenon.Exec) (st GradScalerState, err error) {
	err = s.try(func() error {
		if st = s.state; s.row == nil {
			return nil
		}
		row, err := tenon.Read[float64](x, s.row)
		if err == nil {
			st.Scale, st.GrowthTracker = row[0], int(row[1])
		}
		return err
	})
	return st, err
}

// SetState restores a state that State returned. It may be called between iterations; a scale that a captured graph uses changes too.
func (s *GradScaler) SetState(x *tenon.Exec, st GradScalerState) error {
	return s.try(func() error {
		core.Made((*core.Exec)(x), scalerName)
		x.NoGrad().Scope(func(x *tenon.Exec) {
			_, _, change := s.stage(x, st)
			core.Together((*core.Exec)(x), scalerName, func(cx *core.Exec) { change((*tenon.Exec)(cx)) })
		})
		return nil
	})
}

// stage checks a state and copies it to the device, as tensors unless the scaler has none yet. change puts it in use, as a part of a
// Together.
func (s *GradScaler) stage(x *tenon.Exec, st GradScalerState) (row, scale *tenon.Tensor, change func(x *tenon.Exec)) {
	if st == (GradScalerState{}) {
		core.Check(scalerName, refuseScaler("The source state dict is empty, "+
			"possibly because it was saved from a disabled instance of GradScaler"))
	}
	core.Check(scalerName, checkScaler(&st))
	if s.row != nil {
		row, scale = stateOf(x, st.Scale, st.GrowthTracker)
	}
	return row, scale, func(x *tenon.Exec) {
		if row != nil {
			x.CopyInto(s.row, row)
			x.CopyInto(s.scale, scale)
		}
		former := s.state
		s.recorded(x)
		core.Undo((*core.Exec)(x), func() { s.state = former })
		s.state = st
		s.restart()
	}
}

// SetScale sets the scale and leaves the count of steps as it is. It waits for the device.
func (s *GradScaler) SetScale(x *tenon.Exec, scale float64) error {
	st, err := s.State(x)
	if err != nil || s.disabled {
		return err
	}
	st.Scale = scale
	return s.SetState(x, st)
}
