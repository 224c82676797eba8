package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// signature names what a call of a row has: operands, attributes and outputs. The field takes spells it: operands, numbers and structure,
// separated by semicolons, then outputs after an arrow. Without an arrow there is one output, y. Lists at the end may be left out.
//
// A ? marks an operand or output that may be absent, # an operand that a number may replace, … a list of operands or outputs, and ^
// operands that the call changes though they are not destinations. Numbers are the scalars in their order, and are values: the same kernels
// run for any of them. A ! behind a number, or behind #, says that it decides which kernels run, or how. Structure decides types, shapes
// and kernels: the whole numbers in their order (one named - is not used), * marks the list, dtype is the requested type and options the
// row's own attribute.
type signature struct {
	ins, numbers, outs []named
	whole              []string
	list               string
	dtype, options     bool
}

// named is an operand, a number or an output.
type named struct {
	name                                       string
	optional, number, decides, isMany, changed bool
}

// fit parses the row's signature. Rows of pointwise operations without numbers may leave it out.
func (r *row) fit() {
	text := r.takes
	if text == "" && r.point != nil && r.point.Scalars == 0 {
		text = [...]string{"", "t", "a b"}[min(r.point.Ins, 2)]
	}
	before, after, arrow := strings.Cut(text, "->")
	if !arrow {
		after = "y"
	}
	lists := append(strings.Split(before, ";"), "", "")
	s := &r.sig
	s.ins, s.numbers, s.outs = namesOf(lists[0]), namesOf(lists[1]), namesOf(after)
	for _, w := range strings.Fields(lists[2]) {
		switch list, isList := strings.CutSuffix(w, "*"); {
		case isList:
			s.list = list
		case w == "dtype":
			s.dtype = true
		case w == "options":
			s.options = true
		default:
			s.whole = append(s.whole, w)
		}
	}
	r.bare = len(s.numbers)+len(s.whole) == 0 && s.list == "" && !s.dtype && !s.options
	for i, in := range s.ins {
		if in.optional {
			r.optional |= in0 << i
		}
		if in.changed {
			r.flags |= flagMutates
		}
	}
	if r.flags&flagMutates != 0 && r.alters == nil {
		r.alters = alterMarked
	}
	for i, n := range s.numbers {
		if n.decides && i < 4 {
			r.decides |= 1 << i
		}
	}
	for i, n := range s.ins {
		if n.decides && i < 4 {
			r.decides |= 1 << (4 + i)
		}
	}
	if p := r.point; text == "" || p != nil && r.infer == nil && (len(s.ins) != p.Ins || len(s.numbers) != p.Scalars) {
		panic("core: the operation " + r.Name + " does not say what it takes")
	}
}

// alterMarked notes that a call changes the operands that its row marks with ^.
func alterMarked(f *frame) {
	for i, in := range f.row.sig.ins {
		switch {
		case !in.changed:
		case in.isMany:
			f.altered = append(f.altered, f.many...)
		case f.in[i] != nil:
			f.alter(f.in[i])
		}
	}
}

func namesOf(list string) (out []named) {
	for _, w := range strings.Fields(list) {
		name := strings.TrimRight(w, "?#!…^")
		marks := w[len(name):]
		has := func(mark string) bool { return strings.Contains(marks, mark) }
		out = append(out, named{name, has("?"), has("#"), has("!"), has("…"), has("^")})
	}
	return out
}

// OpInfo is what the table says about an operation.
type OpInfo struct {
	// Name is the operation's name in errors and traces, Torch PyTorch's name or empty, and Package the folder of the defining package.
	Name, Torch, Package string
	// Operands and Outputs are their names, with ? behind those that may be absent, # behind operands that a number may replace, and …
	// behind lists. Changed are the operands that it changes besides destinations.
	Operands, Outputs, Changed []string
	// Values are the numbers that decide nothing; Structure is everything besides the operands that decides types, shapes and kernels.
	Values, Structure []string
	// Aliases says that the outputs share the first operand's storage; Into that the outputs are always destinations; Foreign that operands
	// are on other devices; Draws that it takes numbers from a generator; Waits that it waits for the device, or may, and so cannot be
	// captured; Varies that if several elements go to one place, which of them wins may differ from run to run; User that the program
	// defines what it does; Sized that the size of its output depends on data: it is a number in the structure that was read from the
	// device; Asserts that its kernels have assertions, which may fail.
	Aliases, Into, Foreign, Draws, Waits, Varies, User, Sized, Asserts bool
	// Derivative says that it has a derivative, and Cast what autocast does with its operands.
	Derivative bool
	Cast       castClass
}

