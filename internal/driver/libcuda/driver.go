//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/knob"
)

// library is the loaded driver: its functions and version, which are read-only once set, and the open devices.
type library struct {
	procs   [numProcs]dl.Proc
	version int
	peers   peers
}

// call calls one function. It keeps no pointer alive: the caller must keep alive what the arguments point to, which is on the heap.
func (l *library) call(p proc, args ...uintptr) driver.Code {
	return driver.Code(int32(l.procs[p].CallKept(args...)))
}

// words is heap memory that the driver writes results into.
type words [4]uint64

func (w *words) at(i int) uintptr { return dl.Address(unsafe.Pointer(&w[i])) }

var wordsPool = sync.Pool{New: func() any { return new(words) }}

// cudaDriver implements driver.Driver. It loads the library on first use.
type cudaDriver struct {
	load func() (*library, error)
}

// process is the driver of this process: cuInit runs at most once.
var process = &cudaDriver{load: sync.OnceValues(func() (*library, error) {
	started.Store(true)
	return loadLibrary()
})}

var started atomic.Bool

// Started reports whether this process has used the driver, and so whether the driver has fixed which devices it shows.
func Started() bool { return started.Load() }

// Loads reports whether the driver's library is installed. It does not start it.
func Loads() bool { return loads() }

var loads = sync.OnceValue(func() bool {
	_, err := openLibrary()
	return err == nil
})

// New returns the process's libcuda driver. The library is loaded by the first method that needs it. If no NVIDIA driver is installed, or
// it sees no GPU, methods fail with driver.NoDevice. Any other code means that a driver is installed but does not work; the error's detail
// names the remedy.
func New() driver.Driver { return process }

func (c *cudaDriver) Name() string { return "libcuda" }

func (c *cudaDriver) Version() (int, error) {
	lib, err := c.load()
	if err != nil {
		return 0, err
	}
	return lib.version, nil
}

func (c *cudaDriver) DeviceCount() (int, error) {
	lib, err := c.load()
	if err != nil {
		return 0, err
	}
	w := new(words)
	if code := lib.call(procDeviceGetCount, w.at(0)); code != driver.Success {
		return 0, lib.failure("DeviceCount", code)
	}
	return int(int32(w[0])), nil
}

func (c *cudaDriver) Open(ordinal int) (driver.Device, error) {
	lib, err := c.load()
	if err != nil {
		return nil, err
	}
	return openDevice(lib, ordinal)
}

// loadLibrary finds, loads and starts the driver.
func loadLibrary() (*library, error) {
	so, err := openLibrary()
	if err != nil {
		return nil, absent(err, deviceFile)
	}
	lib, err := newLibrary(so.Path(), func(name string) (dl.Proc, error) { return so.Symbol(name) })
	if err != nil {
		so.Close()
		return nil, err
	}
	return lib, nil
}

// openLibrary finds and loads the driver.
func openLibrary() (*dl.Library, error) {
	names := libraryNames
	if file := knob.Libcuda.Get(); file != "" {
		names = []string{file}
	}
	so, err := dl.Open(names[0])
	if err != nil && len(names) > 1 {
		// If the other places fail too, the loader's message about the first one is enough.
		if elsewhere, miss := dl.Open(names[1:]...); miss == nil {
			return elsewhere, nil
		}
	}
	return so, err
}

// absent is the error for a library that did not load. If the kernel driver's device file exists, a GPU is present but unusable, which is
// not the same as no GPU.
func absent(cause error, deviceFile string) error {
	if deviceFile != "" {
		if _, err := os.Stat(deviceFile); err == nil {
			return &driver.Error{Call: "Load", Code: driver.SystemNotReady, Detail: fmt.Sprintf("an NVIDIA GPU is present (%s), but "+
				"its driver library does not load (%v); install the driver's user-space part (libcuda), or start the container with "+
				"NVIDIA_DRIVER_CAPABILITIES=compute,utility", deviceFile, cause)}
		}
	}
	return &driver.Error{Call: "Load", Code: driver.NoDevice, Detail: fmt.Sprintf("no NVIDIA driver found: %v", cause)}
}

