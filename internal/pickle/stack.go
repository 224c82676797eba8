package pickle

import (
	"encoding/binary"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"tenon.dev/fault"
)

// The cost of values in bytes, including what growing slices may leave unused.
const (
	costRef    = 16
	costObject = 2 * 72
	costString = 64
	costFloat  = 16
)

// memoPage is the number of memo entries in a page.
const memoPage = 1 << 12

// memo holds the values that later instructions refer to. Picklers write ascending indexes; any others go to a map.
type memo struct {
	pages []*[memoPage]Ref
	n     uint32 // indexes below are in pages
	other map[uint32]Ref
	count uint32
}

func (t *memo) at(i uint32) *Ref { return &t.pages[i/memoPage][i%memoPage] }

// lookUp returns the value at i, or 0.
func (t *memo) lookUp(i uint32) Ref {
	if i < t.n {
		return *t.at(i)
	}
	return t.other[i]
}

// quick returns the value at i if it is surely complete and not in the map, otherwise 0.
func (t *memo) quick(i uint32) Ref {
	if i >= t.n {
		return 0
	}
	if v := t.pages[i/memoPage][i%memoPage]; !v.container() {
		return v
	}
	return 0
}

// put stores the value on top of the stack.
func (m *machine) put(i uint32) error {
	top, err := m.top(1)
	if err != nil {
		return err
	}
	t, v := &m.memo, top[0]
	if i >= t.n && i-t.n < memoPage && len(t.other) == 0 {
		for len(t.pages) <= int(i/memoPage) {
			if err := m.charge(memoPage*8 + 16); err != nil {
				return err
			}
			t.pages = append(t.pages, new([memoPage]Ref))
		}
		t.n = i + 1
	}
	if t.lookUp(i) == 0 {
		t.count++
	}
	if i < t.n {
		*t.at(i) = v
	} else {
		if err := m.charge(48); err != nil {
			return err
		}
		if t.other == nil {
			t.other = map[uint32]Ref{}
		}
		t.other[i] = v
	}
	if v.container() {
		o := &m.objs[v.payload()]
		o.shared = o.shared || o.memo != 0 || i == 1<<32-1
		o.memo = i + 1
	}
	return nil
}

func (m *machine) get(i uint32) error {
	v := m.memo.lookUp(i)
	if v == 0 {
		return m.broken("memo entry %d does not exist", i)
	}
	if v.container() && !m.objs[v.payload()].adopted {
		var err error
		if v, err = m.share(v); err != nil {
			return err
		}
	}
	return m.push(v)
}

// share prepares a value that is still on the stack for another reference. The value is complete unless a mark is directly above it; a
// list with itself as its single item is an error when that item is added.
func (m *machine) share(v Ref) (Ref, error) {
	o := &m.objs[v.payload()]
	at := int(o.pos)
	if m.o.Take == nil || o.shared || v.tag() != KindDict && v.tag() != KindList || at >= len(m.stack) || m.stack[at] != v {
		o.shared = true
		return v, nil
	}
	if _, filling := slices.BinarySearch(m.marks, at+1); filling {
		o.shared = true
		return v, nil
	}
	o.adopted = true
	instead, err := m.offer(v, at, o.items)
	m.stack[at] = instead
	return instead, err
}

// replace makes the memo's entry of v, which is taken, refer to its replacement.
func (t *memo) replace(i uint32, v, instead Ref) {
	if i < t.n {
		if p := t.at(i); *p == v {
			*p = instead
		}
	} else if t.other[i] == v {
		t.other[i] = instead
	}
}

func (m *machine) push(v Ref) error {
	if len(m.stack) == cap(m.stack) {
		n := max(64, len(m.stack))
		if err := m.charge(8 * n); err != nil {
			return err
		}
		m.stack = slices.Grow(m.stack, n)
	}
	m.stack = append(m.stack, v)
	return nil
}

func (m *machine) mark() error {
	if len(m.marks) == cap(m.marks) {
		if err := m.charge(16 * max(16, len(m.marks))); err != nil {
			return err
		}
	}
	m.marks = append(m.marks, len(m.stack))
	return nil
}

// aboveMark returns how many values are above the last mark.
func (m *machine) aboveMark() (int, error) {
	if len(m.marks) == 0 {
		return 0, m.broken("a mark is missing")
	}
	return len(m.stack) - m.marks[len(m.marks)-1], nil
}

// floor returns the lowest height down to which values may be popped: the last mark.
func (m *machine) floor() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

// top returns the last n values above the last mark.
func (m *machine) top(n int) ([]Ref, error) {
	if len(m.stack)-m.floor() < n {
		return nil, m.broken("%d values are needed and %d are there", n, len(m.stack)-m.floor())
	}
	return m.stack[len(m.stack)-n:], nil
}

func (m *machine) drop(n int) { m.stack = m.stack[:len(m.stack)-n] }

const inlineBits = 64 - kindBits

func (m *machine) pushInt(n int64) error {
	if n >= -1<<(inlineBits-1) && n < 1<<(inlineBits-1) {
		return m.push(Ref(uint64(n)<<kindBits | uint64(KindInt)))
	}
	return m.pushBig(big.NewInt(n))
}

