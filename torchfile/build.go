package torchfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"tenon.dev/internal/pickle"
)

// builder turns a pickle into values.
type builder struct {
	d      *pickle.Data
	limits *budget
	// find returns a storage of at least n bytes.
	find func(key string, n int64) (*storage, error)
	made map[pickle.Ref]made
	// doing holds the values under construction: one that is met again contains itself.
	doing map[pickle.Ref]bool
	// in is the weight of the contents of the value under construction.
	in weight
}

// made is a value that was made, with its weight.
type made struct {
	v any
	w weight
}

// The cost of values in bytes, including what growing maps and boxing leave unused.
const (
	costItem      = 32
	costContainer = 256
)

func newBuilder(d *pickle.Data, limits *budget, find func(key string, n int64) (*storage, error)) *builder {
	return &builder{d: d, limits: limits, find: find, made: map[pickle.Ref]made{}, doing: map[pickle.Ref]bool{}}
}

// charge counts n bytes that are about to be allocated.
func (b *builder) charge(n int) error {
	if err := b.d.Charge(n); err != nil {
		return b.limits.unread(err)
	}
	return nil
}

// count adds to the weight of the contents of the value under construction.
func (b *builder) count(w weight) error {
	b.in.add(w)
	return b.limits.check(b.in)
}

// value makes the value of r, once, and counts it.
func (b *builder) value(r pickle.Ref) (any, error) {
	if v, ok := b.plain(r); ok {
		return v, b.count(weight{values: 1})
	}
	m, ok := b.made[r]
	if !ok {
		if b.doing[r] {
			return nil, refuse("a %v contains itself, which has no form here", r.Kind())
		}
		if len(b.doing) >= b.limits.Depth {
			return nil, b.limits.check(weight{depth: len(b.doing) + 1})
		}
		if err := b.charge(costContainer); err != nil {
			return nil, err
		}
		beside := b.in
		b.in = weight{}
		b.doing[r] = true
		var err error
		if m.v, err = b.container(r); err != nil {
			return nil, err
		}
		delete(b.doing, r)
		m.w = b.in
		m.w.depth++
		m.w.values++
		b.made[r] = m
		b.in = beside
	}
	return m.v, b.count(m.w)
}

// plain makes a value that contains no others; it returns false for one that does.
func (b *builder) plain(r pickle.Ref) (any, bool) {
	d := b.d
	switch r.Kind() {
	case pickle.KindNone:
		return nil, true
	case pickle.KindBool:
		v, _ := d.Bool(r)
		return v, true
	case pickle.KindInt:
		if v, ok := d.Int(r); ok {
			return v, true
		}
		v, _ := d.Big(r)
		return v, true
	case pickle.KindFloat:
		v, _ := d.Float(r)
		return v, true
	case pickle.KindString:
		v, _ := d.Str(r)
		return v, true
	case pickle.KindBytes:
		v, _ := d.Bytes(r)
		return v, true
	case pickle.KindGlobal:
		return b.global(r), true
	}
	return nil, false
}

func (b *builder) global(r pickle.Ref) Global {
	module, name, _ := b.d.Global(r)
	return Global{module, name}
}

func (b *builder) container(r pickle.Ref) (any, error) {
	switch r.Kind() {
	case pickle.KindList, pickle.KindSet:
		l, err := b.list(b.d.Items(r))
		if err != nil {
			return nil, err
		}
		return l, b.whole(l)
	case pickle.KindTuple:
		l, err := b.list(b.d.Items(r))
		if err != nil {
			return nil, err
		}
		return Tuple(l), b.whole(l)
	case pickle.KindDict:
		return b.dict(b.d.Items(r))
	case pickle.KindPersistent:
		return b.storage(r)
	case pickle.KindObject:
		return b.object(r)
	}
	return nil, refuse("the file holds a %v, which has no form here", r.Kind())
}

