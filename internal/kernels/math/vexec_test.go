package math_test

import (
	"encoding/binary"
	"flag"
	"math"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels/math/mathtest"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/vexec"
	"tenon.dev/kernel"
)

// arena is device memory that consists of slices at addresses of its own.
type arena [][]byte

func (a arena) Resolve(addr uint64) ([]byte, uint64, bool) {
	i := addr >> 32
	if i == 0 || i > uint64(len(a)) {
		return nil, 0, false
	}
	return a[i-1], i << 32, true
}

// mapKernel runs an element-wise program over slices in vexec; the last slice is the output.
func mapKernel[T any](t testing.TB, name string, dt dtype.DType, f func(k *kernel.Builder, args []kernel.Value) kernel.Value,
	slices ...[]T) {
	t.Helper()
	p := program(t, name, func(k *kernel.Builder) {
		var in []kernel.Buffer
		for i := range len(slices) - 1 {
			in = append(in, k.BufferRO(string(rune('x'+i)), dt))
		}
		out, n := k.Buffer("out", dt), k.Scalar("n", dtype.Int64)
		k.ForEach(n, func(i kernel.Value) {
			var args []kernel.Value
			for _, b := range in {
				args = append(args, b.Load(i))
			}
			out.Store(i, f(k, args))
		})
	})
	m, err := vexec.Load(kir.Print(p))
	if err != nil {
		t.Fatal(err)
	}
	k, ok := m.Kernel(name)
	if !ok {
		t.Fatal("no kernel")
	}
	var mem arena
	var args []byte
	for i, s := range slices {
		b, err := binary.Append(nil, binary.LittleEndian, s)
		if err != nil {
			t.Fatal(err)
		}
		mem = append(mem, b)
		args = binary.LittleEndian.AppendUint64(args, uint64(i+1)<<32)
	}
	n := len(slices[0])
	args = binary.LittleEndian.AppendUint64(args, uint64(n))
	if err := k.Run(&vexec.Env{Mem: mem}, [3]uint32{uint32(n+255) / 256, 1, 1}, [3]uint32{256, 1, 1}, 0, args); err != nil {
		t.Fatal(err)
	}
	last := len(slices) - 1
	if _, err := binary.Decode(mem[last], binary.LittleEndian, slices[last]); err != nil {
		t.Fatal(err)
	}
}

func map32(t testing.TB, u *mathtest.Unary, args, out []float32) {
	t.Helper()
	mapKernel(t, u.Name+"_f32", dtype.Float32, func(k *kernel.Builder, a []kernel.Value) kernel.Value {
		return u.Build(k, a[0])
	}, args, out)
}

func map64(t testing.TB, u *mathtest.Unary, args, out []float64) {
	t.Helper()
	mapKernel(t, u.Name+"_f64", dtype.Float64, func(k *kernel.Builder, a []kernel.Value) kernel.Value {
		return u.Build(k, a[0])
	}, args, out)
}

// TestTwoInterpreters checks that vexec and this package's own interpreter agree bit for bit, on every function in both types.
func TestTwoInterpreters(t *testing.T) {
	args := arguments32(5000)
	wide := arguments64(math.Inf(-1), math.Inf(1), 2000)
	out, out64 := make([]float32, len(args)), make([]float64, len(wide))
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		map32(t, u, args, out)
		m := newInterp(build1(t, u, dtype.Float32))
		for i, x := range args {
			got := math.Float32frombits(uint32(m.run(uint64(math.Float32bits(x)), 0)[0]))
			if math.Float32bits(got) != math.Float32bits(out[i]) && (got == got || out[i] == out[i]) {
				t.Fatalf("%s(%v): vexec gives %v, the interpreter %v", u.Name, x, out[i], got)
			}
		}
		map64(t, u, wide, out64)
		m = newInterp(build1(t, u, dtype.Float64))
		for i, x := range wide {
			got := math.Float64frombits(m.run(math.Float64bits(x), 0)[0])
			if math.Float64bits(got) != math.Float64bits(out64[i]) && (got == got || out64[i] == out64[i]) {
				t.Fatalf("%s(%v): vexec gives %v, the interpreter %v", u.Name, x, out64[i], got)
			}
		}
	}
}

// TestTwoInterpretersPairs is TestTwoInterpreters for functions of two arguments.
func TestTwoInterpretersPairs(t *testing.T) {
	args := pairs(5000, false)
	x, y, out := make([]float32, len(args)), make([]float32, len(args)), make([]float32, len(args))
	for i, a := range args {
		x[i], y[i] = float32(a[0]), float32(a[1])
	}
	for _, u := range append(mathtest.Pairs, fmod, remainder) {
		mapKernel(t, u.Name, dtype.Float32, func(k *kernel.Builder, a []kernel.Value) kernel.Value {
			return u.Build(k, a[0], a[1])
		}, x, y, out)
		m := newInterp(build2(t, &u, dtype.Float32))
		for i := range x {
			got := math.Float32frombits(uint32(m.run(uint64(math.Float32bits(x[i])), uint64(math.Float32bits(y[i])), 0)[0]))
			if math.Float32bits(got) != math.Float32bits(out[i]) && (got == got || out[i] == out[i]) {
				t.Fatalf("%s(%v, %v): vexec gives %v, the interpreter %v", u.Name, x[i], y[i], out[i], got)
			}
		}
	}
}

var (
	first = flag.Uint64("from", 0x3f7f8000, "bits of the first float32 argument of TestRange")
	count = flag.Uint64("inputs", 1<<16, "arguments of TestRange; 4294967296 of them with -from 0 are all")
)

// TestRange checks every function at every float32 of a range.
func TestRange(t *testing.T) {
	const chunk = 1 << 22
	args, out := make([]float32, min(*count, chunk)), make([]float32, min(*count, chunk))
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		var w mathtest.Worst
		for at := *first; at < *first+*count; at += chunk {
			n := min(*first+*count-at, chunk)
			for i := range n {
				args[i] = math.Float32frombits(uint32(at + i))
			}
			map32(t, u, args[:n], out[:n])
			w.Join(u.Compare(uint32(at), out[:n]))
		}
		t.Logf("%-12s %.3f ulp at %v", u.Name, w.Ulps, w.X)
		if w.Over > 0 {
			t.Errorf("%s: %d arguments are off by more than %d ulp; worst %.3g ulp: f(%v) = %v, want %v", u.Name, w.Over, mathtest.Limit,
				w.Ulps, w.X, w.Got, w.Want)
		}
	}
}
