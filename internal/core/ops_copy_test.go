package core

import (
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// TestCopyFromHost copies tensors of the processor to tensors of a device: with equal bytes at once and in order, else by way of a copy.
func TestCopyFromHost(t *testing.T) {
	toSim(t, func(t *testing.T, x, host *Exec) {
		a, b := x.Zeros([]int{2, 3}, dtype.Float32), From(host, count(6), 2, 3)
		side := onNew(t, x)
		side.FillInto(a, 9)
		mem := x.Device().Memory()
		mem.ResetPeakStats()
		has := mem.Stats().AllocatedBytes[0].Current
		x.CopyInto(a, b)
		host.FillInto(b, 7) // the copy has the bytes of before
		if peak := mem.Stats().AllocatedBytes[0].Peak; peak != has {
			t.Errorf("the copy took %d bytes", peak-has)
		}
		want(t, side, side.MulS(a, 2), 0, 2, 4, 6, 8, 10)
		for _, src := range []*Tensor{
			host.Full([]int{3}, 4, dtype.Float32), host.Full([]int{2, 3}, 4, dtype.Float64), host.Full([]int{2, 3}, 4, dtype.Int32),
			host.Transpose(host.Full([]int{3, 2}, 4, dtype.Float32), 0, 1), x.PinMemory(host.Full([]int{2, 3}, 4, dtype.Float32)),
		} {
			x.FillInto(a, 0)
			x.CopyInto(a, src)
			want(t, x, a, 4, 4, 4, 4, 4, 4)
		}
		w := host.Full([]int{2, 3}, 4, dtype.Float32).SetRequiresGrad(true)
		y := x.MulS(a, 1)
		x.CopyInto(y, w)
		g, err := x.Grad([]*Tensor{x.Sum(y, nil, SumOpt{})}, []*Tensor{w}, GradOpt{})
		if err != nil {
			t.Fatal(err)
		}
		want(t, host, g[0], 1, 1, 1, 1, 1, 1)
		_, err = x.Capture(func(x *Exec) { x.CopyInto(a, b) }, CaptureOpt{})
		wantError(t, err, fault.Capture, "copying host data to a tensor cannot be captured")
		b.Close()
		wantError(t, Try(func() { x.CopyInto(a, b) }), fault.Closed, "was closed")
	})
}
