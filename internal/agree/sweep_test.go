package agree

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels/math/mathtest"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

var sweep = flag.Bool("sweep", false, "TestUnary32 takes all float32 numbers; needs a GPU")

const (
	sweepThreads = 256
	// sweepSample is the number of arguments at which the two devices are compared bit for bit, and the number tried if not all are.
	sweepSample = 1 << 20
)

// ulps emits mathtest.Ulps32: the distance of the float32 got from the float64 want, in units in the last place of float32 at want.
func ulps(k *kernel.Builder, got, want kernel.Value) kernel.Value {
	inf, top := k.F64(math.Inf(1)), k.F64(0x1p128)
	g := got.Convert(dtype.Float64)
	clamp := func(v kernel.Value) kernel.Value { return v.Max(top.Neg()).Min(top) }
	exponent := want.Abs().Min(top).Bitcast(dtype.Int64).Shr(k.I32(52)).Max(k.I64(1023 - 126))
	scale := k.I64(23 + 2*1023).Sub(exponent).Shl(k.I32(52)).Bitcast(dtype.Float64)
	e := clamp(g).Sub(clamp(want)).Abs().Mul(scale)
	negative := func(v kernel.Value) kernel.Value { return v.Bitcast(dtype.Int64).Lt(k.I64(0)) }
	e = g.Eq(k.F64(0)).And(negative(g).Xor(negative(want))).Select(inf, e)
	bothNaN, aNaN := g.IsNaN().And(want.IsNaN()), g.IsNaN().Or(want.IsNaN())
	return bothNaN.Select(k.F64(0), aNaN.Select(inf, e))
}

// sweepKernel measures u's float32 form against its float64 form at the n numbers with the bits first, first+step, …. For every thread it
// keeps the largest error, its argument, and the number of errors above mathtest.Limit. The error planted is added to all results.
func sweepKernel(u *mathtest.Unary, planted float64) (*kir.Program, error) {
	return kernel.Build("sweep_"+u.Name, func(k *kernel.Builder) {
		k.FixedThreads(sweepThreads)
		worst, at, over := k.Buffer("worst", dtype.Float64), k.Buffer("at", dtype.Uint32), k.Buffer("over", dtype.Int64)
		first, step, n := k.Scalar("first", dtype.Uint32), k.Scalar("step", dtype.Uint32), k.Scalar("n", dtype.Int64)
		id := k.BlockIdx(kernel.X).Mul(k.I32(sweepThreads)).Add(k.ThreadIdx(kernel.X))
		threads := k.GridDim(kernel.X).Mul(k.I32(sweepThreads)).Convert(dtype.Int64)
		most, where, count := k.Var(k.F64(-1)), k.Var(k.U32(0)), k.Var(k.I64(0))
		k.For(id.Convert(dtype.Int64), n, threads, func(i kernel.Value) {
			bits := i.Convert(dtype.Uint32).Mul(step).Add(first)
			x := bits.Bitcast(dtype.Float32)
			got := u.Build(k, x)
			if planted != 0 {
				got = got.Mul(k.F32(float32(1 + planted)))
			}
			e := ulps(k, got, u.Build(k, x.Convert(dtype.Float64)))
			more := e.Gt(most.Get())
			where.Set(more.Select(bits, where.Get()))
			most.Set(more.Select(e, most.Get()))
			count.Set(e.Gt(k.F64(mathtest.Limit)).Select(count.Get().Add(k.I64(1)), count.Get()))
		})
		worst.Store(id, most.Get())
		at.Store(id, where.Get())
		over.Store(id, count.Get())
	}).Program()
}

// valueKernel stores u of the same numbers.
func valueKernel(u *mathtest.Unary) (*kir.Program, error) {
	return kernel.Build("value_"+u.Name, func(k *kernel.Builder) {
		k.FixedThreads(sweepThreads)
		out := k.Buffer("out", dtype.Float32)
		first, step, n := k.Scalar("first", dtype.Uint32), k.Scalar("step", dtype.Uint32), k.Scalar("n", dtype.Int64)
		k.ForEach(n, func(i kernel.Value) {
			out.Store(i, u.Build(k, i.Convert(dtype.Uint32).Mul(step).Add(first).Bitcast(dtype.Float32)))
		})
	}).Program()
}

// span is a set of float32 numbers: those with the bits first, first+step, …
type span struct {
	first, step uint32
	n           int
}

// measured is the result of a sweep.
type measured struct {
	ulps float64
	at   float32
	over int
}

