package resnet_test

import (
	"maps"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/driver/record"
	"tenon.dev/internal/resnet"
	"tenon.dev/internal/rt"
)

// launched returns the kernels of a compiled inference of 64 images on a device that claims to be an H200 and computes nothing.
func launched(t *testing.T, last bool) (kernels []string, e *compile.Explanation) {
	t.Helper()
	host, err := rt.Host()
	must(t, err)
	var rec *record.Device
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(driver.Device) driver.Device {
		rec = record.New(null.New(""))
		return rec
	}})
	must(t, err)
	x := (*tenon.Exec)(core.New(dev, host))
	defer func() { must(t, x.Close()) }()
	c := resnet.Base()
	c.ChannelsLast = last
	i := resnet.NewInference(x, c, 64)
	defer i.Close()
	r := compile.New(compile.Opt{NoGraphs: true})
	for range 2 {
		rec.Reset()
		must(t, r.Do(x, i.Step))
	}
	for _, c := range rec.Calls() {
		if c.Method == "Launch" {
			kernels = append(kernels, c.Args)
		}
	}
	return kernels, r.Explain(x)
}

// On an H200, the compiled inference of 64 images with their channels first launches the kernels of images with their channels last, and
// besides only what turns the weights of 3 x 3 taps, and the images and weights of the first layer.
func TestChannelsFirstRunAsChannelsLast(t *testing.T) {
	count := func(kernels []string, computes bool) map[string]int {
		n := map[string]int{}
		for _, k := range kernels {
			name, _, _ := strings.Cut(k, ",")
			switch family, _, _ := strings.Cut(name, "_"); {
			case (family == "conv" || family == "matmul" || family == "max") && computes:
				n[name]++
			case (family == "turn" || strings.HasPrefix(name, "pw_copy_u16")) && !computes:
				n[family]++
			}
		}
		return n
	}
	last, _ := launched(t, true)
	first, e := launched(t, false)
	if got, want := count(first, true), count(last, true); len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("the kernels are %v, want %v", got, want)
	}
	if got := count(first, false); got["turn"] != 16 || got["pw"] != 2 {
		t.Errorf("%v kernels turn or copy operands, want 16 for weights and 2 for the first layer", got)
	}
	if e.Segments[0].LaidOut == 0 {
		t.Errorf("nothing is laid out anew\n%s", e)
	}
}
