package kir

import (
	"strconv"
	"strings"

	"tenon.dev/dtype"
)

// instr reads one instruction with its regions.
func (s *parser) instr() *Instr {
	if len(s.instrs) == 0 {
		s.instrs = make([]Instr, 64)
	}
	in := &s.instrs[0]
	s.instrs = s.instrs[1:]
	s.skip()
	if s.i+1 < len(s.t) && s.t[s.i] == 'v' && s.t[s.i+1]-'0' <= 9 {
		in.Res = s.results()
	}
	s.mnemonic(in)
	if s.err != nil {
		return in
	}
	s.operands(in)
	if s.err != nil {
		return in
	}
	if !infos[in.Op].typed {
		in.Type = s.p.impliedType(in)
	}
	if !in.Op.hasBlocks() {
		s.loc(in)
		t := s.p.resultType(in)
		if t == dtype.Invalid && len(in.Res) > 0 {
			s.fail("%s has no result", in.Op)
			return in
		}
		for _, v := range in.Res {
			s.p.Values[v] = t
		}
		return in
	}
	if len(in.Res) > 0 {
		s.fail("%s has no result", in.Op)
		return in
	}
	s.regions(in)
	return in
}

func (s *parser) loc(in *Instr) {
	if s.accept('@') {
		in.Loc = s.index("loc ", len(s.p.Locs))
	}
}

// cut splits w at the first dot.
func cut(w string) (head, rest string) {
	if i := strings.IndexByte(w, '.'); i >= 0 {
		return w[:i], w[i+1:]
	}
	return w, ""
}

// mnemonic reads op[.variant][.type][xwidth][.cache].
func (s *parser) mnemonic(in *Instr) {
	w := s.word()
	head, rest := cut(w)
	op, ok := opsByName[head]
	if !ok {
		s.fail("%q is not an operation", head)
		return
	}
	in.Op = op
	info := &infos[op]
	if info.subs != nil {
		head, rest = cut(rest)
		sub := -1
		for i, name := range info.subs {
			if name == head {
				sub = i
			}
		}
		if sub < 0 {
			s.fail("%q is not a variant of %s", head, op)
			return
		}
		in.Sub = Sub(sub)
	}
	switch {
	case op == OpLoad || op == OpStore:
		head, rest = cut(rest)
		name, width, ok := strings.Cut(head, "x")
		in.Type, in.Width = s.typeNamed(name), 1
		if ok {
			in.Width = s.width(width)
		}
	case op == OpTileLoad || op == OpTileEach:
		head, rest = cut(rest)
		in.Width = s.width(strings.TrimPrefix(head, "x"))
	case info.typed:
		head, rest = cut(rest)
		in.Type = s.typeNamed(head)
	}
	memory := op == OpLoad || op == OpStore || op == OpTileLoad || op == OpTileEach
	switch {
	case rest == "":
	case memory && rest == cacheNames[CacheStream]:
		in.Cache = CacheStream
	case memory && rest == cacheNames[CacheReadOnly]:
		in.Cache = CacheReadOnly
	default:
		s.fail("%q does not belong to %s", rest, op)
	}
}

func (s *parser) width(w string) int {
	n, err := strconv.Atoi(w)
	if err != nil || n < 0 {
		s.fail("%q is not a width", w)
	}
	return n
}

func (s *parser) operands(in *Instr) {
	switch in.Op {
	case OpConst:
		in.Imm = s.constant(in.Type)
	case OpParam:
		in.Sym = s.index("param", len(s.p.Params))
	case OpGet:
		in.Sym = s.index("var", len(s.p.Vars))
	case OpSet:
		in.Sym = s.index("var", len(s.p.Vars))
		s.expect(',')
		in.Args = s.uses(1)
	case OpLoad, OpStore, OpAtomic:
		s.access(in)
	case OpAssert:
		in.Args = s.uses(1)
		s.expect(',')
		in.Text = s.str()
		for s.accept(',') {
			in.Args = append(in.Args, s.uses(1)...)
		}
	case OpBarrier:
		if s.peek() == '"' {
			in.Text = s.str()
		}
	case OpFor:
		b := &Block{Params: s.define(1, in.Type)}
		s.expect('=')
		in.Args = s.uses(3)
		if s.acceptWord("stages") {
			in.Imm = uint64(s.count())
		}
		in.Blocks = []*Block{b}
	case OpTileZero, OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
		s.tileOp(in)
	case OpYield:
		if s.peek() == 'v' {
			in.Args = s.uses(1)
			for s.err == nil && s.accept(',') {
				in.Args = append(in.Args, s.uses(1)...)
			}
		}
	default:
		in.Args = s.uses(int(infos[in.Op].args))
	}
}

