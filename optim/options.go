package optim

import (
	"fmt"
	"reflect"
	"slices"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// numbers makes the scalars among the options that opt points to float64s, except those that were left out, and copies lists, which belong
// to the caller. It returns what is wrong if one is no finite number, or "": in PyTorch infinite ones pass, but no state that was saved
// could hold them.
func numbers(opt any) (bad string) {
	all := reflect.ValueOf(opt).Elem()
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		switch v := all.Field(i).Addr().Interface().(type) {
		case *tenon.Scalar:
			if *v == nil {
				continue
			}
			n, ok := core.NumberOf(*v)
			if !ok {
				return noNumber(name, *v)
			}
			if !finite(n) {
				return fmt.Sprintf("%s is %v; give a finite number", name, n)
			}
			*v = n
		case *[]float64:
			*v = slices.Clone(*v)
			for j, n := range *v {
				if !finite(n) {
					return fmt.Sprintf("%s[%d] is %v; give a finite number", name, j, n)
				}
			}
		}
	}
	return ""
}

// noNumber says what is wrong with an option that is no number.
func noNumber(name string, v tenon.Scalar) string {
	text := fmt.Sprintf("%s is a %T; give a real number", name, v)
	if _, ok := v.(*tenon.Tensor); ok && name == "LR" {
		text += ", and then the tensor to SetLRTensor"
	}
	return text
}

// oneOf returns options that are given once or not at all, after numbers, and what is wrong with them, or "".
func oneOf[O any](opts []O) (opt O, bad string) {
	switch len(opts) {
	case 0:
		return opt, ""
	case 1:
		opt = opts[0]
		return opt, numbers(&opt)
	}
	return opt, fmt.Sprintf("options are given %d times; give one %s", len(opts), reflect.TypeFor[O]().Name())
}

// or returns an option, a float64 as numbers makes it, or def if it was left out.
func or(v tenon.Scalar, def float64) tenon.Scalar {
	if v == nil {
		return def
	}
	return v
}

// num returns the number that an option is after numbers and or.
func num(v tenon.Scalar) float64 {
	n, _ := v.(float64)
	return n
}

// resolvePair fills in the default of an option of two numbers, and refuses another count of them.
func resolvePair(name string, pair *[]float64, first, second float64, refuse refusal) error {
	switch {
	case *pair == nil:
		*pair = []float64{first, second}
	case len(*pair) != 2:
		return refuse(fault.Invalid, "%s is %v; give two numbers, or leave it out", name, *pair)
	}
	*pair = slices.Clone(*pair) // each group has its own, since a schedule may change them
	return nil
}
