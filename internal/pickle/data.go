// Package pickle reads and writes Python's pickle format as data: it builds values and never runs code that a pickle names.
// It must not depend on what the values mean.
package pickle

import (
	"math/big"

	"tenon.dev/fault"
)

// Ref is a value of a Data, and 0 is none. Small integers and the like are inside the Ref, others are in the Data's tables.
type Ref uint64

// Kind is the type of a value.
type Kind uint8

// The kinds of values.
const (
	KindNone       Kind = iota + 1
	KindBool            // Bool
	KindInt             // Int, Uint, Big
	KindFloat           // Float
	KindString          // Str
	KindBytes           // Bytes
	KindGlobal          // Global: the name of a class or function that Options.Global allows
	KindTaken           // Taken: what Options.Take made of a list or dict
	KindList            // Items
	KindTuple           // Items
	KindDict            // Items: key, value, key, value …
	KindSet             // Items; also frozen sets
	KindObject          // Callee, Args, State, Items: what calling a global would have made
	KindPersistent      // Persistent: an object outside the pickle
)

const kindGone Kind = 31

var kindNames = [...]string{"nothing", "nil", "bool", "int", "float", "string", "bytes", "global", "taken", "list", "tuple", "dict",
	"set", "object", "persistent id"}

// String returns the name of the kind in errors, such as "list"; None is "nil".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

const kindBits = 5

// The low bits of a Ref are its kind, the bits above a value or an index. An integer that does not fit has bit bigBit of its kind set.
const bigInt Kind = 16

func pack(k Kind, payload uint64) Ref { return Ref(payload<<kindBits | uint64(k)) }

func (r Ref) tag() Kind       { return Kind(r & (1<<kindBits - 1)) }
func (r Ref) payload() uint64 { return uint64(r) >> kindBits }

// container reports whether r has an object in the table.
func (r Ref) container() bool { return r.tag() >= KindList && r.tag() <= KindPersistent }

// Kind returns the type of the value.
func (r Ref) Kind() Kind {
	switch k := r.tag(); k {
	case bigInt:
		return KindInt
	case kindGone:
		return KindNone
	default:
		return k
	}
}

// StringID returns a number that all strings of equal text in a Data share, and only they; numbers are dense from 0. It reports false for
// other kinds.
func (r Ref) StringID() (int, bool) { return int(r.payload()), r.tag() == KindString }

// Taken returns what Options.Take returned for the value, and false for other kinds.
func (r Ref) Taken() (uint64, bool) { return r.payload(), r.tag() == KindTaken }

// object is a value with parts.
type object struct {
	items []Ref
	more  *more
	// memo is one more than the last memo index that holds the value, and pos the stack position where it was pushed; shared says that
	// there are other references than those two, and adopted that it was offered to Take or is in a container.
	memo, pos       uint32
	shared, adopted bool
}

// more is the parts of an object besides items: its callee or the identity of a persistent id, its arguments and its state.
type more struct{ head, args, state Ref }

// Data are the values of one pickle.
type Data struct {
	root    Ref
	strs    []string
	strID   map[string]uint32
	bigs    []*big.Int
	floats  []float64
	blobs   [][]byte
	globals [][2]string
	objs    []object
	free    []uint32
	used    int64
	size    int64
	limit   int64        // of used, as far as it has been computed
	bound   func() int64 // the current limit; nil if it is constant

	stack []Ref
	marks []int // heights of the stack
	at    int
}

// Root returns the pickle's value.
func (d *Data) Root() Ref { return d.root }

// Size returns the length of the pickle in bytes: another may follow in its reader.
func (d *Data) Size() int64 { return d.size }

// Used returns the bytes that the values are charged with.
func (d *Data) Used() int64 { return d.used }

// charge counts n bytes that are about to be allocated.
func (d *Data) charge(n int) error {
	if d.used += int64(n); d.used > d.limit {
		if d.bound != nil {
			if d.limit = d.bound(); d.used <= d.limit {
				return nil
			}
		}
		return fault.New(fault.OutOfMemory, "the pickle needs more than the %d bytes of memory that it may take", d.limit)
	}
	return nil
}

