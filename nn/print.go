package nn

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// String returns a module as a tree in PyTorch's form: its type, its options, and the modules in its fields and elements. The String
// methods of this package's modules return this; give your own structs a String method that does.
func String(m any) string {
	p := printer{}
	return p.module(reflect.ValueOf(m))
}

// detailed is a module that prints its options.
type detailed interface{ detail() (name, options string) }

// printer keeps the pointers on the path to the printed value, to stop at cycles.
type printer struct{ path []any }

func (p *printer) module(v reflect.Value) string {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() {
		return "nil"
	}
	if v.Kind() == reflect.Struct && v.CanAddr() && v.Addr().CanInterface() {
		if d, ok := v.Addr().Interface().(detailed); ok {
			name, options := d.detail()
			return name + "(" + options + ")"
		}
	}
	if d, ok := interfaceOf(v).(detailed); ok && !isNil(v) {
		name, options := d.detail()
		return name + "(" + options + ")"
	}
	if g, ok := interfaceOf(v).(*Graphed); ok && g != nil { // prints as the module that it runs
		return p.module(reflect.ValueOf(g.Module))
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return "nil"
		}
		at := interfaceOf(v)
		if slices.Contains(p.path, at) {
			return "…"
		}
		p.path = append(p.path, at)
		defer func() { p.path = p.path[:len(p.path)-1] }()
		return p.module(v.Elem())
	case reflect.Struct:
		return p.tree(v.Type().Name(), p.fields(v))
	case reflect.Slice, reflect.Array:
		return p.tree(p.listName(v.Type()), p.elements(v))
	case reflect.Map:
		var rows []row
		for _, k := range keysOf(v) {
			rows = append(rows, row{k.String(), p.module(v.MapIndex(k))})
		}
		return p.tree("ModuleDict", rows)
	}
	return v.Type().Name() + "()"
}

// row is a child of a module.
type row struct{ name, text string }

// tree returns the name with the children indented below it.
func (p *printer) tree(name string, rows []row) string {
	var b strings.Builder
	b.WriteString(name + "(")
	for _, r := range rows {
		b.WriteString("\n  (" + r.name + "): " + strings.ReplaceAll(r.text, "\n", "\n  "))
	}
	if len(rows) > 0 {
		b.WriteString("\n")
	}
	return b.String() + ")"
}

// fields returns the modules in a struct's fields.
func (p *printer) fields(v reflect.Value) (rows []row) {
	t := v.Type()
	for i := range t.NumField() {
		f, tag := t.Field(i), t.Field(i).Tag.Get("torch")
		switch {
		case tag == "-", !f.IsExported() && !f.Anonymous, !isChild(f.Type), isNil(v.Field(i)):
		case f.Anonymous && tag == "" && v.Field(i).Kind() == reflect.Struct:
			rows = append(rows, p.fields(v.Field(i))...)
		default:
			rows = append(rows, row{cmp.Or(tag, f.Name), p.module(v.Field(i))})
		}
	}
	return rows
}

// elements returns the modules of a list. Adjacent equal modules share one row, except in a Sequential.
func (p *printer) elements(v reflect.Value) (rows []row) {
	for i := 0; i < v.Len(); {
		text, n := p.module(v.Index(i)), 1
		for v.Type() != reflect.TypeFor[Sequential]() && i+n < v.Len() && p.module(v.Index(i+n)) == text {
			n++
		}
		name := strconv.Itoa(i)
		if n > 1 {
			name, text = fmt.Sprintf("%d-%d", i, i+n-1), fmt.Sprintf("%d x %s", n, text)
		}
		rows = append(rows, row{name, text})
		i += n
	}
	return rows
}

func (p *printer) listName(t reflect.Type) string {
	if t == reflect.TypeFor[Sequential]() {
		return "Sequential"
	}
	return "ModuleList"
}

// isChild reports whether a field of the type is printed: it has parameters or is a module.
func isChild(t reflect.Type) bool {
	if t == reflect.TypeFor[*Param]() || t == reflect.TypeFor[*Buffer]() || t == modeType {
		return false
	}
	return reaches(t) || t.Implements(reflect.TypeFor[detailed]()) || t.Implements(reflect.TypeFor[Module]())
}

func interfaceOf(v reflect.Value) any {
	if !v.CanInterface() {
		return nil
	}
	return v.Interface()
}

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Func:
		return v.IsNil()
	}
	return false
}

// tuple formats a shape as Python does.
func tuple(shape ...int) string {
	var b strings.Builder
	b.WriteString("(")
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(d))
	}
	if len(shape) == 1 {
		b.WriteString(",")
	}
	return b.String() + ")"
}

// shapeOf returns p's shape, or nil if p is nil.
func shapeOf(p *Param) []int {
	if t := p.Tensor(); t != nil {
		return t.Shape()
	}
	return nil
}

// dim returns size i of a shape, or 0 if the shape is shorter.
func dim(shape []int, i int) int {
	if i < len(shape) {
		return shape[i]
	}
	return 0
}
