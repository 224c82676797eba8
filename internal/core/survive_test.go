package core

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// unmetCalls violate what kernels assert, by operation: the message, and the call.
var unmetCalls = []struct {
	op, said string
	run      func(x *Exec)
}{
	{"Gather", "index 7 is out of range for size 3, in the operand index; give numbers from 0 to size-1", func(x *Exec) {
		x.Gather(three(x), 0, From(x, []int64{7}))
	}},
	{"Gather", "index -1 is out of range for size 3, in the operand index", func(x *Exec) { x.Gather(three(x), 0, From(x, []int32{-1})) }},
	{"IndexSelect", "index 3 is out of range for size 3, in the operand index", func(x *Exec) {
		x.IndexSelect(three(x), 0, From(x, []int64{0, 1, 3}))
	}},
	{"Index", "index 9 is out of range for size 3, in the index of dimension 0; give numbers from -3 to 2", func(x *Exec) {
		x.Index(three(x), []Place{PlaceTensor(From(x, []int64{9}))})
	}},
	{"Index", "index 5 is out of range for size 4, in the index of dimension 2; give numbers from -4 to 3", func(x *Exec) {
		at := PlaceTensor(From(x, []int64{0, 5}))
		x.Index(x.Ones([]int{2, 7, 4, 3}, dtype.Float32), []Place{PlaceNew, PlaceAt(1), PlaceSpan(0, PlaceEnd, 1), at, at})
	}},
	{"IndexPutInto", "index -4 is out of range for size 3, in the index of dimension 0; give numbers from -3 to 2", func(x *Exec) {
		x.IndexPutInto(three(x), x.Ones(nil, dtype.Float32), []Place{PlaceList([]int64{-4})}, false)
	}},
	{"IndexPutSInto", "index 3 is out of range for size 3, in the index of dimension 0; give numbers from -3 to 2", func(x *Exec) {
		x.IndexPutSInto(three(x), 1, []Place{PlaceList([]int64{3})}, true)
	}},
	{"Multinomial", "a probability is negative, infinite or NaN, in the operand p", func(x *Exec) {
		x.Multinomial(x.Full([]int{3}, -1, dtype.Float32), 1, MultinomialOpt{})
	}},
	{"TakeAlongDim", "index -4 is out of range for size 3, in the operand index; give numbers from -size to size-1", func(x *Exec) {
		x.TakeAlongDim(three(x), From(x, []int64{-3, 2, -4}))
	}},
	{"Scatter", "index 9 is out of range for size 3, in the operand index", func(x *Exec) {
		x.Scatter(three(x), 0, From(x, []int64{9}), three(x), ScatterOpt{})
	}},
	{"Scatter", "index 9 is out of range for size 3, in the operand index", func(x *Exec) {
		x.ScatterS(three(x), 0, From(x, []int64{9}), 1, ScatterOpt{})
	}},
	{"ScatterAdd", "index 9 is out of range for size 3, in the operand index", func(x *Exec) {
		x.ScatterAdd(three(x), 0, From(x, []int64{9}), three(x))
	}},
	{"Scatter", "index 9 is out of range for size 3, in the operand index", func(x *Exec) {
		t := three(x)
		x.ScatterInto(t, t, 0, From(x, []int64{9}), three(x), ScatterOpt{})
	}},
	{"Scatter", "index 9 is out of range for size 3, in the operand index", func(x *Exec) {
		t := three(x)
		x.ScatterAddInto(t, t, 0, From(x, []int64{9}), three(x))
	}},
	{"IndexCopy", "index -1 is out of range for size 3, in the operand index; give numbers from 0 to size-1", func(x *Exec) {
		x.IndexCopy(three(x), 0, From(x, []int64{0, -1, 2}), three(x))
	}},
	{"IndexCopyInto", "index 3 is out of range for size 3, in the operand index; give numbers from 0 to size-1", func(x *Exec) {
		t := three(x)
		x.IndexCopyInto(t, t, 0, From(x, []int32{0, 3, 2}), three(x))
	}},
	{"IndexFill", "index -4 is out of range for size 3, in the operand index; give numbers from -size to size-1", func(x *Exec) {
		x.IndexFill(three(x), 0, From(x, []int64{-4}), x.Ones(nil, dtype.Float32))
	}},
	{"IndexFillInto", "index 3 is out of range for size 3, in the operand index; give numbers from -size to size-1", func(x *Exec) {
		t := three(x)
		x.IndexFillInto(t, t, 0, From(x, []int64{3}), x.Ones(nil, dtype.Float32))
	}},
	{"IndexFillS", "index 3 is out of range for size 3, in the operand index; give numbers from -size to size-1", func(x *Exec) {
		x.IndexFillS(three(x), 0, From(x, []int64{3}), 1)
	}},
	{"IndexFillSInto", "index 3 is out of range for size 3, in the operand index; give numbers from -size to size-1", func(x *Exec) {
		t := three(x)
		x.IndexFillSInto(t, t, 0, From(x, []int64{3}), 1)
	}},
	{"IndexAdd", "index -1 is out of range for size 3, in the operand index; give numbers from 0 to size-1", func(x *Exec) {
		x.IndexAdd(three(x), 0, From(x, []int64{0, -1, 2}), three(x), IndexAddOpt{})
	}},
	{"IndexAddInto", "index 3 is out of range for size 3, in the operand index; give numbers from 0 to size-1", func(x *Exec) {
		t := three(x)
		x.IndexAddInto(t, t, 0, From(x, []int64{0, 3, 2}), three(x), IndexAddOpt{})
	}},
	{"Embedding", "index 4 is out of range for size 3, in the operand index", func(x *Exec) {
		x.Embedding(From(x, []int64{4}), x.Reshape(three(x), 3, 1), EmbeddingOpt{})
	}},
	{"Embedding", "index 4 is out of range for size 3, in the operand index", func(x *Exec) {
		x.Embedding(From(x, []int64{4}), x.Reshape(three(x), 3, 1), EmbeddingOpt{MaxNorm: 1})
	}},
	{"CrossEntropy", "target 3 is out of range for 3 classes, in the operand target", func(x *Exec) {
		x.CrossEntropy(x.Reshape(three(x), 1, 3), From(x, []int64{3}), CrossEntropyOpt{})
	}},
	{"NLLLoss", "target -5 is out of range for 3 classes, in the operand target; give classes", func(x *Exec) {
		x.NLLLoss(x.Reshape(three(x), 1, 3), From(x, []int64{-5}), NLLLossOpt{})
	}},
	{"MultiMarginLoss", "index 3 is out of range for size 3, in the operand target", func(x *Exec) {
		x.MultiMarginLoss(three(x), From(x, []int64{3}), MultiMarginLossOpt{})
	}},
	{"Bernoulli", "probability 2 is not from 0 to 1, in the operand p", func(x *Exec) { x.Bernoulli(three(x)) }},
	{"BCE", "input 2 is not from 0 to 1; give probabilities", func(x *Exec) {
		x.BCE(three(x), x.Zeros([]int{3}, dtype.Float32), BCEOpt{})
	}},
	{"BCE", "target 3 is not from 0 to 1", func(x *Exec) {
		x.BCE(x.Zeros([]int{3}, dtype.Float32), x.AddS(x.Zeros([]int{3}, dtype.Float32), 3), BCEOpt{})
	}},
	{"AssertAsync", "the value is zero, in the operand t", func(x *Exec) { x.AssertAsync(x.Zeros(nil, dtype.Float32)) }},
}

