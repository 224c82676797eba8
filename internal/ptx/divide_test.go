package ptx

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
)

// TestDivisionByConstants runs the instructions of divisions by constants. None of them is a division, except of numbers whose sign is
// unknown by what is not a power of two, and of any by negative numbers.
func TestDivisionByConstants(t *testing.T) {
	divisors := []int64{1, 2, 3, 5, 6, 7, 8, 9, 10, 31, 32, 33, 100, 127, 128, 641, 768, 1000, 4096, 65535, 65536, 1<<30 - 1, 1 << 30,
		1<<31 - 1, -1, -2, -3, -8, math.MinInt32, 1 << 31, 1<<32 - 1, 1 << 40, 1 << 62, 12345678901}
	numbers := []int64{0, 1, 2, 3, 5, 7, 8, 9, 31, 32, 33, 127, 128, 255, 641, 767, 768, 769, 9999, 65535, 65536, 1 << 20, 1<<30 - 1,
		1 << 30, 1<<30 + 1, 1<<31 - 2, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 40, 1<<62 + 1, math.MaxInt64}
	for _, n := range numbers[1:] {
		numbers = append(numbers, -n)
	}
	numbers = append(numbers, math.MinInt32, math.MinInt64)
	plain := 0
	for _, d := range divisors {
		for _, dt := range []kir.Type{dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64} {
			if int64(extend(dt, uint64(d))) != d {
				continue
			}
			for _, natural := range []bool{false, true} {
				f, div, rem := division(t, dt, d, natural)
				if strings.Contains(string(f.b), "div.") || strings.Contains(string(f.b), "rem.") {
					power := d&(d-1) == 0
					if d > 0 && (power || dt == dtype.Int32 && natural) {
						t.Errorf("%v by %d, natural %v:\n%s", dt, d, natural, f.b)
					}
					plain++
					continue
				}
				for _, x := range numbers {
					x = int64(extend(dt, uint64(x)))
					if natural {
						x &= math.MaxInt32
					}
					q, r := x/max(d, 1), x%max(d, 1)
					if !dt.IsSigned() {
						q, r = int64(uint64(x)/uint64(d)), int64(uint64(x)%uint64(d))
					}
					regs := emulate(t, f, uint64(x))
					if g, h := extend(dt, regs[f.names[div]]), extend(dt, regs[f.names[rem]]); g != uint64(q) || h != uint64(r) {
						t.Fatalf("%v %d by %d is %d, rest %d; want %d, %d\n%s", dt, x, d, int64(g), int64(h), q, r, f.b)
					}
				}
			}
		}
	}
	if plain == 0 {
		t.Error("no division is left")
	}
}

// division emits x / d and x % d for x = Values[0], which is at least 0 if natural is true.
func division(t *testing.T, dt kir.Type, d int64, natural bool) (f *function, div, rem kir.Value) {
	p := &kir.Program{Name: "k", Values: []kir.Type{dt, dt, dt, dt, dt, dt}, Threads: 32, FixedThreads: true, Body: &kir.Block{}}
	p.Params = []kir.Param{{Name: "x", Kind: kir.ParamScalar, Type: dt}}
	body := []*kir.Instr{
		{Op: kir.OpParam, Type: dt, Res: []kir.Value{0}},
		{Op: kir.OpConst, Type: dt, Res: []kir.Value{1}, Imm: uint64(int64(math.MaxInt32))},
		{Op: kir.OpAnd, Type: dt, Args: []kir.Value{0, 1}, Res: []kir.Value{2}},
		{Op: kir.OpConst, Type: dt, Res: []kir.Value{3}, Imm: uint64(d)},
	}
	x := kir.Value(0)
	if natural {
		x = 2
	}
	p.Body.Instrs = append(body, &kir.Instr{Op: kir.OpDiv, Type: dt, Args: []kir.Value{x, 3}, Res: []kir.Value{4}},
		&kir.Instr{Op: kir.OpRem, Type: dt, Args: []kir.Value{x, 3}, Res: []kir.Value{5}})
	f = &function{m: &module{}, p: p, names: make([]string, len(p.Values)), consts: map[kir.Value]uint64{3: uint64(d)}}
	f.names[x] = "x"
	for _, in := range p.Body.Instrs[4:] {
		f.divide(in)
	}
	return f, 4, 5
}

// emulate runs f's instructions for the dividend x and returns the registers.
func emulate(t *testing.T, f *function, x uint64) map[string]uint64 {
	regs := map[string]uint64{"x": x}
	for line := range strings.Lines(string(f.b)) {
		name, rest, _ := strings.Cut(strings.Trim(line, "\t;\n"), " ")
		args := strings.Split(rest, ", ")
		at := func(i int) uint64 {
			if v, ok := regs[args[i]]; ok {
				return v
			}
			if v, err := strconv.ParseInt(args[i], 10, 64); err == nil {
				return uint64(v)
			}
			v, err := strconv.ParseUint(args[i], 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			return v
		}
		parts := strings.Split(name, ".")
		kind := parts[len(parts)-1]
		wide := strings.HasSuffix(kind, "64")
		narrow := func(v uint64) uint64 {
			if wide {
				return v
			}
			return uint64(uint32(v))
		}
		var r uint64
		switch strings.Join(parts[:len(parts)-1], ".") {
		case "mov":
			r = at(1)
		case "shr":
			switch n := at(2); {
			case kind == "s32":
				r = uint64(int64(int32(at(1))) >> n)
			case kind == "s64":
				r = uint64(int64(at(1)) >> n)
			default:
				r = narrow(at(1)) >> n
			}
		case "and":
			r = at(1) & at(2)
		case "add":
			r = at(1) + at(2)
		case "sub":
			r = at(1) - at(2)
		case "mul.lo":
			r = at(1) * at(2)
		case "mul.hi":
			hi, lo := bits.Mul64(narrow(at(1)), narrow(at(2)))
			if r = lo >> 32; wide {
				r = hi
			}
		default:
			t.Fatalf("%q is not emulated", line)
		}
		regs[args[0]] = narrow(r)
	}
	return regs
}
