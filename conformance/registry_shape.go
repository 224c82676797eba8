package conformance

import "tenon.dev"

// Views, and copies by shape.

func init() {
	offer("chunk", func(a *args) any { return a.x.Chunk(a.tensor(0, "input"), a.int(1, "chunks", 0), a.int(2, "dim", 0)) })
	offer("split", func(a *args) any {
		t, dim := a.tensor(0, "input"), a.int(2, "dim", 0)
		if _, list := a.get(1, "split_size").([]any); list {
			return a.x.SplitSizes(t, a.ints(1, "split_size"), dim)
		}
		return a.x.Split(t, a.int(1, "split_size", 0), dim)
	})
	offer("unbind", func(a *args) any { return a.x.Unbind(a.tensor(0, "input"), a.int(1, "dim", 0)) })
	offer("narrow", func(a *args) any {
		return a.x.Narrow(a.tensor(0, "input"), a.int(1, "dim", 0), a.item(2, "start"), a.int(3, "length", 0))
	})
	offer("select", func(a *args) any { return a.x.Select(a.tensor(0, "input"), a.int(1, "dim", 0), a.int(2, "index", 0)) })
	offer("slice", func(a *args) any {
		t := a.tensor(0, "input")
		dim := a.int(1, "dim", 0)
		return a.x.Slice(t, dim, a.int(2, "start", 0), a.int(3, "end", t.Size(dim)), a.int(4, "step", 1))
	})
	offer("view", func(a *args) any { return a.x.View(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("reshape", func(a *args) any { return a.x.Reshape(a.tensor(0, "input"), a.sizes(1, "shape")...) })
	unary("ravel", (*tenon.Exec).Ravel)
	offer("flatten", func(a *args) any {
		return a.x.Flatten(a.tensor(0, "input"), a.int(1, "start_dim", 0), a.int(2, "end_dim", -1))
	})
	offer("squeeze", func(a *args) any {
		t := a.tensor(0, "input")
		if !a.has(1, "dim") {
			return a.x.Squeeze(t)
		}
		if dims := a.ints(1, "dim"); len(dims) > 0 {
			return a.x.Squeeze(t, dims...)
		}
		return a.x.View(t, t.Shape()...)
	})
	offer("unsqueeze", func(a *args) any { return a.x.Unsqueeze(a.tensor(0, "input"), a.int(1, "dim", 0)) })
	offer("permute", func(a *args) any { return a.x.Permute(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("transpose", func(a *args) any {
		return a.x.Transpose(a.tensor(0, "input"), a.int(1, "dim0", 0), a.int(2, "dim1", 0))
	})
	unary("t", (*tenon.Exec).T)
	offer("movedim", func(a *args) any {
		return a.x.MoveDim(a.tensor(0, "input"), a.ints(1, "source"), a.ints(2, "destination"))
	})
	offer("expand", func(a *args) any { return a.x.Expand(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("expand_as", func(a *args) any { return a.x.ExpandAs(a.tensor(0, "input"), a.tensor(1, "other")) })
	offer("broadcast_to", func(a *args) any { return a.x.BroadcastTo(a.tensor(0, "input"), a.sizes(1, "size")...) })
	offer("repeat", func(a *args) any { return a.x.Repeat(a.tensor(0, "input"), a.sizes(1, "repeats")...) })
	offer("tile", func(a *args) any { return a.x.Tile(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("as_strided", func(a *args) any {
		t, size, stride := a.tensor(0, "input"), a.ints(1, "size"), a.ints(2, "stride")
		if a.c.Variant != "partial_views" {
			return a.x.AsStrided(t, size, stride, a.int(3, "storage_offset", t.Offset()))
		}
		// The input was elements 5 to 14 of a storage of 20.
		return tenon.Within(a.x, func(x *tenon.Exec) *tenon.Tensor {
			rest := x.Zeros([]int{5}, t.DType())
			part := x.Narrow(x.Cat([]*tenon.Tensor{rest, t, rest}, 0), 0, 5, 10)
			return x.AsStrided(part, size, stride, a.int(3, "storage_offset", part.Offset()))
		})
	})
	offer("diagonal", func(a *args) any {
		return a.x.Diagonal(a.tensor(0, "input"), a.int(1, "offset", 0), a.int(2, "dim1", 0), a.int(3, "dim2", 1))
	})
	offer("contiguous", func(a *args) any {
		return a.inFormat(func(x *tenon.Exec) *tenon.Tensor { return x.Contiguous(a.tensor(0, "input")) })
	})
	offer("clone", func(a *args) any {
		return a.inFormat(func(x *tenon.Exec) *tenon.Tensor { return x.Clone(a.tensor(0, "input")) })
	})
	offer("flip", func(a *args) any { return a.x.Flip(a.tensor(0, "input"), a.sizes(1, "dims")...) })
	offer("roll", func(a *args) any { return a.x.Roll(a.tensor(0, "input"), a.ints(1, "shifts"), a.ints(2, "dims")) })
	offer("tril", func(a *args) any { return a.x.Tril(a.tensor(0, "input"), a.int(1, "diagonal", 0)) })
	offer("triu", func(a *args) any { return a.x.Triu(a.tensor(0, "input"), a.int(1, "diagonal", 0)) })
	offer("cat", func(a *args) any { return a.x.Cat(a.tensors(0, "tensors"), a.int(1, "dim", 0)) })
	offer("stack", func(a *args) any { return a.x.Stack(a.tensors(0, "tensors"), a.int(1, "dim", 0)) })
	for name, dt := range map[string]tenon.DType{"float": tenon.Float32, "double": tenon.Float64, "half": tenon.Float16, "bfloat16": tenon.BFloat16,
		"long": tenon.Int64, "int": tenon.Int32, "bool": tenon.Bool, "byte": tenon.Uint8} {
		offer(name, func(a *args) any {
			return a.inFormat(func(x *tenon.Exec) *tenon.Tensor { return x.ToDType(a.tensor(0, "input"), dt) })
		})
	}
	offer("constant_pad_nd", func(a *args) any {
		if a.isComplex(2, "value") {
			return a.x.PadC(a.tensor(0, "input"), a.ints(1, "pad"), a.complex(2, "value", 0))
		}
		return a.x.Pad(a.tensor(0, "input"), a.ints(1, "pad"), tenon.PadOpt{Value: a.float(2, "value", 0)})
	})
	offer("nn.functional.pad", func(a *args) any {
		return a.x.Pad(a.tensor(0, "input"), a.ints(1, "pad"), tenon.PadOpt{Mode: a.str(2, "mode", ""), Value: a.float(3, "value", 0)})
	})
}

// sizes returns a list of whole numbers, which may also be the remaining positional arguments.
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

// item returns a whole number, for which a tensor of one may stand.
func (a *args) item(i int, name string) int {
	if !a.isTensor(i, name) {
		return a.int(i, name, 0)
	}
	v, err := a.x.Item(a.tensor(i, name))
	if err != nil {
		panic(err)
	}
	return int(v)
}

// inFormat returns f's result in the memory format that the call asks for.
func (a *args) inFormat(f func(x *tenon.Exec) *tenon.Tensor) *tenon.Tensor {
	return tenon.Within(a.x, func(x *tenon.Exec) *tenon.Tensor {
		switch a.memoryFormat(-1, "memory_format") {
		case "channels_last":
			return x.ChannelsLast(f(x))
		case "contiguous_format":
			return x.Contiguous(f(x))
		}
		return f(x)
	})
}
