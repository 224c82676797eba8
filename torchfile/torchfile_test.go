package torchfile_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/cost"
	"tenon.dev/internal/recorded"
	"tenon.dev/nn"
	"tenon.dev/torchfile"
)

// fromTorch returns the files that PyTorch 2.11 wrote.
func fromTorch(t testing.TB) map[string][]byte {
	t.Helper()
	b, err := recorded.File("testdata/torch_files.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[filepath.Base(h.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t testing.TB, b []byte) *torchfile.File {
	t.Helper()
	f, err := torchfile.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// manifest returns the description of the files.
func manifest(t *testing.T, files map[string][]byte) map[string]json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(files["manifest.json"], &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// text returns element i of type typ as str prints the result of PyTorch's tolist.
func text(typ string, b []byte, i int) string {
	switch typ {
	case "bool":
		return map[byte]string{0: "False", 1: "True"}[b[i]]
	case "float8_e4m3fn", "float8_e5m2":
		return fmt.Sprint(small(typ, b[i]))
	case "complex64", "complex128":
		dt, size := dtype.Float32, 4
		if typ == "complex128" {
			dt, size = dtype.Float64, 8
		}
		return fmt.Sprintf("(%s+%sj)", number(dtype.Float64At(dt, b, 2*i)),
			strconv.FormatFloat(dtype.Float64At(dt, b[size:], 2*i), 'g', -1, 64))
	}
	for dt := dtype.Bool; dt.Valid(); dt++ {
		if dt.String() == typ {
			v := dtype.Float64At(dt, b, i)
			if dt.IsFloat() {
				return number(v)
			}
			return fmt.Sprint(int64(v))
		}
	}
	return "unknown type " + typ
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// small returns the value of a finite 8-bit float.
func small(typ string, b byte) float64 {
	e, m, bias := int(b>>3&15), float64(b&7)/8, 7
	if typ == "float8_e5m2" {
		e, m, bias = int(b>>2&31), float64(b&3)/4, 15
	}
	v := math.Ldexp(1+m, e-bias)
	if e == 0 {
		v = math.Ldexp(m, 1-bias)
	}
	if b>>7 != 0 {
		v = -v
	}
	return v
}

// Every type that PyTorch wrote.
func TestTypes(t *testing.T) {
	files := fromTorch(t)
	n := 0
	for name, raw := range manifest(t, files) {
		if !strings.HasPrefix(name, "dtype_") {
			continue
		}
		n++
		var want struct {
			DType  string
			Shape  []int
			Values []string
		}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		f := open(t, files[name])
		tensor, ok := f.Root().(*torchfile.Tensor)
		if !ok {
			t.Fatalf("%s: %T", name, f.Root())
		}
		if tensor.Type != want.DType || !slices.Equal(tensor.Shape, want.Shape) || tensor.DType.Valid() &&
			tensor.DType.String() != want.DType || tensor.Device != "cpu" {
			t.Errorf("%s: %v on %s", name, tensor, tensor.Device)
		}
		b, err := f.Bytes(tensor)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want.Values {
			if got := text(want.DType, b, i); !equal(got, w) {
				t.Errorf("%s: element %d is %s, want %s", name, i, got, w)
			}
		}
	}
	if n != 14 {
		t.Errorf("%d types", n)
	}
}

// equal compares numbers as Go and Python write them.
func equal(a, b string) bool {
	x, err1 := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	return a == b || err1 == nil && err2 == nil && x == y
}

// floats reads a tensor of float32.
func floats(t *testing.T, f *torchfile.File, v any) []float32 {
	t.Helper()
	tensor, ok := v.(*torchfile.Tensor)
	if !ok {
		t.Fatalf("a %T is no tensor", v)
	}
	b, err := f.Bytes(tensor)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = float32(dtype.Float64At(dtype.Float32, b, i))
	}
	return out
}

func TestStateDict(t *testing.T) {
	files := fromTorch(t)
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var want map[string][]float64
	if err := json.Unmarshal(manifest(t, files)["state_dict.pt"], &want); err != nil {
		t.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) {
		f := open(t, files["state_dict.pt"])
		d := f.Root().(*torchfile.Dict)
		if len(d.Keys) < len(want) || len(d.Keys) == 0 || d.Keys[0] != "0.weight" {
			t.Errorf("keys %v", d.Keys)
		}
		state, err := f.StateDict(x)
		if err != nil {
			t.Fatal(err)
		}
		for key, values := range want {
			got, err := tenon.Read[float32](x, x.ToDType(state[key], tenon.Float32))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range values {
				if got[i] != float32(v) {
					t.Errorf("%s[%d] is %v, want %v", key, i, got[i], v)
				}
			}
		}
	})
}

// Tensors over one storage, with strides, without elements, parameters, a checkpoint, and the format before 1.6.
func TestForms(t *testing.T) {
	files := fromTorch(t)
	f := open(t, files["parameter.pt"])
	if p := f.Root().(*torchfile.Tensor); !p.Parameter || !p.RequiresGrad || p.String() != "float32[2 2]" {
		t.Errorf("%+v", p)
	}
	f = open(t, files["noncontig.pt"])
	p := f.Root().(*torchfile.Tensor)
	if !slices.Equal(p.Shape, []int{3, 2, 2}) || !slices.Equal(p.Stride, []int{1, 12, 8}) {
		t.Fatalf("%v has strides %v", p, p.Stride)
	}
	q := *p // its storage
	q.Shape, q.Stride = []int{24}, []int{1}
	all := floats(t, f, &q)
	for i, v := range floats(t, f, p) {
		if want := all[i/4+i/2%2*12+i%2*8]; v != want {
			t.Errorf("element %d is %v, want %v", i, v, want)
		}
	}
	var shared struct{ X []float32 }
	if err := json.Unmarshal(manifest(t, files)["shared_storage_cuda.pt"], &shared); err != nil {
		t.Fatal(err)
	}
	f = open(t, files["shared_storage_cuda.pt"])
	l := f.Root().([]any)
	turned := make([]float32, 25)
	for i := range turned {
		turned[i] = shared.X[i%5*5+i/5]
	}
	for i, want := range map[int][]float32{0: shared.X, 2: shared.X, 3: shared.X[5:15], 4: turned} {
		if got := floats(t, f, l[i]); !slices.Equal(got, want) {
			t.Errorf("value %d is %v, want %v", i, got, want)
		}
	}
	if d := l[0].(*torchfile.Tensor).Device; d != "cuda:0" {
		t.Errorf("it was on %s", d)
	}
	f = open(t, files["empty.pt"])
	if got := floats(t, f, f.Root().([]any)[1]); len(got) != 0 {
		t.Errorf("an empty tensor has %v", got)
	}
	f = open(t, files["legacy_nonzip.pt"])
	a, _ := f.Root().(*torchfile.Dict).Get("a")
	ints, err := f.Bytes(a.(*torchfile.Tensor))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if v := dtype.Float64At(dtype.Int64, ints, i); v != float64(i) {
			t.Errorf("element %d of the old file is %v", i, v)
		}
	}
	f = open(t, files["checkpoint.pt"])
	root := f.Root().(*torchfile.Dict)
	if epoch, _ := root.Get("epoch"); epoch != int64(3) {
		t.Errorf("epoch %v", epoch)
	}
	o, _ := root.Get("optimizer")
	groups, _ := o.(*torchfile.Dict).Get("param_groups")
	g := groups.([]any)[0].(*torchfile.Dict)
	if lr, _ := g.Get("lr"); lr != 1e-3 {
		t.Errorf("lr %v", lr)
	}
	if betas, _ := g.Get("betas"); !slices.Equal(betas.(torchfile.Tuple), torchfile.Tuple{.9, .999}) {
		t.Errorf("betas %v", betas)
	}
	if _, ok := g.Get("absent"); ok {
		t.Error("a key that is not there was found")
	}
}

// device opens the processor, and a simulated GPU.
func devices(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	for name, sel := range map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(1 << 30)} {
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			x.Scope(func(x *tenon.Exec) { f(t, x) })
		})
	}
}

