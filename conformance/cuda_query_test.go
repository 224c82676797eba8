package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/cuda/nvtx"
	"tenon.dev/internal/core"
	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver/libcuda"
)

// queryTests are the behaviours of queries about devices.
var queryTests = []cudaTest{
	{name: "CUDA-005_test_check_error", run: testCheckError},
	{name: "CUDA-006_test_cuda_get_device_name", run: testDeviceName},
	{name: "CUDA-007_test_cuda_get_device_capability", run: testDeviceCapability},
	{name: "CUDA-012_test_uuid", run: testUUID},
	{name: "CUDA-030_test_get_device_index", run: testDeviceIndex},
	{name: "CUDA-050_test_nvtx", run: testRanges},
	{name: "CUDA-119_test_lazy_init", run: testLazyInit},
	{name: "CUDA-121_test_device_count_not_cached_pre_init", run: testDeviceCount},
	{name: "CUDA-137_test_nvml_get_handler", run: sensor(testHandler)},
	{name: "CUDA-138_test_temperature", run: sensor(testTemperature)},
	{name: "CUDA-139_test_power_draw", run: sensor(testPowerDraw)},
	{name: "CUDA-151_test_no_triton_on_import", run: testNoGeneratorLoaded},
	{name: "CUDA-152_test_clock_speed", run: sensor(testClockRate)},
	{name: "CUDA-308_test_device_memory_used", run: sensor(testMemoryUsed)},
	{name: "CUDA-316_test_cuda_module_loading_env", run: testLazyLoading},
}

func testCheckError(t *testing.T, _ *tenon.Exec) {
	must(t, cuda.CheckError(0))
	wantOOM(t, cuda.CheckError(2), "out of memory")
	var e *tenon.Error
	if err := cuda.CheckError(700); !errors.As(err, &e) || e.Kind != tenon.DeviceFault {
		t.Errorf("code 700 is %v", err)
	}
}

// opened calls f with Execs of x's device that were opened by other names or derived.
func opened(t *testing.T, x *tenon.Exec, f func(what string, d *cuda.Device)) {
	t.Helper()
	names := []string{"sim", "sim:80GiB"}
	if onGPU() {
		names = []string{"cuda", "cuda:0", "best"}
	}
	for _, name := range names {
		sel, err := tenon.ParseSelector(name)
		must(t, err)
		y, err := tenon.Open(sel)
		must(t, err)
		f(name, y.Device())
		must(t, y.Close())
	}
	y, err := x.Fork()
	must(t, err)
	f("a fork", y.Device())
	f("another stream", x.On(newStream(t, x)).Device())
	f("another mode", x.NoGrad().Device())
	f("the stream's device", x.Stream().Device())
}

func testDeviceName(t *testing.T, x *tenon.Exec) {
	name := x.Device().Name()
	check(t, "a simulated device is named so", strings.HasPrefix(name, "Simulated"), !onGPU())
	opened(t, x, func(what string, d *cuda.Device) { check(t, what, d.Name(), name) })
}

func testDeviceCapability(t *testing.T, x *tenon.Exec) {
	major, minor := x.Device().Capability()
	if major < 5 || minor < 0 {
		t.Errorf("the capability is %d.%d", major, minor)
	}
	opened(t, x, func(what string, d *cuda.Device) {
		a, b := d.Capability()
		check(t, what, [2]int{a, b}, [2]int{major, minor})
	})
}

func testUUID(t *testing.T, x *tenon.Exec) {
	id := x.Device().UUID()
	check(t, "bytes", len(id), 16)
	text := id.String()
	check(t, "characters", len(text), 36)
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(text) || id == (cuda.UUID{}) {
		t.Errorf("the UUID is %s", text)
	}
	check(t, "its text", strings.ReplaceAll(text, "-", ""), fmt.Sprintf("%x", id[:]))
	opened(t, x, func(what string, d *cuda.Device) { check(t, what, d.UUID(), id) })
}

func testDeviceIndex(t *testing.T, x *tenon.Exec) {
	for _, name := range []string{"cuda0", "cuda:", "cuda:-1", "cuda:x", "cuda:0:1", "", "gpu", "cpu:1", "sim:0GiB", "sim:2", "Best"} {
		_, err := tenon.ParseSelector(name)
		wantError(t, err, "Invalid device string: '"+name+"'")
	}
	sel, err := tenon.ParseSelector("cpu")
	must(t, err)
	host, err := tenon.Open(sel)
	must(t, err)
	_, err = host.Device().Temperature()
	wantError(t, err, "Expected a cuda device")
	check(t, "the device's number", x.Device().Ordinal(), 0)
}

