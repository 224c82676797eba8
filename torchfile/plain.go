package torchfile

import (
	"fmt"
	"iter"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// plainer turns a value of Go into nil, bool, int64, *big.Int, float64, string, []byte, Global, []any, Tuple, *Dict and *tenon.Tensor.
type plainer struct {
	// path leads to the current value, one element for each step.
	path []string
}

// plain returns v in the types of a file. The error for a value that no file can hold gives its path.
func plain(v any) (any, error) { return new(plainer).any(v) }

// refuse returns an error whose sentence begins with the path of the current value.
func (p *plainer) refuse(format string, args ...any) error {
	return refuse("%s %s", p.where(), fmt.Sprintf(format, args...))
}

// where returns the path of the current value.
func (p *plainer) where() string {
	if len(p.path) == 0 {
		return "the value"
	}
	return strings.TrimPrefix(strings.Join(p.path, ""), ".")
}

// in calls value for the value one step further.
func (p *plainer) in(step string, v reflect.Value) (any, error) {
	if len(p.path) == deepest {
		return nil, refuse("a value lies in more than %d others, or contains itself", deepest)
	}
	p.path = append(p.path, step)
	out, err := p.value(v)
	p.path = p.path[:len(p.path)-1]
	return out, err
}

// any is plain for the current value.
func (p *plainer) any(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, Global:
		return v, nil
	case *tenon.Tensor:
		if err := tenon.Try(func() { core.Given("torchfile.Save", 0, (*core.Tensor)(v)) }); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "%s cannot be saved", p.where())
		}
		return v, nil
	case *big.Int:
		if v == nil {
			return nil, p.refuse("is a *big.Int that is nil; use nil itself")
		}
		return v, nil
	case dtype.F16:
		return float64(v.Float32()), nil
	case dtype.BF16:
		return float64(v.Float32()), nil
	case Tuple:
		l, err := p.list(reflect.ValueOf(v))
		return Tuple(l), err
	case *Dict:
		return p.dict(v)
	case Tensor, *Tensor, Object, *Object:
		return nil, p.refuse("is a %T, which was read from a file; save the tensor that File.Load returns", v)
	}
	return p.kinds(reflect.ValueOf(v))
}

// value is any for a reflect.Value.
func (p *plainer) value(v reflect.Value) (any, error) {
	if !v.IsValid() {
		return nil, nil
	}
	return p.any(v.Interface())
}

// kinds converts a value by the kind of its type.
func (p *plainer) kinds(v reflect.Value) (any, error) {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if n := v.Uint(); n > math.MaxInt64 {
			return new(big.Int).SetUint64(n), nil
		}
		return int64(v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.String:
		return v.String(), nil
	case reflect.Slice, reflect.Array:
		return p.list(v)
	case reflect.Map:
		return p.mapping(v)
	case reflect.Pointer:
		if v.IsNil() {
			return nil, nil
		}
		if len(p.path) == deepest {
			return nil, refuse("a value lies in more than %d others, or contains itself", deepest)
		}
		p.path = append(p.path, "") // a pointer can lead back to itself
		defer func() { p.path = p.path[:len(p.path)-1] }()
		return p.value(v.Elem())
	case reflect.Struct:
		d := &Dict{}
		return d, p.fields(d, v)
	}
	return nil, p.refuse("is a %v, which cannot be saved; "+
		"use bools, numbers, strings, tensors, and slices, maps with string keys and structs of them", v.Type())
}

