package pickle

import (
	"encoding/binary"
	"io"
	"math"
	"slices"

	"tenon.dev/fault"
)

// Options are the options of Read.
type Options struct {
	// MaxMemory bounds the bytes of memory of the values and of Take's charges; 0 is 1 GiB.
	MaxMemory int64
	// Bound, if not nil, returns the bytes of memory that a pickle may take after read bytes were read, so that a short pickle may take
	// less than a long one; MaxMemory bounds it. It must not fall as read grows.
	Bound func(read int64) int64
	// Global says whether the pickle may name this class or function. They are never looked up or called: a call becomes a value of
	// KindObject. Nil allows none.
	Global func(module, name string) bool
	// Persistent says that the pickle may refer to objects outside it.
	Persistent bool
	// Take, if not nil, is offered each list and dict once it is complete, innermost first, with its items: when a container takes it or
	// the memo is asked for it, and a dict that is filled at once as soon as that. It is not offered the pickle itself, nor what takes part
	// in a circle. It may take the value: then only what it returns is kept in the value's place, as KindTaken (below 2⁵⁹), or, for Drop,
	// nothing at all.
	Take func(d *Data, k Kind, items []Ref) (Taken, error)
	// Progress, if not nil, is called now and then with the number of bytes read.
	Progress func(read int64)
}

// Taken is the result of Options.Take for a value.
type Taken struct {
	Verdict Verdict
	Value   uint64 // for Replace
}

// Verdict says what happens to a value.
type Verdict uint8

// The verdicts of Options.Take.
const (
	Leave   Verdict = iota // the value stays as it is
	Replace                // Taken.Value replaces it
	Drop                   // a list leaves the item out
)

// machine is Python's unpickling machine over a Data.
type machine struct {
	*Data
	src  source
	o    Options
	memo memo
}

// Read reads one pickle of any protocol up to 5 from r, which may be read beyond its end. A pickle that is broken, needs code to run, or
// exceeds MaxMemory or Bound is an error.
func Read(r io.Reader, o Options) (*Data, error) {
	if o.MaxMemory == 0 {
		o.MaxMemory = 1 << 30
	}
	m := &machine{Data: &Data{limit: o.MaxMemory, strID: map[string]uint32{}}, o: o}
	if o.Bound != nil {
		m.limit = 0 // until something is needed
		m.bound = func() int64 { return min(o.MaxMemory, o.Bound(m.src.start+int64(m.src.end))) }
	}
	m.src = source{r: r, buf: make([]byte, window), progress: o.Progress}
	if err := m.run(); err != nil {
		return nil, err
	}
	m.stack, m.marks = nil, nil
	return m.Data, nil
}

func (m *machine) broken(format string, args ...any) error {
	return fault.Wrap(fault.Invalid, fault.New(fault.Invalid, format, args...), "the pickle is broken at byte %d", m.src.offset())
}

// run executes instructions until the pickle ends. It handles the frequent ones itself.
func (m *machine) run() error {
	s := &m.src
	for {
		if s.end-s.at < margin {
			if err := s.fill(margin); err != nil {
				return err
			}
			if s.at == s.end {
				return s.truncated()
			}
		}
		op := s.buf[s.at]
		s.at++
		var err error
		switch op {
		case opBinGet:
			if s.at == s.end {
				return s.truncated()
			}
			s.at++
			i := uint32(s.buf[s.at-1])
			if v := m.memo.quick(i); v != 0 && len(m.stack) < cap(m.stack) {
				m.stack = append(m.stack, v)
				continue
			}
			err = m.get(i)
		case opLongBinGet:
			if s.end-s.at < 4 {
				return s.truncated()
			}
			s.at += 4
			i := binary.LittleEndian.Uint32(s.buf[s.at-4:])
			if v := m.memo.quick(i); v != 0 && len(m.stack) < cap(m.stack) {
				m.stack = append(m.stack, v)
				continue
			}
			err = m.get(i)
		case opMemoize:
			err = m.put(m.memo.count)
		case opMark:
			err = m.mark()
		case opBinInt:
			if s.end-s.at < 4 {
				return s.truncated()
			}
			s.at += 4
			err = m.pushInt(int64(int32(binary.LittleEndian.Uint32(s.buf[s.at-4:]))))
		case opBinInt1:
			if s.at == s.end {
				return s.truncated()
			}
			s.at++
			err = m.pushInt(int64(s.buf[s.at-1]))
		case opBinInt2:
			if s.end-s.at < 2 {
				return s.truncated()
			}
			s.at += 2
			err = m.pushInt(int64(binary.LittleEndian.Uint16(s.buf[s.at-2:])))
		case opLong1:
			err = m.long1()
		case opEmptyDict:
			err = m.pushEmpty(KindDict)
		case opEmptyList:
			err = m.pushEmpty(KindList)
		case opSetItems:
			err = m.setItems()
		case opAppends:
			err = m.appends()
		case opShortBinUnicode:
			err = m.sized(1, m.pushText)
		case opStop:
			return m.stop()
		default:
			err = m.rare(op)
		}
		if err != nil {
			return err
		}
	}
}

