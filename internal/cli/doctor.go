package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"tenon.dev"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/lib/nvml"
	"tenon.dev/internal/rt"
)

type doctor struct{}

// Run prints the report. It fails if something is installed but does not work.
func (doctor) Run(out io.Writer) error {
	// The trial runs first, since it measures from the program's start.
	trial, err := tryOut(tenon.Best())
	r := report{out: out}
	r.line(versionLine())
	gpus, driverErr := r.drivers()
	errs := append(r.devices(gpus), driverErr, err)
	if gpus > 0 {
		r.kernelCache(cacheOf(runtime.GOOS))
	}
	r.libraries()
	r.settings(knob.Settings())
	r.trial(trial, err)
	return distinct(errs)
}

// distinct joins the errors, leaving out those whose text is part of another's, since the report shows each in its place.
func distinct(errs []error) error {
	var out []error
	for i, e := range errs {
		if e == nil {
			continue
		}
		said := slices.ContainsFunc(errs[:i], func(o error) bool { return o != nil && strings.Contains(o.Error(), e.Error()) }) ||
			slices.ContainsFunc(errs[i+1:], func(o error) bool {
				return o != nil && o.Error() != e.Error() && strings.Contains(o.Error(), e.Error())
			})
		if !said {
			out = append(out, e)
		}
	}
	return errors.Join(out...)
}

// report writes sections of lines.
type report struct{ out io.Writer }

func (r *report) line(text string) { fmt.Fprintln(r.out, text) }

func (r *report) section(title string) { fmt.Fprintf(r.out, "\n%s\n", title) }

// item writes one line of a section.
func (r *report) item(name, format string, args ...any) {
	fmt.Fprintf(r.out, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
}

// drivers lists the drivers and returns the number of GPUs. A missing driver is no error.
func (r *report) drivers() (gpus int, err error) {
	r.section("drivers")
	drv := libcuda.New()
	gpus, err = drv.DeviceCount()
	version, _ := drv.Version()
	switch {
	case errors.Is(err, driver.NoDevice):
		r.item("libcuda", "no NVIDIA GPU: %s; programs run on the simulator", detail(err))
		err = nil
	case err != nil:
		r.item("libcuda", "does not work: %s", detail(err))
	case gpus == 0:
		r.item("libcuda", "CUDA %d.%d, but no GPU; programs run on the simulator", version/1000, version%1000/10)
	default:
		r.item("libcuda", "CUDA %d.%d, %s", version/1000, version%1000/10, counted(gpus, "device"))
	}
	sim := hostsim.New(hostsim.Options{})
	if version, e := sim.Version(); e == nil {
		r.item("simulator", "built in; behaves like CUDA %d.%d", version/1000, version%1000/10)
	}
	return gpus, err
}

// detail returns the readable part of a driver's error.
func detail(err error) string {
	var e *driver.Error
	if errors.As(err, &e) && e.Detail != "" {
		return e.Detail
	}
	return err.Error()
}

// devices lists every GPU, the simulated device and the processor, and returns their errors.
func (r *report) devices(gpus int) []error {
	state := r.state()
	r.section("devices")
	var errs []error
	for i := range gpus {
		errs = append(errs, r.device(fmt.Sprintf("cuda:%d", i), rt.Selector{Kind: rt.CUDA, Ordinal: i}, state))
	}
	return append(errs, r.device("sim", rt.Selector{Kind: rt.Sim}, state), r.device("cpu", rt.Selector{Kind: rt.CPU}, state))
}

// state reads the devices' state from the management library, by device identity, and prints the driver's version.
func (r *report) state() map[[16]byte]nvml.Device {
	lib, err := nvml.Open()
	if err != nil {
		return nil // the section on libraries reports it
	}
	defer lib.Close()
	if v, err := lib.DriverVersion(); err == nil {
		r.item("version", "NVIDIA driver %s", v)
	}
	all := map[[16]byte]nvml.Device{}
	devices, err := lib.Devices()
	if err != nil {
		r.item("nvml", "the devices' state cannot be read: %v", err)
	}
	for _, d := range devices {
		all[d.UUID] = d
	}
	return all
}

// device opens and describes one device.
func (r *report) device(name string, sel rt.Selector, state map[[16]byte]nvml.Device) error {
	d, err := rt.Open(sel)
	if err != nil {
		r.item(name, "cannot be used: %v", err)
		return err
	}
	info := d.Info()
	t := d.Driver().Enter()
	free, total, err := d.Driver().MemInfo(t)
	t.Leave()
	text := fmt.Sprintf("%s, capability %d.%d, %s", info.Name, info.Major, info.Minor, counted(info.Multiprocessors, "multiprocessor"))
	if sel.Kind == rt.CPU {
		text = info.Name + ", " + counted(info.Multiprocessors, "thread")
	}
	switch {
	case err != nil || total == 0:
	case sel.Kind == rt.CPU:
		text += fmt.Sprintf(", %s of memory, shared with all programs", gib(total))
	case sel.Kind == rt.Sim:
		text += fmt.Sprintf(", %s of simulated memory; host memory is used only for pages that are written", gib(total))
	default:
		text += fmt.Sprintf(", %s of %s free", gib(free), gib(total))
	}
	if s, ok := state[info.UUID]; ok {
		text += reading(", %.0f °C", s.Celsius) + reading(", %.0f W", s.Watts) + reading(", %.0f %% busy", s.Busy)
	}
	r.item(name, "%s", text)
	return errors.Join(err, d.Close())
}

// kernelCache is the folder in which NVIDIA's driver keeps compiled kernels for the next start.
type kernelCache struct {
	dir string // empty if not known
	off bool   // switched off by the environment
}

// cacheOf returns the driver's cache on an operating system, according to NVIDIA's documentation of just-in-time compilation.
func cacheOf(system string) kernelCache {
	c := kernelCache{dir: knob.CacheDir.Get(), off: knob.CacheDisable.Get() == "1"}
	if home, err := os.UserHomeDir(); c.dir == "" && err == nil && system == "linux" {
		c.dir = filepath.Join(home, ".nv", "ComputeCache")
	}
	return c
}

// kernelCache reports whether compiled kernels are kept from one start to the next.
func (r *report) kernelCache(c kernelCache) {
	const cost = "so every start compiles its kernels anew, some milliseconds each"
	r.section("compiled kernels")
	switch {
	case c.off:
		r.item("cache", "switched off by %s, %s", knob.CacheDisable.Name(), cost)
	case c.dir == "":
		r.item("cache", "kept by the driver")
	case !writable(c.dir):
		r.item("cache", "%s cannot be written, %s; set %s to a folder that can", c.dir, cost, knob.CacheDir.Name())
	default:
		r.item("cache", "kept by the driver in %s", c.dir)
	}
}

// writable reports whether files can be created in the folder or, if it does not exist, in its nearest parent.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, "tenon-*")
	if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		return writable(filepath.Dir(dir))
	}
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

