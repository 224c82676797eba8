package ptx

import (
	"fmt"
	"math"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// address emits the computation of the address of an access. It returns the address as an operand, [base+offset]; further bytes can be
// added to the offset.
func (f *function) address(in *kir.Instr) (base string, offset int64) {
	size := in.Type.Size()
	offset = int64(in.Imm) * int64(size)
	index := in.Args[0]
	if in.Space == kir.Global {
		index = in.Args[1]
	}
	if c, ok := f.constant(index); ok {
		offset += int64(c) * int64(size)
	} else {
		at := f.names[index]
		if p, ok := f.places[at]; ok { // many elements then share one address
			at = p.first
			offset += int64(p.distance) * int64(size)
		}
		if s, ok := f.sums[at]; ok { // an index within memory is no sum that overflows
			at = s.register
			offset += s.constant * int64(size)
		}
		defer func() { base = f.indexed(in, base, at, f.p.Values[index].Size() == 8, size) }()
	}
	base = f.origin(in)
	if offset < math.MinInt32 || offset+64 > math.MaxInt32 {
		base = f.to(long, "add.s64", f.asLong(in.Space, base), fmt.Sprint(offset))
		offset = 0
	}
	return base, offset
}

// origin returns the start of the memory that in accesses, as a register or a symbol.
func (f *function) origin(in *kir.Instr) string {
	switch in.Space {
	case kir.Global:
		return f.names[in.Args[0]]
	case kir.Shared:
		if f.p.Shared[in.Sym].Count < 0 {
			return f.userDynamic()
		}
		return "shared" + itoa(in.Sym)
	case kir.Local:
		return "local" + itoa(in.Sym)
	case kir.Const:
		return f.table(in.Sym)[0]
	}
	return f.param(in.Sym)
}

// userDynamic returns the address of the part of the launch's dynamic shared memory that follows the tiles.
func (f *function) userDynamic() string {
	symbol := f.m.dynamicShared()
	if n := f.tiles.dynamic(); n > 0 {
		return symbol + "+" + itoa(n)
	}
	return symbol
}

func (f *function) table(sym int) [2]string {
	if t, ok := f.tables[sym]; ok {
		return t
	}
	symbol, space := f.m.table(&f.p.Tables[sym], f.uniform[sym])
	f.tables[sym] = [2]string{symbol, space}
	return f.tables[sym]
}

// asLong returns base, which may be a symbol, in a 64-bit register.
func (f *function) asLong(space kir.Space, base string) string {
	if space == kir.Global {
		return base
	}
	return f.to(long, "mov.b64", base)
}

// indexed returns base + i*size for a register i, which has 64 bits if it is wide. Shared addresses have 32 bits, all others 64.
func (f *function) indexed(in *kir.Instr, base, i string, wide bool, size int) string {
	if in.Space == kir.Shared && base[0] != '%' {
		if wide {
			i = f.to(word, "cvt.u32.u64", i)
		}
		start := f.to(word, "mov.u32", base)
		if size == 1 {
			return f.to(word, "add.s32", start, i)
		}
		return f.to(word, "mad.lo.s32", i, itoa(size), start)
	}
	start := f.asLong(in.Space, base)
	switch {
	case !wide && size == 1:
		return f.to(long, "add.s64", start, f.to(long, "cvt.s64.s32", i))
	case !wide:
		return f.to(long, "mad.wide.s32", i, itoa(size), start)
	case size == 1:
		return f.to(long, "add.s64", start, i)
	}
	shift := map[int]string{2: "1", 4: "2", 8: "3"}[size]
	return f.to(long, "add.s64", start, f.to(long, "shl.b64", i, shift))
}

func location(base string, offset int64) string {
	if offset == 0 {
		return "[" + base + "]"
	}
	return "[" + base + "+" + fmt.Sprint(offset) + "]"
}

// access returns the instruction name of a load or store, up to the vector part.
func (f *function) access(in *kir.Instr, name string) string {
	switch in.Space {
	case kir.Shared:
		return name + ".shared"
	case kir.Local:
		return name + ".local"
	case kir.ParamSpace:
		return name + ".param"
	case kir.Const:
		if f.table(in.Sym)[1] == "global" {
			return name + ".global.nc"
		}
		return name + ".const"
	}
	name += ".global"
	if in.Cache == kir.CacheStream {
		name += ".cs"
	}
	if in.Op == kir.OpLoad && (in.Cache == kir.CacheReadOnly || f.readOnly(in.Args[0])) {
		name += ".nc"
	}
	return name
}

// readOnly reports whether an address points into a buffer that nothing writes while the kernel runs.
func (f *function) readOnly(address kir.Value) bool {
	i, ok := f.buffers[address]
	return ok && f.p.Params[i].ReadOnly
}

// vectors splits width elements of size bytes into accesses of at most 16 bytes.
func vectors(width, size int) (count, each int) {
	each = min(width, 16/size)
	return width / each, each
}

// element returns the PTX type of memory elements of type t. PTX vectors have at most four elements, so it also returns whether a vector of
// n elements is accessed in 32-bit words that hold several elements each.
func element(t kir.Type, n int) (name string, packed bool) {
	if n > 4 {
		return ".b32", true
	}
	switch t {
	case dtype.Bool, dtype.Uint8:
		return ".u8", false
	case dtype.Int8:
		return ".s8", false
	case dtype.Int16:
		return ".s16", false
	case dtype.Uint16:
		return ".u16", false
	}
	return classType[classOf(t)], false
}

// vector returns "{a, b}" for several operands and the operand itself for one.
func vector(rs []string) (operand, suffix string) {
	if len(rs) == 1 {
		return rs[0], ""
	}
	operand = "{" + rs[0]
	for _, r := range rs[1:] {
		operand += ", " + r
	}
	return operand + "}", ".v" + itoa(len(rs))
}

func (f *function) load(in *kir.Instr) {
	base, offset := f.address(in)
	size := in.Type.Size()
	count, each := vectors(in.Width, size)
	name := f.access(in, "ld")
	if in.Space == kir.ParamSpace || in.Space == kir.Const { // only the alignment of single elements is known
		count, each = in.Width, 1
	}
	for c := range count {
		f.loadVector(in.Type, name, location(base, offset+int64(c*each*size)), in.Res[c*each:(c+1)*each])
	}
}

// loadVector loads the elements of one access into values.
func (f *function) loadVector(t kir.Type, name, from string, vs []kir.Value) {
	kind, packed := element(t, len(vs))
	if packed {
		ws := make([]string, len(vs)*t.Size()/4)
		for i := range ws {
			ws[i] = f.reg(word)
		}
		operand, v := vector(ws)
		f.op(name+v+kind, operand, from)
		f.unpack(t, ws, vs)
		return
	}
	rs := make([]string, len(vs))
	for i, v := range vs {
		if t == dtype.Bool {
			rs[i] = f.reg(word)
		} else {
			rs[i] = f.def(v)
		}
	}
	operand, v := vector(rs)
	f.op(name+v+kind, operand, from)
	if t == dtype.Bool {
		for i, v := range vs {
			f.op("setp.ne.u32", f.def(v), rs[i], "0")
		}
	}
}

// unpack extracts 1- or 2-byte values from words.
func (f *function) unpack(t kir.Type, ws []string, vs []kir.Value) {
	per := 4 / t.Size()
	for i, w := range ws {
		part := vs[i*per : (i+1)*per]
		if classOf(t) == half {
			f.op("mov.b32", "{"+f.def(part[0])+", "+f.def(part[1])+"}", w)
			continue
		}
		name := "bfe.u32"
		if t.IsSigned() {
			name = "bfe.s32"
		}
		for j, v := range part {
			width := itoa(8 * t.Size())
			if t == dtype.Bool {
				r := f.to(word, name, w, itoa(j*8), width)
				f.op("setp.ne.u32", f.def(v), r, "0")
				continue
			}
			f.op(name, f.def(v), w, itoa(j*8*t.Size()), width)
		}
	}
}

func (f *function) store(in *kir.Instr) {
	values := in.Args[1:]
	if in.Space == kir.Global {
		values = in.Args[2:]
	}
	base, offset := f.address(in)
	size := in.Type.Size()
	count, each := vectors(in.Width, size)
	name := f.access(in, "st")
	for c := range count {
		rs := make([]string, each)
		for i, v := range values[c*each : (c+1)*each] {
			rs[i] = f.names[v]
			if in.Type == dtype.Bool {
				rs[i] = f.to(word, "selp.b32", "1", "0", rs[i])
			}
		}
		f.storeVector(in.Type, name, location(base, offset+int64(c*each*size)), rs)
	}
}

// storeVector stores registers (bytes for Bool) in one access.
func (f *function) storeVector(t kir.Type, name, to string, rs []string) {
	kind, packed := element(t, len(rs))
	if packed {
		rs = f.pack(t, rs)
	}
	operand, v := vector(rs)
	f.op(name+v+kind, to, operand)
}

// pack packs registers of 1- or 2-byte values into words.
func (f *function) pack(t kir.Type, rs []string) []string {
	var ws []string
	per := 4 / t.Size()
	for i := 0; i < len(rs); i += per {
		switch {
		case classOf(t) == half:
			ws = append(ws, f.to(word, "mov.b32", "{"+rs[i]+", "+rs[i+1]+"}"))
		case per == 2:
			ws = append(ws, f.to(word, "prmt.b32", rs[i], rs[i+1], "0x5410"))
		default:
			lo := f.to(word, "prmt.b32", rs[i], rs[i+1], "0x0040")
			hi := f.to(word, "prmt.b32", rs[i+2], rs[i+3], "0x0040")
			ws = append(ws, f.to(word, "prmt.b32", lo, hi, "0x5410"))
		}
	}
	return ws
}

// pointerAdd emits OpPtrAdd.
func (f *function) pointerAdd(in *kir.Instr) {
	if i, ok := f.buffers[in.Args[0]]; ok {
		f.buffers[in.Res[0]] = i
	}
	f.op("add.s64", f.def(in.Res[0]), f.names[in.Args[0]], f.names[in.Args[1]])
}

// loadParam emits OpParam.
func (f *function) loadParam(in *kir.Instr) {
	p := &f.p.Params[in.Sym]
	from := "[" + f.param(in.Sym) + "]"
	if p.Kind == kir.ParamBuffer {
		f.op("ld.param.b64", f.def(in.Res[0]), from)
		f.buffers[in.Res[0]] = in.Sym
		return
	}
	f.loadVector(p.Type, "ld.param", from, in.Res[:1])
}

// uniformTables reports, for each table, whether all threads of a block use the same index in all of its reads.
func uniformTables(p *kir.Program) []bool {
	uniform := make([]bool, len(p.Tables))
	if len(uniform) == 0 {
		return nil
	}
	for i := range uniform {
		uniform[i] = true
	}
	forms := kir.Analyze(p).Values
	var walk func(b *kir.Block)
	walk = func(b *kir.Block) {
		for _, in := range b.Instrs {
			if in.Op == kir.OpLoad && in.Space == kir.Const && forms[in.Args[0]].Kind != kir.Uniform {
				uniform[in.Sym] = false
			}
			for _, sub := range in.Blocks {
				if sub != nil {
					walk(sub)
				}
			}
		}
	}
	walk(p.Body)
	return uniform
}
