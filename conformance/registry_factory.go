package conformance

import "tenon.dev"

// Factories.

// dtypeOr returns the requested type, or def.
func (a *args) dtypeOr(def tenon.DType) tenon.DType {
	if dt := a.dtype(-1, "dtype"); dt != 0 {
		return dt
	}
	return def
}

// numberType returns the default type of factories from numbers.
func numberType(v any) tenon.DType {
	switch v.(type) {
	case int64:
		return tenon.Int64
	case bool:
		return tenon.Bool
	case complex128:
		return tenon.Complex64
	}
	return tenon.Float32
}

// bound returns a number that may be a 0-d tensor.
func (a *args) bound(x *tenon.Exec, i int, name string) complex128 {
	if !a.isTensor(i, name) {
		return a.complex(i, name, 0)
	}
	r, err := store(x, a.tensor(i, name))
	if err != nil {
		panic(err)
	}
	return r.Complex(0)
}

func init() {
	offer("full", func(x *tenon.Exec, a *args) any {
		return x.FullC(a.ints(0, "size"), a.complex(1, "fill_value", 0), a.dtypeOr(numberType(a.get(1, "fill_value"))))
	})
	offer("zeros", func(x *tenon.Exec, a *args) any { return x.Zeros(a.sizes(0, "size"), a.dtypeOr(tenon.Float32)) })
	offer("ones", func(x *tenon.Exec, a *args) any { return x.Ones(a.sizes(0, "size"), a.dtypeOr(tenon.Float32)) })
	offer("full_like", func(x *tenon.Exec, a *args) any {
		return x.FullLikeC(a.tensor(0, "input"), a.complex(1, "fill_value", 0), tenon.LikeOpt{DType: a.dtypeOr(0)})
	})
	offer("zeros_like", func(x *tenon.Exec, a *args) any {
		return x.ZerosLike(a.tensor(0, "input"), tenon.LikeOpt{DType: a.dtypeOr(0)})
	})
	offer("ones_like", func(x *tenon.Exec, a *args) any {
		return x.OnesLike(a.tensor(0, "input"), tenon.LikeOpt{DType: a.dtypeOr(0)})
	})
	offer("empty_like", func(x *tenon.Exec, a *args) any {
		return x.EmptyLike(a.tensor(0, "input"), tenon.LikeOpt{DType: a.dtypeOr(0)})
	})
	offer("arange", func(x *tenon.Exec, a *args) any {
		var v []any
		if a.has(0, "input") {
			v = append(v, a.at...)
		}
		for _, name := range []string{"start", "end", "step"} {
			if k := a.get(-1, name); k != nil {
				v = append(v, k)
			}
		}
		dt := tenon.Int64
		n := []float64{}
		for _, e := range v {
			if numberType(e) != tenon.Int64 {
				dt = tenon.Float32
			}
			switch e := e.(type) {
			case int64:
				n = append(n, float64(e))
			case float64:
				n = append(n, e)
			default:
				a.wrong("end", e)
			}
		}
		dt = a.dtypeOr(dt)
		switch len(n) {
		case 1:
			return x.Arange(n[0], dt)
		case 2:
			return x.Arange(n[1], dt, tenon.ArangeOpt{Start: n[0]})
		}
		return x.Arange(n[1], dt, tenon.ArangeOpt{Start: n[0], Step: n[2]})
	})
	offer("linspace", func(x *tenon.Exec, a *args) any {
		return x.LinspaceC(a.bound(x, 0, "start"), a.bound(x, 1, "end"), a.int(2, "steps", 0), a.dtypeOr(tenon.Float32))
	})
	offer("eye", func(x *tenon.Exec, a *args) any {
		n := a.int(0, "n", 0)
		return x.Eye(n, a.dtypeOr(tenon.Float32), tenon.EyeOpt{Columns: new(a.int(1, "m", n))})
	})
}
