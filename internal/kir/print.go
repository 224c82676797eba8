package kir

import (
	"math"
	"strconv"

	"tenon.dev/dtype"
)

// Print returns the text form of p. Equal programs have equal text: values are numbered in order of definition, so numbers that no
// instruction defines leave no trace.
//
//	kernel "scale" threads 256
//	param0 "x" buffer f32 readonly align 16
//	param1 "n" scalar i64
//	var0 f32
//	file0 "scale.go"
//	locs 0:12 0:13
//	{
//	  v0 = param 0 @1 ; x
//	  v1 = special.ctaidx @1
//	  v2 = load.f32 v0[v1+4] @2
//	}
//
// Mnemonics include the variant, type, width and cache hint; @n is source location n; a semicolon starts a comment.
func Print(p *Program) []byte { return appendProgram(nil, p) }

// PrintAll returns the text forms of ps one after another. This is the image that the simulator's driver loads.
func PrintAll(ps []*Program) []byte {
	var b []byte
	for _, p := range ps {
		b = appendProgram(b, p)
	}
	return b
}

// Format returns the text of one instruction of p, with the heads of its regions, as Print shows it but without the source location.
func (p *Program) Format(in *Instr) string {
	w := printer{p: p}
	w.number(p.Body)
	w.instr(in)
	return string(w.b)
}

func appendProgram(b []byte, p *Program) []byte {
	w := printer{p: p, b: b}
	w.number(p.Body)
	w.header()
	w.s("{\n")
	w.block(p.Body, 1)
	w.s("}\n")
	return w.b
}

type printer struct {
	p *Program
	b []byte
	// num holds the printed number of each value plus one; 0 means not defined.
	num  []int32
	next int32
}

func (w *printer) s(s string) { w.b = append(w.b, s...) }
func (w *printer) n(n int)    { w.b = strconv.AppendInt(w.b, int64(n), 10) }
func (w *printer) q(s string) { w.b = strconv.AppendQuote(w.b, s) }

func (w *printer) number(b *Block) {
	if w.num == nil {
		w.num = make([]int32, len(w.p.Values))
	}
	if b == nil {
		return
	}
	for _, in := range b.Instrs {
		if in == nil {
			continue
		}
		for _, v := range in.Res {
			w.define(v)
		}
		for _, sub := range in.Blocks {
			if sub != nil {
				for _, v := range sub.Params {
					w.define(v)
				}
				w.number(sub)
			}
		}
	}
}

func (w *printer) define(v Value) {
	if v >= 0 && int(v) < len(w.num) && w.num[v] == 0 {
		w.next++
		w.num[v] = w.next
	}
}

func (w *printer) v(v Value) {
	if v < 0 || int(v) >= len(w.num) || w.num[v] == 0 {
		w.s("v?")
		return
	}
	w.b = append(w.b, 'v')
	w.n(int(w.num[v] - 1))
}

func (w *printer) vs(vs []Value) {
	for i, v := range vs {
		if i > 0 {
			w.s(", ")
		}
		w.v(v)
	}
}

func (w *printer) header() {
	p := w.p
	w.s("kernel ")
	w.q(p.Name)
	w.s(" threads ")
	w.n(p.Threads)
	if p.FixedThreads {
		w.s(" fixed")
	}
	w.s("\n")
	for i := range p.Params {
		w.param(i, &p.Params[i])
	}
	for i, a := range p.Shared {
		w.decl("shared", i, a.Name, a.Type)
		w.n(a.Count)
		w.s("\n")
	}
	for i, a := range p.Local {
		w.decl("local", i, a.Name, a.Type)
		w.n(a.Count)
		w.s("\n")
	}
	for i, t := range p.Tables {
		w.decl("table", i, t.Name, t.Type)
		w.hex(t.Data)
	}
	for i, t := range p.Tiles {
		w.decl("tile", i, t.Name, t.Type)
		w.n(t.Rows)
		w.s(" ")
		w.n(t.Cols)
		if t.Parts > 1 {
			w.s(" parts ")
			w.n(t.Parts)
		}
		w.s("\n")
	}
	for i, t := range p.Vars {
		w.s("var")
		w.n(i)
		w.s(" ")
		w.s(t.Short())
		w.s("\n")
	}
	w.locs()
}