func reading(format string, v float64) string {
	if v == nvml.NotReported {
		return ""
	}
	return fmt.Sprintf(format, v)
}

func gib(n uint64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// libraries lists the optional libraries.
func (r *report) libraries() {
	r.section("optional libraries")
	for i := range optionals {
		o := &optionals[i]
		f := o.look()
		switch {
		case f.leftOut:
			r.item(o.name, "left out of this build (tag tenon_sim); %s", o.without)
		case f.path == "":
			r.item(o.name, "missing (%v); %s", f.err, o.without)
		case f.version != 0:
			r.item(o.name, "%s, version %d; %s", f.path, f.version, o.uses)
		default:
			r.item(o.name, "%s; %s", f.path, o.uses)
		}
	}
}

// settings lists the environment variables that are set.
func (r *report) settings(all []knob.Setting) {
	if len(all) == 0 {
		return
	}
	r.section("environment")
	for _, s := range all {
		text := fmt.Sprintf("%s=%s", s.Name, s.Value)
		if !s.Known {
			text += ": nothing reads this variable; docs/knobs.md lists those that there are"
		}
		r.line("  " + text)
	}
}

// outcome is the measurements of a trial.
type outcome struct {
	device          string
	open, first     time.Duration // from the program's start to the open device and to the first result
	again           time.Duration // the same work once more
	launches, built int64         // of built-in kernels
}

// tryOut opens a device and computes a result on it twice.
func tryOut(sel tenon.Selector) (o outcome, err error) {
	x, err := tenon.Open(sel)
	if err != nil {
		return o, err
	}
	o.device, o.open = x.Device().Name(), time.Since(began)
	work := func() error {
		var wrong error
		err := tenon.Try(func() {
			x.Scope(func(x *tenon.Exec) {
				a := tenon.From(x, []float32{1, 2, 3, 4})
				var v float64
				if v, wrong = x.Item(x.Sum(x.Add(a, a), nil)); wrong == nil && v != 20 {
					wrong = fmt.Errorf("%s computed 2·(1+2+3+4) = %v", o.device, v)
				}
			})
		})
		return errors.Join(err, wrong)
	}
	if err := work(); err != nil {
		return o, errors.Join(err, x.Close())
	}
	o.first = time.Since(began)
	start := time.Now()
	err = work()
	o.again = time.Since(start)
	o.launches, o.built = core.KernelLaunches((*core.Exec)(x)), (*core.Exec)(x).Device().KernelsBuilt()
	return o, errors.Join(err, x.Close())
}

func (r *report) trial(o outcome, err error) {
	r.section("trial")
	if err != nil {
		r.item("failed", "%v", err)
		return
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	r.item("device", "%s", o.device)
	r.item("start", "%.1f ms until it was open, %.1f ms until the first result; the same work again took %.3f ms", ms(o.open),
		ms(o.first), ms(o.again))
	r.item("kernels", "%d built and loaded, %d of %d launches found theirs ready", o.built, o.launches-o.built, o.launches)
}
