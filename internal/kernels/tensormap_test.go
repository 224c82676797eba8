package kernels

import (
	"encoding/binary"
	"slices"
	"testing"

	"tenon.dev/dtype"
)

// TestTensorMap compares tensor maps with those that cuTensorMapEncodeTiled of driver 580.159 writes for the same arrays, with the
// elements, dimensions, byte strides and box given in each name.
func TestTensorMap(t *testing.T) {
	const ptr = 0x7f19ee000000
	for _, c := range []struct {
		name               string
		t                  dtype.DType
		count, k, batch    int
		own, depth, matrix int
		places, depths     int
		plain              bool
		want               []uint32
	}{
		{"bf16 [30, 2000, 1000], 4096 and 8192000 bytes, box [1, 128, 64]", dtype.BFloat16, 2000, 1000, 30, 2048, 1,
			2048 * 2000, 128, 64, false,
			[]uint32{0xee000000, 0x7f19, 0x46520, 0x100, 0x7d000, 0, 0, 0, 0x3e7, 0x7cf, 0x1d, 0, 0, 0x3f000000, 0x7f, 0,
				0x4000, 0, 0x400}},
		{"the same, turned, in parts", dtype.BFloat16, 1000, 2000, 30, 1, 2048, 2048 * 2000, 256, 128, false,
			[]uint32{0xee000000, 0x7f19, 0x46520, 0x100, 0x7d000, 0, 0, 0, 0x3e7, 0x7cf, 0x1d, 0, 0, 0x3f000000, 0x7f, 0,
				0x4000, 0, 0x400}},
		{"f16, matrices 2^38 bytes apart, lines of 64 bytes", dtype.Float16, 2000, 1000, 31, 2048, 1, 1 << 37, 64, 32, false,
			[]uint32{0xee000000, 0x7f19, 0x44320, 0x100, 0, 0, 0, 0x40, 0x3e7, 0x7cf, 0x1e, 0, 0, 0x1f000000, 0x3f, 0, 0x1000, 0, 0x200}},
		{"f32", dtype.Float32, 2000, 1000, 2, 1024, 1, 1024 * 2000, 256, 32, false,
			[]uint32{0xee000000, 0x7f19, 0x463a0, 0x100, 0x7d000, 0, 0, 0, 0x3e7, 0x7cf, 1, 0, 0, 0x1f000000, 0xff, 0, 0x8000, 0, 0x400}},
		{"f32 [1, 4096, 8192], not permuted, box [1, 16, 256]", dtype.Float32, 8192, 4096, 1, 1, 8192, 8192 * 4096, 256, 16, true,
			[]uint32{0xee000000, 0x7f19, 0x403a0, 0x800, 0x800, 0, 0, 0, 0x1fff, 0xfff, 0, 0, 0, 0xff000000, 0xf, 0, 0x4000, 0, 0x10}},
	} {
		p := product{k: c.k}
		p.s[1] = [2]int{c.own, c.depth}
		p.batch.nd, p.batch.size[0], p.batch.stride[1][0] = 1, c.batch, c.matrix
		l := &Launch{Args: make([]byte, 4)}
		packing(l).tensorMap(&mapArg{host: p.tensorMap(1, &Operand{Ptr: ptr, DType: c.t}, c.count, c.places, c.depths)}, "", c.plain)
		var got []uint32
		for at := 48; at < len(l.Args); at += 4 {
			got = append(got, binary.LittleEndian.Uint32(l.Args[at:]))
		}
		want := append(c.want, make([]uint32, 32-len(c.want))...)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
}

// TestTensorMapOfGroups: maps with groups of matrices are those that the driver writes for [8, 12, 1024, 64], with the values given in each
// name.
func TestTensorMapOfGroups(t *testing.T) {
	for _, c := range []struct {
		name          string
		t             dtype.DType
		line, group   int // in elements
		places, depth int
		want          []uint32
	}{
		{"bf16, 4608, 128 and 4718592 bytes, box [1, 1, 128, 64]", dtype.BFloat16, 2304, 2359296, 128, 64,
			[]uint32{0xee000000, 0x7f19, 0x46530, 0x120, 0x8, 0x48000, 0, 0, 0x3f, 0x3ff, 0xb, 0x7, 0, 0x3f000000, 0x7f, 0,
				0x4000, 0, 0x400}},
		{"f16, lines 2^37 and groups 2^39 bytes apart, box [1, 1, 64, 32]", dtype.Float16, 1 << 36, 1 << 38, 64, 32,
			[]uint32{0xee000000, 0x7f19, 0x44330, 0, 0x8, 0, 0, 0x802, 0x3f, 0x3ff, 0xb, 0x7, 0, 0x1f000000, 0x3f, 0, 0x1000, 0, 0x200}},
	} {
		p := product{k: 64}
		p.s[1] = [2]int{c.line, 1}
		p.batch.nd = 2
		p.batch.size[0], p.batch.size[1] = 12, 8
		p.batch.stride[1][0], p.batch.stride[1][1] = 64, c.group
		l := &Launch{Args: make([]byte, 48)}
		packing(l).tensorMap(&mapArg{host: p.tensorMap(1, &Operand{Ptr: 0x7f19ee000000, DType: c.t}, 1024, c.places, c.depth)}, "", false)
		var got []uint32
		for at := 48; at < len(l.Args); at += 4 {
			got = append(got, binary.LittleEndian.Uint32(l.Args[at:]))
		}
		if want := append(c.want, make([]uint32, 32-len(c.want))...); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
}

// TestTensorMapOfPixels: maps of pixels are those that cuTensorMapEncodeIm2col writes for images [64, 57, 56, 64], with the values given in
// each name.
func TestTensorMapOfPixels(t *testing.T) {
	const ptr = 0x7f0000100000
	base := walk{images: 64, height: 57, width: 56, channels: 64, down: 57, across: 56, first: [2]int{-1, -1}, step: [2]int{1, 1},
		apart: [2]int{1, 1}, window: [2]int{3, 3}, kind: mapLeft}
	words := []uint32{0x100000, 0x7f00, 0x46531, 8, 0x1c0, 0x63c0, 0, 0, 0x3f, 0x37, 0x38, 0x3f, 0, 0x3f000000, 0xffffffff, 0x7f, 0x4000, 0,
		0x400}
	for _, c := range []struct {
		name          string
		change        func(w *walk)
		places, depth int
		words         map[int]uint32
	}{
		{"bf16, from -1 to -1", func(*walk) {}, 128, 64, nil},
		{"from column -3", func(w *walk) { w.first[0], w.across = -3, 58 }, 128, 64, map[int]uint32{14: 0xfffffffd}},
		{"from row -3", func(w *walk) { w.first[1], w.down = -3, 59 }, 128, 64, map[int]uint32{14: 0xfffffdff}},
		{"to column -5", func(w *walk) { w.across = 52 }, 128, 64, map[int]uint32{14: 0xfffbffff}},
		{"to row 3", func(w *walk) { w.down = 61 }, 128, 64, map[int]uint32{14: 0x3ffffff}},
		{"32 channels of 256 pixels", func(*walk) {}, 256, 32,
			map[int]uint32{2: 0x44531, 13: 0x1f000000, 15: 0xff, 16: 0x4000, 18: 0x200}},
		{"128 pixels of 2 x 64 channels", func(w *walk) { w.kind = mapRight }, 128, 128, nil},
		{"every second column", func(w *walk) { w.step[0], w.across, w.first[0] = 2, 28, 0 }, 128, 64,
			map[int]uint32{13: 0x3f000008, 14: 0xffffff00}},
		{"every third row", func(w *walk) { w.step[1], w.down = 3, 19 }, 128, 64, map[int]uint32{13: 0x3f000080, 14: 0xfdffffff}},
	} {
		w, want := base, slices.Clone(append(words, make([]uint32, 32-len(words))...))
		c.change(&w)
		w.dense()
		for at, v := range c.words {
			want[at] = v
		}
		l := &Launch{Args: make([]byte, 48)}
		packing(l).tensorMap(&mapArg{host: w.pixelMap(&Operand{Ptr: ptr, DType: dtype.BFloat16}, c.places, c.depth)}, "", false)
		var got []uint32
		for at := 48; at < len(l.Args); at += 4 {
			got = append(got, binary.LittleEndian.Uint32(l.Args[at:]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
	for name, change := range map[string]func(w *walk){
		"a first row of -129": func(w *walk) { w.first[1] = -129 }, "a last column of 128": func(w *walk) { w.across = 56 + 129 },
		"a step of 9": func(w *walk) { w.step[0] = 9 }, "a window 256 wide": func(w *walk) { w.window[0], w.apart[0] = 129, 2 },
		"48 channels": func(w *walk) { w.channels = 48 },
	} {
		if w := base; !w.fits() {
			t.Fatal("the walk does not fit")
		} else if change(&w); w.fits() {
			t.Errorf("%s fits", name)
		}
	}
}

// TestTensorMapsOfProducts: the maps that a product's kernel declares are those that its launch fills in.
func TestTensorMapsOfProducts(t *testing.T) {
	for _, c := range []struct {
		dt    dtype.DType
		tf32  bool
		plain bool
	}{{dtype.BFloat16, false, false}, {dtype.Float32, true, false}, {dtype.Float32, false, true}} {
		is := newCollector()
		is.limits = Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
		square := Operand{Ptr: 1 << 20, DType: c.dt, Shape: []int{8192, 8192}, Stride: []int{8192, 1}}
		check(t, Matmul(is, square, square, square, MatmulOpt{TF32: c.tf32}))
		mapped := 0
		for s := range is.specs {
			if s.Family != FamilyMatmul {
				continue
			}
			p, err := Build(&s).Program()
			check(t, err)
			for i := range p.Params {
				if q := &p.Params[i]; q.IsMap() {
					mapped++
					if q.Plain != c.plain {
						t.Errorf("%v, tf32 %v: map %s is plain: %v", c.dt, c.tf32, q.Name, q.Plain)
					}
				}
			}
		}
		if mapped != 2 {
			t.Errorf("%v, tf32 %v: %d tensor maps", c.dt, c.tf32, mapped)
		}
	}
}

// TestTensorMapsOfHeads: heads that are interleaved in one array, as in attention, are fetched by maps with groups of matrices.
func TestTensorMapsOfHeads(t *testing.T) {
	const batch, heads, length, width = 2, 3, 128, 64
	is := newCollector()
	is.limits = Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
	row := 3 * heads * width
	head := func(ptr uint64, shape, stride [2]int) Operand {
		return Operand{Ptr: ptr, DType: dtype.BFloat16, Shape: []int{batch, heads, shape[0], shape[1]},
			Stride: []int{length * row, width, stride[0], stride[1]}}
	}
	q := head(1<<20, [2]int{length, width}, [2]int{row, 1})
	k := head(1<<20+2*heads*width, [2]int{width, length}, [2]int{1, row})
	out := Operand{Ptr: 1 << 24, DType: dtype.BFloat16, Shape: []int{batch, heads, length, length},
		Stride: []int{heads * length * length, length * length, length, 1}}
	check(t, Matmul(is, out, q, k, MatmulOpt{}))
	found := false
	for s := range is.specs {
		if s.Family != FamilyMatmul {
			continue
		}
		found = true
		p, err := Build(&s).Program()
		check(t, err)
		if s.Product.Mapped != mapMatrices || s.Product.Batch != 2 {
			t.Errorf("no maps: %+v", s.Product)
		}
		for i, m := range p.MapTiles() {
			if p.Params[i].IsMap() && !m.Groups {
				t.Errorf("map %s has no groups", p.Params[i].Name)
			}
		}
	}
	if !found {
		t.Error("there is no product")
	}
}
