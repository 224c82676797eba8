package core

import "tenon.dev/internal/kernels"

// Comparisons return bool and have no gradient.
var rowEq, rowNe, rowLt, rowLe, rowGt, rowGe *row

func init() {
	rowEq = define(row{Name: "Eq", takes: "a b#", Torch: "eq", point: kernels.Eq, rule: boolean})
	rowNe = define(row{Name: "Ne", takes: "a b#", Torch: "ne", point: kernels.Ne, rule: boolean})
	rowLt = define(row{Name: "Lt", takes: "a b#", Torch: "lt", point: kernels.Lt, rule: ordered})
	rowLe = define(row{Name: "Le", takes: "a b#", Torch: "le", point: kernels.Le, rule: ordered})
	rowGt = define(row{Name: "Gt", takes: "a b#", Torch: "gt", point: kernels.Gt, rule: ordered})
	rowGe = define(row{Name: "Ge", takes: "a b#", Torch: "ge", point: kernels.Ge, rule: ordered})
}

// Eq returns a == b, broadcast, as bool.
//
//tenon:into
func (x *Exec) Eq(a, b *Tensor) *Tensor { return x.op(rowEq, a, b).call1() }

// Ne returns a != b, broadcast, as bool; true where either is a NaN.
//
//tenon:into
func (x *Exec) Ne(a, b *Tensor) *Tensor { return x.op(rowNe, a, b).call1() }

// Lt returns a < b, broadcast, as bool.
//
//tenon:into
func (x *Exec) Lt(a, b *Tensor) *Tensor { return x.op(rowLt, a, b).call1() }

// Le returns a <= b, broadcast, as bool.
//
//tenon:into
func (x *Exec) Le(a, b *Tensor) *Tensor { return x.op(rowLe, a, b).call1() }

// Gt returns a > b, broadcast, as bool.
//
//tenon:into
func (x *Exec) Gt(a, b *Tensor) *Tensor { return x.op(rowGt, a, b).call1() }

// Ge returns a >= b, broadcast, as bool.
//
//tenon:into
func (x *Exec) Ge(a, b *Tensor) *Tensor { return x.op(rowGe, a, b).call1() }

// EqS returns a == v as bool.
//
//tenon:into
func (x *Exec) EqS(a *Tensor, v float64) *Tensor { return x.withScalar(rowEq, a, v).call1() }

// NeS returns a != v as bool; true where a is a NaN.
//
//tenon:into
func (x *Exec) NeS(a *Tensor, v float64) *Tensor { return x.withScalar(rowNe, a, v).call1() }

// LtS returns a < v as bool.
//
//tenon:into
func (x *Exec) LtS(a *Tensor, v float64) *Tensor { return x.withScalar(rowLt, a, v).call1() }

// LeS returns a <= v as bool.
//
//tenon:into
func (x *Exec) LeS(a *Tensor, v float64) *Tensor { return x.withScalar(rowLe, a, v).call1() }

// GtS returns a > v as bool.
//
//tenon:into
func (x *Exec) GtS(a *Tensor, v float64) *Tensor { return x.withScalar(rowGt, a, v).call1() }

// GeS returns a >= v as bool.
//
//tenon:into
func (x *Exec) GeS(a *Tensor, v float64) *Tensor { return x.withScalar(rowGe, a, v).call1() }
