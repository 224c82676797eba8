package tenon

import (
	"fmt"
	"strings"

	"tenon.dev/dtype"
)

// A tensor of more than formatWhole elements is large: Format shows only formatEdge elements at each end of every dimension longer than
// 2*formatEdge, as PyTorch's print does.
const (
	formatWhole = 1000
	formatEdge  = 3
)

// Format returns the elements as readable text, in brackets by dimension, followed by type, shape and device: [[1 2] [3 4]] float32[2 2]
// on CPU. Floats have four digits. Of a tensor with more than 1,000 elements, only the first and last three along each dimension are
// shown and copied. A tensor without elements is [], whatever its shape. Format waits for the work that makes the elements.
func (x *Exec) Format(t *Tensor) (text string, err error) {
	stopped := Try(func() {
		x.NoGrad().Scope(func(x *Exec) {
			part, cut := x.ends(t)
			f := formatter{shape: part.Shape(), cut: cut}
			if t.Numel() == 0 {
				f.shape = []int{0} // an empty tensor may have many rows
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

// words returns the elements of t as text, in row-major order.
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
	words []string // not yet written
}

// write writes dimension d at one index of the dimensions before it.
func (f *formatter) write(d int) {
	if d == len(f.shape) {
		fmt.Fprintf(f, "%*s", f.width, f.words[0])
		f.words = f.words[1:]
		return
	}
	inner := len(f.shape) - 1 - d // a line break between rows, an empty line between matrices, and so on
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