// Every type survives saving and reading, and a tensor that occurs twice is in the file once.
func TestSave(t *testing.T) {
	devices(t, func(t *testing.T, x *tenon.Exec) {
		name := filepath.Join(t.TempDir(), "all.pt")
		one := tenon.From(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
		all := &torchfile.Dict{}
		for dt := dtype.Bool; dt.Valid(); dt++ {
			b := make([]byte, 4*dt.Size())
			for i := range b {
				b[i] = byte(i % 2)
			}
			all.Set(dt.String(), x.FromBytes(b, dt, 2, 2))
		}
		values := torchfile.Tuple{nil, true, false, int64(-7), huge, 2.5, math.Inf(1), strings.Repeat("text ä ", 60), []any{},
			torchfile.Tuple{}, []any{int64(1), torchfile.Tuple{"x"}}}
		all.Set("one", one)
		all.Set("again", one)
		all.Set("turned", x.Transpose(one, 0, 1))
		all.Set("empty", x.Zeros([]int{0, 3}, tenon.Float32))
		all.Set("number", x.Full(nil, 7, tenon.Float64))
		all.Set("grad", x.Ones([]int{2}, tenon.Float32).SetRequiresGrad(true))
		all.Set("type", torchfile.Global{Module: "torch", Name: "float32"})
		all.Set("values", values)
		all.Set("map", map[string]any{"b": 1, "a": uint8(2), "c": uint64(math.MaxUint64), "d": float32(0.5)})
		all.Set("host", x.Host().Ones([]int{3}, tenon.Float32))
		for i := range 300 {
			all.Set(fmt.Sprint("key", i), int64(i)<<30)
		}
		if err := torchfile.Save(x, name, all); err != nil {
			t.Fatal(err)
		}
		f, err := torchfile.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		root := f.Root().(*torchfile.Dict)
		get := func(key string) any {
			v, ok := root.Get(key)
			if !ok {
				t.Errorf("%s is not there", key)
			}
			return v
		}
		for dt := dtype.Bool; dt.Valid(); dt++ {
			tensor := get(dt.String()).(*torchfile.Tensor)
			got, err := f.Bytes(tensor)
			if err != nil {
				t.Fatal(err)
			}
			for i, b := range got {
				if tensor.DType != dt || len(got) != 4*dt.Size() || b != byte(i%2) {
					t.Fatalf("%v: %v %v", dt, tensor, got)
				}
			}
		}
		if get("one") != get("again") {
			t.Error("a tensor that was there twice is two")
		}
		for key, want := range map[string][]float32{"one": {1, 2, 3, 4, 5, 6}, "turned": {1, 4, 2, 5, 3, 6}, "empty": {},
			"host": {1, 1, 1}, "grad": {1, 1}} {
			if got := floats(t, f, get(key)); !slices.Equal(got, want) {
				t.Errorf("%s is %v, want %v", key, got, want)
			}
		}
		if !get("grad").(*torchfile.Tensor).RequiresGrad || get("one").(*torchfile.Tensor).RequiresGrad {
			t.Error("which tensors require grad was not kept")
		}
		if got := get("values"); !equalValues(got, values) {
			t.Errorf("got %#v, want %#v", got, values)
		}
		if got := get("type"); got != (torchfile.Global{Module: "torch", Name: "float32"}) {
			t.Errorf("got %v", got)
		}
		if d := get("map").(*torchfile.Dict); fmt.Sprint(d.Keys) != "[a b c d]" ||
			fmt.Sprint(d.Values) != "[2 1 18446744073709551615 0.5]" {
			t.Errorf("got %v: %v", d.Keys, d.Values)
		}
		if get("key299") != int64(299)<<30 {
			t.Error(get("key299"))
		}
		// Data is aligned, so that a reader can map it.
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range z.File {
			if at, err := e.DataOffset(); err != nil || at%64 != 0 || e.Method != zip.Store {
				t.Errorf("%s lies at %d, %v", e.Name, at, err)
			}
		}
		var again bytes.Buffer
		if err := torchfile.Write(x, &again, all); err != nil || !bytes.Equal(again.Bytes(), b) {
			t.Errorf("the same value gave another file, %v", err)
		}
	})
}

func equalValues(a, b any) bool {
	switch a := a.(type) {
	case torchfile.Tuple:
		b, ok := b.(torchfile.Tuple)
		return ok && slices.EqualFunc(a, b, equalValues)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalValues)
	case *big.Int:
		b, ok := b.(*big.Int)
		return ok && a.Cmp(b) == 0
	}
	return a == b
}

