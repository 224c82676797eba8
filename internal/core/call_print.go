package core

import (
	"fmt"
	"reflect"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/rt"
)

// Numbered returns c with its storages numbered from 1 in the order of the operands, so that calls on different tensors compare.
func (c Call) Numbered() Call {
	seen := map[uint64]uint64{0: 0}
	number := func(o *Operand) {
		if _, ok := seen[o.storage]; !ok {
			seen[o.storage] = uint64(len(seen))
		}
		o.storage = seen[o.storage]
	}
	for i := range c.first {
		number(&c.first[i])
	}
	if c.rest != nil {
		rest := append([]Operand(nil), c.rest.all...)
		for i := range rest {
			number(&rest[i])
		}
		c.rest = restOf(rest)
	}
	return c
}

// String prints the call, such as "Add(float32[3 4] #7, 2)", with all of its attributes and modes. Only equal calls of one device print
// alike, unless they draw from different generators of the program.
func (c Call) String() string {
	var b strings.Builder
	b.WriteString(c.row.Name)
	b.WriteByte('(')
	ops := c.Operands()
	for i, o := range ops {
		if i > 0 {
			b.WriteString(", ")
		}
		hole := i < int(c.ins) && c.holes&(1<<i) != 0
		switch {
		case i >= len(ops)-int(c.dsts):
			fmt.Fprint(&b, "into ", o)
		case hole:
			b.WriteString(c.hole[i].String())
			if c.holeFloat&(1<<i) != 0 {
				b.WriteString(" as a float")
			}
		default:
			fmt.Fprint(&b, o)
		}
		if i < int(c.ins) && c.hosts&(1<<i) != 0 {
			b.WriteString(" of the processor")
		}
	}
	b.WriteByte(')')
	for i, v := range c.scalar {
		if v != (number{}) {
			fmt.Fprintf(&b, " s%d=%s", i, v)
		}
	}
	for i, v := range c.i {
		if v != 0 {
			fmt.Fprintf(&b, " i%d=%d", i, v)
		}
	}
	if c.list != nil {
		fmt.Fprint(&b, " list=", c.list.n)
	}
	if c.dt != dtype.Invalid {
		fmt.Fprint(&b, " dtype=", c.dt)
	}
	if c.opt != nil {
		fmt.Fprintf(&b, " %s", printParam(c.opt))
	}
	c.callMode.print(&b)
	if c.source != 0 {
		fmt.Fprint(&b, " generator=", c.source)
	}
	return b.String()
}

// print writes the modes that differ from those of a new Exec.
func (m *callMode) print(b *strings.Builder) {
	if m.stream != nil && m.stream.ID() != 0 {
		fmt.Fprint(b, " stream=", m.stream.ID())
	}
	if m.stream != nil && m.generator != nil && m.generator != m.stream.Device().Generator() {
		b.WriteString(" generator")
	}
	if m.pool != nil {
		fmt.Fprint(b, " pool=", m.pool.ID())
	}
	for _, f := range []struct {
		name string
		is   bool
	}{{"NoGrad", m.noGrad}, {"TF32", m.tf32}, {"ManualStreams", m.byHand}} {
		if f.is {
			b.WriteString(" " + f.name)
		}
	}
}

// String prints the number; a whole number with more digits than a float has all of them.
func (n number) String() string {
	v := scalarsOf4(&[4]number{n})[0]
	float, hole := kernels.FloatScalar(v.F), kernels.Scalar{F: v.F, I: int64(v.F)} // as most numbers are kept
	switch whole := v.F != 0 && v.I != 0 && float64(v.I) == v.F; {
	case n.im != 0:
		return fmt.Sprint(complex(v.F, v.Im))
	case n.f == 0 && v.I != 0, whole && int64(v.F) != v.I:
		return fmt.Sprint(v.I)
	case v.I != 0 && !whole && n != numberOf(&float) && n != numberOf(&hole):
		return fmt.Sprint(v.F, "/", v.I)
	}
	return fmt.Sprint(v.F)
}

// printParam prints a row's own attribute: its type and its fields.
func printParam(p param) string {
	if p, ok := p.(interface{ printed() string }); ok {
		return p.printed()
	}
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", p), "*"), "core."))
	printFields(&b, reflect.ValueOf(p))
	return b.String()
}

// printFields prints v as %+v does, but the objects that exist only once by their contents or names.
func printFields(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		b.WriteByte('{')
		for i := range v.NumField() {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(v.Type().Field(i).Name + ":")
			printFields(b, v.Field(i))
		}
		b.WriteByte('}')
	case reflect.Array, reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(' ')
			}
			printFields(b, v.Index(i))
		}
		b.WriteByte(']')
	case reflect.Pointer:
		printObject(b, v)
	default:
		if v.Type() == reflect.TypeFor[floatBits]() {
			fmt.Fprint(b, floatBits(v.Uint()).value())
			return
		}
		fmt.Fprintf(b, "%v", v)
	}
}

// printObject prints what the pointer v refers to.
func printObject(b *strings.Builder, v reflect.Value) {
	if v.IsNil() {
		b.WriteString("none")
		return
	}
	field := func(name string) reflect.Value { return v.Elem().FieldByName(name) }
	switch v.Type() {
	case reflect.TypeFor[*intList]():
		printFields(b, field("n"))
	case reflect.TypeFor[*form]():
		printFields(b, field("shape"))
		b.WriteByte('/')
		printFields(b, field("stride"))
	case reflect.TypeFor[*row](), reflect.TypeFor[*kernels.PointOp]():
		b.WriteString(field("Name").String())
	case reflect.TypeFor[*kernels.RandomOp]():
		b.WriteString(field("name").String())
	case reflect.TypeFor[*kernels.StepOp]():
		printFields(b, field("PointOp"))
	case reflect.TypeFor[*rt.Stream]():
		fmt.Fprint(b, field("id"))
	default:
		if s, ok := v.Interface().(fmt.Stringer); ok {
			b.WriteString(s.String())
		}
	}
}
