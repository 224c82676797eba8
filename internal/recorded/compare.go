package recorded

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"reflect"
	"slices"
	"sort"
	"strings"

	"tenon.dev/dtype"
)

// Tolerance is how far a value may be from the recorded one: Abs plus Rel times the recorded value's magnitude.
type Tolerance struct {
	// Rel is a ratio; Abs has the unit of the values.
	Rel, Abs float64
}

// tolerances are the defaults of torch.testing.assert_close ("float16 … 1e-3, 1e-5", and so on, in its documentation). Types that are not
// in the table must be equal. No op has its own wider bound.
var tolerances = map[dtype.DType]Tolerance{
	dtype.Float16:    {1e-3, 1e-5},
	dtype.BFloat16:   {1.6e-2, 1e-5},
	dtype.Float32:    {1.3e-6, 1e-5},
	dtype.Float64:    {1e-7, 1e-7},
	dtype.Complex64:  {1.3e-6, 1e-5},
	dtype.Complex128: {1e-7, 1e-7},
}

// ToleranceOf returns the bounds for a type; zero for integers and bool.
func ToleranceOf(d dtype.DType) Tolerance { return tolerances[d] }

// within reports whether got is close enough to want: equal, both NaN (for a complex number, both with a NaN part), or within the bounds.
func (t Tolerance) within(got, want complex128) bool {
	if got == want || cmplx.Abs(got-want) <= t.allowed(want) {
		return true
	}
	nan := func(c complex128) bool { return real(c) != real(c) || imag(c) != imag(c) }
	return nan(got) && nan(want)
}

// allowed returns the largest allowed difference from want; 0 if want is not finite.
func (t Tolerance) allowed(want complex128) float64 {
	if a := cmplx.Abs(want); a <= math.MaxFloat64 {
		return t.Abs + t.Rel*a
	}
	return 0
}

// StrideRule says how strides are compared.
type StrideRule uint8

const (
	// ExactStrides requires every stride to equal the recorded one.
	ExactStrides StrideRule = iota
	// SignificantStrides compares only strides that an address depends on: those of dimensions longer than 1 in a tensor with elements.
	SignificantStrides
	// AnyStrides compares none.
	AnyStrides
)

// Rule says what is compared besides dtype and shape. The zero value compares everything.
type Rule struct {
	// SkipValues skips the values, for results that are uninitialised or random.
	SkipValues bool
	// Strides says which strides count.
	Strides StrideRule
}

// Mismatch is the error of a comparison that fails.
type Mismatch struct {
	// Path leads to the part that differs, such as "out[1]"; What is "kind", "length", "dtype", "shape", "strides" or "value".
	Path, What string
	// Got and Want are the two as text. For values they are those at Index, where the difference exceeds its bound most.
	Got, Want string
	Index     []int
	// Wrong of Total elements differ by more than the bounds.
	Wrong, Total int
	// AbsDiff and RelDiff are the worst element's difference, absolute and relative to the recorded magnitude; Bound is the tolerance.
	AbsDiff, RelDiff float64
	Bound            Tolerance
}

// Error returns one sentence with everything known.
func (m *Mismatch) Error() string {
	if m.What != "value" {
		return fmt.Sprintf("%s: %s is %s, want %s", m.Path, m.What, m.Got, m.Want)
	}
	s := fmt.Sprintf("%s: got %s, want %s", m.Path, m.Got, m.Want)
	if m.Total > 0 {
		s = fmt.Sprintf("%s: %d of %d elements differ; the worst at %v: got %s, want %s", m.Path, m.Wrong, m.Total, m.Index, m.Got, m.Want)
	}
	if m.AbsDiff != 0 {
		s += fmt.Sprintf(" (difference %.3g, relative %.3g; allowed %.3g + %.3g relative)", m.AbsDiff, m.RelDiff, m.Bound.Abs, m.Bound.Rel)
	}
	return s
}

