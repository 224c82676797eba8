package conformance

import (
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
)

var loseFlag = flag.String("lose", "", "which program TestLostInChild loses its device with")

// faultTests are the behaviours of faults, which stop a GPU, or a kernel on a simulated device.
var faultTests = []cudaTest{
	{name: "CUDA-047_test_index_out_of_bounds_exception_cuda", run: testIndexBounds},
	{name: "CUDA-046_test_multinomial_invalid_probs_cuda", run: testMultinomialInvalid},
	{name: "CUDA-061_test_fixed_cuda_assert_async", run: testAssertAsync},
}

// faulty are the programs that fail an assertion, by name, with the assertion's message; a GPU leaves out the number.
var faulty = map[string]struct {
	run  func(x *tenon.Exec)
	says string
}{
	"index_11": {func(x *tenon.Exec) { pickOne(x, 11) }, "is out of range for size "},
	"index_-1": {func(x *tenon.Exec) { pickOne(x, -1) }, "is out of range for size "},

	"probability_-1":   {func(x *tenon.Exec) { drawFrom(x, 1, -1, 1) }, noProbability},
	"probability_inf":  {func(x *tenon.Exec) { drawFrom(x, 1, inf, 1) }, noProbability},
	"probability_-inf": {func(x *tenon.Exec) { drawFrom(x, 1, -inf, 1) }, noProbability},
	"probability_nan":  {func(x *tenon.Exec) { drawFrom(x, 1, 1, float32(math.NaN())) }, noProbability},
	"probabilities_0":  {func(x *tenon.Exec) { drawFrom(x, 0, 0, 0) }, "the probabilities of a row are all 0"},

	"distinct_-1":   {func(x *tenon.Exec) { drawDistinct(x, 2, 1, -1, 1) }, noProbability},
	"distinct_inf":  {func(x *tenon.Exec) { drawDistinct(x, 2, 1, inf, 1) }, noProbability},
	"distinct_nan":  {func(x *tenon.Exec) { drawDistinct(x, 2, 1, 1, float32(math.NaN())) }, noProbability},
	"distinct_few":  {func(x *tenon.Exec) { drawDistinct(x, 2, 0, 1, 0) }, tooFew},
	"distinct_none": {func(x *tenon.Exec) { drawDistinct(x, 1, 0, 0, 0) }, tooFew},

	"assert_int":     {func(x *tenon.Exec) { x.AssertAsync(x.Full(nil, 0, tenon.Int64)) }, isZero},
	"assert_float":   {func(x *tenon.Exec) { x.AssertAsync(x.Full(nil, 0, tenon.Float32)) }, isZero},
	"assert_bool":    {func(x *tenon.Exec) { x.AssertAsync(x.Full(nil, 0, tenon.Bool)) }, isZero},
	"assert_complex": {func(x *tenon.Exec) { x.AssertAsync(x.FullC(nil, 0, tenon.Complex64)) }, isZero},
}

const (
	noProbability = "is negative, infinite or NaN"
	tooFew        = "a row has fewer probabilities other than 0 than are drawn from it"
	isZero        = "the value is zero"
)

var inf = float32(math.Inf(1))

// drawFrom draws two categories of the given probabilities.
func drawFrom(x *tenon.Exec, p ...float32) *tenon.Tensor {
	return x.Multinomial(tenon.From(x, p, len(p)), 2, tenon.MultinomialOpt{Replacement: true})
}

// pickOne takes element i of 0 … 9.
func pickOne(x *tenon.Exec, i int64) *tenon.Tensor {
	return x.IndexSelect(x.Arange(10, tenon.Int64), 0, tenon.From(x, []int64{i}, 1))
}

// stops fails unless each of the named programs breaks its assertion. A fault makes a GPU unusable for its process, so there each runs in
// a child process.
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

// faultChild is the argument with which this binary starts the child process that loses a GPU.
const faultChild = "-test.run=^TestLostInChild$"

// TestLostInChild is the child process of stops.
func TestLostInChild(t *testing.T) {
	if !slices.Contains(os.Args, faultChild) {
		t.Skip("it loses its device, and so runs in a process of its own, which the tests of failing assertions start")
	}
	loseDevice(t, *loseFlag)
}

// loseDevice runs a program on a new device and checks that an assertion stops it. A GPU prints the assertion's message; a simulated
// device, which stays usable, has it in its error.
func loseDevice(t *testing.T, name string) {
	t.Helper()
	sel := tenon.Sim(0)
	if onGPU() {
		sel = tenon.CUDA(0)
	}
	x, err := tenon.Open(sel)
	must(t, err)
	defer x.Close() // its error is the device fault
	err = tenon.Try(func() { faulty[name].run(x) })
	if err == nil {
		err = x.Synchronize()
	}
	var e *tenon.Error
	kind := tenon.Invalid
	if onGPU() {
		kind = tenon.DeviceFault
	}
	if !errors.As(err, &e) || e.Kind != kind {
		t.Errorf("%s: the error is %v; want one of kind %v", name, err, kind)
		return
	}
	wantError(t, err, "device-side assert triggered")
	if !onGPU() {
		wantError(t, err, faulty[name].says)
		must(t, x.Synchronize())
	}
}

// drawDistinct draws different categories of the given probabilities.
func drawDistinct(x *tenon.Exec, samples int, p ...float32) *tenon.Tensor {
	return x.Multinomial(tenon.From(x, p, len(p)), samples)
}

func testIndexBounds(t *testing.T, x *tenon.Exec) {
	text, err := x.Format(pickOne(x, 1))
	must(t, err)
	check(t, "an index within bounds", strings.HasPrefix(text, "[1] int64[1] on "), true)
	stops(t, "index_11", "index_-1")
}

func testMultinomialInvalid(t *testing.T, _ *tenon.Exec) {
	stops(t, "probability_-1", "probability_inf", "probability_-inf", "probability_nan", "probabilities_0")
	stops(t, "distinct_-1", "distinct_inf", "distinct_nan", "distinct_few", "distinct_none")
}

func testAssertAsync(t *testing.T, x *tenon.Exec) {
	wantError(t, tenon.Try(func() { x.AssertAsync(x.Empty([]int{0}, tenon.Float32)) }),
		"Boolean value of Tensor with no values is ambiguous")
	wantError(t, tenon.Try(func() { x.AssertAsync(x.Zeros([]int{2}, tenon.Int64)) }),
		"Boolean value of Tensor with more than one value is ambiguous")
	for _, a := range []*tenon.Tensor{x.Full(nil, 1, tenon.Int64), x.Full(nil, 0.1, tenon.Float32), x.Full(nil, -0.1, tenon.Float32),
		x.Full(nil, 1, tenon.Bool),
		x.FullC(nil, 0.1i, tenon.Complex64), x.Full([]int{1, 1}, 6e-8, tenon.Float16), x.Full(nil, math.NaN(), tenon.Float64)} {
		x.AssertAsync(a)
	}
	must(t, x.Synchronize())
	stops(t, "assert_int", "assert_float", "assert_bool", "assert_complex")
}
