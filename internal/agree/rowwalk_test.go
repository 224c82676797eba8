package agree

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// A rowWalk is a kernel that performs attention's operations on tiles in registers, on small integers, so that the result is exact. Over
// tiles of step rows of b it computes s = a bᵀ - bias[column], adds 1 in odd rows and parts of row and column if the tile's number is
// even, tracks the maximum s of each row and the sum of all s, and sums up s b. The results are that sum plus the row's maximum s, the
// maximum s, and the sum. If twice is true, the sum of all s also has the products with the first tile, and the other sum has (a bᵀ) b
// too: then a tile is changed while products of others are running. With biasRows, maps read the biases from rows: with 1 from one that
// the loop loads before its tile of b, with 2 from one that it loads afterwards, and from one with the first step biases, loaded before
// the loop, which count again in each tile.
type rowWalk struct {
	in                         kir.Type
	rows, step, width, threads int
	stages                     int
	twice                      bool
	biasRows                   int
}

func (q rowWalk) name() string {
	return fmt.Sprintf("walk_%s_%dx%dx%d_%d_%d_%v_%d", q.in.Short(), q.rows, q.step, q.width, q.threads, q.stages, q.twice,
		q.biasRows)
}

// build returns the kernel; its parameters are a [rows, width], b [count, width], bias [count], out, top, total and count.
func (q rowWalk) build() (*kir.Program, error) {
	f := dtype.Float32
	return kernel.Build(q.name(), func(k *kernel.Builder) {
		k.FixedThreads(q.threads)
		a, b, bias := k.BufferRO("a", q.in), k.BufferRO("b", q.in), k.BufferRO("bias", f)
		out, top, total := k.Buffer("out", f), k.Buffer("top", f), k.Buffer("total", f)
		count := k.Scalar("count", dtype.Int32)
		ta, tb := k.Tile("a", q.in, q.rows, q.width), k.Tile("b", q.in, q.step, q.width)
		s, held, sum := k.Tile("s", f, q.rows, q.step), k.Tile("held", q.in, q.rows, q.step), k.Tile("sum", f, q.rows, q.width)
		most, all := k.Tile("most", f, q.rows, 1), k.Tile("all", f, q.rows, 1)
		place := func(r, c kernel.Value) kernel.Value { return r.Mul(k.I32(q.width)).Add(c).Convert(dtype.Int64) }
		ta.Load(kernel.AlongCols, 8, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
			return a, place(r, c), r.Ge(k.I32(0))
		})
		sum.Zero()
		all.Zero()
		most.Zero()
		most.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Like(-1e6) })
		var row, fixed kernel.Tile
		loadRow := func(t kernel.Tile, first kernel.Value) {
			t.Load(kernel.AlongCols, 1, func(_, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				at := first.Add(c)
				return bias, at.Convert(dtype.Int64), at.Lt(count)
			})
		}
		if q.biasRows > 0 {
			row = k.Tile("row", f, 1, q.step)
		}
		if q.biasRows == 2 {
			fixed = k.Tile("fixed", f, 1, q.step)
			loadRow(fixed, k.I32(0))
		}
		var raw, heldRaw kernel.Tile
		if q.twice {
			first := k.Tile("first", q.in, q.step, q.width)
			raw, heldRaw = k.Tile("raw", f, q.rows, q.step), k.Tile("heldRaw", q.in, q.rows, q.step)
			first.Load(kernel.AlongCols, 8, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				return b, place(r, c), r.Lt(count)
			})
			s.Zero()
			s.DotTransposed(ta, first)
			all.AddRows(s)
		}
		k.Pipelined(q.stages, k.I32(0), count, k.I32(q.step), func(j kernel.Value) {
			if q.biasRows == 1 {
				loadRow(row, j)
			}
			tb.Load(kernel.AlongCols, 8, func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				return b, place(j.Add(r), c), j.Add(r).Lt(count)
			})
			if q.biasRows == 2 {
				loadRow(row, j)
			}
			s.Zero()
			s.DotTransposed(ta, tb)
			if q.twice {
				raw.Zero()
				raw.DotTransposed(ta, tb)
			}
			switch q.biasRows {
			case 0:
				s.Map(func(_, c, v kernel.Value, _ []kernel.Value) kernel.Value {
					return v.Sub(bias.Load(j.Add(c).Min(count.Sub(k.I32(1))).Convert(dtype.Int64)))
				})
			case 1:
				s.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Sub(o[0]) }, row)
			default:
				s.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Sub(o[0]).Sub(o[1]) }, row, fixed)
			}
			odd := k.I32(1)
			k.If(j.Div(k.I32(q.step)).And(k.I32(1)).Eq(k.I32(0)), func() {
				s.Map(func(r, c, v kernel.Value, _ []kernel.Value) kernel.Value {
					v = r.And(k.I32(1)).Eq(k.I32(1)).Select(v.Add(v.Like(1)), v)
					bits := c.And(k.I32(25)).Sub(c.And(k.I32(6))).Add(c.And(odd)).Sub(r.And(k.I32(23))).Add(r.And(k.I32(8)))
					return v.Add(c.Shr(k.I32(3)).Add(c.Shr(k.I32(5))).Sub(r.Shr(k.I32(4))).Add(bits).Convert(f))
				})
			})
			k.If(j.Add(k.I32(q.step)).Gt(count), func() { // beyond the end of b
				s.Map(func(_, c, v kernel.Value, _ []kernel.Value) kernel.Value {
					return j.Add(c).Lt(count).Select(v, v.Like(0))
				})
			})
			most.MaxRows(s)
			all.AddRows(s)
			held.Round(s)
			sum.Dot(held, tb, false)
			if q.twice {
				raw.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Neg() })
				raw.Map(func(_, _, v kernel.Value, _ []kernel.Value) kernel.Value { return v.Neg() })
				heldRaw.Round(raw)
				sum.Dot(heldRaw, tb, false)
			}
		})
		sum.Map(func(_, _, v kernel.Value, o []kernel.Value) kernel.Value { return v.Add(o[0]) }, most)
		sum.Each(4, func(r, c kernel.Value, vs []kernel.Value) { out.StoreVec(place(r, c), vs...) })
		most.Each(1, func(r, _ kernel.Value, vs []kernel.Value) { top.Store(r.Convert(dtype.Int64), vs[0]) })
		all.Each(1, func(r, _ kernel.Value, vs []kernel.Value) { total.Store(r.Convert(dtype.Int64), vs[0]) })
	}).Program()
}