// Ops returns the table's entries, sorted by name.
func Ops() []OpInfo {
	var out []OpInfo
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		r := rows[name]
		is := func(f flag) bool { return r.flags&f != 0 }
		info := OpInfo{Name: r.Name, Torch: r.Torch, Package: r.pkg,
			Aliases: is(flagView), Into: is(flagInto), Foreign: is(flagForeign), Draws: r.draws != nil,
			Waits: is(flagWaits), Varies: is(flagVaries), User: is(flagUser), Sized: is(flagSized), Asserts: is(flagAsserts),
			Derivative: r.back != nil, Cast: r.cast}
		for _, n := range r.sig.ins {
			info.Operands = append(info.Operands, n.marked())
			if n.changed {
				info.Changed = append(info.Changed, n.name)
			}
			if n.number && n.decides {
				info.Structure = append(info.Structure, n.name+" where it is a number")
			}
		}
		for _, n := range r.sig.outs {
			info.Outputs = append(info.Outputs, n.marked())
		}
		for _, n := range r.sig.numbers {
			if n.decides {
				info.Structure = append(info.Structure, n.name)
			} else {
				info.Values = append(info.Values, n.name)
			}
		}
		for _, n := range r.sig.whole {
			if n != "-" {
				info.Structure = append(info.Structure, n)
			}
		}
		if r.sig.list != "" {
			info.Structure = append(info.Structure, r.sig.list+"…")
		}
		if r.sig.dtype {
			info.Structure = append(info.Structure, "dtype")
		}
		if r.sig.options {
			info.Structure = append(info.Structure, "options")
		}
		out = append(out, info)
	}
	return out
}

// marked is the name with the marks that readers of the page of operations need.
func (n named) marked() string {
	s := n.name
	for _, m := range []struct {
		has  bool
		mark string
	}{{n.optional, "?"}, {n.number, "#"}, {n.isMany, "…"}} {
		if m.has {
			s += m.mark
		}
	}
	return s
}

// undeclared names something that c has but that its row does not declare, or is empty.
func (c *Call) undeclared() string {
	s := &c.row.sig
	ops := c.Operands()
	list := len(s.ins) > 0 && s.ins[0].isMany
	switch {
	case c.many > 0 && !list, !list && int(c.ins) > len(s.ins):
		return fmt.Sprintf("%d operands and a list of %d", c.ins, c.many)
	case c.dt != dtype.Invalid && !s.dtype:
		return fmt.Sprint("the type ", c.dt)
	case c.list != nil && s.list == "":
		return fmt.Sprint("the list ", c.list.n)
	case c.opt != nil && !s.options:
		return fmt.Sprintf("the attribute %T", c.opt)
	}
	for i, o := range ops[:c.ins] {
		number := c.holes&(1<<i) != 0
		if number && !s.ins[i].number || !number && o.Absent() && !s.ins[i].optional {
			return fmt.Sprintf("no tensor as operand %s", s.ins[i].name)
		}
	}
	for i, v := range scalarsOf4(&c.scalar) {
		if v != (kernels.Scalar{}) && i >= len(s.numbers) {
			return fmt.Sprintf("number %d, %v", i, v)
		}
	}
	for i, v := range c.i {
		if v != 0 && (i >= len(s.whole) || s.whole[i] == "-") {
			return fmt.Sprintf("whole number %d, %d", i, v)
		}
	}
	return ""
}

// Undeclared names something that the call has but that its row does not declare, or is empty.
func (f *frame) Undeclared() string {
	c, outs := f.Call(), f.row.sig.outs
	if many := len(outs) > 0 && outs[0].isMany; f.outs > len(outs) && !many {
		return fmt.Sprint(f.outs, " outputs")
	}
	return c.undeclared()
}
