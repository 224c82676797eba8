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