// launch makes a case and the expected results.
func (q rowWalk) launch(t testing.TB, rng *rand.Rand, count int) (c kernelCase, want [3][]byte) {
	t.Helper()
	p, err := q.build()
	if err != nil {
		t.Fatal(err)
	}
	small := func(ty kir.Type, n, span int) (numbers []int, b []byte) {
		for range n {
			x := rng.IntN(2*span+1) - span
			numbers, b = append(numbers, x), put(b, ty, integer(ty, x))
		}
		return numbers, b
	}
	as, a := small(q.in, q.rows*q.width, 1)
	bs, b := small(q.in, count*q.width, 1)
	biases, bias := small(dtype.Float32, count, 3)
	f := dtype.Float32
	for r := range q.rows {
		most, all, sums := -1000000, 0, make([]int, q.width)
		for j := range (count + q.step - 1) / q.step * q.step {
			if j >= count {
				most = max(most, 0)
				continue
			}
			raw := 0
			for e := range q.width {
				raw += as[r*q.width+e] * bs[j*q.width+e]
			}
			s, more := raw-biases[j], 0
			if q.biasRows == 2 {
				s -= biases[j%q.step]
			}
			if q.twice {
				more = raw
			}
			if j < q.step {
				all += more
			}
			if c := j % q.step; j/q.step%2 == 0 {
				s += r%2 + c>>3 + c>>5 - r>>4 + c&25 - c&6 + c&1 - r&23 + r&8
			}
			most, all = max(most, s), all+s
			for e := range sums {
				sums[e] += (s + more) * bs[j*q.width+e]
			}
		}
		for _, s := range sums {
			want[0] = put(want[0], f, integer(f, s+most))
		}
		want[1], want[2] = put(want[1], f, integer(f, most)), put(want[2], f, integer(f, all))
	}
	return kernelCase{prog: p, grid: 1, block: q.threads, args: []argument{buffer(q.in, a), buffer(q.in, b), buffer(f, bias),
		zeros(f, q.rows*q.width), zeros(f, q.rows), zeros(f, q.rows), scalar(dtype.Int32, uint64(count))}}, want
}

