package core

import (
	"testing"

	"tenon.dev/internal/rt"
)

// TestAlone shows that each processor that Alone makes has its own memory, that they share kernels which are built once, and that closing
// one of them leaves the kernels in place.
func TestAlone(t *testing.T) {
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	alone := func() *Exec {
		x, err := Alone(New(host, host))
		if err != nil {
			t.Fatal(err)
		}
		if d := x.Device(); d == host || d != x.Host().Device() {
			t.Errorf("it works on %p and %p, the process's processor is %p", d, x.Host().Device(), host)
		}
		return x
	}
	x, y := alone(), alone()
	a, b := ones(x, 4), ones(y, 4)
	x.Exp(a).Close()
	built := host.KernelsBuilt()
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if v, err := Read[float32](y, y.Exp(b)); err != nil || v[0] != v[3] || v[0] < 2.718 || v[0] > 2.719 {
		t.Errorf("%v, %v", v, err)
	}
	if n, own := host.KernelsBuilt(), y.Device().KernelsBuilt(); n != built || own != 0 {
		t.Errorf("%d kernels are built, and then %d and %d of its own", built, n, own)
	}
	if err := Try(func() { x.Exp(a) }); closedOnce(err) != "" {
		t.Errorf("after Close: %v", err)
	}
	b.Close()
	a.Close()
	if err := y.Close(); err != nil {
		t.Error(err)
	}
}