func (m *machine) pushBig(b *big.Int) error {
	if b.IsInt64() {
		if n := b.Int64(); n >= -1<<(inlineBits-1) && n < 1<<(inlineBits-1) {
			return m.pushInt(n)
		}
	}
	if err := m.charge(64 + b.BitLen()/8); err != nil {
		return err
	}
	m.bigs = append(m.bigs, b)
	return m.push(pack(bigInt, uint64(len(m.bigs)-1)))
}

// long1 reads an integer of up to 255 bytes.
func (m *machine) long1() error {
	s := &m.src
	if s.end-s.at >= 9 && s.buf[s.at] <= 8 {
		n := int(s.buf[s.at])
		if n == 0 {
			s.at++
			return m.pushInt(0)
		}
		v := int64(binary.LittleEndian.Uint64(s.buf[s.at+1:])<<(64-8*n)) >> (64 - 8*n)
		s.at += 1 + n
		return m.pushInt(v)
	}
	return m.sized(1, m.pushLong)
}

// maxInt bounds integers in bytes: Python's own text form allows 4,300 digits.
const maxInt = 4096

// pushLong pushes an integer of little-endian bytes in two's complement.
func (m *machine) pushLong(b []byte) error {
	if len(b) > maxInt {
		return fault.New(fault.Unsupported, "the pickle has an integer of %d bytes at byte %d; %d can be read", len(b),
			m.src.offset(), maxInt)
	}
	be := slices.Clone(b)
	slices.Reverse(be)
	v := new(big.Int).SetBytes(be)
	if len(be) > 0 && be[0]&0x80 != 0 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(be))))
	}
	return m.pushBig(v)
}

func (m *machine) pushFloat(f float64) error {
	if err := m.charge(costFloat); err != nil {
		return err
	}
	m.floats = append(m.floats, f)
	return m.push(pack(KindFloat, uint64(len(m.floats)-1)))
}

// pushText pushes a string; equal strings are one.
func (m *machine) pushText(b []byte) error {
	id, ok := m.strID[string(b)]
	if !ok {
		if err := m.charge(len(b) + costString); err != nil {
			return err
		}
		s := string(b)
		if !utf8.ValidString(s) {
			if err := m.charge(3 * len(b)); err != nil {
				return err
			}
			s = strings.ToValidUTF8(s, "\ufffd")
			if id, ok = m.strID[s]; ok {
				return m.push(pack(KindString, uint64(id)))
			}
		}
		id = uint32(len(m.strs))
		m.strs = append(m.strs, s)
		m.strID[s] = id
	}
	return m.push(pack(KindString, uint64(id)))
}

func (m *machine) pushBytes(b []byte) error {
	if err := m.charge(len(b) + costString); err != nil {
		return err
	}
	m.blobs = append(m.blobs, slices.Clone(b))
	return m.push(pack(KindBytes, uint64(len(m.blobs)-1)))
}

// newObject returns a new, empty object.
func (m *machine) newObject(k Kind) (Ref, error) {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		m.objs[id] = object{items: m.objs[id].items[:0]}
		return pack(k, uint64(id)), nil
	}
	if err := m.charge(costObject); err != nil {
		return 0, err
	}
	m.objs = append(m.objs, object{})
	return pack(k, uint64(len(m.objs)-1)), nil
}

// pushEmpty pushes a new, empty object.
func (m *machine) pushEmpty(k Kind) error {
	v, err := m.newObject(k)
	if err != nil {
		return err
	}
	m.objs[v.payload()].pos = uint32(len(m.stack))
	return m.push(v)
}

// add appends items, which are adopted, to a container. A list leaves dropped items out, other containers have None instead.
func (m *machine) add(v Ref, items []Ref) error {
	o := &m.objs[v.payload()]
	if need := len(o.items) + len(items); need > cap(o.items) {
		if err := m.charge(costRef * len(items)); err != nil {
			return err
		}
	}
	for _, item := range items {
		if item.tag() == kindGone {
			if v.tag() == KindList {
				continue
			}
			item = pack(KindNone, 0)
		}
		o.items = append(o.items, item)
	}
	return nil
}

// adopt offers the values to Take and replaces them by the results. The values are still on the stack, at from and above.
func (m *machine) adopt(from int) error {
	for i := from; i < len(m.stack); i++ {
		v := m.stack[i]
		if !v.container() {
			continue
		}
		o := &m.objs[v.payload()]
		if o.adopted {
			continue
		}
		o.adopted = true
		if m.o.Take == nil || o.shared || v.tag() != KindDict && v.tag() != KindList {
			continue
		}
		instead, err := m.offer(v, i, o.items)
		if err != nil {
			return err
		}
		m.stack[i] = instead
	}
	return nil
}