func (p *plainer) list(v reflect.Value) ([]any, error) {
	out := make([]any, v.Len())
	for i := range out {
		var err error
		if out[i], err = p.in("["+strconv.Itoa(i)+"]", v.Index(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// mapping converts a map in the order of its keys.
func (p *plainer) mapping(v reflect.Value) (any, error) {
	if v.Type().Key().Kind() != reflect.String {
		return nil, p.refuse("is a %v; use a map with string keys, or a Dict, whose keys may be numbers", v.Type())
	}
	keys := v.MapKeys() //tenon:unordered they are sorted
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	d := &Dict{}
	for _, k := range keys {
		item, err := p.in("["+quote(k.String())+"]", v.MapIndex(k))
		if err != nil {
			return nil, err
		}
		d.Keys, d.Values = append(d.Keys, k.String()), append(d.Values, item)
	}
	return d, nil
}

// fields adds the fields of a struct to d.
func (p *plainer) fields(d *Dict, v reflect.Value) error {
	for f, value := range fieldsOf(v) {
		if !f.IsExported() {
			return p.refuse("is a %v, whose field %s is not exported; "+
				"export it, leave it out by the tag `torch:\"-\"`, or save a module by torchfile.Tensors(nn.StateDict(m))",
				f.of, f.Name)
		}
		if _, twice := d.Get(f.key); twice {
			return p.refuse("is a %v, which has the key %s twice; give each field its own by the tag `torch:\"name\"`", f.of, quote(f.key))
		}
		item, err := p.in("."+f.Name, value)
		if err != nil {
			return err
		}
		d.Keys, d.Values = append(d.Keys, f.key), append(d.Values, item)
	}
	return nil
}

// field is a struct field that belongs to a dict, with its key and the struct's type.
type field struct {
	reflect.StructField
	key string
	of  reflect.Type
}

// fieldsOf yields the fields of a struct that belong to its dict, including those of embedded structs.
func fieldsOf(v reflect.Value) iter.Seq2[field, reflect.Value] {
	return func(yield func(field, reflect.Value) bool) {
		t := v.Type()
		for i := range t.NumField() {
			f := t.Field(i)
			name, embedded := fieldName(f)
			if embedded {
				for inner, value := range fieldsOf(v.Field(i)) {
					if !yield(inner, value) {
						return
					}
				}
				continue
			}
			if name != "-" && !yield(field{f, name, t}, v.Field(i)) {
				return
			}
		}
	}
}

// fieldName returns the key of a struct's field in a dict, "-" for a field that is left out. An embedded struct without a tag has no key:
// its fields belong to the outer struct.
func fieldName(f reflect.StructField) (name string, embedded bool) {
	tag := f.Tag.Get("torch")
	if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
		return "", true
	}
	if tag != "" {
		return tag, false
	}
	return f.Name, false
}

// dict converts a Dict, whose keys may be tuples.
func (p *plainer) dict(d *Dict) (any, error) {
	if d == nil || len(d.Keys) != len(d.Values) {
		return nil, p.refuse("is a dict that is nil, or has another number of keys than of values")
	}
	out := &Dict{Keys: make([]any, len(d.Keys)), Values: make([]any, len(d.Values))}
	seen := make(map[string]bool, len(d.Keys))
	for i, k := range d.Keys {
		var err error
		if out.Keys[i], err = p.in(".Keys["+strconv.Itoa(i)+"]", reflect.ValueOf(k)); err != nil {
			return nil, err
		}
		switch out.Keys[i].(type) {
		case nil, bool, int64, float64, Tuple, string:
		default:
			return nil, p.refuse("is a dict with a %T as a key; use strings or numbers", k)
		}
		if form, ok := keyForm(out.Keys[i]); ok {
			if seen[form] {
				return nil, p.refuse("is a dict that has the key %s twice, and only one of its values could be read; give each its own",
					show(out.Keys[i]))
			}
			seen[form] = true
		}
		if out.Values[i], err = p.in("["+show(out.Keys[i])+"]", reflect.ValueOf(d.Values[i])); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// keyForm returns a text that keys of a dict have in common if and only if Python finds them equal, as it does 1, 1.0 and True. ok is false
// for a key that equals no other one.
func keyForm(key any) (form string, ok bool) {
	switch k := key.(type) {
	case nil:
		return "nil", true
	case bool:
		if k {
			return "1", true
		}
		return "0", true
	case int64:
		return strconv.FormatInt(k, 10), true
	case *big.Int:
		return k.String(), true
	case float64:
		switch {
		case math.IsNaN(k):
			return "", false
		case math.IsInf(k, 0) || k != math.Trunc(k):
			return strconv.FormatFloat(k, 'g', -1, 64), true
		default:
			whole, _ := big.NewFloat(k).Int(nil)
			return whole.String(), true
		}
	case string:
		return strconv.Quote(k), true
	case []byte:
		return "b" + strconv.Quote(string(k)), true
	case Global:
		return "global " + strconv.Quote(k.Module) + strconv.Quote(k.Name), true
	case Tuple:
		form = "("
		for _, v := range k {
			part, ok := keyForm(v)
			if !ok {
				return "", false
			}
			form += part + ","
		}
		return form + ")", true
	}
	return "", false
}
