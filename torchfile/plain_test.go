package torchfile_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"math"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/pickle"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/torchfile"
)

type savedRates []float64

type savedBase struct {
	Epoch uint16
	Done  bool
}

type savedRun struct {
	savedBase
	Rates  savedRates `torch:"lr"`
	Betas  [2]float32
	Best   *float64
	Names  map[string][]string
	Next   *savedRun
	Hash   uint64
	Raw    []byte
	cached func() `torch:"-"`
}

// written returns a file that holds v.
func written(t *testing.T, x *tenon.Exec, v any) *torchfile.File {
	t.Helper()
	var b bytes.Buffer
	if err := torchfile.Write(x, &b, v); err != nil {
		t.Fatal(err)
	}
	return open(t, b.Bytes())
}

// Values of Go become dicts, lists, numbers and strings, and come back as they were.
func TestValuesOfGo(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	best := .5
	run := savedRun{savedBase: savedBase{Epoch: 7, Done: true}, Rates: savedRates{.1, .2}, Betas: [2]float32{.5, .75}, Best: &best,
		Names: map[string][]string{"b": {"x"}, "a": nil},
		Next:  &savedRun{}, Hash: math.MaxUint64, Raw: []byte{0, 'a', 0x80, 0xff}, cached: func() {}}
	f := written(t, x, map[string]any{"run": run, "half": []dtype.F16{dtype.F16FromFloat32(1.5)}, "few": []int32{1, -2},
		"flags": []bool{true, false}})
	got := fmt.Sprint(describe(f.Root()))
	want := "{few: [1 -2], flags: [true false], half: [1.5], run: {Epoch: 7, Done: true, lr: [0.1 0.2], Betas: [0.5 0.75], " +
		"Best: 0.5, Names: {a: [], b: [x]}, " +
		"Next: {Epoch: 0, Done: false, lr: [], Betas: [0 0], Best: <nil>, Names: {}, Next: <nil>, " +
		"Hash: 0, Raw: []}, Hash: 18446744073709551615, Raw: [0 97 128 255]}}"
	if got != want {
		t.Errorf("the file has\n%s\nwant\n%s", got, want)
	}
	value, _ := f.Root().(*torchfile.Dict).Get("run")
	var back savedRun
	if err := torchfile.Decode(value, &back); err != nil {
		t.Fatal(err)
	}
	run.cached, run.Names["a"], run.Next.Names = nil, []string{}, map[string][]string{}
	run.Next.Rates, run.Next.Raw = savedRates{}, []byte{}
	if !reflect.DeepEqual(back, run) {
		t.Errorf("got\n%+v\nwant\n%+v", back, run)
	}
}

// describe prints dicts in braces.
func describe(v any) any {
	switch v := v.(type) {
	case *torchfile.Dict:
		var parts []string
		for i, k := range v.Keys {
			parts = append(parts, fmt.Sprintf("%v: %v", k, describe(v.Values[i])))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = describe(v[i])
		}
		return out
	}
	return v
}

// safe are the globals that our files may name and torch.load accepts with weights_only.
var safe = []string{"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "collections.OrderedDict", "_codecs.encode",
	"torch.storage.UntypedStorage",
	"torch.FloatStorage", "torch.DoubleStorage", "torch.ByteStorage", "torch.LongStorage", "torch.uint16"}

