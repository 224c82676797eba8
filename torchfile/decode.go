package torchfile

import (
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"tenon.dev/internal/origin"
)

// Decode stores a value of a file in the variable that to points to, whose type must be one that [Save] takes: dicts become structs and
// maps with string keys, lists and tuples become slices and arrays of their length, integers any number type that can hold them, and None
// a nil pointer, slice or map. A struct must have a field for each of a dict's keys, and the dict a key for each field. An interface
// takes the value as it is, and so does a *[Tensor], which File.Load brings to a device. If a value does not fit, the error gives its
// path and *to is unchanged.
func Decode(from any, to any) (err error) {
	defer origin.Located("torchfile.Decode", &err)
	v := reflect.ValueOf(to)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return refuse("Decode writes to what a pointer points to, not to a %T", to)
	}
	fresh := reflect.New(v.Type().Elem()).Elem()
	if err := new(decoder).value(from, fresh); err != nil {
		return err
	}
	v.Elem().Set(fresh)
	return nil
}

// decoder stores values in zero variables.
type decoder struct {
	// path leads to the current value.
	path []string
}

func (d *decoder) refuse(format string, args ...any) error {
	where := strings.TrimPrefix(strings.Join(d.path, ""), ".")
	if where == "" {
		where = "the file's value"
	}
	return refuse("%s %s", where, fmt.Sprintf(format, args...))
}

// in calls value for the value one step further.
func (d *decoder) in(step string, from any, to reflect.Value) error {
	d.path = append(d.path, step)
	err := d.value(from, to)
	if err == nil {
		d.path = d.path[:len(d.path)-1]
	}
	return err
}

func (d *decoder) value(from any, to reflect.Value) error {
	if v := reflect.ValueOf(from); v.IsValid() && v.Type().AssignableTo(to.Type()) {
		to.Set(v)
		return nil
	}
	ok := false
	switch to.Kind() {
	case reflect.Pointer:
		if from == nil {
			return nil
		}
		to.Set(reflect.New(to.Type().Elem()))
		return d.value(from, to.Elem())
	case reflect.Interface:
		ok = from == nil
	case reflect.Bool:
		var b bool
		b, ok = from.(bool)
		to.SetBool(b)
	case reflect.String:
		var s string
		s, ok = from.(string)
		to.SetString(s)
	case reflect.Slice, reflect.Array:
		return d.list(from, to)
	case reflect.Map:
		return d.mapping(from, to)
	case reflect.Struct:
		return d.fields(from, to)
	default:
		ok = number(from, to)
	}
	if !ok {
		return d.refuse("is a %s, which a %v cannot hold", nameOf(from), to.Type())
	}
	return nil
}

// number sets a number if to can hold it.
func number(from any, to reflect.Value) bool {
	switch n := from.(type) {
	case int64:
		switch {
		case to.CanInt():
			to.SetInt(n)
			return to.Int() == n
		case to.CanUint():
			to.SetUint(uint64(n))
			return n >= 0 && to.Uint() == uint64(n)
		case to.CanFloat():
			to.SetFloat(float64(n))
			return int64(to.Float()) == n
		}
	case *big.Int:
		if to.CanUint() && n.IsUint64() {
			to.SetUint(n.Uint64())
			return to.Uint() == n.Uint64()
		}
	case float64:
		if to.CanFloat() {
			to.SetFloat(n)
			return n != n || to.Float() == n
		}
	}
	return false
}

func (d *decoder) list(from any, to reflect.Value) error {
	var vs []any
	switch from := from.(type) {
	case []any:
		vs = from
	case Tuple:
		vs = from
	default:
		if from == nil && to.Kind() == reflect.Slice {
			return nil
		}
		return d.refuse("is a %s, which a %v cannot hold", nameOf(from), to.Type())
	}
	if to.Kind() == reflect.Slice {
		to.Set(reflect.MakeSlice(to.Type(), len(vs), len(vs)))
	}
	if to.Len() != len(vs) {
		return d.refuse("has %d values, not %d", len(vs), to.Len())
	}
	for i, v := range vs {
		if err := d.in("["+strconv.Itoa(i)+"]", v, to.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(from any, to reflect.Value) error {
	t := to.Type()
	if from == nil {
		return nil
	}
	dict, ok := from.(*Dict)
	if !ok || t.Key().Kind() != reflect.String {
		return d.refuse("is a %s, which a %v cannot hold", nameOf(from), t)
	}
	to.Set(reflect.MakeMapWithSize(t, len(dict.Keys)))
	for i, k := range dict.Keys {
		key, ok := k.(string)
		if !ok {
			return d.refuse("has the key %s, which is not a string", show(k))
		}
		name, item := reflect.ValueOf(key).Convert(t.Key()), reflect.New(t.Elem()).Elem()
		if to.MapIndex(name).IsValid() {
			return d.refuse("has the key %s twice", quote(key))
		}
		if err := d.in("["+quote(key)+"]", dict.Values[i], item); err != nil {
			return err
		}
		to.SetMapIndex(name, item)
	}
	return nil
}

// fields fills a struct from a dict with exactly its keys.
func (d *decoder) fields(from any, to reflect.Value) error {
	dict, ok := from.(*Dict)
	if !ok {
		return d.refuse("is a %s, which a %v cannot hold", nameOf(from), to.Type())
	}
	left := map[string]any{}
	var unknown []string
	for i, k := range dict.Keys {
		key, ok := k.(string)
		if _, twice := left[key]; !ok || twice {
			return d.refuse("has the key %s, which is not a string or is there twice", show(k))
		}
		left[key] = dict.Values[i]
	}
	if err := d.take(left, to); err != nil {
		return err
	}
	for _, k := range dict.Keys {
		if _, ok := left[k.(string)]; ok {
			unknown = append(unknown, quote(k.(string)))
		}
	}
	if unknown != nil {
		return d.refuse("has unexpected keys: %s; a %v has no fields for them", strings.Join(unknown, ", "), to.Type())
	}
	return nil
}

// take takes the fields of a struct out of values.
func (d *decoder) take(values map[string]any, to reflect.Value) error {
	for f, into := range fieldsOf(to) {
		if !f.IsExported() {
			return d.refuse("is to go into a %v, whose field %s is not exported; export it, or leave it out by the tag `torch:\"-\"`", f.of,
				f.Name)
		}
		v, ok := values[f.key]
		if !ok {
			return d.refuse("lacks the key %s", quote(f.key))
		}
		if err := d.in("."+f.key, v, into); err != nil {
			return err
		}
		delete(values, f.key)
	}
	return nil
}