// testRanges runs a kernel within a range, so that an outer profiler has something to show.
func testRanges(t *testing.T, x *tenon.Exec) {
	outer := nvtx.Push("foo")
	x.Neg(x.Ones([]int{5}, tenon.Float32))
	must(t, x.Synchronize())
	nvtx.Mark("bar")
	inner := nvtx.Push("within")
	check(t, "the depth of the inner range's end", nvtx.Pop(), inner)
	check(t, "the depth of the outer range's end", nvtx.Pop(), outer)
	r := nvtx.Start("range_start")
	r.End()
	nvtx.Range{}.End()
	if t.Logf("a profiler listens: %v; depths %d and %d", nvtx.Listening(), outer, inner); nvtx.Listening() {
		check(t, "the inner depth", inner, max(outer+1, inner))
		return
	}
	check(t, "the depths are negative", outer < 0 && inner < 0, true)
	check(t, "a range that nobody hears of", r, nvtx.Range{})
}

// sensor runs f, which reads x's device from NVIDIA's management library. On a simulated device every query must be an error.
func sensor(f func(t *testing.T, x *tenon.Exec) error) func(t *testing.T, x *tenon.Exec) {
	return func(t *testing.T, x *tenon.Exec) {
		err := f(t, x)
		if onGPU() {
			must(t, err)
			return
		}
		var e *tenon.Error
		if !errors.As(err, &e) || e.Kind != tenon.Unsupported {
			t.Errorf("the error is %v; want one of kind Unsupported", err)
		}
		wantError(t, err, x.Device().Name())
	}
}

// within fails unless err or v is between low and high.
func within(t *testing.T, what string, v, low, high float64, err error) error {
	t.Helper()
	if err == nil && (v < low || v > high) {
		t.Errorf("%s: %v is not between %v and %v", what, v, low, high)
	}
	if err != nil && v != 0 {
		t.Errorf("%s: %v with the error %v", what, v, err)
	}
	return err
}

// testHandler: the library's handle is not visible. Only the list of processes needs one.
func testHandler(t *testing.T, x *tenon.Exec) error {
	list, err := x.Device().Processes()
	t.Logf("%d processes: %v", len(list), list)
	return err
}

func testTemperature(t *testing.T, x *tenon.Exec) error {
	v, err := x.Device().Temperature()
	return within(t, "°C", float64(v), 0, 150, err)
}

func testPowerDraw(t *testing.T, x *tenon.Exec) error {
	v, err := x.Device().PowerDraw()
	return within(t, "watts", v, 0, 5000, err)
}

func testClockRate(t *testing.T, x *tenon.Exec) error {
	kernels, memory, utilizationErr := x.Device().Utilization()
	v, err := x.Device().ClockRate()
	return errors.Join(within(t, "MHz", float64(v), 0, 10000, err), within(t, "% of the time with kernels", float64(kernels), 0,
		100, utilizationErr),
		within(t, "% of the time with access to memory", float64(memory), 0, 100, utilizationErr))
}

func testMemoryUsed(t *testing.T, x *tenon.Exec) error {
	const size = 512 * mib
	settle(t, x.Device())
	before, err := x.Device().DeviceMemoryUsed()
	if err != nil {
		return err
	}
	a := x.Empty([]int{size}, tenon.Uint8)
	after, err := x.Device().DeviceMemoryUsed()
	if moved := float64(after) - float64(before); moved < size/32 || moved > size*32 {
		t.Errorf("512 MiB changed the memory in use by %v bytes", moved)
	}
	a.Close()
	return err
}

// testLazyLoading: each kernel is a separate module, loaded by its first launch.
func testLazyLoading(t *testing.T, x *tenon.Exec) {
	loaded := (*core.Exec)(x).Device().KernelsBuilt
	check(t, "kernels loaded before the first launch", loaded(), 0)
	a := x.Rand([]int{2}, tenon.Float32)
	check(t, "after one operation", loaded(), 1)
	x.Rand([]int{2}, tenon.Float32)
	check(t, "after the same again", loaded(), 1)
	x.Neg(a)
	check(t, "after another", loaded(), 2)
}

// questionVariable makes the test binary a program that answers one question about a process that has done nothing yet.
const questionVariable = "TENON_CONFORMANCE_QUESTION"

// ask runs the program.
func ask(t *testing.T, question string, environment ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CUDA_VISIBLE_DEVICES=") }),
		questionVariable+"="+question)
	cmd.Env = append(cmd.Env, environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", question, err, out)
	}
	return strings.TrimSpace(string(out))
}

