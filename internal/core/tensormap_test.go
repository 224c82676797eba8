package core

import (
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// mappedForm is a variant of mappedProduct. aTurned and turned say that a or b is transposed in memory, tf32 rounds float32 operands for
// the matrix units, and plain maps serve exact products. mapped says that sm_90 copies the tiles through the maps.
type mappedForm struct {
	name                  string
	dt                    dtype.DType
	aTurned, turned, tf32 bool
	plain, mapped         bool
	groups                bool // groups of two matrices
}

var mappedForms = []mappedForm{
	{name: "bf16", dt: dtype.BFloat16, mapped: true},
	{name: "bf16_turned", dt: dtype.BFloat16, turned: true, mapped: true},
	{name: "f16", dt: dtype.Float16, mapped: true},
	{name: "tf32", dt: dtype.Float32, tf32: true, mapped: true},
	{name: "tf32_turned", dt: dtype.Float32, tf32: true, turned: true, mapped: true},
	{name: "f32", dt: dtype.Float32, plain: true},
	{name: "f32_a_turned", dt: dtype.Float32, aTurned: true, plain: true, mapped: true},
	{name: "f32_other_map", dt: dtype.Float32, aTurned: true},
	{name: "bf16_groups", dt: dtype.BFloat16, mapped: true, groups: true},
	{name: "f32_a_turned_groups", dt: dtype.Float32, aTurned: true, plain: true, mapped: true, groups: true},
	{name: "tf32_other_map", dt: dtype.Float32, tf32: true, turned: true, plain: true},
}

// mappedProduct computes c[z] = a[z] x b[z] in float32, in blocks of 64 x 64, whose tiles are loaded through tensor maps.
func mappedProduct(f mappedForm) *kernel.Kernel {
	const size, depth = 64, 32
	dt, turned := f.dt, f.turned
	width := 16 / dt.Size()
	return kernel.Build("mapped_"+f.name, func(k *kernel.Builder) {
		k.FixedThreads(128)
		declare := k.TensorMap
		if f.plain {
			declare = k.PlainTensorMap
		}
		am, bm := declare("am"), declare("bm")
		a, b, c := k.BufferRO("a", dt), k.BufferRO("b", dt), k.Buffer("c", dtype.Float32)
		rows, columns, inner := k.Scalar("rows", dtype.Int32), k.Scalar("columns", dtype.Int32), k.Scalar("inner", dtype.Int32)
		left, right, sum := k.Tile("left", dt, size, depth), k.Tile("right", dt, depth, size), k.Tile("sum", dtype.Float32, size, size)
		row0, column0, z := k.BlockIdx(kernel.Y).Mul(k.I32(size)), k.BlockIdx(kernel.X).Mul(k.I32(size)), k.BlockIdx(kernel.Z)
		matrix := z
		if f.groups {
			group := z.Div(k.I32(2))
			matrix = z.Rem(k.I32(2))
			am, bm = am.Group(group), bm.Group(group)
		}
		at := func(line, place, lines, length kernel.Value) kernel.Value {
			return z.Mul(lines).Add(line).MulWide(length).Add(place.Convert(dtype.Int64))
		}
		sum.Zero()
		k.Pipelined(3, k.I32(0), inner, k.I32(depth), func(i kernel.Value) {
			along, across, groups := i, row0, kernel.AlongCols
			if f.aTurned {
				along, across, groups = row0, i, kernel.AlongRows
			}
			left.LoadMapped(am, along, across, matrix, groups, width, func(r, d kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
				row, d := row0.Add(r), i.Add(d)
				inside := row.Lt(rows).And(d.Lt(inner))
				if f.aTurned {
					return a, at(d, row, inner, rows), inside
				}
				return a, at(row, d, rows, inner), inside
			})
			along, across, groups = column0, i, kernel.AlongCols
			if turned {
				along, across, groups = i, column0, kernel.AlongRows
			}
			right.LoadMapped(bm, along, across, matrix, groups, width,
				func(d, col kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
					d, column := i.Add(d), column0.Add(col)
					inside := d.Lt(inner).And(column.Lt(columns))
					if turned {
						return b, at(column, d, columns, inner), inside
					}
					return b, at(d, column, inner, columns), inside
				})
			sum.Dot(left, right, f.tf32)
		})
		sum.Each(1, func(r, col kernel.Value, v []kernel.Value) {
			row, column := row0.Add(r), column0.Add(col)
			k.If(row.Lt(rows).And(column.Lt(columns)), func() { c.Store(at(row, column, rows, columns), v[0]) })
		})
	})
}

// TestTensorMaps loads tiles through tensor maps in a user's kernel. Operands are small integers, so that every device gives the same
// result.
func TestTensorMaps(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, form := range mappedForms {
			k, dt, turned := mappedProduct(form), form.dt, form.turned
			p, err := k.Program()
			if err != nil {
				t.Fatal(err)
			}
			text, err := ptx.Compile([]*kir.Program{p}, ptx.Target{Major: 9, Arch: true})
			if err != nil || strings.Contains(string(text), "cp.async.bulk.tensor") != form.mapped {
				t.Errorf("%s: copied by tensor maps: %v, %v", form.name, !form.mapped, err)
			}
			for _, c := range []struct{ matrices, rows, columns, inner int }{{0, 104, 72, 40}, {3, 72, 128, 96},
				{6, 72, 64, 96}, {1, 8, 8, 8}} {
				if form.groups != (c.matrices == 6) {
					continue
				}
				n := max(c.matrices, 1)
				filled := func(lines, length int) *Tensor {
					v := x.ToDType(x.RandInt(9, []int{n, lines, length}, dtype.Int32, RandIntOpt{Low: -8}), dt)
					if c.matrices == 0 {
						v = x.Reshape(v, lines, length)
					}
					return v
				}
				a, b := filled(c.rows, c.inner), filled(c.inner, c.columns)
				want := x.MatMul(x.ToDType(a, dtype.Float32), x.ToDType(b, dtype.Float32))
				if form.aTurned {
					a = x.Contiguous(x.Transpose(a, -2, -1))
				}
				if turned {
					b = x.Contiguous(x.Transpose(b, -2, -1))
				}
				got := x.Full(want.Shape(), -1, dtype.Float32)
				grid := LaunchShape{Grid: [3]int{(c.columns + 63) / 64, (c.rows + 63) / 64, n}, Block: [3]int{128}}
				am, bm := a, b
				if form.groups {
					am, bm = x.View(a, 3, 2, a.shape[1], a.shape[2]), x.View(b, 3, 2, b.shape[1], b.shape[2])
				}
				x.Launch(k, grid, Mapped(am), Mapped(bm), In(a), In(b), Out(got),
					Integer(int64(c.rows)), Integer(int64(c.columns)), Integer(int64(c.inner)))
				if d := floats(t, x, x.Max(x.Abs(x.Sub(got, want)))); d[0] != 0 {
					t.Errorf("%s %+v: the product differs by %v", form.name, c, d[0])
				}
			}
		}
	})
}

