package compile

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"

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

var tensorType = reflect.TypeFor[*tenon.Tensor]()

func appendTensors(ts []*core.Tensor, v reflect.Value, depth int) []*core.Tensor {
	if !v.IsValid() || depth > mostDepth {
		return ts
	}
	if v.Type() == tensorType {
		if !v.IsNil() {
			ts = append(ts, (*core.Tensor)(v.UnsafePointer()))
		}
		return ts
	}
	if !mayHold(v.Type()) {
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
		for i := range v.Len() {
			ts = appendTensors(ts, v.Index(i), depth+1)
		}
	case reflect.Map:
		keys := v.MapKeys() //tenon:unordered they are sorted
		slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for _, k := range keys {
			ts = appendTensors(ts, v.MapIndex(k), depth+1)
		}
	}
	return ts
}

// holders says of types whether their values may have tensors, so that a list of a million numbers is not gone through in each call.
var holders sync.Map

// mayHold reports whether values of type t may have tensors that appendTensors finds.
func mayHold(t reflect.Type) bool {
	if holds, ok := holders.Load(t); ok {
		return holds.(bool)
	}
	holds := leadsToTensor(t, map[reflect.Type]bool{})
	holders.Store(t, holds)
	return holds
}

// leadsToTensor is mayHold for a type that is a part of those seen.
func leadsToTensor(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == tensorType || t.Kind() == reflect.Interface {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return leadsToTensor(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if leadsToTensor(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