func three(x *Exec) *Tensor { return From(x, []float32{0, 2, 1}) }

func openWith(t *testing.T, sel rt.Selector) (*Exec, *rt.Device) {
	t.Helper()
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rt.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	return New(dev, host), dev
}

// wantUnmet checks the error of a failed assertion.
func wantUnmet(t *testing.T, err error, op, said string) {
	t.Helper()
	wantError(t, err, fault.Invalid, said, "survive_test.go:")
	var e *fault.Error
	if !errors.As(err, &e) || e.Op != op || filepath.Base(e.File) != "survive_test.go" {
		t.Errorf("%v of op %q at %s, want %s", err, e.Op, e.File, op)
	}
	for _, s := range []string{"kernel ", "Launch:", "thread", "lost", "bool[]"} {
		if strings.Contains(err.Error(), s) {
			t.Errorf("%q speaks of %q", err, s)
		}
	}
}

// TestAssertionsSurvive checks that on the simulated device a failed assertion is reported once, by the call that waits for the work, with
// operation, line and number, and that the device stays usable and nothing is lost. On the processor it is the error of the call.
func TestAssertionsSurvive(t *testing.T) {
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		x, dev := openWith(t, sel)
		before := live.Load()
		x.Scope(func(x *Exec) {
			kept := three(x)
			for _, c := range unmetCalls {
				t.Run(dev.Info().Name+" "+c.op, func(t *testing.T) {
					err := Try(func() { x.Scope(func(x *Exec) { c.run(x) }) })
					if !dev.Info().Inline {
						if err != nil {
							t.Fatalf("the call itself failed: %v", err)
						}
						err = x.Synchronize()
					}
					wantUnmet(t, err, c.op, c.said)
					if err := x.Synchronize(); err != nil {
						t.Errorf("told twice: %v", err)
					}
					if err := dev.Lost(); err != nil {
						t.Errorf("the device is lost: %v", err)
					}
				})
				x.Scope(func(x *Exec) { want(t, x, x.Neg(kept), 0, -2, -1) })
			}
		})
		if n := live.Load() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
		if sel.Kind != rt.CPU {
			if err := dev.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	}
}

