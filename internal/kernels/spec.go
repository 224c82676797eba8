package kernels

import (
	"fmt"
	"math/bits"
	"reflect"
	"strings"

	"tenon.dev/dtype"
)

// Spec identifies one specialised kernel: it is the key of the runtime's kernel cache and contains everything that Build needs. It never
// contains shapes, only classes of shapes. A family sets the common fields and its own field; the others stay zero. There are no gaps
// between fields, so that a lookup hashes one piece of memory.
type Spec struct {
	// Op is the operation within the family.
	Op uint16
	// Family selects the engine.
	Family Family
	// Compute is the compute type. It is a half only for pointwise operations with Halves, which compute in Float32. DTypes are the types
	// of the operands, outputs first.
	Compute dtype.DType
	DTypes  [maxOperands]dtype.DType
	// Outs and Ins are the numbers of operands.
	Outs, Ins uint8
	// Index is the width of indexes in bits, Vec the number of elements per access.
	Index, Vec uint8
	// Back is 1 if blocks with low numbers, which run first, process the end. It has two bytes so that there is no gap.
	Back uint16

	Assert      assertSpec
	Compact     compactSpec
	Unique      uniqueSpec
	Multinomial multinomialSpec
	Random      randomSpec
	Dropout     dropoutSpec
	Advance     advanceSpec
	NLL         nllSpec
	Depthwise   depthwiseSpec
	Pool        poolSpec
	Resample    resampleSpec
	Indexed     indexSpec
	Sort        sortSpec
	Segment     segmentSpec
	Turn        turnSpec
	Conv        convSpec
	Product     productSpec
	Point       pointSpec
	Reduce      reduceSpec
	Rows        rowSpec
	Attention   attentionSpec
}

// specCommon is the number of fields of Spec that all families have.
const specCommon = 9

// operandSet is a set of operands, one bit each, outputs first.
type operandSet uint16

func (s operandSet) has(i int) bool { return s>>i&1 != 0 }
func (s *operandSet) add(i int)     { *s |= 1 << i }
func (s operandSet) count() int     { return bits.OnesCount16(uint16(s)) }
func (s operandSet) first() int     { return bits.TrailingZeros16(uint16(s)) }

// operandsFrom returns n operands from number first on.
func operandsFrom(first, n int) operandSet { return (1<<n - 1) << first }

// name returns the kernel name of s: equal specs have equal names, and different ones have different names.
func (s *Spec) name(prefix string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for _, d := range s.DTypes[:s.Outs+s.Ins] {
		if d == dtype.Invalid {
			b.WriteString("_s")
			continue
		}
		b.WriteString("_" + d.Short())
	}
	fmt.Fprintf(&b, "_%s_i%d_v%d", s.Compute.Short(), s.Index, s.Vec)
	if s.Back == 1 {
		b.WriteString("_back")
	}
	v := reflect.ValueOf(s).Elem()
	for i := specCommon; i < v.NumField(); i++ {
		nameFields(&b, "_", v.Field(i))
	}
	return b.String()
}

// Key describes kernel s in a form that is the same in all processes of one build of a program. Operations that are made while a program
// runs get their ids in an order that differs between processes, so the key says what they are made of. All other ids are assigned in a
// fixed order when a program starts.
func (s *Spec) Key() string {
	c, made := *s, ""
	switch s.Family {
	case FamilyFused:
		c.Op, made = 0, opOf(s).group
	case FamilyMatmul, FamilyMatvec, FamilyMatmulFinish, FamilyConv:
		if s.Product.Results > 0 {
			c.Op, made = 0, opOf(s).group
		}
		if m := &c.Product.Made; m.Ins > 0 {
			made += " of " + m.op().group
			m.Op = 0
		}
	case FamilyReduce:
		if p := reduceOpOf(s).fused; p != nil {
			c.Op, made = 0, p.key()
		}
	case FamilyRows:
		if a := rowOpOf(s).around; a != nil {
			c.Op, made = a.base.id, fmt.Sprintf("around %q %q", groupOf(a.before), groupOf(a.after))
		}
	}
	return fmt.Sprint(c, made)
}

// nameFields appends the fields of a family's spec that are not zero, as field and number.
func nameFields(b *strings.Builder, prefix string, v reflect.Value) {
	for i := range v.NumField() {
		f, label := v.Field(i), prefix+strings.ToLower(v.Type().Field(i).Name)
		switch {
		case f.Kind() == reflect.Struct:
			nameFields(b, label, f)
		case f.IsZero():
		case f.Kind() == reflect.Bool:
			b.WriteString(label)
		default:
			fmt.Fprintf(b, "%s%d", label, f.Uint())
		}
	}
}