// TestProductsOfHeads checks that products of heads that are views of one tensor equal those of their copies, whichever operand is
// transposed.
func TestProductsOfHeads(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32} {
			for _, c := range []struct{ length, width int }{{128, 64}, {72, 32}, {200, 128}} {
				all := x.ToDType(x.RandInt(5, []int{2, c.length, 3 * 2 * c.width}, dtype.Int32, RandIntOpt{Low: -4}), dt)
				parts := x.Split(all, 2*c.width, 2)
				for i, p := range parts {
					parts[i] = x.Transpose(x.View(p, 2, c.length, 2, c.width), 1, 2)
				}
				q, k, v := parts[0], parts[1], parts[2]
				same := func(what string, a, b *Tensor) {
					t.Helper()
					copied := x.MatMul(x.Clone(x.Contiguous(a)), x.Contiguous(b))
					if got := x.MatMul(a, b); !slices.Equal(floats(t, x, x.ToDType(got, dtype.Float32)),
						floats(t, x, x.ToDType(copied, dtype.Float32))) {
						t.Errorf("%v %+v: %s is not the product of copies", dt, c, what)
					}
				}
				same("q·k", q, x.Transpose(k, -2, -1))
				w := x.ToDType(x.RandInt(5, []int{2, 2, c.length, c.length}, dtype.Int32, RandIntOpt{Low: -4}), dt)
				same("w·v", w, v)
				same("turned w·q", x.Transpose(w, -2, -1), q)
				same("q turned by v", x.Transpose(q, -2, -1), v)
			}
		}
	})
}

// TestBiasBetween checks that a bias that is not aligned is loaded in smaller pieces.
func TestBiasBetween(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float32} {
			in, w := x.ToDType(x.RandInt(5, []int{64, 32}, dtype.Int32, RandIntOpt{Low: -4}), dt),
				x.ToDType(x.RandInt(5, []int{64, 32}, dtype.Int32, RandIntOpt{Low: -4}), dt)
			all := x.ToDType(x.RandInt(10, []int{80}, dtype.Int32, RandIntOpt{Low: -9}), dt)
			plain := x.MatMul(in, x.Transpose(w, 0, 1))
			for _, from := range []int{0, 1, 2, 4, 8} {
				bias := x.Narrow(all, 0, from, 64)
				got, want := floats(t, x, x.ToDType(x.Linear(in, w, bias), dtype.Float32)),
					floats(t, x, x.ToDType(x.Add(plain, bias), dtype.Float32))
				if !slices.Equal(got, want) {
					t.Errorf("%v: a bias that begins at %d is not added as it is", dt, from)
				}
			}
		}
	})
}

