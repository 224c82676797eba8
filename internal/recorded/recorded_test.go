package recorded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/safetensors"
)

const data = "../../conformance/testdata/"

// TestOpCases decodes every case and compares each result and gradient with itself, which must agree.
func TestOpCases(t *testing.T) {
	c, err := OpenCases(data + "ops_a.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(c.Torch, "2.11") {
		t.Errorf("made by PyTorch %q", c.Torch)
	}
	names, err := OpNames(data + "ops01.txt")
	if err != nil || len(names) != 200 {
		t.Fatalf("%d ops, %v", len(names), err)
	}
	var total, listed, grads, listedGrads, noGrad, strided int
	ops, kinds := map[string]bool{}, map[string]int{}
	for one, err := range c.All() {
		if err != nil {
			t.Fatal(err)
		}
		if one.Index != total {
			t.Fatalf("case %s comes as number %d", one.Name(), total)
		}
		total++
		ops[one.Op] = true
		if one.GradOut != nil {
			grads++
		}
		if slices.Contains(names, one.Op) {
			listed++
			if one.GradOut != nil {
				listedGrads++
			}
		}
		if err := Compare("out", one.Out, one.Out, Rule{}); err != nil {
			t.Errorf("%s: %v", one.Name(), err)
		}
		for _, g := range one.Grads {
			if g == nil {
				noGrad++
			}
			if err := Compare("grad", g, g, Rule{}); err != nil {
				t.Errorf("%s: %v", one.Name(), err)
			}
		}
		for _, v := range append(List{one.Input}, one.Args...) {
			kinds[reflect.TypeOf(&v).Elem().String()+kindName(v)]++
			if x, ok := v.(*Tensor); ok && !slices.Equal(x.Strides, rowMajor(x.Shape)) {
				strided++
			}
		}
		for _, v := range one.Kwargs {
			kinds[kindName(v)]++
		}
	}
	if total != 10076 || len(ops) != 370 || grads != 2320 || listed != 5480 || listedGrads != 1204 || noGrad != 25 {
		t.Errorf("%d cases of %d ops, %d with gradients (%d missing); of the listed ops %d cases, %d with gradients",
			total, len(ops), grads, noGrad, listed, listedGrads)
	}
	if strided == 0 || kinds["recorded.MemoryFormat"] != 257 || kinds["dtype.DType"] < 500 || kinds["complex128"] < 20 {
		t.Errorf("%d strided inputs; kinds %v", strided, kinds)
	}
	for one := range c.All() { // a truncated file is not an error here
		if one.Index == 1 {
			break
		}
	}
}

func kindName(v Value) string {
	if v == nil {
		return "nil"
	}
	return reflect.TypeOf(v).String()
}

func TestDigitsRun(t *testing.T) {
	r, err := OpenDigitsRun(data + "digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Init) != 8 || len(r.Batches) != 60 || len(r.Losses) != 60 || len(r.TestAccuracy) != 5 || len(r.Peaks) != 4 {
		t.Fatalf("%d parameters, %d batches, %d losses, %d accuracies, %d peaks", len(r.Init), len(r.Batches), len(r.Losses),
			len(r.TestAccuracy), len(r.Peaks))
	}
	if w := r.Init["2.weight"]; w.String() != "float32[32 16 3 3] strides [144 9 3 1]" || len(w.Data) != 4*32*16*9 {
		t.Errorf("2.weight is %v", w)
	}
	for step, rows := range r.Batches {
		for _, row := range rows {
			if row < 0 || row >= 1797-359 || len(rows) != 64 {
				t.Fatalf("step %d has row %d", step, row)
			}
		}
	}
	if r.Losses[0] != 2.3026998043060303 || r.Losses[59] != 0.7717214822769165 {
		t.Errorf("losses from %v to %v", r.Losses[0], r.Losses[59])
	}
	if n := r.Peaks["mlp32_nograd_4096x1024_f32"].Above(); n != 253624832-220070400 {
		t.Errorf("the chain needed %d bytes", n)
	}
}

