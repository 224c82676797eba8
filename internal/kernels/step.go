package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/kernel"
)

// StepOp is the step of an optimizer over many parameters. Its scalars depend on the number of preceding steps, which the device itself
// counts. A step therefore need not wait for the host, can be captured in a graph, and can be skipped by the device. Each parameter has a
// row of numbers in device memory; [Advance] writes the rows before [MultiTensor] reads them.
type StepOp struct {
	*PointOp
	// Numbers is how many numbers the optimizer is given; the first is the learning rate.
	Numbers int
	// row computes the scalars of a step. h are the numbers. m is the memory of the row: first the step's number, counted from 1, then
	// values that the op changes.
	row func(k *kernel.Builder, h, m []kernel.Value) []kernel.Value
	id  uint16
}

// A row is RowLen float64: RowMemory that are kept between steps, one that is not 0 if the step is skipped, and the scalars.
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
	// advanceRows is the number of rows per launch.
	advanceRows = 512
)

// advanceSpec is what advances are specialised on.
type advanceSpec struct {
	// Rate: the learning rate is read from memory. Found: so is whether to skip.
	Rate, Found bool
}

// advanceArgs are the arguments of an advance of n rows.
type advanceArgs struct {
	op          *StepOp
	rows        bufferArg
	rate, found arrayArg
	numbers     floatsArg
	which       listArg[int32]
	n           intArg
}

func (a *advanceArgs) layout(p params) {
	p.buffer(&a.rows, "rows", dtype.Float64)
	if p.s.Advance.Rate {
		p.array(&a.rate, "lr", p.s.DTypes[0])
	}
	if p.s.Advance.Found {
		p.array(&a.found, "found", p.s.DTypes[1])
	}
	p.f64s(&a.numbers, "n", a.op.Numbers)
	list(p, &a.which, "row", advanceRows)
	p.i32(&a.n, "n")
}

// Advance begins a step for the parameters with the given rows: it counts the step and writes the scalars. lr, if present, is a float that
// replaces the first number. If found (float32) is present and not 0, the rows are marked to be skipped and the step is not counted.
func Advance(is Issuer, op *StepOp, numbers []float64, rows Rows, lr, found Operand) error {
	if len(numbers) != op.Numbers {
		return fmt.Errorf("%s takes %d numbers, got %d", op.Name, op.Numbers, len(numbers))
	}
	for which := rows.Which; len(which) > 0; {
		n := min(len(which), advanceRows)
		l := is.NewLaunch()
		s := &l.Spec
		s.Family, s.Op, s.Compute, s.Ins = FamilyAdvance, op.id, dtype.Float64, 2
		if s.Advance.Rate = lr.Ptr != 0; s.Advance.Rate {
			s.DTypes[0] = lr.DType
		}
		if s.Advance.Found = found.Ptr != 0; s.Advance.Found {
			s.DTypes[1] = found.DType
		}
		var a advanceArgs
		a.op, a.rows.host, a.rate.host, a.found.host = op, rows.Ptr, lr.Ptr, found.Ptr
		a.numbers.host, a.which.host, a.n.host = numbers, which[:n], n
		a.layout(packing(l))
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
		a := advanceArgs{op: op}
		a.layout(declaring(k, s))
		rows, h := a.rows.Buffer, a.numbers.values
		i := k.BlockIdx(kernel.X).Mul(k.I32(advanceThreads)).Add(k.ThreadIdx(kernel.X))
		k.If(i.Lt(a.n.Value), func() {
			at := a.which.Load(i).Mul(k.I32(RowLen))
			advance := func() {
				if s.Advance.Rate {
					h[0] = a.rate.load(k.I32(0), 1)[0].Convert(dtype.Float64).Re
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
			if !s.Advance.Found {
				advance()
				return
			}
			skip := a.found.load(k.I32(0), 1)[0].Convert(dtype.Float64).Re
			k.IfElse(skip.Eq(k.F64(0)), advance, func() { rows.Store(at.Add(k.I32(rowSkip)), k.F64(1)) })
		})
	})
}
