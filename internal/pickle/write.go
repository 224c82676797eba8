package pickle

import (
	"encoding/binary"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"tenon.dev/fault"
)

// flushSize is the size of the output buffer.
const flushSize = 1 << 16

// Writer writes a pickle, an instruction at a time: a list is EmptyList, Mark, its items, Appends; a dict is EmptyDict, Mark, keys
// and values in turn, SetItems. The first error stops the output and is what Close returns. A Writer serves one goroutine.
type Writer struct {
	w    io.Writer
	buf  []byte
	memo uint32
	strs map[string]uint32
	// two limits the output to instructions of protocol 2.
	two bool
	err error
}

// NewWriter returns a Writer of protocol 4 to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, buf: append(make([]byte, 0, flushSize+1<<10), opProto, 4), strs: map[string]uint32{}}
}

// NewWriter2 returns a Writer of protocol 2 to w, for readers that know no later protocol, such as torch.load. It cannot write bytes.
func NewWriter2(w io.Writer) *Writer {
	return &Writer{w: w, buf: append(make([]byte, 0, flushSize+1<<10), opProto, 2), strs: map[string]uint32{}, two: true}
}

// Close ends the pickle, whose value is the single value written, and returns the first error. It does not close the io.Writer.
func (w *Writer) Close() error {
	w.op(opStop)
	w.flush()
	return w.err
}

func (w *Writer) flush() {
	if w.err == nil {
		if _, err := w.w.Write(w.buf); err != nil {
			w.err = fault.Wrap(fault.System, err, "the pickle could not be written")
		}
	}
	w.buf = w.buf[:0]
}

// op writes an instruction. There is room for the longest that does not carry text.
func (w *Writer) op(b ...byte) {
	if len(w.buf) >= flushSize {
		w.flush()
	}
	w.buf = append(w.buf, b...)
}

// None writes None.
func (w *Writer) None() { w.op(opNone) }

// Bool writes a boolean.
func (w *Writer) Bool(b bool) {
	if b {
		w.op(opNewTrue)
		return
	}
	w.op(opNewFalse)
}

// Int writes an integer.
func (w *Writer) Int(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		w.op(opBinInt1, byte(n))
	case n >= 0 && n < 1<<16:
		w.op(opBinInt2, byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		w.op(opBinInt, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	default:
		size := 8
		for size > 5 && n<<(64-8*(size-1))>>(64-8*(size-1)) == n {
			size--
		}
		w.op(opLong1, byte(size))
		for i := range size {
			w.buf = append(w.buf, byte(n>>(8*i)))
		}
	}
}

// Uint writes an integer that is not negative.
func (w *Writer) Uint(n uint64) {
	if n <= math.MaxInt64 {
		w.Int(int64(n))
		return
	}
	w.op(opLong1, 9)
	w.buf = append(binary.LittleEndian.AppendUint64(w.buf, n), 0)
}

// Big writes an integer of any size up to 255 bytes; a larger one is an error.
func (w *Writer) Big(n *big.Int) {
	if n.IsInt64() {
		w.Int(n.Int64())
		return
	}
	size := n.BitLen()/8 + 1
	if size > 255 {
		w.fail("an integer of %d bytes cannot be written; 255 can", size)
		return
	}
	v := n
	if n.Sign() < 0 {
		v = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	b := v.FillBytes(make([]byte, size))
	slices.Reverse(b)
	w.op(opLong1, byte(size))
	w.buf = append(w.buf, b...)
}

// Float writes a float.
func (w *Writer) Float(f float64) {
	w.op(opBinFloat)
	w.buf = binary.BigEndian.AppendUint64(w.buf, math.Float64bits(f))
}

// String writes a string, the second time as a reference to the first, and returns its number for Get. Invalid UTF-8 becomes the
// replacement character.
func (w *Writer) String(s string) uint32 {
	if id, ok := w.strs[s]; ok {
		w.Get(id)
		return id
	}
	key := s
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	if w.two && len(s) < 1<<8 {
		w.op(opBinUnicode, byte(len(s)), 0, 0, 0)
		w.buf = append(w.buf, s...)
	} else {
		w.bytes(s, opShortBinUnicode, opBinUnicode, opBinUnicode8)
	}
	id := w.Memoize()
	w.strs[key] = id
	return id
}

// Bytes writes bytes.
func (w *Writer) Bytes(b []byte) {
	if w.two {
		w.fail("bytes cannot be written to a pickle of protocol 2; write a string, or a tensor")
		return
	}
	w.bytes(string(b), opShortBytes, opBinBytes, opBinBytes8)
}

// bytes writes a text with the instruction for a length of one, four or eight bytes.
func (w *Writer) bytes(s string, short, long, huge byte) {
	switch n := uint64(len(s)); {
	case n < 1<<8:
		w.op(short, byte(n))
	case n < 1<<32:
		w.op(long)
		w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(n))
	default:
		w.op(huge)
		w.buf = binary.LittleEndian.AppendUint64(w.buf, n)
	}
	if len(s) < flushSize {
		w.buf = append(w.buf, s...)
		return
	}
	w.flush()
	if w.err == nil {
		if _, err := io.WriteString(w.w, s); err != nil {
			w.err = fault.Wrap(fault.System, err, "the pickle could not be written")
		}
	}
}

// Memoize lets Get refer to the value just written (or, for an empty list or dict, just begun), and returns its number.
func (w *Writer) Memoize() uint32 {
	id := w.memo
	w.memo++
	switch {
	case !w.two:
		w.op(opMemoize)
	case id < 1<<8:
		w.op(opBinPut, byte(id))
	default:
		w.op(opLongBinPut, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return id
}

// Get writes the value with this number again: the same object, not a copy.
func (w *Writer) Get(id uint32) {
	if id < 1<<8 {
		w.op(opBinGet, byte(id))
		return
	}
	w.op(opLongBinGet, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
}

// EmptyDict begins a dict.
func (w *Writer) EmptyDict() { w.op(opEmptyDict) }

// EmptyList begins a list.
func (w *Writer) EmptyList() { w.op(opEmptyList) }

// Mark begins a sequence of values that Appends, SetItems or Tuple ends.
func (w *Writer) Mark() { w.op(opMark) }

// Appends adds the values written since the last Mark to the list before it.
func (w *Writer) Appends() { w.op(opAppends) }

// SetItems adds the keys and values that were written since the last Mark to the dict before it.
func (w *Writer) SetItems() { w.op(opSetItems) }

// Tuple makes a tuple of the values written since the last Mark.
func (w *Writer) Tuple() { w.op(opTuple) }

// Pair makes a tuple of the two values written last, for readers that know no longer tuples.
func (w *Writer) Pair() { w.op(opTuple2) }

// Global writes a reference to a class or function.
func (w *Writer) Global(module, name string) {
	if w.two {
		w.op(opGlobal)
		w.buf = append(w.buf, module+"\n"+name+"\n"...)
		return
	}
	w.String(module)
	w.String(name)
	w.op(opStackGlobal)
}

// Reduce calls the function written before last with the tuple written last.
func (w *Writer) Reduce() { w.op(opReduce) }

// Build gives the object written before last the value written last as its state.
func (w *Writer) Build() { w.op(opBuild) }

// Persistent makes the value written last the identity of an object outside the pickle.
func (w *Writer) Persistent() { w.op(opBinPersID) }

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fault.New(fault.Unsupported, format, args...)
	}
}
