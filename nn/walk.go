package nn

import (
	"cmp"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// Params yields the parameters of m by name: those of a struct in the order of its fields, then those of the modules in it. A parameter's
// name is the path to it, joined by dots: the tag `torch:"name"` or else the field's name, and the index or key in slices, arrays and maps.
// The keys of a map are in the order of their characters, except that numbers in them count as such: "layer2" comes before "layer10". An
// embedded struct without a tag adds nothing to the path, and the tag "-" leaves a field out. A parameter that several fields share is
// yielded once. An unexported field that holds a module cannot be read; it is an error unless its tag leaves it out. Fields may be nil.
func Params(m any) iter.Seq2[string, *Param] {
	return func(yield func(string, *Param) bool) {
		seen := map[*Param]bool{}
		walk(m, func(name string, leaf any) bool {
			p, ok := leaf.(*Param)
			if !ok || seen[p] {
				return true
			}
			seen[p] = true
			return yield(name, p)
		})
	}
}

// SplitParams returns the params for which the predicate holds, and the others, each in the order of params, for two groups of an
// optimizer. Neither params nor the predicate may be nil, which is an error.
func SplitParams(params iter.Seq2[string, *Param], predicate func(name string, p *Param) bool) (those, others iter.Seq2[string, *Param]) {
	if params == nil {
		fail("SplitParams", "the parameters are nil; give such as nn.Params(m)")
	}
	if predicate == nil {
		core.NoFunction("SplitParams", "predicate")
	}
	part := func(want bool) iter.Seq2[string, *Param] {
		return func(yield func(string, *Param) bool) {
			for name, p := range params {
				if predicate(name, p) == want && !yield(name, p) {
					return
				}
			}
		}
	}
	return part(true), part(false)
}

// Buffers yields the buffers of m by name, as Params yields the parameters.
func Buffers(m any) iter.Seq2[string, *Buffer] {
	return func(yield func(string, *Buffer) bool) {
		seen := map[*Buffer]bool{}
		walk(m, func(name string, leaf any) bool {
			b, ok := leaf.(*Buffer)
			if !ok || seen[b] {
				return true
			}
			seen[b] = true
			return yield(name, b)
		})
	}
}

// StateDict yields the tensors of all parameters and persistent buffers under PyTorch's keys, in the order of torch's state_dict. A shared
// tensor is yielded once for each of its names. The tensors still belong to the module. Two tensors with the same key, for instance from
// fields with the same tag, are an error.
func StateDict(m any) iter.Seq2[string, *tenon.Tensor] {
	return func(yield func(string, *tenon.Tensor) bool) {
		type entry struct {
			key    string
			tensor func() *tenon.Tensor
		}
		var all []entry
		fields := map[string]string{}
		w := &walker{}
		w.visit = func(name string, leaf any) bool {
			var tensor func() *tenon.Tensor
			switch leaf := leaf.(type) {
			case *Param:
				tensor = func() *tenon.Tensor { return leaf.t }
			case *Buffer:
				if leaf.transient {
					return true
				}
				tensor = func() *tenon.Tensor { return leaf.t }
			default:
				return true
			}
			field := w.where()
			if other, twice := fields[name]; twice {
				fail("StateDict", "%s and %s of %T have the same key %q in its state dict; give each a name of its own with the tag "+
					"`torch:\"name\"`", other, field, m, name)
			}
			fields[name] = field
			all = append(all, entry{name, tensor})
			return true
		}
		w.walk(m)
		for _, e := range all {
			if !yield(e.key, e.tensor()) {
				return
			}
		}
	}
}

// NumParams returns the number of elements in all parameters of m.
func NumParams(m any) int {
	n := 0
	for _, p := range Params(m) {
		n += p.t.Numel()
	}
	return n
}

// Close frees the parameters and buffers of m.
func Close(m any) {
	for _, p := range Params(m) {
		p.Close()
	}
	for _, b := range Buffers(m) {
		b.Close()
	}
}

// Scoped gives the parameters and buffers of m to x's innermost scope, whose end closes them, and returns m, for a module that a program
// needs only for a moment. Tensors that take their place later are not closed with the scope. With no scope open, Scoped changes nothing.
func Scoped[M any](x *tenon.Exec, m M) M {
	var ts []*core.Tensor
	for _, p := range Params(m) {
		ts = append(ts, (*core.Tensor)(p.t))
	}
	for _, b := range Buffers(m) {
		ts = append(ts, (*core.Tensor)(b.t))
	}
	core.Lend(core.Made((*core.Exec)(x), "Scoped"), "Scoped", ts)
	return m
}

// Mode is embedded in modules that act differently in training and in evaluation, so that Train and Eval reach them. The zero value is
// training mode.
type Mode struct{ eval bool }

// Training reports whether the module is in training mode, as PyTorch's Module.training does.
func (m *Mode) Training() bool {
	if m == nil {
		fail("Training", "the module is nil; give one that was made")
	}
	return !m.eval
}

// Train puts m and the modules in it in training mode, the initial mode of modules: Dropout drops elements, BatchNorm takes its statistics
// from the batch, and a module that embeds Mode sees it in Training. A Mode in a struct that m holds by value where it cannot be changed,
// as in a map or an interface, is an error.
func Train(m any) { setTraining("Train", m, true) }

// Eval puts m and the modules in it in evaluation mode: Dropout does nothing, BatchNorm uses the running statistics, and Training of a
// module that embeds Mode is false. It fails as Train does.
func Eval(m any) { setTraining("Eval", m, false) }

func setTraining(op string, m any, on bool) {
	w := &walker{}
	w.visit = func(_ string, v any) bool {
		switch t := v.(type) {
		case *Mode:
			t.eval = !on
		case Mode:
			fail(op, "%s of %T is held by value where it cannot be changed; pass a pointer to the module, and put pointers in maps and "+
				"interfaces", w.where(), m)
		}
		return true
	}
	w.walk(m)
}

// walk calls visit for every *Param, *Buffer, pointer to a struct and *Mode that m holds, until visit returns false; for a Mode that
// cannot be changed it is called with a Mode. In a struct the parameters come first, then the buffers, then the rest, each in the order of
// the fields.
func walk(m any, visit func(name string, v any) bool) {
	w := &walker{visit: visit}
	w.walk(m)
}

var modeType = reflect.TypeFor[Mode]()

type walker struct {
	visit func(name string, v any) bool
	// path holds the pointers on the way to the value, to stop at cycles.
	path []any
	// steps are the path to the value in Go: fields, indexes and keys.
	steps []step
	// depth is the nesting depth of the value being walked.
	depth int
	// endless says that depth exceeded deepest.
	endless bool
}

// walk walks m.
func (w *walker) walk(m any) {
	w.value(reflect.ValueOf(m), "")
	if w.endless {
		fail("Params", "more than %d values lie in each other, or a slice or map contains itself; a module cannot", deepest)
	}
}

// step leads from a value to one in it: a field's name, an index, or a key.
type step struct {
	field, key string
	index      int
}

// deepest bounds the nesting of values, since a slice can contain itself.
const deepest = 10_000

// where returns the path to the value as a Go expression.
func (w *walker) where() string {
	var b strings.Builder
	for _, s := range w.steps {
		switch {
		case s.field != "":
			b.WriteString("." + s.field)
		case s.key != "":
			b.WriteString("[" + strconv.Quote(s.key) + "]")
		default:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		}
	}
	return "field " + strings.TrimPrefix(b.String(), ".")
}

// into walks v, which step s leads to.
func (w *walker) into(v reflect.Value, name string, s step) bool {
	w.steps = append(w.steps, s)
	on := w.value(v, name)
	w.steps = w.steps[:len(w.steps)-1]
	return on
}

// kind says what a field holds.
type kind uint8

const (
	isOther kind = iota
	isParam
	isBuffer
)

func kindOf(v reflect.Value) kind {
	if v.Kind() == reflect.Pointer && !v.IsNil() && v.CanInterface() {
		switch v.Interface().(type) {
		case *Param:
			return isParam
		case *Buffer:
			return isBuffer
		}
	}
	return isOther
}

// value walks v, whose path is name, and reports whether to go on.
func (w *walker) value(v reflect.Value, name string) bool {
	if kindOf(v) != isOther {
		return w.visit(name, v.Interface())
	}
	if w.depth == deepest {
		w.endless = true
		return false
	}
	w.depth++
	defer func() { w.depth-- }()
	switch v.Kind() {
	case reflect.Interface:
		return w.value(v.Elem(), name)
	case reflect.Pointer:
		return w.pointer(v, name)
	case reflect.Struct:
		if v.Type() == modeType { // of a struct that lies in another by value, too
			if !v.CanAddr() {
				return w.visit(name, Mode{})
			}
			return w.visit(name, v.Addr().Interface())
		}
		return w.fields(v, name)
	case reflect.Slice, reflect.Array:
		if !holds(v.Type().Elem()) {
			return true
		}
		for i := range v.Len() {
			if !w.into(v.Index(i), join(name, strconv.Itoa(i)), step{index: i}) {
				return false
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String || !holds(v.Type().Elem()) {
			return true
		}
		for _, k := range keysOf(v) {
			if !w.into(v.MapIndex(k), join(name, k.String()), step{key: k.String()}) {
				return false
			}
		}
	}
	return true
}

func (w *walker) pointer(v reflect.Value, name string) bool {
	if v.IsNil() || !holds(v.Type().Elem()) || !v.CanInterface() || slices.Contains(w.path, v.Interface()) {
		return true
	}
	w.path = append(w.path, v.Interface())
	defer func() { w.path = w.path[:len(w.path)-1] }()
	if v.Elem().Kind() == reflect.Struct && !w.visit(name, v.Interface()) {
		return false
	}
	return w.value(v.Elem(), name)
}

func (w *walker) fields(v reflect.Value, name string) bool {
	t := v.Type()
	for _, want := range [...]kind{isParam, isBuffer, isOther} {
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("torch")
			if !f.IsExported() && !f.Anonymous && tag != "-" && !v.Field(i).IsZero() && reaches(f.Type) {
				fail("Params", "field %s of %s holds a module or parameter, but is not exported, so it would not be found; export "+
					"it, or tag it `torch:\"-\"` to leave it out", f.Name, t)
			}
			if !f.IsExported() && !f.Anonymous || tag == "-" || kindOf(v.Field(i)) != want {
				continue
			}
			if all, ok := weightsIn(v.Field(i)); ok {
				if !w.weights(all, f.Name, name) {
					return false
				}
				continue
			}
			path := name
			if tag != "" {
				path = join(name, tag)
			} else if !f.Anonymous {
				path = join(name, f.Name)
			}
			if !w.into(v.Field(i), path, step{field: f.Name}) {
				return false
			}
		}
	}
	return true
}

// keysOf returns the keys of a map of modules in the order in which they are walked and printed.
func keysOf(v reflect.Value) []reflect.Value {
	keys := v.MapKeys() //tenon:unordered they are sorted
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		return cmp.Or(compareKeys(a.String(), b.String()), strings.Compare(a.String(), b.String()))
	})
	return keys
}

