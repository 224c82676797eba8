package kir

import (
	"fmt"
	"strconv"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// maxDepth bounds the nesting of regions, so that no text can exhaust the stack.
const maxDepth = 256

// Parse reads the text form of any number of programs, as written by Print and PrintAll. It checks the grammar and that every name refers
// to something declared earlier; Verify checks the rest. Errors give the line.
func Parse[T string | []byte](text T) ([]*Program, error) {
	s := &parser{t: string(text)}
	var ps []*Program
	for s.skip(); s.i < len(s.t) && s.err == nil; s.skip() {
		ps = append(ps, s.program())
	}
	if s.err != nil {
		return nil, s.err
	}
	return ps, nil
}

// parser is a single-pass scanner. The first error is kept in err and moves i to the end, so that later reads fail quietly.
type parser struct {
	t     string
	i     int
	err   error
	p     *Program
	files []string
	depth int
	// stack collects the instructions of the open blocks; instrs, ints and ptrs are the unused rest of the last allocation.
	stack  []*Instr
	instrs []Instr
	vals   []Value
	ptrs   []*Instr
}

func (s *parser) fail(format string, args ...any) {
	if s.err == nil {
		line := 1 + strings.Count(s.t[:min(s.i, len(s.t))], "\n")
		s.err = fault.New(fault.Invalid, "kernel text, line %d: %s", line, fmt.Sprintf(format, args...))
	}
	s.i = len(s.t)
}

// skip skips white space and comments.
func (s *parser) skip() {
	for s.i < len(s.t) {
		switch c := s.t[s.i]; {
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			s.i++
		case c == ';':
			n := strings.IndexByte(s.t[s.i:], '\n')
			if n < 0 {
				s.i = len(s.t)
				return
			}
			s.i += n + 1
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, or 0 at the end.
func (s *parser) peek() byte {
	s.skip()
	if s.i < len(s.t) {
		return s.t[s.i]
	}
	return 0
}

// accept consumes c if it comes next.
func (s *parser) accept(c byte) bool {
	if s.peek() == c && c != 0 {
		s.i++
		return true
	}
	return false
}

func (s *parser) expect(c byte) {
	if !s.accept(c) {
		s.fail("want %q", string(c))
	}
}

// word reads letters, digits, dots and underscores.
func (s *parser) word() string {
	s.skip()
	start := s.i
	for s.i < len(s.t) {
		c := s.t[s.i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' {
			break
		}
		s.i++
	}
	return s.t[start:s.i]
}

// acceptWord consumes w if it is the next word.
func (s *parser) acceptWord(w string) bool {
	s.skip()
	start := s.i
	if s.word() == w {
		return true
	}
	if s.err == nil {
		s.i = start
	}
	return false
}

// digits reads a nonnegative decimal number of at most limit.
func (s *parser) digits(limit uint64) uint64 {
	start, n := s.i, uint64(0)
	for s.i < len(s.t) {
		c := s.t[s.i] - '0'
		if c > 9 {
			break
		}
		if n > (1<<64-1)/10 || n*10 > 1<<64-1-uint64(c) {
			s.fail("a number is too large")
			return 0
		}
		n = n*10 + uint64(c)
		s.i++
	}
	if s.i == start {
		s.fail("want a number")
		return 0
	}
	if n > limit {
		s.fail("%d is too large; the limit here is %d", n, limit)
		return 0
	}
	return n
}

const maxCount = 1<<31 - 1

func (s *parser) count() int {
	s.skip()
	return int(s.digits(maxCount))
}

// index reads a number below n, the number of declared things of that kind.
func (s *parser) index(kind string, n int) int {
	s.skip()
	i := int(s.digits(maxCount))
	if s.err == nil && i >= n {
		s.fail("%s%d is not declared", kind, i)
	}
	if s.err != nil {
		return 0
	}
	return i
}

// signed reads a number with an optional sign.
func (s *parser) signed() int64 {
	neg := s.accept('-')
	if !neg {
		s.accept('+')
		return int64(s.digits(1<<63 - 1))
	}
	return -int64(s.digits(1 << 63))
}

func (s *parser) str() string {
	s.expect('"')
	start := s.i
	for i := s.i; i < len(s.t); i++ {
		switch s.t[i] {
		case '"':
			s.i = i + 1
			return s.t[start:i]
		case '\\', '\n':
			q, err := strconv.QuotedPrefix(s.t[start-1:])
			if err != nil {
				s.fail("a string is malformed")
				return ""
			}
			s.i = start - 1 + len(q)
			out, _ := strconv.Unquote(q)
			return out
		}
	}
	s.fail("a string has no end")
	return ""
}

func (s *parser) typ() Type { return s.typeNamed(s.word()) }

func (s *parser) typeNamed(name string) Type {
	t, ok := typeByName(name)
	if !ok {
		s.fail("%q is not a type", name)
	}
	return t
}

func (s *parser) program() *Program {
	p := &Program{}
	s.p, s.files, s.stack = p, nil, s.stack[:0]
	if !s.acceptWord("kernel") {
		s.fail("want a kernel")
	}
	p.Name = s.str()
	if !s.acceptWord("threads") {
		s.fail("want the number of threads")
	}
	p.Threads = s.count()
	p.FixedThreads = s.acceptWord("fixed")
	for s.err == nil && s.peek() != '{' {
		s.decl()
	}
	if len(p.Locs) == 0 {
		p.Locs = []Loc{{}}
	}
	p.Values = make([]Type, 0, (len(s.t)-s.i)/64)
	s.expect('{')
	p.Body = s.block()
	return p
}

// decl reads one declaration, such as: shared0 "buf" f32 128.
func (s *parser) decl() {
	w := s.word()
	kind := strings.TrimRight(w, "0123456789")
	number := w[len(kind):]
	p := s.p
	var i int
	switch kind {
	case "param":
		i = len(p.Params)
		p.Params = append(p.Params, s.param())
	case "shared":
		i = len(p.Shared)
		p.Shared = append(p.Shared, s.array())
	case "local":
		i = len(p.Local)
		p.Local = append(p.Local, s.array())
	case "table":
		i = len(p.Tables)
		p.Tables = append(p.Tables, Table{Name: s.str(), Type: s.typ(), Data: s.hex()})
	case "tile":
		i = len(p.Tiles)
		t := Tile{Name: s.str(), Type: s.typ(), Rows: s.count(), Cols: s.count()}
		if s.acceptWord("parts") {
			t.Parts = s.count()
		}
		p.Tiles = append(p.Tiles, t)
	case "var":
		i = len(p.Vars)
		p.Vars = append(p.Vars, s.typ())
	case "file":
		i = len(s.files)
		s.files = append(s.files, s.str())
	case "locs":
		s.locs()
		return
	default:
		s.fail("%q is not a declaration", w)
		return
	}
	if n, err := strconv.Atoi(number); err != nil || n != i {
		s.fail("%s is out of order; want %s%d", w, kind, i)
	}
}

func (s *parser) param() Param {
	a := Param{Name: s.str()}
	switch w := s.word(); w {
	case "scalar":
	case "buffer":
		a.Kind = ParamBuffer
	case "array":
		a.Kind = ParamArray
	default:
		s.fail("%q is not a kind of parameter", w)
	}
	a.Type = s.typ()
	if a.Kind == ParamArray {
		a.Count = s.count()
	}
	a.ReadOnly = s.acceptWord("readonly")
	if s.acceptWord("align") {
		a.Align = s.count()
	}
	a.Plain = s.acceptWord("plain")
	return a
}

func (s *parser) array() Array {
	a := Array{Name: s.str(), Type: s.typ()}
	n := s.signed()
	if n < -1 || n > maxCount {
		s.fail("an array has %d elements", n)
		return a
	}
	a.Count = int(n)
	return a
}

func (s *parser) hex() []byte {
	s.expect('[')
	end := strings.IndexByte(s.t[s.i:], ']')
	if end < 0 {
		s.fail("a table has no end")
		return nil
	}
	data := make([]byte, 0, end/2)
	high, half := byte(0), false
	for end += s.i; s.i < end; s.i++ {
		c := s.t[s.i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			continue
		default:
			s.fail("%q is not a hexadecimal digit", string(rune(c)))
			return nil
		}
		if half {
			data = append(data, high|c)
		}
		high, half = c<<4, !half
	}
	if half {
		s.fail("a table has an odd number of digits")
		return nil
	}
	s.i++
	return data
}

func (s *parser) locs() {
	if s.p.Locs != nil {
		s.fail("locs is there twice")
		return
	}
	s.p.Locs = []Loc{{}}
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		f := s.index("file", len(s.files))
		s.expect(':')
		line := s.count()
		if s.err != nil {
			return
		}
		s.p.Locs = append(s.p.Locs, Loc{File: s.files[f], Line: line})
	}
}

// block reads instructions up to the closing brace.
func (s *parser) block() *Block {
	b := &Block{}
	s.depth++
	if s.depth > maxDepth {
		s.fail("regions nest deeper than %d", maxDepth)
	}
	base := len(s.stack)
	for s.err == nil && !s.accept('}') {
		s.stack = append(s.stack, s.instr())
	}
	s.depth--
	if n := len(s.stack) - base; n > 0 {
		if n > len(s.ptrs) {
			s.ptrs = make([]*Instr, max(n, 128))
		}
		b.Instrs = s.ptrs[:n:n]
		s.ptrs = s.ptrs[n:]
		copy(b.Instrs, s.stack[base:])
		s.stack = s.stack[:base]
	}
	return b
}

// values returns n adjacent values from the parser's storage.
func (s *parser) values(n int) []Value {
	if n > len(s.vals) {
		s.vals = make([]Value, max(n, 256))
	}
	v := s.vals[:n:n]
	s.vals = s.vals[n:]
	return v
}

// define reads n value names, which must have the next numbers, and gives them type t.
func (s *parser) define(n int, t Type) []Value {
	out := s.values(n)
	for i := range out {
		if i > 0 {
			s.expect(',')
		}
		if s.peek() != 'v' {
			s.fail("want a value")
			return nil
		}
		s.i++
		v := s.digits(maxCount)
		if s.err != nil {
			return nil
		}
		if v != uint64(len(s.p.Values)) {
			s.fail("v%d is out of order; the next value is v%d", v, len(s.p.Values))
			return nil
		}
		out[i] = Value(v)
		s.p.Values = append(s.p.Values, t)
	}
	return out
}

// results reads the names before an equals sign; their type is not yet known.
func (s *parser) results() []Value {
	start, n := s.i, 1
	for i := s.i; i < len(s.t) && s.t[i] != '=' && s.t[i] != '\n'; i++ {
		if s.t[i] == ',' {
			n++
		}
	}
	s.i = start
	out := s.define(n, dtype.Invalid)
	s.expect('=')
	return out
}

func (s *parser) use() Value {
	if s.peek() != 'v' {
		s.fail("want a value")
		return 0
	}
	s.i++
	v := s.digits(maxCount)
	if s.err == nil && v >= uint64(len(s.p.Values)) {
		s.fail("v%d is used before it is defined", v)
	}
	return Value(v)
}

func (s *parser) uses(n int) []Value {
	if n == 0 {
		return nil
	}
	out := s.values(n)
	for i := range out {
		if i > 0 {
			s.expect(',')
		}
		out[i] = s.use()
	}
	return out
}