// stop ends the pickle: the one value on the stack is its root.
func (m *machine) stop() error {
	if len(m.stack) != 1 || len(m.marks) > 0 {
		return m.broken("it ends with %d values and %d open marks", len(m.stack), len(m.marks))
	}
	m.root, m.size = m.stack[0], m.src.offset()
	return nil
}

// rare executes the instructions of protocol 2 and later that are less frequent.
func (m *machine) rare(op byte) error {
	switch op {
	case opProto:
		b, err := m.src.take(1)
		if err == nil && b[0] > lastProtocol {
			return fault.New(fault.Unsupported, "the pickle has protocol %d; protocols up to %d can be read", b[0], lastProtocol)
		}
		return err
	case opFrame:
		return m.src.skip(8)
	case opNone:
		return m.push(pack(KindNone, 0))
	case opNewTrue:
		return m.push(pack(KindBool, 1))
	case opNewFalse:
		return m.push(pack(KindBool, 0))
	case opBinFloat:
		b, err := m.src.take(8)
		if err != nil {
			return err
		}
		return m.pushFloat(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case opBinUnicode, opBinString:
		return m.sized(4, m.pushText)
	case opShortBinString:
		return m.sized(1, m.pushText)
	case opBinUnicode8:
		return m.sized(8, m.pushText)
	case opShortBytes:
		return m.sized(1, m.pushBytes)
	case opBinBytes:
		return m.sized(4, m.pushBytes)
	case opBinBytes8, opByteArray8:
		return m.sized(8, m.pushBytes)
	case opLong4:
		return m.sized(4, m.pushLong)
	case opTuple1, opTuple2, opTuple3:
		return m.tuple(int(op-opTuple1) + 1)
	case opEmptyTuple:
		return m.tuple(0)
	case opTuple:
		return m.gather(KindTuple)
	case opAppend:
		return m.extend(1, false)
	case opSetItem:
		return m.setItem()
	case opBinPut, opLongBinPut:
		return m.binPut(op)
	case opEmptySet:
		return m.pushEmpty(KindSet)
	case opAddItems:
		return m.appends()
	case opFrozenSet:
		return m.gather(KindSet)
	case opPop, opPopMark, opDup:
		return m.shuffle(op)
	case opGlobal, opStackGlobal, opReduce, opNewObj, opNewObjEx, opObj, opInst, opBuild, opBinPersID, opPersID:
		return m.construct(op)
	case opExt1, opExt2, opExt4:
		return fault.New(fault.Unsupported, "the pickle uses the extension registry at byte %d, which names code; that is refused",
			m.src.offset())
	case opNextBuffer, opReadonlyBuffer:
		return fault.New(fault.Unsupported, "the pickle keeps data outside itself (an out-of-band buffer at byte %d); write it without",
			m.src.offset())
	}
	return m.text(op)
}

func (m *machine) binPut(op byte) error {
	if op == opBinPut {
		b, err := m.src.take(1)
		if err != nil {
			return err
		}
		return m.put(uint32(b[0]))
	}
	b, err := m.src.take(4)
	if err != nil {
		return err
	}
	return m.put(binary.LittleEndian.Uint32(b))
}

// sized reads a length of n bytes and then that many bytes, and passes them to use.
func (m *machine) sized(n int, use func([]byte) error) error {
	b, err := m.src.take(n)
	if err != nil {
		return err
	}
	var size uint64
	for i := n - 1; i >= 0; i-- {
		size = size<<8 | uint64(b[i])
	}
	if size <= window {
		b, err := m.src.take(int(size))
		if err != nil {
			return err
		}
		return use(b)
	}
	if size > uint64(m.o.MaxMemory-m.used) {
		return m.charge(int(min(size, math.MaxInt64/2)))
	}
	// The length is only a claim until the bytes arrive, so the memory grows with the bytes.
	var all []byte
	for uint64(len(all)) < size {
		if err := m.src.fill(1); err != nil {
			return err
		}
		k := int(min(uint64(m.src.end-m.src.at), size-uint64(len(all))))
		if k == 0 {
			return m.src.truncated()
		}
		// A long text is short when compressed, so its charge is checked before all of it has been read.
		if err := m.charge(len(all) + k); err != nil {
			return err
		}
		m.used -= int64(len(all) + k)
		if cap(all)-len(all) < k {
			all = slices.Grow(all, int(min(max(uint64(k), uint64(len(all))), size-uint64(len(all)))))
		}
		all = append(all, m.src.buf[m.src.at:m.src.at+k]...)
		m.src.at += k
	}
	return use(all)
}
