package conformance

import "tenon.dev"

// Views, and copies by shape.

func init() {
	offer("chunk", func(x *tenon.Exec, a *args) any {
		return x.Chunk(a.tensor(0, "input"), a.int(1, "chunks", 0), a.int(2, "dim", 0))
	})
	offer("split", func(x *tenon.Exec, a *args) any {
		t, dim := a.tensor(0, "input"), a.int(2, "dim", 0)
		if _, list := a.get(1, "split_size").([]any); list {
			return x.SplitSizes(t, a.ints(1, "split_size"), dim)
		}
		return x.Split(t, a.int(1, "split_size", 0), dim)
	})
	offer("unbind", func(x *tenon.Exec, a *args) any { return x.Unbind(a.tensor(0, "input"), a.int(1, "dim", 0)) })
	offer("narrow", func(x *tenon.Exec, a *args) any {
		return x.Narrow(a.tensor(0, "input"), a.int(1, "dim", 0), a.item(x, 2, "start"), a.int(3, "length", 0))
	})
	offer("select", func(x *tenon.Exec, a *args) any {
		return x.Select(a.tensor(0, "input"), a.int(1, "dim", 0), a.int(2, "index", 0))
	})
	offer("slice", func(x *tenon.Exec, a *args) any {
		t := a.tensor(0, "input")
		dim := a.int(1, "dim", 0)
		return x.Slice(t, dim, a.int(2, "start", 0), a.int(3, "end", t.Size(dim)), a.int(4, "step", 1))
	})
	offer("view", func(x *tenon.Exec, a *args) any { return x.View(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("reshape", func(x *tenon.Exec, a *args) any { return x.Reshape(a.tensor(0, "input"), a.sizes(1, "shape")...) })
	unary("ravel", (*tenon.Exec).Ravel)
	offer("flatten", func(x *tenon.Exec, a *args) any {
		return x.Flatten(a.tensor(0, "input"), a.int(1, "start_dim", 0), a.int(2, "end_dim", -1))
	})
	offer("squeeze", func(x *tenon.Exec, a *args) any {
		t := a.tensor(0, "input")
		if !a.has(1, "dim") {
			return x.Squeeze(t)
		}
		if dims := a.ints(1, "dim"); len(dims) > 0 {
			return x.Squeeze(t, dims...)
		}
		return x.View(t, t.Shape()...)
	})
	offer("unsqueeze", func(x *tenon.Exec, a *args) any { return x.Unsqueeze(a.tensor(0, "input"), a.int(1, "dim", 0)) })
	offer("permute", func(x *tenon.Exec, a *args) any { return x.Permute(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("transpose", func(x *tenon.Exec, a *args) any {
		return x.Transpose(a.tensor(0, "input"), a.int(1, "dim0", 0), a.int(2, "dim1", 0))
	})
	unary("t", (*tenon.Exec).T)
	offer("movedim", func(x *tenon.Exec, a *args) any {
		return x.MoveDim(a.tensor(0, "input"), a.ints(1, "source"), a.ints(2, "destination"))
	})
	offer("expand", func(x *tenon.Exec, a *args) any { return x.Expand(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("expand_as", func(x *tenon.Exec, a *args) any { return x.ExpandAs(a.tensor(0, "input"), a.tensor(1, "other")) })
	offer("broadcast_to", func(x *tenon.Exec, a *args) any { return x.Expand(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("repeat", func(x *tenon.Exec, a *args) any { return x.Repeat(a.tensor(0, "input"), a.sizes(1, "repeats")...) })
	offer("tile", func(x *tenon.Exec, a *args) any { return x.Tile(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("as_strided", func(x *tenon.Exec, a *args) any {
		t, size, stride := a.tensor(0, "input"), a.ints(1, "size"), a.ints(2, "stride")
		if a.c.Variant != "partial_views" {
			return x.AsStrided(t, size, stride, a.int(3, "storage_offset", t.Offset()))
		}
		// The input was elements 5 to 14 of a storage of 20.
		return x.Within(func(x *tenon.Exec) *tenon.Tensor {
			rest := x.Zeros([]int{5}, t.DType())
			part := x.Narrow(x.Cat([]*tenon.Tensor{rest, t, rest}, 0), 0, 5, 10)
			return x.AsStrided(part, size, stride, a.int(3, "storage_offset", part.Offset()))
		})
	})
	offer("diagonal", func(x *tenon.Exec, a *args) any {
		return x.Diagonal(a.tensor(0, "input"), tenon.DiagonalOpt{Offset: a.int(1, "offset", 0),
			Dims: [2]int{a.int(2, "dim1", 0), a.int(3, "dim2", 1)}})
	})
	offer("contiguous", func(x *tenon.Exec, a *args) any {
		return a.inFormat(x, func(x *tenon.Exec) *tenon.Tensor { return x.Contiguous(a.tensor(0, "input")) })
	})
	offer("clone", func(x *tenon.Exec, a *args) any {
		return a.inFormat(x, func(x *tenon.Exec) *tenon.Tensor { return x.Clone(a.tensor(0, "input")) })
	})
	offer("flip", func(x *tenon.Exec, a *args) any { return x.Flip(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("roll", func(x *tenon.Exec, a *args) any {
		return x.Roll(a.tensor(0, "input"), a.ints(1, "shifts"), a.ints(2, "dims")...)
	})
	offer("tril", func(x *tenon.Exec, a *args) any { return x.Tril(a.tensor(0, "input"), a.int(1, "diagonal", 0)) })
	offer("triu", func(x *tenon.Exec, a *args) any { return x.Triu(a.tensor(0, "input"), a.int(1, "diagonal", 0)) })
	offer("cat", func(x *tenon.Exec, a *args) any { return x.Cat(a.tensors(0, "tensors"), a.int(1, "dim", 0)) })
	offer("stack", func(x *tenon.Exec, a *args) any { return x.Stack(a.tensors(0, "tensors"), a.int(1, "dim", 0)) })
	for name, dt := range map[string]tenon.DType{"float": tenon.Float32, "double": tenon.Float64, "half": tenon.Float16,
		"bfloat16": tenon.BFloat16,
		"long":     tenon.Int64, "int": tenon.Int32, "bool": tenon.Bool, "byte": tenon.Uint8} {
		offer(name, func(x *tenon.Exec, a *args) any {
			return a.inFormat(x, func(x *tenon.Exec) *tenon.Tensor { return x.ToDType(a.tensor(0, "input"), dt) })
		})
	}
	offer("constant_pad_nd", func(x *tenon.Exec, a *args) any {
		if a.isComplex(2, "value") {
			return x.PadC(a.tensor(0, "input"), a.ints(1, "pad"), a.complex(2, "value", 0))
		}
		return x.Pad(a.tensor(0, "input"), a.ints(1, "pad"), tenon.PadOpt{Value: a.float(2, "value", 0)})
	})
	offer("nn.functional.pad", func(x *tenon.Exec, a *args) any {
		return x.Pad(a.tensor(0, "input"), a.ints(1, "pad"), tenon.PadOpt{Mode: choice[tenon.PadMode](a, 2, "mode"),
			Value: a.float(3, "value",
				0)})
	})
}

// sizes returns a list of integers, which may also be the remaining positional arguments.
func (a *args) sizes(i int, name string) []int {
	if i < len(a.at) {
		if _, one := a.at[i].(int64); one {
			var out []int
			for ; i < len(a.at); i++ {
				out = append(out, a.int(i, name, 0))
			}
			return out
		}
	}
	return a.ints(i, name)
}

// item returns an integer, which may be given as a tensor of one element.
func (a *args) item(x *tenon.Exec, i int, name string) int {
	if !a.isTensor(i, name) {
		return a.int(i, name, 0)
	}
	v, err := x.Item(a.tensor(i, name))
	if err != nil {
		panic(err)
	}
	return int(v)
}

// inFormat returns f's result in the memory format that the call asks for.
func (a *args) inFormat(x *tenon.Exec, f func(x *tenon.Exec) *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		switch a.memoryFormat(-1, "memory_format") {
		case "channels_last":
			return x.ChannelsLast(f(x))
		case "contiguous_format":
			return x.Contiguous(f(x))
		}
		return f(x)
	})
}
