package conformance

import (
	"fmt"

	"tenon.dev"
	"tenon.dev/internal/recorded"
)

// load makes a tensor from a recorded one, with its strides: the elements lie in a storage that is just large enough.
func load(x *tenon.Exec, r *recorded.Tensor) *tenon.Tensor {
	if !r.DType.Valid() {
		panic(badCase{fmt.Sprintf("Tenon has no type %s", r.TypeName)})
	}
	x = x.NoGrad()
	if rowMajor(r) {
		return x.FromBytes(r.Data, r.DType, r.Shape...)
	}
	size, extent := r.DType.Size(), 1
	for i, n := range r.Shape {
		extent += (n - 1) * r.Strides[i]
	}
	if r.Elements() == 0 {
		extent = 0
	}
	data := make([]byte, extent*size)
	index := make([]int, len(r.Shape))
	for i := range r.Elements() {
		at := 0
		for d, n := range index {
			at += n * r.Strides[d]
		}
		copy(data[at*size:(at+1)*size], r.Data[i*size:])
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < r.Shape[d] {
				break
			}
			index[d] = 0
		}
	}
	return x.AsStrided(x.FromBytes(data, r.DType, extent), r.Shape, r.Strides, 0)
}

// loadAll loads a list; nil stays nil.
func loadAll(x *tenon.Exec, rs []*recorded.Tensor) []*tenon.Tensor {
	if rs == nil {
		return nil
	}
	out := make([]*tenon.Tensor, len(rs))
	for i, r := range rs {
		out[i] = load(x, r)
	}
	return out
}

func rowMajor(r *recorded.Tensor) bool {
	step := 1
	for i := len(r.Shape) - 1; i >= 0; i-- {
		if r.Strides[i] != step {
			return false
		}
		step *= max(r.Shape[i], 1)
	}
	return true
}

// store reads a tensor in recorded form; nil stays nil.
func store(x *tenon.Exec, t *tenon.Tensor) (*recorded.Tensor, error) {
	if t == nil {
		return nil, nil
	}
	b, err := x.Bytes(t)
	if err != nil {
		return nil, err
	}
	d := t.DType()
	return &recorded.Tensor{DType: d, TypeName: d.String(), Shape: t.Shape(), Strides: t.Stride(), Grad: t.RequiresGrad(), Data: b}, nil
}

// storeAll reads the result of a registry function.
func storeAll(x *tenon.Exec, v any) (recorded.Value, error) {
	switch v := v.(type) {
	case *tenon.Tensor:
		return store(x, v)
	case []*tenon.Tensor:
		out := make(recorded.List, len(v))
		for i, t := range v {
			r, err := store(x, t)
			if err != nil {
				return nil, err
			}
			out[i] = r
		}
		return out, nil
	}
	return v, nil
}
