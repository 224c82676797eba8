package kernels

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// everyArg has an argument of each kind, in an order that leaves gaps before 8-byte ones.
type everyArg struct {
	narrow, index, wide intArg
	i64, u64            intArg
	several             [4]intArg
	strides             [2]listArg[int]
	f64                 floatArg
	array               arrayArg
	buffer, readOnly    bufferArg
	single, pair, whole scalarArg
	operands            operandArgs
	scalars             scalarArgs
	numbers             floatsArg
	ints                listArg[int]
	int32s              listArg[int32]
	uint64s             listArg[uint64]
	divider             dividerArg
	near, far, many     striderArg
	philox              philoxArg
	tensor              mapArg
}

func (a *everyArg) layout(p params) {
	gap := func(i int) { p.i32(&a.narrow, p.number("gap", i)) }
	p.index(&a.index, "index")
	gap(0)
	p.wide(&a.wide, "wide")
	gap(1)
	p.i64(&a.i64, "i64")
	gap(2)
	p.u64(&a.u64, "u64")
	gap(3)
	p.f64(&a.f64, "f64")
	gap(4)
	p.array(&a.array, "array", dtype.Complex64)
	gap(5)
	p.buffer(&a.buffer, "buffer", dtype.Float16)
	gap(6)
	p.bufferRO(&a.readOnly, "read_only", dtype.Int8)
	p.scalar(&a.single, "single", dtype.Float32)
	p.scalar(&a.pair, "pair", dtype.Complex128)
	gap(7)
	p.scalar(&a.whole, "whole", dtype.Bool)
	gap(8)
	p.operands(&a.operands, 5)
	p.operand(&a.operands, 1, "one")
	p.scalarAt(&a.scalars, 0, "s0", dtype.Float32)
	p.scalarAt(&a.scalars, 1, "s1", dtype.Int64)
	gap(9)
	p.f64s(&a.numbers, "number", 2)
	gap(10)
	list(p, &a.ints, "ints", 3)
	list(p, &a.int32s, "int32s", 3)
	list(p, &a.uint64s, "uint64s", 2)
	p.divider(&a.divider, "magic", "shift")
	gap(11)
	p.strider(&a.near, "near", 4, 1, 32, 3)
	p.strider(&a.far, "far", 2, 1, 64, 2)
	p.strider(&a.many, "many", maxDims, 1, 32, 1)
	gap(12)
	p.philox(&a.philox, false)
	p.tensorMap(&a.tensor, "map", false)
	gap(13)
	p.i64s("long0 long1", &a.several[0], &a.several[1])
	gap(14)
	lists(p, a.strides[:], "stride", 3)
	p.i32s("short0 short1", &a.several[2], &a.several[3])
}

