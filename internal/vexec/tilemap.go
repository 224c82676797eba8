package vexec

import (
	"bytes"
	"unsafe"

	"tenon.dev/internal/kir"
)

// mappedLoad describes the tensor map of a tile load.
type mappedLoad struct {
	name   string // of the parameter
	offset int    // in the arguments
	// place is the position of the tile's first element: along lines, across them, the matrix and, if there are groups of matrices, the
	// group. For a tile of pixels it is as kir.ImagePlaces says.
	place []ref
	site  int
}

// mappedLoad returns the tensor map to compare in's load with, or nil if there is none.
func (e *emitter) mappedLoad(in *kir.Instr) *mappedLoad {
	if len(in.Args) == 0 {
		return nil
	}
	m := &mappedLoad{name: e.p.Params[in.Imm].Name, offset: e.offsets[in.Imm], site: e.nSites}
	e.nSites++
	for _, v := range in.Args {
		if !e.isUniform(v) { // for this analysis, which knows less than kir.Analyze
			return nil
		}
		m.place = append(m.place, e.ref(v))
	}
	return m
}

// compare stops the worker if the elements that the region gave, lines of raw elements, differ from those that a device would copy through
// the tensor map. It ignores a map that is not filled in.
func (l *tileLoad) compare(w *worker, got unsafe.Pointer) {
	m, ok := kir.ParseTensorMap(w.args[l.mapped.offset:])
	if !ok {
		return
	}
	place := make([]int, max(4, len(l.mapped.place)))
	for i := range l.mapped.place {
		place[i] = int(*(*int32)(w.p[l.mapped.place[i].p]))
	}
	n, size := l.inner*l.width, l.t.t.Size()
	s := &w.sites[l.mapped.site]
	want := make([]byte, n*size)
	if parts := kir.ImageParts(len(l.mapped.place)); parts > 0 {
		l.comparePixels(w, got, &m, place, want, n/parts)
		return
	}
	from, to := min(max(0, -place[0]), n), min(n, m.Dims[0]-place[0])
	for r := range l.outer {
		clear(want)
		across := place[1] + r
		inside := 0 <= across && across < m.Dims[1] && 0 <= place[2] && place[2] < m.Dims[2] && 0 <= place[3] && place[3] < m.Dims[3]
		if from < to && inside {
			addr := m.Addr + uint64(place[3]*m.Strides[2]+place[2]*m.Strides[1]+across*m.Strides[0]+(place[0]+from)*size)
			if !w.find(s, addr) || len(s.mem)-int(addr-s.base) < (to-from)*size {
				w.fail(codeIllegalAddress, l.acc.loc, 0, "tensor map %s: invalid %d-byte global read at %#x", l.mapped.name,
					(to-from)*size, addr)
				return
			}
			copy(want[from*size:], s.mem[addr-s.base:][:(to-from)*size])
		}
		if !l.compareLine(w, got, want, r) {
			return
		}
	}
}

// compareLine stops the worker and returns false if line r, whose elements the region gave, is not want.
func (l *tileLoad) compareLine(w *worker, got unsafe.Pointer, want []byte, r int) bool {
	row := lanes[byte](at(got, r*len(want)), len(want))
	if bytes.Equal(row, want) {
		return true
	}
	i := 0
	for row[i] == want[i] {
		i++
	}
	w.fail(codeAssert, l.acc.loc, 0, "the function of LoadMapped gives another element than tensor map %s at line %d, place %d; "+
		"both must mean the same", l.mapped.name, r, i/l.t.t.Size())
	return false
}

// comparePixels is compare for a tile of pixels, whose lines are copied in parts of per elements.
func (l *tileLoad) comparePixels(w *worker, got unsafe.Pointer, m *kir.TensorMap, place []int, want []byte, per int) {
	x, size := &m.Pixels, l.t.t.Size()
	col, row, image := place[0], place[1], place[2]
	for r := range l.outer {
		clear(want)
		for i := 0; i*per*size < len(want); i++ {
			part := place[kir.ImagePlaces+i*kir.PartPlaces:]
			if far := max(part[1], part[2]); min(part[1], part[2]) < 0 || far > kir.MapFarthest {
				w.fail(codeAssert, l.acc.loc, 0, "tensor map %s: distances of %d columns and %d rows; both must be from 0 to %d",
					l.mapped.name, part[1], part[2], kir.MapFarthest)
				return
			}
			c, h, channel := col+part[1], row+part[2], part[0]
			count := min(per, m.Dims[0]-channel)
			if count <= 0 || c < 0 || c >= m.Dims[1] || h < 0 || h >= m.Dims[2] || image >= m.Dims[3] {
				continue
			}
			addr := m.Addr + uint64(image*m.Strides[2]+h*m.Strides[1]+c*m.Strides[0]+channel*size)
			s := &w.sites[l.mapped.site]
			if !w.find(s, addr) || len(s.mem)-int(addr-s.base) < count*size {
				w.fail(codeIllegalAddress, l.acc.loc, 0, "tensor map %s: invalid %d-byte global read at %#x", l.mapped.name, count*size,
					addr)
				return
			}
			copy(want[i*per*size:], s.mem[addr-s.base:][:count*size])
		}
		if !l.compareLine(w, got, want, r) {
			return
		}
		if col += x.Step[0]; col > m.Dims[1]-1+x.Last[0] {
			col, row = x.First[0], row+x.Step[1]
		}
		if row > m.Dims[2]-1+x.Last[1] {
			row, image = x.First[1], image+1
		}
	}
}