// A module survives a file in PyTorch's format.
func TestModule(t *testing.T) {
	devices(t, func(t *testing.T, x *tenon.Exec) {
		name := filepath.Join(t.TempDir(), "model.pt")
		a, b := nn.NewLinear(x, 3, 2), nn.NewLinear(x, 3, 2)
		defer nn.Close(a)
		defer nn.Close(b)
		if err := torchfile.Save(x, name, map[string]any{"epoch": 1, "model": torchfile.Tensors(nn.StateDict(a))}); err != nil {
			t.Fatal(err)
		}
		f, err := torchfile.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		state, err := f.StateDict(x, "model")
		if err != nil {
			t.Fatal(err)
		}
		if err := nn.Load(x, b, state); err != nil {
			t.Fatal(err)
		}
		one, err1 := tenon.Read[float32](x, a.Weight.Tensor())
		two, err2 := tenon.Read[float32](x, b.Weight.Tensor())
		if err1 != nil || err2 != nil || !slices.Equal(one, two) {
			t.Errorf("%v, %v, %v, %v", one, two, err1, err2)
		}
		for want, path := range map[string][]string{
			`the file's value has the key "epoch" with a int`:              nil,
			`the file's value has no key "optimizer"; it has "epoch"`:      {"optimizer"},
			`the value of "epoch" is a int and no dict of tensors`:         {"epoch"},
			`the value of "epoch" is a int and no dict`:                    {"epoch", "x"},
			`the value of "model" has no key "x"; it has "weight", "bias"`: {"model", "x"},
		} {
			if _, err := f.StateDict(x, path...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	})
}

// Values that cannot be saved, and files that are broken or claim data that they do not hold.
func TestErrors(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	loop := []any{nil}
	loop[0] = loop
	dir := t.TempDir()
	old := filepath.Join(dir, "old.pt")
	if err := os.WriteFile(old, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	closed := x.Ones([]int{2}, tenon.Float32)
	closed.Close()
	for want, v := range map[string]any{
		"contains itself":                       loop,
		"the value is a dict that is nil":       (*torchfile.Dict)(nil),
		"another number of keys than of values": &torchfile.Dict{Keys: []any{"a"}},
		"a []interface {} as a key":             &torchfile.Dict{Keys: []any{[]any{}}, Values: []any{1}},
		"the value is a *big.Int that is nil":   (*big.Int)(nil),
		"closed":                                closed,
	} {
		if err := torchfile.Save(x, old, v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if b, err := os.ReadFile(old); err != nil || string(b) != "old" {
		t.Errorf("the old file became %q, %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*partial*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if err := torchfile.Save(x, filepath.Join(dir, "absent", "x.pt"), nil); err == nil {
		t.Error("saved where there is no folder")
	}
	for _, n := range []int{0, 100, 2000} {
		if err := torchfile.Write(x, &short{n}, x.Ones([]int{1000}, tenon.Float32)); err == nil {
			t.Errorf("written although only %d bytes were taken", n)
		}
	}
	if _, err := torchfile.Open(filepath.Join(dir, "absent.pt")); err == nil {
		t.Error("an absent file was opened")
	}
	if _, err := torchfile.Open(old); err == nil || !strings.Contains(err.Error(), "neither an archive nor a pickle, as .pt files are") {
		t.Errorf("got %v", err)
	}
	other := filepath.Join(dir, "x.safetensors")
	for _, header := range []string{`{"__metadata__":{}}`, `{"pad":"` + strings.Repeat(" ", 0x2e4e-10) + `"}`} { // the second length is a pickle
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		if err := os.WriteFile(other, b, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := torchfile.Open(other); err == nil ||
			!strings.Contains(err.Error(), "it is a safetensors file; load it with nn.LoadFile") {
			t.Errorf("of a safetensors file: %v", err)
		}
	}
	good := fromTorch(t)["state_dict.pt"]
	for want, change := range map[string]func(name string, b []byte) (string, []byte){
		"no data.pkl":               func(n string, b []byte) (string, []byte) { return strings.Replace(n, "data.pkl", "other.pkl", 1), b },
		"lacks the data of storage": func(n string, b []byte) (string, []byte) { return strings.Replace(n, "data/3", "data/x", 1), b },
		"is a TorchScript program": func(n string, b []byte) (string, []byte) {
			return strings.Replace(n, "version", "constants.pkl", 1), b
		},
		"in the order \"big\"": func(n string, b []byte) (string, []byte) {
			return n, bytes.Replace(b, []byte("little"), []byte("big"), 1)
		},
		"storage \"0\" has 127 bytes": func(n string, b []byte) (string, []byte) {
			return n, b[:min(len(b), 127+1000*min(1, max(0, len(b)-128)))]
		},
		"is of the class torch.OddStorage": func(n string, b []byte) (string, []byte) {
			return n, bytes.Replace(b, []byte("FloatStorage"), []byte("OddStorage"), 1)
		},
		"the pickle": func(n string, b []byte) (string, []byte) {
			return n, bytes.Replace(b, []byte("\x80\x02"), []byte("\x80\x63"), 1)
		},
	} {
		b := rezip(t, good, change)
		if _, err := torchfile.New(bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := torchfile.New(nil, 0); err == nil {
		t.Error("a nil reader was read")
	}
	var none *torchfile.File
	if _, err := none.Bytes(nil); err == nil || none.Close() != nil || tenon.Try(func() { none.Root() }) == nil {
		t.Error("a nil file was read")
	}
	f := open(t, fromTorch(t)["dtype_float8_e5m2.pt"])
	if _, err := f.Load(x, f.Root().(*torchfile.Tensor)); err == nil ||
		!strings.Contains(err.Error(), "float8_e5m2, a type that tensors cannot have here") {
		t.Errorf("got %v", err)
	}
	if _, err := f.Bytes(&torchfile.Tensor{}); err == nil {
		t.Error("a zero tensor was read")
	}
}

// short takes n bytes.
type short struct{ n int }

func (s *short) Write(b []byte) (int, error) {
	if s.n -= len(b); s.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// rezip writes an archive again, with changed entries.
func rezip(t testing.TB, b []byte, change func(name string, b []byte) (string, []byte)) []byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range r.File {
		in, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name, data := change(e.Name, data)
		to, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// counted counts what is read.
type counted struct {
	io.ReaderAt
	n int
}

func (c *counted) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(b, at)
	c.n += n
	return n, err
}

// FuzzRead: no file crashes the reader or makes it take more memory or time than its length and the limits allow, whatever its pickle
// says. Memory is counted as it is allocated, most of it garbage from growing slices; time is counted as bytes read and as steps of a
// walk over all values.
func FuzzRead(f *testing.F) {
	files := fromTorch(f)
	base := files["parameter.pt"]
	for name, b := range files {
		f.Add(b, true)
		if strings.HasSuffix(name, ".pt") && name != "legacy_nonzip.pt" {
			rezip(f, b, func(n string, data []byte) (string, []byte) {
				if strings.HasSuffix(n, "data.pkl") {
					f.Add(data, false)
				}
				return n, data
			})
		}
	}
	for _, b := range hostile(f) {
		if len(b) < 1<<14 {
			f.Add(b, true)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if !whole { // the pickle of an archive
			pickle := b
			b = rezip(t, base, func(n string, data []byte) (string, []byte) {
				if strings.HasSuffix(n, "data.pkl") {
					return n, pickle
				}
				return n, data
			})
		}
		limits := torchfile.Limits{Memory: int64(1<<18 + 128*len(b)), Values: 20_000, Tensors: 1 << 20, Expanded: 1 << 19}
		var file *torchfile.File
		var err error
		var in *counted
		// Each pickle of a legacy file has a window of 256 KiB, and each 22 bytes of an archive's directory may become an entry of 400
		// bytes in memory.
		cost.Within(t, 4<<20+8*int(limits.Memory), func() {
			in = &counted{ReaderAt: bytes.NewReader(b)}
			file, err = limits.New(in, int64(len(b)))
		})
		// Each pickle of the legacy format begins where the one before ends, within the window that was read for that one.
		if in.n > 8*len(b)+1<<12 {
			t.Errorf("%d bytes were read of a file of %d", in.n, len(b))
		}
		if err != nil {
			return
		}
		steps, tensors := int64(0), int64(0)
		var visit func(v any)
		all := func(vs []any) {
			for _, v := range vs {
				visit(v)
			}
		}
		visit = func(v any) {
			steps++
			switch v := v.(type) {
			case *torchfile.Tensor:
				b, _ := file.Bytes(v)
				tensors += int64(len(b))
			case []any:
				all(v)
			case torchfile.Tuple:
				all(v)
			case *torchfile.Dict:
				all(v.Keys)
				all(v.Values)
			case *torchfile.Object:
				all(v.Args)
				all(v.Items)
				visit(v.State)
			}
		}
		visit(file.Root())
		if steps > limits.Values || tensors > limits.Tensors {
			t.Errorf("a walk takes %d steps and %d bytes of tensors", steps, tensors)
		}
		_ = fmt.Sprint(file.Root())
	})
}