// TestParamsAgree packs and declares an argument of each kind: every value must be where the kernel looks for it.
func TestParamsAgree(t *testing.T) {
	for _, index := range []uint8{32, 64} {
		s := Spec{Outs: 2, Ins: 1, Index: index}
		for i := range 3 {
			s.DTypes[i] = dtype.Float32
		}
		sp := space{nd: 2, count: 2, size: [maxDims]int{7, 5}}
		sp.stride[0], sp.stride[1] = [maxDims]int{1, 70}, [maxDims]int{50, 1}
		var a everyArg
		a.narrow.host, a.index.host, a.wide.host, a.i64.host, a.u64.host, a.f64.host = -3, 17, -1<<40, 1<<41, 1<<42, 1.5
		a.array.host, a.buffer.host, a.readOnly.host = 0x1000, 0x2000, 0x3000
		a.single.host, a.pair.host, a.whole.host = Scalar{F: 2.5}, Scalar{F: 3.5, Im: 4.5}, Scalar{I: 1}
		a.operands.host = &[maxOperands]uint64{0x4000, 0x5000, 0x6000}
		a.scalars.host = []Scalar{{F: 5.5}, {I: 1 << 43}}
		a.numbers.host, a.ints.host, a.int32s.host, a.uint64s.host = []float64{6.5, 7.5}, []int{1 << 44, -1}, []int32{-9},
			[]uint64{1 << 45, 1 << 46}
		a.divider.host = 10
		for i := range a.several {
			a.several[i].host = -1 << (10 * i)
		}
		a.strides[0].host, a.strides[1].host = []int{1 << 48}, []int{1 << 49, 2, 3}
		a.near.host, a.far.host, a.many.host = &sp, &sp, &sp
		a.philox.give(&Philox{Seed: 1 << 47, Offset: 8})
		a.tensor.host = kir.TensorMap{Addr: 0x7000, Dims: [4]int{64, 64, 1, 1}, Strides: [3]int{128, 8192, 16},
			Tile: kir.MapTile{Type: dtype.Float16, Line: 64, Lines: 64}}
		l := &Launch{Spec: s}
		a.layout(packing(l))

		p, err := kernel.Build("every", func(k *kernel.Builder) {
			b := everyArg{operands: operandArgs{arrays: new([maxOperands]array)}, scalars: scalarArgs{nums: make([]Num, 2)}}
			b.layout(declaring(k, &s))
		}).Program()
		check(t, err)
		offsets, size := p.ArgLayout()
		if size != len(l.Args) {
			t.Fatalf("index %d: %d bytes are packed, the kernel has %d", index, len(l.Args), size)
		}
		d := newDivider(10)
		want := map[string]uint64{"index": 17, "wide": 1<<64 - 1<<40, "i64": 1 << 41, "u64": 1 << 42, "f64": math.Float64bits(1.5),
			"array": 0x1000, "buffer": 0x2000,
			"read_only": 0x3000, "single": uint64(math.Float32bits(2.5)), "pair": math.Float64bits(3.5), "pair_im": math.Float64bits(4.5),
			"whole": 1,
			"out0":  0x4000, "in0": 0x6000, "one": 0x5000, "s0": uint64(math.Float32bits(5.5)), "s1": 1 << 43,
			"number0": math.Float64bits(6.5),
			"number1": math.Float64bits(7.5), "ints": 1 << 44, "int32s": 1<<32 - 9, "uint64s": 1 << 45, "magic": uint64(d.magic),
			"shift":      uint64(d.shift),
			"near_sizes": 7, "near_strides": 1, "far_sizes": 7, "far_strides": 50, "many_dims": 2, "many_sizes": 7, "many_strides": 1,
			"seed": 1 << 47, "offset": 8, "map": 0x7000,
			"long0": 1<<64 - 1, "long1": 1<<64 - 1<<10, "short0": 1<<32 - 1<<20, "short1": 1<<32 - 1<<30, "stride0": 1 << 48,
			"stride1": 1 << 49}
		for i := range 15 {
			want[fmt.Sprintf("gap%d", i)] = 1<<32 - 3
		}
		for i := range p.Params {
			q := &p.Params[i]
			_, width := q.Bytes()
			at := l.Args[offsets[i]:]
			got := uint64(binary.LittleEndian.Uint32(at))
			if width >= 8 {
				got = binary.LittleEndian.Uint64(at)
			}
			if w, ok := want[q.Name]; !ok || got != w {
				t.Errorf("index %d: %s is %#x, want %#x (named in the test: %v)", index, q.Name, got, w, ok)
			}
			delete(want, q.Name)
		}
		if len(want) > 0 {
			t.Errorf("index %d: not declared: %v", index, want)
		}
	}
}

// comparer is an Issuer that compares each launch with its kernel.
type comparer struct {
	*planner
	t    *testing.T
	seen [familyCount]map[Spec]bool
}

