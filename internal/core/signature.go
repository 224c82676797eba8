package core

import "strings"

// signature says by name what a call of a row has: operands, attributes and outputs. It is what the field takes spells: operands, numbers and structure, parted
// by semicolons, then, after an arrow, outputs; without one there is one output, y. Lists at the end may be left out.
//
// A ? marks an operand or output that may be absent, # an operand in whose place there may be a number, … a list of operands or outputs.
// Numbers are the scalars in their order, and are values: any will do, and the same kernels run. A ! behind one of them, or behind #, says that it decides which
// kernels run, or how. Structure is what decides types, shapes and kernels: the whole numbers in their order, of which one named - is not used, * marks the list,
// dtype is the type that is asked for and options the row's own attribute.
type signature struct {
	ins, numbers, outs []named
	whole              []string
	list               string
	dtype, options     bool
}

// named is an operand, a number or an output.
type named struct {
	name                              string
	optional, number, decides, isMany bool
}

// fit reads a signature. Rows of pointwise operations without numbers may leave it out.
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
	for i, in := range s.ins {
		if in.optional {
			r.optional |= in0 << i
		}
	}
	if p := r.point; text == "" || p != nil && r.infer == nil && (len(s.ins) != p.Ins || len(s.numbers) != p.Scalars) {
		panic("core: the operation " + r.Name + " does not say what it takes")
	}
}

func namesOf(list string) (out []named) {
	for _, w := range strings.Fields(list) {
		name := strings.TrimRight(w, "?#!…")
		marks := w[len(name):]
		out = append(out, named{name, strings.Contains(marks, "?"), strings.Contains(marks, "#"), strings.Contains(marks, "!"), strings.Contains(marks, "…")})
	}
	return out
}
