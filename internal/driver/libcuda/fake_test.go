//go:build !tenon_sim && linux

package libcuda

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// fakeCUDA replaces NVIDIA's library: its functions are C callbacks that end here. It tracks the live handles, so that it detects leaks and
// double frees, and fails the calls that a test names.
type fakeCUDA struct {
	t  *testing.T
	mu sync.Mutex
	// version is what cuDriverGetVersion returns; functions in absent are not found.
	version int
	absent  map[proc]bool
	// fail gives the code that a function returns; failAt, decremented by every call, selects a single call to fail.
	fail     map[proc]driver.Code
	failAt   int
	failCode driver.Code
	failed   proc
	// closing is set if the failed call came after Close had waited for the device.
	closing bool
	// count is the number of calls of each function.
	count [numProcs]int
	// pending is the number of further queries that return NotReady.
	pending int
	// apart is the distance from the host's address to the one at which the device sees registered memory.
	apart uintptr

	next    uintptr
	live    map[uintptr]proc
	host    map[uintptr][]byte
	retains int
	current map[uint64]uintptr
	running sync.WaitGroup
	params  []byte
	// config and attribute are what the last cuLaunchKernelEx read.
	config    launchConfig
	attribute launchAttribute
	// status is the state of a stream's capture and nodes its latest ones; node is what the driver read of a node's parameters.
	status driver.CaptureStatus
	nodes  []uintptr
	node   []byte
	args   [numProcs][11]uintptr
	// nodesAdded are the nodes added to graphs, in order.
	nodesAdded []addedNode
	set        map[uintptr]uint64 // attributes of the pool
	// blind is set if no device can read another's memory.
	blind bool
	// admitted lists the devices that were given access, by the address of mapped memory or the pool.
	admitted map[uintptr][]uint64
	// attributes are the device attributes whose value is not 1000 plus their number, by number.
	attributes map[uintptr]int32
	log        string
	// jitLog is what the compiler writes; options are those it was given.
	jitLog  string
	options map[int32]uintptr
}

const fakeContext = 0xc0de00

func newFake(t *testing.T) *fakeCUDA {
	f := &fakeCUDA{t: t, version: 13000, absent: map[proc]bool{}, fail: map[proc]driver.Code{}, next: 0x7000_0000_0000,
		live: map[uintptr]proc{}, host: map[uintptr][]byte{}, current: map[uint64]uintptr{}, failed: -1, set: map[uintptr]uint64{},
		status: driver.CaptureActive, admitted: map[uintptr][]uint64{}}
	fakeNow = f
	t.Cleanup(func() { fakeNow = nil })
	return f
}

// fakeNow is the fake that receives the calls; tests that use it do not run in parallel.
var fakeNow *fakeCUDA

type cArgs = [11]uintptr

// fakeProcs are the C callbacks, created once because they cannot be released. A callback reads 11 arguments, however many the caller
// passed: the rest is garbage.
var fakeProcs = sync.OnceValue(func() (p [numProcs]uintptr) {
	for i := range p {
		p[i] = dl.Callback(func(a, b, c, d, e, f, g, h, i11, j, k uintptr) uintptr {
			return uintptr(uint32(fakeNow.called(proc(i), &cArgs{a, b, c, d, e, f, g, h, i11, j, k})))
		})
	}
	return p
})

var fakeGetProcAddress = sync.OnceValue(func() uintptr {
	return dl.Callback(func(name, out, version, flags, status uintptr) uintptr {
		for p := range procTable {
			if procTable[p].name == dl.String(name) && !fakeNow.absent[proc(p)] {
				put(out, fakeProcs()[p])
				return 0
			}
		}
		return uintptr(driver.NotFound)
	})
})

// symbol finds the library's exported names.
func (f *fakeCUDA) symbol(name string) (dl.Proc, error) {
	switch name {
	case "cuDriverGetVersion":
		return dl.Proc(fakeProcs()[procDriverGetVersion]), nil
	case "cuGetProcAddress_v2":
		return dl.Proc(fakeGetProcAddress()), nil
	}
	return 0, fmt.Errorf("no %s", name)
}

// driver returns a driver whose library is the fake.
func (f *fakeCUDA) driver() *cudaDriver {
	return &cudaDriver{load: func() (*library, error) { return newLibrary("fake", f.symbol) }}
}

func (f *fakeCUDA) open() *Device {
	f.t.Helper()
	d, err := f.driver().Open(0)
	if err != nil {
		f.t.Fatal(err)
	}
	return d.(*Device)
}

func put[T uintptr | uint32 | uint64 | int32](addr uintptr, v T) { *(*T)(dl.Pointer(addr)) = v }