func (y *comparer) Issue(l *Launch) error {
	if y.seen[l.Spec.Family] == nil {
		y.seen[l.Spec.Family] = map[Spec]bool{}
	}
	y.seen[l.Spec.Family][l.Spec] = true
	p, err := Build(&l.Spec).Program()
	if err != nil {
		y.t.Errorf("%+v: %v", l.Spec, err)
		return nil
	}
	offsets, size := p.ArgLayout()
	if size != len(l.Args) {
		y.t.Errorf("%s: %d bytes are packed, the kernel has %d", p.Name, len(l.Args), size)
		return nil
	}
	for i := range p.Params {
		if p.Params[i].Kind != kir.ParamBuffer {
			continue
		}
		// All memory of the test is at multiples of 512 between these; absent operands have no address.
		if at := binary.LittleEndian.Uint64(l.Args[offsets[i]:]); at != 0 && (at < 1<<20 || at >= 1<<40) {
			y.t.Errorf("%s: the address of %s is %#x", p.Name, p.Params[i].Name, at)
		}
	}
	return nil
}

func (y *comparer) Workspace(int) (uint64, error) { return 1 << 30, nil }

// layAttention launches attention.
func layAttention(t *testing.T, y *comparer, captured Philox, of func(dt dtype.DType, shape ...int) Operand) {
	h := dtype.Float16
	heads, rows, kept := of(h, 2, 4, 100, 64), of(dtype.Float32, 2, 4, 100), of(dtype.Uint32, 2, 4, 4, 128)
	for _, ph := range []Philox{{}, captured} {
		check(t, DropoutBits(y, 0.5, kept, 100, 100, ph))
	}
	for _, attend := range []AttentionOpt{{Scale: 1, Causal: true}, {Scale: 1, Mask: of(dtype.Bool, 2, 4, 100, 100)},
		{Scale: 1, Kept: kept}, {Scale: 1, Mask: of(h, 2, 4, 100, 100), Kept: kept}} {
		check(t, Attention(y, heads, rows, heads, heads, heads, attend))
		check(t, AttentionBackward(y, heads, heads, heads, heads, heads, rows, heads, heads, heads, attend))
	}
	keys, padding := of(h, 2, 4, 300, 64), AttentionOpt{Scale: 1, Mask: of(dtype.Bool, 2, 4, 100, 300)}
	padding.Mask.Stride = []int{300, 0, 0, 1}
	check(t, Attention(y, heads, rows, heads, keys, keys, padding))
	check(t, AttentionBackward(y, heads, keys, keys, heads, heads, rows, heads, keys, keys, padding))
	bias := AttentionOpt{Scale: 1, Mask: of(h, 2, 4, 100, 100), MaskGrad: of(h, 2, 4, 100, 104)}
	check(t, AttentionBackward(y, heads, heads, heads, heads, heads, rows, heads, heads, heads, bias))
}

// layGathered launches convolutions whose operand the copy engine gathers.
func layGathered(t *testing.T, y *comparer, of func(dt dtype.DType, shape ...int) Operand) {
	h := dtype.Float16
	c := &Conv{Batch: 2, In: 32, H: 40, W: 40, Out: 32, KH: 3, KW: 3, OH: 38, OW: 38, StrideH: 1, StrideW: 1, DilationH: 1,
		DilationW: 1, Groups: 1, LastX: true, LastW: true, LastY: true, Turn: TurnWherePossible}
	in, weight, out := of(h, 2, 32, 40, 40), of(h, 32, 32, 3, 3), of(h, 2, 32, 38, 38)
	check(t, ConvForward(y, c, out, in, weight, Operand{}))
	check(t, ConvWeight(y, c, weight, out, in))
	// In phases, with one part of the depth and with several.
	c = &Conv{Batch: 1, In: 64, H: 6, W: 6, Out: 512, KH: 3, KW: 3, OH: 3, OW: 3, StrideH: 2, StrideW: 2, PadH: 1, PadW: 1, DilationH: 1,
		DilationW: 1, Groups: 1, LastX: true, LastW: true, LastY: true, Turn: TurnWherePossible}
	check(t, ConvData(y, c, of(h, 1, 64, 6, 6), of(h, 512, 64, 3, 3), of(h, 1, 512, 3, 3)))
	c.Out = 32
	check(t, ConvData(y, c, of(h, 1, 64, 6, 6), of(h, 32, 64, 3, 3), of(h, 1, 32, 3, 3)))
	for _, family := range []Family{FamilyMatmul, FamilyMatmulFinish} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(y.seen[family])), func(s Spec) bool { return s.Product.Mapped == mapPhases }) {
			t.Errorf("no kernel of family %d computes phases", family)
		}
	}
}

