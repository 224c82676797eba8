// Package ptx is the NVIDIA back end of the kernel IR: it turns programs into the text of one PTX module. It must not depend on how
// programs are built, loaded or launched, nor on the other back end.
//
// # Values
//
// A value occupies one virtual register: Bool a predicate, 8- to 32-bit integers 32 bits, 64-bit integers 64, halves 16. Narrow integers
// are sign- or zero-extended, so that comparisons and conversions need no masking; operations that can leave the range extend again. Every
// operation that rounds states its rounding mode, so the assembler may not fuse a multiply and an add, and nothing flushes subnormals.
//
// # Text
//
// Equal programs give equal text, byte for byte, so that the driver's cache of compiled kernels hits.
//
// PTX facts are from NVIDIA's "Parallel Thread Execution ISA".
package ptx

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/kir"
)

// Target is the device to compile for: its compute capability.
type Target struct {
	// Major and Minor are the compute capability, such as 9 and 0.
	Major, Minor int
	// Arch allows instructions that exist only on exactly this capability (PTX's "a" targets); later devices reject them.
	Arch bool
	// Meet makes warps meet where one only has to say how far it is. NVIDIA's racecheck does not follow bar.arrive: it reports races of
	// threads that have met at a later barrier.
	Meet bool
}

// known lists the capabilities that have a PTX target, with the first PTX version that supports each, as major*10+minor.
var known = [...]struct{ cap, version int }{
	{75, 63}, {80, 70}, {86, 71}, {87, 74}, {89, 78}, {90, 78}, {100, 86}, {101, 86}, {103, 88}, {120, 87}, {121, 88},
}

// capability returns the highest known capability that the device has, as major*10+minor, and the minimum PTX version for it.
func (t Target) capability() (sm, version int, err error) {
	have := t.Major*10 + t.Minor
	for _, k := range known {
		if k.cap <= have {
			sm, version = k.cap, k.version
		}
	}
	if sm == 0 {
		return 0, 0, fault.New(fault.Unsupported, "compute capability %d.%d is too old; 7.5 is the minimum", t.Major, t.Minor)
	}
	return sm, version, nil
}

// waitsFrom is the lowest capability whose kernels can wait by themselves for the preceding kernel (PTX ISA, griddepcontrol).
const waitsFrom = 90

// Waits reports whether the kernels that Compile makes for a device of the given major capability wait by themselves, before they access
// memory, for preceding work in their stream.
func Waits(major int) bool { return major*10 >= waitsFrom }

// Compile returns the text of a PTX module that contains all of progs as entry points under their names. Equal arguments give equal text.
// The programs must have passed kir.Verify. Errors: Unsupported if the target lacks something that a program needs, Invalid if two programs
// have the same name. A program may need dynamic shared memory in addition to its own: see DynamicShared.
func Compile(progs []*kir.Program, target Target) ([]byte, error) {
	m, err := newModule(target)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(progs))
	for _, p := range progs {
		if names[p.Name] {
			return nil, fault.New(fault.Invalid, "two kernels of one module are named %s", p.Name)
		}
		names[p.Name] = true
		if err := m.function(p); err != nil {
			return nil, fault.Wrap(fault.Unsupported, err, "kernel %s cannot be expressed in PTX", p.Name)
		}
	}
	return m.text(), nil
}

// constLimit is the size of the bank that .const variables share (PTX ISA, "Constant State Space"); constTable is the maximum size of one
// table in it.
const (
	constLimit = 64 << 10
	constTable = 4 << 10
)

// module is a PTX module under construction.
type module struct {
	target      Target
	sm, version int
	// arch says that an instruction needs the "a" target.
	arch bool
	// decls are the module's variables and external functions, body its entry points.
	decls, body []byte
	files       []string
	fileIndex   map[string]int
	symbols     map[string]bool
	constBytes  int
}

func newModule(target Target) (*module, error) {
	sm, version, err := target.capability()
	if err != nil {
		return nil, err
	}
	return &module{target: target, sm: sm, version: version, fileIndex: map[string]int{}, symbols: map[string]bool{}}, nil
}

