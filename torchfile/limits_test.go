package torchfile_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/cost"
	"tenon.dev/torchfile"
)

// forged is a pickle made by hand.
type forged struct{ bytes.Buffer }

func forge() *forged { return new(forged).raw("\x80\x02") }

func (p *forged) raw(s string) *forged {
	p.WriteString(s)
	return p
}

func (p *forged) times(n int, s string) *forged { return p.raw(strings.Repeat(s, n)) }

func (p *forged) text(s string) *forged {
	return p.raw("X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s)
}

func (p *forged) number(n int) *forged {
	return p.raw("J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))))
}

func (p *forged) tuple(ns ...int) *forged {
	p.raw("(")
	for _, n := range ns {
		p.number(n)
	}
	return p.raw("t")
}

// tensor adds a float32 tensor over the storage "0" of n elements.
func (p *forged) tensor(n int, shape, stride []int) *forged {
	p.raw("ctorch._utils\n_rebuild_tensor_v2\n((").text("storage").raw("ctorch\nFloatStorage\n").text("0").text("cpu").number(n).
		raw("tQ").number(0)
	return p.tuple(shape...).tuple(stride...).raw("\x89ccollections\nOrderedDict\n)RtR")
}

// archive returns a file with the pickle, whose storage "0" has the given number of bytes.
func (p *forged) archive(t testing.TB, method uint16, storage int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	add := func(name string, method uint16, b []byte) {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = f.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("archive/data.pkl", method, p.Bytes())
	if storage > 0 {
		add("archive/data/0", zip.Store, make([]byte, storage))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// hostile returns files of a few kilobytes that demand more than any machine has, by the words of the error.
func hostile(t testing.TB) map[string][]byte {
	calls := forge().raw("(").times(100_000, "N").raw("tq\x000ca\nb\nq\x010](").times(1000, "h\x01h\x00R").raw("e.")
	laughs := forge().raw("](NNNNNNNNNNeq\x000")
	for i := range 12 {
		laughs.raw("](").times(10, "h"+string(rune(i))).raw("eq" + string(rune(i+1)) + "0")
	}
	laughs.raw("h\x0c.")
	expanded := forge().raw("}(")
	for i := range 40 {
		expanded.text(fmt.Sprint("w", i)).tensor(1, []int{4096, 4096}, []int{0, 0})
	}
	shared := forge().raw("}(").text("first").tensor(1<<20, []int{1 << 20}, []int{1}).raw("q\x00")
	for i := range 100 {
		shared.text(fmt.Sprint("w", i)).raw("h\x00")
	}
	storages := forge().raw("](").raw("(").text("storage").raw("ctorch\nFloatStorage\n").text("0").text("cpu").number(1<<20).
		raw("tQq\x00").times(100, "h\x00").raw("e.")
	return map[string][]byte{
		"lists":      forge().times(3_000_000, "]").times(2_999_999, "a").raw(".").archive(t, zip.Deflate, 0),
		"few lists":  forge().times(2000, "]").times(1999, "a").raw(".").archive(t, zip.Deflate, 0),
		"calls":      calls.archive(t, zip.Deflate, 0),
		"laughs":     laughs.archive(t, zip.Deflate, 0),
		"expansions": expanded.raw("u.").archive(t, zip.Store, 4),
		"shared":     shared.raw("u.").archive(t, zip.Store, 4<<20),
		"storages":   storages.archive(t, zip.Store, 4<<20),
		"empty":      forge().raw("](").times(2_000_000, "]").raw("e.").archive(t, zip.Deflate, 0),
		"numbers":    forge().raw("}(").times(5_000_000, "M\xff\xffM\xff\xff").raw("u.").archive(t, zip.Deflate, 0),
		"long text":  forge().text(strings.Repeat("a", 64<<20)).raw(".").archive(t, zip.Deflate, 0),
		"dimensions": forge().raw("(").times(1000, "K\x01").raw("t0").tensor(1, make([]int, 1000), make([]int, 1000)).raw(".").
			archive(t, zip.Store, 4),
		"long name": forge().raw("c"+strings.Repeat("a", 200_000)+"\nb\n0"+"ca\n"+strings.Repeat("b", 200_000)+"\nq\x000](").
			times(20_000, "h\x00)R").raw("e.").archive(t, zip.Store, 0),
	}
}

// The length of a file bounds the resources that it may use as a whole; the limits can allow more or less.
func TestLimits(t *testing.T) {
	files := hostile(t)
	for name, want := range map[string]string{
		"lists": "Limits.Memory", "few lists": "Limits.Depth", "calls": "Limits.Memory", "laughs": "Limits.Values",
		"expansions": "Limits.Expanded",
		"shared":     "Limits.Tensors", "storages": "Limits.Tensors", "empty": "Limits.Memory", "numbers": "Limits.Memory",
		"long text":  "Limits.Memory",
		"dimensions": "a tensor is made of", "long name": "",
	} {
		b := files[name]
		var err error
		n := cost.Of(func() { _, err = torchfile.New(bytes.NewReader(b), int64(len(b))) })
		if want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
		// Growing slices allocates a few times the memory that is held.
		if n > 192<<20+64*uint64(len(b)) {
			t.Errorf("%s: a file of %d bytes took %d", name, len(b), n)
		}
		if err != nil && len(err.Error()) > 2000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	for name, limits := range map[string]torchfile.Limits{
		"few lists": {Depth: 2000}, "expansions": {Expanded: 40 << 26, Tensors: 40 << 26}, "shared": {Tensors: 101 << 22},
		"storages": {Tensors: 101 << 22},
		"calls":    {Memory: 1 << 34, Values: 1 << 40},
	} {
		b := files[name]
		if name == "calls" {
			b = forge().raw("(").times(1000, "N").raw("tq\x000ca\nb\nq\x010](").times(1000, "h\x01h\x00R").raw("e.").
				archive(t, zip.Deflate, 0)
		}
		if _, err := limits.New(bytes.NewReader(b), int64(len(b))); err != nil {
			t.Errorf("%s under %+v: %v", name, limits, err)
		}
	}
	deep := forge().times(100_000, "]").times(99_999, "a").raw(".").archive(t, zip.Store, 0)
	f, err := torchfile.Limits{Depth: 100_000, Memory: 1 << 30}.New(bytes.NewReader(deep), int64(len(deep)))
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(f.Root()); len(s) != 200_000 {
		t.Errorf("printed, 100,000 lists in each other are %d bytes", len(s))
	}
	good := fromTorch(t)["checkpoint.pt"]
	for want, limits := range map[string]torchfile.Limits{
		"Limits.Depth": {Depth: 2}, "Limits.Values": {Values: 10}, "Limits.Memory": {Memory: 1000}, "Limits.Tensors": {Tensors: 10},
		"negative": {Values: -1}, "more than 100000": {Depth: 100_001},
	} {
		if _, err := limits.New(bytes.NewReader(good), int64(len(good))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", limits, err, want)
		}
	}
}

// Whatever stops the loading of a state dict, no device memory leaks.
func TestStateDictCloses(t *testing.T) {
	devices(t, func(t *testing.T, x *tenon.Exec) {
		four := func(p *forged) *forged { return p.tensor(4, []int{4}, []int{1}) }
		cut := four(four(forge().raw("}(").text("a")).text("b")).raw("u.").archive(t, zip.Store, 16)
		files := map[string][]byte{
			"has the key \"a\" twice":      four(four(forge().raw("}(").text("a")).text("a")).raw("u.").archive(t, zip.Store, 16),
			"has the key \"b\" with a nil": four(forge().raw("}(").text("a")).text("b").raw("Nu.").archive(t, zip.Store, 16),
			"cannot read storage":          cut,
		}
		for want, b := range files {
			before := x.Device().MemoryAllocated()
			f := open(t, b)
			if want == "cannot read storage" {
				var err error
				if f, err = torchfile.New(&failing{bytes.NewReader(b), 1}, int64(len(b))); err != nil {
					t.Fatal(err)
				}
			}
			if d, err := f.StateDict(x); err == nil || d != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, %v, want %q", d, err, want)
			}
			if after := x.Device().MemoryAllocated(); after != before {
				t.Errorf("%s: %d bytes were in use, now %d", want, before, after)
			}
		}
	})
}

// failing fails to read 16 bytes at once, the size of the storage, after some successful reads.
type failing struct {
	io.ReaderAt
	times int
}

func (f *failing) ReadAt(b []byte, at int64) (int, error) {
	if len(b) == 16 {
		if f.times--; f.times < 0 {
			return 0, io.ErrUnexpectedEOF
		}
	}
	return f.ReaderAt.ReadAt(b, at)
}

// Save refuses a dict with a key that occurs twice, and a value that contains itself through a key.
func TestSaveRefuses(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	loop := torchfile.Tuple{nil}
	loop[0] = loop
	for want, v := range map[string]any{
		`the key "a" twice`:              &torchfile.Dict{Keys: []any{"a", "b", "a"}, Values: []any{1, 2, 3}},
		"the key 1 twice":                &torchfile.Dict{Keys: []any{1, int64(1)}, Values: []any{1, 2}},
		"the key 1.5 twice":              &torchfile.Dict{Keys: []any{1.5, float32(1.5)}, Values: []any{1, 2}},
		"the key true twice":             &torchfile.Dict{Keys: []any{1, true}, Values: []any{1, 2}},
		"the key 9007199254740992 twice": &torchfile.Dict{Keys: []any{float64(1 << 53), 1 << 53}, Values: []any{1, 2}},
		"twice, and only one":            &torchfile.Dict{Keys: []any{torchfile.Tuple{1}, torchfile.Tuple{true}}, Values: []any{1, 2}},
		"the key nil twice":              &torchfile.Dict{Keys: []any{nil, nil}, Values: []any{1, 2}},
		"contains itself":                &torchfile.Dict{Keys: []any{loop}, Values: []any{1}},
	} {
		if err := torchfile.Write(x, io.Discard, v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	keys := []any{0, 1, "0", "1", "nil", nil, 0.5, 1e300, math.Inf(1), math.NaN(), math.NaN(), 1<<53 + 1, float64(1 << 53),
		torchfile.Tuple{1}, torchfile.Tuple{1, 2}, torchfile.Tuple{12}, torchfile.Tuple{}}
	if err := torchfile.Write(x, io.Discard, &torchfile.Dict{Keys: keys, Values: make([]any, len(keys))}); err != nil {
		t.Error(err)
	}
}
