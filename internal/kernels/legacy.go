package kernels

import (
	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// What families use whose launches and kernels still list their parameters apart.

func (l *Launch) i64(v int) { l.u64(uint64(v)) }
func (l *Launch) i32(v int) { l.u32(uint32(int32(v))) }

func scalarParam(k *kernel.Builder, name string, t dtype.DType) Num {
	return declareScalar(k, name, t)
}

func arrayParam(k *kernel.Builder, name string, t dtype.DType) array {
	return declareArray(k, name, t)
}

func (s *space) pack(l *Launch, dims, vec, index int, slots uint16) {
	params{l: l}.strider(&striderArg{host: s}, "", dims, vec, index, operandSet(slots))
}

func striderParam(k *kernel.Builder, name string, dims, slots, index int) *strider {
	var a striderArg
	params{k: k}.strider(&a, name, dims, 1, index, operandsFrom(0, slots))
	return a.strider
}

func (l *Launch) index(width, v int) {
	if width == 64 {
		l.i64(v)
	} else {
		l.i32(v)
	}
}