// globals returns the globals that the pickle in an archive names.
func globals(t *testing.T, archive []byte) (names []string) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range z.File {
		if path.Base(e.Name) != "data.pkl" {
			continue
		}
		r, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pickle.Read(r, pickle.Options{Persistent: true, Global: func(module, name string) bool {
			names = append(names, module+"."+name)
			return true
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// A file names no global that torch.load refuses with weights_only.
func TestWeightsOnly(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	var b bytes.Buffer
	if err := torchfile.Write(x, &b, map[string]any{"t": []*tenon.Tensor{x.Ones([]int{2}, tenon.Float32), x.Ones(nil, dtype.Uint16)},
		"raw": []byte("x"), "s": savedBase{}}); err != nil {
		t.Fatal(err)
	}
	names := globals(t, b.Bytes())
	if len(names) == 0 {
		t.Error("the pickle names nothing")
	}
	for _, name := range names {
		if !slices.Contains(safe, name) {
			t.Errorf("the pickle names %s", name)
		}
	}
}

// The error for a value that cannot be saved gives its path.
func TestSavePaths(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	closed := x.Ones([]int{2}, tenon.Float32)
	closed.Close()
	type inner struct{ F func() }
	type outer struct{ Groups []map[string]inner }
	type twice struct {
		A int `torch:"k"`
		B int `torch:"k"`
	}
	type ring struct{ Next any }
	loop := &ring{}
	loop.Next = loop
	var self any
	self = &self
	line := nn.NewLinear(x, 1, 1)
	defer nn.Close(line)
	for want, v := range map[string]any{
		`Groups[1]["a"].F is a func(), which cannot be saved`:                     outer{[]map[string]inner{nil, {"a": {}}}},
		`["m"].Weight is a nn.Param, whose field t is not exported`:               map[string]any{"m": line},
		`["a"][0] is a complex128`:                                                map[string]any{"a": []complex128{1}},
		`[1] is a map[int]string; use a map with string keys`:                     []any{1, map[int]string{}},
		`has the key "k" twice`:                                                   twice{},
		`["w"] cannot be saved: torchfile.Save: operand 0 is nil`:                 map[string]*tenon.Tensor{"w": nil},
		`[0] cannot be saved`:                                                     []*tenon.Tensor{closed},
		"contains itself":                                                         loop,
		"or contains itself":                                                      self,
		`[0] is a *torchfile.Tensor, which was read from a file; save the tensor`: []any{&torchfile.Tensor{}},
	} {
		if err := torchfile.Write(x, io.Discard, v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The error for a value that does not fit gives its path, and nothing is changed.
func TestDecodeRefuses(t *testing.T) {
	dict := func(kv ...any) *torchfile.Dict {
		d := &torchfile.Dict{}
		for i := 0; i < len(kv); i += 2 {
			d.Keys, d.Values = append(d.Keys, kv[i]), append(d.Values, kv[i+1])
		}
		return d
	}
	type pair struct {
		A int8
		B []float64
	}
	for _, c := range []struct {
		from any
		want string
	}{
		{dict("A", int64(1)), `lacks the key "B"`},
		{dict("A", int64(1), "B", nil, "C", true, "D", nil), `has unexpected keys: "C", "D"`},
		{dict("A", int64(300), "B", nil), `A is a int, which a int8 cannot hold`},
		{dict("A", 1.5, "B", nil), `A is a float, which a int8 cannot hold`},
		{dict("A", int64(1), "B", []any{1., "x"}), `B[1] is a str, which a float64 cannot hold`},
		{dict("A", int64(1), "B", 3.), `B is a float, which a []float64 cannot hold`},
		{dict("A", int64(1), "A", int64(2), "B", nil), `has the key "A", which is not a string or is there twice`},
		{[]any{}, `the file's value is a list`},
	} {
		to := pair{A: 9}
		if err := torchfile.Decode(c.from, &to); err == nil || !strings.Contains(err.Error(), c.want) || to.A != 9 || to.B != nil {
			t.Errorf("%v: got %v and %v, want %q", describe(c.from), err, to, c.want)
		}
	}
	for want, to := range map[string]any{"not to a int": 1, "not to a <nil>": nil, "has 2 values, not 3": new([3]int64),
		"[0] is a int, which a bool cannot hold":        new([]bool),
		"is a list, which a map[string]int cannot hold": new(map[string]int)} {
		if err := torchfile.Decode([]any{int64(1), int64(2)}, to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
