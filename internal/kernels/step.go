package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// StepOp is the step of an optimizer over many parameters. Its scalars depend on how many steps came before, which the device itself counts, so that a
// step waits for nothing of the host, can be captured in a graph, and can be skipped by the device: each parameter has a row of numbers in device memory,
// and [Advance] writes the rows before [MultiTensor] reads them.
type StepOp struct {
	*PointOp
	// Numbers counts what the optimizer was given: the learning rate first.
	Numbers int
	// row gives the scalars of a step. h are the numbers; m is what the row remembers: first the step's number, from 1 on, then what the op changes.
	row func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value
	id  uint16
}

// A row is RowLen float64: RowMemory that are remembered, one that is not 0 if the step is skipped, and the scalars.
const (
	RowLen     = 16
	RowMemory  = 4
	rowSkip    = RowMemory
	rowScalars = RowMemory + 1
)

var stepOps []*StepOp

// StepOps returns all steps, in the order of their ids.
func StepOps() []*StepOp { return stepOps }

func step(op PointOp, numbers int, row func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value) *StepOp {
	s := &StepOp{PointOp: point(op), Numbers: numbers, row: row, id: uint16(len(stepOps))}
	stepOps = append(stepOps, s)
	return s
}

const (
	advanceThreads = 128
	// advanceRows is how many rows one launch takes.
	advanceRows = 512
)

// Attr[0] bits of FamilyAdvance.
const (
	advanceRate  = 1 << iota // the learning rate is read from memory
	advanceFound             // whether to skip is, too
)

// Advance begins a step of the parameters whose rows are named: it counts it and writes the scalars. lr, if its address is not 0, is a float that stands
// for the first number. If found (float32) is there and not 0, the rows are marked to be skipped, and nothing is counted.
func Advance(is Issuer, op *StepOp, numbers []float64, rows Rows, lr, found Operand) error {
	if len(numbers) != op.Numbers {
		return fmt.Errorf("%s takes %d numbers, got %d", op.Name, op.Numbers, len(numbers))
	}
	for which := rows.Which; len(which) > 0; {
		n := min(len(which), advanceRows)
		l := is.NewLaunch()
		s := &l.Spec
		s.Family, s.Op, s.Compute, s.Ins = FamilyAdvance, op.id, dtype.Float64, 2
		s.DTypes[0], s.DTypes[1] = dtype.Invalid, dtype.Invalid
		l.u64(rows.Ptr)
		if lr.Ptr != 0 {
			s.Attr[0] |= advanceRate
			s.DTypes[0] = lr.DType
			l.u64(lr.Ptr)
		}
		if found.Ptr != 0 {
			s.Attr[0] |= advanceFound
			s.DTypes[1] = found.DType
			l.u64(found.Ptr)
		}
		for _, v := range numbers {
			l.f64(v)
		}
		for i := range advanceRows {
			if i < n {
				l.i32(int(which[i]))
			} else {
				l.i32(0)
			}
		}
		l.i32(n)
		l.Grid = [3]uint32{uint32(ceilDiv(n, advanceThreads)), 1, 1}
		l.Block = [3]uint32{advanceThreads, 1, 1}
		if err := is.Issue(l); err != nil {
			return err
		}
		which = which[n:]
	}
	return nil
}

var _ = register(FamilyAdvance, buildAdvance)

func buildAdvance(s *Spec) *kernel.Kernel {
	op := stepOps[s.Op]
	return kernel.Build(s.name("advance_"+op.Name), func(k *kernel.Builder) {
		k.FixedThreads(advanceThreads)
		rows := k.Buffer("rows", dtype.Float64)
		var rate, found array
		if s.Attr[0]&advanceRate != 0 {
			rate = arrayParam(k, "lr", s.DTypes[0])
		}
		if s.Attr[0]&advanceFound != 0 {
			found = arrayParam(k, "found", s.DTypes[1])
		}
		h := make([]kernel.Value, op.Numbers)
		for i := range h {
			h[i] = k.Scalar(fmt.Sprintf("n%d", i), dtype.Float64)
		}
		which := k.Params("row", dtype.Int32, advanceRows)
		n := k.Scalar("n", dtype.Int32)
		i := k.BlockIdx(kernel.X).Mul(k.I32(advanceThreads)).Add(k.ThreadIdx(kernel.X))
		k.If(i.Lt(n), func() {
			at := which.Load(i).Mul(k.I32(RowLen))
			advance := func() {
				if s.Attr[0]&advanceRate != 0 {
					h[0] = rate.load(k.I32(0), 1)[0].Convert(dtype.Float64).Re
				}
				m := make([]kernel.Value, RowMemory)
				for j := range m {
					m[j] = rows.LoadAt(at, j)
				}
				m[0] = m[0].Add(k.F64(1))
				scalars := op.row(k, h, m)
				for j, v := range append(append(m, k.F64(0)), scalars...) {
					rows.Store(at.Add(k.I32(j)), v)
				}
			}
			if s.Attr[0]&advanceFound == 0 {
				advance()
				return
			}
			skip := found.load(k.I32(0), 1)[0].Convert(dtype.Float64).Re
			k.IfElse(skip.Eq(k.F64(0)), advance, func() { rows.Store(at.Add(k.I32(rowSkip)), k.F64(1)) })
		})
	})
}
