package compile_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

type batchOf struct {
	In     *tenon.Tensor
	hidden [2]*tenon.Tensor
	More   map[string]*tenon.Tensor
	Any    any
	Size   int
}

// Tensors in structs, arrays and maps are arguments and results like others: they may move, and they are kept.
func TestTensorsInStructs(t *testing.T) {
	x := open(t)
	f := compile.Func(func(x *tenon.Exec, b batchOf, list [][]*tenon.Tensor) (batchOf, error) {
		sum := x.Add(x.Add(b.In, b.hidden[0]), x.Add(b.More["b"], b.Any.([]*tenon.Tensor)[0]))
		for _, row := range list {
			for _, t := range row {
				if t != nil {
					sum = x.Add(sum, t)
				}
			}
		}
		return batchOf{In: sum, More: map[string]*tenon.Tensor{"twice": x.MulS(sum, 2)}, hidden: [2]*tenon.Tensor{1: x.Neg(sum)},
			Any: []any{x.MulS(sum, 3)}, Size: b.Size}, nil
	})
	for i := range 8 {
		x.Scope(func(x *tenon.Exec) {
			n := float64(i)
			full := func(v float64) *tenon.Tensor { return x.Full([]int{3}, v, tenon.Float32) }
			in := batchOf{In: full(n), hidden: [2]*tenon.Tensor{full(1)}, More: map[string]*tenon.Tensor{"b": full(2), "a": nil},
				Any: []*tenon.Tensor{full(10 * n)}, Size: i}
			r, err := f.Call(x, in, [][]*tenon.Tensor{{full(100)}, {nil, full(200)}})
			must(t, err)
			s := 11*n + 303
			got := fmt.Sprint(read(t, x, r.In), read(t, x, r.More["twice"]), read(t, x, r.hidden[1]),
				read(t, x, r.Any.([]any)[0].(*tenon.Tensor)), r.Size)
			want := fmt.Sprintf("[%[1]v %[1]v %[1]v][%[2]v %[2]v %[2]v][%[3]v %[3]v %[3]v][%[4]v %[4]v %[4]v]%[5]d", s, 2*s, -s, 3*s, i)
			if got != want {
				t.Errorf("run %d: got %s, want %s", i, got, want)
			}
			for range i { // the next arguments lie elsewhere
				x.Keep(full(0))
			}
		})
	}
	if s := f.Stats(x); s.Recordings != 1 || s.Replays != 6 {
		t.Errorf("%+v", s)
	}
	type tree struct { // which holds itself twice, and a tensor
		Left, Right []tree
		Leaf        *tenon.Tensor
	}
	sum := compile.Func(func(x *tenon.Exec, t tree) *tenon.Tensor { return x.Add(t.Leaf, t.Right[0].Leaf) })
	for i := range 5 {
		leaf := x.Full([]int{2}, float64(i), tenon.Float32)
		got, want := read(t, x, sum.Call(x, tree{Leaf: leaf, Right: []tree{{Leaf: x.MulS(leaf, 2)}}})), fmt.Sprint([]int{3 * i, 3 * i})
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if s := sum.Stats(x); s.Recordings != 1 || s.Replays != 3 {
		t.Errorf("%+v", s)
	}
	endless := map[string]any{}
	endless["self"] = endless
	g := compile.Func(func(x *tenon.Exec, m map[string]any) *tenon.Tensor { return x.Ones([]int{2}, tenon.Float32) })
	if got := read(t, x, g.Call(x, endless)); got != "[1 1]" {
		t.Error(got)
	}
}

func TestOptionsOfCompile(t *testing.T) {
	x := open(t)
	neg := func(x *tenon.Exec, a *tenon.Tensor) *tenon.Tensor { return x.Neg(a) }
	for want, f := range map[string]func(){ //tenon:unordered each is looked at alone
		"New: Branches is -1; give a positive number, or 0 for 64":            func() { compile.New(compile.Opt{Branches: -1}) },
		"Func: Static names argument -1; tensor arguments are counted from 0": func() { compile.Func(neg, compile.Opt{Static: []int{-1}}) },
		"Static names tensor argument 1, but the call has 1 tensors, counted f": func() {
			compile.Func(neg, compile.Opt{Static: []int{0, 1}}).Call(x, x.Ones([]int{2}, tenon.Float32))
		},
	} {
		if err := tenon.Try(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
