package tenontest

import (
	"fmt"
	"math"
	"math/cmplx"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// Tolerance is the largest difference of two numbers that counts as close: |got - want| ≤ Absolute + Relative·|want|. If both are left out,
// they are PyTorch's defaults for the type: 1e-5 and 1e-3 for float16, 1e-5 and 1.6e-2 for bfloat16, 1e-5 and 1.3e-6 for float32 and
// complex64, 1e-7 and 1e-7 for float64 and complex128, and 0 for others. If one is given, the default of the other is 0. A negative,
// infinite or NaN tolerance fails the test.
type Tolerance struct {
	Absolute, Relative tenon.Scalar
	// EqualNaN treats two NaN as equal.
	EqualNaN bool
}

// AssertClose fails the test unless got has the type and shape of want, and all its numbers are close to want's. The message says how
// many are not, and which one is furthest away. The test continues. Both tensors may lie on any device; AssertClose waits for them.
func AssertClose(t testing.TB, x *tenon.Exec, got, want *tenon.Tensor, tol ...Tolerance) {
	t.Helper()
	var limit Tolerance
	if len(tol) > 1 {
		t.Fatalf("a tolerance is given %d times; give one", len(tol))
	} else if len(tol) == 1 {
		limit = tol[0]
	}
	var text string
	if err := tenon.Try(func() { text = compare(x, got, want, limit) }); err != nil {
		t.Fatal(err)
	}
	if text != "" {
		t.Error(text)
	}
}

// AssertEqual is AssertClose without a tolerance: all numbers must be the same, and NaN equals NaN.
func AssertEqual(t testing.TB, x *tenon.Exec, got, want *tenon.Tensor) {
	t.Helper()
	AssertClose(t, x, got, want, Tolerance{Absolute: 0, EqualNaN: true})
}

// defaults are PyTorch's.
var defaults = map[tenon.DType]limits{
	tenon.Float16: {absolute: 1e-5, relative: 1e-3}, tenon.BFloat16: {absolute: 1e-5, relative: 1.6e-2},
	tenon.Float32: {absolute: 1e-5, relative: 1.3e-6}, tenon.Complex64: {absolute: 1e-5, relative: 1.3e-6},
	tenon.Float64: {absolute: 1e-7, relative: 1e-7}, tenon.Complex128: {absolute: 1e-7, relative: 1e-7},
}

// limits is a Tolerance for numbers of one type.
type limits struct {
	absolute, relative float64
	equalNaN           bool
}

// of returns the limits for numbers of a type.
func (tol Tolerance) of(dt tenon.DType) limits {
	l := defaults[dt]
	if tol.Absolute != nil || tol.Relative != nil {
		l.absolute = bound("Absolute", tol.Absolute)
		l.relative = bound("Relative", tol.Relative)
	}
	l.equalNaN = tol.EqualNaN
	return l
}

// bound returns a tolerance, or 0 if there is none. One with which nothing is close, or everything, is a mistake.
func bound(name string, v tenon.Scalar) float64 {
	b := core.Or("AssertClose", name, v, 0)
	if !(b >= 0) || math.IsInf(b, 1) {
		core.Check("AssertClose", fault.New(fault.Invalid, "%s is %v; give a finite number that is not negative", name, b))
	}
	return b
}

// compare says how got differs from want, or returns "".
func compare(x *tenon.Exec, got, want *tenon.Tensor, tol Tolerance) string {
	dt, shape := want.DType(), want.Shape()
	if got.DType() != dt || !slices.Equal(got.Shape(), shape) {
		return fmt.Sprintf("got %v%v, want %v%v", got.DType(), got.Shape(), dt, shape)
	}
	limit := tol.of(dt)
	g, w := elements(x, got), elements(x, want)
	wrong, worst, furthest := 0, 0, -1.
	size := dt.Size()
	for i := range want.Numel() {
		far, ok := limit.apart(dt, g[i*size:][:size], w[i*size:][:size])
		if ok {
			continue
		}
		wrong++
		if far > furthest {
			worst, furthest = i, far
		}
	}
	if wrong == 0 {
		return ""
	}
	const text = "%d of %d numbers are not close; the furthest is at %v: got %v, want %v, the tolerance is %g and %g of the wanted number"
	return fmt.Sprintf(text, wrong, want.Numel(), place(worst, shape), number(dt, g[worst*size:]), number(dt, w[worst*size:]),
		limit.absolute, limit.relative)
}

// apart returns the distance of two elements, and whether it is within the tolerance.
func (l limits) apart(dt tenon.DType, got, want []byte) (far float64, ok bool) {
	if !dt.IsFloat() && !dt.IsComplex() && slices.Equal(got, want) { // integers may have more digits than float64
		return 0, true
	}
	g, w := value(dt, got), value(dt, want)
	switch far = cmplx.Abs(g - w); {
	case g == w:
		return 0, dt.IsFloat() || dt.IsComplex() || l.absolute >= 1 // integers with the same bits were handled above
	case cmplx.IsNaN(g) && cmplx.IsNaN(w):
		return math.Inf(1), l.equalNaN
	case cmplx.IsNaN(g) || cmplx.IsNaN(w) || cmplx.IsInf(g) || cmplx.IsInf(w):
		return math.Inf(1), false
	}
	return far, far <= l.absolute+l.relative*cmplx.Abs(w)
}

// value returns an element as a complex number.
func value(dt tenon.DType, b []byte) complex128 {
	switch dt {
	case tenon.Complex64:
		return complex(dtype.Float64At(dtype.Float32, b, 0), dtype.Float64At(dtype.Float32, b, 1))
	case tenon.Complex128:
		return complex(dtype.Float64At(dtype.Float64, b, 0), dtype.Float64At(dtype.Float64, b, 1))
	}
	return complex(dtype.Float64At(dt, b, 0), 0)
}

// number returns an element as it is printed.
func number(dt tenon.DType, b []byte) any {
	if v := value(dt, b); dt.IsComplex() {
		return v
	} else {
		return real(v)
	}
}

func elements(x *tenon.Exec, t *tenon.Tensor) []byte {
	if t.Device() != x.Device() {
		x = x.Host()
	}
	b, err := x.Bytes(t)
	if err != nil {
		panic(err)
	}
	return b
}

// place returns the index of element i of a tensor.
func place(i int, shape []int) []int {
	at := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d], i = i%shape[d], i/shape[d]
	}
	return at
}