func rowWalks() (all []rowWalk) {
	for _, in := range []kir.Type{dtype.BFloat16, dtype.Float16} {
		for _, s := range [][5]int{
			{64, 64, 64, 128, 3}, {128, 64, 128, 256, 3}, {128, 32, 32, 128, 3}, {64, 16, 16, 128, 2},
			{32, 64, 64, 64, 3}, {16, 16, 32, 32, 2}, {64, 32, 64, 128, 1},
		} {
			for form := range 6 {
				all = append(all, rowWalk{in, s[0], s[1], s[2], s[3], s[4], form%2 == 1, form / 2})
			}
		}
	}
	return all
}

func testRowWalks(t *testing.T, m *machine) {
	rng := rand.New(rand.NewPCG(13, 15))
	for _, q := range rowWalks() {
		for i, count := range []int{300, 64, 1} {
			c, want := q.launch(t, rng, count)
			if i == 0 {
				m.load(t, []*kir.Program{c.prog})
			}
			got, err := m.run(c)
			if err != nil {
				t.Fatalf("%s %d: %v", q.name(), count, err)
			}
			for j, name := range []string{"out", "top", "total"} {
				if text := differ(dtype.Float32, want[j], got[3+j]); text != "" {
					t.Errorf("%s %d: %s: %s", q.name(), count, name, text)
				}
			}
		}
	}
}

// TestRowWalks checks that operations on tiles in registers give the same results with wgmma, with mma and on the simulator.
func TestRowWalksOnGPU(t *testing.T) { testRowWalks(t, openGPU(t)) }
func TestPortableRowWalksOnGPU(t *testing.T) {
	m := openGPU(t)
	m.portable = true
	testRowWalks(t, m)
}
func TestRowWalksOnSimulator(t *testing.T) { testRowWalks(t, openSim(t)) }

// TestAttentionAssembles assembles the kernels of attention without masks and dropout for devices with and without wgmma. None may spill
// more than 40 bytes.
func TestAttentionAssembles(t *testing.T) {
	as := assembler(t)
	used, spill := regexp.MustCompile(`Used .*`), regexp.MustCompile(`([4-9]\d|\d{3,}) bytes spill`)
	for _, causal := range []bool{false, true} {
		for i, s := range kernels.AttentionSpecs(dtype.BFloat16, causal) {
			p, err := kernels.Build(&s).Program()
			if err != nil {
				t.Fatal(err)
			}
			if !*longFlag && (i%2 == 0) == causal {
				continue
			}
			for _, target := range withArch(as, ptx.Target{Major: 8}) {
				text, err := ptx.Compile([]*kir.Program{p}, target)
				if err != nil {
					t.Fatal(err)
				}
				said := assemble(t, as, target, text)
				t.Logf("%s %v: %s", p.Name, target, used.FindString(said))
				if x := spill.FindString(said); x != "" {
					t.Errorf("%s %v: %s", p.Name, target, x)
				}
			}
		}
	}
}
