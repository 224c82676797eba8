package nn_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// inner is a type that contains itself.
type inner struct {
	Lin  *nn.Linear
	Next *inner
}

// A hidden field that holds parameters is an error, since they would not be trained, moved or saved. A field that cannot hold any is no
// error.
func TestHiddenModules(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLinear(x, 2, 2)
		defer nn.Close(l)
		for name, m := range map[string]any{
			"param":     &struct{ w *nn.Param }{l.Weight},
			"buffer":    &struct{ w []*nn.Buffer }{[]*nn.Buffer{nil}},
			"module":    &struct{ fc *nn.Linear }{l},
			"interface": &struct{ fc nn.Module }{l},
			"list":      &struct{ fc nn.Sequential }{nn.Sequential{l}},
			"map":       &struct{ fc map[string]nn.Module }{map[string]nn.Module{"a": l}},
			"struct":    &struct{ fc inner }{inner{Lin: l}},
			"deep":      []any{&struct{ fc *inner }{&inner{Lin: l}}},
		} {
			wantError(t, func() {
				for range nn.Params(m) {
				}
			}, "Params", "is not exported")
			if _, err := optim.NewSGD(nn.Params(m)); err == nil {
				t.Errorf("%s: an optimizer took what it could not see", name)
			}
		}
		n := 0
		for range nn.Params(&struct {
			FC     *nn.Linear
			number int
			any    any
			none   *nn.Linear
			f      func(m nn.Module)
			texts  map[string][]string
			out    *nn.Linear `torch:"-"`
		}{FC: l, number: 3, any: l, texts: map[string][]string{"a": nil}, out: l}) {
			n++
		}
		if n != 2 {
			t.Errorf("%d parameters were found", n)
		}
	})
}

// The modules of a map come in the order of their keys, and numbers in keys in that of their values.
func TestKeysInOrder(t *testing.T) {
	want := []string{"", "02", "2", "10", "a", "a0b", "a00c", "a1", "a9z", "a10", "a10.1", "a10.10", "a123456789012345678901", "ab", "b"}
	m := map[string]*nn.Param{}
	for _, key := range want {
		m[key] = &nn.Param{}
	}
	var got []string
	for name := range nn.Params(m) {
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// base is an embedded struct.
type base struct{ Weight *nn.Param }

// Two parameters or buffers with one key are an error that names both fields and the key, before anything is saved or loaded.
func TestKeysAlike(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		one, two := nn.NewLinear(x, 2, 2, nn.LinearOpt{NoBias: true}), nn.NewLinear(x, 2, 2, nn.LinearOpt{NoBias: true})
		defer nn.Close(one)
		defer nn.Close(two)
		buffer := nn.NewBuffer(x.Ones([]int{2}, tenon.Float32))
		defer buffer.Close()
		state := map[string]*tenon.Tensor{"fc.weight": x.Ones([]int{2, 2}, tenon.Float32)}
		name := filepath.Join(t.TempDir(), "model")
		for _, c := range []struct {
			m    any
			says []string
		}{
			{&struct {
				A *nn.Linear `torch:"fc"`
				B *nn.Linear `torch:"fc"`
			}{one, two}, []string{"field A.Weight and field B.Weight of", `"fc.weight"`}},
			{&struct {
				A *nn.Linear `torch:"fc"`
				B *nn.Buffer `torch:"fc.weight"`
			}{one, buffer}, []string{"field A.Weight", "field B ", `"fc.weight"`}},
			{&struct {
				base
				W *nn.Param `torch:"Weight"`
			}{base{one.Weight}, two.Weight}, []string{"field base.Weight", "field W ", `"Weight"`}},
			{[]any{map[string]any{"a": []nn.Module{one}, "a.0": two}}, []string{`field [0]["a"][0].Weight`, `field [0]["a.0"].Weight`,
				`"0.a.0.weight"`}},
		} {
			refused := func(what string, err error) {
				t.Helper()
				for _, want := range c.says {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: got %v, want %q", what, err, want)
					}
				}
			}
			refused("SaveFile", nn.SaveFile(x, c.m, name))
			refused("Load", nn.Load(x, c.m, state, nn.LoadOpt{Partial: true}))
			refused("Tensors", tenon.Try(func() { torchfile.Tensors(nn.StateDict(c.m)) }))
		}
		if err := nn.SaveFile(x, one, name); err != nil {
			t.Fatal(err)
		}
		err := nn.LoadFile(x, &struct {
			A *nn.Linear `torch:""`
			base
		}{one, base{two.Weight}}, name, nn.LoadOpt{Partial: true})
		if err != nil {
			t.Errorf("other keys: %v", err)
		}
	})
}

// A slice that contains itself is an error, and so is nesting deeper than any real module's.
func TestEndlessModules(t *testing.T) {
	loop := nn.Sequential{nil}
	loop[0] = loop
	chain := any(nil)
	for range 1_000_000 {
		next := chain
		chain = &next
	}
	for _, m := range []any{loop, map[string]any{"a": loop}, chain} {
		for _, f := range []func(){
			func() { nn.Close(m) }, func() { nn.Train(m) }, func() { nn.StateDict(m)(func(string, *tenon.Tensor) bool { return true }) }} {
			wantError(t, f, "Params", "contains itself")
		}
	}
}
