// Command lanegen generates the lane kernels of package vexec, in plain Go and in assembly for amd64, and the tables that hold them. It
// must not depend on what a program is. It is run by go generate.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"
)

// types pairs a dtype constant with the Go type of its lanes.
var types = [][2]string{
	{"Bool", "uint8"}, {"Uint8", "uint8"}, {"Int8", "int8"}, {"Uint16", "uint16"}, {"Int16", "int16"}, {"Uint32", "uint32"},
	{"Int32", "int32"},
	{"Uint64", "uint64"}, {"Int64", "int64"}, {"Float32", "float32"}, {"Float64", "float64"},
}

// lanewise is an operation on one or two operands of the same type.
type lanewise struct {
	name, op, constraint string
	dst, b               string // lane types of the result and of the second operand; "" means T
	expr                 string
	on                   string // dtypes, separated by spaces, or a group of them
}

var groups = map[string]string{
	"num":  "Uint8 Int8 Uint16 Int16 Uint32 Int32 Uint64 Int64 Float32 Float64",
	"int":  "Uint8 Int8 Uint16 Int16 Uint32 Int32 Uint64 Int64",
	"sint": "Int8 Int16 Int32 Int64",
	"flt":  "Float32 Float64",
	"bits": "Bool Uint8 Int8 Uint16 Int16 Uint32 Int32 Uint64 Int64",
	"all":  "Bool Uint8 Int8 Uint16 Int16 Uint32 Int32 Uint64 Int64 Float32 Float64",
}

var binaries = []lanewise{
	{"add", "OpAdd", "number", "", "", "a + b", "num"},
	{"sub", "OpSub", "number", "", "", "a - b", "num"},
	{"mul", "OpMul", "number", "", "", "a * b", "num"},
	{"divI", "OpDiv", "integer", "", "", "quo(a, b)", "int"},
	{"divF", "OpDiv", "float", "", "", "a / b", "flt"},
	{"rem", "OpRem", "integer", "", "", "rem(a, b)", "int"},
	{"minI", "OpMin", "integer", "", "", "min(a, b)", "int"},
	{"maxI", "OpMax", "integer", "", "", "max(a, b)", "int"},
	{"minF", "OpMin", "float", "", "", "minFloat(a, b)", "flt"},
	{"maxF", "OpMax", "float", "", "", "maxFloat(a, b)", "flt"},
	{"and", "OpAnd", "integer", "", "", "a & b", "bits"},
	{"or", "OpOr", "integer", "", "", "a | b", "bits"},
	{"xor", "OpXor", "integer", "", "", "a ^ b", "bits"},
	{"shl", "OpShl", "integer", "", "uint32", "a << b", "int"},
	{"shr", "OpShr", "integer", "", "uint32", "a >> b", "int"},
	{"eq", "OpEq", "number", "uint8", "", "bit(a == b)", "all"},
	{"ne", "OpNe", "number", "uint8", "", "bit(a != b)", "all"},
	{"lt", "OpLt", "number", "uint8", "", "bit(a < b)", "all"},
	{"le", "OpLe", "number", "uint8", "", "bit(a <= b)", "all"},
	{"gt", "OpGt", "number", "uint8", "", "bit(a > b)", "all"},
	{"ge", "OpGe", "number", "uint8", "", "bit(a >= b)", "all"},
}

// concreteBinaries are operations on fixed types.
var concreteBinaries = []lanewise{
	{"minimumF32", "OpMinimum", "float32", "", "", "minimum(a, b)", "Float32"},
	{"maximumF32", "OpMaximum", "float32", "", "", "maximum(a, b)", "Float32"},
	{"mulHiI32", "OpMulHi", "int32", "", "", "int32(int64(a) * int64(b) >> 32)", "Int32"},
	{"mulHiU32", "OpMulHi", "uint32", "", "", "uint32(uint64(a) * uint64(b) >> 32)", "Uint32"},
	{"mulHiI64", "OpMulHi", "int64", "", "", "mulHi64(a, b)", "Int64"},
	{"mulHiU64", "OpMulHi", "uint64", "", "", "mulHiU64(a, b)", "Uint64"},
	{"mulWideI32", "OpMulWide", "int32", "int64", "", "int64(a) * int64(b)", "Int32"},
	{"mulWideU32", "OpMulWide", "uint32", "uint64", "", "uint64(a) * uint64(b)", "Uint32"},
}