// called handles one call.
func (f *fakeCUDA) called(p proc, a *cArgs) driver.Code {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count[p]++
	f.args[p] = *a
	if p == procLibraryLoadData {
		f.readOptions(a)
	}
	if code := f.fail[p]; code != driver.Success {
		return code
	}
	if f.failAt--; f.failAt == 0 {
		f.failed, f.closing = p, f.count[procCtxSynchronize] > 0
		return f.failCode
	}
	if at, ok := fakeMakes[p]; ok {
		f.next += 0x1000
		h := f.next
		if p == procMemHostAlloc {
			b := make([]byte, a[1])
			h = dl.Address(unsafe.Pointer(&b[0]))
			f.host[h] = b
		}
		f.live[h] = p
		put(a[at], h)
		return driver.Success
	}
	if maker, ok := fakeFrees[p]; ok {
		made, ok := f.live[a[0]]
		if made == procMemAllocAsync || made == procGraphCreate && maker == procStreamEndCapture {
			made = maker // cuMemFree takes it too, and cuGraphDestroy a graph that no capture made
		}
		if !ok || made != maker {
			f.t.Errorf("%s of %#x, which is not a live handle of %s", procTable[p].name, a[0], procTable[maker].name)
			return driver.InvalidHandle
		}
		delete(f.live, a[0])
		return driver.Success
	}
	if answer, ok := fakeAnswers[p]; ok {
		return answer(f, a)
	}
	return driver.Success
}

// liveOf returns how many handles made by p are live.
func (f *fakeCUDA) liveOf(p proc) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, made := range f.live {
		if made == p {
			n++
		}
	}
	return n
}

// fakeMakes says which argument of a function receives a new handle.
var fakeMakes = map[proc]int{procMemAlloc: 0, procMemHostAlloc: 0, procStreamCreate: 0, procEventCreate: 0, procStreamEndCapture: 1,
	procGraphInstantiate: 0, procGraphCreate: 0, procLibraryLoadData: 0, procMemAddressReserve: 0, procMemCreate: 0, procMemAllocAsync: 0}

// fakeFrees gives, for each function that frees, the function that made its handles.
var fakeFrees = map[proc]proc{procMemFree: procMemAlloc, procMemFreeHost: procMemHostAlloc, procMemHostUnregister: procMemHostRegister,
	procStreamDestroy: procStreamCreate,
	procEventDestroy:  procEventCreate, procGraphDestroy: procStreamEndCapture, procGraphExecDestroy: procGraphInstantiate,
	procLibraryUnload: procLibraryLoadData, procMemAddressFree: procMemAddressReserve, procMemRelease: procMemCreate,
	procMemFreeAsync: procMemAllocAsync}