func TestTensorMapRefusals(t *testing.T) {
	build := func(name string, dt dtype.DType, groups ...bool) *kernel.Kernel {
		return kernel.Build(name, func(k *kernel.Builder) {
			k.FixedThreads(32)
			m, b, tile := k.TensorMap("m"), k.BufferRO("b", dt), k.Tile("tile", dt, 16, 16)
			if len(groups) > 0 {
				m = m.Group(k.I32(0))
			}
			tile.LoadMapped(m, k.I32(0), k.I32(0), k.I32(0), kernel.AlongCols, 1,
				func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) {
					return b, k.I64(0), k.Bool(false)
				})
		})
	}
	half, bytes := build("half", dtype.Float16), build("bytes", dtype.Int8)
	grouped := build("grouped", dtype.Float16, true)
	pixels := kernel.Build("pixels", func(k *kernel.Builder) {
		k.FixedThreads(32)
		m, b, tile, zero := k.TensorMap("m"), k.BufferRO("b", dtype.Float16), k.Tile("tile", dtype.Float16, 16, 16), k.I32(0)
		patches := []kernel.Patch{{Channel: zero, Col: zero, Row: zero}}
		tile.LoadPixels(m, kernel.Pixels{Col: zero, Row: zero, Image: zero, Patches: patches}, kernel.AlongCols, 1,
			func(r, c kernel.Value) (kernel.Buffer, kernel.Value, kernel.Value) { return b, k.I64(0), k.Bool(false) })
	})
	unused := kernel.Build("unused", func(k *kernel.Builder) { k.TensorMap("m") })
	opened(t, func(t *testing.T, x *Exec) {
		a := x.Zeros([]int{16, 16}, dtype.Float16)
		b, i := x.Zeros([]int{16, 16}, dtype.Float32), x.Zeros([]int{16, 16}, dtype.Int8)
		shape := LaunchShape{Grid: [3]int{1}, Block: [3]int{32}}
		placed :=
			"the elements of the last dimension must be adjacent, and its lines and matrices begin at multiples of 16 bytes: give a copy"
		for _, c := range []struct {
			name, want string
			k          *kernel.Kernel
			args       []Arg
		}{
			{"not mapped", "parameter m of kernel half is a tensor map; give it a tensor with Mapped", half, []Arg{In(a), In(a)}},
			{"number", "parameter m of kernel half is a tensor map; give it a tensor with Mapped", half, []Arg{Integer(1), In(a)}},
			{"nil", "argument 0 of kernel half is a nil tensor; give it one", half, []Arg{Mapped(nil), In(a)}},
			{"buffer", "parameter b of kernel half is not a tensor map, but Mapped was given", half, []Arg{Mapped(a), Mapped(a)}},
			{"type", "tensor map m of kernel half loads tiles of float16, but a tensor of float32 was given", half,
				[]Arg{Mapped(b), In(a)}},
			{"integers", "loads tiles of int8, but a tensor of int8 was given; give one of the same type, which float16, bfloat16 and " +
				"float32 can be", bytes, []Arg{Mapped(i), In(i)}},
			{"vector", "was given a tensor of shape [256]; give a matrix, or an array of matrices", half,
				[]Arg{Mapped(x.Reshape(a, 256)), In(a)}},
			{"deep", "was given a tensor of shape [2 2 4 16]", half, []Arg{Mapped(x.Reshape(a, 2, 2, 4, 16)), In(a)}},
			{"no groups",
				"kernel grouped was given a tensor of shape [16 16]; it loads from groups of matrices: give a tensor of 4 dimensions",
				grouped, []Arg{Mapped(a), In(a)}},
			{"empty", "was given a tensor of shape [0 16]", half, []Arg{Mapped(x.Narrow(a, 0, 0, 0)), In(a)}},
			{"turned", placed, half, []Arg{Mapped(x.Transpose(a, 0, 1)), In(a)}},
			{"expanded", placed, half, []Arg{Mapped(x.Expand(x.Narrow(a, 0, 0, 1), 4, 16)), In(a)}},
			{"begins between", placed, half, []Arg{Mapped(x.Narrow(a, 1, 1, 8)), In(a)}},
			{"lines begin between", placed + " of it whose last dimension is padded to a multiple of 8", half,
				[]Arg{Mapped(x.Zeros([]int{4, 12}, dtype.Float16)), In(a)}},
		} {
			t.Run(c.name, func(t *testing.T) {
				wantError(t, Try(func() { x.Launch(c.k, shape, c.args...) }), fault.Invalid, c.want, "tensormap_test.go")
			})
		}
		wantError(t, Try(func() { x.Launch(pixels, shape, Mapped(a), In(a)) }), fault.Unsupported,
			"tensor map m of kernel pixels loads pixels, which kernels of programs cannot do; load matrices", "tensormap_test.go")
		x.Launch(half, shape, Mapped(x.Narrow(a, 0, 3, 1)), In(a))
		x.Launch(half, shape, Mapped(x.Narrow(a, 1, 8, 1)), In(a))
		x.Launch(unused, shape, Mapped(b))
	})
}