func TestRandom(t *testing.T) {
	r, err := OpenRandom(data + "rng.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Seeds) != 4 || r.Multiprocessors != 132 || r.ThreadsPerMultiprocessor != 2048 {
		t.Errorf("%d seeds on a device of %d × %d threads", len(r.Seeds), r.Multiprocessors, r.ThreadsPerMultiprocessor)
	}
	d := r.Seeds[0]
	index, value, err := d.Points("rand70000")
	if err != nil || len(index) != 14 || index[13] != 69999 || value[13] != 0.7160665988922119 {
		t.Errorf("rand70000: %v, %v, %v", index, value, err)
	}
	if v, err := d.Values("after1"); err != nil || len(v) != 3 || v[0] != 0.019449422135949135 {
		t.Errorf("after1: %v, %v", v, err)
	}
	if v, err := d.Ints("randint_big_20"); err != nil || v[0] != 918609839501 {
		t.Errorf("randint_big_20: %v, %v", v, err)
	}
	if v, err := d.Ints("state_offset5"); err != nil || v[0] != 12 {
		t.Errorf("state_offset5: %v, %v", v, err)
	}
	d = Draws{"words": []byte(`["one"]`), "lists": []byte(`[[1]]`)}
	for name, says := range map[string]string{"none": `no recorded draws "none"`, "words": "hold no integer",
		"lists": "hold [1], no integer"} {
		if _, err := d.Ints(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Ints(%s): %v", name, err)
		}
		if _, _, err := d.Points(name); err == nil && name != "lists" {
			t.Errorf("Points(%s): no error", name)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o666); err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func(err error, kind fault.Kind, says string) {
		t.Helper()
		if fault.KindOf(err) != kind || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v of kind %v, want %q of kind %v", err, fault.KindOf(err), says, kind)
		}
	}
	none := filepath.Join(dir, "none")
	_, err := OpenCases(none)
	check(err, fault.System, "cannot open the op cases")
	_, err = OpNames(none)
	check(err, fault.System, "cannot read the list of ops")
	_, err = OpenRandom(none)
	check(err, fault.System, "cannot open the recorded random numbers")
	_, err = OpenDigitsRun(none)
	check(err, fault.System, "the file cannot be opened: open ")
	text := file("text", []byte("plain text"))
	_, err = OpenCases(text)
	check(err, fault.Invalid, "cannot read the op cases in "+text)
	_, err = OpenRandom(text)
	check(err, fault.Invalid, "cannot read the recorded random numbers in "+text)

	weights := func(meta string, infos ...safetensors.Info) string {
		var b bytes.Buffer
		if err := safetensors.Write(&b, map[string]string{"meta": meta}, infos, func(i safetensors.Info) ([]byte, error) {
			return make([]byte, i.Bytes()), nil
		}); err != nil {
			t.Fatal(err)
		}
		return file("run", b.Bytes())
	}
	_, err = OpenDigitsRun(weights("no JSON"))
	check(err, fault.Invalid, "lack the run's figures")
	_, err = OpenDigitsRun(weights(`{"losses":[1]}`))
	check(err, fault.Invalid, `no array "batch.0"`)
	_, err = OpenDigitsRun(weights(`{"losses":[1]}`, safetensors.Info{Name: "batch.0", DType: dtype.Float32}))
	check(err, fault.Invalid, "not int64")
}