// fakeAnswers are the functions that do more than return success.
var fakeAnswers = map[proc]func(f *fakeCUDA, a *cArgs) driver.Code{
	procDriverGetVersion: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], int32(f.version)); return 0 },
	procGetErrorName:     func(f *fakeCUDA, a *cArgs) driver.Code { put(a[1], cString("CUDA_ERROR_NEW")); return 0 },
	procGetErrorString:   func(f *fakeCUDA, a *cArgs) driver.Code { put(a[1], cString("a new error")); return 0 },
	procLogsDumpToMemory: func(f *fakeCUDA, a *cArgs) driver.Code {
		copy(dl.Bytes(a[1], 4096), f.log+"\x00")
		f.log = ""
		return 0
	},
	procDeviceGetCount: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], int32(2)); return 0 },
	procDeviceGet: func(f *fakeCUDA, a *cArgs) driver.Code {
		if int32(a[1]) < 0 || a[1] > 1 {
			return driver.InvalidDevice
		}
		put(a[0], int32(a[1]))
		return 0
	},
	procDeviceGetName:     func(f *fakeCUDA, a *cArgs) driver.Code { copy(dl.Bytes(a[0], int(a[1])), "Fake\x00"); return 0 },
	procDeviceGetPCIBusID: func(f *fakeCUDA, a *cArgs) driver.Code { copy(dl.Bytes(a[0], int(a[1])), "0:1:2.0\x00"); return 0 },
	procDeviceGetUUID:     func(f *fakeCUDA, a *cArgs) driver.Code { copy(dl.Bytes(a[0], 16), "0123456789abcdef"); return 0 },
	procDeviceTotalMem:    func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], uint64(1<<40)); return 0 },
	procDeviceGetAttribute: func(f *fakeCUDA, a *cArgs) driver.Code {
		v, ok := f.attributes[a[1]]
		if !ok {
			v = int32(1000 + a[1])
		}
		put(a[0], v)
		return 0
	},
	procPrimaryCtxRetain: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.retains++
		put(a[0], uintptr(fakeContext+uint32(a[1])))
		return 0
	},
	procPrimaryCtxRelease: func(f *fakeCUDA, a *cArgs) driver.Code { f.retains--; return 0 },
	procCtxGetCurrent:     func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], f.current[threadID()]); return 0 },
	procCtxSetCurrent:     func(f *fakeCUDA, a *cArgs) driver.Code { f.current[threadID()] = a[0]; return 0 },
	procDeviceCanAccessPeer: func(f *fakeCUDA, a *cArgs) driver.Code {
		if !f.blind {
			put(a[0], int32(1))
		}
		return 0
	},
	procCtxEnablePeerAccess: func(f *fakeCUDA, a *cArgs) driver.Code {
		if a[0] == f.current[threadID()] {
			f.t.Errorf("a context was to read the memory of itself, %#x", a[0])
		}
		return 0
	},
	procMemSetAccess: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.admitted[a[0]] = append(f.admitted[a[0]], *(*uint64)(dl.Pointer(a[2]))>>32)
		return 0
	},
	procMemPoolSetAccess: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.admitted[a[0]] = append(f.admitted[a[0]], *(*uint64)(dl.Pointer(a[1]))>>32)
		return 0
	},
	procMemGetInfo: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], uint64(7)); put(a[1], uint64(9)); return 0 },
	procMemHostRegister: func(f *fakeCUDA, a *cArgs) driver.Code {
		if _, ok := f.live[a[0]]; ok {
			return driver.HostMemoryRegistered
		}
		f.live[a[0]] = procMemHostRegister
		return 0
	},
	procMemHostGetDevicePointer: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], a[1]+f.apart); return 0 },
	procStreamQuery:             (*fakeCUDA).query,
	procEventQuery:              (*fakeCUDA).query,
	procEventElapsedTime:        func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], uint32(0x3fc00000)); return 0 },
	procLaunchKernel:            (*fakeCUDA).launch,
	procLaunchKernelEx:          (*fakeCUDA).launchEx,
	procLaunchHostFunc: func(f *fakeCUDA, a *cArgs) driver.Code {
		fn, id := dl.Proc(a[1]), a[2]
		f.running.Go(func() { fn.Call(id) })
		return 0
	},
	procStreamGetCaptureInfo: func(f *fakeCUDA, a *cArgs) driver.Code {
		put(a[1], uint32(f.status))
		put(a[2], uint64(77))
		if a[4] != 0 && len(f.nodes) > 0 {
			put(a[4], dl.Address(unsafe.Pointer(&f.nodes[0])))
		}
		if a[5] != 0 {
			put(a[5], uint64(len(f.nodes)))
		}
		return 0
	},
	procGraphExecSetKernel: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.read(a[2], 72)
		return f.extra(uintptr(binary.NativeEndian.Uint64(f.node[48:])))
	},
	procGraphAddKernel: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.added(procGraphAddKernel, a)
		f.read(a[4], 72)
		return f.extra(uintptr(binary.NativeEndian.Uint64(f.node[48:])))
	},
	procGraphAddMemcpy:          func(f *fakeCUDA, a *cArgs) driver.Code { f.added(procGraphAddMemcpy, a); f.read(a[4], 200); return 0 },
	procGraphAddMemset:          func(f *fakeCUDA, a *cArgs) driver.Code { f.added(procGraphAddMemset, a); f.read(a[4], 40); return 0 },
	procGraphAddEventRecord:     func(f *fakeCUDA, a *cArgs) driver.Code { f.added(procGraphAddEventRecord, a); return 0 },
	procGraphExecSetMemset:      func(f *fakeCUDA, a *cArgs) driver.Code { f.read(a[2], 40); return 0 },
	procGraphExecSetMemcpy:      func(f *fakeCUDA, a *cArgs) driver.Code { f.read(a[2], 200); return 0 },
	procExchangeCaptureMode:     func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], uint32(2-*(*uint32)(dl.Pointer(a[0])))); return 0 },
	procDeviceGetDefaultMemPool: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], uintptr(0x900)); return 0 },
	procMemPoolGetAttribute:     func(f *fakeCUDA, a *cArgs) driver.Code { put(a[2], uint64(100+a[1])); return 0 },
	procMemPoolSetAttribute: func(f *fakeCUDA, a *cArgs) driver.Code {
		f.set[a[1]] = binary.NativeEndian.Uint64(dl.Bytes(a[2], 8))
		return 0
	},
	procMemMap: func(f *fakeCUDA, a *cArgs) driver.Code {
		if f.live[a[3]] != procMemCreate {
			f.t.Errorf("cuMemMap of %#x, which is not memory", a[3])
		}
		f.live[a[0]+1] = procMemMap // beside the range's own address
		return 0
	},
	procMemUnmap: func(f *fakeCUDA, a *cArgs) driver.Code {
		if f.live[a[0]+1] != procMemMap {
			f.t.Errorf("cuMemUnmap of %#x, which is not mapped", a[0])
		}
		delete(f.live, a[0]+1)
		return 0
	},
	procGraphGetNodes: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[2], uint64(3)); return 0 },
	procLibraryGetKernel: func(f *fakeCUDA, a *cArgs) driver.Code {
		if f.live[a[1]] != procLibraryLoadData || dl.String(a[2]) != "kernel" {
			return driver.NotFound
		}
		put(a[0], uintptr(0xe00))
		return 0
	},
	procKernelGetFunction: func(f *fakeCUDA, a *cArgs) driver.Code {
		if a[1] != 0xe00 {
			return driver.InvalidHandle
		}
		put(a[0], uintptr(0xf00))
		return 0
	},
	procFuncGetAttribute: func(f *fakeCUDA, a *cArgs) driver.Code { put(a[0], int32(10+a[1])); return 0 },
}

