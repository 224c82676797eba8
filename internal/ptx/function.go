package ptx

import (
	"fmt"
	"strconv"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

// class is the class of a virtual register.
type class uint8

const (
	pred class = iota
	half
	word
	long
	single
	double
	classes
)

var (
	classPrefix = [classes]string{"%p", "%h", "%r", "%rd", "%f", "%fd"}
	classType   = [classes]string{".pred", ".b16", ".b32", ".b64", ".f32", ".f64"}
)

// classOf returns the class of the registers that hold values of type t.
func classOf(t kir.Type) class {
	switch t {
	case dtype.Bool:
		return pred
	case dtype.Float16, dtype.BFloat16:
		return half
	case dtype.Float32:
		return single
	case dtype.Float64:
		return double
	case dtype.Int64, dtype.Uint64:
		return long
	}
	return word
}

// loop holds the labels of an enclosing loop.
type loop struct{ next, exit string }

// function is an entry point under construction.
type function struct {
	m *module
	p *kir.Program
	// b is the text of the instructions emitted so far.
	b []byte
	// names are the registers of values and vars those of variables; consts holds the bits of constants.
	names  []string
	vars   []string
	consts map[kir.Value]uint64
	// halves maps each half of a product to the other one.
	halves map[*kir.Instr]*kir.Instr
	// rounded maps bfloat16 values that were made by rounding to the registers of the float32 values before that.
	rounded map[kir.Value]string
	// buffers says which parameter's buffer an address points into.
	buffers map[kir.Value]int
	// places are registers with rows and columns of a map, as distances from the thread's first one.
	places map[string]elementPlace
	// sums are registers with the sum of another and a constant.
	sums    map[string]sum
	uniform []bool
	// analysis is nil until it is needed.
	analysis *kir.Analysis
	counts   [classes]int
	labels   int
	loops    []loop
	loc      int
	tables   map[int][2]string
	tiles    *tilePlan
	err      error
}

// sum is the sum of a register and a constant. Wherever the sum can be used, the register has the same value.
type sum struct {
	register string
	constant int64
}

func (m *module) function(p *kir.Program) error {
	f := &function{m: m, p: p, names: make([]string, len(p.Values)), consts: map[kir.Value]uint64{}, halves: map[*kir.Instr]*kir.Instr{},
		rounded: map[kir.Value]string{}, buffers: map[kir.Value]int{}, places: map[string]elementPlace{}, sums: map[string]sum{},
		tables: map[int][2]string{}}
	plan, err := planTiles(p, m.target, m.sm)
	if err != nil {
		return err
	}
	f.tiles = plan
	plan.rounded = map[*kir.Instr]bool{}
	if plan.usesArch {
		m.arch = true
		m.need(80)
	}
	f.uniform = uniformTables(p)
	f.vars = make([]string, len(p.Vars))
	for i, t := range p.Vars {
		f.vars[i] = f.reg(classOf(t))
	}
	switch {
	case m.sm < waitsFrom:
	case p.Waits() >= 0:
		f.op("griddepcontrol.launch_dependents")
	default:
		// Most kernels do not let the next one start early: its blocks would occupy multiprocessors while this kernel's blocks run. With
		// griddepcontrol.launch_dependents in all, an MLP's step in a graph took 127 microseconds on an H200 instead of 96. Without it the
		// next kernel starts when all blocks have ended, which took 90.
		f.op("griddepcontrol.wait")
	}
	f.tilePrologue()
	f.block(p.Body)
	f.op("ret")
	if f.err != nil {
		return f.err
	}
	m.entry(f)
	return nil
}

// entry appends f's header, declarations and instructions to the module.
func (m *module) entry(f *function) {
	p := f.p
	b := append(m.body, "\n.visible .entry "...)
	b = append(b, p.Name...)
	b = append(b, '(')
	for i := range p.Params {
		if i > 0 {
			b = append(b, ',')
		}
		a := &p.Params[i]
		b = append(b, "\n\t.param "...)
		size, align := a.Bytes()
		switch {
		case a.Kind == kir.ParamArray:
			b = fmt.Appendf(b, ".align %d .b8 %s[%d]", align, f.param(i), size)
		case a.Kind == kir.ParamBuffer:
			b = fmt.Appendf(b, ".u64 .ptr .global .align %d %s", max(a.Align, a.Type.Size()), f.param(i))
		default:
			b = fmt.Appendf(b, "%s %s", scalarParam(a.Type), f.param(i))
		}
	}
	b = append(b, ')')
	if p.Threads > 0 {
		directive := ".maxntid"
		if p.FixedThreads || len(p.Tiles) > 0 {
			directive = ".reqntid"
		}
		b = fmt.Appendf(b, "\n%s %d, 1, 1", directive, p.Threads)
	}
	b = append(b, "\n{\n"...)
	for c := range classes {
		if n := f.counts[c]; n > 0 {
			b = fmt.Appendf(b, "\t.reg %s %s<%d>;\n", classType[c], classPrefix[c], n)
		}
	}
	for i, a := range p.Shared {
		if a.Count >= 0 {
			b = fmt.Appendf(b, "\t.shared .align 16 .b8 shared%d[%d];\n", i, max(1, a.Count*a.Type.Size()))
		}
	}
	for i, a := range p.Local {
		b = fmt.Appendf(b, "\t.local .align 16 .b8 local%d[%d];\n", i, max(1, a.Count*a.Type.Size()))
	}
	if n := f.tiles.static(); n > 0 {
		b = fmt.Appendf(b, "\t.shared .align %d .b8 %s[%d];\n", tileAlign, tileSymbol, n)
	}
	b = append(b, f.b...)
	m.body = append(b, "}\n"...)
}

func (f *function) param(i int) string { return f.p.Name + "_param_" + strconv.Itoa(i) }

// scalarParam returns the PTX type of a scalar parameter.
func scalarParam(t kir.Type) string {
	switch t {
	case dtype.Float32:
		return ".f32"
	case dtype.Float64:
		return ".f64"
	}
	return [...]string{1: ".u8", 2: ".u16", 4: ".u32", 8: ".u64"}[t.Size()]
}

// reg returns a new register.
func (f *function) reg(c class) string {
	n := f.counts[c]
	f.counts[c]++
	return classPrefix[c] + strconv.Itoa(n)
}

// def gives v a new register.
func (f *function) def(v kir.Value) string {
	r := f.reg(classOf(f.p.Values[v]))
	f.names[v] = r
	return r
}

// label returns a new label.
func (f *function) label() string {
	f.labels++
	return "$L" + strconv.Itoa(f.labels)
}

func (f *function) place(label string) {
	f.b = append(append(f.b, label...), ":\n"...)
}

// op emits one instruction.
func (f *function) op(name string, operands ...string) {
	f.b = append(append(f.b, '\t'), name...)
	for i, o := range operands {
		if i > 0 {
			f.b = append(f.b, ',')
		}
		f.b = append(append(f.b, ' '), o...)
	}
	f.b = append(f.b, ";\n"...)
}

// when emits one instruction that runs where predicate p is true.
func (f *function) when(p, name string, operands ...string) { f.op("@"+p+" "+name, operands...) }

// unless emits one instruction that runs where predicate p is false.
func (f *function) unless(p, name string, operands ...string) { f.op("@!"+p+" "+name, operands...) }

// to emits an instruction that writes a new register of class c, and returns the register.
func (f *function) to(c class, name string, operands ...string) string {
	r := f.reg(c)
	f.op(name, append([]string{r}, operands...)...)
	return r
}

func itoa(n int) string { return strconv.Itoa(n) }

// at emits the source location of in if it differs from that of the last instruction.
func (f *function) at(in *kir.Instr) {
	if in.Loc <= 0 || in.Loc == f.loc || in.Loc >= len(f.p.Locs) {
		return
	}
	f.loc = in.Loc
	l := f.p.Locs[in.Loc]
	f.b = fmt.Appendf(f.b, "\t.loc %d %d 0\n", f.m.file(l.File), l.Line)
}

// fail records the first error.
func (f *function) fail(in *kir.Instr, format string, args ...any) {
	if f.err != nil {
		return
	}
	e := fault.New(fault.Unsupported, format, args...)
	if in.Loc > 0 && in.Loc < len(f.p.Locs) {
		e.File, e.Line = f.p.Locs[in.Loc].File, f.p.Locs[in.Loc].Line
	}
	f.err = e
}

// constant returns the bits of v if it is a constant; integers are sign- or zero-extended according to their type.
func (f *function) constant(v kir.Value) (uint64, bool) {
	c, ok := f.consts[v]
	return c, ok
}

// extend interprets the low bits of c as a value of type t.
func extend(t kir.Type, c uint64) uint64 {
	s := uint(64 - 8*t.Size())
	if t.IsInt() && t.IsSigned() {
		return uint64(int64(c<<s) >> s)
	}
	return c << s >> s
}

// literal returns a constant of type t with the given bits in the form in which a register holds it.
func literal(t kir.Type, c uint64) string {
	c = extend(t, c)
	switch classOf(t) {
	case pred:
		if c != 0 {
			return "1"
		}
		return "0"
	case half:
		return fmt.Sprintf("0x%04X", c)
	case single:
		return fmt.Sprintf("0f%08X", c)
	case double:
		return fmt.Sprintf("0d%016X", c)
	}
	if t.IsSigned() {
		return strconv.FormatInt(int64(c), 10)
	}
	return strconv.FormatUint(c, 10)
}

// move returns the mov instruction for registers of class c.
func move(c class) string { return "mov" + classType[c] }
