package tenon_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// closedCase is a call on something that was closed.
type closedCase struct {
	name, want string
	call       func() error
}

// checkClosed checks that each call gives an error of kind Closed that says so once, with the line of the call in this file.
func checkClosed(t *testing.T, cases []closedCase) {
	t.Helper()
	for _, c := range cases {
		err := attempt(t, c.call)
		var e *tenon.Error
		if !errors.As(err, &e) || e.Kind != tenon.Closed {
			t.Errorf("%s: %v, want an error of kind Closed", c.name, err)
			continue
		}
		s := err.Error()
		if !strings.Contains(s, c.want) || strings.Count(s, " was closed") != 1 || !strings.Contains(s, "closed_test.go:") {
			t.Errorf("%s: %q, want one that says once %q, with its line", c.name, s, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestClosedTensor(t *testing.T) {
	x := openSim(t)
	one := func() *tenon.Tensor { return x.Ones([]int{2}, tenon.Float32) }
	plain, leaf, result := one(), one().SetRequiresGrad(true), x.Exp(one().SetRequiresGrad(true))
	for _, c := range []*tenon.Tensor{plain, leaf, result} {
		c.Close()
	}
	var cases []closedCase
	for name, c := range map[string]*tenon.Tensor{"plain": plain, "leaf": leaf, "result": result} {
		add := func(op string, f func()) {
			cases = append(cases, closedCase{name, op + ": the tensor float32[2] was closed; close it, or the module that has it, " +
				"after the last use of it", func() error { return tenon.Try(f) }})
		}
		add("SetRequiresGrad", func() { c.SetRequiresGrad(true) })
		add("SetRequiresGrad", func() { c.SetRequiresGrad(false) })
		add("SetGrad", func() { c.SetGrad(one()) })
		add("SetGrad", func() { c.SetGrad(nil) })
		add("RetainGrad", func() { c.RetainGrad() })
		add("RegisterHook", func() { c.RegisterHook(func(_ *tenon.Exec, g *tenon.Tensor) *tenon.Tensor { return g }) })
		add("RegisterPostAccumulateGradHook", func() { c.RegisterPostAccumulateGradHook(func(*tenon.Exec, *tenon.Tensor) {}) })
	}
	checkClosed(t, cases)
}

// The end of a scope closes what was made meanwhile by any goroutine, and the error says so.
func TestClosedWithScope(t *testing.T) {
	x := openSim(t)
	var own, other *tenon.Tensor
	x.Scope(func(x *tenon.Exec) {
		own = x.Ones([]int{2}, tenon.Float32)
		made := make(chan *tenon.Tensor)
		go func() { made <- x.Ones([]int{2}, tenon.Float32) }()
		other = <-made
	})
	const want = "AddS: the operand float32[2] was closed at the end of its scope; keep it with Keep or, if another goroutine opened the " +
		"scope, give each goroutine its own Exec with Fork"
	checkClosed(t, []closedCase{
		{"own", want, func() error { x.AddS(own, 1); return nil }},
		{"of another goroutine", want, func() error { x.AddS(other, 1); return nil }},
		{"destination", "AddSInto: the operand float32[2] was closed at the end of its scope",
			func() error { x.AddSInto(own, x.Ones([]int{2}, tenon.Float32), 1); return nil }},
		{"read", "Read: the operand float32[2] was closed at the end of its scope",
			func() error { return second(tenon.Read[float32](x, own)) }},
	})
}

func TestClosedEvent(t *testing.T) {
	x := openSim(t)
	e, open := x.Device().NewEvent(cuda.EventOpt{Timing: true}), x.Device().NewEvent(cuda.EventOpt{Timing: true})
	s := x.Stream()
	if err := errors.Join(e.Record(s), open.Record(s)); err != nil {
		t.Fatal(err)
	}
	e.Close()
	const text = ": the event was closed; close it after the last use of it"
	checkClosed(t, []closedCase{
		{"Record", "Record" + text, func() error { return e.Record(s) }},
		{"Query", "Query" + text, func() error { return second(e.Query()) }},
		{"Synchronize", "Synchronize" + text, func() error { return e.Synchronize() }},
		{"Stream.Wait", "Wait" + text, func() error { return s.Wait(e) }},
		{"Elapsed from", "Elapsed" + text, func() error { return second(e.Elapsed(open)) }},
		{"Elapsed to", "Elapsed" + text, func() error { return second(open.Elapsed(e)) }},
	})
}

func TestClosedPool(t *testing.T) {
	x := openSim(t)
	p, err := cuda.NewMemPool(x.Device())
	if err != nil {
		t.Fatal(err)
	}
	y := x.UsePool(p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	checkClosed(t, []closedCase{
		{"UsePool", "UsePool: the pool was closed; close it after", func() error { x.UsePool(p); return nil }},
		{"an operation", "the pool was closed; close it after", func() error { y.Ones([]int{2}, tenon.Float32); return nil }},
	})
}

func TestClosedTraining(t *testing.T) {
	x := openSim(t)
	dir := t.TempDir()
	linear := func() *nn.Linear { return nn.NewLinear(x, 2, 2) }
	trained := func(m *nn.Linear) *optim.Adam {
		o, err := optim.NewAdam(nn.Params(m))
		if err == nil {
			err = x.Backward(x.Sum(m.Forward(x, x.Ones([]int{2, 2}, tenon.Float32)), nil))
		}
		if err = errors.Join(err, o.Step(x)); err != nil {
			t.Fatal(err)
		}
		return o
	}
	o, used := trained(linear()), trained(linear())
	sched, err := optim.NewSchedule(used, optim.ExponentialLR(0.5))
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	used.Close()
	const text = ": the optimizer was closed; close it after the last use of it"
	checkClosed(t, []closedCase{
		{"Step", "Adam" + text, func() error { return o.Step(x) }},
		{"SetLR", "Adam" + text, func() error { o.SetLR(0, 1); return nil }},
		{"SetLRTensor", "Adam" + text, func() error { return o.SetLRTensor(0, x.Ones(nil, tenon.Float32)) }},
		{"Add", "Adam" + text, func() error { return o.Add(nn.Params(linear())) }},
		{"StateDict", "StateDict" + text, func() error { return second(optim.StateDict(x, o)) }},
		{"SaveFile", "SaveFile" + text, func() error { return optim.SaveFile(x, o, filepath.Join(dir, "o")) }},
		{"NewSchedule", "Schedule" + text, func() error { return second(optim.NewSchedule(o, optim.ExponentialLR(1))) }},
		{"Schedule.Step", "Adam" + text, func() error { return sched.Step() }},
	})
	if o.ZeroGrad(); o.Groups() != 1 || o.LR(0) != 1e-3 {
		t.Errorf("a closed optimizer has %d groups and the rate %v", o.Groups(), o.LR(0))
	}

	m := linear()
	o = trained(m)
	weight, frozen := m.Weight, m.Bias
	nn.Close(m)
	const named = ": the parameter weight (float32[2 2]) was closed; close parameters after the last use of them"
	checkClosed(t, []closedCase{
		{"Step of closed parameters", "Adam" + named, func() error { return o.Step(x) }},
		{"ClipGradNorm", "ClipGradNorm" + named, func() error { nn.ClipGradNorm(x, nn.Params(m), 1); return nil }},
		{"ClipGradValue", "ClipGradValue" + named, func() error { nn.ClipGradValue(x, nn.Params(m), 1); return nil }},
		{"SaveFile of closed parameters", "SaveFile" + named, func() error { return optim.SaveFile(x, o, filepath.Join(dir, "o")) }},
		{"Param.SetGrad", "Param.SetGrad: the parameter float32[2 2] was closed",
			func() error { weight.SetGrad(x.Ones([]int{2, 2}, tenon.Float32)); return nil }},
		{"Param.SetRequiresGrad", "Param.SetRequiresGrad: the parameter float32[2] was closed",
			func() error { frozen.SetRequiresGrad(false); return nil }},
	})
	o.ZeroGrad()

	s, err := optim.NewGradScaler()
	if err != nil {
		t.Fatal(err)
	}
	loss := x.Ones(nil, tenon.Float32)
	s.Scale(x, loss)
	s.Close()
	const scaler = "GradScaler: the scaler was closed; close it after the last use of it"
	checkClosed(t, []closedCase{
		{"Scale", scaler, func() error { s.Scale(x, loss); return nil }},
		{"State", scaler, func() error { return second(s.State(x)) }},
		{"SetScale", scaler, func() error { return s.SetScale(x, 2) }},
		{"SetState", scaler, func() error { return s.SetState(x, optim.GradScalerState{}) }},
		{"Update", scaler, func() error { return s.Update(x) }},
		{"Unscale", scaler, func() error { return s.Unscale(x, trained(linear())) }},
		{"GradScaler.Step", scaler, func() error { return s.Step(x, trained(linear())) }},
	})

	g, err := nn.Graph(x, linear(), x.Ones([]int{2, 2}, tenon.Float32))
	if err == nil {
		err = g.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	checkClosed(t, []closedCase{{"Graphed", "the callable was closed; close it after the last use of it",
		func() error { g.Forward(x, x.Ones([]int{2, 2}, tenon.Float32)); return nil }}})
}

func TestClosedDevice(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		t.Fatal(err)
	}
	x.Ones([]int{1000}, tenon.Float32)
	d := x.Device()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	text := func(op string) string {
		return op + ": " + d.String() + " was closed; close it after the last use of it"
	}
	checkClosed(t, []closedCase{
		{"Snapshot", text("Snapshot"), func() error { return second(d.Snapshot()) }},
		{"DumpSnapshot", text("DumpSnapshot"), func() error { return d.DumpSnapshot(filepath.Join(t.TempDir(), "s")) }},
		{"EmptyCache", text("EmptyCache"), func() error { return d.EmptyCache() }},
		{"EmptyHostCache", text("EmptyHostCache"), func() error { return d.EmptyHostCache() }},
		{"RecordMemoryHistory", text("RecordMemoryHistory"), func() error { return d.RecordMemoryHistory(cuda.History{}) }},
		{"SetAllocatorSettings", text("SetAllocatorSettings"), func() error { return d.SetAllocatorSettings("expandable_segments:True") }},
		{"SetMemoryFraction", text("SetMemoryFraction"), func() error { return d.SetMemoryFraction(0.5) }},
		{"BeginAllocateToPool", text("BeginAllocateToPool"), func() error { return d.BeginAllocateToPool(cuda.NewPoolID(), x.Stream()) }},
	})
	if a, r := d.MemoryAllocated(), d.MemoryReserved(); a != 0 || r != 0 {
		t.Errorf("a closed device has %d bytes allocated and %d reserved", a, r)
	}
}
