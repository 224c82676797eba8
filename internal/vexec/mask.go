package vexec

import (
	"bytes"
	"encoding/binary"
)

// mask says which lanes are active: those of [lo, hi) or, if b is not nil, those of [lo, hi) whose byte is 1 (b is indexed by lane). It is
// empty if and only if hi is 0. A mask with bytes begins and ends with an active lane.
//
// Bytes belong to the instruction that made the mask and are stable until that instruction runs again. The mask after an instruction uses
// the bytes from before it or the instruction's own bytes, never those of instructions nested in it.
type mask struct {
	lo, hi int
	b      []uint8
}

func dense(lo, hi int) mask {
	if lo >= hi {
		return mask{}
	}
	return mask{lo: lo, hi: hi}
}

// same reports whether two masks that exist at the same time are identical.
func (m mask) same(o mask) bool {
	return m.lo == o.lo && m.hi == o.hi && len(m.b) == len(o.b) && (len(m.b) == 0 || &m.b[0] == &o.b[0])
}

var one = []byte{1}

// cut returns m without the lanes outside [lo, hi).
func (m mask) cut(lo, hi int) mask {
	lo, hi = max(lo, m.lo), min(hi, m.hi)
	if lo >= hi {
		return mask{}
	}
	if m.b == nil {
		return mask{lo: lo, hi: hi}
	}
	return trim(mask{lo, hi, m.b})
}

// trim restores the rule about the first and the last lane of a mask with bytes, and drops bytes that are not needed.
func trim(m mask) mask {
	s := m.b[m.lo:m.hi]
	n := bytes.Count(s, one)
	if n == 0 {
		return mask{}
	}
	if n == len(s) {
		return mask{lo: m.lo, hi: m.hi}
	}
	first, last := bytes.IndexByte(s, 1), bytes.LastIndexByte(s, 1)
	m.lo, m.hi = m.lo+first, m.lo+last+1
	if m.hi-m.lo == n {
		m.b = nil
	}
	return m
}

// split divides m by cond (bytes 0 or 1, indexed by lane); tb and eb are buffers for the bytes of the two parts.
func (m mask) split(cond, tb, eb []uint8) (t, e mask) {
	c := cond[m.lo:m.hi]
	if m.b == nil {
		n := bytes.Count(c, one)
		switch n {
		case 0:
			return mask{}, m
		case len(c):
			return m, mask{}
		}
		first, last := m.lo+bytes.IndexByte(c, 1), m.lo+bytes.LastIndexByte(c, 1)+1
		if last-first == n {
			t = dense(first, last)
			if first == m.lo {
				return t, dense(last, m.hi)
			}
			if last == m.hi {
				return t, dense(m.lo, first)
			}
		} else {
			copy(tb[first:last], cond[first:last])
			t = mask{first, last, tb}
		}
		notBytes(eb[m.lo:m.hi], c)
		return t, trim(mask{m.lo, m.hi, eb})
	}
	andBytes(tb[m.lo:m.hi], m.b[m.lo:m.hi], c)
	andNotBytes(eb[m.lo:m.hi], m.b[m.lo:m.hi], c)
	return trim(mask{m.lo, m.hi, tb}), trim(mask{m.lo, m.hi, eb})
}

// without returns m without the lanes [lo, hi), at least one of which is in m; eb is a buffer for its bytes.
func (m mask) without(lo, hi int, eb []uint8) mask {
	lo, hi = max(lo, m.lo), min(hi, m.hi)
	switch {
	case lo == m.lo:
		return m.cut(hi, m.hi)
	case hi == m.hi:
		return m.cut(m.lo, lo)
	}
	m.write(eb, m.lo, m.hi)
	clear(eb[lo:hi])
	return trim(mask{m.lo, m.hi, eb})
}

// write writes m's bytes for lanes [lo, hi), a range that contains m's, to dst, which may be m's own buffer.
func (m mask) write(dst []uint8, lo, hi int) {
	if m.hi == 0 {
		clear(dst[lo:hi])
		return
	}
	clear(dst[lo:m.lo])
	clear(dst[m.hi:hi])
	if m.b == nil {
		for i := m.lo; i < m.hi; i++ {
			dst[i] = 1
		}
	} else if &m.b[0] != &dst[0] {
		copy(dst[m.lo:m.hi], m.b[m.lo:m.hi])
	}
}

// union returns the union of two disjoint masks. dst is a buffer for its bytes, which a mask may already use; both may only use separate
// ranges of it.
func union(dst []uint8, x, y mask) mask {
	if x.hi == 0 || y.b != nil && &y.b[0] == &dst[0] {
		x, y = y, x
	}
	if y.hi == 0 {
		if x.b != nil && &x.b[0] != &dst[0] {
			copy(dst[x.lo:x.hi], x.b[x.lo:x.hi])
			x.b = dst
		}
		return x
	}
	lo, hi := min(x.lo, y.lo), max(x.hi, y.hi)
	if x.b != nil && y.b != nil && &x.b[0] == &y.b[0] { // two ranges of dst
		clear(dst[min(x.hi, y.hi):max(x.lo, y.lo)])
		return mask{lo, hi, dst}
	}
	if x.b == nil && y.b == nil && (x.hi == y.lo || y.hi == x.lo) {
		return mask{lo: lo, hi: hi}
	}
	x.write(dst, lo, hi)
	if y.b == nil {
		for i := y.lo; i < y.hi; i++ {
			dst[i] = 1
		}
	} else {
		orBytes(dst[y.lo:y.hi], y.b[y.lo:y.hi])
	}
	return trim(mask{lo, hi, dst})
}

// minus returns m without the lanes whose byte in dead is 1; dst is a buffer for its bytes.
func (m mask) minus(dead, dst []uint8) mask {
	if m.hi == 0 || bytes.IndexByte(dead[m.lo:m.hi], 1) < 0 {
		return m
	}
	if m.b == nil {
		notBytes(dst[m.lo:m.hi], dead[m.lo:m.hi])
	} else {
		andNotBytes(dst[m.lo:m.hi], m.b[m.lo:m.hi], dead[m.lo:m.hi])
	}
	return trim(mask{m.lo, m.hi, dst})
}

func notBytes(d, a []uint8) {
	for ; len(a) >= 8; a, d = a[8:], d[8:] {
		binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(a)^0x0101010101010101)
	}
	for i, v := range a {
		d[i] = v ^ 1
	}
}

func andBytes(d, a, b []uint8) {
	for ; len(a) >= 8; a, b, d = a[8:], b[8:], d[8:] {
		binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(a)&binary.LittleEndian.Uint64(b))
	}
	for i, v := range a {
		d[i] = v & b[i]
	}
}

func andNotBytes(d, a, b []uint8) {
	for ; len(a) >= 8; a, b, d = a[8:], b[8:], d[8:] {
		binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(a)&^binary.LittleEndian.Uint64(b))
	}
	for i, v := range a {
		d[i] = v &^ b[i]
	}
}

func orBytes(d, a []uint8) {
	for ; len(a) >= 8; a, d = a[8:], d[8:] {
		binary.LittleEndian.PutUint64(d, binary.LittleEndian.Uint64(d)|binary.LittleEndian.Uint64(a))
	}
	for i, v := range a {
		d[i] |= v
	}
}