var unaries = []lanewise{
	{"negI", "OpNeg", "integer", "", "", "-a", "int"},
	{"absI", "OpAbs", "integer", "", "", "max(a, -a)", "sint"},
	{"not", "OpNot", "integer", "", "", "^a", "int"},
	{"sqrt", "OpSqrt", "float", "", "", "T(math.Sqrt(float64(a)))", "flt"},
	{"floor", "OpFloor", "float", "", "", "T(math.Floor(float64(a)))", "flt"},
	{"ceil", "OpCeil", "float", "", "", "T(math.Ceil(float64(a)))", "flt"},
	{"trunc", "OpTrunc", "float", "", "", "T(math.Trunc(float64(a)))", "flt"},
	{"rint", "OpRint", "float", "", "", "T(math.RoundToEven(float64(a)))", "flt"},
	{"isNaN", "OpIsNaN", "float", "uint8", "", "bit(a != a)", "flt"},
}

var concreteUnaries = []lanewise{
	{"negF32", "OpNeg", "uint32", "", "", "a ^ 1<<31", "Float32"},
	{"negF64", "OpNeg", "uint64", "", "", "a ^ 1<<63", "Float64"},
	{"absF32", "OpAbs", "uint32", "", "", "a &^ (1 << 31)", "Float32"},
	{"absF64", "OpAbs", "uint64", "", "", "a &^ (1 << 63)", "Float64"},
	{"absU8", "OpAbs", "uint8", "", "", "a", "Uint8"},
	{"absU16", "OpAbs", "uint16", "", "", "a", "Uint16"},
	{"absU32", "OpAbs", "uint32", "", "", "a", "Uint32"},
	{"absU64", "OpAbs", "uint64", "", "", "a", "Uint64"},
	{"notBool", "OpNot", "uint8", "", "", "a ^ 1", "Bool"},
	{"exp2", "OpExp2", "float32", "", "", "approx.Exp2(a)", "Float32"},
	{"rcp", "OpRcp", "float32", "", "", "approx.Reciprocal(a)", "Float32"},
	{"clz32", "OpClz", "uint32", "int32", "", "int32(bits.LeadingZeros32(a))", "Int32 Uint32"},
	{"clz64", "OpClz", "uint64", "int32", "", "int32(bits.LeadingZeros64(a))", "Int64 Uint64"},
	{"popc32", "OpPopc", "uint32", "int32", "", "int32(bits.OnesCount32(a))", "Int32 Uint32"},
	{"popc64", "OpPopc", "uint64", "int32", "", "int32(bits.OnesCount64(a))", "Int64 Uint64"},
	{"rev32", "OpBitRev", "uint32", "", "", "bits.Reverse32(a)", "Int32 Uint32"},
	{"rev64", "OpBitRev", "uint64", "", "", "bits.Reverse64(a)", "Int64 Uint64"},
}

type writer struct{ bytes.Buffer }

