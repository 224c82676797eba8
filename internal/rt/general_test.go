package rt

import (
	"errors"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
)

// softmaxes returns the kernels of softmaxes of rows of the given lengths.
func softmaxes(t *testing.T, d *Device, lengths ...int) []kernels.Spec {
	t.Helper()
	s := &specs{limits: &d.limits}
	for _, n := range lengths {
		o := kernels.Operand{Ptr: 1 << 20, DType: dtype.Float32, Shape: []int{8, n}, Stride: []int{n, 1}}
		ok(t, kernels.Softmax(s, false, dtype.Float32, o, o, 1))
	}
	return s.all
}

// Two lengths have kernels of their own. One general kernel stands for the others, is loaded once, and is found at once afterwards, whether
// it was built ahead or not.
func TestGeneralKernelStandsForOthers(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		d, b := openBuilding(t)
		all := softmaxes(t, d, 128, 256, 384, 512, 640, 768, 128, 256)
		for range 2 {
			if ahead {
				d.BuildAhead(all)
			}
			for i := range all {
				_, err := d.Func(&all[i])
				ok(t, err)
			}
		}
		if b.loads != 3 || d.KernelsBuilt() != 3 {
			t.Errorf("ahead %v: %d loads and %d kernels, want 3", ahead, b.loads, d.KernelsBuilt())
		}
		for i := range all {
			if f, ok := d.built(&all[i]); !ok || f.Handle == 0 {
				t.Errorf("ahead %v: kernel %d is not found", ahead, i)
			}
		}
	}
}

// A general kernel that could not be loaded stands for nothing: it is built when it is needed again.
func TestGeneralKernelFails(t *testing.T) {
	d, b := openBuilding(t)
	all := softmaxes(t, d, 128, 256, 384)
	for i := range all[:2] {
		_, err := d.Func(&all[i])
		ok(t, err)
	}
	b.fail = &driver.Error{Call: "LoadModule", Code: driver.OutOfMemory}
	for range 2 {
		if _, err := d.Func(&all[2]); !errors.Is(err, driver.OutOfMemory) {
			t.Fatalf("while loads fail, Func returned %v", err)
		}
	}
	b.fail = nil
	if f, err := d.Func(&all[2]); err != nil || f.Handle == 0 {
		t.Errorf("afterwards Func returned %+v, %v", f, err)
	}
}
