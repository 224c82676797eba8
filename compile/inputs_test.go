package compile_test

import (
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// manyInputs makes n tensors with the numbers from first on: of 1 to n float32, and as many bytes, which begin anywhere, for every fourth.
func manyInputs(x *tenon.Exec, n, first int) (all []*tenon.Tensor) {
	for i := range n {
		v := make([]float32, i+1)
		for j := range v {
			v[j] = float32((first + i + j) % 251)
		}
		t := tenon.From(x, v, i+1)
		if i%4 == 3 {
			b := x.Empty([]int{i + 9}, tenon.Uint8)
			x.FillInto(b, 7)
			part := x.Narrow(b, 0, i%8, i+1)
			x.CopyInto(part, x.ToDType(t, tenon.Uint8))
			t = part
		}
		all = append(all, t)
	}
	return all
}

// joinAll returns the elements of all tensors as one tensor.
func joinAll(x *tenon.Exec, all []*tenon.Tensor) *tenon.Tensor {
	var rows []*tenon.Tensor
	for _, t := range all {
		rows = append(rows, x.AddS(x.ToDType(t, tenon.Float32), 1))
	}
	return x.Cat(rows, 0)
}

// The inputs of a graph are copied by one kernel for every 32 that consist of words, and by the driver where they do not.
func TestInputsAreCopiedTogether(t *testing.T) {
	x, rec := openRecorded(t)
	for _, c := range []struct{ inputs, kernels, copies int }{{1, 1, 0}, {2, 1, 0}, {8, 1, 2}, {42, 1, 10}, {48, 2, 12}} {
		f := compile.Func(joinAll)
		for run := range 5 {
			x.Scope(func(x *tenon.Exec) {
				in := manyInputs(x, c.inputs, 100*run)
				want := read(t, x, joinAll(x, in))
				rec.Reset()
				y := f.Call(x, in)
				launches, copies, graphs := rec.Count("Launch"), rec.Count("CopyDtoD"), rec.Count("GraphLaunch")
				if got := read(t, x, y); got != want {
					t.Errorf("%d inputs, run %d: got %s, want %s", c.inputs, run, got, want)
				}
				if run >= 2 && (launches != c.kernels || copies != c.copies || graphs != 1) {
					t.Errorf("%d inputs, run %d: %d kernels, %d copies and %d graphs, want %d, %d and 1", c.inputs, run, launches, copies,
						graphs, c.kernels, c.copies)
				}
			})
		}
		must(t, compile.Reset(x))
	}
}

// Nothing is copied for an input without elements, of which views have offsets that its memory does not have.
func TestEmptyInputsAreNotCopied(t *testing.T) {
	x, rec := openRecorded(t)
	f := compile.Func(func(x *tenon.Exec, in, other *tenon.Tensor) *tenon.Tensor {
		left, right := x.Narrow(in, 1, 0, 1), x.Narrow(in, 1, 1, 1)
		return x.Cat([]*tenon.Tensor{x.AddS(x.Cat([]*tenon.Tensor{right, left}, 0), 1), x.MulS(other, 2)}, 0)
	})
	other := x.Ones([]int{3, 1}, tenon.Float32)
	var keep []*tenon.Tensor // so that each run has other inputs
	for run := range 5 {
		in := x.Zeros([]int{0, 2}, tenon.Float32)
		keep = append(keep, in)
		rec.Reset()
		y := f.Call(x, in, other)
		if got := read(t, x, y); got != "[2 2 2]" {
			t.Errorf("run %d: got %s", run, got)
		}
		y.Close()
		// the kernel copies the other input
		if kernels, copies, graphs := rec.Count("Launch"), rec.Count("CopyDtoD"), rec.Count("GraphLaunch"); run >= 2 &&
			(kernels != 1 || copies != 0 || graphs != 1) {
			t.Errorf("run %d: %d kernels, %d copies and %d graphs, want 1, 0 and 1", run, kernels, copies, graphs)
		}
	}
	for _, in := range keep {
		in.Close()
	}
	if s := f.Stats(x); s.Recordings != 1 || s.Replays < 3 {
		t.Errorf("%+v", s)
	}
}

// If the driver refuses a call, such as the load of the kernel that copies inputs, results are right or there is an error.
func TestInputsAreCopiedDespiteFaults(t *testing.T) {
	x, d := openFailing(t)
	run := func(f func(x *tenon.Exec, all []*tenon.Tensor) *tenon.Tensor, arm int) (got string, fired bool, err error) {
		x.Scope(func(x *tenon.Exec) {
			in := manyInputs(x, 8, 3)
			d.Arm(arm, 0)
			var v []float32
			err = tenon.Try(func() {
				var failed error
				if v, failed = tenon.Read[float32](x, f(x, in)); failed != nil {
					panic(failed)
				}
			})
			got = fmt.Sprint(v)
			method, _ := d.Fired()
			fired = method != ""
			d.Arm(0, 0)
		})
		return got, fired, err
	}
	want, _, _ := run(joinAll, 0)
	rights := 0
	for before := range 3 {
		for n := 1; ; n++ {
			f := compile.Func(joinAll)
			for range before {
				_, _, err := run(f.Call, 0)
				must(t, err)
			}
			got, fired, err := run(f.Call, n)
			if !fired {
				break
			}
			if err == nil {
				rights++
			}
			again, _, secondErr := run(f.Call, 0)
			if err == nil && got != want || secondErr != nil || again != want {
				t.Fatalf("point %d of run %d: %v, then %v; got %s and %s, want %s", n, before, err, secondErr, got, again, want)
			}
		}
	}
	if rights == 0 {
		t.Error("no fault was survived")
	}
	must(t, compile.Reset(x))
}

// Calls on arrays without elements are a graph without nodes, which nobody needs to be told.
func TestEmptyGraphsAreQuiet(t *testing.T) {
	x := open(t)
	a, r := x.Empty([]int{0, 4}, tenon.Float32), compile.New()
	told := warnings(func() {
		for range 4 {
			var y *tenon.Tensor
			must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(x.Exp(a)); return nil }))
			y.Close()
		}
	})
	if s := r.Stats(x); told != "" || s.Replays == 0 {
		t.Errorf("%+v, %q", s, told)
	}
}