func (s *parser) constant(t Type) uint64 {
	if t.IsFloat() {
		s.skip()
		if !strings.HasPrefix(s.t[s.i:], "0x") {
			s.fail("want the bits of the constant, 0x…")
			return 0
		}
		s.i += 2
		start, n := s.i, uint64(0)
		for s.i < len(s.t) && s.i-start < 16 {
			c := s.t[s.i]
			switch {
			case c >= '0' && c <= '9':
				c -= '0'
			case c >= 'a' && c <= 'f':
				c -= 'a' - 10
			default:
				return n
			}
			n = n<<4 | uint64(c)
			s.i++
		}
		return n
	}
	n := uint64(0)
	if s.accept('-') {
		n = -s.digits(1 << 63)
	} else {
		n = s.digits(1<<64 - 1)
	}
	if size := t.Size(); size < 8 && t.IsSigned() {
		n &= 1<<(8*size) - 1
	}
	return n
}

// access reads base[index+offset] and the operands after it.
func (s *parser) access(in *Instr) {
	n := 0 // operands after the index
	switch {
	case in.Op == OpStore:
		n = in.Width
	case in.Op == OpAtomic && in.Sub == AtomCAS:
		n = 2
	case in.Op == OpAtomic:
		n = 1
	}
	if n > 64 {
		s.fail("%d is not a width", n)
		return
	}
	c := s.peek()
	if c == 'v' {
		in.Args = s.values(n + 2)
		in.Args[0] = s.use()
	} else {
		s.symbol(in)
		in.Args = s.values(n + 1)
	}
	args := in.Args[len(in.Args)-n-1:]
	s.expect('[')
	args[0] = s.use()
	if !s.accept(']') {
		in.Imm = uint64(s.signed())
		s.expect(']')
	}
	for i := range n {
		s.expect(',')
		args[i+1] = s.use()
	}
}

// symbol reads a reference such as shared0.
func (s *parser) symbol(in *Instr) {
	s.skip()
	rest := s.t[s.i:]
	n := 0
	switch {
	case strings.HasPrefix(rest, "shared"):
		in.Space, n = Shared, len(s.p.Shared)
	case strings.HasPrefix(rest, "local"):
		in.Space, n = Local, len(s.p.Local)
	case strings.HasPrefix(rest, "table"):
		in.Space, n = Const, len(s.p.Tables)
	case strings.HasPrefix(rest, "param"):
		in.Space, n = ParamSpace, len(s.p.Params)
	default:
		s.fail("want an address or an array")
		return
	}
	s.i += len(in.Space.String())
	in.Sym = s.index(in.Space.String(), n)
}

func (s *parser) tile() int {
	s.skip()
	if !strings.HasPrefix(s.t[s.i:], "tile") {
		s.fail("want a tile")
		return 0
	}
	s.i += len("tile")
	return s.index("tile", len(s.p.Tiles))
}

func (s *parser) tileOp(in *Instr) {
	in.Sym = s.tile()
	if s.err != nil {
		return
	}
	switch in.Op {
	case OpTileDot:
		s.expect(',')
		a := s.tile()
		s.expect(',')
		in.Imm = uint64(a)<<32 | uint64(s.tile())
	case OpTileRows, OpTileCopy:
		s.expect(',')
		in.Imm = uint64(s.tile())
	case OpTileMap:
		types := []Type{s.p.Tiles[in.Sym].Type}
		var others []int
		for s.err == nil && s.accept(',') {
			if len(others) == MapTilesMost {
				s.fail("a tile map reads at most %d other tiles", MapTilesMost)
				return
			}
			others = append(others, s.tile())
			if s.err == nil {
				types = append(types, s.p.Tiles[others[len(others)-1]].Type)
			}
		}
		in.Imm = MapImm(others...)
		s.expect('(')
		b := &Block{Params: s.define(2, dtype.Int32)}
		for _, t := range types {
			s.expect(',')
			b.Params = append(b.Params, s.define(1, t)...)
		}
		s.expect(')')
		in.Blocks = []*Block{b}
	case OpTileLoad, OpTileEach:
		if in.Op == OpTileLoad && s.acceptWord("map") {
			in.Imm = uint64(s.index("map", len(s.p.Params)))
			s.expect('[')
			in.Args = s.uses(mapPlaces - 1)
			for s.err == nil && s.accept(',') {
				in.Args = append(in.Args, s.uses(1)...)
			}
			s.expect(']')
		}
		s.expect('(')
		b := &Block{Params: s.define(2, dtype.Int32)}
		for s.err == nil && in.Op == OpTileEach && s.accept(',') {
			b.Params = append(b.Params, s.define(1, s.p.Tiles[in.Sym].Type)...)
		}
		s.expect(')')
		in.Blocks = []*Block{b}
	}
}

// regions reads the regions in braces that follow the head of an instruction.
func (s *parser) regions(in *Instr) {
	s.loc(in)
	s.expect('{')
	b := s.block()
	if in.Blocks != nil {
		in.Blocks[0].Instrs = b.Instrs
		return
	}
	in.Blocks = []*Block{b}
	if in.Op == OpIf {
		e := &Block{}
		if s.acceptWord("else") {
			s.expect('{')
			e = s.block()
		}
		in.Blocks = append(in.Blocks, e)
	}
}
