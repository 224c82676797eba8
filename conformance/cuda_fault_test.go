package conformance

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
)

var loseFlag = flag.String("lose", "", "which program TestLostInChild loses its device with")

// faultTests are the behaviours of what stops a device.
var faultTests = []cudaTest{
	{name: "CUDA-047_test_index_out_of_bounds_exception_cuda", run: testIndexBounds},
}

// faulty are the programs that stop a device, by name, with what the assertion that stops it says.
var faulty = map[string]struct {
	run  func(x *tenon.Exec)
	says string
}{
	"index_11": {func(x *tenon.Exec) { pickOne(x, 11) }, "index out of bounds"},
	"index_-1": {func(x *tenon.Exec) { pickOne(x, -1) }, "index out of bounds"},
}

// pickOne takes element i of 0 … 9.
func pickOne(x *tenon.Exec, i int64) *tenon.Tensor {
	return x.IndexSelect(x.Arange(0, 10, 1, tenon.Int64), 0, tenon.From(x, []int64{i}, 1))
}

// stops fails unless each of the named programs stops its device. A GPU is lost to its process, so that there each runs in a child.
func stops(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if !onGPU() {
			loseDevice(t, name)
			continue
		}
		out, err := exec.Command(os.Args[0], faultChild, "-test.v", "-device", *deviceFlag, "-lose", name).CombinedOutput()
		for _, want := range []string{"--- PASS: TestLostInChild", faulty[name].says} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v; want %q of the child that says\n%.2000s", name, err, want, out)
			}
		}
	}
}

// faultChild is the argument by which this binary is started to lose a GPU.
const faultChild = "-test.run=^TestLostInChild$"

// TestLostInChild is the other half of stops.
func TestLostInChild(t *testing.T) {
	if !slices.Contains(os.Args, faultChild) {
		t.Skip("runs alone, in a process that another test starts")
	}
	loseDevice(t, *loseFlag)
}

// loseDevice runs a program on a device of its own and checks that an assertion stops that. What the assertion says a GPU prints, and a simulated device has
// in its error.
func loseDevice(t *testing.T, name string) {
	t.Helper()
	sel := tenon.Sim(0)
	if onGPU() {
		sel = tenon.CUDA(0)
	}
	x, err := tenon.Open(sel)
	must(t, err)
	defer x.Close() // its error is the device's
	err = tenon.Try(func() { faulty[name].run(x) })
	if err == nil {
		err = x.Synchronize()
	}
	var e *tenon.Error
	if !errors.As(err, &e) || e.Kind != tenon.DeviceFault {
		t.Errorf("%s: the error is %v; want a device fault", name, err)
		return
	}
	wantError(t, err, "device-side assert triggered")
	if !onGPU() {
		wantError(t, err, faulty[name].says)
	}
}

func testIndexBounds(t *testing.T, x *tenon.Exec) {
	text, err := x.Format(pickOne(x, 1))
	must(t, err)
	check(t, "an index within bounds", strings.HasPrefix(text, "[1] int64[1] on "), true)
	stops(t, "index_11", "index_-1")
}