// sweepOn measures a function on one device; ms is the time that it took there.
func (s *side) sweepOn(p *kir.Program, sp span) (m measured, ms float64, err error) {
	grid := s.Info().Multiprocessors * 8
	if s.Info().Image != driver.FormatPTX {
		grid = 16
	}
	threads := grid * sweepThreads
	th := s.Enter()
	defer th.Leave()
	base := uint64(s.arena)
	var args []byte
	// The buffers follow each other: everything that is copied back was written.
	for _, at := range []int{0, 16 * threads, 8 * threads} {
		args = binary.LittleEndian.AppendUint64(args, base+uint64(at))
	}
	args = binary.LittleEndian.AppendUint32(args, sp.first)
	args = binary.LittleEndian.AppendUint32(args, sp.step)
	args = binary.LittleEndian.AppendUint64(args, uint64(sp.n))
	var ev [2]driver.Event
	for i := range ev {
		if ev[i], err = s.EventCreate(th, true); err != nil {
			return m, 0, err
		}
		defer s.EventDestroy(th, ev[i])
	}
	if err = s.EventRecord(ev[0], s.stream); err != nil {
		return m, 0, err
	}
	if err = s.Launch(&driver.Launch{Func: s.funcs[p.Name], Stream: s.stream, Grid: [3]uint32{uint32(grid), 1, 1},
		Block: [3]uint32{sweepThreads, 1, 1}, Args: args}); err != nil {
		return m, 0, err
	}
	if err = s.EventRecord(ev[1], s.stream); err != nil {
		return m, 0, err
	}
	mem := make([]byte, 20*threads)
	if err = s.CopyDtoH(mem, s.arena, s.stream); err != nil {
		return m, 0, err
	}
	if err = s.StreamSynchronize(th, s.stream); err != nil {
		return m, 0, err
	}
	t, err := s.EventElapsed(th, ev[0], ev[1])
	m.ulps = -1
	for i := range threads {
		if u := math.Float64frombits(binary.LittleEndian.Uint64(mem[8*i:])); u > m.ulps {
			m.ulps, m.at = u, math.Float32frombits(binary.LittleEndian.Uint32(mem[16*threads+4*i:]))
		}
		m.over += int(binary.LittleEndian.Uint64(mem[8*threads+8*i:]))
	}
	return m, float64(t), err
}

// valuesOn returns a function's values on one device.
func (s *side) valuesOn(p *kir.Program, sp span) ([]byte, error) {
	th := s.Enter()
	defer th.Leave()
	args := binary.LittleEndian.AppendUint64(nil, uint64(s.arena))
	args = binary.LittleEndian.AppendUint32(args, sp.first)
	args = binary.LittleEndian.AppendUint32(args, sp.step)
	args = binary.LittleEndian.AppendUint64(args, uint64(sp.n))
	l := &driver.Launch{Func: s.funcs[p.Name], Stream: s.stream, Grid: [3]uint32{uint32((sp.n + sweepThreads - 1) / sweepThreads), 1, 1},
		Block: [3]uint32{sweepThreads, 1, 1}, Args: args}
	if err := s.Launch(l); err != nil {
		return nil, err
	}
	out := make([]byte, 4*sp.n)
	if err := s.CopyDtoH(out, s.arena, s.stream); err != nil {
		return nil, err
	}
	return out, s.StreamSynchronize(th, s.stream)
}

