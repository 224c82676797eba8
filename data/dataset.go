// Package data reads samples of data sets in batches: shuffled, read ahead by goroutines into page-locked memory, and copied to the
// device on a separate stream while the device computes. It must not depend on models or losses: it moves bytes with types and shapes.
package data

import (
	"fmt"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/origin"
)

// Field describes one tensor of a sample.
type Field struct {
	// DType is its element type.
	DType tenon.DType
	// Shape is its shape, without the batch's dimension.
	Shape []int
}

// Bytes returns the size of the field's elements in bytes.
func (f Field) Bytes() int {
	n := f.DType.Size()
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// Dataset is a numbered set of samples. Its methods are called by several goroutines at once.
type Dataset interface {
	// Len returns the number of samples.
	Len() int
	// Fields describes the tensors of a sample. The result is the same for all samples and all calls.
	Fields() []Field
	// Read writes the elements of sample i, row-major and little-endian, to dst, which has a slice of the right size for each field.
	Read(i int, dst [][]byte) error
}

// Column is one field of all samples of a Table.
type Column struct {
	field Field
	data  []byte
	rows  int
}

// NewColumn returns a column over v, which it does not copy. Each sample is a tensor of the given shape, or a scalar without one.
func NewColumn[T dtype.Element](v []T, shape ...int) Column {
	c := Column{field: Field{dtype.Of[T](), slices.Clone(shape)}, data: dtype.AsBytes(v), rows: -1}
	if n := c.field.Bytes(); n > 0 && len(c.data)%n == 0 {
		c.rows = len(c.data) / n
	}
	return c
}

// Table is a Dataset in memory.
type Table struct{ columns []Column }

// String describes the table, such as "data.Table(60000 samples of uint8[28 28], int64[])".
func (t *Table) String() string {
	if t == nil {
		return "nil table"
	}
	if len(t.columns) == 0 {
		return "data.Table(0 samples)"
	}
	fields := make([]string, len(t.columns))
	for i, c := range t.columns {
		fields[i] = fmt.Sprintf("%v%v", c.field.DType, c.field.Shape)
	}
	return fmt.Sprintf("data.Table(%d samples of %s)", t.Len(), strings.Join(fields, ", "))
}

// NewTable returns a table of the columns, which must have the same number of rows.
func NewTable(columns ...Column) (t *Table, err error) {
	defer origin.Located("data.NewTable", &err)
	if len(columns) == 0 {
		return nil, fault.New(fault.Invalid, "a table needs at least one column")
	}
	for i, c := range columns {
		if c.rows < 0 {
			f := c.field
			if f.Bytes() <= 0 {
				return nil, fault.New(fault.Invalid, "the samples of column %d have shape %v and no elements; give another shape",
					i, f.Shape)
			}
			return nil, fault.New(fault.Invalid, "column %d has %d elements, which are not a whole number of samples of shape %v; give a "+
				"multiple of %d", i, len(c.data)/f.DType.Size(), f.Shape, f.Bytes()/f.DType.Size())
		}
		if c.rows != columns[0].rows {
			return nil, fault.New(fault.Invalid, "column %d has %d rows, column 0 has %d; give all columns equally many", i,
				c.rows, columns[0].rows)
		}
	}
	return &Table{slices.Clone(columns)}, nil
}

// Len returns the number of rows.
func (t *Table) Len() int {
	if t == nil || len(t.columns) == 0 {
		return 0
	}
	return t.columns[0].rows
}

// Fields describes the columns.
func (t *Table) Fields() []Field {
	if t == nil {
		return nil
	}
	fs := make([]Field, len(t.columns))
	for i, c := range t.columns {
		fs[i] = c.field
	}
	return fs
}

// Read copies row i.
func (t *Table) Read(i int, dst [][]byte) error {
	if i < 0 || i >= t.Len() {
		return fault.New(fault.Invalid, "there is no row %d; the table has %d, numbered from 0", i, t.Len())
	}
	if len(dst) != len(t.columns) {
		return fault.New(fault.Invalid, "%d places were given for the row's %d columns", len(dst), len(t.columns))
	}
	for j, c := range t.columns {
		n := c.field.Bytes()
		if len(dst[j]) != n {
			return fault.New(fault.Invalid, "the place for column %d has %d bytes, and its samples have %d", j, len(dst[j]), n)
		}
		copy(dst[j], c.data[i*n:])
	}
	return nil
}

// Subset is the part of a Dataset that a list of sample numbers selects.
type Subset struct {
	// Of is the whole data set.
	Of Dataset
	// Rows are the numbers of the samples.
	Rows []int
}

// Len returns the number of selected samples.
func (s Subset) Len() int { return len(s.Rows) }

// Fields describes the samples, as Of does.
func (s Subset) Fields() []Field {
	if s.Of == nil {
		return nil
	}
	return s.Of.Fields()
}

// Read reads sample Rows[i] of Of.
func (s Subset) Read(i int, dst [][]byte) error {
	if s.Of == nil {
		return fault.New(fault.Invalid, "the subset is of no data set; set Of")
	}
	if i < 0 || i >= len(s.Rows) {
		return fault.New(fault.Invalid, "there is no sample %d; the subset has %d, numbered from 0", i, len(s.Rows))
	}
	return s.Of.Read(s.Rows[i], dst)
}