// answer is that program. It has imported all of Tenon and prints the answer.
func answer(question string) int {
	name, arg, _ := strings.Cut(question, " ")
	switch name {
	case "started": // whether the import has started the driver
		fmt.Println(libcuda.Started(), len(libraries("libcuda.", "libnvidia-ml.")))
	case "raw": // the driver's own answer to a call
		code, err := rawCount()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(code)
	case "counts": // the number of GPUs under each of the lists, and after the first use
		var counts []string
		for list := range strings.SplitSeq(arg, ";") {
			os.Setenv("CUDA_VISIBLE_DEVICES", list)
			counts = append(counts, fmt.Sprint(tenon.GPUs()))
		}
		x, err := tenon.Open(tenon.Best())
		if err != nil {
			fmt.Println(err)
			return 1
		}
		x.Empty([]int{10}, tenon.Float32)
		counts = append(counts, fmt.Sprint(tenon.GPUs()))
		if err := x.Close(); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(strings.Join(counts, ", "))
	case "used": // the libraries that the first use of a device loads
		before := libraries("")
		sel, err := tenon.ParseSelector(arg)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		x, err := tenon.Open(sel)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		v, err := tenon.Read[float32](x, x.Rand([]int{2}, tenon.Float32))
		if err != nil || len(v) != 2 {
			fmt.Println(v, err)
			return 1
		}
		fmt.Println("added", slices.DeleteFunc(libraries(""), func(l string) bool { return slices.Contains(before, l) }))
	default:
		fmt.Println("unknown question")
		return 2
	}
	return 0
}

// rawCount returns the code of the driver's function that counts devices.
func rawCount() (int32, error) {
	driver, driverErr := dl.Open("libcuda.so.1")
	c, cErr := dl.Open("libc.so.6")
	if err := errors.Join(driverErr, cErr); err != nil {
		return 0, err
	}
	count, countErr := driver.Symbol("cuDeviceGetCount")
	calloc, callocErr := c.Symbol("calloc")
	if err := errors.Join(countErr, callocErr); err != nil {
		return 0, err
	}
	return int32(count.Call(calloc.Call(1, 8))), nil
}

// libraries returns the names of the shared libraries in this process that begin with one of the prefixes.
func libraries(prefixes ...string) (names []string) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil // not Linux
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || !strings.Contains(fields[5], ".so") {
			continue
		}
		name := path.Base(fields[5])
		if !slices.Contains(names, name) && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			names = append(names, name)
		}
	}
	return names
}

func testLazyInit(t *testing.T, _ *tenon.Exec) {
	check(t, "the driver is started, and libraries of it are loaded, by the import", ask(t, "started"), "false 0")
	check(t, "devices with CUDA_VISIBLE_DEVICES=32, set after the import, before and after the first use", ask(t, "counts 32"), "0, 0")
	if onGPU() {
		const notInitialized = "3"
		check(t, "what cuDeviceGetCount returns after the import", ask(t, "raw"), notInitialized)
	}
}

// testDeviceCount: until a device is used, the count follows the variable. Without a GPU there is nothing to count.
func testDeviceCount(t *testing.T, _ *tenon.Exec) {
	want := map[string]string{"0;0": "1, 1, 1", "32;0": "0, 1, 1", "0;32;;0": "1, 0, 0, 1, 1"}
	for lists, counts := range want {
		if !onGPU() {
			counts = regexp.MustCompile(`\d`).ReplaceAllString(counts, "0")
		}
		check(t, "devices under "+lists+" and after the first use", ask(t, "counts "+lists), counts)
	}
}

// testNoGeneratorLoaded: kernels need only the driver's own compiler.
func testNoGeneratorLoaded(t *testing.T, _ *tenon.Exec) {
	device := "sim"
	if onGPU() {
		device = "cuda"
	}
	text, ok := strings.CutPrefix(ask(t, "used "+device), "added ")
	if !ok {
		t.Fatalf("the first use says %q", text)
	}
	t.Log(text)
	for lib := range strings.FieldsSeq(strings.Trim(text, "[]")) {
		if !onGPU() || !strings.HasPrefix(lib, "libcuda.so") && !strings.HasPrefix(lib, "libnvidia-") && !systemLibrary.MatchString(lib) {
			t.Errorf("the first use of a device loads %s", lib)
		}
	}
}

var systemLibrary = regexp.MustCompile(`^lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)[.-]`)
