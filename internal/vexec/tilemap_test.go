package vexec

import (
	"errors"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// TestTensorMaps: the simulator stops if the function of a load gives another tile than its tensor map. The array has 2 matrices of 5 lines
// of 12 elements, with strides of 16 and 100 elements; tiles of 4 x 8 extend beyond it on all sides.
func TestTensorMaps(t *testing.T) {
	const matrices, lines, line, pitch, apart = 2, 5, 12, 16, 96
	m := newFlat()
	data := make([]float32, matrices*apart+8)
	for i := range data {
		data[i] = float32(i + 1)
	}
	addr := put(m, data)
	tensorMap := kir.TensorMap{Addr: addr, Dims: [4]int{line, lines, matrices, 1}, Strides: [3]int{pitch * 4, apart * 4},
		Tile: kir.MapTile{Type: dtype.Float32, Line: 8, Lines: 4}}
	for name, c := range map[string]struct {
		groups  kernel.Groups
		width   int
		pitch   int
		edge    int // how many of a line's elements the function treats as inside
		further int // the element at which the function begins
		filled  bool
		want    string
	}{
		"sound":  {kernel.AlongCols, 1, pitch, line, 0, true, ""},
		"turned": {kernel.AlongRows, 1, pitch, line, 0, true, ""},
		"groups": {kernel.AlongCols, 4, pitch, line, 0, true, ""},
		"pitch": {kernel.AlongCols, 1, line, line, 0, true, "gives another element than tensor map m at line 1, place 7; both " +
			"must mean the same for tile t by block (0,0,0)"},
		"edge":         {kernel.AlongCols, 1, pitch, line - 1, 0, true, "gives another element than tensor map m at line 0, place 2; both"},
		"place":        {kernel.AlongRows, 1, pitch, line, 1, true, "gives another element than tensor map m at line 0, place 7; both"},
		"nothing said": {kernel.AlongCols, 1, line, line, 0, false, ""},
	} {
		k := build(t, "mapped", func(k *kernel.Builder) {
			k.FixedThreads(32)
			tm, b := k.TensorMap("m"), k.Buffer("b", dtype.Float32)
			rows, cols := 4, 8
			if c.groups == kernel.AlongRows {
				rows, cols = cols, rows
			}
			tile := k.Tile("t", dtype.Float32, rows, cols)
			k.For(k.I32(0), k.I32(matrices), k.I32(1), func(z kernel.Value) {
				k.For(k.I32(0), k.I32(lines), k.I32(4), func(across kernel.Value) {
					k.For(k.I32(-8), k.I32(line), k.I32(8), func(along kernel.Value) {
						if c.width == 1 {
							along = along.Add(k.I32(1)) // from -7 on
						}
						tile.LoadMapped(tm, along, across, z, c.groups, c.width,
							func(row, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
								if c.groups == kernel.AlongRows {
									row, col = col, row
								}
								place, l := along.Add(col), across.Add(row)
								inside := place.Ge(k.I32(0)).And(place.Lt(k.I32(c.edge))).And(l.Lt(k.I32(lines)))
								index := z.Mul(k.I32(apart)).Add(l.Mul(k.I32(c.pitch))).Add(place).Add(k.I32(c.further))
								return b, index.Convert(dtype.Int64), inside
							})
					})
				})
			})
		})
		text := make([]byte, kir.MapPlace, kir.MapPlace+kir.MapWords*8)
		if c.filled {
			text = tensorMap.Append(text)
		} else {
			text = append(text, make([]byte, kir.MapWords*8)...)
		}
		args := append(text, pack(addr)...)
		err := k.Run(&Env{Mem: m}, x(1), x(32), 0, args)
		var f *Fault
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.As(err, &f) || f.Code != codeAssert || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	comparePixels(t)
	gone := tensorMap
	gone.Addr += 1 << 40
	if got, ok := kir.ParseTensorMap(gone.Append(nil)); !ok || got.Addr != gone.Addr || got.Dims != gone.Dims ||
		got.Strides != gone.Strides {
		t.Errorf("%+v is read as %+v", gone, got)
	}
	far := kir.TensorMap{Dims: [4]int{1 << 32, 1 << 32, 1, 7}, Strides: [3]int{1<<40 - 16, 1<<39 + 32, 1<<38 + 48}, Tile: tensorMap.Tile}
	far.Tile.Groups = true
	if got, ok := kir.ParseTensorMap(far.Append(nil)); !ok || got.Dims != far.Dims || got.Strides != far.Strides {
		t.Errorf("%+v is read as %+v", far, got)
	}
	images := kir.TensorMap{Addr: addr, Dims: [4]int{64, 9, 8, 3}, Strides: [3]int{128, 9 * 128, 72 * 128},
		Tile:   kir.MapTile{Type: dtype.Float16, Line: 64, Lines: 128, Pixels: true},
		Pixels: kir.MapPixels{First: [2]int{-128, -1}, Last: [2]int{127, 0}, Step: [2]int{8, 1}}}
	if got, ok := kir.ParseTensorMap(images.Append(nil)); !ok || got.Dims != images.Dims || got.Strides != images.Strides ||
		got.Pixels != images.Pixels || !got.Tile.Pixels || got.Tile.Groups {
		t.Errorf("%+v is read as %+v", images, got)
	}
	if _, ok := kir.ParseTensorMap(make([]byte, kir.MapWords*8)); ok {
		t.Error("an empty map is read as one")
	}
}

// comparePixels: the same for tiles of pixels. There are 3 images of 4 x 5 pixels with 64 channels, which are copied in two parts; the walk
// takes every second column from -1 on and every row from the first to one after the last.
func comparePixels(t *testing.T) {
	const images, down, across, channels = 3, 4, 5, 64
	m := newFlat()
	data := make([]float32, images*down*across*channels)
	for i := range data {
		data[i] = float32(i + 1)
	}
	addr := put(m, data)
	tensorMap := kir.TensorMap{Addr: addr, Dims: [4]int{channels, across, down, images},
		Strides: [3]int{channels * 4, across * channels * 4, down * across * channels * 4},
		Tile:    kir.MapTile{Type: dtype.Float32, Line: 64, Lines: 16, Pixels: true},
		Pixels:  kir.MapPixels{First: [2]int{-1, 0}, Last: [2]int{1, 1}, Step: [2]int{2, 1}}}
	walked := 4 * 5 // positions in an image: columns -1, 1, 3, 5 and rows 0 to 4
	for name, c := range map[string]struct {
		step, far, rows, second int
		col                     int
		want                    string
	}{
		"sound":            {2, 1, 5, 32, 1, ""},
		"another step":     {1, 1, 5, 32, 1, "gives another element than tensor map m at line 1, place 0; both must mean the same"},
		"another distance": {2, 0, 5, 32, 1, "gives another element than tensor map m at line 0, place 0"},
		"fewer rows":       {2, 1, 4, 32, 1, "gives another element than tensor map m at line 0"},
		"another channel":  {2, 1, 5, 16, 1, "gives another element than tensor map m at line 1, place 32"},
		"going back":       {2, -1, 5, 32, -1, "tensor map m: distances of -1 columns and 0 rows; both must be from 0 to 255"},
		"too far":          {2, 256, 5, 32, 256, "tensor map m: distances of 256 columns and 0 rows; both must be from 0 to 255"},
	} {
		k := build(t, "pixels", func(k *kernel.Builder) {
			k.FixedThreads(32)
			tm, b := k.TensorMap("m"), k.Buffer("b", dtype.Float32)
			tile := k.Tile("t", dtype.Float32, 16, 64)
			n := func(v int) kernel.Value { return k.I32(v) }
			k.For(n(0), n(images*walked+20), n(16), func(first kernel.Value) {
				place := func(at kernel.Value, rows, step int) (col, row, image kernel.Value) {
					image = at.Div(n(4 * rows))
					in := at.Sub(image.Mul(n(4 * rows)))
					row = in.Div(n(4))
					return in.Sub(row.Mul(n(4))).Mul(n(step)).Add(n(-1)), row, image
				}
				col, row, image := place(first, 5, 2)
				patches := []kernel.Patch{{Channel: n(0), Col: n(c.col), Row: n(0)}, {Channel: n(32), Col: n(0), Row: n(1)}}
				tile.LoadPixels(tm, kernel.Pixels{Col: col, Row: row, Image: image, Patches: patches}, kernel.AlongCols, 1,
					func(r, c2 kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
						x, y, z := place(first.Add(r), c.rows, c.step)
						part := c2.Div(n(32))
						x, y = x.Add(part.Eq(n(0)).Select(n(c.far), n(0))), y.Add(part)
						channel := part.Eq(n(0)).Select(c2, c2.Sub(n(32)).Add(n(c.second)))
						inside := x.Ge(n(0)).And(x.Lt(n(across))).And(y.Lt(n(down))).And(z.Lt(n(images)))
						return b, z.Mul(n(down)).Add(y).Mul(n(across)).Add(x).Mul(n(channels)).Add(channel).Convert(dtype.Int64), inside
					})
			})
		})
		args := append(tensorMap.Append(make([]byte, kir.MapPlace, kir.MapPlace+kir.MapWords*8)), pack(addr)...)
		err := k.Run(&Env{Mem: m}, x(1), x(32), 0, args)
		var f *Fault
		switch {
		case c.want == "" && err != nil:
			t.Errorf("pixels, %s: %v", name, err)
		case c.want != "" && (!errors.As(err, &f) || f.Code != codeAssert || !strings.Contains(err.Error(), c.want)):
			t.Errorf("pixels, %s: %v, want %q", name, err, c.want)
		}
	}
}