// archive packs files, given as name, content, name, content…
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644})
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBrokenCases(t *testing.T) {
	var tensors bytes.Buffer
	err := safetensors.Write(&tensors, nil, []safetensors.Info{{Name: "t", DType: dtype.Float32, Shape: []int{2}},
		{Name: "h", DType: dtype.Float16, Shape: []int{1, 2}}},
		func(i safetensors.Info) ([]byte, error) { return make([]byte, i.Bytes()), nil })
	if err != nil {
		t.Fatal(err)
	}
	whole := func(cases string) []byte {
		return archive(t, "cases.json", cases, "tensors.safetensors", tensors.String())
	}
	with := func(out string) []byte {
		return whole(`{"torch":"9","cases":[{"op":"f","variant":"v","dtype":"f32","args":[],"kwargs":{"$k":{"a":{"$d":"int8"}}},"out":` +
			out + `}]}`)
	}
	tensor := func(dt, shape, stride string) []byte {
		return with(`{"$t":"t","dtype":"` + dt + `","shape":` + shape + `,"stride":` + stride + `,"grad":false}`)
	}
	cut := whole(`{"cases":[{}]}`)
	cases := []struct {
		name string
		file []byte
		says string
	}{
		{"cut", cut[:len(cut)/2], "unexpected EOF"},
		{"no cases.json", archive(t, "tensors.safetensors", ""), "lacks cases.json"},
		{"no tensors", archive(t, "cases.json", "{}"), "lacks tensors.safetensors"},
		{"broken tensors", archive(t, "cases.json", "{}", "tensors.safetensors", "x"), "too few"},
		{"no object", whole(`[]`), "not a JSON object"},
		{"no member", whole(`{"torch":"1"}`), "no member cases"},
		{"broken member", whole(`{"torch":`), "EOF"},
		{"broken key", whole(`{1`), "invalid"},
		{"no array", whole(`{"cases":{}}`), "not a JSON array"},
		{"no case", whole(`{"cases":[]}`), "there is no case"},
		{"case is a number", whole(`{"cases":[1]}`), "case 0 is not of the expected form"},
		{"unknown tag", with(`{"$x":1}`), "f/v/f32#0 cannot be decoded: a recorded object has the unknown form"},
		{"two tags", with(`{"$l":[],"$c":[]}`), "unknown form"},
		{"dtype", with(`{"$d":"float3"}`), `a recorded dtype is "float3"`},
		{"float", with(`{"$f":"tiny"}`), `special float is "tiny"`},
		{"float too large", with(`1e999`), "a recorded float is 1e999"},
		{"integer too large", with(`99999999999999999999`), "beyond 64 bits"},
		{"complex of strings", with(`{"$c":["a","b"]}`), "a part of a recorded complex number is a"},
		{"complex of broken", with(`{"$c":[{},1]}`), "unknown form"},
		{"in a list", with(`{"$l":[1,{"$f":"x"}]}`), "special float"},
		{"in a dict", with(`{"$k":{"a":{"$f":"x"}}}`), "special float"},
		{"tensor form", with(`{"$t":"t"}`), "a recorded tensor has the unknown form"},
		{"tensor extents", tensor("float32", `["2"]`, `[1]`), "unknown form"},
		{"tensor strides", tensor("float32", `[2]`, `[1,1]`), "unknown form"},
		{"tensor shape", tensor("float32", `[3]`, `[1]`), "but its data are t float32[2]"},
		{"tensor type", tensor("int32", `[2]`, `[1]`), "but its data are t float32[2]"},
		{"tensor complex", tensor("complex64", `[2]`, `[1]`), "but its data are"},
		{"tensor missing", with(`{"$t":"u","dtype":"float32","shape":[2],"stride":[1],"grad":false}`), `no array "u"`},
		{"gradient", with(`1,"grad_out":[1]`), "a gradient is 1, no tensor"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			set, err := readCases(bytes.NewReader(c.file))
			if err == nil {
				for _, e := range set.All() {
					err = e
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
	set,
		err := readCases(
		bytes.NewReader(with(`{"$k":{"a":{"$f":"nan"},"b":{"$c":[1,2.5]},"c":{"$m":"torch.channels_last"},"d":-3,"e":3.0,` +
			`"f":{"$t":"h","dtype":"complex32","shape":[1],"stride":[1],"grad":true},"g":{"$f":"-inf"},"h":[null,true,"s"]}},"grads":[null]`)))
	if err != nil {
		t.Fatal(err)
	}
	for one, err := range set.All() {
		if err != nil {
			t.Fatal(err)
		}
		d := one.Out.(Dict)
		h := d["f"].(*Tensor)
		if a := d["a"].(float64); a == a || d["b"] != 1+2.5i || d["c"] != MemoryFormat("channels_last") ||
			d["d"] != int64(-3) || d["e"] != 3.0 ||
			d["g"] != math.Inf(-1) || !reflect.DeepEqual(d["h"], List{nil, true, "s"}) || one.Kwargs["a"] != dtype.Int8 {
			t.Errorf("decoded %v, %v", d, one.Kwargs)
		}
		if h.DType != dtype.Invalid || h.TypeName != "complex32" || len(h.Data) != 4 || !h.Grad || one.Grads[0] != nil ||
			len(one.Grads) != 1 {
			t.Errorf("decoded %v, %v", h, one.Grads)
		}
	}
}

func TestDecodeRefusesOtherTypes(t *testing.T) {
	if _, err := decode(json.RawMessage{}, nil); err == nil {
		t.Error("no error")
	}
}