// TestLayouts launches kernels of every family, each in variants with different parameters.
func TestLayouts(t *testing.T) {
	y := &comparer{planner: newPlanner(), t: t}
	f, h := dtype.Float32, dtype.Float16
	next := uint64(1 << 20)
	of := func(dt dtype.DType, shape ...int) Operand {
		next += 1 << 20
		return at(next, dt, shape...)
	}
	x, z, w, i64 := of(f, 64, 96), of(f, 64, 96), of(f, 96), of(dtype.Int64, 64, 96)
	captured := Philox{SeedPtr: 1 << 21, OffsetPtr: 1 << 22}
	for _, index := range []int{1<<31 - 1, 1000} {
		y.index32 = index
		check(t, Pointwise(y, Add, f, []Scalar{{}}, []Operand{x}, []Operand{z, {}}))
		check(t, Pointwise(y, Add, f, nil, []Operand{x}, []Operand{z, permuted(of(f, 96, 64), 1, 0)}))
		check(t, Pointwise(y, Copy, f, nil, []Operand{x}, []Operand{permuted(of(f, 96, 64), 1, 0)}))
		chain := Fuse([]dtype.DType{f, h}, []FusedStep{
			{Op: NanToNum, Compute: f, Ins: []FusedIn{{Value: 0}}, Outs: []FusedOut{{DType: f}}},
			{Op: Mul, Compute: f, Ins: []FusedIn{{Value: 1}, {Value: ScalarIn}}, Outs: []FusedOut{{DType: h}}},
			{Op: Gt, Compute: f, Ins: []FusedIn{{Value: 2}, {Value: 3}}, Outs: []FusedOut{{DType: dtype.Bool}}},
		}, []int{4, 2})
		check(t, Pointwise(y, chain, f, make([]Scalar, 4), []Operand{of(dtype.Bool, 64, 96), x},
			[]Operand{z, permuted(of(h, 96, 64), 1, 0)}))
		check(t, Reduce(y, VarMean, f, []Scalar{{}}, []Operand{of(f), of(f)}, []Operand{of(f, 1<<20)}, []bool{true}))
		check(t, Reduce(y, Sum, f, nil, []Operand{w}, []Operand{x}, []bool{true, false}))
		check(t, LayerNorm(y, f, x, of(f, 64), of(f, 64), z, w, Operand{}, 1e-5))
		check(t, Softmax(y, true, f, x, z, 0))
		image, places := of(f, 2, 4, 8, 8), of(dtype.Int64, 2, 4, 4, 4)
		check(t, MaxPool(y, &Pool{KH: 2, KW: 2, StrideH: 2, StrideW: 2, DilationH: 1, DilationW: 1}, of(f, 2, 4, 4, 4), places, image))
		check(t, AdaptiveAvgPool(y, of(f, 2, 4, 4, 4), image))
		grown := &Resample{Step: [3]float64{0.5, 0.5}}
		check(t, grown.Forward(y, of(f, 2, 4, 16, 16), image))
		check(t, grown.Backward(y, image, of(f, 2, 4, 16, 16)))
		src := Indexed{Operand: Operand{Ptr: z.Ptr, DType: f, Shape: []int{64, 96}, Stride: []int{0, 1}}, Step: 96, Size: 64}
		check(t, Gather(y, x, i64, src))
		check(t, ScatterAdd(y, src, i64, x, 0))
		rows := Operand{Ptr: i64.Ptr, DType: dtype.Int64, Shape: []int{512, 96}, Stride: []int{1, 0}}
		check(t, ScatterAdd(y, src, rows, of(f, 512, 96), 0))
		check(t, ScatterMultiply(y, src, of(dtype.Int64, 512, 96), of(f, 512, 96), 0))
		for _, ph := range []Philox{{}, captured} {
			check(t, Random(y, RandomNormal, make([]Scalar, 2), x, ph))
			check(t, Random(y, RandomInt64, make([]Scalar, 2), permuted(i64, 1, 0), ph))
			check(t, Dropout(y, f, 0.5, x, of(dtype.Bool, 64, 96), z, ph))
			check(t, Dropout(y, f, 0.5, x, of(dtype.Bool, 64, 96), permuted(of(f, 96, 64), 1, 0), ph))
			check(t, Bernoulli(y, x, z, ph))
			m := Multinomial{Rows: 2, N: 1 << 14, Samples: 4, P: of(f, 2, 1<<14), Out: of(dtype.Int64, 2, 4)}
			check(t, m.Draw(y, ph))
			check(t, m.Greatest(y))
		}
		c := Compaction{Mask: permuted(of(f, 96, 64), 1, 0), Starts: of(dtype.Int64, CompactStarts(64*96))}
		check(t, c.Count(y))
		check(t, c.Places(y, of(dtype.Int64, 100, 2)))
		check(t, c.Take(y, of(f, 100), x))
		check(t, c.Spread(y, x, z, of(f, 100)))
		check(t, (&Compaction{Mask: w, Starts: c.Starts}).Ranks(y, of(dtype.Int64, 96), of(dtype.Int64, 96)))
		check(t, RunningSums(y, of(dtype.Int64, 64*96), permuted(of(dtype.Int32, 96, 64), 1, 0)))
		check(t, RepeatIndex(y, of(dtype.Int64, 100), of(dtype.Int64, 96)))
		check(t, FlatIndex(y, of(dtype.Int64, 96), i64, make([]int, 3)))
		check(t, FlatIndex(y, Operand{}, i64, nil))
		check(t, (&Unique{X: w, Order: of(dtype.Int64, 96), Heads: of(dtype.Bool, 96)}).Sort(y))
	}
	y.index32 = 1<<31 - 1
	for _, p := range []NLL{{N: 64, C: 96, S: 1, X: x, Target: of(dtype.Int64, 64)},
		{N: 1 << 20, C: 2, S: 1, X: x, LSE: z, Target: i64, Weight: w}} {
		check(t, p.Each(y, of(f, p.N)))
		check(t, p.Sum(y, true, of(f), of(f)))
	}
	check(t, Assert(y, of(f), ClaimNonzero))
	flags := []uint64{1 << 23}
	check(t, UpdateScale(y, of(dtype.Float64, RowLen), of(f), flags, 2, 0.5, 100))
	table := Rows{Ptr: 1 << 24, Which: []int32{0, 1}, Flag: 1 << 25}
	for _, op := range StepOps() {
		check(t, Advance(y, op, make([]float64, op.Numbers), table, of(f), of(f)))
		check(t, Advance(y, op, make([]float64, op.Numbers), table, Operand{}, Operand{}))
	}
	check(t, MultiReduce(y, NormP, f, []Scalar{FloatScalar(3)}, of(f, 2), []Operand{of(f, 5), of(f, 40000)}))
	check(t, MultiTensor(y, Unscale, f, table, [][]Operand{{x}, {z}}, [][]Operand{{x}, {z}}))
	for _, c := range []struct {
		m, n, k int
		t       dtype.DType
		tf32    bool
	}{{8192, 8192, 512, h, false}, {8192, 8192, 512, f, true}, {2048, 2048, 512, f, false}, {40, 24, 8192, f, false},
		{2, 24, 64, h, false}, {40, 24, 40, dtype.Float64, false}} {
		for _, bias := range []Operand{{}, of(c.t, c.m, c.n)} {
			y.limits = Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 227 << 10, Major: 9}
			check(t, Matmul(y, of(c.t, c.m, c.n), of(c.t, c.m, c.k), of(c.t, c.k, c.n), MatmulOpt{Alpha: 2, Bias: bias, TF32: c.tf32}))
		}
	}
	conv := &Conv{Batch: 2, In: 8, H: 40, W: 40, Out: 8, KH: 3, KW: 3, OH: 38, OW: 38, StrideH: 1, StrideW: 1, DilationH: 1,
		DilationW: 1, Groups: 1}
	in, weight, out := of(f, 2, 8, 40, 40), of(f, 8, 8, 3, 3), of(f, 2, 8, 38, 38)
	for _, turn := range []ConvTurn{TurnNever, TurnWherePossible} {
		conv.Turn = turn
		check(t, ConvForward(y, conv, out, in, weight, of(f, 8)))
		check(t, ConvData(y, conv, in, weight, out))
		check(t, ConvWeight(y, conv, weight, out, in))
	}
	each := &Conv{Batch: 2, In: 8, H: 40, W: 40, Out: 8, KH: 3, KW: 3, OH: 38, OW: 38, StrideH: 1, StrideW: 1, DilationH: 1,
		DilationW: 1, Groups: 8}
	weight = of(f, 8, 1, 3, 3)
	check(t, ConvForward(y, each, out, in, weight, of(f, 8)))
	check(t, ConvData(y, each, in, weight, out))
	check(t, ConvWeight(y, each, weight, out, in))
	layGathered(t, y, of)
	layAttention(t, y, captured, of)
	for family := FamilyPointwise; family < familyCount; family++ {
		if len(y.seen[family]) == 0 {
			t.Errorf("no kernel of family %d was launched", family)
		}
	}
}

