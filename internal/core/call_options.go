package core

import (
	"math"
	"reflect"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// Scalar is a number in options: any of Go's integers or floating-point numbers, or an F16 or BF16. nil, as when it is left out, is the
// default.
type Scalar any

// Or returns the option v of the call op, which has the given name, or def if it was left out.
func Or(op, name string, v Scalar, def float64) float64 {
	if v == nil {
		return def
	}
	n, ok := NumberOf(v)
	if !ok {
		panicAt(op, fault.Invalid, "%s is a %v; give a real number", name, reflect.TypeOf(v)) // of v alone, v would move to the heap
	}
	return n
}

// OrFinite is Or for a number that makes every result NaN or infinite if it is.
func OrFinite(op, name string, v Scalar, def float64) float64 {
	return finite(op, name, Or(op, name, v, def))
}

// OrEps is Or for the eps of a batch normalisation, or of a module, which is added to variances, of which roots are taken. PyTorch's other
// normalisations take negative ones.
func OrEps(op string, v Scalar, def float64) float64 {
	eps := OrFinite(op, "Eps", v, def)
	if eps < 0 {
		panicAt(op, fault.Invalid, "Eps is %v; give a number that is not negative, since it is added to variances", eps)
	}
	return eps
}

// finite returns v, an argument of the call op that must be finite.
func finite(op, name string, v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		panicAt(op, fault.Invalid, "%s is %v; give a finite number", name, v)
	}
	return v
}

// NumberOf returns the number that an option is, unless it is something else.
func NumberOf(v Scalar) (n float64, ok bool) {
	switch v := v.(type) { // fast
	case float64:
		return v, true
	case int:
		return float64(v), true
	case float32:
		return float64(v), true
	case dtype.F16:
		return float64(v.Float32()), true
	case dtype.BF16:
		return float64(v.Float32()), true
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	case r.CanFloat():
		return r.Float(), true
	}
	return 0, false
}

// Only returns the options of the call op, which takes them once or not at all. Options that are given more often are an error.
func Only[T any](op string, opts []T) (opt T, err error) {
	switch len(opts) {
	case 0:
		return opt, nil
	case 1:
		return opts[0], nil
	}
	_, name, _ := strings.Cut(reflect.TypeFor[T]().String(), ".")
	return opt, Refusal(op, fault.Invalid, "options are given %d times; give one %s", len(opts), name)
}

// One is Only for calls that panic.
func One[T any](op string, opts []T) T {
	opt, err := Only(op, opts)
	if err != nil {
		panic(err)
	}
	return opt
}

// Ints returns the whole numbers of the call op, of which those at the end may be left out: given, continued by the defaults.
func Ints(op, what string, given []int, defaults ...int) []int {
	if len(given) > len(defaults) {
		panicAt(op, fault.Invalid, "there are %d numbers for %s; give at most %d", len(given), what, len(defaults))
	}
	copy(defaults, given)
	return defaults
}

// Int is Ints for one number.
func Int(op, what string, given []int, def int) int {
	if len(given) > 0 {
		return Ints(op, what, given, 0)[0]
	}
	return def
}

// whole returns the whole number that an option points to, or def if it was left out.
func whole(p *int, def int) int {
	if p == nil {
		return def
	}
	return *p
}

// orC is Or for an option that may also be a complex number.
func orC(op, name string, v Scalar, def complex128) complex128 {
	if v == nil {
		return def
	}
	if n, ok := NumberOf(v); ok {
		return complex(n, 0)
	}
	r := reflect.ValueOf(v)
	if !r.CanComplex() {
		panicAt(op, fault.Invalid, "%s is a %v; give a number", name, reflect.TypeOf(v))
	}
	return r.Complex()
}

// Pair returns an option for rows and columns, or def if it was left out. A pair with a single zero is an error: where PyTorch takes one
// number for both, it would not be both here.
func Pair(op, name string, p, def [2]int) [2]int {
	switch {
	case p == [2]int{}:
		return def
	case p[0] == 0 || p[1] == 0:
		n := p[0] + p[1]
		panicAt(op, fault.Invalid, "%s is %v; give both numbers, such as %v, or leave it out", name, p, [2]int{n, n})
	}
	return p
}