// sweepPrograms builds and loads a function's two kernels on both devices.
func sweepPrograms(p *pair, u *mathtest.Unary, planted float64) (measure, value *kir.Program) {
	p.t.Helper()
	var err error
	if measure, err = sweepKernel(u, planted); err == nil {
		value, err = valueKernel(u)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	for _, s := range p.sides {
		s.prepare([]*kir.Program{measure, value}, 2)
		for _, err := range s.failed {
			p.t.Fatal(err)
		}
	}
	return measure, value
}

// TestUnary32 measures every function of one float32 argument. The reference is the function's own float64 form, computed alongside on the
// device: the tests of package math check that form to 2 units of float64 against series of 300 bits, which is 2^-28 of a unit of float32.
// With -sweep, on a GPU, the arguments are all 2³² floats; otherwise a sample spread evenly over all bit patterns. Special values and a
// share of the sample are also checked on the host against Go's functions, and both devices must give the same bits for the sample.
func TestUnary32(t *testing.T) {
	p := newPair(t)
	sample := span{first: 12345, step: 1<<32/sweepSample + 1, n: sweepSample}
	if !p.onGPU() {
		sample.n, sample.step = 1<<14, 1<<18+1
	}
	all := sample
	if *sweep {
		if !p.onGPU() {
			t.Skip("-sweep needs a GPU")
		}
		all = span{step: 1, n: 1 << 32}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %8s %14s %10s\n", "float32", "max ulp", "at", "ms")
	for i := range mathtest.Functions {
		u := &mathtest.Functions[i]
		measure, value := sweepPrograms(p, u, 0)
		agreeOnSample(p, u, value, sample)
		m, ms, err := p.sides[1].sweepOn(measure, all)
		if err != nil {
			t.Fatalf("%s: %v", u.Name, err)
		}
		fmt.Fprintf(&table, "%-12s %8.4f %14g %10.1f\n", u.Name, m.ulps, m.at, ms)
		if m.over > 0 || m.ulps < 0 {
			t.Errorf("%s: %d of %d numbers are off by more than %d ulp, most by %.4g at %v = %#x", u.Name, m.over, all.n, mathtest.Limit,
				m.ulps, m.at, math.Float32bits(m.at))
		}
		if *sweep {
			benchrun.Record(benchrun.Figure{Name: "unary32." + u.Name, Unit: "ulp", Sample: benchrun.Sample{Median: m.ulps, Min: m.ulps,
				Max: m.ulps, N: all.n},
				Note: "largest error over all 2^32 float32 numbers"})
		}
	}
	t.Logf("%d functions of %d numbers on the %s\n%s", len(mathtest.Functions), all.n, p.sides[1].name, table.String())
}

// agreeOnSample compares a function's values on both devices, and checks some on the host.
func agreeOnSample(p *pair, u *mathtest.Unary, value *kir.Program, sp span) {
	p.t.Helper()
	specials := []float32{0, 1, 0.5, 2, 88.72284, 89, 103.97, 104, 127, 128, 149, 150, math.MaxFloat32, math.SmallestNonzeroFloat32,
		0x1p-126, float32(math.Inf(1))}
	var results [2][]byte
	for i, s := range p.sides {
		var err error
		if results[i], err = s.valuesOn(value, sp); err != nil {
			p.t.Fatalf("%s on the %s: %v", u.Name, s.name, err)
		}
		for _, x := range append(specials, float32(math.NaN())) {
			for _, x := range []float32{x, -x} {
				b, err := s.valuesOn(value, span{first: math.Float32bits(x), step: 0, n: 1})
				if err != nil {
					p.t.Fatal(err)
				}
				if got, want := math.Float32frombits(binary.LittleEndian.Uint32(b)),
					u.Ref(float64(x)); mathtest.Ulps32(got, want) > mathtest.Limit {
					p.t.Errorf("%s(%v) = %v on the %s, want %v", u.Name, x, got, s.name, want)
				}
			}
		}
	}
	if text := differ(dtype.Float32, results[0], results[1]); text != "" {
		p.t.Errorf("%s: %s", u.Name, text)
	}
	var args, values []float32
	for i := 0; i < sp.n; i += max(1, sp.n>>14) {
		args = append(args, math.Float32frombits(sp.first+uint32(i)*sp.step))
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(results[1][4*i:])))
	}
	if w := u.Judge(args, values); w.Over > 0 {
		p.t.Errorf("%s: %d of %d numbers are off by more than %d ulp by Go's function, most by %.4g: f(%v) = %v, want %v", u.Name, w.Over,
			len(args), mathtest.Limit, w.Ulps, w.X, w.Got, w.Want)
	}
}

// TestSweepSeesErrors plants an error of 4 to 8 units in the last place and checks that the sweep counts it, as mathtest does.
func TestSweepSeesErrors(t *testing.T) {
	p := newPair(t)
	u := mathtest.Functions[0] // exp
	u.Name = "planted"
	measure, _ := sweepPrograms(p, &u, 4*0x1p-23)
	sp := span{first: math.Float32bits(0.25), step: 1 << 10, n: 1 << 14} // 0.25 … 1
	for _, s := range p.sides {
		m, _, err := s.sweepOn(measure, sp)
		if err != nil {
			t.Fatal(err)
		}
		if m.over == 0 || m.ulps < 2 || m.ulps > 10 {
			t.Errorf("%s: an error of 4 to 8 ulp is measured as %v ulp, %d above the limit", s.name, m.ulps, m.over)
		}
	}
}
