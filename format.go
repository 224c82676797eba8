package tenon

import (
	"fmt"
	"strings"

	"tenon.dev/dtype"
)

// What Format shows of a large tensor: of every dimension longer than 2*formatEdge the ends alone, once there are more than formatWhole
// elements, as PyTorch's print does.
const (
	formatWhole = 1000
	formatEdge  = 3
)

// Format returns the elements as text for people, in brackets by dimension, with type, shape and device behind: [[1 2] [3 4]] float32[2 2]
// on CPU. Floats have four digits; of more than 1,000 elements only the first and last three along each dimension are shown and copied; no
// elements are [], whatever the shape. It waits for the work that makes them.
func (x *Exec) Format(t *Tensor) (text string, err error) {
	stopped := Try(func() {
		x.NoGrad().Scope(func(x *Exec) {
			part, cut := x.ends(t)
			f := formatter{shape: part.Shape(), cut: cut}
			if t.Numel() == 0 {
				f.shape = []int{0} // the rows of nothing may be many
			}
			if f.words, err = x.words(part); err != nil {
				return
			}
			for _, w := range f.words {
				f.width = max(f.width, len(w))
			}
			f.write(0)
			text = f.String() + " " + t.String()
		})
	})
	if stopped != nil {
		return "", stopped
	}
	return text, err
}

// ends returns the part of t that is shown and which of its dimensions lack their middle.
func (x *Exec) ends(t *Tensor) (part *Tensor, cut []bool) {
	cut = make([]bool, t.Dim())
	if t.Numel() <= formatWhole {
		return t, cut
	}
	for d := range cut {
		if n := t.Size(d); n > 2*formatEdge {
			t, cut[d] = x.Cat([]*Tensor{x.Slice(t, d, 0, formatEdge, 1), x.Slice(t, d, n-formatEdge, n, 1)}, d), true
		}
	}
	return t, cut
}

// words returns the elements of t as texts, row-major.
func (x *Exec) words(t *Tensor) ([]string, error) {
	switch dt := t.DType(); {
	case dt.IsComplex():
		return texts[complex128](x, x.ToDType(t, Complex128), "%.4g")
	case dt.IsFloat():
		return texts[float64](x, x.ToDType(t, Float64), "%.4g")
	case dt == Bool:
		return texts[bool](x, t, "%t")
	}
	return texts[int64](x, x.ToDType(t, Int64), "%d")
}

func texts[T dtype.Element](x *Exec, t *Tensor, format string) ([]string, error) {
	values, err := Read[T](x, t)
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprintf(format, v)
	}
	return words, err
}

// formatter writes words in brackets.
type formatter struct {
	strings.Builder
	shape []int
	cut   []bool
	width int
	words []string // those that are not written yet
}

// write writes what lies in dimension d at one place of the dimensions before.
func (f *formatter) write(d int) {
	if d == len(f.shape) {
		fmt.Fprintf(f, "%*s", f.width, f.words[0])
		f.words = f.words[1:]
		return
	}
	inner := len(f.shape) - 1 - d // rows stand apart by a line, matrices by an empty line, and so on
	apart := " "
	if inner > 0 {
		apart = strings.Repeat("\n", inner) + strings.Repeat(" ", d+1)
	}
	f.WriteString("[")
	for i := range f.shape[d] {
		if i > 0 {
			f.WriteString(apart)
		}
		if f.cut[d] && i == formatEdge {
			f.WriteString("…" + apart)
		}
		f.write(d + 1)
	}
	f.WriteString("]")
}