// TestAssertionsOfGraphs checks that a failed assertion of a graph's run names the captured call, also on the processor.
func TestAssertionsOfGraphs(t *testing.T) {
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		x, _ := openWith(t, sel)
		x.Scope(func(x *Exec) {
			src, index := three(x), From(x, []int64{7})
			_, _, line, _ := runtime.Caller(0)
			g, err := x.Capture(func(x *Exec) { x.Gather(src, 0, index) }, CaptureOpt{})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			for range 2 {
				err := x.Replay(g)
				if err == nil {
					err = x.Synchronize()
				}
				wantError(t, err, fault.Invalid, "Gather(float32[3], int64[1]): index 7 is out of range for size 3, in the operand index",
					fmt.Sprintf("survive_test.go:%d", line+1))
			}
			x.CopyInto(index, From(x, []int64{2}))
			if err := errors.Join(x.Replay(g), x.Synchronize()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestIndexNamesItsOperands checks that errors about an index name the operands of the program, in their order.
func TestIndexNamesItsOperands(t *testing.T) {
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		x, _ := openWith(t, sel)
		at := func(n int64) Place { return PlaceTensor(From(x, []int64{n})) }
		for want, run := range map[string]func(rows *Tensor){
			"Index(float32[3 4], int64[1], int64[1]): index 5": func(rows *Tensor) { x.Index(rows, []Place{at(1), at(5)}) },
			"IndexPutInto(float32[3 4], float32[], int64[1], int64[1]): index -4": func(rows *Tensor) {
				x.IndexPutInto(rows, x.Ones(nil, dtype.Float32), []Place{at(-4), at(1)}, false)
			},
			"IndexPutSInto(float32[3 4], int64[1]): index 3": func(rows *Tensor) { x.IndexPutSInto(rows, 1, []Place{at(3)}, false) },
			"IndexSelect(float32[3 4], int64[1]): index 4":   func(rows *Tensor) { x.IndexSelect(rows, 1, From(x, []int64{4})) },
			"IndexCopyInto(float32[3 4], int64[1], float32[1 4]): index 3": func(rows *Tensor) {
				x.IndexCopyInto(rows, rows, 0, From(x, []int64{3}), x.Ones([]int{1, 4}, dtype.Float32))
			},
			"IndexAdd(float32[3 4], int64[1], float32[1 4]): index 3": func(rows *Tensor) {
				x.IndexAdd(rows, 0, From(x, []int64{3}), x.Ones([]int{1, 4}, dtype.Float32), IndexAddOpt{})
			},
			"Multinomial(float32[3 4]): the probabilities of a row": func(rows *Tensor) {
				x.Multinomial(x.MulS(rows, 0), 2, MultinomialOpt{Replacement: true})
			},
			"Multinomial(float32[3 4]): ": func(rows *Tensor) { x.Multinomial(x.MulS(rows, 0), 2, MultinomialOpt{}) },
		} {
			err := Try(func() { run(x.Ones([]int{3, 4}, dtype.Float32)) })
			if err == nil {
				err = x.Synchronize()
			}
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// TestAssertionsToldOnce checks that whoever waits for work after the failed one gets the report (a read, an event, another stream, the
// device, Close), and nobody else does.
func TestAssertionsToldOnce(t *testing.T) {
	x, dev := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
	streams := [2]*rt.Stream{}
	for i := range streams {
		var err error
		if streams[i], err = dev.Stream(); err != nil {
			t.Fatal(err)
		}
	}
	other, reader := x.On(streams[0]), x.On(streams[1])
	_, _, line, _ := runtime.Caller(0)
	bad := func(x *Exec) *Tensor { return x.Gather(three(x), 0, From(x, []int64{7})) }
	e := dev.NewEvent(false)
	for what, wait := range map[string]func(y *Tensor) error{
		"Item":        func(y *Tensor) error { _, err := x.Item(y); return err },
		"Read":        func(y *Tensor) error { _, err := Read[float32](reader, y); return err },
		"a stream":    func(y *Tensor) error { reader.Neg(y); return reader.Synchronize() },
		"an event":    func(*Tensor) error { return errors.Join(e.Record(x.Stream()), e.Synchronize()) },
		"the device":  func(*Tensor) error { return dev.Synchronize() },
		"a host copy": func(y *Tensor) error { return Try(func() { x.Host().To(y, ToOpt{}) }) },
	} {
		x.Scope(func(x *Exec) {
			y := bad(x)
			other.Neg(three(other))
			if err := other.Synchronize(); err != nil {
				t.Errorf("before %s a stream of its own is told: %v", what, err)
			}
			x.Add(y, y) // calls go on meanwhile
			err := wait(y)
			wantError(t, err, fault.Invalid, "Gather(float32[3], int64[1]): index 7")
			var e *fault.Error
			for errors.As(err, &e) && e.Op != "Gather" {
				err = e.Cause
			}
			if e.Line != line+1 {
				t.Errorf("%s is told of line %d, want %d", what, e.Line, line+1)
			}
			if err := errors.Join(x.Synchronize(), reader.Synchronize(), dev.Synchronize()); err != nil {
				t.Errorf("after %s: %v", what, err)
			}
		})
	}
	x.Scope(func(x *Exec) { bad(x) })
	wantError(t, dev.Close(), fault.Invalid, "Gather(float32[3], int64[1]): index 7")
}

// TestAssertionsInGraphs checks that an assertion that fails in a graph's replay reports the captured call.
func TestAssertionsInGraphs(t *testing.T) {
	x, dev := openWith(t, rt.Selector{Kind: rt.Sim, Memory: 64 << 20})
	x.Scope(func(x *Exec) {
		src, index := three(x), From(x, []int64{1})
		g, err := x.Capture(func(x *Exec) { x.Gather(src, 0, index) }, CaptureOpt{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for _, i := range []int64{2, 5, 0} {
			x.CopyInto(index, From(x, []int64{i}))
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			switch err := x.Synchronize(); i {
			case 5:
				wantUnmet(t, err, "Gather", "index 5 is out of range for size 3")
			default:
				if err != nil {
					t.Errorf("index %d: %v", i, err)
				}
			}
		}
	})
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// TestAssertionsOfPrograms checks that an assertion in a program's own kernel is reported with its own text, kernel, line and thread.
func TestAssertionsOfPrograms(t *testing.T) {
	k := kernel.Build("own", func(k *kernel.Builder) {
		n := k.Scalar("n", dtype.Int32)
		k.Assert(n.Lt(k.I32(4)), "n is %v, not below %v", n, k.I32(4))
	})
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		x, _ := openWith(t, sel)
		err := Try(func() { x.Launch(k, Over(1), Integer(3)) })
		err = errors.Join(err, x.Synchronize())
		if err != nil {
			t.Fatal(err)
		}
		err = Try(func() { x.Launch(k, Over(1), Integer(9)) })
		if err == nil {
			err = x.Synchronize()
		}
		wantError(t, err, fault.Invalid, "kernel own at ", "survive_test.go:", "n is 9, not below 4", "by thread (0,0,0)")
	}
}

// TestProbabilitiesAreAsserted checks that numbers that are not probabilities are found in every type, and that 0 and 1, and empty tensors,
// are accepted.
func TestProbabilitiesAreAsserted(t *testing.T) {
	for _, sel := range []rt.Selector{{Kind: rt.CPU}, {Kind: rt.Sim, Memory: 64 << 20}} {
		x, dev := openWith(t, sel)
		for _, dt := range []dtype.DType{dtype.Float16, dtype.Float32, dtype.Float64} {
			for said, v := range map[string]float64{"-0.25": -0.25, "1.25": 1.25, "NaN": math.NaN(), "+Inf": math.Inf(1)} {
				for _, c := range []struct {
					op, said string
					run      func(x *Exec, bad, good *Tensor)
				}{
					{"Bernoulli", "probability ", func(x *Exec, bad, good *Tensor) { x.Bernoulli(bad) }},
					{"BCE", "input ", func(x *Exec, bad, good *Tensor) { x.BCE(bad, good, BCEOpt{}) }},
					{"BCE", "target ", func(x *Exec, bad, good *Tensor) { x.BCE(good, bad, BCEOpt{}) }},
				} {
					x.Scope(func(x *Exec) {
						good := x.ToDType(From(x, []float64{0, 1, math.Copysign(0, -1), 0.5, 0.5}), dt)
						bad := x.ToDType(From(x, []float64{0, 1, 0.5, 0.5, v}), dt)
						c.run(x, good, good)
						c.run(x, x.Narrow(bad, 0, 0, 4), x.Narrow(good, 0, 0, 4))
						c.run(x, x.Narrow(bad, 0, 5, 0), x.Narrow(good, 0, 5, 0))
						if err := x.Synchronize(); err != nil {
							t.Fatal(err)
						}
						err := Try(func() { c.run(x, bad, good) })
						if err == nil && !dev.Info().Inline {
							err = x.Synchronize()
						}
						wantUnmet(t, err, c.op, c.said+said+" is not from 0 to 1")
					})
				}
			}
		}
	}
}

// farKernel stores far beyond its buffer.
var farKernel = kernel.Build("far", func(k *kernel.Builder) {
	n, y := k.Scalar("n", dtype.Int64), k.Buffer("y", dtype.Float32)
	k.ForEach(n, func(i kernel.Value) { y.Store(i.Add(k.I64(1<<40)), k.F32(1)) })
})

// TestFarAccessOnProcessor: the processor says that the kernel ran, and where, and goes on.
func TestFarAccessOnProcessor(t *testing.T) {
	dev, err := rt.Open(rt.Selector{Kind: rt.CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	x := New(dev, dev)
	y := x.Zeros([]int{1}, dtype.Float32)
	defer y.Close()
	err = Try(func() { x.Launch(farKernel, LaunchShape{Grid: [3]int{1}, Block: [3]int{1}}, Integer(1), Out(y)) })
	wantError(t, err, fault.Device, "the work failed while it ran", "illegal memory access", "kernel far", "survive_test.go:")
	want(t, x, x.AddS(y, 2), 2)
}
