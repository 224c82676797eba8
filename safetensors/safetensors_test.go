package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/cost"
)

// raw returns a file with the given header text and data.
func raw(header, data string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func open(b []byte) (*File, error) { return New(bytes.NewReader(b), int64(len(b))) }

// rewritten writes f's contents to a new file.
func rewritten(t testing.TB, f *File) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, f.Metadata(), f.Infos(), func(i Info) ([]byte, error) { return f.Read(i.Name) }); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReferenceFile reads a model that Python's safetensors 0.x wrote, and writes the same bytes.
func TestReferenceFile(t *testing.T) {
	f, err := Open("testdata/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for _, i := range f.Infos() {
		names = append(names, i.String())
	}
	want := "1.num_batches_tracked int64[]|0.bias float32[8]|0.weight float32[8 4]|1.bias float32[8]|1.running_mean float32[8]|" +
		"1.running_var float32[8]|1.weight float32[8]|2.bias float32[2]|2.weight float32[2 8]"
	if got := strings.Join(names, "|"); got != want {
		t.Errorf("arrays %s\nwant   %s", got, want)
	}
	i, err := f.Lookup("2.weight")
	if err != nil || i.Bytes() != 64 {
		t.Errorf("2.weight: %v, %d bytes, %v", i, i.Bytes(), err)
	}
	steps, err := f.Read("1.num_batches_tracked")
	if err != nil || binary.LittleEndian.Uint64(steps) != 1 {
		t.Errorf("1.num_batches_tracked = %x, %v", steps, err)
	}
	bias, err := f.Read("2.bias") // 0.022188984, -0.23663898
	if err != nil || !bytes.Equal(bias, []byte{0xac, 0xc5, 0xb5, 0x3c, 0x7d, 0x51, 0x72, 0xbe}) {
		t.Errorf("2.bias = %x, %v", bias, err)
	}
	file, err := os.ReadFile("testdata/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(rewritten(t, f), file) {
		t.Error("written anew, the file has other bytes")
	}
}

