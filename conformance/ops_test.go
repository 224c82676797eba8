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
	"tenon.dev/internal/recorded"
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
	x, err := tenon.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// failures are the failed cases of one operation.
type failures struct {
	op    string
	count int
	first []string
}

// TestOps runs PyTorch's recorded calls of operations and compares values, gradients, types, shapes and strides.
func TestOps(t *testing.T) {
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
	x := open(t)
	var failed []*failures
	r := recorded.Runner{
		Required: required,
		Strides:  recorded.ExactStrides,
		Call: func(c *recorded.Case) (recorded.Outcome, error) {
			if !match.MatchString(c.Op) {
				return recorded.Outcome{}, recorded.ErrNotOffered
			}
			return call(x, c)
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
	tally, err := r.Run(cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range failed {
		t.Errorf("%s: %d cases failed", f.op, f.count)
		for _, s := range f.first {
			t.Log(s)
		}
	}
	t.Log(tally)
}

// call runs one case through the registry.
func call(x *tenon.Exec, c *recorded.Case) (out recorded.Outcome, err error) {
	f := registry[c.Op]
	if f == nil {
		return out, recorded.ErrNotOffered
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *tenon.Error:
			err = r
		case badCase:
			err = errors.New(r.msg)
		default:
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	x.Scope(func(x *tenon.Exec) { out, err = run(x, c, f) })
	return out, err
}

func run(x *tenon.Exec, c *recorded.Case, f func(a *args) any) (out recorded.Outcome, err error) {
	a := newArgs(x, c)
	res := f(a)
	if k := a.unused(); k != "" {
		return out, fmt.Errorf("the registry's function does not look at the argument %s", k)
	}
	if out.Out, err = storeAll(x, res); err != nil || c.GradOut == nil {
		return out, err
	}
	if err := backward(x, c, res); err != nil {
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

// backward runs the derivatives of the results with the recorded gradients.
func backward(x *tenon.Exec, c *recorded.Case, res any) error {
	results, _ := res.([]*tenon.Tensor)
	if t, ok := res.(*tenon.Tensor); ok {
		results = []*tenon.Tensor{t}
	}
	results = slices.DeleteFunc(slices.Clone(results), func(t *tenon.Tensor) bool { return !t.DType().IsFloat() && !t.DType().IsComplex() })
	if len(results) != len(c.GradOut) {
		return fmt.Errorf("there are %d differentiable results, but %d recorded gradients of them", len(results), len(c.GradOut))
	}
	for i, t := range results {
		opt := tenon.BackwardOpt{RetainGraph: i < len(results)-1}
		if err := x.Backward(t, load(x, c.GradOut[i]), opt); err != nil {
			return err
		}
	}
	return nil
}
