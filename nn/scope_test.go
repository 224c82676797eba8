package nn_test

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

// Scoped closes a module with the innermost scope, whatever the module has been through, and no earlier.
func TestScoped(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		before := testdevice.Storages()
		var norm *nn.BatchNorm
		x.Scope(func(x *tenon.Exec) {
			norm = nn.Scoped(x, nn.NewBatchNorm1d(x, 3))
			x.Scope(func(x *tenon.Exec) {
				if again := nn.Scoped(x, norm); again != norm {
					t.Error("Scoped returns another module")
				}
			})
			out := norm.Forward(x, x.RandN([]int{4, 3}, tenon.Float32))
			if err := x.Backward(x.Sum(x.Square(out), nil)); err != nil || norm.Weight.Grad() == nil {
				t.Errorf("no gradient: %v", err)
			}
		})
		if n := core.LiveStorages() - before; n != 0 {
			t.Errorf("%d storages are left", n)
		}
		for name, s := range nn.StateDict(norm) {
			if err := tenon.Try(func() { x.Neg(s) }); err == nil {
				t.Errorf("%s is open", name)
			}
		}
		x.Scope(func(x *tenon.Exec) {
			l := nn.Scoped(x, nn.NewLinear(x, 2, 2))
			l.Bias.Set(x.Zeros([]int{2}, tenon.Float32)) // belongs to the box
			nn.Close(l)
			nn.Scoped(x, l)
		})
		if n := core.LiveStorages() - before; n != 0 {
			t.Errorf("%d storages are left of a module that was closed", n)
		}
	})
	x := testdevice.Open(t, tenon.Sim(0))
	l := nn.Scoped(x, nn.NewLinear(x, 2, 2)) // no scope is open
	x.Scope(func(x *tenon.Exec) {})
	l.Forward(x, x.Ones([]int{1, 2}, tenon.Float32)).Close()
	nn.Close(l)
}

// ToChannelsLast changes the memory order of what has four dimensions, with gradients and buffers, and no element; the module works as one
// whose tensors were laid by hand, and stays so on another device.
func TestToChannelsLast(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		type net struct {
			Conv *nn.Conv2d
			Norm *nn.BatchNorm
			Mask *nn.Buffer
		}
		h := x.Host()
		m := &net{nn.NewConv2d(h, 3, 4, [2]int{3, 2}, nn.Conv2dOpt{Generator: nn.NewHostGenerator(1)}), nn.NewBatchNorm2d(h, 4),
			nn.NewBuffer(h.RandN([]int{1, 4, 2, 2}, tenon.Float32))}
		defer nn.Close(m)
		m.Conv.Bias.SetRequiresGrad(false)
		m.Conv.Weight.SetGrad(h.RandN([]int{4, 3, 3, 2}, tenon.Float32))
		if err := nn.To(x, m); err != nil {
			t.Fatal(err)
		}
		var tensors []*tenon.Tensor
		var elements [][]float32
		note := func() {
			tensors, elements = []*tenon.Tensor{m.Conv.Weight.Grad()}, [][]float32{floats(t, x, m.Conv.Weight.Grad())}
			for _, s := range nn.StateDict(m) {
				if s.DType() == tenon.Float32 {
					tensors, elements = append(tensors, s), append(elements, floats(t, x, s))
				}
			}
		}
		note()
		before, want := tensors, elements
		images := x.RandN([]int{2, 3, 5, 5}, tenon.Float32)
		byHand := x.ChannelsLast(m.Conv.Weight.Tensor())
		wantOut := x.Conv2d(images, byHand, m.Conv.Bias.Tensor())
		if err := nn.ToChannelsLast(x, m); err != nil {
			t.Fatal(err)
		}
		check := func() {
			t.Helper()
			note()
			for i, s := range tensors {
				if !slices.Equal(elements[i], want[i]) {
					t.Errorf("tensor %d has other elements", i)
				}
				if s.Dim() != 4 {
					continue
				}
				c, h, w := s.Size(1), s.Size(2), s.Size(3)
				if !slices.Equal(s.Stride(), []int{c * h * w, 1, w * c, c}) {
					t.Errorf("tensor %d of shape %v has strides %v", i, s.Shape(), s.Stride())
				}
			}
		}
		check()
		for i, s := range tensors {
			if (s.Dim() == 4) == (s == before[i]) {
				t.Errorf("%v was replaced: %v", s, s != before[i])
			}
		}
		if !m.Conv.Weight.Tensor().RequiresGrad() || m.Conv.Bias.Tensor().RequiresGrad() || m.Mask.Tensor().RequiresGrad() {
			t.Error("other tensors require gradients")
		}
		out := m.Conv.Forward(x, images)
		if !slices.Equal(floats(t, x, out), floats(t, x, wantOut)) || !slices.Equal(out.Stride(), wantOut.Stride()) {
			t.Errorf("the convolution differs; its strides are %v and %v", out.Stride(), wantOut.Stride())
		}
		weight := m.Conv.Weight.Tensor()
		if err := nn.ToChannelsLast(x, m); err != nil || m.Conv.Weight.Tensor() != weight {
			t.Errorf("the second time the weight changes, %v", err)
		}
		if err := nn.To(h, m); err != nil {
			t.Fatal(err)
		}
		x = h
		check()
	})
}
