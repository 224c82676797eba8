package nn

import (
	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// temporary reports whether t belongs to x's innermost scope.
func temporary(x *tenon.Exec, t *tenon.Tensor) bool {
	return core.Temporary((*core.Exec)(x), (*core.Tensor)(t))
}

// fail stops with an error of the module op.
func fail(op, format string, args ...any) { core.Fail(op, fault.Invalid, format, args...) }

// made returns m, the module or box whose method op was called, and refuses nil.
func made[T any](m *T, op string) *T {
	if m == nil {
		fail(op, "the %T is nil; use one that its New function returned", m)
	}
	return m
}

// moved returns t on x's device: t itself if it lies there, else a copy, which passes through the host. It is channels last if t is.
func moved(x *tenon.Exec, t *tenon.Tensor) *tenon.Tensor {
	if t.Device() == x.Device() {
		return t
	}
	b, err := x.Bytes(t)
	if err != nil {
		core.FailWith("To", err, t.String()+" could not be read")
	}
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		copied := x.FromBytes(b, t.DType(), t.Shape()...)
		if t.Dim() == 4 && !t.IsContiguous() {
			return x.ChannelsLast(copied)
		}
		return copied
	})
}
