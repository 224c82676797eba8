package check

import (
	"math/bits"
	"sort"
)

// region is an allocation, live or freed.
type region struct {
	base, size uint64
	id         uint64
	made, gone []uintptr
	pages      map[uint64]*page
	// birth is the epoch of the operation that allocated it in stream order; 0: it existed before all operations.
	birth uint32
}

// pageBytes is the number of bytes that one page of shadow covers.
const pageBytes = 4096

// page is the shadow of pageBytes of a region.
type page struct {
	// written has one bit per byte.
	written [pageBytes / 64]uint64
	// cells has one cell per granule of 1<<shift bytes; if nil, all stands for each of them.
	cells []cell
	shift uint8
	all   cell
}

// side is one access: its epoch, its thread in the block, and its place in the kernel.
type side struct {
	epoch  uint32
	thread int32
	loc    uint16
}

// cell is the history of a granule: the last write, and the last reads that were not ordered one after the other.
type cell struct {
	w, r, r2 side
	atomic   bool // whether the write was
}

// coarse is the shift of pages that only have accesses of aligned words.
const coarse = 2

func (r *region) page(i uint64) *page {
	p := r.pages[i]
	if p == nil {
		p = &page{shift: coarse, all: cell{w: side{epoch: r.birth}}}
		r.pages[i] = p
	}
	return p
}

// at returns the cells of bytes [lo, hi), one per 1<<shift bytes.
func (p *page) at(lo, hi uint64) []cell {
	if p.shift != 0 && (lo|hi)&(1<<coarse-1) != 0 {
		p.refine()
	}
	if p.cells == nil {
		p.cells = make([]cell, pageBytes>>p.shift)
		for i := range p.cells {
			p.cells[i] = p.all
		}
	}
	return p.cells[lo>>p.shift : hi>>p.shift]
}

// refine gives every byte its own cell.
func (p *page) refine() {
	old := p.cells
	p.shift, p.cells = 0, nil
	if old == nil {
		return
	}
	p.cells = make([]cell, pageBytes)
	for i := range p.cells {
		p.cells[i] = old[i>>coarse]
	}
}

// span returns the bits of bytes [lo, hi) in word i of written.
func span(i, lo, hi uint64) uint64 {
	m := ^uint64(0)
	if lo > i*64 {
		m <<= lo - i*64
	}
	if end := (i + 1) * 64; hi < end {
		m &= ^uint64(0) >> (end - hi)
	}
	return m
}

// set marks bytes [lo, hi) as written.
func (p *page) set(lo, hi uint64) {
	for i := lo / 64; i*64 < hi; i++ {
		p.written[i] |= span(i, lo, hi)
	}
}

// unset marks bytes [lo, hi) as unwritten.
func (p *page) unset(lo, hi uint64) {
	for i := lo / 64; i*64 < hi; i++ {
		p.written[i] &^= span(i, lo, hi)
	}
}

// missing returns the first byte of [lo, hi) that is not written.
func (p *page) missing(lo, hi uint64) (uint64, bool) {
	for i := lo / 64; i*64 < hi; i++ {
		if m := span(i, lo, hi) &^ p.written[i]; m != 0 {
			return i*64 + uint64(bits.TrailingZeros64(m)), true
		}
	}
	return 0, false
}

// each calls f for the pages of [off, off+n), with the range in the page.
func (r *region) each(off, n uint64, f func(p *page, base, lo, hi uint64)) {
	for n > 0 {
		i, lo := off/pageBytes, off%pageBytes
		hi := min(lo+n, pageBytes)
		f(r.page(i), i*pageBytes, lo, hi)
		off += hi - lo
		n -= hi - lo
	}
}

// regions are sorted by base and do not overlap.
type regions []*region

// after returns the index of the first region whose base is above addr.
func (s regions) after(addr uint64) int {
	return sort.Search(len(s), func(i int) bool { return s[i].base > addr })
}

// find returns the region that contains addr.
func (s regions) find(addr uint64) *region {
	if i := s.after(addr) - 1; i >= 0 && addr-s[i].base < s[i].size {
		return s[i]
	}
	return nil
}

func (s *regions) insert(r *region) {
	i := s.after(r.base)
	*s = append(*s, nil)
	copy((*s)[i+1:], (*s)[i:])
	(*s)[i] = r
}

func (s *regions) remove(base uint64) *region {
	i := s.after(base) - 1
	if i < 0 || (*s)[i].base != base {
		return nil
	}
	r := (*s)[i]
	*s = append((*s)[:i], (*s)[i+1:]...)
	return r
}