func (w *printer) decl(kind string, i int, name string, t Type) {
	w.s(kind)
	w.n(i)
	w.s(" ")
	w.q(name)
	w.s(" ")
	w.s(t.Short())
	w.s(" ")
}

func (w *printer) param(i int, a *Param) {
	w.s("param")
	w.n(i)
	w.s(" ")
	w.q(a.Name)
	switch a.Kind {
	case ParamScalar:
		w.s(" scalar ")
	case ParamBuffer:
		w.s(" buffer ")
	default:
		w.s(" array ")
	}
	w.s(a.Type.Short())
	if a.Kind == ParamArray {
		w.s(" ")
		w.n(a.Count)
	}
	if a.ReadOnly {
		w.s(" readonly")
	}
	if a.Align != 0 {
		w.s(" align ")
		w.n(a.Align)
	}
	if a.Plain {
		w.s(" plain")
	}
	w.s("\n")
}

func (w *printer) hex(data []byte) {
	const digits = "0123456789abcdef"
	w.s("[")
	for i, c := range data {
		if i%32 == 0 {
			w.s("\n  ")
		}
		w.b = append(w.b, digits[c>>4], digits[c&15])
	}
	w.s("\n]\n")
}

// locs prints the files in order of first use, and the source locations from 1 on.
func (w *printer) locs() {
	p := w.p
	if len(p.Locs) < 2 {
		return
	}
	files := make(map[string]int)
	for _, l := range p.Locs[1:] {
		if _, ok := files[l.File]; !ok {
			w.s("file")
			w.n(len(files))
			w.s(" ")
			w.q(l.File)
			w.s("\n")
			files[l.File] = len(files)
		}
	}
	w.s("locs")
	for _, l := range p.Locs[1:] {
		w.s(" ")
		w.n(files[l.File])
		w.s(":")
		w.n(l.Line)
	}
	w.s("\n")
}

func (w *printer) block(b *Block, depth int) {
	if b == nil {
		return
	}
	for _, in := range b.Instrs {
		w.indent(depth)
		if in == nil {
			w.s("invalid\n")
			continue
		}
		w.instr(in)
		if !in.Op.hasBlocks() {
			w.loc(in)
			w.comment(in)
			w.s("\n")
			continue
		}
		w.loc(in)
		w.s(" {\n")
		for i, sub := range in.Blocks {
			if i > 0 {
				if sub == nil || len(sub.Instrs) == 0 {
					break
				}
				w.indent(depth)
				w.s("} else {\n")
			}
			w.block(sub, depth+1)
		}
		w.indent(depth)
		w.s("}\n")
	}
}

func (op Op) hasBlocks() bool {
	switch op {
	case OpIf, OpFor, OpLoop, OpTileLoad, OpTileMap, OpTileEach:
		return true
	}
	return false
}

func (w *printer) indent(depth int) {
	for range depth {
		w.s("  ")
	}
}

func (w *printer) loc(in *Instr) {
	if in.Loc > 0 {
		w.s(" @")
		w.n(in.Loc)
	}
}

// comment prints what the text alone does not show: the names of parameters and the values of float constants.
func (w *printer) comment(in *Instr) {
	switch in.Op {
	case OpParam:
		if in.Sym >= 0 && in.Sym < len(w.p.Params) && isIdent(w.p.Params[in.Sym].Name) {
			w.s(" ; ")
			w.s(w.p.Params[in.Sym].Name)
		}
	case OpConst:
		switch in.Type {
		case dtype.Float32:
			w.s(" ; ")
			w.b = strconv.AppendFloat(w.b, float64(math.Float32frombits(uint32(in.Imm))), 'g', -1, 32)
		case dtype.Float64:
			w.s(" ; ")
			w.b = strconv.AppendFloat(w.b, math.Float64frombits(in.Imm), 'g', -1, 64)
		}
	}
}

// isIdent reports whether s is not empty and consists of letters, digits and underscores.
func isIdent(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return s != ""
}