// offer passes the list or dict v, at position at of the stack, to Take and returns its replacement.
func (m *machine) offer(v Ref, at int, items []Ref) (Ref, error) {
	m.at = at
	t, err := m.o.Take(m.Data, v.tag(), items)
	if err != nil || t.Verdict == Leave {
		return v, err
	}
	instead := pack(KindTaken, t.Value)
	if t.Verdict == Drop {
		instead = pack(kindGone, 0)
	}
	o := &m.objs[v.payload()]
	if o.memo != 0 {
		m.memo.replace(o.memo-1, v, instead)
	}
	m.free = append(m.free, uint32(v.payload()))
	return instead, nil
}

// tuple makes a tuple of the last n values.
func (m *machine) tuple(n int) error {
	if _, err := m.top(n); err != nil {
		return err
	}
	return m.wrapUp(KindTuple, len(m.stack)-n)
}

// gather makes an object of the values above the last mark.
func (m *machine) gather(k Kind) error {
	n, err := m.aboveMark()
	if err != nil {
		return err
	}
	if k == KindDict && n%2 != 0 {
		return m.broken("a dict has a key without a value")
	}
	if err := m.wrapUp(k, len(m.stack)-n); err != nil {
		return err
	}
	m.marks = m.marks[:len(m.marks)-1]
	return nil
}

// wrapUp replaces the values from a position on by an object of them.
func (m *machine) wrapUp(k Kind, from int) error {
	if err := m.adopt(from); err != nil {
		return err
	}
	v, err := m.newObject(k)
	if err != nil {
		return err
	}
	if err := m.add(v, m.stack[from:]); err != nil {
		return err
	}
	m.stack = m.stack[:from]
	m.objs[v.payload()].pos = uint32(from)
	return m.push(v)
}

// under returns the container beneath the last n values, which must have one of the kinds and be above all marks, except the last one if
// marked is true.
func (m *machine) under(n int, marked bool, kinds ...Kind) (Ref, error) {
	at, floor := len(m.stack)-n-1, m.floor()
	if k := len(m.marks); marked {
		floor = 0
		if k > 1 {
			floor = m.marks[k-2]
		}
	}
	if at < floor {
		return 0, m.broken("a container is missing")
	}
	v := m.stack[at]
	if !slices.Contains(kinds, v.tag()) {
		return 0, m.broken("items are added to a %v", v.Kind())
	}
	return v, nil
}

// extend adds the last n values to the list, set or object beneath them.
func (m *machine) extend(n int, marked bool) error {
	v, err := m.under(n, marked, KindList, KindSet, KindObject)
	if err != nil {
		return err
	}
	from := len(m.stack) - n
	if err := m.adopt(from); err != nil {
		return err
	}
	err = m.add(v, m.stack[from:])
	m.stack = m.stack[:from]
	return err
}

// appends is extend with the values above the last mark.
func (m *machine) appends() error {
	n, err := m.aboveMark()
	if err != nil {
		return err
	}
	if err := m.extend(n, true); err != nil {
		return err
	}
	m.marks = m.marks[:len(m.marks)-1]
	return nil
}

// setItems adds the keys and values above the last mark to the dict or object beneath it. This completes a new dict.
func (m *machine) setItems() error {
	n, err := m.aboveMark()
	if err != nil {
		return err
	}
	if n%2 != 0 {
		return m.broken("a dict has a key without a value")
	}
	v, err := m.under(n, true, KindDict, KindObject)
	if err != nil {
		return err
	}
	from := len(m.stack) - n
	if err := m.adopt(from); err != nil {
		return err
	}
	m.marks = m.marks[:len(m.marks)-1]
	o := &m.objs[v.payload()]
	// A dict that is the whole pickle has nothing beneath it.
	if m.o.Take != nil && v.tag() == KindDict && len(o.items) == 0 && !o.shared && !o.adopted && from > 1 {
		instead, err := m.offer(v, from-1, m.stack[from:])
		if err != nil {
			return err
		}
		if instead != v {
			m.stack = m.stack[:from]
			m.stack[from-1] = instead
			return nil
		}
		o.adopted = true
	}
	err = m.add(v, m.stack[from:])
	m.stack = m.stack[:from]
	return err
}

// setItem adds one key and value to the dict or object beneath them.
func (m *machine) setItem() error {
	v, err := m.under(2, false, KindDict, KindObject)
	if err != nil {
		return err
	}
	from := len(m.stack) - 2
	if err := m.adopt(from); err != nil {
		return err
	}
	err = m.add(v, m.stack[from:])
	m.stack = m.stack[:from]
	return err
}

// shuffle executes the instructions that move values on the stack.
func (m *machine) shuffle(op byte) error {
	switch op {
	case opPop:
		if n := len(m.marks); n > 0 && m.marks[n-1] == len(m.stack) {
			m.marks = m.marks[:n-1] // Python's own machine pops a mark so
			return nil
		}
		if _, err := m.top(1); err != nil {
			return err
		}
		m.drop(1)
		return nil
	case opPopMark:
		n, err := m.aboveMark()
		if err != nil {
			return err
		}
		m.drop(n)
		m.marks = m.marks[:len(m.marks)-1]
		return nil
	}
	top, err := m.top(1)
	if err != nil {
		return err
	}
	if top[0].container() {
		m.objs[top[0].payload()].shared = true
	}
	return m.push(top[0])
}
