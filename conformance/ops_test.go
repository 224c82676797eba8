package conformance

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/testdevice"
)

var (
	opsFlag    = flag.String("ops", "testdata/ops_a.tar.gz", "file of the recorded cases")
	deviceFlag = flag.String("device", "cpu", "device of the operations: cpu, sim or cuda")
	matchFlag  = flag.String("match", "", "run only the operations that match this regular expression")
	shownFlag  = flag.Int("shown", 1, "how many failures of each operation to show")
)

// open opens the device that the flag names.
func open(t *testing.T) *tenon.Exec {
	sel, ok := map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(0), "cuda": tenon.CUDA(0)}[*deviceFlag]
	if !ok {
		t.Fatalf("-device is %q; it is cpu, sim or cuda", *deviceFlag)
	}
	return testdevice.Open(t, sel)
}

// failures are the failed cases of one operation.
type failures struct {
	op    string
	count int
	first []string
}

// TestOps runs PyTorch's recorded calls of operations and compares values, gradients, types, shapes and strides.
func TestOps(t *testing.T) {
	t.Log((&opRunner{}).runAll(t, open(t)))
}

// TestOpsCaptured runs the same calls as replays of captured graphs, forward and backward, where they can be captured.
func TestOpsCaptured(t *testing.T) {
	r := &opRunner{capture: true}
	tally := r.runAll(t, open(t))
	t.Logf("captured: %d calls, %d that cannot be", r.captured, r.refused)
	t.Log(tally)
	if r.refused*20 > r.captured {
		t.Errorf("%d calls cannot be captured, more than a twentieth", r.refused)
	}
}

// opRunner runs cases through the registry.
type opRunner struct {
	// capture says that calls run as replays of graphs; captured and refused count those that did and could not.
	capture           bool
	captured, refused int
	// after is called after every call; it may be nil.
	after func()
}

func (r *opRunner) runAll(t *testing.T, x *tenon.Exec) recorded.Tally {
	cases, err := recorded.OpenCases(*opsFlag)
	if err != nil {
		t.Fatal(err)
	}
	required, err := recorded.OpNames("testdata/ops01.txt")
	if err != nil {
		t.Fatal(err)
	}
	match, err := regexp.Compile(*matchFlag)
	if err != nil {
		t.Fatal(err)
	}
	required = slices.DeleteFunc(required, func(op string) bool { return !match.MatchString(op) })
	var failed []*failures
	runner := recorded.Runner{
		Required: required,
		Strides:  recorded.ExactStrides,
		Call: func(c *recorded.Case) (recorded.Outcome, error) {
			if !match.MatchString(c.Op) {
				return recorded.Outcome{}, recorded.ErrNotOffered
			}
			return r.call(x, c)
		},
		Failed: func(c *recorded.Case, err error) {
			i := slices.IndexFunc(failed, func(f *failures) bool { return f.op == c.Op })
			if i < 0 {
				i = len(failed)
				failed = append(failed, &failures{op: c.Op})
			}
			f := failed[i]
			f.count++
			if len(f.first) < *shownFlag {
				f.first = append(f.first, fmt.Sprintf("%s: %v", c.Name(), err))
			}
		},
	}
	tally, err := runner.Run(cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range failed {
		t.Errorf("%s: %d cases failed", f.op, f.count)
		for _, s := range f.first {
			t.Log(s)
		}
	}
	return tally
}

// call runs one case through the registry.
func (r *opRunner) call(x *tenon.Exec, c *recorded.Case) (out recorded.Outcome, err error) {
	f := offered(c)
	if f == nil {
		return out, recorded.ErrNotOffered
	}
	defer recovered(&err)
	x.Scope(func(x *tenon.Exec) {
		if r.capture {
			out, err = r.replay(x, c, f)
		} else {
			out, err = r.direct(x, c, f)
		}
	})
	return out, err
}

// recovered makes the panic of a case its error.
func recovered(err *error) {
	switch r := recover().(type) {
	case nil:
	case *tenon.Error:
		*err = r
	case badCase:
		*err = errors.New(r.msg)
	default:
		*err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
	}
}

// direct runs a case as a user would.
func (r *opRunner) direct(x *tenon.Exec, c *recorded.Case, f func(x *tenon.Exec, a *args) any) (out recorded.Outcome, err error) {
	a, grads := newArgs(x, c), loadAll(x, c.GradOut)
	live := core.LiveStorages()
	res := f(x, a)
	if r.after != nil {
		r.after()
	}
	if n := core.LiveStorages() - live; c.GradOut == nil && n > storages(res) {
		return out, fmt.Errorf("the operation left %d storages for %d in its results", n, storages(res))
	}
	if err := backward(x, res, grads); err != nil {
		return out, err
	}
	return a.outcome(x, res)
}

// replay captures a case and runs the graph; a call that cannot be captured is run directly.
func (r *opRunner) replay(x *tenon.Exec, c *recorded.Case, f func(x *tenon.Exec, a *args) any) (out recorded.Outcome, err error) {
	a, grads := newArgs(x, c), loadAll(x, c.GradOut)
	var res any
	var backErr error
	g, err := x.Capture(func(x *tenon.Exec) {
		res = f(x, a)
		backErr = backward(x, res, grads)
	})
	var refused *tenon.Error
	if errors.As(errors.Join(err, backErr), &refused) && refused.Kind == fault.Capture {
		r.refused++
		return r.direct(x, c, f)
	}
	if err = errors.Join(err, backErr); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if err := x.Replay(g); err != nil {
		return out, err
	}
	r.captured++
	return a.outcome(x, res)
}

// outcome reads the results and gradients of a call.
func (a *args) outcome(x *tenon.Exec, res any) (out recorded.Outcome, err error) {
	if k := a.unused(); k != "" {
		return out, fmt.Errorf("the registry's function does not look at the argument %s", k)
	}
	if out.Out, err = storeAll(x, res); err != nil || a.c.GradOut == nil {
		return out, err
	}
	if len(a.grads) > 0 {
		return out, errors.New("the registry's function does not look at an argument that wants a gradient")
	}
	for _, leaf := range a.leaves {
		g, err := store(x, leaf.Grad())
		if err != nil {
			return out, err
		}
		out.Grads = append(out.Grads, g)
	}
	return out, nil
}

// tensorsOf lists the tensors of a result.
func tensorsOf(res any) []*tenon.Tensor {
	if t, ok := res.(*tenon.Tensor); ok {
		return []*tenon.Tensor{t}
	}
	results, _ := res.([]*tenon.Tensor)
	return results
}

// storages counts the storages of a result.
func storages(res any) int {
	ts := tensorsOf(res)
	n := 0
	for i, t := range ts {
		if !slices.ContainsFunc(ts[:i], t.SharesStorage) {
			n++
		}
	}
	return n
}

// backward runs the derivatives of the differentiable results with the recorded gradients, if there are any.
func backward(x *tenon.Exec, res any, grads []*tenon.Tensor) error {
	if grads == nil {
		return nil
	}
	results := slices.DeleteFunc(slices.Clone(tensorsOf(res)), func(t *tenon.Tensor) bool {
		return !t.DType().IsFloat() && !t.DType().IsComplex()
	})
	if len(results) != len(grads) {
		return fmt.Errorf("there are %d differentiable results, but %d recorded gradients of them", len(results), len(grads))
	}
	for i, t := range results {
		opt := tenon.BackwardOpt{Gradient: grads[i], RetainGraph: i < len(results)-1}
		if err := x.Backward(t, opt); err != nil {
			return err
		}
	}
	return nil
}