// Compare compares a result with the recorded one by the rule. It descends into lists and dictionaries; path names the whole in messages.
// The error is nil, or one or more joined *Mismatch: dtype, shape and strides of a tensor are reported together.
func Compare(path string, got, want Value, rule Rule) error {
	got, want = untyped(got), untyped(want)
	switch w := want.(type) {
	case *Tensor:
		if g, ok := got.(*Tensor); ok {
			return compareTensors(path, g, w, rule)
		}
	case List:
		if g, ok := got.(List); ok {
			if len(g) != len(w) {
				return differ(path, "length", len(g), len(w))
			}
			var errs []error
			for i := range w {
				errs = append(errs, Compare(fmt.Sprintf("%s[%d]", path, i), g[i], w[i], rule))
			}
			return errors.Join(errs...)
		}
	case Dict:
		if g, ok := got.(Dict); ok {
			if a, b := keys(g), keys(w); !slices.Equal(a, b) {
				return differ(path, "keys", a, b)
			}
			var errs []error
			for _, k := range keys(w) {
				errs = append(errs, Compare(path+"."+k, g[k], w[k], rule))
			}
			return errors.Join(errs...)
		}
	case float64:
		if g, ok := got.(float64); ok {
			return compareScalars(path, complex(g, 0), complex(w, 0), g, w, ToleranceOf(dtype.Float64), rule)
		}
	case complex128:
		if g, ok := got.(complex128); ok {
			return compareScalars(path, g, w, g, w, ToleranceOf(dtype.Complex128), rule)
		}
	default:
		if reflect.TypeOf(got) == reflect.TypeOf(want) {
			if got != want && !rule.SkipValues {
				return &Mismatch{Path: path, What: "value", Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
			}
			return nil
		}
	}
	return differ(path, "kind", kind(got), kind(want))
}

// untyped turns a nil *Tensor into nil.
func untyped(v Value) Value {
	if t, ok := v.(*Tensor); ok && t == nil {
		return nil
	}
	return v
}

func differ(path, what string, got, want any) error {
	return &Mismatch{Path: path, What: what, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
}

func keys(d Dict) []string {
	var out []string
	for k := range d {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// kind describes the kind of a value, for messages.
func kind(v Value) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case *Tensor:
		return "a tensor " + v.String()
	case List:
		return fmt.Sprintf("a list of %d", len(v))
	}
	return strings.TrimPrefix(fmt.Sprintf("%T %v", v, v), "recorded.")
}

func compareScalars(path string, g, w complex128, got, want any, tol Tolerance, rule Rule) error {
	if rule.SkipValues || tol.within(g, w) {
		return nil
	}
	d := cmplx.Abs(g - w)
	return &Mismatch{Path: path, What: "value", Got: fmt.Sprint(got), Want: fmt.Sprint(want), AbsDiff: d,
		RelDiff: d / cmplx.Abs(w), Bound: tol}
}

func compareTensors(path string, got, want *Tensor, rule Rule) error {
	var errs []error
	if got.TypeName != want.TypeName {
		errs = append(errs, differ(path, "dtype", got.TypeName, want.TypeName))
	}
	if !slices.Equal(got.Shape, want.Shape) {
		errs = append(errs, differ(path, "shape", got.Shape, want.Shape))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if !sameStrides(got, want, rule.Strides) {
		errs = append(errs, differ(path, "strides", fmt.Sprintf("%v for shape %v", got.Strides, got.Shape), want.Strides))
	}
	if !rule.SkipValues {
		if len(got.Data) != len(want.Data) {
			errs = append(errs, differ(path, "length of the data", len(got.Data), len(want.Data)))
		} else if m := worst(path, got, want); m != nil {
			errs = append(errs, m)
		}
	}
	return errors.Join(errs...)
}

func sameStrides(got, want *Tensor, rule StrideRule) bool {
	switch rule {
	case AnyStrides:
		return true
	case ExactStrides:
		return slices.Equal(got.Strides, want.Strides)
	}
	if len(got.Strides) != len(want.Strides) {
		return false
	}
	for i, n := range want.Shape {
		if n > 1 && want.Elements() > 0 && got.Strides[i] != want.Strides[i] {
			return false
		}
	}
	return true
}

// worst compares element by element and returns the mismatch of the element that is furthest beyond its bound, or nil.
func worst(path string, got, want *Tensor) *Mismatch {
	if bytes.Equal(got.Data, want.Data) {
		return nil
	}
	total := want.Elements()
	if !want.DType.Valid() {
		return &Mismatch{Path: path, What: "value", Got: fmt.Sprintf("bytes %x", got.Data), Want: fmt.Sprintf("%x", want.Data)}
	}
	tol := ToleranceOf(want.DType)
	wrong, at, excess := 0, -1, 0.0
	for i := range total {
		var ok bool
		var over float64
		if want.DType.IsFloat() || want.DType.IsComplex() {
			g, w := got.Complex(i), want.Complex(i)
			ok = tol.within(g, w)
			over = cmplx.Abs(g-w) - tol.allowed(w)
			if over != over {
				over = math.Inf(1)
			}
		} else {
			g, w := got.Int(i), want.Int(i)
			ok = g == w
			over = math.Abs(float64(g) - float64(w))
		}
		if ok {
			continue
		}
		wrong++
		if at < 0 || over > excess {
			at, excess = i, over
		}
	}
	if wrong == 0 {
		return nil
	}
	g, w := got.Complex(at), want.Complex(at)
	d := cmplx.Abs(g - w)
	return &Mismatch{
		Path: path, What: "value", Got: got.text(at), Want: want.text(at), Index: coordinates(at, want.Shape),
		Wrong: wrong, Total: total, AbsDiff: d, RelDiff: d / cmplx.Abs(w), Bound: tol,
	}
}

// text returns element i, formatted for its type.
func (t *Tensor) text(i int) string {
	switch {
	case t.DType.IsComplex():
		return fmt.Sprint(t.Complex(i))
	case t.DType == dtype.Bool:
		return fmt.Sprint(t.Int(i) != 0)
	case t.DType.IsInt():
		return fmt.Sprint(t.Int(i))
	case t.DType == dtype.Float64:
		return fmt.Sprint(t.Real(i))
	}
	return fmt.Sprint(float32(t.Real(i)))
}

// coordinates turns a row-major position into an index.
func coordinates(at int, shape []int) []int {
	index := make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		index[i] = at % shape[i]
		at /= shape[i]
	}
	return index
}