func TestRoundTripOfEveryType(t *testing.T) {
	var infos []Info
	data := map[string][]byte{}
	for i, f := range formats {
		for j, shape := range [][]int{nil, {3}, {2, 3}, {0}, {4, 0, 2}} {
			name := fmt.Sprintf("%s \"é<>&\n%d", f.name, j)
			n := f.d.Size()
			for _, e := range shape {
				n *= e
			}
			data[name] = bytes.Repeat([]byte{byte(i), byte(j)}, n)[:n]
			infos = append(infos, Info{Name: name, DType: f.d, Shape: shape})
		}
	}
	meta := map[string]string{"format": "pt", "note": "two\nlines <&>", "": ""}
	get := func(i Info) ([]byte, error) { return data[i.Name], nil }
	var first, second bytes.Buffer
	if err := Write(&first, meta, infos, get); err != nil {
		t.Fatal(err)
	}
	for i, j := 0, len(infos)-1; i < j; i, j = i+1, j-1 {
		infos[i], infos[j] = infos[j], infos[i]
	}
	if err := Write(&second, maps.Clone(meta), infos, get); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the order of the arrays changes the file")
	}
	f, err := open(first.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(f.Metadata(), meta) {
		t.Errorf("metadata %q, want %q", f.Metadata(), meta)
	}
	if got := len(f.Infos()); got != len(infos) {
		t.Fatalf("%d arrays, want %d", got, len(infos))
	}
	for _, w := range infos {
		i, err := f.Lookup(w.Name)
		if err != nil || i.DType != w.DType || !reflect.DeepEqual(i.Shape, append([]int{}, w.Shape...)) {
			t.Errorf("%v came back as %v, %v", w, i, err)
		}
		if at := f.data + i.offset; at%int64(w.DType.Size()) != 0 {
			t.Errorf("%v lies at %d, not aligned", i, at)
		}
		b, err := f.Read(w.Name)
		if err != nil || !bytes.Equal(b, data[w.Name]) {
			t.Errorf("%v: data %x, %v, want %x", i, b, err, data[w.Name])
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefusesBrokenFiles(t *testing.T) {
	const a = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	cases := []struct {
		name string
		file []byte
		says string
	}{
		{"short", []byte("1234567"), "7 bytes are too few"},
		{"huge header", binary.LittleEndian.AppendUint64(nil, MaxHeader+1), "claims 100000001 bytes"},
		{"cut header", raw(a+"}", "")[:20], "only 12 follow: the file is cut short"},
		{"a .pt file", append([]byte("PK\x03\x04"), make([]byte, 30)...),
			"it is a zip archive, as .pt files are; open those with torchfile.Open"},
		{"an empty file", nil, "it is empty; save or download it again"},
		{"a pointer", []byte("version https://git-lfs.github.com/spec/v1\n"), "it is a pointer of Git LFS; get the file itself"},
		{"a .pt file without zeros", []byte("PK\x03\x04\x14\x00\x08\x08more of it"), "open those with torchfile.Open"},
		{"a .pt file of the older format", []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."), "open those with torchfile.Open"},
		{"empty header", raw("", ""), "unexpected EOF"},
		{"not an object", raw("[]", ""), "found [ where { belongs"},
		{"unclosed", raw(`{"a":`, ""), "not JSON of the format's form"},
		{"no UTF-8", raw("{\"\xff\":1}", ""), "not UTF-8"},
		{"trailing", raw(a+"}x", "12345678"), "goes on after its JSON object"},
		{"name twice", raw(a+`,"a":1}`, "12345678"), `names "a" twice`},
		{"metadata twice", raw(`{"__metadata__":{},"__metadata__":{}}`, ""), "twice"},
		{"metadata number", raw(`{"__metadata__":{"k":1}}`, ""), `metadata "k" is not one string`},
		{"metadata key twice", raw(`{"__metadata__":{"k":"1","k":"2"}}`, ""), `metadata "k" is not one string`},
		{"metadata list", raw(`{"__metadata__":[]}`, ""), "found [ where { belongs"},
		{"metadata cut", raw(`{"__metadata__":{"k":`, ""), "not JSON"},
		{"array no object", raw(`{"a":3}`, ""), "found 3 where { belongs"},
		{"property unknown", raw(`{"a":{"x":[[[[1]]]]}}`, ""), `unknown property "x"`},
		{"property twice", raw(`{"a":{"dtype":"F32","dtype":"F32"}}`, ""), `has "dtype" twice`},
		{"property missing", raw(`{"a":{"dtype":"F32","shape":[]}}`, ""), "lacks one of"},
		{"dtype number", raw(`{"a":{"dtype":32}}`, ""), "dtype that is not a string"},
		{"dtype cut", raw(`{"a":{"dtype":`, ""), "not JSON"},
		{"dtype unknown", raw(`{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}`, "1"),
			`has dtype "F8_E4M3"; offered are BOOL, U8`},
		{"shape number", raw(`{"a":{"shape":3}}`, ""), "found 3 where [ belongs"},
		{"shape cut", raw(`{"a":{"shape":[3,`, ""), "not JSON"},
		{"shape negative", raw(`{"a":{"shape":[-3]}}`, ""), `array "a" has -3 in shape`},
		{"shape fraction", raw(`{"a":{"shape":[1.5]}}`, ""), "has 1.5 in shape"},
		{"shape string", raw(`{"a":{"shape":["1"]}}`, ""), "has 1 in shape"},
		{"shape too large", raw(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, ""), "too large"},
		{"offsets one", raw(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}}`, ""), "not a begin and an end"},
		{"offsets reversed", raw(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[8,0]}}`, ""), "not a begin and an end"},
		{"size wrong", raw(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, "12345678"),
			"needs 12 bytes, but its data_offsets hold 8"},
		{"overlap", raw(a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, "123456789012"), `array "b" begins at 4, within`},
		{"same bytes", raw(a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, "12345678"), `array "b" begins at 0, within`},
		{"gap", raw(a+`,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, "1234567890"), "leaves a gap"},
		{"data cut", raw(a+"}", "1234567"), "arrays end at 8, but the file holds 7"},
		{"data over", raw(a+"}", "123456789"), "cut short or has something behind it"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := open(c.file)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want one with %q", err, c.says)
			}
			if f != nil {
				t.Error("a file came with the error")
			}
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.Unsupported {
				t.Errorf("kind %v", k)
			}
		})
	}
	if f, err := open(raw(`{} `, "")); err != nil || len(f.Infos()) != 0 || len(f.Metadata()) != 0 {
		t.Errorf("an empty file: %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	file := raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, "12345678")
	f, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read("b"); err == nil || !strings.Contains(err.Error(), `no array "b"`) {
		t.Errorf("unknown name: %v", err)
	}
	if err := f.ReadInto(nil, "b"); err == nil {
		t.Error("unknown name: no error")
	}
	if err := f.ReadInto(make([]byte, 7), "a"); err == nil || !strings.Contains(err.Error(), "has 8 bytes, the buffer for it 7") {
		t.Errorf("short buffer: %v", err)
	}
	for cut := 0; cut < len(file); cut++ { // the reader promises more than it has
		f, err := New(bytes.NewReader(file[:cut]), int64(len(file)))
		if err == nil {
			_, err = f.Read("a")
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) || fault.KindOf(err) != fault.System {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) || fault.KindOf(err) != fault.System {
		t.Errorf("no file: %v", err)
	}
	bad := filepath.Join(dir, "bad.safetensors")
	if err := os.WriteFile(bad, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(bad); err == nil || !strings.Contains(err.Error(), bad) || fault.KindOf(err) != fault.Invalid {
		t.Errorf("bad file: %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	fine := Info{Name: "a", DType: dtype.Float32, Shape: []int{2}}
	cases := []struct {
		name  string
		meta  map[string]string
		infos []Info
		says  string
	}{
		{"complex", nil, []Info{{Name: "a", DType: dtype.Complex64}}, "dtype complex64, which the format lacks"},
		{"no dtype", nil, []Info{{Name: "a"}}, "which the format lacks"},
		{"reserved", nil, []Info{{Name: "__metadata__", DType: dtype.Bool}}, "may not be named"},
		{"not UTF-8", nil, []Info{{Name: "\xff", DType: dtype.Bool}}, "is not UTF-8"},
		{"twice", nil, []Info{fine, fine}, `two arrays are named "a"`},
		{"negative", nil, []Info{{Name: "a", DType: dtype.Bool, Shape: []int{2, -1}}}, "negative extent -1"},
		{"large", nil, []Info{{Name: "a", DType: dtype.Int64, Shape: []int{1 << 30, 1 << 31}}}, "too large"},
		{"large together", nil, []Info{{Name: "a", DType: dtype.Int8, Shape: []int{1 << 31, 1 << 31}},
			{Name: "b", DType: dtype.Int8, Shape: []int{1 << 31, 1 << 31}}}, "together are too large"},
		{"metadata", map[string]string{"k": "\xff"}, nil, `metadata "k" is not UTF-8`},
		{"header", map[string]string{"k": strings.Repeat("x", MaxHeader)}, nil, "the limit is 100000000"},
		{"data", nil, []Info{fine}, "needs 8 bytes, but its data are 3"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := Write(io.Discard, c.meta, c.infos, func(Info) ([]byte, error) { return make([]byte, 3), nil })
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
	broken := errors.New("broken")
	if err := Write(io.Discard, nil, []Info{fine}, func(Info) ([]byte, error) { return nil, broken }); err != broken {
		t.Errorf("the source's error became %v", err)
	}
}

// failing accepts n bytes and then fails.
type failing struct{ n int }

func (f *failing) Write(b []byte) (int, error) {
	if len(b) > f.n {
		return f.n, io.ErrShortWrite
	}
	f.n -= len(b)
	return len(b), nil
}

func TestWriteErrors(t *testing.T) {
	infos := []Info{{Name: strings.Repeat("n", 1<<17), DType: dtype.Uint8, Shape: []int{1 << 17}}, {Name: "b", DType: dtype.Uint8}}
	data := func(i Info) ([]byte, error) { return make([]byte, i.Bytes()), nil }
	var whole bytes.Buffer
	if err := Write(&whole, nil, infos, data); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < whole.Len(); n += 1 << 14 {
		if err := Write(&failing{n}, nil, infos, data); !errors.Is(err, io.ErrShortWrite) || fault.KindOf(err) != fault.System {
			t.Errorf("writer that fails after %d bytes: %v", n, err)
		}
	}
	if err := Write(&failing{whole.Len() - 1}, nil, infos, data); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("writer that fails at the last byte: %v", err)
	}
}

func TestSave(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "m.safetensors")
	infos := []Info{{Name: "a", DType: dtype.Uint8, Shape: []int{3}}}
	save := func(b string) error {
		return Save(name, nil, infos, func(Info) ([]byte, error) { return []byte(b), nil })
	}
	if err := save("abc"); err != nil {
		t.Fatal(err)
	}
	if err := save("wrong length"); err == nil {
		t.Error("wrong data: no error")
	}
	f, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := f.Read("a"); err != nil || string(b) != "abc" {
		t.Errorf("after a failed save: %q, %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files are left, want 1", len(entries))
	}
	if err := Save(filepath.Join(dir, "none", "m"), nil, nil, nil); fault.KindOf(err) != fault.System {
		t.Errorf("no such folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Save(filepath.Join(dir, "folder"), nil, nil, nil); fault.KindOf(err) != fault.System {
		t.Errorf("a folder of that name: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("%d files are left, want 2", len(entries))
	}
}

// hostile returns headers that demand large resources.
func hostile() map[string][]byte {
	long := strings.Repeat("n", 1<<20)
	many := []string{`"__metadata__":{}`}
	for i := range 20000 {
		many = append(many, fmt.Sprintf(`"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i))
	}
	entry := func(name, dtype, shape, offsets string) []byte {
		return raw(fmt.Sprintf(`{"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%s]}}`, name, dtype, shape, offsets), "")
	}
	zeros := strings.Repeat("0,", 1<<20) + "0"
	return map[string][]byte{
		"more than 64 dimensions":          entry("a", "U8", zeros, "0,0"),
		"more than two data_offsets":       entry("a", "U8", "0", zeros),
		"offered are":                      entry(long, long, "0", "0,0"),
		"is not one string":                raw(`{"__metadata__":{"`+long+`":1}}`, ""),
		"has the unknown property":         raw(`{"`+long+`":{"`+long+`":[`+strings.Repeat("[", 1<<20), ""),
		"not an integer":                   entry("a", "U8", strings.Repeat("1", 1<<20), "0,0"),
		"where { belongs":                  raw(`"`+long+`"`, ""),
		"where [ belongs":                  raw(`{"a":{"shape":"`+long+`"`, ""),
		"is not JSON of the format's form": raw(strings.Repeat("[", 1<<20), ""),
		"":                                 raw("{"+strings.Join(many, ",")+"}", ""),
	}
}

// openingBytes returns the bytes that opening a file of size bytes may allocate.
func openingBytes(size int) int { return 1<<20 + 64*size }

// However hostile a header is, it takes memory in proportion to its length, and its error is short.
func TestHostileHeaders(t *testing.T) {
	for says, b := range hostile() {
		var err error
		n := cost.Of(func() { _, err = New(bytes.NewReader(b), int64(len(b))) })
		if says == "" != (err == nil) || err != nil && (!strings.Contains(err.Error(), says) || len(err.Error()) > 1000) {
			t.Errorf("got %.2000v, want one short error with %q", err, says)
		}
		if n > uint64(openingBytes(len(b))) {
			t.Errorf("%q: %d bytes of a file took %d", says, len(b), n)
		}
	}
}

// FuzzNew opens arbitrary bytes: the result is an error, or a file whose arrays cover the data and that can be rewritten unchanged.
// Either takes memory in proportion to their number.
func FuzzNew(f *testing.F) {
	f.Add(raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}}`, "12345678"))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"I64","shape":[0],"data_offsets":[1,1]}}  `, "1"))
	f.Add(raw(`{}`, ""))
	for _, b := range hostile() {
		f.Add(raw(string(b[8:min(len(b), 1<<12)]), ""))
	}
	if b, err := os.ReadFile("testdata/model.safetensors"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var one *File
		var err error
		cost.Within(t, openingBytes(len(b)), func() { one, err = open(b) })
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.Unsupported {
				t.Fatalf("kind %v: %v", k, err)
			}
			return
		}
		total := one.data
		for _, i := range one.Infos() {
			total += i.Bytes()
		}
		if total != int64(len(b)) {
			t.Fatalf("arrays and header have %d bytes of %d", total, len(b))
		}
		two, err := open(rewritten(t, one))
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(one.Metadata(), two.Metadata()) || len(one.Infos()) != len(two.Infos()) {
			t.Fatal("written anew, the file holds something else")
		}
		for _, i := range one.Infos() {
			x, err1 := one.Read(i.Name)
			y, err2 := two.Read(i.Name)
			j, err3 := two.Lookup(i.Name)
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			if i.String() != j.String() || !bytes.Equal(x, y) {
				t.Fatalf("%v became %v", i, j)
			}
		}
	})
}
