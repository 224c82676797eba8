package vexec

import (
	"flag"
	"fmt"
	"math/rand"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// progGen generates random programs whose threads are independent: each reads shared inputs and writes its own slots of out.
type progGen struct {
	*rand.Rand
	k      *kernel.Builder
	pool   map[dtype.DType][]kernel.Value
	vars   []kernel.Var
	varTs  []dtype.DType
	locals []kernel.Array
	inputs map[dtype.DType]kernel.Buffer
	out    kernel.Buffer
	table  kernel.Array
	params kernel.Array
	slot   kernel.Value // first slot, Int64
	id     kernel.Value // Int32
	loops  int
	budget int
}

const (
	outSlots  = 64
	inputSize = 1 << 14
	localSize = 8
)

var arithTypes = []dtype.DType{dtype.Int32, dtype.Int32, dtype.Int32, dtype.Int64, dtype.Int64, dtype.Uint32, dtype.Uint64, dtype.Float32,
	dtype.Float32, dtype.Float64, dtype.Uint8, dtype.Int8, dtype.Int16, dtype.Uint16}

func (g *progGen) typ() dtype.DType { return arithTypes[g.Intn(len(arithTypes))] }

func (g *progGen) keep(v kernel.Value) kernel.Value {
	g.pool[v.Type()] = append(g.pool[v.Type()], v)
	return v
}

// any returns a value of type t that is in scope.
func (g *progGen) any(t dtype.DType) kernel.Value {
	if vs := g.pool[t]; len(vs) > 0 && g.Intn(8) > 0 {
		if g.Intn(2) == 0 {
			return vs[len(vs)-1-g.Intn(min(4, len(vs)))]
		}
		return vs[g.Intn(len(vs))]
	}
	switch {
	case t == dtype.Bool:
		u := g.typ()
		a, b := g.any(u), g.any(u)
		return g.keep([]func() kernel.Value{
			func() kernel.Value { return a.Lt(b) }, func() kernel.Value { return a.Le(b) }, func() kernel.Value { return a.Eq(b) },
			func() kernel.Value {
				return a.Ne(b)
			}, func() kernel.Value { return a.Gt(b) }, func() kernel.Value { return a.Ge(b) }}[g.Intn(6)]())
	case t.IsFloat():
		return g.k.Const(t, float64(g.Intn(17)-8)/4)
	}
	return g.k.Int(t, int64(g.Intn(41)-8))
}

func (g *progGen) scope(f func()) {
	saved := map[dtype.DType][]kernel.Value{}
	for t, vs := range g.pool {
		saved[t] = vs[:len(vs):len(vs)]
	}
	f()
	g.pool = saved
}

func (g *progGen) op() {
	t := g.typ()
	a, b := g.any(t), g.any(t)
	var r kernel.Value
	switch n := g.Intn(22); {
	case n < 3:
		r = a.Add(b)
	case n < 5:
		r = a.Sub(b)
	case n < 7:
		r = a.Mul(b)
	case n == 7:
		r = a.Div(b)
	case n == 8:
		r = a.Min(b)
	case n == 9:
		r = a.Max(b)
	case n == 10:
		r = g.any(dtype.Bool).Select(a, b)
	case n == 11:
		u := g.typ()
		r = g.any(u).Convert(t)
	case n == 12:
		r = a.Neg()
	case n == 13:
		x := g.any(dtype.Bool)
		r = []kernel.Value{x.And(g.any(dtype.Bool)), x.Or(g.any(dtype.Bool)), x.Not(), x.Xor(g.any(dtype.Bool))}[g.Intn(4)]
	case n == 14 && t.IsFloat():
		r = a.FMA(b, g.any(t))
	case n == 15 && t.IsFloat():
		r = []kernel.Value{a.Floor(), a.Rint(), a.Abs(), a.Trunc(), a.Abs().Sqrt()}[g.Intn(5)]
	case n == 16 && !t.IsFloat():
		r = []kernel.Value{a.And(b), a.Or(b), a.Xor(b), a.Rem(b), a.Not()}[g.Intn(5)]
	case n == 17 && !t.IsFloat():
		r = []kernel.Value{a.Shl(g.any(dtype.Int32)), a.Shr(g.any(dtype.Int32)), a.Shl(g.k.I32(g.Intn(5)))}[g.Intn(3)]
	case n == 18:
		h := []dtype.DType{dtype.Float16, dtype.BFloat16}[g.Intn(2)]
		r = a.Convert(h).Convert(t)
	case n == 19:
		r = g.any(dtype.Int32).MulWide(g.any(dtype.Int32))
	default:
		r = g.load()
	}
	g.keep(r)
}

// index returns an index below n: affine, uniform or scattered.
func (g *progGen) index(n int) kernel.Value {
	var i kernel.Value
	switch g.Intn(4) {
	case 0: // at most inputSize/4 threads run
		i = g.id
		if g.Intn(2) == 0 {
			i = i.Mul(g.k.I32(1 + g.Intn(3))).Add(g.k.I32(g.Intn(5)))
		}
	case 1:
		i = g.k.I32(g.Intn(n))
	default:
		i = g.any(dtype.Uint32).Rem(g.k.U32(uint32(n))).Convert(dtype.Int32)
	}
	if g.Intn(2) == 0 {
		i = i.Convert(dtype.Int64)
	}
	return i
}

func (g *progGen) load() kernel.Value {
	switch g.Intn(6) {
	case 0:
		return g.locals[g.Intn(len(g.locals))].Load(g.localIndex())
	case 1:
		return g.table.Load(g.any(dtype.Uint32).And(g.k.U32(7)).Convert(dtype.Int32))
	case 2:
		return g.params.Load(g.any(dtype.Uint32).And(g.k.U32(3)).Convert(dtype.Int32))
	case 3:
		w := 1 << g.Intn(3)
		vs := g.inputs[dtype.Float32].LoadVec(g.index(inputSize/8).Convert(dtype.Int32).Mul(g.k.I32(w)), w)
		return vs[g.Intn(w)]
	}
	t := g.typ()
	u := g.inputs[t]
	if g.Intn(3) == 0 {
		return u.Offset(g.id.Convert(dtype.Int64)).LoadAt(g.k.I32(g.Intn(9)), g.Intn(3))
	}
	return u.LoadAt(g.index(inputSize-8), g.Intn(8))
}

func (g *progGen) localIndex() kernel.Value {
	if g.Intn(2) == 0 {
		return g.k.I32(g.Intn(localSize))
	}
	return g.any(dtype.Uint32).And(g.k.U32(localSize - 1)).Convert(dtype.Int32)
}

// bits returns v's bits as Uint64, 0 for a NaN.
func (g *progGen) bits(v kernel.Value) kernel.Value {
	switch v.Type() {
	case dtype.Bool, dtype.Uint64:
		return v.Convert(dtype.Uint64)
	case dtype.Float32:
		return v.IsNaN().Select(g.k.U32(0), v.Bitcast(dtype.Uint32)).Convert(dtype.Uint64)
	case dtype.Float64:
		return v.IsNaN().Select(g.k.U64(0), v.Bitcast(dtype.Uint64))
	}
	return v.Convert(dtype.Uint64)
}

func (g *progGen) store() {
	n := int64(g.Intn(outSlots - 4))
	v := g.bits(g.any(g.typ()))
	if g.Intn(4) == 0 {
		n &^= 1
		g.out.StoreVec(g.slot.Add(g.k.I64(n)), v, g.bits(g.any(g.typ())))
		return
	}
	at := g.slot.Add(g.k.I64(n))
	if g.Intn(3) == 0 {
		at = g.slot.Add(g.any(dtype.Uint32).And(g.k.U32(31)).Convert(dtype.Int64))
	}
	g.out.Store(at, v)
}

// vector sends the elements of vector accesses through equal and different operations.
func (g *progGen) vector() {
	t := []dtype.DType{dtype.Float32, dtype.Float32, dtype.Int32, dtype.Uint16, dtype.Int64, dtype.Uint8, dtype.Float64}[g.Intn(7)]
	w := 1 << (1 + g.Intn(2))
	for w*t.Size() > 16 {
		w /= 2
	}
	load := func(t dtype.DType) []kernel.Value {
		return g.inputs[t].LoadVec(g.index(inputSize/8).Convert(dtype.Int32).Mul(g.k.I32(w)), w)
	}
	each := func(f func(j int) kernel.Value) []kernel.Value {
		out := make([]kernel.Value, w)
		for j := range out {
			out[j] = f(j)
		}
		return out
	}
	vs := load(t)
	for range g.Intn(8) {
		a, common := vs, g.any(t)
		b := each(func(int) kernel.Value { return common })
		if g.Intn(3) == 0 {
			b = load(t)
		}
		if g.Intn(4) == 0 { // new constants with equal values
			c := float64(g.Intn(5))
			b = each(func(int) kernel.Value { return g.k.Const(t, c) })
		}
		if g.Intn(9) == 0 {
			b[g.Intn(w)] = g.any(t)
		}
		cond := g.any(dtype.Bool)
		switch n := g.Intn(9); n {
		case 0:
			vs = each(func(j int) kernel.Value { return a[j].Lt(b[j]).Select(a[j], b[j]) })
		case 1:
			vs = each(func(j int) kernel.Value { return b[j].Sub(a[j]) })
		case 2:
			vs = each(func(j int) kernel.Value { return a[j].Mul(b[j]) })
		case 3:
			vs = each(func(j int) kernel.Value { return cond.Select(a[j], b[j]) })
		case 4:
			vs = each(func(j int) kernel.Value {
				return a[j].Convert(dtype.Float32).FMA(g.k.F32(2), b[j].Convert(dtype.Float32)).Convert(t)
			})
		case 5:
			vs = each(func(j int) kernel.Value { return a[j].Max(b[j]).Add(a[j]) })
		case 6:
			vs = each(func(j int) kernel.Value { return a[(j+1)%w].Add(b[j]) })
		case 7:
			g.keep(vs[g.Intn(w)])
		case 8:
			vs = each(func(j int) kernel.Value { return a[j].Div(b[j]).Min(a[j]) })
		}
	}
	if g.Intn(3) == 0 {
		g.keep(vs[g.Intn(w)])
	}
	bits := each(func(j int) kernel.Value { return g.bits(vs[j]).Convert(dtype.Uint32) })
	u := g.k.At(g.out.Addr(), dtype.Uint32)
	store := func() { u.StoreVec(g.slot.Mul(g.k.I64(2)).Add(g.k.I64(int64(4*g.Intn(outSlots/2)))), bits...) }
	if g.Intn(3) == 0 {
		g.k.If(g.any(dtype.Bool), store)
	} else {
		store()
	}
}

// accumulate updates one or two variables for every element of vector loads in a loop, as reductions do, with irregularities.
func (g *progGen) accumulate() {
	t := []dtype.DType{dtype.Float32, dtype.Int32, dtype.Float64, dtype.Int64, dtype.Uint16}[g.Intn(5)]
	w := 1 << (1 + g.Intn(2))
	for w*t.Size() > 16 {
		w /= 2
	}
	acc, low := make([]kernel.Var, w), make([]kernel.Var, w)
	zero := g.k.Const(t, 0)
	for j := range acc {
		acc[j] = g.k.Var(zero)
		low[j] = g.k.Var(zero)
		if g.Intn(6) == 0 {
			acc[j].Set(g.any(t))
		}
	}
	at := g.index(inputSize / 16).Convert(dtype.Int32)
	step := func(i kernel.Value) {
		vs := g.inputs[t].LoadVec(at.Add(i).Mul(g.k.I32(w)), w)
		odd := g.Intn(8)
		for j, v := range vs {
			if odd == 0 && j == w-1 {
				v = v.Add(v)
			}
			old := acc[j].Get()
			acc[j].Set(old.Add(v))
			if odd == 1 {
				acc[j].Set(acc[j].Get().Min(acc[(j+1)%w].Get()))
			}
			if odd != 2 {
				low[j].Set(low[j].Get().Min(old.Sub(v)))
			}
			if odd == 3 && j == 0 {
				acc[0].Set(acc[w-1].Get())
			}
		}
		if odd == 4 {
			g.k.If(g.any(dtype.Bool), func() { acc[g.Intn(w)].Set(zero) })
		}
		if odd == 5 {
			c := g.any(dtype.Bool)
			g.k.If(c, func() {
				for j, v := range vs {
					acc[j].Set(v.Max(acc[j].Get()))
				}
			})
		}
	}
	g.loops++
	end := g.k.I32(1 + g.Intn(5))
	if g.Intn(2) == 0 {
		end = g.any(dtype.Uint32).And(g.k.U32(3)).Convert(dtype.Int32)
	}
	g.k.For(g.k.I32(0), end, g.k.I32(1), func(i kernel.Value) { g.scope(func() { step(i) }) })
	g.loops--
	if g.Intn(2) == 0 { // a tail that is added to the first variable
		g.k.If(g.any(dtype.Bool), func() { acc[0].Set(acc[0].Get().Add(g.any(t))) })
	}
	sum := acc[0].Get()
	for j := 1; j < w; j++ {
		sum = sum.Add(acc[j].Get()).Max(low[j].Get())
	}
	g.keep(sum)
	g.out.Store(g.slot.Add(g.k.I64(int64(g.Intn(outSlots)))), g.bits(sum.Add(low[0].Get())))
}

func (g *progGen) stmt(depth int) {
	g.budget--
	if g.budget < 0 {
		return
	}
	switch n := g.Intn(30); {
	case n < 14 || depth > 4:
		g.op()
	case n < 16:
		i := g.Intn(len(g.vars))
		g.vars[i].Set(g.any(g.varTs[i]))
	case n < 19:
		g.keep(g.vars[g.Intn(len(g.vars))].Get())
	case n < 20:
		g.store()
	case n < 21 && g.Intn(2) == 0:
		g.vector()
	case n < 21:
		g.accumulate()
	case n < 22:
		a := g.locals[g.Intn(len(g.locals))]
		a.Store(g.localIndex(), g.any(dtype.Float32))
	case n < 25:
		g.k.IfElse(g.any(dtype.Bool), func() { g.block(depth) }, func() {
			if g.Intn(2) == 0 {
				g.block(depth)
			}
		})
	case n < 27 && g.loops < 3:
		g.forLoop(depth)
	case n < 28 && g.loops < 3:
		limit := g.any(dtype.Uint32).And(g.k.U32(7))
		c := g.k.Var(g.k.U32(0))
		g.loops++
		g.k.Loop(func() {
			g.k.If(c.Get().Ge(limit), func() { g.k.Break() })
			c.Set(c.Get().Add(g.k.U32(1)))
			g.scope(func() { g.stmts(depth + 1) })
		})
		g.loops--
	case n < 29 && g.loops > 0:
		g.k.If(g.any(dtype.Bool), func() {
			if g.Intn(2) == 0 {
				g.k.Break()
			} else {
				g.k.Continue()
			}
		})
	case n == 29 && depth > 0 && g.Intn(3) == 0:
		g.k.If(g.any(dtype.Bool).And(g.any(dtype.Bool)), func() { g.k.Return() })
	default:
		g.op()
	}
}

func (g *progGen) forLoop(depth int) {
	small := func() kernel.Value {
		switch g.Intn(4) {
		case 0:
			return g.any(dtype.Uint32).And(g.k.U32(7)).Convert(dtype.Int32)
		case 1:
			return g.id
		}
		return g.k.I32(g.Intn(6))
	}
	start := small()
	end := small()
	if g.Intn(2) == 0 {
		end = start.Add(g.k.I32(g.Intn(6)))
	}
	end = end.Min(start.Add(g.k.I32(9)))
	if g.Intn(2) == 0 { // grid-stride: affine start, uniform end
		start, end = g.id, g.k.I32(g.Intn(200))
	}
	step := g.k.I32(1 + g.Intn(3))
	if g.Intn(4) == 0 {
		step = g.any(dtype.Uint32).And(g.k.U32(3)).Add(g.k.U32(1)).Convert(dtype.Int32)
	}
	if start == g.id {
		step = step.Add(g.k.I32(50))
	}
	if g.Intn(3) == 0 {
		start, end, step = start.Convert(dtype.Int64), end.Convert(dtype.Int64), step.Convert(dtype.Int64)
	}
	g.loops++
	g.k.For(start, end, step, func(i kernel.Value) {
		g.scope(func() {
			g.keep(i)
			g.stmts(depth + 1)
		})
	})
	g.loops--
}

func (g *progGen) block(depth int) { g.scope(func() { g.stmts(depth + 1) }) }

func (g *progGen) stmts(depth int) {
	for range 1 + g.Intn(6) {
		g.stmt(depth)
	}
}

var inputTypes = []dtype.DType{dtype.Uint8, dtype.Int8, dtype.Uint16, dtype.Int16, dtype.Uint32, dtype.Int32, dtype.Uint64, dtype.Int64,
	dtype.Float32, dtype.Float64}

func randomProgram(seed int64) (*kir.Program, error) {
	g := &progGen{Rand: rand.New(rand.NewSource(seed)), pool: map[dtype.DType][]kernel.Value{}, inputs: map[dtype.DType]kernel.Buffer{},
		budget: 60}
	return kernel.Build(fmt.Sprintf("random%d", seed), func(k *kernel.Builder) {
		g.k = k
		for _, t := range inputTypes {
			g.inputs[t] = k.BufferRO("in_"+t.String(), t)
		}
		g.out = k.Buffer("out", dtype.Uint64)
		g.keep(k.Scalar("s32", dtype.Int32))
		g.keep(k.Scalar("su", dtype.Uint32))
		g.keep(k.Scalar("sf", dtype.Float32))
		g.params = k.Params("ps", dtype.Float32, 4)
		g.table = k.TableF32("tab", []float32{1, -2, 3.5, 4, 5, 1e10, -7, 0})
		bx := k.BlockIdx(kernel.Z).Mul(k.GridDim(kernel.Y)).Add(k.BlockIdx(kernel.Y)).Mul(k.GridDim(kernel.X)).Add(k.BlockIdx(kernel.X))
		tx := k.ThreadIdx(kernel.Z).Mul(k.BlockDim(kernel.Y)).Add(k.ThreadIdx(kernel.Y)).Mul(k.BlockDim(kernel.X)).
			Add(k.ThreadIdx(kernel.X))
		g.id = bx.Mul(k.BlockDim(kernel.X).Mul(k.BlockDim(kernel.Y)).Mul(k.BlockDim(kernel.Z))).Add(tx)
		g.slot = g.id.MulWide(k.I32(outSlots))
		g.keep(g.id)
		g.keep(k.ThreadIdx(kernel.X))
		g.keep(k.ThreadIdx(kernel.Y))
		g.keep(k.BlockIdx(kernel.X))
		g.keep(k.LaneID())
		g.keep(g.id.Convert(dtype.Uint32))
		for range 2 {
			a := k.Local(fmt.Sprint("loc", len(g.locals)), dtype.Float32, localSize)
			for j := range localSize {
				a.Store(k.I32(j), k.F32(float32(j)))
			}
			g.locals = append(g.locals, a)
		}
		for range 5 {
			t := g.typ()
			g.vars = append(g.vars, k.Var(g.any(t)))
			g.varTs = append(g.varTs, t)
		}
		body := func() {
			for range 30 {
				g.stmt(0)
			}
			for j, v := range g.vars {
				g.out.Store(g.slot.Add(k.I64(int64(outSlots-1-j))), g.bits(v.Get()))
			}
		}
		if g.Intn(2) == 0 {
			k.If(g.id.Lt(k.I32(3+g.Intn(900))), func() { g.scope(body) })
		} else {
			body()
		}
		g.out.Store(g.slot.Add(k.I64(outSlots-6)), g.bits(g.vars[0].Get()))
	}).Program()
}

var (
	seeds     = flag.Int64("seeds", 300, "random programs to try")
	firstSeed = flag.Int64("seed", 0, "seed of the first random program")
)

// TestRandomPrograms compares random programs with the naive interpreter, bit for bit.
func TestRandomPrograms(t *testing.T) {
	n, first := *seeds, *firstSeed
	if testing.Short() {
		n = min(n, 60)
	}
	for seed := first; seed < first+n; seed++ {
		if testing.Verbose() {
			t.Logf("seed %d", seed)
		}
		if !checkRandom(t, seed) {
			return
		}
	}
}

func checkRandom(t *testing.T, seed int64) bool {
	t.Helper()
	p, err := randomProgram(seed)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	k, err := Compile(p)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	r := rand.New(rand.NewSource(seed))
	shapes := [][2][3]uint32{{{3, 1, 1}, {64, 1, 1}}, {{5, 2, 1}, {33, 1, 1}}, {{2, 1, 2}, {5, 3, 2}}, {{9, 1, 1}, {8, 4, 1}},
		{{1, 1, 1}, {300, 1, 1}}, {{7, 1, 1}, {1, 1, 1}}, {{3, 1, 1}, {256, 1, 1}}}
	sh := shapes[r.Intn(len(shapes))]
	grid, block := sh[0], sh[1]
	threads := int(grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2])
	m := newFlat()
	var args []any
	for _, dt := range inputTypes {
		pool := samples(dt, r, 40)
		vs := make([]uint64, inputSize)
		for i := range vs {
			vs[i] = pool[r.Intn(len(pool))]
		}
		args = append(args, fillBits(m, dt, vs))
	}
	got, want := m.alloc(threads*outSlots*8), m.alloc(threads*outSlots*8)
	tail := []any{int32(r.Intn(50) - 10), uint32(r.Intn(20)), float32(1.75), float32(1), float32(2), float32(-3), float32(0.5)}
	all := func(out uint64) []byte { return pack(append(append(append([]any{}, args...), out), tail...)...) }
	env := &Env{Mem: m, Workers: 1 + r.Intn(2), Seed: uint64(r.Intn(3))}
	if err := k.Run(env, grid, block, 0, all(got)); err != nil {
		t.Errorf("seed %d: %v", seed, err)
		return false
	}
	interpret(p, m, grid, block, all(want))
	g, w := get[uint64](m, got), get[uint64](m, want)
	for i := range w {
		if g[i] != w[i] {
			t.Errorf("seed %d, grid %v, block %v: thread %d slot %d: got %#x, want %#x", seed, grid, block, i/outSlots,
				i%outSlots, g[i], w[i])
			return false
		}
	}
	return true
}
