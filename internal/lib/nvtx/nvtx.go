// Package nvtx reports ranges and marks to a profiler, using version 3 of NVIDIA's tools extension. It must not depend on the device
// contract or the runtime: it labels what the host does, and without a profiler it does nothing.
//
// The extension has no library of its own. A profiler names its library in an environment variable. The program loads that library and
// calls its function InitializeInjectionNvtx2, passing a function that gives the profiler tables of slots. The profiler writes the
// addresses of its functions into the slots that it needs, and the program calls the functions in the slots. The layout of the tables and
// the numbers of the slots come from the headers that NVIDIA publishes.
package nvtx

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/knob"
)

// NoTracking is the depth of a range if the profiler does not count: NVTX_NO_PUSH_POP_TRACKING.
const NoTracking = -2

// The numbers of slots in the core module (NvtxCallbackIdCore).
const (
	slotMark  = 2
	slotStart = 5
	slotEnd   = 7
	slotPush  = 9
	slotPop   = 11
)

// moduleCore is the number of the core module; moduleSlots has the number of slots of every module, including the unused slot 0.
const moduleCore = 1

var moduleSlots = [...]int{moduleCore: 16, 2: 9, 3: 15, 4: 7, 5: 16, 6: 7}

// The numbers of the tables that a profiler may request (NvtxExportTableID), and the version that they have.
const (
	tableCallbacks = 1
	tableVersion   = 3
	version        = 3
)

// Tool is a listening profiler.
type Tool struct {
	modules [len(moduleSlots)]module
	// callbacks and versionInfo are NvtxExportTableCallbacks and NvtxExportTableVersionInfo.
	callbacks   *[2]uint64
	versionInfo *[3]uint64
}

// module holds the functions of one part of the extension: the slots, and the table of their addresses.
type module struct {
	slots, table []uintptr
}

// Listening returns the profiler, or nil if there is none. It looks for one only once.
var Listening = sync.OnceValue(func() *Tool {
	path := knob.NVTXInjection.Get()
	if path == "" {
		return nil
	}
	so, err := dl.Open(path)
	if err != nil {
		return nil
	}
	initialize, err := so.Symbol("InitializeInjectionNvtx2")
	if err != nil {
		return nil
	}
	return attach(initialize)
})

// attaching is the tool whose library requests the tables; a library may also do so later.
var attaching atomic.Pointer[Tool]

// attach lets a profiler's library fill the slots, and returns nil if it declines.
func attach(initialize dl.Proc) *Tool {
	t := newTool()
	attaching.Store(t)
	if uint32(initialize.Call(entry().exportTable)) == 0 {
		return nil
	}
	return t
}

func newTool() *Tool {
	t := &Tool{callbacks: new([2]uint64), versionInfo: new([3]uint64)}
	*t.callbacks = [2]uint64{uint64(unsafe.Sizeof(*t.callbacks)), uint64(entry().functionTable)}
	*t.versionInfo = [3]uint64{uint64(unsafe.Sizeof(*t.versionInfo)), version, uint64(entry().setVersion)}
	for i, n := range moduleSlots {
		if n == 0 {
			continue
		}
		m := &t.modules[i]
		m.slots, m.table = make([]uintptr, n), make([]uintptr, n+1)
		for s := 1; s < n; s++ {
			m.table[s] = dl.Address(unsafe.Pointer(&m.slots[s]))
		}
	}
	return t
}

// entries are the C functions that a profiler calls.
type entries struct{ exportTable, functionTable, setVersion uintptr }

var entry = sync.OnceValue(func() entries {
	return entries{dl.Callback(exportTable), dl.Callback(functionTable), dl.Callback(func(uintptr) {})}
})

// exportTable returns the address of a table, or 0.
func exportTable(id uintptr) uintptr {
	t := attaching.Load()
	switch uint32(id) {
	case tableCallbacks:
		return dl.Address(unsafe.Pointer(t.callbacks))
	case tableVersion:
		return dl.Address(unsafe.Pointer(t.versionInfo))
	}
	return 0
}

// functionTable returns a module's table and its length through the pointers. Its result is 1, or 0 for an unknown module.
func functionTable(id, table, length uintptr) uintptr {
	t := attaching.Load()
	i := uint32(id)
	if int64(i) >= int64(len(moduleSlots)) || moduleSlots[i] == 0 {
		return 0
	}
	if table != 0 {
		*(*uintptr)(dl.Pointer(table)) = dl.Address(unsafe.Pointer(&t.modules[i].table[0]))
	}
	if length != 0 {
		*(*uint32)(dl.Pointer(length)) = uint32(moduleSlots[i])
	}
	return 1
}

// function returns the profiler's function in a slot, or 0.
func (t *Tool) function(slot int) dl.Proc {
	return dl.Proc(atomic.LoadUintptr(&t.modules[moduleCore].slots[slot]))
}

// say calls a function with a text, if the profiler provides it.
func (t *Tool) say(slot int, text string) (result uintptr, ok bool) {
	f := t.function(slot)
	if f == 0 {
		return 0, false
	}
	b := append([]byte(text), 0)
	result = f.CallKept(dl.Address(unsafe.Pointer(&b[0])))
	runtime.KeepAlive(b)
	return result, true
}

// Mark puts a mark on the calling thread's timeline.
func (t *Tool) Mark(text string) { t.say(slotMark, text) }

// Push begins a nested range on the calling thread, and returns how many ranges were open before.
func (t *Tool) Push(text string) int {
	if depth, ok := t.say(slotPush, text); ok {
		return int(int32(depth))
	}
	return NoTracking
}

// Pop ends the calling thread's innermost range and returns what its Push returned.
func (t *Tool) Pop() int {
	if f := t.function(slotPop); f != 0 {
		return int(int32(f.CallKept()))
	}
	return NoTracking
}

// Start begins a range that belongs to no thread and returns its id, or 0 if the profiler does not handle it.
func (t *Tool) Start(text string) uint64 {
	id, _ := t.say(slotStart, text)
	return uint64(id)
}

// End ends a range begun by Start.
func (t *Tool) End(id uint64) {
	if f := t.function(slotEnd); f != 0 {
		f.CallKept(uintptr(id))
	}
}