func (b *builder) list(items []pickle.Ref) ([]any, error) {
	if err := b.charge(costItem * len(items)); err != nil {
		return nil, err
	}
	out := make([]any, len(items))
	for i, r := range items {
		v, err := b.value(r)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// dict makes a dict of alternating keys and values.
func (b *builder) dict(items []pickle.Ref) (*Dict, error) {
	l, err := b.list(items)
	if err != nil {
		return nil, err
	}
	if err := b.whole(l); err != nil {
		return nil, err
	}
	out := &Dict{Keys: make([]any, 0, len(l)/2), Values: make([]any, 0, len(l)/2)}
	for i := 0; i+1 < len(l); i += 2 {
		out.Keys, out.Values = append(out.Keys, l[i]), append(out.Values, l[i+1])
	}
	return out, nil
}

// stored is a storage with its element type, "" for bytes.
type stored struct {
	*storage
	typ, device string
	elements    int64
}

// whole replaces each bare storage among the values by a tensor of all its elements.
func (b *builder) whole(l []any) error {
	for i, v := range l {
		s, ok := v.(stored)
		if !ok {
			continue
		}
		if err := b.charge(costContainer); err != nil {
			return err
		}
		t := &Tensor{Type: s.typ, Device: s.device, Shape: []int{int(s.elements)}, Stride: []int{1}, storage: s.storage}
		if t.Type == "" {
			t.Type = "uint8"
		}
		t.DType, t.size = types[t.Type].dt, types[t.Type].size
		if err := t.check(); err != nil {
			return err
		}
		if err := b.count(t.weight()); err != nil {
			return err
		}
		l[i] = t
	}
	return nil
}

// root makes the value of a file.
func (b *builder) root() (any, error) {
	v, err := b.value(b.d.Root())
	if err != nil {
		return nil, err
	}
	l := []any{v}
	err = b.whole(l)
	return l[0], err
}

// storage makes a storage of a persistent id: ("storage", class, key, device, number of elements, …).
func (b *builder) storage(r pickle.Ref) (any, error) {
	id, _ := b.d.Persistent(r)
	v, err := b.value(id)
	if err != nil {
		return nil, err
	}
	parts, ok := v.(Tuple)
	if !ok || len(parts) < 5 || parts[0] != "storage" {
		return nil, refuse("what should name a storage is %s", show(v))
	}
	class, ok1 := parts[1].(Global)
	key, ok2 := parts[2].(string)
	device, ok3 := parts[3].(string)
	n, ok4 := parts[4].(int64)
	typ, ok5 := typeOfStorage(class)
	if !ok1 || !ok2 || !ok3 || !ok4 || n < 0 {
		return nil, refuse("what should name a storage is %s", show(v))
	}
	if !ok5 {
		return nil, refuse("storage %s is of the class %s, which is not known", quote(key), show(class))
	}
	size := int64(1)
	if typ != "" {
		size = int64(types[typ].size)
	}
	if n > math.MaxInt64/size {
		return nil, refuse("storage %s claims %d elements", quote(key), n)
	}
	s, err := b.find(key, n*size)
	if err != nil {
		return nil, err
	}
	return stored{s, typ, device, n}, nil
}

// object makes the result of a call: a tensor, parameter, dict or size, else an Object.
func (b *builder) object(r pickle.Ref) (any, error) {
	callee, args, state, _ := b.d.Object(r)
	l, err := b.list(b.d.Items(args))
	if err != nil {
		return nil, err
	}
	class := b.global(callee)
	switch class {
	case Global{"torch._utils", "_rebuild_tensor"}, Global{"torch._utils", "_rebuild_tensor_v2"}:
		return b.rebuild(l, 4, "")
	case Global{"torch._utils", "_rebuild_tensor_v3"}:
		if g, ok := at(l, 6).(Global); ok {
			return b.rebuild(l, 7, g.Name)
		}
		return nil, refuse("a tensor has no type: %s", show(Tuple(l)))
	case Global{"torch._utils", "_rebuild_parameter"}, Global{"torch._utils", "_rebuild_parameter_with_state"},
		Global{"torch.nn.parameter", "Parameter"}:
		t, ok := at(l, 0).(*Tensor)
		if !ok {
			return nil, refuse("a parameter is made of %s", show(at(l, 0)))
		}
		p := *t
		p.Parameter = true
		p.RequiresGrad, _ = at(l, 1).(bool)
		return &p, nil
	case Global{"collections", "OrderedDict"}:
		if len(l) == 0 {
			return b.dict(b.d.Items(r))
		}
	case Global{"_codecs", "encode"}:
		if raw, ok := latin1(l); ok {
			return raw, nil
		}
	case Global{"torch", "Size"}:
		if t, ok := at(l, 0).(Tuple); ok {
			return t, nil
		}
	}
	o := &Object{Class: class, Args: Tuple(l)}
	if o.State, err = b.value(state); err != nil {
		return nil, err
	}
	o.Items, err = b.list(b.d.Items(r))
	return o, err
}

// latin1 returns the bytes that Python writes as a call of its encoder in pickle protocols without bytes.
func latin1(l []any) ([]byte, bool) {
	text, ok := at(l, 0).(string)
	if !ok || len(l) != 2 || l[1] != "latin1" {
		return nil, false
	}
	raw := make([]byte, 0, len(text))
	for _, c := range text {
		if c > 0xff {
			return nil, false
		}
		raw = append(raw, byte(c))
	}
	return raw, true
}

func at(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return nil
}

// rebuild makes a tensor from storage, offset, shape and strides; a further argument says whether it requires grad.
func (b *builder) rebuild(l []any, least int, typ string) (*Tensor, error) {
	s, ok1 := at(l, 0).(stored)
	offset, ok2 := at(l, 1).(int64)
	shape, ok3 := ints(at(l, 2))
	stride, ok4 := ints(at(l, 3))
	if len(l) < least || !ok1 || !ok2 || !ok3 || !ok4 || len(shape) != len(stride) || offset != int64(int(offset)) {
		return nil, refuse("a tensor is made of %s", show(Tuple(l)))
	}
	if typ == "" {
		typ = s.typ
	}
	t := &Tensor{Type: typ, Shape: shape, Stride: stride, Device: s.device, storage: s.storage, offset: int(offset)}
	info, ok := types[typ]
	if !ok {
		return nil, refuse("a tensor has the element type %s, which is not known", quote(typ))
	}
	t.DType, t.size = info.dt, info.size
	t.RequiresGrad, _ = at(l, 4).(bool)
	if err := t.check(); err != nil {
		return nil, err
	}
	return t, b.count(t.weight())
}

// ints returns the numbers of a tuple or size, of at most maxDims.
func ints(v any) ([]int, bool) {
	l, ok := v.(Tuple)
	if !ok || len(l) > maxDims {
		return nil, false
	}
	out := make([]int, len(l))
	for i, e := range l {
		n, ok := e.(int64)
		if !ok || n != int64(int(n)) {
			return nil, false
		}
		out[i] = int(n)
	}
	return out, true
}

// nameOf names the kind of a value in Python's words, but nil in Go's.
func nameOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []byte:
		return "bytes"
	case []any:
		return "list"
	case Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *Tensor:
		return "tensor"
	case stored:
		return "storage"
	case *Object:
		return show(v.Class)
	}
	return fmt.Sprintf("%T", v)
}

// show describes a value for a message. It does not descend into the value, since a few bytes of a file can refer to a value any number
// of times.
func show(v any) string {
	switch v := v.(type) {
	case bool, int64, float64:
		return fmt.Sprint(v)
	case Global:
		return clip(v.Module) + "." + clip(v.Name)
	case string:
		return quote(v)
	case Tuple:
		var parts []string
		for _, e := range v[:min(len(v), 10)] {
			if inner, ok := e.(Tuple); ok {
				parts = append(parts, fmt.Sprintf("a tuple of %d", len(inner)))
			} else {
				parts = append(parts, show(e))
			}
		}
		if len(v) > 10 {
			parts = append(parts, "…")
		}
		return "(" + strings.Join(parts, ", ") + ")"
	}
	return nameOf(v)
}

// clip shortens text of a file for a message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// quote writes text of a file for a message.
func quote(s string) string { return strconv.Quote(clip(s)) }
