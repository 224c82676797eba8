package tenon_test

import (
	"fmt"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
)

// What fmt prints of handles is a short text, which takes no lock and reads no device.
func TestTexts(t *testing.T) {
	x, err := tenon.Open(tenon.SimMachine(2, 1<<30).At(1))
	must(t, err)
	defer x.Close()
	d := x.Device()
	for _, c := range []struct {
		v    any
		want string
	}{
		{x, "Exec on " + d.String()},
		{x.NoGrad().Autocast(tenon.BFloat16).TF32(true), "Exec on " + d.String() + ", no grad, autocast bfloat16, TF32"},
		{x.WithGenerator(cuda.NewGenerator(1)), "Exec on " + d.String() + ", with a generator of its own"},
		{x.Host(), "Exec on CPU"},
		{(*tenon.Exec)(nil), "nil Exec"},
		{new(tenon.Exec), "nil Exec"},
		{d, "device 1 (" + d.Name() + ")"},
		{x.Host().Device(), "CPU"},
		{new(cuda.Device), "cuda.Device(the device is nil or a zero value; use one that an Exec's Device returned)"},
		{tenon.Best(), "best"}, {tenon.Best().At(1), "best, device 1"}, {tenon.CPU(), "cpu"}, {tenon.Selector{}, "best"},
		{tenon.CUDA(0), "cuda"}, {tenon.CUDA(1), "cuda:1"}, {tenon.Sim(0), "sim"}, {tenon.Sim(2 << 30), "sim:2GiB"},
		{tenon.Sim(1025), "sim:1025 bytes"}, {tenon.Sim(3 << 19).At(2), "sim:1536KiB, device 2"},
		{tenon.SimMachine(2, 0).At(1), "sim machine of 2, device 1"},
	} {
		if got := fmt.Sprint(c.v); got != c.want {
			t.Errorf("%.200q, want %q", got, c.want)
		}
	}
	for _, text := range []string{"best", "cpu", "cuda", "cuda:1", "sim", "sim:2GiB", "sim:1536KiB"} {
		if s, err := tenon.ParseSelector(text); err != nil || s.String() != text {
			t.Errorf("%s is parsed and printed as %v (%v)", text, s, err)
		}
	}
	s, err := d.Stream()
	must(t, err)
	if got := fmt.Sprint(x.On(s)); !strings.HasSuffix(got, fmt.Sprint(", stream ", s.ID())) {
		t.Errorf("on a stream: %q", got)
	}
	fork, err := x.Fork()
	must(t, err)
	must(t, fork.Close())
	if got := fmt.Sprint(fork); !strings.HasSuffix(got, " (closed)") {
		t.Errorf("closed: %q", got)
	}
}