func (w *writer) f(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// loop writes one kernel. forms says for each operand whether it is lanes (V) or one scalar (S).
func (w *writer) loop(name, constraint, dst string, operands []string, forms, expr string) {
	tp, T := "[T "+constraint+"]", "T"
	if constraint != "number" && constraint != "integer" && constraint != "float" && constraint != "raw" {
		tp, T = "", constraint
	}
	pick := func(s string) string {
		if s == "" || s == "T" {
			return T
		}
		return s
	}
	params := []string{"_", "_", "_"}
	var pre, in []string
	for i, o := range operands {
		v := string(rune('a' + i))
		params[i] = v + "p"
		if forms[i] == 'S' {
			pre = append(pre, fmt.Sprintf("%s := *(*%s)(%sp)", v, pick(o), v))
		} else {
			pre = append(pre, fmt.Sprintf("%ss := lanes[%s](%sp, n)", v, pick(o), v))
			in = append(in, fmt.Sprintf("%s := %ss[i]", v, v))
		}
	}
	w.f("func %s%s%s(dp, %s unsafe.Pointer, n int) {", name, forms, tp, strings.Join(params, ", "))
	for _, p := range pre {
		w.f("%s", p)
	}
	w.f("for i, ds := 0, lanes[%s](dp, n); i < n; i++ {", pick(dst))
	for _, p := range in {
		w.f("%s", p)
	}
	w.f("ds[i] = %s", expr)
	w.f("}\n}\n")
}

func goType(dt string) string {
	for _, t := range types {
		if t[0] == dt {
			return t[1]
		}
	}
	panic("no type " + dt)
}

// rawType returns the unsigned type that has the size of a lane type.
func rawType(t string) string {
	switch t {
	case "int8", "int16", "int32", "int64":
		return "u" + t
	case "float32":
		return "uint32"
	case "float64":
		return "uint64"
	}
	return t
}

func expand(on string) []string {
	if g, ok := groups[on]; ok {
		on = g
	}
	return strings.Fields(on)
}

func generate(ops *writer, table *writer) {
	row := func(l lanewise, forms []string, generic bool) {
		for _, dt := range expand(l.on) {
			for i, f := range forms {
				inst := ""
				if generic {
					inst = "[" + goType(dt) + "]"
				}
				table.f("t[kir.%s][dtype.%s][%d] = %s%s%s", l.op, dt, i, l.name, f, inst)
			}
		}
	}
	two := []string{"VV", "VS", "SV"}
	for k, set := range [][]lanewise{binaries, concreteBinaries} {
		for _, l := range set {
			for _, f := range two {
				ops.loop(l.name, l.constraint, l.dst, []string{"", l.b}, f, l.expr)
			}
			row(l, two, k == 0)
		}
	}
	for k, set := range [][]lanewise{unaries, concreteUnaries} {
		for _, l := range set {
			ops.loop(l.name, l.constraint, l.dst, []string{""}, "V", l.expr)
			row(l, []string{"V"}, k == 0)
		}
	}
	three := []string{"VVV", "VSV", "VVS", "VSS"}
	for _, t := range []string{"32", "64"} {
		l := lanewise{name: "fma" + t, op: "OpFMA", on: "Float" + t}
		for _, f := range three {
			ops.loop(l.name, "float"+t, "", []string{"", "", ""}, f, "fmaf"+t+"(a, b, c)")
		}
		row(l, three, false)
	}
	for _, dt := range []string{"Int32", "Uint32", "Int64", "Uint64"} {
		table.f("t[kir.OpSpecial][dtype.%s][0] = count[%s]", dt, rawType(goType(dt)))
	}
	sel := lanewise{name: "sel", op: "OpSelect"}
	for _, f := range three {
		ops.loop("sel", "raw", "", []string{"uint8", "", ""}, f, "pick(a, b, c)")
	}
	for _, t := range append([][2]string{{"Float16", "uint16"}, {"BFloat16", "uint16"}}, types...) {
		u := rawType(t[1])
		for i, f := range three {
			table.f("t[kir.%s][dtype.%s][%d] = sel%s[%s]", sel.op, t[0], i, f, u)
		}
		table.f("t[kir.OpGet][dtype.%s][0] = mov[%s]", t[0], u)
		table.f("t[kir.OpGet][dtype.%s][1] = fill[%s]", t[0], u)
	}
}

// conversions writes the kernels from every type to every type.
func conversions(ops, table *writer) {
	isF := func(t string) bool { return strings.HasPrefix(t, "float") }
	put := func(from, to, fn string) { table.f("c[dtype.%s][dtype.%s] = %s", from, to, fn) }
	for _, f := range types {
		for _, t := range types {
			switch {
			case f[0] == t[0]:
				put(f[0], t[0], "mov["+rawType(t[1])+"]")
			case t[0] == "Bool":
				put(f[0], t[0], "toBool["+f[1]+"]")
			case isF(f[1]) && !isF(t[1]):
				name := "cvt" + f[0] + "To" + t[0]
				ops.loop(name, f[1], t[1], []string{""}, "V", "sat"+t[0]+"(float64(a))")
				put(f[0], t[0], name+"V")
			default:
				put(f[0], t[0], "cvt["+f[1]+", "+t[1]+"]")
			}
		}
		for _, h := range [][2]string{{"Float16", "F16"}, {"BFloat16", "BF16"}} {
			name := "cvt" + f[0] + "To" + h[1]
			via := "uint16(dtype." + h[1] + "FromFloat64(float64(a)))"
			switch f[1] {
			case "float32":
				via = "uint16(dtype." + h[1] + "FromFloat32(a))"
			case "int64", "uint64":
				via = "uint16(dtype." + h[1] + "FromFloat64(stickyFloat64(a)))"
			}
			ops.loop(name, f[1], "uint16", []string{""}, "V", via)
			put(f[0], h[0], name+"V")
			back := "cvt" + h[1] + "To" + f[0]
			wide := "dtype." + h[1] + "(a).Float32()"
			switch {
			case f[0] == "Bool":
				ops.loop(back, "uint16", "uint8", []string{""}, "V", "bit(a&0x7fff != 0)")
			case isF(f[1]):
				ops.loop(back, "uint16", f[1], []string{""}, "V", f[1]+"("+wide+")")
			default:
				ops.loop(back, "uint16", f[1], []string{""}, "V", "sat"+f[0]+"(float64("+wide+"))")
			}
			put(h[0], f[0], back+"V")
		}
	}
	ops.loop("cvtF16ToBF16", "uint16", "uint16", []string{""}, "V", "uint16(dtype.BF16FromFloat32(dtype.F16(a).Float32()))")
	ops.loop("cvtBF16ToF16", "uint16", "uint16", []string{""}, "V", "uint16(dtype.F16FromFloat32(dtype.BF16(a).Float32()))")
	put("Float16", "BFloat16", "cvtF16ToBF16V")
	put("BFloat16", "Float16", "cvtBF16ToF16V")
	put("Float16", "Float16", "mov[uint16]")
	put("BFloat16", "BFloat16", "mov[uint16]")
}

func main() {
	log.SetFlags(0)
	ops, table := &writer{}, &writer{}
	ops.f("// Code generated by lanegen; DO NOT EDIT.\n\npackage vexec\n\nimport " +
		"(\n\"math\"\n\"math/bits\"\n\"unsafe\"\n\n\"tenon.dev/dtype\"\n\"tenon.dev/internal/approx\"\n)\n")
	table.f("// Code generated by lanegen; DO NOT EDIT.\n\npackage vexec\n\nimport (\n\"tenon.dev/dtype\"\n\"tenon.dev/internal/kir\"\n)\n")
	table.f("// fillTables adds the plain Go kernels to the tables.\nfunc fillTables(t *opTable, c *cvtTable) {")
	generate(ops, table)
	conversions(ops, table)
	table.f("}")
	asm, stubs := generateAsm()
	dots, dotStubs := generateDots()
	turns, turnStubs := generateTurns()
	approximations, approxStubs := generateApprox()
	for name, w := range map[string]*writer{"zlanes.go": ops, "ztable.go": table, "zlanes_amd64.go": stubs, "zlanes_amd64.s": asm,
		"zdot_amd64.go": dotStubs, "zdot_amd64.s": dots, "zturn_amd64.go": turnStubs, "zturn_amd64.s": turns,
		"zapprox_amd64.go": approxStubs, "zapprox_amd64.s": approximations} {
		src := w.Bytes()
		if strings.HasSuffix(name, ".go") {
			var err error
			if src, err = format.Source(src); err != nil {
				log.Fatalf("%s: %v", name, err)
			}
		}
		if err := os.WriteFile(name, src, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