// newLibrary fills the function table with symbol, which finds the library's exported names, and starts the driver.
func newLibrary(path string, symbol func(name string) (dl.Proc, error)) (*library, error) {
	w := new(words)
	getVersion, err := symbol("cuDriverGetVersion")
	if err != nil {
		return nil, &driver.Error{Call: "Load", Code: driver.NotFound, Detail: fmt.Sprintf("%s is not NVIDIA's driver: %v", path, err)}
	}
	if code := driver.Code(int32(getVersion.CallKept(w.at(0)))); code != driver.Success {
		return nil, &driver.Error{Call: "Load", Code: code, Detail: remedy(code, path)}
	}
	lib := &library{version: int(int32(w[0]))}
	getProc, err := symbol("cuGetProcAddress_v2")
	if lib.version < abiVersion || err != nil {
		return nil, &driver.Error{Call: "Load", Code: driver.NotSupported, Detail: fmt.Sprintf("the NVIDIA driver (%s) supports CUDA "+
			"%d.%d; Tenon needs 12.0: update the driver to 525 or newer", path, lib.version/1000, lib.version%1000/10)}
	}
	for p := range procTable {
		if err := lib.find(proc(p), getProc); err != nil {
			return nil, err
		}
	}
	if code := lib.call(procInit, 0); code != driver.Success {
		return nil, &driver.Error{Call: "Load", Code: code, Detail: remedy(code, path)}
	}
	return lib, nil
}

// find looks up one function. A function that was added after abiVersion may be missing; it is then 0.
func (l *library) find(p proc, getProc dl.Proc) error {
	const legacyStream = 1 // CU_GET_PROC_ADDRESS_LEGACY_STREAM
	row := procTable[p]
	version := max(row.since, abiVersion)
	if version > l.version {
		return nil
	}
	name := append([]byte(row.name), 0)
	w := new(words)
	code := driver.Code(int32(getProc.CallKept(dl.Address(unsafe.Pointer(&name[0])), w.at(0), uintptr(version), legacyStream, w.at(1))))
	runtime.KeepAlive(name)
	l.procs[p] = dl.Proc(w[0])
	if code == driver.Success && w[0] != 0 || row.since != 0 {
		return nil
	}
	return &driver.Error{Call: "Load", Code: driver.NotFound, Detail: fmt.Sprintf("the NVIDIA driver lacks %s (%s); reinstall it",
		row.name, row.purpose)}
}

// remedy says what to do about a driver that is installed but does not start.
func remedy(code driver.Code, path string) string {
	switch code {
	case driver.NoDevice:
		if v := knob.VisibleDevices.Get(); v != "" {
			return fmt.Sprintf("the NVIDIA driver shows this process no GPU; %s is %q: unset it or name a device that exists",
				knob.VisibleDevices.Name(), v)
		}
		return "an NVIDIA driver is installed, but it finds no GPU"
	case driver.StubLibrary:
		return fmt.Sprintf("%s is the CUDA toolkit's stub, not the driver: take its folder out of LD_LIBRARY_PATH", path)
	case driver.OperatingSystem:
		return "the NVIDIA device files cannot be opened: check the permissions of /dev/nvidia*"
	case driver.SystemNotReady:
		return "the machine's GPUs are not ready: start the service nvidia-fabricmanager"
	case driver.SystemDriverMismatch:
		return fmt.Sprintf("%s and the loaded NVIDIA kernel module are of different versions: reboot, or reload the module", path)
	case driver.CompatNotSupported:
		return fmt.Sprintf("%s is a forward-compatibility library that this GPU does not allow: take its folder out of LD_LIBRARY_PATH",
			path)
	case driver.Unknown:
		return "the NVIDIA driver failed to start, most often because the nvidia-uvm kernel module is not loaded: run " +
			"nvidia-modprobe -u -c 0"
	}
	return "the NVIDIA driver is installed but failed to start: see whether nvidia-smi works"
}