// Charge counts n bytes that Options.Take needs for its own data. Beyond Options.MaxMemory or Options.Bound it is an error of kind
// fault.OutOfMemory.
func (d *Data) Charge(n int) error { return d.charge(n) }

// Stack returns the reading machine's stack while Options.Take runs, to show the position in the pickle: the values, the heights of the
// marks, and the position of the offered value. A container that is being filled is beneath a mark, or beneath its single item.
func (d *Data) Stack() (values []Ref, marks []int, at int) { return d.stack, d.marks, d.at }

// Bool returns a boolean, and false as the second result for other kinds.
func (d *Data) Bool(r Ref) (value, ok bool) { return r.payload() != 0, r.tag() == KindBool }

// Int returns an integer that fits in a signed 64-bit integer, and false for other values. Booleans count as 0 and 1, as in Python.
func (d *Data) Int(r Ref) (int64, bool) {
	switch r.tag() {
	case KindInt:
		return int64(r) >> kindBits, true
	case KindBool:
		return int64(r.payload()), true
	case bigInt:
		b := d.bigs[r.payload()]
		return b.Int64(), b.IsInt64()
	}
	return 0, false
}

// Uint returns an integer that fits in an unsigned 64-bit integer, and false for other values.
func (d *Data) Uint(r Ref) (uint64, bool) {
	if r.tag() == bigInt {
		b := d.bigs[r.payload()]
		return b.Uint64(), b.IsUint64()
	}
	n, ok := d.Int(r)
	return uint64(n), ok && n >= 0
}

// Big returns an integer of any size, and false for other kinds.
func (d *Data) Big(r Ref) (*big.Int, bool) {
	if r.tag() == bigInt {
		return d.bigs[r.payload()], true
	}
	n, ok := d.Int(r)
	return big.NewInt(n), ok
}

// Float returns a float or an integer as a float, and false for other kinds.
func (d *Data) Float(r Ref) (float64, bool) {
	if r.tag() == KindFloat {
		return d.floats[r.payload()], true
	}
	b, ok := d.Big(r)
	if !ok {
		return 0, false
	}
	f, _ := new(big.Float).SetInt(b).Float64()
	return f, true
}

// Str returns a string, and false for other kinds. Invalid UTF-8 becomes the replacement character.
func (d *Data) Str(r Ref) (string, bool) {
	if r.tag() != KindString {
		return "", false
	}
	return d.strs[r.payload()], true
}

// Bytes returns bytes, and false for other kinds. The caller must not change them.
func (d *Data) Bytes(r Ref) ([]byte, bool) {
	if r.tag() != KindBytes {
		return nil, false
	}
	return d.blobs[r.payload()], true
}

// Global returns the module and name of a class or function, and false for other kinds.
func (d *Data) Global(r Ref) (module, name string, ok bool) {
	if r.tag() != KindGlobal {
		return "", "", false
	}
	g := d.globals[r.payload()]
	return g[0], g[1], true
}

// Items returns the items of a list, tuple or set, the alternating keys and values of a dict, or the items added to an object; nil for
// other kinds. The caller must not change them. Values may contain each other in a cycle.
func (d *Data) Items(r Ref) []Ref {
	if !r.container() {
		return nil
	}
	return d.objs[r.payload()].items
}

// Get returns the last value of a dict under the string key, and false if there is none.
func (d *Data) Get(dict Ref, key string) (Ref, bool) {
	if dict.tag() != KindDict {
		return 0, false
	}
	items := d.Items(dict)
	for i := len(items) - 2; i >= 0; i -= 2 {
		if s, ok := d.Str(items[i]); ok && s == key {
			return items[i+1], true
		}
	}
	return 0, false
}

// Object returns the parts of an object: what it calls (a global), the tuple of arguments, and the state given later (None if none was);
// false for other kinds.
func (d *Data) Object(r Ref) (callee, args, state Ref, ok bool) {
	if r.tag() != KindObject {
		return 0, 0, 0, false
	}
	o := d.objs[r.payload()].more
	return o.head, o.args, o.state, true
}

// Persistent returns the identity of an object outside the pickle, and false for other kinds.
func (d *Data) Persistent(r Ref) (Ref, bool) {
	if r.tag() != KindPersistent {
		return 0, false
	}
	return d.objs[r.payload()].more.head, true
}
