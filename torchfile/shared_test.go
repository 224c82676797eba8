package torchfile_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/pickle"
	"tenon.dev/torchfile"
)

// Tensors that shared memory share it again after loading, from PyTorch's files and from ours.
func TestShared(t *testing.T) {
	files := fromTorch(t)
	devices(t, func(t *testing.T, x *tenon.Exec) {
		read := func(a *tenon.Tensor) []float32 {
			t.Helper()
			v, err := tenon.Read[float32](x, a)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		// wantShared changes the first of the tensors and checks the others: the whole tensor, the same again, its rows 1 and 2, and its
		// transpose.
		wantShared := func(f *torchfile.File, ts ...*torchfile.Tensor) {
			t.Helper()
			l, err := f.LoadAll(x, ts...)
			if err != nil {
				t.Fatal(err)
			}
			for i := range l[1:] {
				if !l[0].SharesStorage(l[i+1]) {
					t.Errorf("tensor %d shares no memory with the first", i+1)
				}
			}
			x.CopyInto(l[0], x.View(x.Arange(25, tenon.Float32), 5, 5))
			all := read(l[0])
			turned := make([]float32, 25)
			for i := range turned {
				turned[i] = float32(i%5*5 + i/5)
			}
			for i, want := range [][]float32{all, all, all[5:15], turned} {
				if got := read(l[i]); !slices.Equal(got, want) {
					t.Errorf("tensor %d is %v, want %v", i, got, want)
				}
			}
			if fmt.Sprint(l[3].Stride()) != "[1 5]" {
				t.Errorf("the turned one has strides %v", l[3].Stride())
			}
		}
		f := open(t, files["shared_storage_cuda.pt"])
		l := f.Root().([]any)
		at := func(i int) *torchfile.Tensor { return l[i].(*torchfile.Tensor) }
		wantShared(f, at(0), at(2), at(3), at(4))
		part, err := f.LoadAll(x, at(3), at(3))
		if err != nil {
			t.Fatal(err)
		}
		x.CopyInto(part[0], x.AddS(part[0], 1))
		for i, v := range floats(t, f, l[3]) {
			if got := read(part[1])[i]; got != v+1 {
				t.Errorf("element %d of a part of a storage is %v, want %v", i, got, v+1)
			}
		}

		a := x.RandN([]int{5, 5}, tenon.Float32)
		rows := x.Narrow(a, 0, 1, 2)
		name := filepath.Join(t.TempDir(), "shared.pt")
		alone := x.Narrow(x.RandN([]int{100}, tenon.Float32), 0, 50, 3)
		ends := x.RandN([]int{40}, tenon.Float32)
		err = torchfile.Save(x, name, []any{a, torchfile.Tuple{a, rows}, map[string]any{"turned": x.Transpose(a, 0, 1)}, alone,
			x.Narrow(ends, 0, 10, 2), x.Narrow(ends, 0, 20, 5), x.Empty([]int{0, 3}, tenon.Int8)})
		if err != nil {
			t.Fatal(err)
		}
		if f, err = torchfile.Open(name); err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l = f.Root().([]any)
		turned, _ := l[2].(*torchfile.Dict).Get("turned")
		wantShared(f, at(0), l[1].(torchfile.Tuple)[0].(*torchfile.Tensor), l[1].(torchfile.Tuple)[1].(*torchfile.Tensor),
			turned.(*torchfile.Tensor))
		got, err := f.LoadAll(x, at(0), at(3), at(4), at(5), at(6))
		if err != nil {
			t.Fatal(err)
		}
		if got[0].SharesStorage(got[1]) || !got[2].SharesStorage(got[3]) || !slices.Equal(got[4].Shape(), []int{0, 3}) {
			t.Error("other tensors share memory than those that were saved")
		}
		for i, want := range []*tenon.Tensor{a, alone, x.Narrow(ends, 0, 10, 2), x.Narrow(ends, 0, 20, 5)} {
			if !slices.Equal(read(got[i]), read(want)) {
				t.Errorf("tensor %d is %v, want %v", i, read(got[i]), read(want))
			}
		}
		// The file holds elements 10 to 24 of 40, and of 100 elements those of the view.
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		var sizes []uint64
		for _, e := range z.File {
			if strings.HasPrefix(e.Name, "archive/data/") {
				sizes = append(sizes, e.UncompressedSize64)
			}
		}
		if !slices.Equal(sizes, []uint64{100, 12, 60, 0}) {
			t.Errorf("the storages have %v bytes", sizes)
		}
		for _, bad := range []*torchfile.Tensor{nil, {}} {
			if l, err := f.LoadAll(x, at(0), bad); err == nil || l != nil {
				t.Errorf("LoadAll of %v gave %v, %v", bad, l, err)
			}
		}
		loop := []any{nil, nil}
		loop[0], loop[1] = loop, loop
		if err := torchfile.Save(x, name, loop); err == nil || !strings.Contains(err.Error(), "contains itself") {
			t.Errorf("a list that contains itself gave the error %v", err)
		}
	})
}

// A bare storage is a vector of its elements, which shares memory with the storage's tensors.
func TestStorage(t *testing.T) {
	archive := func(elements int) []byte {
		var data, file bytes.Buffer
		p := pickle.NewWriter2(&data)
		storage := func(class string, n int) {
			p.Mark()
			p.String("storage")
			p.Global("torch", class)
			p.String("0")
			p.String("cuda:0")
			p.Int(int64(n))
			p.Tuple()
			p.Persistent()
		}
		p.EmptyList()
		p.Mark()
		p.Global("torch._utils", "_rebuild_tensor_v2")
		p.Mark()
		storage("IntStorage", 4)
		p.Int(0)
		for _, l := range [][]int{{2, 2}, {2, 1}} {
			p.Mark()
			for _, n := range l {
				p.Int(int64(n))
			}
			p.Tuple()
		}
		p.Bool(false)
		p.EmptyDict()
		p.Tuple()
		p.Reduce()
		storage("IntStorage", elements)
		p.Mark()
		storage("UntypedStorage", 16)
		p.Tuple()
		p.Appends()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(&file)
		for name, b := range map[string][]byte{"data.pkl": data.Bytes(), "data/0": dtype.AsBytes([]int32{1, 2, 3, 4}),
			"byteorder": []byte("little")} {
			w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return file.Bytes()
	}
	f := open(t, archive(4))
	l := f.Root().([]any)
	all, ok1 := l[1].(*torchfile.Tensor)
	raw, ok2 := l[2].(torchfile.Tuple)[0].(*torchfile.Tensor)
	if !ok1 || !ok2 || all.String() != "int32[4]" || all.Device != "cuda:0" || raw.String() != "uint8[16]" {
		t.Fatalf("the storages are %v", l)
	}
	devices(t, func(t *testing.T, x *tenon.Exec) {
		ts, err := f.LoadAll(x, l[0].(*torchfile.Tensor), all, raw)
		if err != nil {
			t.Fatal(err)
		}
		x.CopyInto(ts[0], x.Full([]int{2, 2}, 7, tenon.Int32))
		v, err := tenon.Read[int32](x, ts[1])
		if err != nil || !slices.Equal(v, []int32{7, 7, 7, 7}) {
			t.Errorf("the storage is %v, %v", v, err)
		}
		if b, err := tenon.Read[uint8](x, ts[2]); err != nil || len(b) != 16 || b[4] != 2 {
			t.Errorf("the bytes are %v, %v", b, err)
		}
	})
	b := archive(5)
	if _, err := torchfile.New(bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), "lies beyond its storage") {
		t.Errorf("a storage of more elements than there are gave the error %v", err)
	}
}