// need raises the module's PTX version to at least v.
func (m *module) need(v int) { m.version = max(m.version, v) }

func (m *module) text() []byte {
	var b []byte
	b = fmt.Appendf(b, ".version %d.%d\n.target sm_%d", m.version/10, m.version%10, m.sm)
	if m.arch {
		b = append(b, 'a')
	}
	b = append(b, "\n.address_size 64\n"...)
	for i, f := range m.files {
		b = fmt.Appendf(b, ".file %d %s\n", i+1, quote(f))
	}
	b = append(b, m.decls...)
	return append(b, m.body...)
}

// file returns the number of a source file in .loc directives.
func (m *module) file(name string) int {
	n, ok := m.fileIndex[name]
	if !ok {
		m.files = append(m.files, name)
		n = len(m.files)
		m.fileIndex[name] = n
	}
	return n
}

// table declares constant data and returns its symbol and state space. Tables with equal data share one symbol. Only tables that all
// threads of a block read with the same index go to the constant bank, which serves one address at a time.
func (m *module) table(t *kir.Table, uniform bool) (symbol, space string) {
	h := fnv.New64a()
	h.Write(t.Data)
	space = "global"
	if uniform && len(t.Data) <= constTable {
		space = "const"
	}
	symbol = fmt.Sprintf("tenon_%s_%d_%016x", space, len(t.Data), h.Sum64())
	if m.symbols[symbol] {
		return symbol, space
	}
	if space == "const" {
		if m.constBytes+len(t.Data) > constLimit {
			return m.table(t, false)
		}
		m.constBytes += len(t.Data)
	}
	m.symbols[symbol] = true
	m.decls = fmt.Appendf(m.decls, ".%s .align 16 .b8 %s[%d] = {", space, symbol, len(t.Data))
	m.bytes(t.Data)
	return symbol, space
}

func (m *module) bytes(data []byte) {
	for i, c := range data {
		if i > 0 {
			m.decls = append(m.decls, ',')
			if i%32 == 0 {
				m.decls = append(m.decls, '\n')
			}
		}
		m.decls = strconv.AppendUint(m.decls, uint64(c), 10)
	}
	m.decls = append(m.decls, "};\n"...)
}

// cstring declares a zero-terminated string in global memory and returns its symbol.
func (m *module) cstring(s string) string {
	s += "\x00"
	h := fnv.New64a()
	h.Write([]byte(s))
	symbol := fmt.Sprintf("tenon_string_%d_%016x", len(s), h.Sum64())
	if !m.symbols[symbol] {
		m.symbols[symbol] = true
		m.decls = fmt.Appendf(m.decls, ".global .align 1 .b8 %s[%d] = {", symbol, len(s))
		m.bytes([]byte(s))
	}
	return symbol
}

// dynamicSymbol names the launch's dynamic shared memory.
const dynamicSymbol = "tenon_dynamic"

// dynamicShared declares the launch's dynamic shared memory.
func (m *module) dynamicShared() string {
	m.declareOnce(dynamicSymbol, fmt.Sprintf(".extern .shared .align %d .b8 %s[];\n", tileAlign, dynamicSymbol))
	return dynamicSymbol
}

// assertSymbol is the driver's function that prints a message and stops the device with error 710 (CUDA_ERROR_ASSERT). Its parameters are
// the message, file, line, function and character size.
const assertSymbol = "__assertfail"

func (m *module) assertFunction() {
	m.declareOnce(assertSymbol, ".extern .func "+assertSymbol+
		" (.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);\n")
}

func (m *module) declareOnce(symbol, decl string) {
	if !m.symbols[symbol] {
		m.symbols[symbol] = true
		m.decls = append(m.decls, decl...)
	}
}

// quote returns s as a PTX string, which supports C's simple escapes.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `/`, `"`, `'`, "\n", " ").Replace(s) + `"`
}
