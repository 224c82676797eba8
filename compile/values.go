package compile

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// tensorsOf returns the tensors among the values: in their order, those of lists and structs in the order of elements and fields, and those
// of maps in the order of the printed keys. It does not follow pointers, which lead to modules and other state.
func tensorsOf(vs []reflect.Value) (ts []*core.Tensor) {
	for _, v := range vs {
		ts = appendTensors(ts, v, 0)
	}
	return ts
}

// mostDepth is how deep appendTensors looks, so that a map that contains itself ends.
const mostDepth = 32

var (
	tensorType  = reflect.TypeFor[*tenon.Tensor]()
	tensorsType = reflect.TypeFor[[]*tenon.Tensor]()
)

func appendTensors(ts []*core.Tensor, v reflect.Value, depth int) []*core.Tensor {
	if !v.IsValid() || depth > mostDepth {
		return ts
	}
	switch v.Type() {
	case tensorType:
		if !v.IsNil() {
			ts = append(ts, (*core.Tensor)(v.UnsafePointer()))
		}
		return ts
	case tensorsType:
		for i := range v.Len() {
			ts = appendTensors(ts, v.Index(i), depth+1)
		}
		return ts
	}
	switch v.Kind() {
	case reflect.Interface:
		return appendTensors(ts, v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			ts = appendTensors(ts, v.Field(i), depth+1)
		}
	case reflect.Slice, reflect.Array:
		if mayHold(v.Type().Elem()) {
			for i := range v.Len() {
				ts = appendTensors(ts, v.Index(i), depth+1)
			}
		}
	case reflect.Map:
		if mayHold(v.Type().Elem()) {
			keys := v.MapKeys() //tenon:unordered they are sorted
			slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			for _, k := range keys {
				ts = appendTensors(ts, v.MapIndex(k), depth+1)
			}
		}
	}
	return ts
}

// mayHold reports whether values of type t may have tensors that appendTensors finds.
func mayHold(t reflect.Type) bool {
	if t == tensorType {
		return true
	}
	switch t.Kind() {
	case reflect.Interface, reflect.Struct:
		return true
	case reflect.Slice, reflect.Array, reflect.Map:
		return mayHold(t.Elem())
	}
	return false
}