// TestSpecHasNoGaps: with gaps a lookup would hash a Spec in pieces, which makes each launch slower. It also checks that all fields are
// part of a kernel's name.
func TestSpecHasNoGaps(t *testing.T) {
	var size func(ty reflect.Type) uintptr
	size = func(ty reflect.Type) uintptr {
		if ty.Kind() != reflect.Struct {
			return ty.Size()
		}
		sum := uintptr(0)
		for i := range ty.NumField() {
			sum += size(ty.Field(i).Type)
		}
		return sum
	}
	ty := reflect.TypeFor[Spec]()
	for i := range ty.NumField() {
		if f := ty.Field(i); size(f.Type) != f.Type.Size() {
			t.Errorf("%s has gaps; order its fields by size", f.Name)
		}
	}
	if size(ty) != ty.Size() {
		t.Errorf("the fields of a Spec have %d bytes, but it has %d; let those of even size that hold uint16 stand last",
			size(ty), ty.Size())
	}
	var names []string
	var set func(s *Spec, v reflect.Value)
	set = func(s *Spec, v reflect.Value) {
		for i := range v.NumField() {
			f := v.Field(i)
			switch f.Kind() {
			case reflect.Struct:
				set(s, f)
				continue
			case reflect.Bool:
				f.SetBool(true)
			default:
				f.SetUint(3)
			}
			names = append(names, s.name("k"))
			f.SetZero()
		}
	}
	s := &Spec{Compute: dtype.Float32}
	if back := (&Spec{Compute: dtype.Float32, Back: 1}); back.name("k") == s.name("k") {
		t.Error("Back is not part of the name")
	}
	v := reflect.ValueOf(s).Elem()
	for i := specCommon; i < v.NumField(); i++ {
		n := len(names)
		set(s, v.Field(i))
		if got := slices.Compact(slices.Sorted(slices.Values(names[n:]))); len(got) != len(names)-n || slices.Contains(got, s.name("k")) {
			t.Errorf("%s: two fields have one name, or one has none: %v", ty.Field(i).Name, names[n:])
		}
	}
	if got := ty.Field(specCommon - 1).Name; got != "Back" {
		t.Errorf("the last field that all families have is %s", got)
	}
}