func (w *printer) instr(in *Instr) {
	if len(in.Res) > 0 {
		w.vs(in.Res)
		w.s(" = ")
	}
	w.mnemonic(in)
	switch in.Op {
	case OpConst:
		w.s(" ")
		w.constant(in)
	case OpParam, OpGet:
		w.s(" ")
		w.n(in.Sym)
	case OpSet:
		w.s(" ")
		w.n(in.Sym)
		w.s(", ")
		w.vs(in.Args)
	case OpLoad, OpStore, OpAtomic:
		w.access(in)
	case OpAssert:
		w.s(" ")
		w.vs(in.Args[:min(1, len(in.Args))])
		w.s(", ")
		w.q(in.Text)
		if len(in.Args) > 1 {
			w.s(", ")
			w.vs(in.Args[1:])
		}
	case OpBarrier:
		if in.Text != "" {
			w.s(" ")
			w.q(in.Text)
		}
	case OpFor:
		w.s(" ")
		w.params(in)
		w.s(" = ")
		w.vs(in.Args)
		if in.Imm != 0 {
			w.s(" stages ")
			w.n(int(in.Imm))
		}
	case OpTileZero, OpTileLoad, OpTileDot, OpTileMap, OpTileRows, OpTileCopy, OpTileEach:
		w.tileOp(in)
	default:
		if len(in.Args) > 0 {
			w.s(" ")
			w.vs(in.Args)
		}
	}
}

func (w *printer) params(in *Instr) {
	if len(in.Blocks) > 0 && in.Blocks[0] != nil {
		w.vs(in.Blocks[0].Params)
	}
}

// mnemonic prints op[.variant][.type][xwidth][.cache].
func (w *printer) mnemonic(in *Instr) {
	w.s(in.Op.String())
	if in.Op == OpInvalid || in.Op >= opCount {
		return
	}
	info := &infos[in.Op]
	if info.subs != nil {
		w.s(".")
		if int(in.Sub) < len(info.subs) {
			w.s(info.subs[in.Sub])
		} else {
			w.s("invalid")
		}
	}
	if info.typed {
		w.s(".")
		w.s(in.Type.Short())
	}
	switch in.Op {
	case OpLoad, OpStore:
		if in.Width != 1 {
			w.s("x")
			w.n(in.Width)
		}
	case OpTileLoad, OpTileEach:
		w.s(".x")
		w.n(in.Width)
	default:
		return
	}
	if in.Cache != CacheDefault && int(in.Cache) < len(cacheNames) {
		w.s(".")
		w.s(cacheNames[in.Cache])
	}
}

func (w *printer) constant(in *Instr) {
	bits := in.Imm
	switch {
	case !in.Type.Valid():
		w.b = strconv.AppendUint(w.b, bits, 10)
	case in.Type.IsFloat():
		w.s("0x")
		w.b = strconv.AppendUint(w.b, bits, 16)
	case in.Type.IsSigned():
		shift := 64 - 8*in.Type.Size()
		w.b = strconv.AppendInt(w.b, int64(bits<<shift)>>shift, 10)
	default:
		w.b = strconv.AppendUint(w.b, bits, 10)
	}
}

// access prints base[index+offset] and the operands after it.
func (w *printer) access(in *Instr) {
	w.s(" ")
	args := in.Args
	if in.Space == Global {
		if len(args) == 0 {
			w.s("v?")
		} else {
			w.v(args[0])
			args = args[1:]
		}
	} else {
		w.s(in.Space.String())
		w.n(in.Sym)
	}
	w.s("[")
	if len(args) == 0 {
		w.s("v?")
	} else {
		w.v(args[0])
		args = args[1:]
	}
	if off := int64(in.Imm); off != 0 {
		if off > 0 {
			w.s("+")
		}
		w.b = strconv.AppendInt(w.b, off, 10)
	}
	w.s("]")
	if len(args) > 0 {
		w.s(", ")
		w.vs(args)
	}
}

func (w *printer) tileOp(in *Instr) {
	w.s(" tile")
	w.n(in.Sym)
	switch in.Op {
	case OpTileDot:
		w.s(", tile")
		w.n(int(in.Imm >> 32))
		w.s(", tile")
		w.n(int(in.Imm & 0xffffffff))
	case OpTileRows, OpTileCopy:
		w.s(", tile")
		w.n(int(in.Imm))
	case OpTileMap:
		for _, t := range in.MapOthers() {
			w.s(", tile")
			w.n(t)
		}
		w.s(" (")
		w.params(in)
		w.s(")")
	case OpTileLoad, OpTileEach:
		if len(in.Args) > 0 {
			w.s(" map ")
			w.n(int(in.Imm))
			w.s("[")
			w.vs(in.Args)
			w.s("]")
		}
		w.s(" (")
		w.params(in)
		w.s(")")
	}
}
