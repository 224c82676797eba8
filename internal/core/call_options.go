package core

import (
	"fmt"
	"math"
	"strings"

	"tenon.dev/fault"
)

// Zero is 0 in a floating-point option, where a plain 0 stands for the default, whether that is 0 or another number.
const Zero = math.SmallestNonzeroFloat64

// Or returns the option v, or def if it was left out. Every floating-point option goes through Or, so that Zero means 0 in all of them.
func Or(v, def float64) float64 {
	switch v {
	case 0:
		return def
	case Zero:
		return 0
	}
	return v
}

// Exactly returns the option that means v, which is not v itself if that is 0.
func Exactly(v float64) float64 {
	if v == 0 {
		return Zero
	}
	return v
}

// Only returns the options of the call op, which takes them once or not at all. Options that are given more often are an error.
func Only[T any](op string, opts []T) (opt T, err error) {
	switch len(opts) {
	case 0:
		return opt, nil
	case 1:
		return opts[0], nil
	}
	_, name, _ := strings.Cut(fmt.Sprintf("%T", opt), ".")
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

// OrC is Or for complex numbers.
func OrC(v, def complex128) complex128 {
	switch v {
	case 0:
		return def
	case Zero:
		return 0
	}
	return v
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