// addedNode is a node that was added to a graph.
type addedNode struct {
	by                proc
	graph, node, last uintptr // last is the only node that it depends on, or 0
}

// added handles a call that adds a node.
func (f *fakeCUDA) added(p proc, a *cArgs) {
	f.next += 0x10
	n := addedNode{by: p, graph: a[1], node: f.next}
	switch a[3] {
	case 0:
	case 1:
		n.last = *(*uintptr)(dl.Pointer(a[2]))
	default:
		f.t.Errorf("%s after %d nodes", procTable[p].name, a[3])
	}
	f.nodesAdded = append(f.nodesAdded, n)
	put(a[0], f.next)
}

// read copies the n bytes of a node's parameters. go1.26.8 fails to compile it if it is inlined with a constant n.
//
//go:noinline
func (f *fakeCUDA) read(addr uintptr, n int) { f.node = slices.Clone(dl.Bytes(addr, n)) }

func (f *fakeCUDA) query(*cArgs) driver.Code {
	if f.pending > 0 {
		f.pending--
		return driver.NotReady
	}
	return driver.Success
}

// readOptions reads the compiler's options and writes its error log.
func (f *fakeCUDA) readOptions(a *cArgs) {
	f.options = map[int32]uintptr{}
	keys, values := unsafe.Slice((*int32)(dl.Pointer(a[2])), int(a[4])), unsafe.Slice((*uintptr)(dl.Pointer(a[3])), int(a[4]))
	for i, k := range keys {
		f.options[k] = values[i]
	}
	copy(dl.Bytes(f.options[jitErrorLogBuffer], int(f.options[jitErrorLogBytes])), f.jitLog+"\x00")
}

// launch reads the parameters from the extra list, as the driver does.
func (f *fakeCUDA) launch(a *cArgs) driver.Code { return f.extra(a[10]) }

// launchConfig is cuda.h's CUlaunchConfig.
type launchConfig struct {
	grid, block        [3]uint32
	shared             uint32
	stream, attributes uintptr
	count              uint32
}

func (f *fakeCUDA) launchEx(a *cArgs) driver.Code {
	f.config = *(*launchConfig)(dl.Pointer(a[0]))
	f.attribute = *(*launchAttribute)(dl.Pointer(f.config.attributes))
	return f.extra(a[3])
}

func (f *fakeCUDA) extra(list uintptr) driver.Code {
	f.params = nil
	if list == 0 {
		return driver.Success
	}
	extra := unsafe.Slice((*uintptr)(dl.Pointer(list)), 5)
	if extra[0] != launchParamBufferPointer || extra[2] != launchParamBufferSize || extra[4] != launchParamEnd {
		f.t.Errorf("extra list is %v", extra)
		return driver.InvalidValue
	}
	n := binary.NativeEndian.Uint64(dl.Bytes(extra[3], 8))
	f.params = append(f.params, dl.Bytes(extra[1], int(n))...)
	return driver.Success
}

// cStrings keeps the results of cString alive.
var cStrings = map[string][]byte{}

func cString(s string) uintptr {
	if cStrings[s] == nil {
		cStrings[s] = append([]byte(s), 0)
	}
	return dl.Address(unsafe.Pointer(&cStrings[s][0]))
}