// compareKeys compares characters, and numbers by their values.
func compareKeys(a, b string) int {
	for a != "" && b != "" {
		n, m := digits(a), digits(b)
		if n == 0 || m == 0 {
			n, m = 1, 1
		}
		x, y := a[:n], b[:m]
		if digits(x) > 0 && digits(y) > 0 {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		}
		if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of digits that s begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// weightsIn returns the weights that a field of a recurrent module holds.
func weightsIn(v reflect.Value) ([][]RecurrentWeights, bool) {
	if v.Type() != reflect.TypeFor[[][]RecurrentWeights]() || !v.CanInterface() {
		return nil, false
	}
	return v.Interface().([][]RecurrentWeights), true
}

// weights walks the parameters in the field of a recurrent module, whose names end with the indexes of layer and direction.
func (w *walker) weights(all [][]RecurrentWeights, field, name string) bool {
	path := w.steps
	defer func() { w.steps = path }()
	for layer, directions := range all {
		for i, of := range directions {
			end := "_l" + strconv.Itoa(layer) + [...]string{"", "_reverse"}[min(i, 1)]
			for _, p := range [...]struct {
				field, key string
				p          *Param
			}{{"WeightIH", "weight_ih", of.WeightIH}, {"WeightHH", "weight_hh", of.WeightHH}, {"BiasIH", "bias_ih", of.BiasIH},
				{"BiasHH", "bias_hh", of.BiasHH}} {
				w.steps = append(path[:len(path):len(path)], step{field: field}, step{index: layer}, step{index: i}, step{field: p.field})
				if p.p != nil && !w.visit(join(name, p.key+end), p.p) {
					return false
				}
			}
		}
	}
	return true
}

// holds reports whether a value of the type can hold modules.
func holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Interface, reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return true
	}
	return false
}

// reached caches the results of reaches by type.
var reached sync.Map

// reaches reports whether a value of the type may hold a *Param, *Buffer or Mode, as far as its type tells; an interface does if it is a
// Module.
func reaches(t reflect.Type) bool {
	if v, ok := reached.Load(t); ok {
		return v.(bool)
	}
	r := reachesBeside(t, map[reflect.Type]bool{})
	reached.Store(t, r)
	return r
}

// reachesBeside is reaches, skipping the types already seen.
func reachesBeside(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == reflect.TypeFor[*Param]() || t == reflect.TypeFor[*Buffer]() || t == modeType {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return t.Implements(reflect.TypeFor[Module]())
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return reachesBeside(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("torch") != "-" && reachesBeside(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
